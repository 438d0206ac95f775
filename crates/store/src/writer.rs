//! The writer thread: decides, writes and publishes transactions. Entry point: [`run`].
//!
//! ```text
//! take a batch ──► decide, in order ──► one frame, one sync ──► index ──► feed ──► replies
//!                      │                      │ failed
//!                      │ conflict, no change  └──► an error to all requests of the batch
//!                      └──► replied with the rest
//! ```
//!
//! On a full disk the transactions of the batch that may use the reserve are retried on their own.
//!
//! Every reply waits for the sync, also a conflict, because it may be with a transaction of the
//! same batch. Before the sync the batch is known to this thread only, so a failure needs no
//! rollback.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;

use bytes::Bytes;

use crate::compaction::Job;
use crate::entry::{Change, Entry, Event};
use crate::error::{CommitError, CompactError, StorageError};
use crate::feed::Batch;
use crate::format::{FRAME, Header, Record, RecordKind};
use crate::index::{Location, Version};
use crate::log::{Appended, Log, Urgency};
use crate::queue::{Request, Work};
use crate::revision::Revision;
use crate::shared::Shared;
use crate::transaction::{Outcome, Transaction};

/// The capacity that the frame buffer keeps between batches. Larger buffers are freed.
const KEPT_FRAME: usize = 4 << 20;

/// Closes the queue when the thread ends in any way, so that no caller waits for it.
struct Abandon<'a>(&'a Shared);

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        self.0.queue.abandon();
    }
}

/// Runs until the queue is closed and empty.
pub(crate) fn run(shared: &Shared, mut log: Log, compactor: &Sender<Job>) {
    let _abandon = Abandon(shared);
    let mut frame = Vec::new();
    while let Some(requests) = shared.queue.take() {
        let refused = commit(shared, &mut log, compactor, &mut frame, requests);
        // On a full disk, requests that may use the reserve are retried without the others.
        let (urgent, ordinary): (Vec<_>, Vec<_>) =
            refused.requests.into_iter().partition(Request::may_use_reserve);
        if let Some(error) = refused.error {
            for request in ordinary {
                request.fail(&error);
            }
            if !urgent.is_empty() {
                let again = commit(shared, &mut log, compactor, &mut frame, urgent);
                if let Some(error) = again.error {
                    again.requests.into_iter().for_each(|request| request.fail(&error));
                }
            }
        }
        frame.shrink_to(KEPT_FRAME);
    }
}

/// Requests that were refused because the disk is full.
#[derive(Default)]
struct Refused {
    requests: Vec<Request>,
    error: Option<StorageError>,
}

/// Decides, writes and publishes a batch, and replies to all of it. Returns the requests if the
/// disk is full and some of them may still fit without the others.
fn commit(
    shared: &Shared,
    log: &mut Log,
    compactor: &Sender<Job>,
    frame: &mut Vec<u8>,
    requests: Vec<Request>,
) -> Refused {
    let (newest, oldest) = {
        let index = shared.index.read();
        (index.revision, index.oldest)
    };
    Header::start(frame);
    let mut draft = Draft::new(shared, newest, oldest, frame);
    let mut decided = Vec::with_capacity(requests.len());
    for request in &requests {
        decided.push(match &request.work {
            Work::Commit(transaction, _) => {
                Decided::Outcome(draft.decide(transaction).map_err(CommitError::Storage))
            }
            Work::Compact(at, _) => Decided::Compacted(draft.compact(*at)),
        });
    }
    let Draft { written, revision, oldest: compacted, .. } = draft;
    if frame.len() > FRAME {
        let only_urgent = requests.iter().all(Request::may_use_reserve);
        match append(shared, log, compactor, frame, (newest, oldest), only_urgent) {
            Ok(appended) => {
                shared.appended.fetch_add(frame.len() as u64, Ordering::Relaxed);
                publish(shared, written, revision, compacted, &appended);
            }
            Err(error) if error.is_full() && !only_urgent => {
                return Refused { requests, error: Some(error) };
            }
            Err(error) => {
                for request in requests {
                    request.fail(&error);
                }
                return Refused::default();
            }
        }
    }
    let compacts = requests.iter().any(|request| matches!(request.work, Work::Compact(..)));
    if compacts && shared.space.full().is_some() && log.is_used() {
        begin_segment_for_compaction(shared, log, revision, compacted);
    }
    for (request, decided) in requests.into_iter().zip(decided) {
        match (request.work, decided) {
            (Work::Commit(_, reply), Decided::Outcome(outcome)) => reply.send(outcome),
            (Work::Compact(_, reply), Decided::Compacted(Ok(()))) => {
                // If the compactor has ended, the reply channel is dropped with the message.
                let _ = compactor.send(Job::Compact(reply));
            }
            (Work::Compact(_, reply), Decided::Compacted(error)) => reply.send(error),
            // Each request was decided according to its kind.
            _ => {}
        }
    }
    Refused::default()
}

