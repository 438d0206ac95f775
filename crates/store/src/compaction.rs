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
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::checkpoint;
use crate::error::CompactError;
use crate::files::checkpoint_path;
use crate::reply::ReplySender;
use crate::revision::Revision;
use crate::shared::Shared;
use crate::snapshot::Snapshot;
use crate::sync::{lock, read, write};

/// Keys whose versions are looked through at a time: tens of microseconds.
const KEYS_PER_STEP: usize = 256;

/// Between two looks for space while the disk is full or the reserve is missing.
const SPACE_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// The caller that waits for a sweep.
pub(crate) type CompactionReply = ReplySender<Result<(), CompactError>>;

/// A request to the sweeper.
pub(crate) enum Job {
    Compact(CompactionReply),
    /// The disk is full, or the reserve was used: look for space until all is well.
    CheckSpace,
}

impl Job {
    fn into_reply(self) -> Option<CompactionReply> {
        match self {
            Job::Compact(reply) => Some(reply),
            Job::CheckSpace => None,
        }
    }
}

/// Works until no caller is left that could ask for anything.
pub(crate) fn run(shared: &Arc<Shared>, directory: &Path, least: u64, jobs: &Receiver<Job>) {
    loop {
        if !shared.space.is_healthy() {
            shared.space.check();
        }
        let first = match shared.space.is_healthy() {
            true => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => jobs.recv_timeout(SPACE_CHECK_INTERVAL),
        };
        if matches!(first, Err(RecvTimeoutError::Disconnected)) {
            return;
        }
        // All that have asked meanwhile are served by the same sweep.
        let replies: Vec<CompactionReply> =
            first.into_iter().chain(jobs.try_iter()).filter_map(Job::into_reply).collect();
        if !replies.is_empty() {
            let outcome = compact(shared, directory, least);
            for reply in replies {
                reply.send(outcome.clone());
            }
        }
    }
}

fn compact(shared: &Arc<Shared>, directory: &Path, least: u64) -> Result<(), CompactError> {
    let check_closing = || match shared.closing.load(Ordering::Relaxed) {
        true => Err(CompactError::Closed),
        false => Ok(()),
    };
    let floor = floor(shared);
    let mut after = None;
    let mut needed = 0;
    loop {
        check_closing()?;
        let pruned = write(&shared.index).prune(after.as_deref(), floor, KEYS_PER_STEP);
        needed += pruned.kept_bytes;
        match pruned.last {
            Some(last) => after = Some(last),
            None => break,
        }
    }

    // Half of what is written has to be gain, and enough of it. On a full disk a
    // little is enough.
    let obsolete = read(&shared.index).up_to(floor);
    let mut bytes = 0;
    for segment in &obsolete {
        bytes += segment.file_length()?;
    }
    let worth = if shared.space.full().is_some() { needed / 8 } else { needed.max(least) };
    let has_checkpoint = obsolete.iter().any(|segment| segment.header().is_checkpoint_at(floor));
    if has_checkpoint || bytes < needed + worth {
        return Ok(());
    }

    let path = checkpoint_path(directory, floor);
    let oldest = read(&shared.index).oldest;
    let write_checkpoint = || {
        let entries = Snapshot::unchecked(shared.clone(), floor).range("", None);
        let entries = entries.map(|entry| check_closing().and_then(|()| Ok(entry?)));
        checkpoint::write(&path, floor, oldest, entries)
    };
    let segment = match write_checkpoint() {
        // The reserve is worth it: the files that the base stands in for are larger.
        Err(CompactError::Storage(error)) if error.is_full() && shared.space.release_reserve() => {
            write_checkpoint()?
        }
        done => done?,
    };
    let segment = Arc::new(segment);
    checkpoint::read(&segment, |entries| {
        let mut index = write(&shared.index);
        for (offset, record) in entries {
            index.relocate(record.key, record.revision, &segment, *offset);
        }
        Ok(())
    })?;
    write(&shared.index).install_checkpoint(&segment);
    for segment in obsolete {
        segment.remove_on_drop();
    }
    Ok(())
}

/// What is not visible at this revision or later is visible to nobody.
fn floor(shared: &Shared) -> Revision {
    let pins = lock(&shared.pins);
    let oldest = read(&shared.index).oldest;
    pins.keys().next().map_or(oldest, |pinned| oldest.min(*pinned))
}
