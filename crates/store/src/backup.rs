//! Backups: a base outside the store, and a store made from one. A file is there as a whole or not at
//! all; what was streamed has to be asked about ([`inspect`]).

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

/// How far a restored store is ahead of its backup. Whoever followed the store after the backup was made
/// holds revisions that the restored one would give out again, to other changes; this far ahead they are
/// all behind its compaction point, and he is told so. Enough for a week at 1,500 transactions a second.
pub(crate) const REVISION_GAP: u64 = 1_000_000_000;

/// What is in a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contents {
    /// The revision of the store that it is of.
    pub revision: Revision,
    pub keys: u64,
}

/// Writes what is there now, without its history, to a file of its own.
pub(crate) fn back_up(shared: &Arc<Shared>, to: &Path) -> Result<Revision, BackupError> {
    let snapshot = Snapshot::newest(shared.clone());
    let revision = snapshot.revision();
    checkpoint::write::<StorageError>(to, revision, revision, snapshot.range("", None))?;
    Ok(revision)
}

/// The same to whoever takes it. It is whole when this returns without an error.
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

/// Makes a backup the base of a new store, in a directory that has none.
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
