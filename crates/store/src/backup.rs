//! Backups: a checkpoint file outside the store, and a store created from one. A backup file is
//! complete or absent; a streamed backup has to be checked with [`inspect`].

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use crate::checkpoint;
use crate::error::{BackupError, OpenError, RestoreError, StorageError};
use crate::files::{self, Lock};
use crate::format::{Header, SegmentKind};
use crate::log::salt;
use crate::recover::open_segment;
use crate::revision::Revision;
use crate::shared::Shared;
use crate::snapshot::Snapshot;
use crate::store::Store;

/// The distance between the revision of a backup and the first revision of the store restored from
/// it. A client that watched the store after the backup holds revisions that the restored store
/// would otherwise assign again to other changes. With this gap they all lie before the compaction
/// point, so the client gets an error. Enough for a week at 1,500 transactions per second.
pub(crate) const REVISION_GAP: u64 = 1_000_000_000;

/// The contents of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contents {
    /// The revision of the store at the time of the backup.
    pub revision: Revision,
    pub keys: u64,
}

/// Writes the current state, without history, to a file.
pub(crate) fn back_up(shared: &Arc<Shared>, to: &Path) -> Result<Revision, BackupError> {
    let snapshot = Snapshot::newest(shared.clone());
    let revision = snapshot.revision();
    checkpoint::write::<StorageError>(to, revision, revision, snapshot.range("", None))?;
    Ok(revision)
}

/// Writes the current state to a stream. The backup is complete only if this returns without an
/// error.
pub(crate) fn stream(shared: &Arc<Shared>, to: &mut impl Write) -> Result<Revision, BackupError> {
    let snapshot = Snapshot::newest(shared.clone());
    let revision = snapshot.revision();
    let header =
        Header { kind: SegmentKind::Checkpoint, salt: salt(), after: revision, oldest: revision };
    let entries = snapshot.range("", None).map(|entry| entry.map_err(BackupError::Storage));
    checkpoint::write_to(to, &header, entries, |error| BackupError::Sink(Arc::new(error)))?;
    Ok(revision)
}

/// Reads a backup from end to end and compares every checksum.
pub(crate) fn inspect(path: &Path) -> Result<Contents, OpenError> {
    let segment = open_segment(path, SegmentKind::Checkpoint)?;
    let mut keys = 0;
    checkpoint::read(&segment, |entries| {
        keys += entries.len() as u64;
        Ok(())
    })?;
    Ok(Contents { revision: segment.header().after, keys })
}

/// Creates a store from a backup, in a directory that has none.
pub(crate) fn restore(from: &Path, directory: &Path) -> Result<Contents, RestoreError> {
    let contents = inspect(from).map_err(RestoreError::Backup)?;
    files::create_directory(directory)?;
    let _guard = Lock::take(directory).map_err(RestoreError::Target)?;
    if Store::is_in(directory).map_err(StorageError::io("list", directory))? {
        return Err(RestoreError::Exists(directory.to_owned()));
    }
    let backup = open_segment(from, SegmentKind::Checkpoint).map_err(RestoreError::Backup)?;
    let at = Revision::from(contents.revision.get().saturating_add(REVISION_GAP));
    checkpoint::copy(&backup, &files::checkpoint_path(directory, at), at)?;
    Ok(contents)
}
