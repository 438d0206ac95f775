//! A channel for one reply from the store's threads to a task or a thread.
//!
//! Main types: [`ReplySender`] and [`ReplyReceiver`]. Dropping the sender without a reply ends the
//! wait too, so that no caller waits for a dead thread.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use parking_lot::Mutex;

enum State<T> {
    Waiting(Option<Waker>),
    Sent(T),
    Closed,
}

pub(crate) struct ReplySender<T>(Arc<Mutex<State<T>>>);

pub(crate) struct ReplyReceiver<T>(Arc<Mutex<State<T>>>);

pub(crate) fn channel<T>() -> (ReplySender<T>, ReplyReceiver<T>) {
    let state = Arc::new(Mutex::new(State::Waiting(None)));
    (ReplySender(state.clone()), ReplyReceiver(state))
}

impl<T> ReplySender<T> {
    pub(crate) fn send(self, reply: T) {
        self.set(State::Sent(reply));
    }

    fn set(&self, new: State<T>) {
        let mut state = self.0.lock();
        if let State::Waiting(waker) = &mut *state {
            let waker = waker.take();
            *state = new;
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl<T> Drop for ReplySender<T> {
    fn drop(&mut self) {
        self.set(State::Closed);
    }
}

impl<T> ReplyReceiver<T> {
    /// Returns the reply once; `None` if the sender is gone.
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<Option<T>> {
        let mut state = self.0.lock();
        match std::mem::replace(&mut *state, State::Closed) {
            State::Waiting(_) => {
                *state = State::Waiting(Some(context.waker().clone()));
                Poll::Pending
            }
            State::Sent(reply) => Poll::Ready(Some(reply)),
            State::Closed => Poll::Ready(None),
        }
    }
}

/// Runs a future to completion on the current thread.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reply_or_dropped_sender_ends_the_wait() {
        for sent in [Some(7), None] {
            let (sender, receiver) = channel();
            let waiter =
                thread::spawn(move || block_on(std::future::poll_fn(|cx| receiver.poll(cx))));
            match sent {
                Some(value) => sender.send(value),
                None => drop(sender),
            }
            assert_eq!(waiter.join().unwrap(), sent);
        }
    }
}
