//! Space on the disk: [`Space`] knows whether there is any, and keeps a reserve for deletions and
//! compaction.
//!
//! ```text
//!  ordinary write fails ──► full ──► ordinary writes fail; deletions and compaction use the reserve
//!                            │ every few seconds: is there space again?
//!                            └──► no longer full; the reserve is made anew
//! ```
//!
//! There are two reserves. The room behind the end of the log (see `log`) cannot be taken by other
//! processes, and takes the records of deletions. The reserve here is a file that is removed to make
//! space for what needs a new file: a segment, or the base that compaction writes, which gives back what
//! deletions have made obsolete.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::StorageError;
use crate::sync::lock;

const RESERVE: &str = "reserve";
const PROBE: &str = "probe.tmp";

/// The number of bytes of the reserve that are written at a time.
const CHUNK: usize = 64 << 10;

pub(crate) struct Space {
    directory: PathBuf,
    /// The length of the reserve; 0 for no reserve.
    reserve_bytes: u64,
    /// The space that an ordinary write needs to go on.
    needed: u64,
    /// Why writes are refused, if they are.
    full: Mutex<Option<StorageError>>,
    refused: AtomicU64,
    /// Held while the reserve is made or removed.
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
        lock(&self.full).clone()
    }

    /// How many batches were refused for want of space.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Notes that a batch was refused. Returns whether this is news.
    pub(crate) fn refuse(&self, error: &StorageError) -> bool {
        self.refused.fetch_add(1, Ordering::Relaxed);
        lock(&self.full).replace(error.clone()).is_none()
    }

    /// Returns whether everything is as it should be.
    pub(crate) fn is_healthy(&self) -> bool {
        lock(&self.full).is_none() && self.has_reserve()
    }

    fn has_reserve(&self) -> bool {
        let length = fs::metadata(self.directory.join(RESERVE)).map_or(0, |found| found.len());
        length >= self.reserve_bytes
    }

    /// Removes the reserve. Returns whether there was one.
    pub(crate) fn release_reserve(&self) -> bool {
        let _alone = lock(&self.reserve);
        fs::remove_file(self.directory.join(RESERVE)).is_ok()
    }

    /// Looks whether there is space again, and makes the reserve if there is enough.
    pub(crate) fn check(&self) {
        if self.full().is_some() {
            let probe = self.directory.join(PROBE);
            let found = fill(&probe, self.needed);
            // If it cannot be removed now, the next look overwrites it.
            let _ = fs::remove_file(&probe);
            if found.is_err() {
                return;
            }
            *lock(&self.full) = None;
        }
        let _alone = lock(&self.reserve);
        let reserve = self.directory.join(RESERVE);
        if self.reserve_bytes == 0 {
            // One of an earlier start with other options.
            let _ = fs::remove_file(&reserve);
        } else if !self.has_reserve() && fill(&reserve, self.reserve_bytes).is_err() {
            // Part of a reserve is of no use.
            let _ = fs::remove_file(&reserve);
        }
    }
}

/// Makes a file of a length whose bytes are on the disk, and do not become fewer by compression.
fn fill(path: &Path, bytes: u64) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    let mut chunk = vec![0; CHUNK];
    // A generator of Lehmer's.
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
    // Some file systems find out only now.
    file.sync_all()
}
