//! Files of a store's directory: their names, and what makes names survive a power failure.
//!
//! A store is a directory with a lock, at most one base and the log segments after it:
//!
//! ```text
//! lock    00000000000000000017.base    0000000003.log    0000000004.log
//! ```
//!
//! Bases are named after their revision, log segments are numbered without gaps.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::error::{OpenError, StorageError};
use crate::revision::Revision;

const LOCK: &str = "lock";

pub(crate) fn log_path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number:010}.log"))
}

pub(crate) fn base_path(directory: &Path, revision: Revision) -> PathBuf {
    directory.join(format!("{:020}.base", revision.get()))
}

/// What a directory holds, in order. Other files are nobody's business.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    pub(crate) bases: Vec<u64>,
    pub(crate) logs: Vec<u64>,
    /// What was being written when a process ended.
    pub(crate) unfinished: Vec<PathBuf>,
}

pub(crate) fn list(directory: &Path) -> io::Result<Listing> {
    let mut listing = Listing::default();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let number = || path.file_stem()?.to_str()?.parse::<u64>().ok();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("log") => listing.logs.extend(number()),
            Some("base") => listing.bases.extend(number()),
            Some("tmp") => listing.unfinished.push(path),
            _ => {}
        }
    }
    listing.bases.sort_unstable();
    listing.logs.sort_unstable();
    Ok(listing)
}

/// What a file is called until it is whole.
pub(crate) fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    name.into()
}

/// Renames within a directory, durably.
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

/// Makes a directory, durably, unless it is there.
pub(crate) fn create_directory(path: &Path) -> Result<(), StorageError> {
    if path.is_dir() {
        return Ok(());
    }
    let create = || {
        fs::create_dir_all(path)?;
        sync_directory(directory_of(path))
    };
    create().map_err(StorageError::io("create", path))
}

/// Keeps other processes out of a directory.
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
        // Closing the file is not enough: a process that is just being started has a copy of it. If
        // it cannot be unlocked, it is unlocked when all copies are closed.
        let _ = self.0.unlock();
    }
}
