//! Definitions of QoS classes, and what they become on one machine.
//!
//! Pure: values in, values out; no clock, no files, no logging. [`hardware`] has what a machine
//! offers. This crate changes no machine: plans are values that `host` carries out.

pub mod go_number;
pub mod hardware;
