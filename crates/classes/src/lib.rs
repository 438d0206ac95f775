//! Definitions of QoS classes, and what they become on one machine.
//!
//! Pure: values in, values out; no clock, no files, no logging. [`hardware`] has what a machine
//! offers, [`rdt`] the classes of caches and memory bandwidth, [`blockio`] those of block devices,
//! [`annotations`] the annotations that request them. This crate changes no machine: plans are
//! values that `host` carries out.

pub mod annotations;
pub mod blockio;
pub mod go_text;
pub mod hardware;
pub mod rdt;
pub mod schemata;
pub mod strict_yaml;
pub mod vectors;

pub use hardware::Hardware;
