//! Files of a store's directory: their names, and what makes names survive a power failure.
//!
//! A store is a directory with a lock, at most one base and the log segments after it:
//!
//! ```text
//! lock    00000000000000000017.base    0000000003.log    0000000004.log
//! ```
//!
//! Bases are named after their revision, log segments are numbered without gaps.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::revision::Revision;

pub(crate) const LOCK: &str = "lock";

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
