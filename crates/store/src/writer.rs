//! The writer thread: decides transactions, writes them, publishes them. Entry: [`run`].
//!
//! ```text
//! take what waits ──► decide, in order ──► one frame, one sync ──► index ──► feed ──► answers
//!                         │                      │ failed
//!                         │ conflict, no change  └──► an error to everybody in the batch
//!                         └──► answered with the rest
//! ```
//!
//! Every answer waits for the sync, also a conflict: it may be with a transaction of the same batch.
//! Until the sync nothing but this thread knows of the batch, so a failure has nothing to undo.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use bytes::Bytes;

use crate::entry::{Change, Entry, Event};
use crate::error::{CommitError, CompactError, StorageError};
use crate::feed::Batch;
use crate::format::{FRAME, Header, Record, RecordKind};
use crate::index::{Place, Version};
use crate::log::{Appended, Log};
use crate::queue::Work;
use crate::revision::Revision;
use crate::shared::Shared;
use crate::sweep::Sweep;
use crate::sync::{lock, read, write};
use crate::transaction::{Outcome, Transaction};

/// What the memory of a frame may stay at between batches; a rare large one is given back.
const KEPT_FRAME: usize = 4 << 20;

/// However the thread ends, nobody waits for it any longer.
struct Abandon<'a>(&'a Shared);

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        self.0.queue.abandon();
    }
}

/// Works until the queue is closed and empty.
pub(crate) fn run(shared: &Shared, mut log: Log, sweeper: &Sender<Sweep>) {
    let _abandon = Abandon(shared);
    let mut frame = Vec::new();
    while let Some(requests) = shared.queue.take() {
        let (newest, oldest) = {
            let index = read(&shared.index);
            (index.revision, index.oldest)
        };
        Header::start(&mut frame);
        let mut draft = Draft::new(shared, newest, oldest, &mut frame);
        let mut answers = Vec::with_capacity(requests.len());
        let mut sweeps = Vec::new();
        for request in requests {
            match request.work {
                Work::Commit(transaction, answer) => {
                    let outcome = draft.decide(&transaction).map_err(CommitError::Storage);
                    answers.push((answer, outcome));
                }
                Work::Compact(at, answer) => match draft.compact(at) {
                    Ok(()) => sweeps.push(answer),
                    Err(error) => answer.give(Err(error)),
                },
            }
        }
        let Draft { written, revision, oldest: compacted, .. } = draft;
        if frame.len() > FRAME {
            match log.append(&mut frame, newest, oldest) {
                Ok(appended) => publish(shared, written, revision, compacted, &appended),
                Err(error) => {
                    for (_, outcome) in &mut answers {
                        *outcome = Err(error.clone().into());
                    }
                    for sweep in sweeps.drain(..) {
                        sweep.give(Err(error.clone().into()));
                    }
                }
            }
        }
        frame.shrink_to(KEPT_FRAME);
        for (answer, outcome) in answers {
            answer.give(outcome);
        }
        for sweep in sweeps {
            // If there is no sweeper any more, the answer goes with the message.
            let _ = sweeper.send(sweep);
        }
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
        let mut index = write(&shared.index);
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
    let wakers = lock(&shared.feed).publish(Batch::new(events, last));
    for waker in wakers {
        waker.wake();
    }
}

/// A change that is in the frame.
struct Written {
    event: Arc<Event>,
    /// Its record, from the first one.
    place: u64,
    /// As the index has it: 0 for a deletion.
    length: u32,
}

/// What a batch is going to be.
struct Draft<'a> {
    shared: &'a Shared,
    frame: &'a mut Vec<u8>,
    /// Of the last transaction that changes something.
    revision: Revision,
    /// The compaction point.
    oldest: Revision,
    written: Vec<Written>,
    /// The last change of a key in `written`.
    latest: HashMap<Arc<str>, usize>,
}

/// A key as the next transaction finds it.
enum Current {
    Absent,
    Drafted(Entry),
    Stored(Place),
}

impl Current {
    fn modified(&self) -> Option<Revision> {
        match self {
            Self::Absent => None,
            Self::Drafted(entry) => Some(entry.modified),
            Self::Stored(place) => Some(place.modified()),
        }
    }

    fn entry(self) -> Result<Option<Entry>, StorageError> {
        match self {
            Self::Absent => Ok(None),
            Self::Drafted(entry) => Ok(Some(entry)),
            Self::Stored(place) => place.read().map(Some),
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

    /// Moves the compaction point, if it is not there yet.
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
        read(&self.shared.index).newest(key).map_or(Current::Absent, Current::Stored)
    }

    /// Decides a transaction and, if it changes something, adds it to the frame.
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
            // Keys are kept once in memory, by whoever names them.
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
