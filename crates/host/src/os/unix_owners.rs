//! Modes, owners, kinds and links of files on POSIX systems.
//!
//! See [`crate::os`] for the twin. Access is not decided here.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use crate::file_kind::FileKind;

/// The unit in which a file's blocks are counted, independent of the file system.
const BLOCK: u64 = 512;

/// Sets all permission bits of the target of `path`, regardless of the umask.
pub fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// Returns the permission bits.
#[must_use]
pub fn mode(of: &Metadata) -> u32 {
    of.mode() & 0o7777
}

/// Sets the owner and group of a file, or of a link itself.
pub fn set_owner(path: &Path, user: Option<u32>, group: Option<u32>) -> io::Result<()> {
    std::os::unix::fs::lchown(path, user, group)
}

/// Returns the group of a file.
#[must_use]
pub fn group(of: &Metadata) -> Option<u32> {
    Some(of.gid())
}

/// Creates a symbolic link to `target`, which need not exist.
pub fn link(target: &Path, link: &Path, _is_directory: bool) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

/// Replaces the link `to` by the link `from` atomically.
pub fn replace_link(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)
}

/// Removes a link, not its target.
pub fn remove_link(path: &Path) -> io::Result<()> {
    fs::remove_file(path)
}

/// Returns the kind of a file.
#[must_use]
pub fn kind(of: &Metadata) -> FileKind {
    let kind = of.file_type();
    if kind.is_dir() {
        FileKind::Directory
    } else if kind.is_file() {
        FileKind::File
    } else if kind.is_socket() {
        FileKind::Socket
    } else if kind.is_char_device() {
        FileKind::CharDevice
    } else if kind.is_block_device() {
        FileKind::BlockDevice
    } else {
        FileKind::Other
    }
}

/// Returns the bytes that a file takes on its file system.
#[must_use]
pub fn allocated(of: &Metadata) -> u64 {
    of.blocks().saturating_mul(BLOCK)
}

/// Returns the device and inode, equal for all names of one file.
#[must_use]
pub fn identity(of: &Metadata) -> (u64, u64) {
    (of.dev(), of.ino())
}
