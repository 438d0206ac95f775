//! Resources assigned to pods, stored on disk so that they survive a restart.
//!
//! - [`file`]: exclusive CPUs and memory of containers, in the kubelet's state files.
//! - [`allocations`]: requests and limits of pods, which can change while pods run.
//!
//! An entry is on disk before a container relies on it.

pub mod file;

pub mod allocations;
