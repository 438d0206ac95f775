//! The errors of a store, one enum for each operation. A conflict is not an error but an
//! [`Outcome`](crate::Outcome).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

use crate::format::VERSION;
use crate::revision::Revision;

/// A failed disk operation, or damaged data. Shared by all requests that waited for the operation.
#[derive(Clone, Debug, Error)]
pub enum StorageError {
    #[error("cannot {step} {}", path.display())]
    Io { step: &'static str, path: PathBuf, source: Arc<io::Error> },
    #[error("{} is damaged at byte {offset}", path.display())]
    Damaged { path: PathBuf, offset: u64 },
}

impl StorageError {
    /// Returns true if space ran out: on the disk, in a quota, or by the limit on a file's size.
    #[must_use]
    pub fn is_full(&self) -> bool {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        let Self::Io { source, .. } = self else { return false };
        matches!(source.kind(), StorageFull | QuotaExceeded | FileTooLarge)
    }

    /// Returns a function for `map_err` that adds the step and the file.
    pub(crate) fn io(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { step, path: path.to_owned(), source: Arc::new(source) }
    }
}

/// The reason why a store was not opened. The disk is unchanged, except that leftovers of an
/// earlier crash may be gone.
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

/// The reason why a read failed.
#[derive(Clone, Debug, Error)]
pub enum ReadError {
    #[error("the revision was compacted; the oldest kept is {oldest}")]
    Compacted { oldest: Revision },
    #[error("the revision is in the future; the newest is {newest}")]
    Future { newest: Revision },
    #[error("the store cannot be read")]
    Storage(#[from] StorageError),
}

/// The reason why a transaction was not committed.
#[derive(Clone, Debug, Error)]
pub enum CommitError {
    #[error("the key has {length} bytes; keys must have 1 to {max}")]
    Key { length: usize, max: usize },
    #[error("the transaction has {bytes} bytes; the maximum is {max}")]
    TooLarge { bytes: usize, max: usize },
    /// The transaction stays invisible while this process runs. If the process ends before the next
    /// commit, the transaction may be found on disk when the store is opened, and then it counts.
    #[error("the store cannot be written")]
    Storage(#[from] StorageError),
    #[error("the store is closed")]
    Closed,
}

/// The reason why a compaction was not completed. Unless it was refused, the compaction point has
/// moved, and the next compaction frees the remaining space.
#[derive(Clone, Debug, Error)]
pub enum CompactError {
    #[error("the revision is in the future; the newest is {newest}")]
    Future { newest: Revision },
    #[error("the store cannot be rewritten")]
    Storage(#[from] StorageError),
    #[error("the store is closed")]
    Closed,
}

/// The reason why a backup failed. A file that existed at its path is unchanged.
#[derive(Clone, Debug, Error)]
pub enum BackupError {
    #[error("the backup cannot be written")]
    Storage(#[from] StorageError),
    #[error("the receiver did not accept the whole backup")]
    Sink(#[source] Arc<io::Error>),
}

/// The reason why a restore failed.
#[derive(Debug, Error)]
pub enum RestoreError {
    #[error("{} has a store already", .0.display())]
    Exists(PathBuf),
    #[error("the backup cannot be used")]
    Backup(#[source] OpenError),
    #[error("the target directory cannot be used")]
    Target(#[source] OpenError),
    #[error("the store cannot be written")]
    Storage(#[from] StorageError),
}

/// The reason why a watch ended.
#[derive(Clone, Debug, Error)]
pub enum WatchError {
    #[error("the watch fell behind compaction; the oldest revision kept is {oldest}")]
    Compacted { oldest: Revision },
    #[error("the store cannot be read")]
    Storage(#[from] StorageError),
    #[error("the store is closed")]
    Closed,
}
