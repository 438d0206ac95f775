//! Background tasks of the agent: [`Supervisor`] starts, names and joins them, so that none ends unnoticed.
//!
//! ```text
//!   restarted ──ends or panics──▶ error is logged ──back-off──▶ started again
//!   required  ──ends or panics──▶ error is logged ──▶ Supervisor::failed ──▶ the agent ends with TaskError
//! ```
//!
//! A task is **restarted** if it can be started again from its inputs: it reads shared state or subscribes to
//! it, and a new start repeats nothing that must happen once. These are the loops that follow the API, the
//! runtime, manifests and the machine. A task is **required** if it owns an input that is lost with it: the
//! server with its listener, the probes with their table. Without it the node works only in part, so the
//! agent ends, pods keep running, and the service manager starts the agent again.
//!
//! Tasks may end when the agent is stopped. Tasks that end with their work are not here. After a panic the pod
//! set starts a new worker of the pod; the tasks of status writers and of the event recorder start again
//! ([`restart_on_panic`]). Probes and preStop hooks that panic have failed ([`caught`]).

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use client::Backoff;
use futures::FutureExt as _;
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::error;

use crate::agent::ShutdownMode;

/// The wait before a task is started again.
const RESTART: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(60));
/// A task that ran for this long before it ended starts again after the first wait.
const HEALTHY: Duration = Duration::from_secs(300);

/// The message of a panic.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("panicked: {0}")]
pub(crate) struct Panicked(String);

impl Panicked {
    fn new(payload: &(dyn Any + Send)) -> Panicked {
        let message = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let message = message.or_else(|| payload.downcast_ref::<String>().cloned());
        Panicked(message.unwrap_or_else(|| "no message".to_owned()))
    }
}

/// Awaits a future and returns its panic as an error. Locks that the future held are poisoned, which the
/// agent's locks ignore.
pub(crate) async fn caught<F: Future>(work: F) -> Result<F::Output, Panicked> {
    let done = AssertUnwindSafe(work).catch_unwind().await;
    done.map_err(|payload| Panicked::new(&*payload))
}

/// The back-off of a task that is started again after it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestartBackoff {
    failures: u32,
    waits: Backoff,
}

impl RestartBackoff {
    pub(crate) fn new(waits: Backoff) -> RestartBackoff {
        RestartBackoff { failures: 0, waits }
    }

    /// Returns the wait after one more failure. The wait doubles unless it ran long enough.
    pub(crate) fn failed(&mut self, key: &str, ran: Duration) -> Duration {
        self.failures = if ran >= HEALTHY { 1 } else { self.failures.saturating_add(1) };
        self.waits.wait_with_jitter(key, self.failures)
    }
}

/// Runs a task until it returns. A task that panics is logged at error and started again after a back-off.
pub(crate) async fn restart_on_panic<F>(name: impl AsRef<str>, mut start: impl FnMut() -> F)
where
    F: Future<Output = ()>,
{
    let name = name.as_ref();
    let mut backoff = RestartBackoff::new(RESTART);
    loop {
        let begun = Instant::now();
        let Err(cause) = caught(async { start().await }).await else { return };
        let wait = backoff.failed(name, begun.elapsed());
        error!(task = name, %cause, retry_in_ms = millis(wait), "a task panicked; it starts again");
        tokio::time::sleep(wait).await;
    }
}

/// Returns a duration for the field `retry_in_ms` of a log message.
pub(crate) fn millis(wait: Duration) -> u64 {
    u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
}

/// A required task that ended while the agent ran.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the agent's task `{task}` {end}")]
pub struct TaskError {
    pub task: &'static str,
    pub end: TaskEnd,
}

/// The end of a task.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TaskEnd {
    #[error("returned although the agent was not stopped")]
    Returned,
    /// With the message of the panic.
    #[error("panicked: {0}")]
    Panicked(String),
}

impl From<Result<(), Panicked>> for TaskEnd {
    fn from(done: Result<(), Panicked>) -> TaskEnd {
        match done {
            Ok(()) => TaskEnd::Returned,
            Err(Panicked(message)) => TaskEnd::Panicked(message),
        }
    }
}

/// The background tasks. They are aborted when it is dropped.
#[derive(Debug)]
pub(crate) struct Supervisor {
    tasks: JoinSet<Result<(), TaskError>>,
    stop: watch::Receiver<Option<ShutdownMode>>,
}

impl Supervisor {
    /// The end of a task is normal once `stop` has a value or its sender is gone.
    pub(crate) fn new(stop: watch::Receiver<Option<ShutdownMode>>) -> Supervisor {
        Supervisor { tasks: JoinSet::new(), stop }
    }

