//! The sweeper thread: gives back what compaction has made unreachable. Entry: [`run`].
//!
//! ```text
//! forget versions ──► worth it? ──► write a base ──► read it back, frame by frame, ──► remove the
//! in the index         no: done                      and point the index at it         files before
//! ```
//!
//! Each step holds the index for some hundred keys or one frame at a time; the writer goes on
//! meanwhile. A crash in between costs the work, nothing else: a base counts when it has its name, and
//! what it stands in for is removed on opening.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;

use crate::base;
use crate::error::CompactError;
use crate::files::base_path;
use crate::reply::Answer;
use crate::revision::Revision;
use crate::shared::Shared;
use crate::snapshot::Snapshot;
use crate::sync::{lock, read, write};

/// Keys whose versions are looked through at a time: tens of microseconds.
const LOOKED_THROUGH: usize = 256;

/// Someone who waits for a sweep.
pub(crate) type Sweep = Answer<Result<(), CompactError>>;

/// Works until there is nobody left who could ask for a sweep.
pub(crate) fn run(shared: &Arc<Shared>, directory: &Path, least: u64, sweeps: &Receiver<Sweep>) {
    while let Ok(first) = sweeps.recv() {
        // Whoever has asked meanwhile is served by the same sweep.
        let others: Vec<_> = sweeps.try_iter().collect();
        let swept = sweep(shared, directory, least);
        for answer in others {
            answer.give(swept.clone());
        }
        first.give(swept);
    }
}

fn sweep(shared: &Arc<Shared>, directory: &Path, least: u64) -> Result<(), CompactError> {
    let going_on = || match shared.closing.load(Ordering::Relaxed) {
        true => Err(CompactError::Closed),
        false => Ok(()),
    };
    let floor = floor(shared);
    let mut after = None;
    let mut needed = 0;
    loop {
        going_on()?;
        let pruned = write(&shared.index).prune(after.as_deref(), floor, LOOKED_THROUGH);
        needed += pruned.kept_bytes;
        match pruned.last {
            Some(last) => after = Some(last),
            None => break,
        }
    }

    // Half of what is written has to be gain, and enough of it.
    let obsolete = read(&shared.index).up_to(floor);
    let mut bytes = 0;
    for segment in &obsolete {
        bytes += segment.file_length()?;
    }
    if bytes < needed + needed.max(least) {
        return Ok(());
    }

    let path = base_path(directory, floor);
    let oldest = read(&shared.index).oldest;
    let entries = Snapshot::unchecked(shared.clone(), floor).range("", None);
    let entries = entries.map(|entry| going_on().and_then(|()| Ok(entry?)));
    let segment = Arc::new(base::write(&path, floor, oldest, entries)?);
    base::read(&segment, |entries| {
        let mut index = write(&shared.index);
        for (offset, record) in entries {
            index.relocate(record.key, record.revision, &segment, *offset);
        }
        Ok(())
    })?;
    write(&shared.index).rebase(&segment);
    for segment in obsolete {
        segment.doom();
    }
    Ok(())
}

/// What is not visible at this revision or later is visible to nobody.
fn floor(shared: &Shared) -> Revision {
    let pins = lock(&shared.pins);
    let oldest = read(&shared.index).oldest;
    pins.keys().next().map_or(oldest, |pinned| oldest.min(*pinned))
}
