//! Definitions of QoS classes, and what they become on one machine.
//!
//! Pure: values in, values out; no clock, no files, no logging. [`hardware`] has what a machine
//! offers, [`rdt`] the classes of caches and memory bandwidth, [`blockio`] those of block devices,
//! [`annotations`] the annotations that request them. [`class_file`] is Berth's own file with all
//! resources, and [`class_set`] is that file on one machine. This crate changes no machine: plans are
//! values that `host` carries out.

pub mod annotations;
pub mod blockio;
pub mod class_file;
pub mod class_set;
pub mod go_text;
pub mod hardware;
pub mod rdt;
pub mod schemata;
pub mod strict_yaml;
pub mod vectors;

pub use hardware::Hardware;