/// The reply to send once the batch is written.
enum Decided {
    Outcome(Result<Outcome, CommitError>),
    Compacted(Result<(), CompactError>),
}

/// Writes a frame, with the reserve if needed and permitted. Updates the space accounting.
fn append(
    shared: &Shared,
    log: &mut Log,
    compactor: &Sender<Job>,
    frame: &mut [u8],
    (newest, oldest): (Revision, Revision),
    only_urgent: bool,
) -> Result<Appended, StorageError> {
    if let Some(error) = shared.space.full()
        && !only_urgent
    {
        // Refused until there is space for any write: small writes would use up the rest.
        shared.space.refuse(&error);
        return Err(error);
    }
    let urgency = if only_urgent { Urgency::UsesReserve } else { Urgency::Ordinary };
    let mut appended = log.append(frame, newest, oldest, urgency);
    if only_urgent
        && appended.as_ref().is_err_and(StorageError::is_full)
        && shared.space.release_reserve()
    {
        // The compactor recreates the reserve when there is space again.
        let _ = compactor.send(Job::CheckSpace);
        appended = log.append(frame, newest, oldest, urgency);
    }
    if let Err(error) = &appended
        && error.is_full()
        && shared.space.refuse(error)
    {
        let _ = compactor.send(Job::CheckSpace);
    }
    appended
}

/// Begins a new segment, so that the compactor can free the current one. If this fails, less space
/// is freed.
fn begin_segment_for_compaction(
    shared: &Shared,
    log: &mut Log,
    newest: Revision,
    oldest: Revision,
) {
    let mut begun = log.begin_segment(newest, oldest).cloned();
    if begun.as_ref().is_err_and(StorageError::is_full) && shared.space.release_reserve() {
        begun = log.begin_segment(newest, oldest).cloned();
    }
    if let Ok(segment) = begun {
        shared.index.write().add_log(&segment);
    }
}

fn publish(
    shared: &Shared,
    written: Vec<Written>,
    last: Revision,
    oldest: Revision,
    appended: &Appended,
) {
    {
        let mut index = shared.index.write();
        let segment = &appended.segment;
        index.add_log(segment);
        for Written { event, place, length } in &written {
            let (revision, length) = (event.revision, *length);
            let (segment, offset) = (segment.clone(), appended.offset + place);
            index.add(event.key.clone(), Version { revision, segment, offset, length });
        }
        index.revision = last;
        index.oldest = oldest;
    }
    if written.is_empty() {
        return;
    }
    let events = written.into_iter().map(|written| written.event).collect();
    let wakers = shared.feed.lock().publish(Batch::new(events, last));
    for waker in wakers {
        waker.wake();
    }
}

/// A change in the frame.
struct Written {
    event: Arc<Event>,
    /// The offset of its record from the first one.
    place: u64,
    /// The length as in the index: 0 for a deletion.
    length: u32,
}

