//! Backups: a base outside the store, and a store made from one. Either file is there as a whole or not
//! at all.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::base;
use crate::error::{BackupError, OpenError, RestoreError, StorageError};
use crate::files::{self, Lock};
use crate::format::SegmentKind;
use crate::index::Index;
use crate::recover::{load_base, open_segment};
use crate::revision::Revision;
use crate::shared::Shared;
use crate::snapshot::Snapshot;

/// Writes what is there now, without its history, to a file of its own.
pub(crate) fn back_up(shared: &Arc<Shared>, to: &Path) -> Result<Revision, BackupError> {
    let snapshot = Snapshot::newest(shared.clone());
    let revision = snapshot.revision();
    base::write::<StorageError>(to, revision, revision, snapshot.range("", None))?;
    Ok(revision)
}

/// Makes a backup the base of a new store, in a directory that has none.
pub(crate) fn restore(from: &Path, directory: &Path) -> Result<Revision, RestoreError> {
    files::create_directory(directory)?;
    let _guard = Lock::take(directory).map_err(RestoreError::Place)?;
    let listing = files::list(directory).map_err(StorageError::io("list", directory))?;
    if !listing.bases.is_empty() || !listing.logs.is_empty() {
        return Err(RestoreError::Exists(directory.to_owned()));
    }
    let unfinished = files::unfinished(&directory.join("restored.base"));
    let restored = copy(from, &unfinished).map_err(RestoreError::Storage).and_then(|file| {
        // The copy, not the original: this is what will be opened.
        let revision = verify(&unfinished).map_err(RestoreError::Backup)?;
        let path = files::base_path(directory, revision);
        file.sync_all().map_err(StorageError::io("write", &unfinished))?;
        // Windows does not rename what is open.
        drop(file);
        files::rename(&unfinished, &path).map_err(StorageError::io("create", &path))?;
        Ok(revision)
    });
    if restored.is_err() {
        // The failure is reported already.
        let _ = fs::remove_file(&unfinished);
    }
    restored
}

fn copy(from: &Path, to: &Path) -> Result<File, StorageError> {
    let mut source = File::open(from).map_err(StorageError::io("read", from))?;
    let mut file = File::create(to).map_err(StorageError::io("create", to))?;
    io::copy(&mut source, &mut file).map_err(StorageError::io("write", to))?;
    Ok(file)
}

/// Reads a base from end to end.
fn verify(path: &Path) -> Result<Revision, OpenError> {
    let mut index = Index::new();
    load_base(&mut index, &open_segment(path, SegmentKind::Base)?)?;
    Ok(index.revision)
}
