//! Reads events from the log for watchers that are behind the feed. Entry point: [`events`].

use std::sync::Arc;

use bytes::Bytes;

use crate::entry::{Change, Event};
use crate::error::{StorageError, WatchError};
use crate::format::{Record, RecordKind, records};
use crate::revision::Revision;
use crate::shared::Shared;

/// The number of bytes read from the log at a time. Bounds the time that a task is blocked and the
/// memory it uses.
const ENOUGH: usize = 256 << 10;

/// Returns the next events with a prefix after `after`, and the revision they reach. That is later
/// than `after` and at most `until`, the last revision of a published batch.
pub(crate) fn events(
    shared: &Shared,
    prefix: &str,
    after: Revision,
    until: Revision,
) -> Result<(Vec<Arc<Event>>, Revision), WatchError> {
    let (segment, last) = {
        let index = shared.index.read();
        let compacted = WatchError::Compacted { oldest: index.oldest };
        index.log_after(after).ok_or(compacted)?
    };
    let until = last.map_or(until, |last| last.min(until));
    let mut events = Vec::new();
    let mut reached = after;
    let mut bytes = 0;
    let mut lost = None;
    let mut scan = segment.scan(segment.landmark(after))?;
    while reached < until && bytes < ENOUGH {
        // The events were published, so the frame must exist.
        let start = scan.offset();
        let frame = scan.step()?.ok_or_else(|| segment.damaged(start))?;
        bytes += frame.records.len();
        for record in records(frame.records) {
            let (_, record) = record.ok_or_else(|| segment.damaged(start))?;
            if record.is_change() && record.revision > after {
                reached = record.revision;
                if record.key.starts_with(prefix) {
                    match event(shared, &record)? {
                        Some(event) => events.push(Arc::new(event)),
                        None => lost = Some(start),
                    }
                }
            }
        }
    }
    // After a compaction, the previous versions of these events may be gone.
    let oldest = shared.index.read().oldest;
    match lost {
        _ if after < oldest => Err(WatchError::Compacted { oldest }),
        Some(offset) => Err(segment.damaged(offset).into()),
        None => Ok((events, reached)),
    }
}

/// Returns the event of a record with the previous entry; `None` for the deletion of an absent key.
fn event(shared: &Shared, record: &Record<'_>) -> Result<Option<Event>, StorageError> {
    let (key, before) = {
        let index = shared.index.read();
        let key = index.key(record.key).cloned().unwrap_or_else(|| record.key.into());
        (key, index.before(record.key, record.revision))
    };
    let previous = before.map(|location| location.read()).transpose()?;
    let change = match (record.kind, previous) {
        (RecordKind::Put, previous) => {
            let value = Bytes::copy_from_slice(record.value);
            Change::Put { value, created: record.created, previous }
        }
        (_, Some(previous)) => Change::Deleted { previous },
        (_, None) => return Ok(None),
    };
    Ok(Some(Event { revision: record.revision, key, change }))
}
