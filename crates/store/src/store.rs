//! [`Store`]: the handle. Opens the store, returns snapshots and watches, and queues transactions
//! for `writer`.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use parking_lot::{Mutex, RwLock};
use tracing::{debug, info, warn};

use crate::backup::{self, Contents};
use crate::commit::{Commit, Compaction};
use crate::compaction;
use crate::entry::Entry;
use crate::error::{BackupError, OpenError, ReadError, RestoreError, StorageError};
use crate::feed::Feed;
use crate::files::{self, Lock};
use crate::log;
use crate::queue::Queue;
use crate::recover::{Dropped, Recovered, recover};
use crate::revision::Revision;
use crate::salvage::{self, Examination};
use crate::shared::Shared;
use crate::snapshot::Snapshot;
use crate::space::Space;
use crate::transaction::Transaction;
use crate::watch::Watch;
use crate::writer;

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The memory for recent events. A watcher that is further behind reads from the disk.
    pub recent_bytes: usize,
    /// The length after which a new log file is started. Space is freed in whole files.
    pub segment_bytes: u64,
    /// The length of a file that is removed when the disk is full, so that deletions and compaction
    /// find space; 0 for none. Needed if other processes write to the same disk.
    pub reserve_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { recent_bytes: 4 << 20, segment_bytes: 16 << 20, reserve_bytes: 0 }
    }
}

/// Keys with values and their history. Clones are handles of the same store, which is closed with
/// the last one.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
    threads: Arc<Threads>,
    dropped: Option<Arc<Dropped>>,
}

/// The health of a store.
#[derive(Clone, Debug)]
pub struct Health {
    /// The error that writes fail with because the disk is full. Transactions that only delete, or
    /// that may use the reserve, may still be committed.
    pub full: Option<StorageError>,
    /// The number of batches refused because the disk was full.
    pub refused: u64,
    /// Bytes appended to the log since the store was opened.
    pub appended: u64,
}

/// The disk usage of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub files: u64,
    pub bytes: u64,
}

impl Store {
    /// Opens the store in the directory `path`, and creates both if they are missing.
    ///
    /// The values are readable by every user that may read the directory; the caller sets its
    /// permissions.
    pub fn open(path: &Path, options: Options) -> Result<Self, OpenError> {
        let started = Instant::now();
        if fs::metadata(path).is_ok_and(|metadata| !metadata.is_dir()) {
            let what = "a store is a directory";
            return Err(OpenError::NotAStore { path: path.to_owned(), what });
        }
        files::create_directory(path)?;
        let guard = Arc::new(Lock::take(path)?);
        let Recovered { index, log, dropped } = recover(path, options.segment_bytes)?;
        if let Some(Dropped { path, offset, bytes, records }) = &dropped {
            warn!(
                file = %path.display(),
                offset,
                bytes,
                records,
                "dropped the last write, which a crash had cut short before it was acknowledged"
            );
        }
        let (keys, revision) = (index.key_count(), index.revision);
        // An ordinary write allocates at most twice the room.
        let needed = 2 * log::room(options.segment_bytes);
        let shared = Arc::new(Shared {
            queue: Queue::default(),
            closing: AtomicBool::new(false),
            pins: Mutex::default(),
            feed: Mutex::new(Feed::new(index.revision, options.recent_bytes)),
            index: RwLock::new(index),
            space: Space::new(path, options.reserve_bytes, needed),
            appended: AtomicU64::new(0),
        });
        let (compactor, jobs) = mpsc::channel();
        let (running, guard) = (Mutex::default(), Mutex::new(Some(guard)));
        let threads = Threads { shared: shared.clone(), running, guard };
        let path = path.to_owned();
        threads.start("store-compactor", move |shared| {
            compaction::run(shared, &path, options.segment_bytes, &jobs);
        })?;
        threads.start("store-writer", move |shared| writer::run(shared, log, &compactor))?;
        info!(
            directory = %shared.space.directory().display(),
            keys,
            revision = revision.get(),
            elapsed_ms = started.elapsed().as_millis(),
            "opened the store"
        );
        Ok(Self { shared, threads: Arc::new(threads), dropped: dropped.map(Arc::new) })
    }

