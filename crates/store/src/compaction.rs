//! The compactor thread: frees the space that compaction made obsolete. Entry point: [`run`].
//!
//! ```text
//! prune the index ──► worth it? ──► write a checkpoint ──► read it back, frame by frame, ──► remove
//!                      no: done                            and relocate index entries        old files
//! ```
//!
//! Each step holds the index lock for a few hundred keys or for one frame; the writer continues in
//! between. A crash only loses the work done so far: a checkpoint counts once it has its final
//! name, and the files that it replaces are removed when the store is opened.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use tracing::debug;

use crate::checkpoint;
use crate::error::CompactError;
use crate::files::checkpoint_path;
use crate::reply::ReplySender;
use crate::revision::Revision;
use crate::shared::Shared;
use crate::snapshot::Snapshot;

/// The number of keys pruned per step: tens of microseconds.
const KEYS_PER_STEP: usize = 256;

/// The interval of space checks while the disk is full or the reserve is missing.
const SPACE_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// The channel to a caller that waits for a compaction.
pub(crate) type CompactionReply = ReplySender<Result<(), CompactError>>;

/// A request to the compactor.
pub(crate) enum Job {
    Compact(CompactionReply),
    /// The disk is full or the reserve was used: check for space until the store is healthy.
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

/// Runs until all senders of jobs are gone.
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
        // One compaction serves all requests that arrived meanwhile.
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
    let started = Instant::now();
    let floor = floor(shared);
    let mut after = None;
    let mut needed = 0;
    loop {
        check_closing()?;
        let pruned = shared.index.write().prune(after.as_deref(), floor, KEYS_PER_STEP);
        needed += pruned.kept_bytes;
        match pruned.last {
            Some(last) => after = Some(last),
            None => break,
        }
    }

    // Rewriting has to free at least as much as it writes, and at least one segment. On a full disk
    // an eighth is enough.
    let obsolete = shared.index.read().up_to(floor);
    let mut bytes = 0;
    for segment in &obsolete {
        bytes += segment.file_length()?;
    }
    let worth = if shared.space.full().is_some() { needed / 8 } else { needed.max(least) };
    let has_checkpoint = obsolete.iter().any(|segment| segment.header().is_checkpoint_at(floor));
    if has_checkpoint || bytes < needed + worth {
        debug!(
            revision = floor.get(),
            bytes, needed, "compaction keeps the files; rewriting frees too little"
        );
        return Ok(());
    }

    let path = checkpoint_path(directory, floor);
    let oldest = shared.index.read().oldest;
    let write_checkpoint = || {
        let entries = Snapshot::unchecked(shared.clone(), floor).range("", None);
        let entries = entries.map(|entry| check_closing().and_then(|()| Ok(entry?)));
        checkpoint::write(&path, floor, oldest, entries)
    };
    let segment = match write_checkpoint() {
        // Using the reserve pays off: the files that the checkpoint replaces are larger.
        Err(CompactError::Storage(error)) if error.is_full() && shared.space.release_reserve() => {
            write_checkpoint()?
        }
        done => done?,
    };
    let segment = Arc::new(segment);
    checkpoint::read(&segment, |entries| {
        let mut index = shared.index.write();
        for (offset, record) in entries {
            index.relocate(record.key, record.revision, &segment, *offset);
        }
        Ok(())
    })?;
    shared.index.write().install_checkpoint(&segment);
    debug!(
        revision = floor.get(),
        files = obsolete.len(),
        bytes,
        kept_bytes = needed,
        elapsed_ms = started.elapsed().as_millis(),
        "compaction replaced files by a checkpoint"
    );
    for segment in obsolete {
        segment.remove_on_drop();
    }
    Ok(())
}

/// Returns the oldest revision that any reader can still need.
fn floor(shared: &Shared) -> Revision {
    let pins = shared.pins.lock();
    let oldest = shared.index.read().oldest;
    pins.keys().next().map_or(oldest, |pinned| oldest.min(*pinned))
}
