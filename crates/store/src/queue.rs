//! [`Queue`]: what waits for the writer thread. Bounded: who finds it full waits for room.
//!
//! Does not look into requests beyond their weight.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, PoisonError};
use std::task::Waker;

use crate::compaction::CompactionReply;
use crate::error::{CommitError, StorageError};
use crate::reply::ReplySender;
use crate::revision::Revision;
use crate::sync::lock;
use crate::transaction::{Outcome, Transaction};

/// Requests waiting at most: some batches' worth, so that the writer never runs dry.
const MAX_WAITING: usize = 1024;
/// Bytes waiting at most, apart from the last request that fitted in front of it.
const MAX_WAITING_BYTES: usize = 8 << 20;
/// What one batch takes at most: bounds how long the first of it waits for the last.
const MAX_BATCH: usize = 512;
const MAX_BATCH_BYTES: usize = 2 << 20;

pub(crate) struct Request {
    pub(crate) bytes: usize,
    pub(crate) work: Work,
}

impl Request {
    /// Answers that the disk has failed.
    pub(crate) fn fail(self, error: &StorageError) {
        match self.work {
            Work::Commit(_, reply) => reply.send(Err(error.clone().into())),
            Work::Compact(_, reply) => reply.send(Err(error.clone().into())),
        }
    }

    /// Returns whether it may use the reserve when the disk is full.
    pub(crate) fn may_use_reserve(&self) -> bool {
        match &self.work {
            Work::Commit(transaction, _) => transaction.may_use_reserve(),
            // Gives back space in the end.
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
    /// Who waits for room, by ticket.
    waiting: BTreeMap<u64, Waker>,
    next_ticket: u64,
}

/// Why a request was not taken.
pub(crate) enum Refused {
    Full(Request),
    Closed,
}

impl Queue {
    /// Takes a request, or has `waker` woken when there may be room for it. The ticket keeps the
    /// caller's place among those who wait, until it is given back.
    pub(crate) fn push(
        &self,
        request: Request,
        ticket: &mut Option<u64>,
        waker: Option<&Waker>,
    ) -> Result<(), Refused> {
        let mut state = lock(&self.state);
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
        lock(&self.state).waiting.remove(&ticket);
    }

    /// Waits for requests and takes a batch of them; `None` when closed and empty.
    pub(crate) fn take(&self) -> Option<Vec<Request>> {
        let mut state = lock(&self.state);
        while state.requests.is_empty() {
            if state.closed {
                return None;
            }
            state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
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

    /// Refuses what comes from now on. What is waiting is still taken.
    pub(crate) fn close(&self) {
        self.shut(|_| ());
    }

    /// Refuses what comes from now on and lets go of what is waiting.
    pub(crate) fn abandon(&self) {
        self.shut(|state| state.requests.clear());
    }

    fn shut(&self, and: impl FnOnce(&mut State)) {
        let mut state = lock(&self.state);
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
    fn who_finds_the_queue_full_is_woken_when_there_is_room() {
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
    fn batches_are_bounded_by_their_bytes_but_never_empty() {
        let queue = Queue::default();
        for bytes in [MAX_BATCH_BYTES + 1, MAX_BATCH_BYTES / 2, MAX_BATCH_BYTES / 2, 1] {
            assert!(queue.push(request(bytes), &mut None, None).is_ok());
        }
        let sizes = [(); 3].map(|()| queue.take().unwrap().len());
        assert_eq!(sizes, [1, 2, 1]);
    }

    #[test]
    fn a_closed_queue_is_emptied_and_an_abandoned_one_is_empty() {
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
