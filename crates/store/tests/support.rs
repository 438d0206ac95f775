//! Shared by the tests: a store in a temporary directory, and commits that are expected to succeed.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use store::{Entry, Event, Options, Outcome, Revision, Store, Transaction, Watch, WatchError};
use tempfile::TempDir;

/// Small limits, so that little data goes through every file and every path.
pub(crate) const SMALL: Options =
    Options { recent_bytes: 2_000, segment_bytes: 4_000, reserve_bytes: 0 };

pub(crate) fn fresh(options: Options) -> (TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path(), options);
    (directory, store)
}

pub(crate) fn open(path: &Path, options: Options) -> Store {
    Store::open(path, options).unwrap_or_else(|error| panic!("{}: {error:?}", path.display()))
}

pub(crate) fn commit(store: &Store, transaction: Transaction) -> Revision {
    committed(store.commit(transaction).wait().unwrap())
}

pub(crate) fn committed(outcome: Outcome) -> Revision {
    match outcome {
        Outcome::Committed { revision } => revision,
        Outcome::Conflict { key, found } => panic!("conflict over {key}: {found:?}"),
    }
}

pub(crate) fn put(store: &Store, key: &str, value: &str) -> Revision {
    commit(store, Transaction::new().put(key, value.to_owned()))
}

pub(crate) fn delete(store: &Store, key: &str) -> Revision {
    commit(store, Transaction::new().delete(key))
}

pub(crate) fn entry(key: &str, value: &str, created: Revision, modified: Revision) -> Entry {
    Entry { key: key.into(), value: value.to_owned().into(), created, modified }
}

/// Returns all events that are available to a watch.
pub(crate) fn drain(watch: &mut Watch) -> Result<Vec<Arc<Event>>, WatchError> {
    struct Woken(AtomicBool);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let woken = Arc::new(Woken(AtomicBool::new(false)));
    let waker = Waker::from(woken.clone());
    let mut events = Vec::new();
    loop {
        match watch.poll_next(&Context::from_waker(&waker)) {
            Poll::Ready(some) => events.extend(some?),
            // The watch wakes itself when there is more to read from the disk.
            Poll::Pending if woken.0.swap(false, Ordering::SeqCst) => {}
            Poll::Pending => return Ok(events),
        }
    }
}

/// The names and lengths of a store's files.
pub(crate) fn files(path: &Path) -> Vec<(String, u64)> {
    let mut files: Vec<_> = std::fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len()))
        .collect();
    files.sort();
    files
}
