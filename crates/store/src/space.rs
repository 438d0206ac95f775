//! Disk space: [`Space`] tracks whether the disk is full, and keeps a reserve for deletions and
//! compaction.
//!
//! ```text
//!  ordinary write fails ──► full ──► ordinary writes fail; deletions and compaction use the reserve
//!                            │ every two seconds: is there space again?
//!                            └──► no longer full; the reserve is recreated
//! ```
//!
//! There are two reserves. The preallocated room at the end of the log (see `log`), which other
//! processes cannot take, holds the records of deletions. The reserve here is a file that is
//! removed to make space for new files: a segment, or the checkpoint that compaction writes, which
//! frees what deletions have made obsolete.

use std::error::Error as _;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tracing::{error, info};

use crate::error::StorageError;

const RESERVE: &str = "reserve";
const PROBE: &str = "probe.tmp";

/// The number of bytes of the reserve written at a time.
const CHUNK: usize = 64 << 10;

pub(crate) struct Space {
    directory: PathBuf,
    /// The length of the reserve; 0 for no reserve.
    reserve_bytes: u64,
    /// The space that an ordinary write needs.
    needed: u64,
    /// The error that writes are refused with while the disk is full.
    full: Mutex<Option<StorageError>>,
    refused: AtomicU64,
    /// Held while the reserve is created or removed.
    reserve: Mutex<()>,
}

impl Space {
    pub(crate) fn new(directory: &Path, reserve_bytes: u64, needed: u64) -> Self {
        Self {
            directory: directory.to_owned(),
            reserve_bytes,
            needed,
            full: Mutex::default(),
            refused: AtomicU64::new(0),
            reserve: Mutex::default(),
        }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn full(&self) -> Option<StorageError> {
        self.full.lock().clone()
    }

    /// Returns the number of batches refused because the disk was full.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Records a refused batch. Returns true if the disk was not known to be full before.
    pub(crate) fn refuse(&self, error: &StorageError) -> bool {
        self.refused.fetch_add(1, Ordering::Relaxed);
        let is_new = self.full.lock().replace(error.clone()).is_none();
        if is_new {
            error!(
                directory = %self.directory.display(),
                %error,
                cause = error.source().map(tracing::field::display),
                "the disk is full; free space; until then only deletions and compaction are written"
            );
        }
        is_new
    }

    /// Returns true if the disk is not full and the reserve exists.
    pub(crate) fn is_healthy(&self) -> bool {
        self.full.lock().is_none() && self.has_reserve()
    }

    fn has_reserve(&self) -> bool {
        let length = fs::metadata(self.directory.join(RESERVE)).map_or(0, |found| found.len());
        length >= self.reserve_bytes
    }

    /// Removes the reserve. Returns true if there was one.
    pub(crate) fn release_reserve(&self) -> bool {
        let _alone = self.reserve.lock();
        fs::remove_file(self.directory.join(RESERVE)).is_ok()
    }

    /// Checks for free space, and creates the reserve if there is enough.
    pub(crate) fn check(&self) {
        if self.full().is_some() {
            let probe = self.directory.join(PROBE);
            let found = fill(&probe, self.needed);
            // If it cannot be removed now, the next check overwrites it.
            let _ = fs::remove_file(&probe);
            if found.is_err() {
                return;
            }
            *self.full.lock() = None;
            info!(
                directory = %self.directory.display(),
                refused = self.refused(),
                "the disk has space again; all writes are accepted"
            );
        }
        let _alone = self.reserve.lock();
        let reserve = self.directory.join(RESERVE);
        if self.reserve_bytes == 0 {
            // It may be left from a start with other options.
            let _ = fs::remove_file(&reserve);
        } else if !self.has_reserve() && fill(&reserve, self.reserve_bytes).is_err() {
            // A partial reserve is useless.
            let _ = fs::remove_file(&reserve);
        }
    }
}

/// Creates a file of a given length whose bytes are allocated on disk and cannot be compressed.
fn fill(path: &Path, bytes: u64) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    let mut chunk = vec![0; CHUNK];
    // A Lehmer generator.
    let mut state: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut left = bytes;
    while left > 0 {
        for eight in chunk.chunks_exact_mut(8) {
            state = state.wrapping_mul(0xDA94_2042_E4DD_58B5);
            eight.copy_from_slice(&(state ^ (state >> 32)).to_le_bytes());
        }
        let length = usize::try_from(left).map_or(CHUNK, |left| left.min(CHUNK));
        file.write_all(&chunk[..length])?;
        left -= length as u64;
    }
    // Some file systems report a full disk only now.
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::store::{Options, Store};
    use crate::transaction::Transaction;

    #[test]
    fn full_disk_is_logged_when_it_begins_and_ends() {
        let directory = tempfile::tempdir().unwrap();
        let space = Space::new(directory.path(), 0, 1);
        let lines = rig::logs::capture("store");
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        for _ in 0..3 {
            space.refuse(&StorageError::io("write", directory.path())(full()));
        }
        assert_eq!(lines.with("ERROR").len(), 1);
        assert_eq!(lines.with("the disk is full").len(), 1);
        space.check();
        space.check();
        let ended = lines.with("the disk has space again");
        assert_eq!(ended.len(), 1);
        assert!(ended[0].contains("refused=3"), "{ended:?}");
    }

    #[test]
    fn opening_is_logged_with_keys_and_revision() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), Options::default()).unwrap();
        store.commit(Transaction::new().put("a", "1")).wait().unwrap();
        store.close();
        let lines = rig::logs::capture("store");
        Store::open(directory.path(), Options::default()).unwrap().close();
        let opened = lines.with("opened the store");
        assert_eq!(opened.len(), 1);
        assert!(opened[0].contains("keys=1 revision=2"), "{opened:?}");
    }
}
