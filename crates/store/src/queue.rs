//! [`Queue`]: the requests to the writer thread. Bounded: a caller waits while it is full.
//!
//! Looks at the size of requests only.

use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;

use crate::compaction::CompactionReply;
use crate::error::{CommitError, StorageError};
use crate::reply::ReplySender;
use crate::revision::Revision;
use crate::transaction::{Outcome, Transaction};
use parking_lot::{Condvar, Mutex};

/// The maximum number of waiting requests: several batches, so that the writer always has work.
const MAX_WAITING: usize = 1024;
/// The maximum number of waiting bytes. The last request may exceed it.
const MAX_WAITING_BYTES: usize = 8 << 20;
/// The maximum number of requests in a batch. Bounds how long the first one waits for the last.
const MAX_BATCH: usize = 512;
const MAX_BATCH_BYTES: usize = 2 << 20;

pub(crate) struct Request {
    pub(crate) bytes: usize,
    pub(crate) work: Work,
}

impl Request {
    /// Replies with a storage error.
    pub(crate) fn fail(self, error: &StorageError) {
        match self.work {
            Work::Commit(_, reply) => reply.send(Err(error.clone().into())),
            Work::Compact(_, reply) => reply.send(Err(error.clone().into())),
        }
    }

    /// Returns true if the request may use the reserve on a full disk.
    pub(crate) fn may_use_reserve(&self) -> bool {
        match &self.work {
            Work::Commit(transaction, _) => transaction.may_use_reserve(),
            // Compaction frees space in the end.
            Work::Compact(..) => true,
        }
    }
}

pub(crate) enum Work {
    Commit(Transaction, ReplySender<Result<Outcome, CommitError>>),
    Compact(Revision, CompactionReply),
}

#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    filled: Condvar,
}

#[derive(Default)]
struct State {
    requests: VecDeque<Request>,
    bytes: usize,
    closed: bool,
    /// The wakers of callers that wait for room, by ticket.
    waiting: BTreeMap<u64, Waker>,
    next_ticket: u64,
}

/// The reason why a request was not queued.
pub(crate) enum Refused {
    Full(Request),
    Closed,
}

impl Queue {
    /// Queues a request, or registers `waker` until there may be room. The ticket keeps the
    /// caller's position until it is cancelled.
    pub(crate) fn push(
        &self,
        request: Request,
        ticket: &mut Option<u64>,
        waker: Option<&Waker>,
    ) -> Result<(), Refused> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Refused::Closed);
        }
        if state.requests.len() >= MAX_WAITING || state.bytes >= MAX_WAITING_BYTES {
            if let Some(waker) = waker {
                let ticket = *ticket.get_or_insert(state.next_ticket);
                state.next_ticket = state.next_ticket.max(ticket + 1);
                state.waiting.insert(ticket, waker.clone());
            }
            return Err(Refused::Full(request));
        }
        state.bytes += request.bytes;
        state.requests.push_back(request);
        drop(state);
        self.filled.notify_one();
        Ok(())
    }

    pub(crate) fn cancel(&self, ticket: u64) {
        self.state.lock().waiting.remove(&ticket);
    }

    /// Waits for requests and takes a batch; `None` when the queue is closed and empty.
    pub(crate) fn take(&self) -> Option<Vec<Request>> {
        let mut state = self.state.lock();
        while state.requests.is_empty() {
            if state.closed {
                return None;
            }
            self.filled.wait(&mut state);
        }
        let mut bytes = 0;
        let mut count = 0;
        for request in state.requests.iter().take(MAX_BATCH) {
            if count > 0 && bytes + request.bytes > MAX_BATCH_BYTES {
                break;
            }
            bytes += request.bytes;
            count += 1;
        }
        let batch = state.requests.drain(..count).collect();
        state.bytes -= bytes;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_values().for_each(Waker::wake);
        Some(batch)
    }

    /// Refuses further requests. Waiting ones are still processed.
    pub(crate) fn close(&self) {
        self.shut(|_| ());
    }

    /// Refuses further requests and drops the waiting ones.
    pub(crate) fn abandon(&self) {
        self.shut(|state| state.requests.clear());
    }

    fn shut(&self, and: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        state.closed = true;
        and(&mut state);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_values().for_each(Waker::wake);
        self.filled.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;
    use crate::reply::channel;

    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn request(bytes: usize) -> Request {
        Request { bytes, work: Work::Commit(Transaction::new(), channel().0) }
    }

    #[test]
    fn caller_is_woken_when_the_queue_has_room() {
        let queue = Queue::default();
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(count.clone());
        let (mut first, mut second) = (None, None);
        while queue.push(request(1), &mut None, None).is_ok() {}
        assert!(matches!(queue.push(request(1), &mut first, Some(&waker)), Err(Refused::Full(_))));
        assert!(
            matches!(queue.push(request(1), &mut first, Some(&waker)), Err(Refused::Full(_))),
            "polled once more"
        );
        assert!(matches!(queue.push(request(1), &mut second, Some(&waker)), Err(Refused::Full(_))));
        queue.cancel(second.unwrap());
        assert_eq!(queue.take().unwrap().len(), MAX_BATCH);
        assert_eq!(count.0.load(Ordering::SeqCst), 1, "who gave up is not woken");
        assert!(queue.push(request(1), &mut first, Some(&waker)).is_ok());
    }

    #[test]
    fn batches_are_bounded_but_never_empty() {
        let queue = Queue::default();
        for bytes in [MAX_BATCH_BYTES + 1, MAX_BATCH_BYTES / 2, MAX_BATCH_BYTES / 2, 1] {
            assert!(queue.push(request(bytes), &mut None, None).is_ok());
        }
        let sizes = [(); 3].map(|()| queue.take().unwrap().len());
        assert_eq!(sizes, [1, 2, 1]);
    }

    #[test]
    fn closed_queue_is_drained_and_abandoned_one_is_cleared() {
        let queue = Queue::default();
        assert!(queue.push(request(1), &mut None, None).is_ok());
        queue.close();
        assert!(matches!(queue.push(request(1), &mut None, None), Err(Refused::Closed)));
        assert_eq!(queue.take().unwrap().len(), 1);
        assert!(queue.take().is_none());

        let queue = Queue::default();
        assert!(queue.push(request(1), &mut None, None).is_ok());
        queue.abandon();
        assert!(queue.take().is_none());
    }
}
