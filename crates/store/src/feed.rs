//! [`Feed`]: the newest events, held in memory once for all watchers, and the wakers of watchers
//! that wait for more.
//!
//! There is no queue per watcher. A watcher has a cursor and reads events that the feed no longer
//! holds from the log. The writer only appends, and wakes the watchers whose prefix matches.

use std::collections::{BTreeMap, VecDeque};
use std::mem::take;
use std::sync::Arc;
use std::task::Waker;

use crate::entry::Event;
use crate::revision::Revision;

/// The events of the transactions in one commit batch.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) events: Vec<Arc<Event>>,
    /// The last revision of the batch.
    pub(crate) last: Revision,
    weight: usize,
}

impl Batch {
    pub(crate) fn new(events: Vec<Arc<Event>>, last: Revision) -> Self {
        let weight = events.iter().map(|event| event.weight()).sum();
        Self { events, last, weight }
    }
}

#[derive(Debug)]
pub(crate) struct Feed {
    batches: VecDeque<Arc<Batch>>,
    weight: usize,
    limit: usize,
    /// Everything after this is in `batches`.
    pub(crate) from: Revision,
    pub(crate) newest: Revision,
    pub(crate) closed: bool,
    /// The watchers by prefix.
    interests: BTreeMap<Arc<str>, Interest>,
    next_watcher: WatcherId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WatcherId(u64);

/// All watchers of one prefix.
#[derive(Debug)]
struct Interest {
    watchers: usize,
    /// The last batch that had an event with the prefix.
    matched: Revision,
    waiting: BTreeMap<WatcherId, Waker>,
}

/// The result of a fetch.
pub(crate) enum Fetched {
    Batches(Vec<Arc<Batch>>),
    /// There are no events with the prefix up to this revision. The watcher will be woken.
    Nothing(Revision),
    /// The feed starts after this revision; earlier events are in the log.
    Behind(Revision),
    Closed,
}

impl Feed {
    pub(crate) fn new(newest: Revision, limit: usize) -> Self {
        Self {
            batches: VecDeque::new(),
            weight: 0,
            limit,
            from: newest,
            newest,
            closed: false,
            interests: BTreeMap::new(),
            next_watcher: WatcherId(0),
        }
    }

    /// Adds a batch and returns the watchers to wake.
    pub(crate) fn publish(&mut self, batch: Batch) -> Vec<Waker> {
        let mut wakers = Vec::new();
        let mut keys: Vec<&str> = batch.events.iter().map(|event| &*event.key).collect();
        keys.sort_unstable();
        for (prefix, interest) in &mut self.interests {
            let first = keys.partition_point(|key| *key < &**prefix);
            if keys.get(first).is_some_and(|key| key.starts_with(&**prefix)) {
                interest.matched = batch.last;
                wakers.extend(take(&mut interest.waiting).into_values());
            }
        }
        self.newest = batch.last;
        self.weight += batch.weight;
        self.batches.push_back(Arc::new(batch));
        while self.weight > self.limit
            && let Some(oldest) = self.batches.pop_front()
        {
            self.weight -= oldest.weight;
            self.from = oldest.last;
        }
        wakers
    }

    /// Ends all watches after they have received the published events.
    pub(crate) fn close(&mut self) -> Vec<Waker> {
        self.closed = true;
        let interests = self.interests.values_mut();
        interests.flat_map(|interest| take(&mut interest.waiting).into_values()).collect()
    }

    pub(crate) fn subscribe(&mut self, prefix: &Arc<str>) -> WatcherId {
        let newest = self.newest;
        let interest = self.interests.entry(prefix.clone()).or_insert_with(|| Interest {
            watchers: 0,
            // Earlier events with this prefix were not tracked.
            matched: newest,
            waiting: BTreeMap::new(),
        });
        interest.watchers += 1;
        self.next_watcher.0 += 1;
        self.next_watcher
    }

    pub(crate) fn unsubscribe(&mut self, prefix: &str, id: WatcherId) {
        if let Some(interest) = self.interests.get_mut(prefix) {
            interest.watchers -= 1;
            interest.waiting.remove(&id);
            if interest.watchers == 0 {
                self.interests.remove(prefix);
            }
        }
    }

    /// Returns the revision up to which a watcher at `cursor` has received all events.
    pub(crate) fn delivered(&self, prefix: &str, cursor: Revision) -> Revision {
        match self.interests.get(prefix) {
            Some(interest) if interest.matched > cursor => cursor,
            _ => cursor.max(self.newest),
        }
    }

    pub(crate) fn fetch(
        &mut self,
        prefix: &str,
        id: WatcherId,
        cursor: Revision,
        enough: usize,
        waker: &Waker,
    ) -> Fetched {
        let Some(interest) = self.interests.get_mut(prefix) else { return Fetched::Closed };
        if interest.matched <= cursor {
            if self.closed {
                return Fetched::Closed;
            }
            interest.waiting.insert(id, waker.clone());
            return Fetched::Nothing(cursor.max(self.newest));
        }
        if cursor < self.from {
            return Fetched::Behind(self.from);
        }
        let first = self.batches.partition_point(|batch| batch.last <= cursor);
        let mut events = 0;
        let wanted = self.batches.range(first..).take_while(|batch| {
            let more = events < enough;
            events += batch.events.len();
            more
        });
        Fetched::Batches(wanted.cloned().collect())
    }
}
