//! This machine on Linux (for files, also on other POSIX systems).
//!
//! The topology is read from `/sys` by [`crate::sysfs`]; see [`crate::os`] for the twin.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::Path;

use placement::Topology;

use crate::anomaly::Anomaly;
use crate::sysfs;
use crate::tree::Directory;

pub use crate::sysfs::ObserveError;

const PRIVATE_DIRECTORY: u32 = 0o700;

/// The root directory of a kubelet with default settings.
pub const KUBELET_DIRECTORY: &str = "/var/lib/kubelet";

/// Describes this machine.
pub fn observe_topology() -> Result<(Topology, Vec<Anomaly>), ObserveError> {
    sysfs::observe(&Directory::live())
}

/// Creates a new file that only its owner can read or write. Fails if it exists.
pub fn create_private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Creates a directory that only its owner can enter, or makes an existing one private.
pub fn make_private_directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(PRIVATE_DIRECTORY).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {
            fs::set_permissions(path, Permissions::from_mode(PRIVATE_DIRECTORY))
        }
        done => done,
    }
}

/// Replaces `to` by `from` atomically: opening `to` returns the old or the new file.
pub fn replace_file(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)
}

/// Makes renames in `directory` survive a power failure.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Returns device and inode.
pub fn file_identity(file: &File) -> io::Result<(u64, u64)> {
    let metadata = file.metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}
