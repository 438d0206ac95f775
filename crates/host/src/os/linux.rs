//! This machine, on Linux (and, for files, on other systems with POSIX semantics).
//!
//! Topology comes from `/sys` by way of [`crate::sysfs`]; see [`crate::os`] for the twin.

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

/// Describes this machine.
pub fn observe_topology() -> Result<(Topology, Vec<Anomaly>), ObserveError> {
    sysfs::observe(&Directory::live())
}

/// Makes a new file that only its owner can read or write. Fails if there is one.
pub fn create_private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Makes a directory that nobody but its owner gets into, or makes one so that is there.
pub fn make_private_directory(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(PRIVATE_DIRECTORY).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {
            fs::set_permissions(path, Permissions::from_mode(PRIVATE_DIRECTORY))
        }
        done => done,
    }
}

/// Puts `from` in the place of `to` in one step: whoever opens `to` gets the old or the new file.
pub fn replace_file(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)
}

/// Makes renames in `directory` survive a power failure.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Device and inode.
pub fn file_identity(file: &File) -> io::Result<(u64, u64)> {
    let metadata = file.metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}
