//! The files of a store's directory: their names, and how names survive a power failure.
//!
//! A store is a directory with a lock, at most one checkpoint (`.base`), the log segments after it,
//! and an optional space reserve:
//!
//! ```text
//! lock    00000000000000000017.base    0000000003.log    0000000004.log    reserve
//! ```
//!
//! Checkpoints are named after their revision; log segments are numbered without gaps.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::error::{OpenError, StorageError};
use crate::revision::Revision;
use crate::store::Usage;

const LOCK: &str = "lock";

pub(crate) fn log_path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number:010}.log"))
}

pub(crate) fn checkpoint_path(directory: &Path, revision: Revision) -> PathBuf {
    directory.join(format!("{:020}.base", revision.get()))
}

/// The files of a directory, in order. Unknown files are ignored.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    pub(crate) checkpoints: Vec<u64>,
    pub(crate) logs: Vec<u64>,
    /// Files that were being written when a process ended.
    pub(crate) unfinished: Vec<PathBuf>,
}

pub(crate) fn list(directory: &Path) -> io::Result<Listing> {
    let mut listing = Listing::default();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let (stem, kind) = name.split_once('.').unwrap_or_default();
        let number = stem.parse::<u64>().ok();
        match (kind, number) {
            ("log", Some(number)) if log_path(directory, number) == path => {
                listing.logs.push(number);
            }
            ("base", Some(number)) if checkpoint_path(directory, number.into()) == path => {
                listing.checkpoints.push(number);
            }
            ("log.tmp" | "base.tmp" | "tmp", _) => listing.unfinished.push(path),
            _ => {}
        }
    }
    listing.checkpoints.sort_unstable();
    listing.logs.sort_unstable();
    Ok(listing)
}

/// Counts the files in a directory and their bytes. Skips files that are removed meanwhile.
pub(crate) fn usage(directory: &Path) -> io::Result<Usage> {
    let mut usage = Usage { files: 0, bytes: 0 };
    for entry in fs::read_dir(directory)? {
        let Ok(metadata) = entry?.metadata() else { continue };
        if metadata.is_file() {
            usage.files += 1;
            usage.bytes += metadata.len();
        }
    }
    Ok(usage)
}

/// Returns the temporary name of a file that is being written.
pub(crate) fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    name.into()
}

/// Renames a file within a directory, durably.
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_directory(directory_of(to))
}

pub(crate) fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory,
        _ => Path::new("."),
    }
}

/// Makes the names in a directory durable.
pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    match File::open(directory) {
        Ok(directory) => directory.sync_all(),
        // Windows does not open directories as files. Its file systems journal names, and syncing a
        // file writes the journal up to that file's creation.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
        Err(error) => Err(error),
    }
}

/// Creates a directory and its missing parents, durably.
pub(crate) fn create_directory(path: &Path) -> Result<(), StorageError> {
    let missing =
        path.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists());
    let missing: Vec<_> = missing.collect();
    let create = || {
        fs::create_dir_all(path)?;
        missing.iter().try_for_each(|made| sync_directory(directory_of(made)))
    };
    create().map_err(StorageError::io("create", path))
}

/// An exclusive lock on a directory.
#[derive(Debug)]
pub(crate) struct Lock(File);

impl Lock {
    pub(crate) fn take(directory: &Path) -> Result<Self, OpenError> {
        let path = directory.join(LOCK);
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(StorageError::io("open", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(Self(file)),
            Err(TryLockError::WouldBlock) => Err(OpenError::Locked(directory.to_owned())),
            Err(TryLockError::Error(error)) => Err(StorageError::io("lock", &path)(error).into()),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing the file is not enough: a child process that is just being started has a copy of
        // the handle. If unlocking fails, the lock ends when all copies are closed.
        let _ = self.0.unlock();
    }
}
