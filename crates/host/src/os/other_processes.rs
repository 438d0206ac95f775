//! Kills processes on systems without cgroups. See [`crate::os`] for the twin.

use std::io::{self, ErrorKind};

/// Always fails: only Linux has processes in cgroups.
pub fn kill(_pid: u32) -> io::Result<()> {
    Err(io::Error::new(ErrorKind::Unsupported, "processes of cgroups are Linux'"))
}
