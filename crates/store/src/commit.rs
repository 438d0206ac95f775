//! [`Commit`]: a transaction on its way to the disk. Decides nothing.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::error::CommitError;
use crate::queue::{Refused, Request};
use crate::reply::{self, Reply};
use crate::shared::Shared;
use crate::transaction::{Outcome, Transaction};

/// Resolves when the transaction is on the disk and everybody sees it, or when it is decided that it
/// will not be.
///
/// The transaction is under way from the start if the queue has room, and otherwise from the first
/// poll that finds some. Dropping this does not call it back.
#[must_use = "the transaction may fail"]
pub struct Commit {
    shared: Arc<Shared>,
    ticket: Option<u64>,
    reply: Reply<Result<Outcome, CommitError>>,
    /// Waits for room in the queue.
    unsent: Option<Request>,
}

impl Commit {
    pub(crate) fn new(shared: Arc<Shared>, transaction: Transaction) -> Self {
        let (answer, reply) = reply::reply();
        let mut commit = Self { shared, ticket: None, reply, unsent: None };
        match transaction.weigh() {
            Ok(bytes) => commit.send(Request { transaction, bytes, answer }, None),
            Err(error) => answer.give(Err(error)),
        }
        commit
    }

    /// Waits on this thread.
    pub fn wait(self) -> Result<Outcome, CommitError> {
        reply::block_on(self)
    }

    fn send(&mut self, request: Request, waker: Option<&Waker>) {
        match self.shared.queue.push(request, &mut self.ticket, waker) {
            Ok(()) => {}
            Err(Refused::Full(request)) => self.unsent = Some(request),
            Err(Refused::Closed(request)) => request.answer.give(Err(CommitError::Closed)),
        }
    }
}

impl Future for Commit {
    type Output = Result<Outcome, CommitError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(request) = self.unsent.take() {
            self.send(request, Some(context.waker()));
            if self.unsent.is_some() {
                return Poll::Pending;
            }
        }
        // An answer that is never given is that of a writer that is no more.
        self.reply.poll(context).map(|answer| answer.unwrap_or(Err(CommitError::Closed)))
    }
}

impl Drop for Commit {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.shared.queue.give_back(ticket);
        }
    }
}

impl fmt::Debug for Commit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Commit").field("sent", &self.unsent.is_none()).finish_non_exhaustive()
    }
}
