//! [`Commit`] and [`Compaction`]: pending requests to the writer thread. Decides nothing.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use crate::error::{CommitError, CompactError};
use crate::queue::{Refused, Request, Work};
use crate::reply::{self, ReplyReceiver, block_on};
use crate::revision::Revision;
use crate::shared::Shared;
use crate::transaction::{Outcome, Transaction};

/// Resolves when the transaction is on disk and visible, or when it is certain that it will not be.
///
/// The transaction is queued at once if the queue has room, otherwise by the first poll that finds
/// room. Dropping the future does not cancel it.
#[derive(Debug)]
#[must_use = "the transaction may fail"]
pub struct Commit(PendingRequest<Result<Outcome, CommitError>>);

/// Resolves when the space that compaction made obsolete is freed, if freeing it is worth the
/// writing. Reads before the compaction point are refused before that.
#[derive(Debug)]
#[must_use = "the compaction may fail"]
pub struct Compaction(PendingRequest<Result<(), CompactError>>);

impl Commit {
    pub(crate) fn new(shared: Arc<Shared>, transaction: Transaction) -> Self {
        let (sender, receiver) = reply::channel();
        let mut pending = PendingRequest { shared, ticket: None, receiver, unsent: None };
        match transaction.size() {
            Ok(bytes) => {
                pending.send(Request { bytes, work: Work::Commit(transaction, sender) }, None);
            }
            Err(error) => sender.send(Err(error)),
        }
        Self(pending)
    }

    /// Blocks the current thread until the commit resolves.
    pub fn wait(self) -> Result<Outcome, CommitError> {
        block_on(self)
    }
}

impl Compaction {
    pub(crate) fn new(shared: Arc<Shared>, at: Revision) -> Self {
        let (sender, receiver) = reply::channel();
        let mut pending = PendingRequest { shared, ticket: None, receiver, unsent: None };
        pending.send(Request { bytes: 0, work: Work::Compact(at, sender) }, None);
        Self(pending)
    }

    /// Blocks the current thread until the compaction resolves.
    pub fn wait(self) -> Result<(), CompactError> {
        block_on(self)
    }
}

impl Future for Commit {
    type Output = Result<Outcome, CommitError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let reply = ready!(self.0.poll(context));
        Poll::Ready(reply.unwrap_or(Err(CommitError::Closed)))
    }
}

impl Future for Compaction {
    type Output = Result<(), CompactError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let reply = ready!(self.0.poll(context));
        Poll::Ready(reply.unwrap_or(Err(CompactError::Closed)))
    }
}

struct PendingRequest<T> {
    shared: Arc<Shared>,
    ticket: Option<u64>,
    receiver: ReplyReceiver<T>,
    /// The request while it waits for room in the queue.
    unsent: Option<Request>,
}

impl<T> PendingRequest<T> {
    /// Queues the request. If the queue is closed, the request is dropped together with its reply
    /// channel.
    fn send(&mut self, request: Request, waker: Option<&Waker>) {
        if let Err(Refused::Full(request)) =
            self.shared.queue.push(request, &mut self.ticket, waker)
        {
            self.unsent = Some(request);
        }
    }

    /// Returns the reply; `None` if the store was closed.
    fn poll(&mut self, context: &Context<'_>) -> Poll<Option<T>> {
        if let Some(request) = self.unsent.take() {
            self.send(request, Some(context.waker()));
            if self.unsent.is_some() {
                return Poll::Pending;
            }
        }
        self.receiver.poll(context)
    }
}

impl<T> Drop for PendingRequest<T> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.shared.queue.cancel(ticket);
        }
    }
}

impl<T> fmt::Debug for PendingRequest<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingRequest")
            .field("sent", &self.unsent.is_none())
            .finish_non_exhaustive()
    }
}
