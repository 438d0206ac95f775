//! Mounts on systems where the agent does not mount: only Linux has memory file systems and bind
//! mounts.
//!
//! See [`crate::os`] for the twin.

use std::io::{self, ErrorKind};
use std::path::Path;

use crate::mounts::Mount;

/// Always returns false.
#[must_use]
pub fn can_mount() -> bool {
    false
}

/// Returns nothing: this crate cannot have mounted anything.
pub fn mounted() -> io::Result<Vec<Mount>> {
    Ok(Vec::new())
}

fn unsupported(what: &str) -> io::Error {
    io::Error::new(ErrorKind::Unsupported, format!("{what} is not possible on this system"))
}

pub fn mount_tmpfs(_target: &Path, _size: Option<u64>) -> io::Result<()> {
    Err(unsupported("mounting a tmpfs"))
}

pub fn mount_huge_pages(_target: &Path, _page_size: u64) -> io::Result<()> {
    Err(unsupported("mounting huge pages"))
}

pub fn unmount(_target: &Path) -> io::Result<()> {
    Err(unsupported("unmounting"))
}

pub fn bind_beneath(_volume: &Path, _sub: &str, _target: &Path) -> io::Result<()> {
    Err(unsupported("a bind mount"))
}
