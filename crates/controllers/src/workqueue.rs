//! Work queues: [`WorkQueue`] orders keys, and [`run_keyed`] reconciles them.
//!
//! ```text
//!           add                pop                 done
//!   ─────────────▶ ready ───────────▶ processing ────────▶ (removed)
//!                   ▲ ▲                  │  │ added while processing: ready again
//!                   │ └──────────────────┘  │
//!                   └────── later ◀─────────┘ failed: back-off · RequeueAfter: at that time
//! ```
//!
//! A key is processed at most once at a time, so a controller never races with itself over one
//! object. The queue is a state machine with time as an argument.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use client::{Backoff, BoxFuture, Cache, Error, Key, Update};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::clock::Clock;
use crate::counters::Counters;
use crate::supervise::{catch_panic, catch_panic_sync};
use client::{ErrorLog, error_chain};

/// Upstream's values for work queues.
const RETRY: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_secs(1_000));

#[derive(Debug, Default)]
pub(crate) struct WorkQueue {
    ready: VecDeque<Key>,
    waiting: HashSet<Key>,
    under_way: HashSet<Key>,
    /// Added while being processed.
    again: HashSet<Key>,
    later: BTreeSet<(Duration, Key)>,
    due: HashMap<Key, Duration>,
    failures: HashMap<Key, u32>,
}

/// The result of reconciling a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Success,
    /// Queue the key again after this time, even without an event.
    RequeueAfter(Duration),
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

    fn add_at(&mut self, key: Key, at: Duration) {
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

    pub(crate) fn pop(&mut self, now: Duration) -> Option<Key> {
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

    /// Takes back a processed key and returns the number of its consecutive failures.
    pub(crate) fn done(&mut self, key: &Key, done: Outcome, now: Duration) -> u32 {
        self.under_way.remove(key);
        let mut failed = 0;
        match done {
            Outcome::Success => {
                self.failures.remove(key);
            }
            Outcome::RequeueAfter(wait) => {
                self.failures.remove(key);
                self.add_at(key.clone(), now.saturating_add(wait));
            }
            Outcome::Failed => {
                let failures = self.failures.entry(key.clone()).or_default();
                *failures += 1;
                failed = *failures;
                let wait = RETRY.wait_with_jitter(key.as_str(), failed);
                self.add_at(key.clone(), now.saturating_add(wait));
            }
        }
        if self.again.remove(key) {
            self.add(key.clone());
        }
        failed
    }

    /// Queues the keys again that were being processed when the controller ended.
    fn restart(&mut self) {
        for key in std::mem::take(&mut self.under_way) {
            self.add(key);
        }
        for key in std::mem::take(&mut self.again) {
            self.add(key);
        }
    }

    pub(crate) fn next_due(&self) -> Option<Duration> {
        self.later.first().map(|(at, _)| *at)
    }

    /// Returns the number of ready keys.
    pub(crate) fn depth(&self) -> usize {
        self.ready.len()
    }
}

/// A controller that reconciles one object at a time.
pub(crate) trait Reconcile: Send + Sync + 'static {
    /// The name of the controller in logs and counters.
    const NAME: &'static str;

    /// Reconciles an object. Returns the time after which it must be reconciled again, if any.
    fn reconcile(&self, key: Key) -> BoxFuture<'_, Result<Option<Duration>, Error>>;
}

/// Sends the keys that the changes of a cache concern. A change on which `of` panics is skipped.
pub(crate) fn feed<T: Send + Sync + 'static>(
    name: &'static str,
    cache: &Cache<T>,
    keys: mpsc::UnboundedSender<Key>,
    counters: Arc<Counters>,
    of: impl Fn(&Update<T>) -> Vec<Key> + Send + 'static,
) -> impl Future<Output = ()> + Send + 'static {
    let mut updates = cache.subscribe();
    async move {
        while let Some(update) = updates.recv().await {
            let concerned = catch_panic_sync(|| of(&update)).unwrap_or_else(|panicked| {
                counters.panicked(name, &update.key, &panicked);
                Vec::new()
            });
            for key in concerned {
                if keys.send(key).is_err() {
                    return;
                }
            }
        }
    }
}

/// The queued and arriving keys of a controller. It outlives a run of the controller, so that a
/// restart loses no key.
#[derive(Debug)]
pub(crate) struct Inbox {
    queue: WorkQueue,
    keys: mpsc::UnboundedReceiver<Key>,
}

impl Inbox {
    pub(crate) fn new(keys: mpsc::UnboundedReceiver<Key>) -> Arc<Mutex<Inbox>> {
        Arc::new(Mutex::new(Inbox { queue: WorkQueue::default(), keys }))
    }
}

/// A key that has failed this often in a row is logged, and again when its error changes. Conflicts
/// with other writers resolve themselves within fewer tries.
const LOGGED_FAILURES: u32 = 8;

