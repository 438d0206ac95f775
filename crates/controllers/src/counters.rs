//! Counters of the controllers: [`Counters`], read as plain numbers by the metrics endpoint.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use client::{Error, Key};
use tracing::error;

use crate::supervise::PanicMessage;

/// One value with the metric name and label that upstream uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    pub name: &'static str,
    /// Name and value of the label. Both are empty if the metric has no label.
    pub label: (&'static str, String),
    pub value: u64,
}

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
    fn controllers(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, ControllerCounts>> {
        self.controllers.lock().unwrap_or_else(PoisonError::into_inner)
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
        *self.pending.lock().unwrap_or_else(PoisonError::into_inner) = pending;
    }

    /// Returns the last error of each controller, to find the cause of a stall.
    #[must_use]
    pub fn last_errors(&self) -> Vec<(&'static str, String)> {
        let controllers = self.controllers();
        let failed = controllers.iter().filter(|(_, counts)| !counts.last_error.is_empty());
        failed.map(|(name, counts)| (*name, counts.last_error.clone())).collect()
    }

    /// Returns all values, grouped by name.
    #[must_use]
    pub fn readings(&self) -> Vec<Reading> {
        let mut all = Vec::new();
        let mut add = |name, label: (&'static str, &str), value: u64| {
            all.push(Reading { name, label: (label.0, label.1.to_owned()), value });
        };
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let attempts = "scheduler_schedule_attempts_total";
        add(attempts, ("result", "scheduled"), load(&self.scheduled));
        add(attempts, ("result", "unschedulable"), load(&self.unschedulable));
        add(attempts, ("result", "error"), load(&self.errors));
        add("scheduler_preemption_attempts_total", ("", ""), load(&self.preemptions));
        add("berth_invalid_node_reports_total", ("", ""), load(&self.invalid_reports));
        add("berth_events_dropped_total", ("", ""), load(&self.events_dropped));
        let pending = *self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        for (queue, length) in [
            ("active", pending.active),
            ("backoff", pending.backoff),
            ("unschedulable", pending.unschedulable),
            ("gated", pending.gated),
        ] {
            add("scheduler_pending_pods", ("queue", queue), length as u64);
        }
        let controllers = self.controllers();
        for (name, counts) in controllers.iter() {
            add("workqueue_depth", ("name", name), counts.depth as u64);
        }
        for (name, counts) in controllers.iter() {
            add("workqueue_retries_total", ("name", name), counts.retries);
        }
        for (name, counts) in controllers.iter() {
            add("berth_controller_panics_total", ("name", name), counts.panics);
        }
        for (name, counts) in controllers.iter() {
            add("berth_controller_restarts_total", ("name", name), counts.restarts);
        }
        all
    }
}
