//! Scheduling and resource limits of processes on systems that are not supported. See [`crate::os`]
//! for the twin.

use std::io::{self, ErrorKind};

use crate::tuning::{IoPriority, Nice, Policy, Rlimit, RlimitKind};

fn unsupported<T>() -> io::Result<T> {
    Err(io::Error::new(ErrorKind::Unsupported, "only Linux has these properties of processes"))
}

/// Always fails.
pub fn nice(_pid: u32) -> io::Result<i32> {
    unsupported()
}

/// Always fails.
pub fn set_nice(_pid: u32, _nice: Nice) -> io::Result<()> {
    unsupported()
}

/// Always fails.
pub fn policy(_pid: u32) -> io::Result<Option<Policy>> {
    unsupported()
}

/// Always fails.
pub fn set_policy(_pid: u32, _policy: Policy) -> io::Result<()> {
    unsupported()
}

/// Always fails.
pub fn io_priority(_pid: u32) -> io::Result<Option<IoPriority>> {
    unsupported()
}

/// Always fails.
pub fn set_io_priority(_pid: u32, _priority: IoPriority) -> io::Result<()> {
    unsupported()
}

/// Always fails.
pub fn set_rlimit(_pid: u32, _kind: RlimitKind, _limit: Rlimit) -> io::Result<()> {
    unsupported()
}