/// A batch while it is decided.
struct Draft<'a> {
    shared: &'a Shared,
    frame: &'a mut Vec<u8>,
    /// The revision of the last transaction that changes a key.
    revision: Revision,
    /// The compaction point.
    oldest: Revision,
    written: Vec<Written>,
    /// The index in `written` of the last change of each key.
    latest: HashMap<Arc<str>, usize>,
}

/// A key in the state that the next transaction sees.
enum Current {
    Absent,
    Drafted(Entry),
    Stored(Location),
}

impl Current {
    fn modified(&self) -> Option<Revision> {
        match self {
            Self::Absent => None,
            Self::Drafted(entry) => Some(entry.modified),
            Self::Stored(location) => Some(location.modified()),
        }
    }

    fn entry(self) -> Result<Option<Entry>, StorageError> {
        match self {
            Self::Absent => Ok(None),
            Self::Drafted(entry) => Ok(Some(entry)),
            Self::Stored(location) => location.read().map(Some),
        }
    }
}

impl<'a> Draft<'a> {
    fn new(
        shared: &'a Shared,
        revision: Revision,
        oldest: Revision,
        frame: &'a mut Vec<u8>,
    ) -> Self {
        Self { shared, frame, revision, oldest, written: Vec::new(), latest: HashMap::new() }
    }

    /// Moves the compaction point forward.
    fn compact(&mut self, at: Revision) -> Result<(), CompactError> {
        if at > self.revision {
            return Err(CompactError::Future { newest: self.revision });
        }
        if at > self.oldest {
            Record::control(RecordKind::Compacted, at).encode(self.frame);
            self.oldest = at;
        }
        Ok(())
    }

    fn current(&self, key: &str) -> Current {
        if let Some(at) = self.latest.get(key) {
            return self.written[*at].event.entry().map_or(Current::Absent, Current::Drafted);
        }
        self.shared.index.read().newest(key).map_or(Current::Absent, Current::Stored)
    }

    /// Decides a transaction and adds its changes to the frame.
    fn decide(&mut self, transaction: &Transaction) -> Result<Outcome, StorageError> {
        for (key, condition) in &transaction.conditions {
            let current = self.current(key);
            if !condition.holds(current.modified()) {
                return Ok(Outcome::Conflict { key: key.clone(), found: current.entry()? });
            }
        }
        let revision = self.revision.next();
        let mut events = Vec::with_capacity(transaction.writes.len());
        for (key, value) in &transaction.writes {
            let previous = self.current(key).entry()?;
            // Each key has one shared allocation.
            let key = previous.as_ref().map_or(key, |previous| &previous.key).clone();
            let change = match (value, previous) {
                (Some(value), previous) => {
                    let created = previous.as_ref().map_or(revision, |previous| previous.created);
                    Change::Put { value: value.clone(), created, previous }
                }
                (None, Some(previous)) => Change::Deleted { previous },
                (None, None) => continue,
            };
            events.push(Event { revision, key, change });
        }
        if !events.is_empty() {
            self.revision = revision;
        }
        for event in events {
            self.add(event);
        }
        Ok(Outcome::Committed { revision: self.revision })
    }

    fn add(&mut self, event: Event) {
        let (kind, created, value) = match &event.change {
            Change::Put { value, created, .. } => (RecordKind::Put, *created, value.clone()),
            Change::Deleted { .. } => (RecordKind::Delete, event.revision, Bytes::new()),
        };
        let (revision, key) = (event.revision, &*event.key);
        let record = Record { kind, revision, created, key, value: &value };
        let place = (self.frame.len() - FRAME) as u64;
        record.encode(self.frame);
        let length = if kind == RecordKind::Put { record.length() as u32 } else { 0 };
        self.latest.insert(event.key.clone(), self.written.len());
        self.written.push(Written { event: Arc::new(event), place, length });
    }
}