/// Reconciles keys as they arrive, several at a time, until `stop` is set, and then lets running
/// ones finish. A panic counts as a failure of its key.
pub(crate) async fn run_keyed<R: Reconcile>(
    work: Arc<R>,
    inbox: Arc<Mutex<Inbox>>,
    workers: usize,
    clock: Clock,
    counters: Arc<Counters>,
    mut stop: watch::Receiver<bool>,
) {
    let mut inbox = inbox.lock().await;
    let Inbox { queue, keys } = &mut *inbox;
    queue.restart();
    let mut under_way = JoinSet::new();
    let mut errors: HashMap<Key, ErrorLog> = HashMap::new();
    loop {
        while let Ok(key) = keys.try_recv() {
            queue.add(key);
        }
        while under_way.len() < workers {
            let Some(key) = queue.pop(clock.elapsed()) else { break };
            let work = work.clone();
            under_way.spawn(async move {
                let done = catch_panic(async { work.reconcile(key.clone()).await }).await;
                (key, done)
            });
        }
        counters.set_depth(R::NAME, queue.depth());
        let due = queue.next_due().map(|at| clock.at(at));
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => break,
            Some(key) = keys.recv() => queue.add(key),
            Some(joined) = under_way.join_next() => {
                // Tasks return their panics, and none is aborted while the controller runs.
                let Ok((key, done)) = joined else { continue };
                let (done, why) = match done {
                    Ok(Ok(None)) => (Outcome::Success, None),
                    Ok(Ok(Some(after))) => (Outcome::RequeueAfter(after), None),
                    Ok(Err(error)) => {
                        counters.failed(R::NAME, &key, &error);
                        (Outcome::Failed, Some(error))
                    }
                    Err(panicked) => {
                        counters.panicked(R::NAME, &key, &panicked);
                        (Outcome::Failed, None)
                    }
                };
                let failures = queue.done(&key, done, clock.elapsed());
                match why {
                    Some(error) if failures >= LOGGED_FAILURES => {
                        let error = error_chain(&error);
                        if errors.entry(key.clone()).or_default().failed(&error) {
                            warn!(
                                controller = R::NAME, %key, failures, error,
                                "failed to reconcile an object; retrying with back-off"
                            );
                        }
                    }
                    None if failures == 0 && errors.remove(&key).is_some() => {
                        info!(controller = R::NAME, %key, "reconciled an object after failures");
                    }
                    _ => {}
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

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn key(name: &str) -> Key {
        Key::new("", name)
    }

    #[test]
    fn key_added_during_processing_is_queued_again() {
        let mut queue = WorkQueue::default();
        queue.add(key("a"));
        queue.add(key("a"));
        queue.add(key("b"));
        assert_eq!(queue.depth(), 2);
        assert_eq!(queue.pop(Duration::ZERO), Some(key("a")));
        queue.add(key("a"));
        assert_eq!(queue.pop(Duration::ZERO), Some(key("b")));
        assert_eq!(queue.pop(Duration::ZERO), None);
        queue.done(&key("a"), Outcome::Success, Duration::ZERO);
        queue.done(&key("b"), Outcome::Success, Duration::ZERO);
        assert_eq!((queue.pop(Duration::ZERO), queue.pop(Duration::ZERO)), (Some(key("a")), None));
    }

    #[test]
    fn failures_back_off_and_success_resets_them() {
        let mut queue = WorkQueue::default();
        queue.add(key("a"));
        let mut last = Duration::ZERO;
        for _ in 0..5 {
            let now = queue.next_due().unwrap_or_default();
            assert_eq!(queue.pop(now), Some(key("a")));
            queue.done(&key("a"), Outcome::Failed, now);
            let wait = queue.next_due().unwrap() - now;
            assert!(wait > last && wait <= millis(5 * 16 * 6 / 5), "{wait:?}");
            assert_eq!(queue.pop(now), None);
            last = wait;
        }
        let now = queue.next_due().unwrap();
        queue.pop(now);
        queue.done(&key("a"), Outcome::RequeueAfter(millis(50)), now);
        assert_eq!(queue.next_due(), Some(now + millis(50)));
    }

    #[test]
    fn earliest_due_time_counts() {
        let mut queue = WorkQueue::default();
        queue.add_at(key("a"), millis(100));
        queue.add_at(key("a"), millis(50));
        queue.add_at(key("a"), millis(70));
        assert_eq!(queue.next_due(), Some(millis(50)));
        assert_eq!(queue.pop(millis(60)), Some(key("a")));
        assert_eq!(queue.next_due(), None);
    }

    /// Panics three times on the key `bad`.
    struct Fragile {
        panics: std::sync::atomic::AtomicU32,
        done: mpsc::UnboundedSender<Key>,
    }

    impl Reconcile for Fragile {
        const NAME: &'static str = "fragile";

        fn reconcile(&self, key: Key) -> BoxFuture<'_, Result<Option<Duration>, Error>> {
            // The first panic occurs before the future exists, the others while it runs.
            let earlier = self.panics.load(std::sync::atomic::Ordering::Relaxed);
            let fails = key.name() == "bad" && earlier < 3;
            if fails {
                self.panics.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
            assert!(!fails || earlier > 0, "no future for {key}");
            Box::pin(async move {
                assert!(!fails, "no work on {key}");
                let _ = self.done.send(key);
                Ok(None)
            })
        }
    }

    #[tokio::test]
    async fn panic_on_one_object_is_counted_and_retried() {
        let (sender, keys) = mpsc::unbounded_channel();
        let (done, mut finished) = mpsc::unbounded_channel();
        let (stop, stopped) = watch::channel(false);
        let counters = Arc::new(Counters::default());
        for name in ["bad", "a", "b"] {
            sender.send(key(name)).unwrap();
        }
        let work = Arc::new(Fragile { panics: 0.into(), done });
        let inbox = Inbox::new(keys);
        let run = run_keyed(work, inbox, 1, Clock::start(), counters.clone(), stopped);
        let running = tokio::spawn(run);
        let mut order = Vec::new();
        for _ in 0..3 {
            order.push(finished.recv().await.unwrap());
        }
        assert_eq!(order, [key("a"), key("b"), key("bad")]);
        let text = metrics::text::render(&counters.families());
        assert!(text.contains("\nberth_controller_panics_total{name=\"fragile\"} 3\n"), "{text}");
        assert!(counters.last_errors()[0].1.starts_with("bad: panic: no work on bad"));
        stop.send_replace(true);
        running.await.unwrap();
    }

    /// Fails with one error, then with another one, then succeeds.
    struct Failing {
        attempts: std::sync::atomic::AtomicU32,
        done: mpsc::UnboundedSender<Key>,
    }

    impl Reconcile for Failing {
        const NAME: &'static str = "failing";

        fn reconcile(&self, key: Key) -> BoxFuture<'_, Result<Option<Duration>, Error>> {
            let attempt = self.attempts.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Box::pin(async move {
                let source = || serde_json::from_str::<()>("{").unwrap_err();
                match attempt {
                    0..9 => Err(Error::Behind),
                    9 => Err(Error::Garbled { request: "GET".to_owned(), source: source() }),
                    _ => {
                        let _ = self.done.send(key);
                        Ok(None)
                    }
                }
            })
        }
    }

    #[tokio::test]
    async fn each_distinct_error_and_the_recovery_are_logged_once() {
        let lines = rig::logs::capture("controllers");
        let (sender, keys) = mpsc::unbounded_channel();
        let (done, mut finished) = mpsc::unbounded_channel();
        let (stop, stopped) = watch::channel(false);
        sender.send(key("a")).unwrap();
        let work = Arc::new(Failing { attempts: 0.into(), done });
        let counters = Arc::new(Counters::default());
        let run = run_keyed(work, Inbox::new(keys), 1, Clock::start(), counters, stopped);
        let running = tokio::spawn(run);
        assert_eq!(finished.recv().await, Some(key("a")));
        while lines.with("INFO").is_empty() {
            tokio::task::yield_now().await;
        }
        stop.send_replace(true);
        running.await.unwrap();
        let [first, second, recovery] = lines.with("controller=\"failing\"").try_into().unwrap();
        let start = "WARN failed to reconcile an object; retrying with back-off \
                     controller=\"failing\" key=a failures=8 error=";
        assert!(first.starts_with(start), "{first}");
        assert!(
            second.contains("failures=10 error=") && second.contains("expected unit"),
            "{second}"
        );
        let text = "INFO reconciled an object after failures controller=\"failing\" key=a";
        assert_eq!(recovery, text);
    }

    #[tokio::test]
    async fn restarted_controller_keeps_its_keys() {
        let (_sender, keys) = mpsc::unbounded_channel();
        let inbox = Inbox::new(keys);
        {
            let mut held = inbox.lock().await;
            held.queue.add(key("ready"));
            held.queue.add(key("under-way"));
            assert_eq!(held.queue.pop(Duration::ZERO), Some(key("ready")));
        }
        let (done, mut finished) = mpsc::unbounded_channel();
        let (stop, stopped) = watch::channel(false);
        let work = Arc::new(Fragile { panics: 0.into(), done });
        let counters = Arc::new(Counters::default());
        let running = tokio::spawn(run_keyed(work, inbox, 1, Clock::start(), counters, stopped));
        let found = [finished.recv().await.unwrap(), finished.recv().await.unwrap()];
        assert_eq!(found, [key("under-way"), key("ready")]);
        stop.send_replace(true);
        running.await.unwrap();
    }
}