    /// Returns true if a directory contains a store. Does not open it.
    pub fn is_in(path: &Path) -> io::Result<bool> {
        match files::list(path) {
            Ok(listing) => Ok(!listing.checkpoints.is_empty() || !listing.logs.is_empty()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the incomplete last write that was dropped on opening, if a crash left one.
    pub fn dropped(&self) -> Option<&Dropped> {
        self.dropped.as_deref()
    }

    /// Returns the current health.
    pub fn health(&self) -> Health {
        Health {
            full: self.shared.space.full(),
            refused: self.shared.space.refused(),
            appended: self.shared.appended.load(Ordering::Relaxed),
        }
    }

    /// Returns the disk usage of the store, including the reserve. Reads the size of every file.
    pub fn usage(&self) -> io::Result<Usage> {
        files::usage(self.shared.space.directory())
    }

    /// Reads all files of the store in the directory `path`, including damaged ones, and reports
    /// what is readable and what is lost. Changes nothing.
    pub fn examine(path: &Path) -> Result<Examination, OpenError> {
        let _guard = Lock::take(path)?;
        Ok(salvage::survey(path)?.examination)
    }

    /// Creates a store in the directory `to` from everything readable in `from`, which is not
    /// changed. As after a restore, the new store has no history and its revision is far ahead of
    /// the damaged one. Never modifies an existing store.
    pub fn salvage(from: &Path, to: &Path) -> Result<Examination, RestoreError> {
        let _guard = Lock::take(from).map_err(RestoreError::Target)?;
        salvage::salvage(from, to)
    }

    /// Returns the newest acknowledged revision.
    pub fn revision(&self) -> Revision {
        self.shared.index.read().revision
    }

    /// Returns the compaction point. Reads and watches from before it are refused.
    pub fn oldest(&self) -> Revision {
        self.shared.index.read().oldest
    }

    /// Returns the newest value of a key.
    pub fn get(&self, key: &str) -> Result<Option<Entry>, ReadError> {
        let location = self.shared.index.read().newest(key);
        Ok(location.map(|location| location.read()).transpose()?)
    }

    /// Returns a snapshot of all keys as of a revision, or as of now.
    pub fn snapshot(&self, at: Option<Revision>) -> Result<Snapshot, ReadError> {
        match at {
            Some(revision) => Snapshot::at(self.shared.clone(), revision),
            None => Ok(Snapshot::newest(self.shared.clone())),
        }
    }

    /// Queues a transaction. It is committed when the [`Commit`] resolves, not before.
    pub fn commit(&self, transaction: Transaction) -> Commit {
        Commit::new(self.shared.clone(), transaction)
    }

    /// Watches the events after a revision whose keys start with `prefix`.
    pub fn watch(&self, prefix: &str, after: Revision) -> Result<Watch, ReadError> {
        Watch::new(self.shared.clone(), prefix, after)
    }

    /// Drops history: afterwards `at` is the oldest revision that can be read and watched from. The
    /// newest value of every key stays, whatever its age.
    pub fn compact(&self, at: Revision) -> Compaction {
        Compaction::new(self.shared.clone(), at)
    }

    /// Writes the current state to the file `to`, without history, and returns its revision. Runs
    /// concurrently with reads and writes; replaces an existing file when it is complete.
    pub fn backup(&self, to: &Path) -> Result<Revision, BackupError> {
        backup::back_up(&self.shared, to)
    }

    /// Writes the backup to a stream, as fast as the stream accepts it.
    pub fn stream_backup(&self, to: &mut impl Write) -> Result<Revision, BackupError> {
        backup::stream(&self.shared, to)
    }

    /// Reads a whole backup and returns its contents.
    pub fn inspect_backup(path: &Path) -> Result<Contents, OpenError> {
        backup::inspect(path)
    }

    /// Creates a store in the directory `to` from the backup `from`, after verifying all of it.
    /// Never modifies an existing store. Keys and values keep their revisions. The revision of the
    /// store is far ahead of the backup, so that no revision is assigned twice, and there is no
    /// history.
    pub fn restore(from: &Path, to: &Path) -> Result<Contents, RestoreError> {
        backup::restore(from, to)
    }

    /// Refuses new transactions, waits for pending ones, ends all watches and releases the
    /// directory, for all handles.
    pub fn close(self) {
        self.threads.join();
    }
}

/// The store's threads, joined when the last handle is dropped.
struct Threads {
    shared: Arc<Shared>,
    /// The writer is first, because the compactor ends after it.
    running: Mutex<Vec<JoinHandle<()>>>,
    /// The directory lock, shared with the threads.
    guard: Mutex<Option<Arc<Lock>>>,
}

impl Threads {
    fn start(
        &self,
        name: &str,
        run: impl FnOnce(&Arc<Shared>) + Send + 'static,
    ) -> Result<(), OpenError> {
        let (shared, guard) = (self.shared.clone(), self.guard.lock().clone());
        let thread = thread::Builder::new().name(name.into()).spawn(move || {
            let _guard = guard;
            run(&shared);
        });
        self.running.lock().insert(0, thread.map_err(OpenError::Thread)?);
        Ok(())
    }

    fn join(&self) {
        self.shared.closing.store(true, Ordering::Relaxed);
        self.shared.queue.close();
        // Held until all threads have ended, so that concurrent callers wait as well.
        let mut running = self.running.lock();
        // The last handle may be dropped by a task that one of these threads has just woken. Then
        // the threads end by themselves.
        let own = thread::current().id();
        if !running.iter().any(|thread| thread.thread().id() == own) {
            for thread in running.drain(..) {
                // After a panic, the message is on stderr and waiting callers get `Closed`.
                let _ = thread.join();
            }
        }
        let wakers = self.shared.feed.lock().close();
        for waker in wakers {
            waker.wake();
        }
        if self.guard.lock().take().is_some() {
            debug!(directory = %self.shared.space.directory().display(), "closed the store");
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.join();
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("revision", &self.revision()).finish_non_exhaustive()
    }
}
