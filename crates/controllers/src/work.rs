//! Work by key: [`WorkQueue`], which says which object is next, and [`run_keyed`], which does it.
//!
//! ```text
//!           add                pop                 done
//!   ─────────────▶ ready ───────────▶ under way ─────────▶ (nothing)
//!                   ▲ ▲                  │  │ added meanwhile: ready again
//!                   │ └──────────────────┘  │
//!                   └────── later ◀─────────┘ failed: back-off · asked for: at that time
//! ```
//!
//! A key is under way at most once, so a loop never races with itself over one object. The queue is a
//! state machine with time as an argument.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::future::Future;
use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::client::{BoxFuture, Error};
use crate::clock::{Clock, Millis};
use crate::counters::Counters;
use crate::informer::{Cache, Update};
use crate::key::Key;

/// How long to wait after a number of failures: doubling from `first` to `longest`, and up to a fifth
/// more, which differs by key so that what failed together does not come back together.
pub(crate) fn backoff(key: &str, failures: u32, first: Millis, longest: Millis) -> Millis {
    let doublings = failures.saturating_sub(1).min(30);
    let wait = first.saturating_mul(1 << doublings).min(longest);
    let mut hasher = std::hash::DefaultHasher::new();
    (key, failures).hash(&mut hasher);
    let fifth = u64::try_from(wait / 5).unwrap_or(0).max(1);
    wait.saturating_add(i64::try_from(hasher.finish() % fifth).unwrap_or(0))
}

/// Upstream's figures for work queues.
const FIRST_BACKOFF: Millis = 5;
const LONGEST_BACKOFF: Millis = 1_000_000;

#[derive(Debug, Default)]
pub(crate) struct WorkQueue {
    ready: VecDeque<Key>,
    waiting: HashSet<Key>,
    under_way: HashSet<Key>,
    /// Added while under way.
    again: HashSet<Key>,
    later: BTreeSet<(Millis, Key)>,
    due: HashMap<Key, Millis>,
    failures: HashMap<Key, u32>,
}

/// What came of the work on a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Done {
    Fine,
    /// To be looked at again after this time, although nothing may happen.
    After(Millis),
    Failed,
}

impl WorkQueue {
    pub(crate) fn add(&mut self, key: Key) {
        if self.under_way.contains(&key) {
            self.again.insert(key);
        } else if self.waiting.insert(key.clone()) {
            self.ready.push_back(key);
        }
    }

    fn add_at(&mut self, key: Key, at: Millis) {
        match self.due.get(&key).copied() {
            Some(due) if due <= at => return,
            Some(due) => {
                self.later.remove(&(due, key.clone()));
            }
            None => {}
        }
        self.due.insert(key.clone(), at);
        self.later.insert((at, key));
    }

    pub(crate) fn pop(&mut self, now: Millis) -> Option<Key> {
        while let Some((at, key)) = self.later.first().cloned() {
            if at > now {
                break;
            }
            self.later.pop_first();
            self.due.remove(&key);
            self.add(key);
        }
        let key = self.ready.pop_front()?;
        self.waiting.remove(&key);
        self.under_way.insert(key.clone());
        Some(key)
    }

    pub(crate) fn done(&mut self, key: &Key, done: Done, now: Millis) {
        self.under_way.remove(key);
        match done {
            Done::Fine => {
                self.failures.remove(key);
            }
            Done::After(wait) => {
                self.failures.remove(key);
                self.add_at(key.clone(), now.saturating_add(wait));
            }
            Done::Failed => {
                let failures = self.failures.entry(key.clone()).or_default();
                *failures += 1;
                let wait = backoff(key.as_str(), *failures, FIRST_BACKOFF, LONGEST_BACKOFF);
                self.add_at(key.clone(), now.saturating_add(wait));
            }
        }
        if self.again.remove(key) {
            self.add(key.clone());
        }
    }

    pub(crate) fn next_due(&self) -> Option<Millis> {
        self.later.first().map(|(at, _)| *at)
    }

    /// How many keys are ready.
    pub(crate) fn depth(&self) -> usize {
        self.ready.len()
    }
}

/// A loop that brings one object after the other to where it should be.
pub(crate) trait Reconcile: Send + Sync + 'static {
    /// What the loop is called in options and counters.
    const NAME: &'static str;

    /// Says when to look at the object again, if that is known.
    fn reconcile(&self, key: Key) -> BoxFuture<'_, Result<Option<Duration>, Error>>;
}

