//! [`Watch`]: the changes of keys with a prefix, in order, each exactly once.
//!
//! ```text
//!              behind the feed: read from the log
//!            ┌──────────────────────────────────────┐
//!   cursor ──┤ in the feed: take shared batches     ├──► events, cursor moves on
//!            └──────────────────────────────────────┘
//!              at the end: wait to be woken
//! ```
//!
//! Holds a cursor and no events.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::entry::Event;
use crate::error::{ReadError, WatchError};
use crate::feed::{Fetched, WatcherId};
use crate::history;
use crate::reply::block_on;
use crate::revision::Revision;
use crate::shared::Shared;

/// The number of events returned at a time; the last batch may exceed it.
const ENOUGH: usize = 1024;

pub struct Watch {
    shared: Arc<Shared>,
    prefix: Arc<str>,
    id: WatcherId,
    /// The revision up to which events have been returned.
    cursor: Revision,
}

impl Watch {
    pub(crate) fn new(
        shared: Arc<Shared>,
        prefix: &str,
        after: Revision,
    ) -> Result<Self, ReadError> {
        shared.index.read().check(after)?;
        let prefix: Arc<str> = prefix.into();
        let id = shared.feed.lock().subscribe(&prefix);
        Ok(Self { shared, prefix, id, cursor: after })
    }

    /// Returns the next events: at least one, and whole transactions. Cancel-safe. Reads from the
    /// disk, a fraction of a megabyte at a time, if the watch is far behind.
    pub async fn next(&mut self) -> Result<Vec<Arc<Event>>, WatchError> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Polls [`Self::next`].
    pub fn poll_next(
        &mut self,
        context: &Context<'_>,
    ) -> Poll<Result<Vec<Arc<Event>>, WatchError>> {
        loop {
            let waker = context.waker();
            let fetched =
                self.shared.feed.lock().fetch(&self.prefix, self.id, self.cursor, ENOUGH, waker);
            let events = match fetched {
                Fetched::Batches(batches) => {
                    let events = batches.iter().flat_map(|batch| &batch.events);
                    let events = events
                        .filter(|event| event.revision > self.cursor)
                        .filter(|event| event.key.starts_with(&*self.prefix))
                        .cloned()
                        .collect::<Vec<_>>();
                    self.cursor = batches.last().map_or(self.cursor, |batch| batch.last);
                    events
                }
                Fetched::Nothing(up_to) => {
                    self.cursor = up_to;
                    return Poll::Pending;
                }
                Fetched::Behind(from) => {
                    let (events, reached) =
                        history::events(&self.shared, &self.prefix, self.cursor, from)?;
                    self.cursor = reached;
                    if events.is_empty() {
                        // Long parts of the log may have no matching events: let other tasks run.
                        waker.wake_by_ref();
                        return Poll::Pending;
                    }
                    events
                }
                Fetched::Closed => return Poll::Ready(Err(WatchError::Closed)),
            };
            if !events.is_empty() {
                return Poll::Ready(Ok(events));
            }
        }
    }

    /// Blocks the current thread for [`Self::next`].
    pub fn wait(&mut self) -> Result<Vec<Arc<Event>>, WatchError> {
        block_on(self.next())
    }

    /// Returns the revision up to which all matching events have been returned.
    pub fn delivered(&self) -> Revision {
        self.shared.feed.lock().delivered(&self.prefix, self.cursor)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.feed.lock().unsubscribe(&self.prefix, self.id);
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch")
            .field("prefix", &self.prefix)
            .field("cursor", &self.cursor)
            .finish_non_exhaustive()
    }
}
