//! One answer from one thread to one waiter, who may be a task or a thread.
//!
//! Main types: [`Answer`], the end that gives it, and [`Reply`], the end that gets it. An `Answer`
//! dropped without having been given ends the wait as well: nobody waits for a dead thread.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use crate::sync::lock;

enum State<T> {
    Waiting(Option<Waker>),
    Given(T),
    Gone,
}

pub(crate) struct Answer<T>(Arc<Mutex<State<T>>>);

pub(crate) struct Reply<T>(Arc<Mutex<State<T>>>);

pub(crate) fn reply<T>() -> (Answer<T>, Reply<T>) {
    let state = Arc::new(Mutex::new(State::Waiting(None)));
    (Answer(state.clone()), Reply(state))
}

impl<T> Answer<T> {
    pub(crate) fn give(self, answer: T) {
        self.settle(State::Given(answer));
    }

    fn settle(&self, settled: State<T>) {
        let mut state = lock(&self.0);
        if let State::Waiting(waker) = &mut *state {
            let waker = waker.take();
            *state = settled;
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        self.settle(State::Gone);
    }
}

impl<T> Reply<T> {
    /// The answer, once; `None` if there will be none.
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<Option<T>> {
        let mut state = lock(&self.0);
        match std::mem::replace(&mut *state, State::Gone) {
            State::Waiting(_) => {
                *state = State::Waiting(Some(context.waker().clone()));
                Poll::Pending
            }
            State::Given(answer) => Poll::Ready(Some(answer)),
            State::Gone => Poll::Ready(None),
        }
    }
}

/// Runs a future to its end on this thread.
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
    fn an_answer_reaches_a_waiting_thread_and_a_dropped_one_ends_the_wait() {
        for given in [Some(7), None] {
            let (answer, reply) = reply();
            let waiter = thread::spawn(move || block_on(std::future::poll_fn(|cx| reply.poll(cx))));
            match given {
                Some(value) => answer.give(value),
                None => drop(answer),
            }
            assert_eq!(waiter.join().unwrap(), given);
        }
    }
}
