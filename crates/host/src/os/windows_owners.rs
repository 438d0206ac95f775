//! Modes, owners, kinds and links of files on Windows.
//!
//! See [`crate::os`] for the twin. Files have neither modes nor groups here, and access follows
//! from their directories: setting either does nothing, as in the kubelet.

use std::fs::{self, Metadata};
use std::io;
use std::path::Path;

use crate::file_kind::FileKind;

/// Does nothing: there are no permission bits.
pub fn set_mode(_path: &Path, _mode: u32) -> io::Result<()> {
    Ok(())
}

/// Returns 0: there are no permission bits.
#[must_use]
pub fn mode(_of: &Metadata) -> u32 {
    0
}

/// Does nothing: user and group ids are those of Linux.
pub fn set_owner(_path: &Path, _user: Option<u32>, _group: Option<u32>) -> io::Result<()> {
    Ok(())
}

/// Returns `None`: there is no such group.
#[must_use]
pub fn group(_of: &Metadata) -> Option<u32> {
    None
}

/// Creates a link to `target`, which need not exist.
pub fn link(target: &Path, link: &Path, is_directory: bool) -> io::Result<()> {
    if is_directory {
        std::os::windows::fs::symlink_dir(target, link)
    } else {
        std::os::windows::fs::symlink_file(target, link)
    }
}

/// Replaces the link `to` by the link `from`. A link to a directory cannot be replaced atomically
/// here, so it is missing for a moment.
pub fn replace_link(from: &Path, to: &Path) -> io::Result<()> {
    match remove_link(to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::rename(from, to)
}

/// Removes a link, not its target.
pub fn remove_link(path: &Path) -> io::Result<()> {
    use std::os::windows::fs::FileTypeExt as _;
    if fs::symlink_metadata(path)?.file_type().is_symlink_dir() {
        fs::remove_dir(path)
    } else {
        fs::remove_file(path)
    }
}

/// Returns the kind of a file. Sockets and pipes are files here.
#[must_use]
pub fn kind(of: &Metadata) -> FileKind {
    if of.is_dir() {
        FileKind::Directory
    } else if of.is_file() {
        FileKind::File
    } else {
        FileKind::Other
    }
}

/// Returns the length of a file; its size on disk is not available.
#[must_use]
pub fn allocated(of: &Metadata) -> u64 {
    of.len()
}

/// Returns equal values for all files, because no identity is available.
#[must_use]
pub fn identity(_of: &Metadata) -> (u64, u64) {
    (0, 0)
}
