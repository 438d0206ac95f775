//! Kills and lists processes on systems without cgroups. See [`crate::os`] for the twin.

use std::io::{self, ErrorKind};

use placement::CpuSet;

use crate::processes::Process;

/// Always fails: only Linux has processes in cgroups.
pub fn kill(_pid: u32) -> io::Result<()> {
    Err(io::Error::new(ErrorKind::Unsupported, "only Linux has processes in cgroups"))
}

/// Returns nothing: processes are not read on this system.
#[must_use]
pub fn list() -> Vec<Process> {
    Vec::new()
}

/// Returns `None`: unknown on this system.
#[must_use]
pub fn first_process_cpus() -> Option<CpuSet> {
    None
}

/// Returns `None`: unknown on this system.
#[must_use]
pub fn online_cpus() -> Option<CpuSet> {
    None
}