/// Keys from the changes of a cache.
pub(crate) fn feed<T: Send + Sync + 'static>(
    cache: &Cache<T>,
    keys: mpsc::UnboundedSender<Key>,
    of: impl Fn(&Update<T>) -> Vec<Key> + Send + 'static,
) -> impl Future<Output = ()> + Send + 'static {
    let mut updates = cache.subscribe();
    async move {
        while let Some(update) = updates.recv().await {
            for key in of(&update) {
                if keys.send(key).is_err() {
                    return;
                }
            }
        }
    }
}

/// Works on keys as they come, several at a time, until it is told to stop; then lets those under way
/// come to their end.
pub(crate) async fn run_keyed<R: Reconcile>(
    work: Arc<R>,
    mut keys: mpsc::UnboundedReceiver<Key>,
    workers: usize,
    clock: Clock,
    counters: Arc<Counters>,
    mut stop: watch::Receiver<bool>,
) {
    let mut queue = WorkQueue::default();
    let mut under_way = JoinSet::new();
    loop {
        while let Ok(key) = keys.try_recv() {
            queue.add(key);
        }
        while under_way.len() < workers {
            let Some(key) = queue.pop(clock.millis()) else { break };
            let work = work.clone();
            under_way.spawn(async move {
                let done = work.reconcile(key.clone()).await;
                (key, done)
            });
        }
        counters.set_depth(R::NAME, queue.depth());
        let due = queue.next_due().map(|at| clock.at(at));
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => break,
            Some(key) = keys.recv() => queue.add(key),
            Some(joined) = under_way.join_next() => {
                // A task that came to a bad end says nothing of its key; its object's next change does.
                if let Ok((key, done)) = joined {
                    let done = match done {
                        Ok(None) => Done::Fine,
                        Ok(Some(after)) => {
                            Done::After(i64::try_from(after.as_millis()).unwrap_or(i64::MAX))
                        }
                        Err(error) => {
                            counters.failed(R::NAME, &key, &error);
                            Done::Failed
                        }
                    };
                    queue.done(&key, done, clock.millis());
                }
            }
            () = sleep_until(due), if due.is_some() => {}
        }
    }
    while under_way.join_next().await.is_some() {}
}

pub(crate) async fn sleep_until(due: Option<tokio::time::Instant>) {
    if let Some(due) = due {
        tokio::time::sleep_until(due).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new("", name)
    }

    #[test]
    fn a_key_is_under_way_once_and_comes_back_if_it_was_added_meanwhile() {
        let mut queue = WorkQueue::default();
        queue.add(key("a"));
        queue.add(key("a"));
        queue.add(key("b"));
        assert_eq!(queue.depth(), 2);
        assert_eq!(queue.pop(0), Some(key("a")));
        queue.add(key("a"));
        assert_eq!(queue.pop(0), Some(key("b")));
        assert_eq!(queue.pop(0), None);
        queue.done(&key("a"), Done::Fine, 0);
        queue.done(&key("b"), Done::Fine, 0);
        assert_eq!((queue.pop(0), queue.pop(0)), (Some(key("a")), None));
    }

    #[test]
    fn failures_wait_longer_each_time_and_success_forgets_them() {
        let mut queue = WorkQueue::default();
        queue.add(key("a"));
        let mut last = 0;
        for _ in 0..5 {
            let now = queue.next_due().unwrap_or(0);
            assert_eq!(queue.pop(now), Some(key("a")));
            queue.done(&key("a"), Done::Failed, now);
            let wait = queue.next_due().unwrap() - now;
            assert!(wait > last && wait <= 5 * 16 * 6 / 5, "{wait}");
            assert_eq!(queue.pop(now), None);
            last = wait;
        }
        let now = queue.next_due().unwrap();
        queue.pop(now);
        queue.done(&key("a"), Done::After(50), now);
        assert_eq!(queue.next_due(), Some(now + 50));
    }

    #[test]
    fn the_earlier_of_two_times_counts() {
        let mut queue = WorkQueue::default();
        queue.add_at(key("a"), 100);
        queue.add_at(key("a"), 50);
        queue.add_at(key("a"), 70);
        assert_eq!(queue.next_due(), Some(50));
        assert_eq!(queue.pop(60), Some(key("a")));
        assert_eq!(queue.next_due(), None);
    }

    #[test]
    fn backoff_doubles_to_its_end() {
        for (failures, low, high) in
            [(1, 100, 120), (2, 200, 240), (8, 10_000, 12_000), (99, 10_000, 12_000)]
        {
            let wait = backoff("x", failures, 100, 10_000);
            assert!((low..=high).contains(&wait), "{failures}: {wait}");
        }
    }
}
