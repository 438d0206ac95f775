//! [`Store`]: the handle. Opens, hands out snapshots and watches, passes transactions on; the work is
//! done in `writer`.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, mpsc};
use std::thread::{self, JoinHandle};

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
    /// The length of a file that is removed when the disk is full, so that deletions and compaction
    /// find space; 0 for none. A store on a disk that is shared with others needs one.
    pub reserve_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { recent_bytes: 4 << 20, segment_bytes: 16 << 20, reserve_bytes: 0 }
    }
}

/// Keys with values and their history. Clones are handles of the same store; it is closed with the
/// last one.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
    threads: Arc<Threads>,
    dropped: Option<Arc<Dropped>>,
}

/// How a store is.
#[derive(Clone, Debug)]
pub struct Health {
    /// Why writes fail for want of space, if they do. Transactions that only delete, or that are
    /// allowed to use the reserve, may still be committed.
    pub full: Option<StorageError>,
    /// Batches of transactions that were refused for want of space.
    pub refused: u64,
    /// Bytes appended to the log since the store was opened.
    pub appended: u64,
}

/// The space that a store takes on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub files: u64,
    pub bytes: u64,
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
        files::create_directory(path)?;
        let guard = Arc::new(Lock::take(path)?);
        let Recovered { index, log, dropped } = recover(path, options.segment_bytes)?;
        // An ordinary write makes twice the room at most.
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
        Ok(Self { shared, threads: Arc::new(threads), dropped: dropped.map(Arc::new) })
    }

    /// Whether there is a store in a directory. Opens nothing.
    pub fn is_in(path: &Path) -> io::Result<bool> {
        match files::list(path) {
            Ok(listing) => Ok(!listing.checkpoints.is_empty() || !listing.logs.is_empty()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The part of the last write that a crash had cut short and opening has dropped.
    pub fn dropped(&self) -> Option<&Dropped> {
        self.dropped.as_deref()
    }

    /// How the store is now.
    pub fn health(&self) -> Health {
        Health {
            full: self.shared.space.full(),
            refused: self.shared.space.refused(),
            appended: self.shared.appended.load(Ordering::Relaxed),
        }
    }

    /// The space that the store takes on the disk, the reserve included. Looks at every file.
    pub fn usage(&self) -> io::Result<Usage> {
        files::usage(self.shared.space.directory())
    }

    /// Reads all files of the store in the directory `path`, past damage, and reports what is there and
    /// what is lost. Changes nothing.
    pub fn examine(path: &Path) -> Result<Examination, OpenError> {
        let _guard = Lock::take(path)?;
        Ok(salvage::survey(path)?.examination)
    }

    /// Makes the directory `to` a store with all that can be read of the one in `from`, which is not
    /// changed. As a restored store, it has no history and is far ahead of the damaged one. Never
    /// touches a store that exists.
    pub fn salvage(from: &Path, to: &Path) -> Result<Examination, RestoreError> {
        let _guard = Lock::take(from).map_err(RestoreError::Target)?;
        salvage::salvage(from, to)
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
        let location = read(&self.shared.index).newest(key);
        Ok(location.map(|location| location.read()).transpose()?)
    }

    /// All keys as of a revision, or as of now.
    pub fn snapshot(&self, at: Option<Revision>) -> Result<Snapshot, ReadError> {
        match at {
            Some(revision) => Snapshot::at(self.shared.clone(), revision),
            None => Ok(Snapshot::newest(self.shared.clone())),
        }
    }

    /// Sends a transaction on its way. It counts when the [`Commit`] resolves, not before.
    pub fn commit(&self, transaction: Transaction) -> Commit {
        Commit::new(self.shared.clone(), transaction)
    }

    /// The events after a revision whose keys start with `prefix`.
    pub fn watch(&self, prefix: &str, after: Revision) -> Result<Watch, ReadError> {
        Watch::new(self.shared.clone(), prefix, after)
    }

    /// Lets go of history: afterwards the oldest revision that can be read, and watched from, is `at`.
    /// The newest value of every key stays, whatever its age.
    pub fn compact(&self, at: Revision) -> Compaction {
        Compaction::new(self.shared.clone(), at)
    }

    /// Writes what is there now to the file `to`, without history, and returns its revision. Goes on
    /// beside everything else; replaces an older file when it is done.
    pub fn backup(&self, to: &Path) -> Result<Revision, BackupError> {
        backup::back_up(&self.shared, to)
    }

    /// The same to whoever takes it, as fast as it is taken.
    pub fn stream_backup(&self, to: &mut impl Write) -> Result<Revision, BackupError> {
        backup::stream(&self.shared, to)
    }

    /// Reads all of a backup and says what is in it.
    pub fn inspect_backup(path: &Path) -> Result<Contents, OpenError> {
        backup::inspect(path)
    }

    /// Makes the directory `to` a store with what is in the backup `from`, after having read all of
    /// it. Never touches a store that exists. Keys and values are as they were, with their revisions;
    /// the store itself is far ahead of the backup, so that no revision is given out a second time,
    /// and without history.
    pub fn restore(from: &Path, to: &Path) -> Result<Contents, RestoreError> {
        backup::restore(from, to)
    }

    /// Refuses new transactions, waits for those under way, ends all watches and lets go of the
    /// directory, for all handles.
    pub fn close(self) {
        self.threads.join();
    }
}

/// The store's threads, joined when the last handle goes.
struct Threads {
    shared: Arc<Shared>,
    /// The writer first: the sweeper ends after it.
    running: Mutex<Vec<JoinHandle<()>>>,
    /// Keeps other processes out, as long as a thread or a handle has it.
    guard: Mutex<Option<Arc<Lock>>>,
}

impl Threads {
    fn start(
        &self,
        name: &str,
        run: impl FnOnce(&Arc<Shared>) + Send + 'static,
    ) -> Result<(), OpenError> {
        let (shared, guard) = (self.shared.clone(), lock(&self.guard).clone());
        let thread = thread::Builder::new().name(name.into()).spawn(move || {
            let _guard = guard;
            run(&shared);
        });
        lock(&self.running).insert(0, thread.map_err(OpenError::Thread)?);
        Ok(())
    }

    fn join(&self) {
        self.shared.closing.store(true, Ordering::Relaxed);
        self.shared.queue.close();
        // Held meanwhile, so that nobody goes on before all is done.
        let mut running = lock(&self.running);
        // The last handle may have gone with a task that one of them has just woken. Then they end by
        // themselves.
        let own = thread::current().id();
        if !running.iter().any(|thread| thread.thread().id() == own) {
            for thread in running.drain(..) {
                // Should it have panicked, the message is on stderr, and who waited hears `Closed`.
                let _ = thread.join();
            }
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