    /// Starts a task that is started again if it ends, each time with the same inputs.
    pub(crate) fn restarted<I, F>(
        &mut self,
        name: &'static str,
        inputs: I,
        start: impl Fn(I) -> F + Send + Sync + 'static,
    ) where
        I: Clone + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let mut stop = self.stop.clone();
        self.tasks.spawn(async move {
            let mut backoff = RestartBackoff::new(RESTART);
            loop {
                let (begun, inputs) = (Instant::now(), inputs.clone());
                let end = TaskEnd::from(caught(async { start(inputs).await }).await);
                if is_stopping(&stop) && end == TaskEnd::Returned {
                    return Ok(());
                }
                let wait = backoff.failed(name, begun.elapsed());
                let retry_in_ms = millis(wait);
                error!(task = name, %end, retry_in_ms, "a background task ended; it starts again");
                tokio::select! {
                    // Also when the sender is gone.
                    _ = stop.wait_for(Option::is_some) => return Ok(()),
                    () = tokio::time::sleep(wait) => {}
                }
            }
        });
    }

    /// Starts a task without which the agent cannot run.
    pub(crate) fn required(
        &mut self,
        name: &'static str,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            let end = TaskEnd::from(caught(work).await);
            if is_stopping(&stop) && end == TaskEnd::Returned {
                return Ok(());
            }
            error!(task = name, %end, "a background task ended; the agent ends, and pods keep running");
            Err(TaskError { task: name, end })
        });
    }

    /// Waits until a required task has ended although the agent was not stopped. Can be cancelled at any
    /// time.
    pub(crate) async fn failed(&mut self) -> TaskError {
        loop {
            match self.tasks.join_next().await {
                Some(Ok(Err(error))) => return error,
                // The agent is stopped, or the runtime ends. Panics were caught.
                Some(Ok(Ok(())) | Err(_)) => {}
                None => return std::future::pending().await,
            }
        }
    }
}

fn is_stopping(stop: &watch::Receiver<Option<ShutdownMode>>) -> bool {
    stop.has_changed().is_err() || stop.borrow().is_some()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use rig::logs::capture;

    #[tokio::test(start_paused = true)]
    async fn restarted_task_starts_again_after_a_panic_and_a_return() {
        let log = capture("agent");
        let (stop, stopping) = watch::channel(None);
        let mut supervisor = Supervisor::new(stopping.clone());
        let starts = Arc::new(AtomicU32::new(0));
        let inputs = (Arc::clone(&starts), stopping);
        supervisor.restarted("loop", inputs, |(starts, mut stopping)| async move {
            match starts.fetch_add(1, Ordering::Relaxed) {
                0 => panic!("bad input {}", 7),
                1 => {}
                _ => drop(stopping.wait_for(Option::is_some).await),
            }
        });
        let waiting = tokio::time::timeout(Duration::from_secs(10), supervisor.failed());
        assert!(waiting.await.is_err(), "a restarted task does not end the agent");
        assert_eq!(starts.load(Ordering::Relaxed), 3);
        let lines = log.lines();
        assert_eq!(lines.len(), 2, "{lines:?}");
        let first = "ERROR a background task ended; it starts again task=\"loop\" \
                     end=panicked: bad input 7 retry_in_ms=1";
        assert!(lines[0].starts_with(first), "{lines:?}");
        assert!(lines[1].contains("end=returned although"), "{lines:?}");
        stop.send_replace(Some(ShutdownMode::LeavePodsRunning));
        while supervisor.tasks.join_next().await.is_some() {}
        assert_eq!(log.lines().len(), 2, "a normal stop is not logged");
    }

    #[tokio::test]
    async fn required_task_that_ends_fails_the_agent() {
        let log = capture("agent");
        let (_stop, stopping) = watch::channel(None);
        let mut supervisor = Supervisor::new(stopping);
        supervisor.required("waits", std::future::pending());
        supervisor.required("panics", async { panic!("no table") });
        let error = supervisor.failed().await;
        assert_eq!(error.to_string(), "the agent's task `panics` panicked: no table");
        supervisor.required("returns", async {});
        let error = supervisor.failed().await;
        assert_eq!(error, TaskError { task: "returns", end: TaskEnd::Returned });
        assert_eq!(log.with("ERROR a background task ended; the agent ends").len(), 2);
    }

    #[tokio::test]
    async fn tasks_that_end_with_the_agent_are_normal() {
        let log = capture("agent");
        let (stop, stopping) = watch::channel(None);
        let mut supervisor = Supervisor::new(stopping.clone());
        let mut ending = stopping.clone();
        supervisor.required("server", async move { drop(ending.wait_for(Option::is_some).await) });
        supervisor.restarted("loop", stopping, |mut ending| async move {
            drop(ending.wait_for(Option::is_some).await);
        });
        tokio::task::yield_now().await;
        stop.send_replace(Some(ShutdownMode::StopPods));
        while let Some(ended) = supervisor.tasks.join_next().await {
            assert_eq!(ended.unwrap(), Ok(()));
        }
        assert_eq!(log.lines(), [""; 0]);
    }

    #[tokio::test]
    async fn lost_sender_counts_as_stopped() {
        let (stop, stopping) = watch::channel(None);
        let mut supervisor = Supervisor::new(stopping);
        drop(stop);
        supervisor.required("returns", async {});
        assert_eq!(supervisor.tasks.join_next().await.unwrap().unwrap(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn task_runs_until_it_returns() {
        let log = capture("agent");
        let mut starts = 0;
        restart_on_panic("status writer of default/p", || {
            starts += 1;
            let number = starts;
            async move { assert!(number > 2, "start {number}") }
        })
        .await;
        assert_eq!(starts, 3);
        let lines = log.lines();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains("task=\"status writer of default/p\" cause=panicked: start 1"));
    }

    #[test]
    fn backoff_doubles_until_it_ran_long_enough() {
        let mut backoff = RestartBackoff::new(RESTART);
        let mut wait = |ran| backoff.failed("x", ran).as_millis();
        for (ran, low, high) in [
            (Duration::ZERO, 100, 120),
            (Duration::ZERO, 200, 240),
            (Duration::ZERO, 400, 480),
            (HEALTHY, 100, 120),
            (Duration::ZERO, 200, 240),
        ] {
            let wait = wait(ran);
            assert!((low..=high).contains(&wait), "{wait}");
        }
    }
}
