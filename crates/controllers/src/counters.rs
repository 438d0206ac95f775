//! Counters of the controllers: [`Counters`], returned as families of the crate `metrics`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use client::{Error, Key};
use metrics::{Family, Kind, Sample};
use parking_lot::{Mutex, MutexGuard};
use tracing::error;

use crate::supervise::PanicMessage;

/// The lengths of the scheduler's queues, with upstream's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PendingPods {
    pub active: usize,
    pub backoff: usize,
    pub unschedulable: usize,
    pub gated: usize,
}

#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) scheduled: AtomicU64,
    pub(crate) unschedulable: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) preemptions: AtomicU64,
    pub(crate) invalid_reports: AtomicU64,
    pub(crate) events_dropped: AtomicU64,
    pending: Mutex<PendingPods>,
    controllers: Mutex<BTreeMap<&'static str, ControllerCounts>>,
}

#[derive(Debug, Default)]
struct ControllerCounts {
    depth: usize,
    retries: u64,
    /// Panics while an object was processed.
    panics: u64,
    /// Starts after the first one.
    restarts: u64,
    last_error: String,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Counters {
    fn controllers(&self) -> MutexGuard<'_, BTreeMap<&'static str, ControllerCounts>> {
        self.controllers.lock()
    }

    pub(crate) fn set_depth(&self, name: &'static str, depth: usize) {
        self.controllers().entry(name).or_default().depth = depth;
    }

    pub(crate) fn failed(&self, name: &'static str, key: &Key, error: &Error) {
        let mut controllers = self.controllers();
        let counts = controllers.entry(name).or_default();
        counts.retries += 1;
        counts.last_error = format!("{key}: {error}");
    }

    /// Counts a panic on an object, which is retried like any other failure.
    pub(crate) fn panicked(&self, name: &'static str, key: &Key, panicked: &PanicMessage) {
        let PanicMessage(message) = panicked;
        error!(
            controller = name,
            %key,
            panic = message,
            "the controller panicked on an object; it is retried"
        );
        let mut controllers = self.controllers();
        let counts = controllers.entry(name).or_default();
        counts.panics += 1;
        counts.retries += 1;
        counts.last_error = format!("{key}: panic: {message}");
    }

    /// Counts a controller that ended and is started again.
    pub(crate) fn restarted(&self, name: &'static str) {
        self.controllers().entry(name).or_default().restarts += 1;
    }

    pub(crate) fn set_pending(&self, pending: PendingPods) {
        *self.pending.lock() = pending;
    }

    /// Returns the last error of each controller, to find the cause of a stall.
    #[must_use]
    pub fn last_errors(&self) -> Vec<(&'static str, String)> {
        let controllers = self.controllers();
        let failed = controllers.iter().filter(|(_, counts)| !counts.last_error.is_empty());
        failed.map(|(name, counts)| (*name, counts.last_error.clone())).collect()
    }

    /// Returns the metrics, with upstream's names where they exist.
    #[must_use]
    pub fn families(&self) -> Vec<Family> {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        let attempts = [
            ("scheduled", &self.scheduled),
            ("unschedulable", &self.unschedulable),
            ("error", &self.errors),
        ];
        let pending = *self.pending.lock();
        let pending = [
            ("active", pending.active),
            ("backoff", pending.backoff),
            ("unschedulable", pending.unschedulable),
            ("gated", pending.gated),
        ];
        let controllers = self.controllers();
        let by_controller = |kind, name, read: fn(&ControllerCounts) -> f64| {
            let sample = |(name, counts): (&&str, &_)| Sample::new(&[("name", name)], read(counts));
            Family::new(kind, name, "", controllers.iter().map(sample))
        };
        let counter = |name, value| Family::single(Kind::Counter, name, "", load(value));
        vec![
            Family::new(
                Kind::Counter,
                "scheduler_schedule_attempts_total",
                "",
                attempts.map(|(result, count)| Sample::new(&[("result", result)], load(count))),
            ),
            counter("scheduler_preemption_attempts_total", &self.preemptions),
            counter("berth_invalid_node_reports_total", &self.invalid_reports),
            counter("berth_events_dropped_total", &self.events_dropped),
            Family::new(
                Kind::Gauge,
                "scheduler_pending_pods",
                "",
                pending.map(|(queue, length)| Sample::new(&[("queue", queue)], length as f64)),
            ),
            by_controller(Kind::Gauge, "workqueue_depth", |counts| counts.depth as f64),
            by_controller(Kind::Counter, "workqueue_retries_total", |counts| counts.retries as f64),
            by_controller(Kind::Counter, "berth_controller_panics_total", |counts| {
                counts.panics as f64
            }),
            by_controller(Kind::Counter, "berth_controller_restarts_total", |counts| {
                counts.restarts as f64
            }),
        ]
    }
}
