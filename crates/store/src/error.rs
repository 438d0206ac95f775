//! Why an operation failed: one enum for each. A conflict is not here: it is an
//! [`Outcome`](crate::Outcome).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

use crate::format::VERSION;
use crate::revision::Revision;

/// What the disk did. Shared by all who were waiting for it.
#[derive(Clone, Debug, Error)]
pub enum StorageError {
    #[error("cannot {step} {}", path.display())]
    Io { step: &'static str, path: PathBuf, source: Arc<io::Error> },
    #[error("{} is damaged at byte {offset}", path.display())]
    Damaged { path: PathBuf, offset: u64 },
}

impl StorageError {
    /// Returns whether there is no space: on the disk, in a quota, or below the limit on a file's size.
    #[must_use]
    pub fn is_full(&self) -> bool {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        let Self::Io { source, .. } = self else { return false };
        matches!(source.kind(), StorageFull | QuotaExceeded | FileTooLarge)
    }

    /// For `map_err`: what was tried, on which file.
    pub(crate) fn io(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { step, path: path.to_owned(), source: Arc::new(source) }
    }
}

/// Why a store was not opened. Nothing on the disk was changed, but for what an earlier crash left
/// behind.
#[derive(Debug, Error)]
pub enum OpenError {
    #[error("{} is in use by another process", .0.display())]
    Locked(PathBuf),
    #[error("{} is not a store: {what}", path.display())]
    NotAStore { path: PathBuf, what: &'static str },
    #[error("{} has format {found}; this build reads {VERSION}", path.display())]
    Version { path: PathBuf, found: u32 },
    #[error("{} is missing", .0.display())]
    Missing(PathBuf),
    #[error("the store cannot be read")]
    Storage(#[from] StorageError),
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}

/// Why something was not read.
#[derive(Clone, Debug, Error)]
pub enum ReadError {
    #[error("the revision was compacted; the oldest kept is {oldest}")]
    Compacted { oldest: Revision },
    #[error("the revision is still to come; the newest is {newest}")]
    Future { newest: Revision },
    #[error("the store cannot be read")]
    Storage(#[from] StorageError),
}

/// Why a transaction was not committed.
#[derive(Clone, Debug, Error)]
pub enum CommitError {
    #[error("a key of {length} bytes; there have to be 1 to {max}")]
    Key { length: usize, max: usize },
    #[error("a transaction of {bytes} bytes; at most {max} can be committed at once")]
    TooLarge { bytes: usize, max: usize },
    /// Nobody will see the transaction while this process runs. If the process ends before anything
    /// else is committed, opening the store may still find it written, and then it counts.
    #[error("the store cannot be written")]
    Storage(#[from] StorageError),
    #[error("the store is closed")]
    Closed,
}

/// Why a compaction did not come to its end. Unless it was refused, the compaction point has moved, and
/// the next compaction gives back what this one did not.
#[derive(Clone, Debug, Error)]
pub enum CompactError {
    #[error("the revision is still to come; the newest is {newest}")]
    Future { newest: Revision },
    #[error("the store cannot be rewritten")]
    Storage(#[from] StorageError),
    #[error("the store is closed")]
    Closed,
}

/// Why there is no backup. What was at its place before is still there.
#[derive(Clone, Debug, Error)]
pub enum BackupError {
    #[error("the backup cannot be written")]
    Storage(#[from] StorageError),
    #[error("whoever took the backup did not take all of it")]
    Sink(#[source] Arc<io::Error>),
}

/// Why nothing was restored.
#[derive(Debug, Error)]
pub enum RestoreError {
    #[error("{} has a store already", .0.display())]
    Exists(PathBuf),
    #[error("the backup cannot be used")]
    Backup(#[source] OpenError),
    #[error("the place for the store cannot be used")]
    Target(#[source] OpenError),
    #[error("the store cannot be written")]
    Storage(#[from] StorageError),
}

/// Why a watch ended.
#[derive(Clone, Debug, Error)]
pub enum WatchError {
    #[error("the watch fell behind compaction; the oldest revision kept is {oldest}")]
    Compacted { oldest: Revision },
    #[error("the store cannot be read")]
    Storage(#[from] StorageError),
    #[error("the store is closed")]
    Closed,
}
