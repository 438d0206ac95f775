//! Modes, owners, kinds and links of files, on systems with POSIX semantics.
//!
//! See [`crate::os`] for the twin. Nothing here decides who may read what.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use crate::file_kind::FileKind;

/// Bytes of the unit in which a file's blocks are counted, whatever those of the file system are.
const BLOCK: u64 = 512;

/// Sets all permission bits of what `path` leads to, whatever the umask.
pub fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// The permission bits.
#[must_use]
pub fn mode(of: &Metadata) -> u32 {
    of.mode() & 0o7777
}

/// Gives a file, or a link itself, to a user or a group.
pub fn set_owner(path: &Path, user: Option<u32>, group: Option<u32>) -> io::Result<()> {
    std::os::unix::fs::lchown(path, user, group)
}

/// The group of a file.
#[must_use]
pub fn group(of: &Metadata) -> Option<u32> {
    Some(of.gid())
}

/// Makes `link` lead to `target`, which need not exist.
pub fn link(target: &Path, link: &Path, _is_directory: bool) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

/// Puts the link `from` in the place of the link `to` in one step.
pub fn replace_link(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)
}

/// Removes a link, not what it leads to.
pub fn remove_link(path: &Path) -> io::Result<()> {
    fs::remove_file(path)
}

/// What a file is.
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

/// The bytes a file takes on its file system.
#[must_use]
pub fn allocated(of: &Metadata) -> u64 {
    of.blocks().saturating_mul(BLOCK)
}

/// What is the same of two names of one file, and the file system it is on.
#[must_use]
pub fn identity(of: &Metadata) -> (u64, u64) {
    (of.dev(), of.ino())
}
