//! [`Store`]: the handle. Opens, hands out snapshots and watches, passes transactions on; the work is
//! done in `writer`.

use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::path::Path;
use std::sync::{Arc, Mutex, RwLock};
use std::thread::{self, JoinHandle};

use crate::commit::Commit;
use crate::entry::Entry;
use crate::error::{OpenError, ReadError, StorageError};
use crate::feed::Feed;
use crate::files::{self, LOCK};
use crate::queue::Queue;
use crate::recover::recover;
use crate::revision::Revision;
use crate::shared::Shared;
use crate::snapshot::Snapshot;
use crate::sync::{lock, read};
use crate::transaction::Transaction;
use crate::watch::Watch;
use crate::writer;

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What recent events may hold in memory. A watcher that is further behind reads from the disk.
    pub recent_bytes: usize,
    /// A file of the log that is longer than this is followed by a new one. Space is given back in
    /// whole files.
    pub segment_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { recent_bytes: 4 << 20, segment_bytes: 16 << 20 }
    }
}

/// Keys with values and their history. Clones are handles of the same store; it is closed with the
/// last one.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
    threads: Arc<Threads>,
}

impl Store {
    /// Opens the store in the directory `path`, and makes both if need be.
    ///
    /// Who may read the directory may read the values: making it private is up to the caller.
    pub fn open(path: &Path, options: Options) -> Result<Self, OpenError> {
        if fs::metadata(path).is_ok_and(|metadata| !metadata.is_dir()) {
            let what = "a store is a directory";
            return Err(OpenError::NotAStore { path: path.to_owned(), what });
        }
        create_directory(path)?;
        let guard = lock_directory(path)?;
        let (index, log) = recover(path, options.segment_bytes)?;
        let shared = Arc::new(Shared {
            queue: Queue::default(),
            pins: Mutex::default(),
            feed: Mutex::new(Feed::new(index.revision, options.recent_bytes)),
            index: RwLock::new(index),
        });
        let writer = thread::Builder::new().name("store-writer".into());
        let writer = writer.spawn({
            let shared = shared.clone();
            move || writer::run(&shared, log)
        });
        let writer = Mutex::new(Some(writer.map_err(OpenError::Thread)?));
        let threads =
            Arc::new(Threads { shared: shared.clone(), writer, guard: Mutex::new(Some(guard)) });
        Ok(Self { shared, threads })
    }

    /// The newest revision that was acknowledged.
    pub fn revision(&self) -> Revision {
        read(&self.shared.index).revision
    }

    /// The compaction point: reads and watches from before it are refused.
    pub fn oldest(&self) -> Revision {
        read(&self.shared.index).oldest
    }

    /// The newest value of a key.
    pub fn get(&self, key: &str) -> Result<Option<Entry>, ReadError> {
        let place = read(&self.shared.index).newest(key);
        Ok(place.map(|place| place.read()).transpose()?)
    }

    /// All keys as of a revision, or as of now.
    pub fn snapshot(&self, at: Option<Revision>) -> Result<Snapshot, ReadError> {
        Snapshot::new(self.shared.clone(), at)
    }

    /// Sends a transaction on its way. It counts when the [`Commit`] resolves, not before.
    pub fn commit(&self, transaction: Transaction) -> Commit {
        Commit::new(self.shared.clone(), transaction)
    }

    /// The events after a revision whose keys start with `prefix`.
    pub fn watch(&self, prefix: &str, after: Revision) -> Result<Watch, ReadError> {
        Watch::new(self.shared.clone(), prefix, after)
    }

    /// Refuses new transactions, finishes those under way, ends all watches and lets go of the
    /// directory, for all handles.
    pub fn close(self) {
        self.threads.join();
    }
}

/// The store's threads, joined when the last handle goes.
struct Threads {
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<()>>>,
    /// Keeps other processes out.
    guard: Mutex<Option<File>>,
}

impl Threads {
    fn join(&self) {
        self.shared.queue.close();
        if let Some(writer) = lock(&self.writer).take() {
            // A panic has been reported by whoever caught it first; there is nothing to add.
            let _ = writer.join();
        }
        let wakers = lock(&self.shared.feed).close();
        for waker in wakers {
            waker.wake();
        }
        lock(&self.guard).take();
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

fn create_directory(path: &Path) -> Result<(), StorageError> {
    let create = || {
        fs::create_dir_all(path)?;
        match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => files::sync_directory(parent),
            _ => files::sync_directory(Path::new(".")),
        }
    };
    create().map_err(StorageError::io("create", path))
}

fn lock_directory(directory: &Path) -> Result<File, OpenError> {
    let path = directory.join(LOCK);
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
    let file = file.map_err(StorageError::io("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::Locked(directory.to_owned())),
        Err(TryLockError::Error(error)) => Err(StorageError::io("lock", &path)(error).into()),
    }
}
