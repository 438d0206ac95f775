//! The scheduling queue as a state machine.
//!
//! Main type: [`Queue`]. Time is an argument, in milliseconds of any clock that does not go back.
//!
//! ```text
//!            add                     pop
//!   ─────────────────▶ active ────────────────▶ in an attempt ──▶ done
//!      │                 ▲  ▲                        │
//!      │ gates           │  └──── backing off ◀──┐   │ failed
//!      ▼                 │        1 s, 2 s … 10 s│   ▼
//!    gated ── ungate ────┘                       └ unschedulable
//!                         an event that could help, or five minutes
//! ```
//!
//! An event that arrives during an attempt is not lost: if it could have helped, the pod backs off
//! instead of becoming unschedulable. The queue knows only keys, priorities and the rejecting
//! plugins of pods.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::time::Milliseconds;
use crate::verdict::Plugin;

/// The retry delays of pods. Upstream's figures by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackoffConfig {
    pub first_backoff: Milliseconds,
    pub longest_backoff: Milliseconds,
    /// The time after which an unschedulable pod is retried without an event.
    pub unschedulable: Milliseconds,
}

impl Default for BackoffConfig {
    fn default() -> BackoffConfig {
        BackoffConfig { first_backoff: 1_000, longest_backoff: 10_000, unschedulable: 300_000 }
    }
}

/// A change in the cluster, at the granularity that matters to plugins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Event {
    NodeAdded,
    /// Allocatable resources or QoS classes of a node changed.
    NodeResources,
    NodeLabels,
    NodeTaints,
    /// Other fields of a node changed that plugins read, such as features or images.
    NodeOther,
    NodeRemoved,
    /// A pod was bound or assumed.
    PodAdded,
    /// A bound pod requests less, or its labels changed.
    PodChanged,
    /// A bound pod was removed.
    PodRemoved,
    /// A volume, claim or storage class was added or changed.
    Volumes,
    /// The labels of a namespace, a service or a controller changed, and with them the grouping of
    /// pods.
    Grouping,
    /// The machine report of a node changed.
    Machine,
}

/// Returns true if an event could change the rejection by a plugin.
#[must_use]
pub fn could_help(plugin: Plugin, event: Event) -> bool {
    use Event::{
        Grouping, Machine, NodeAdded, NodeLabels, NodeOther, NodeRemoved, NodeResources,
        NodeTaints, PodAdded, PodChanged, PodRemoved, Volumes,
    };
    match plugin {
        Plugin::NodeName | Plugin::NodeAffinity => matches!(event, NodeAdded | NodeLabels),
        Plugin::NodeUnschedulable | Plugin::TaintToleration => {
            matches!(event, NodeAdded | NodeTaints)
        }
        Plugin::NodePorts => matches!(event, NodeAdded | PodRemoved),
        Plugin::NodeResourcesFit | Plugin::QosResources => {
            matches!(event, NodeAdded | NodeResources | PodRemoved | PodChanged)
        }
        Plugin::VolumeRestrictions => matches!(event, NodeAdded | PodRemoved | Volumes),
        Plugin::NodeVolumeLimits => matches!(event, NodeAdded | NodeOther | PodRemoved | Volumes),
        Plugin::VolumeBinding => {
            matches!(event, NodeAdded | NodeLabels | NodeTaints | Volumes)
        }
        Plugin::VolumeZone => matches!(event, NodeAdded | NodeLabels | Volumes),
        // Without the node there is one domain less to balance.
        Plugin::PodTopologySpread => matches!(
            event,
            NodeAdded
                | NodeRemoved
                | NodeLabels
                | NodeTaints
                | PodAdded
                | PodChanged
                | PodRemoved
                | Grouping
        ),
        Plugin::InterPodAffinity => {
            matches!(event, NodeAdded | NodeLabels | PodAdded | PodChanged | PodRemoved | Grouping)
        }
        Plugin::NodeDeclaredFeatures => matches!(event, NodeAdded | NodeOther),
        Plugin::MachinePlacement => {
            matches!(event, NodeAdded | NodeResources | PodRemoved | PodChanged | Machine)
        }
        // The events that help these plugins are unknown.
        Plugin::SchedulingGates
        | Plugin::DynamicResources
        | Plugin::DefaultPreemption
        | Plugin::NodeResourcesBalancedAllocation
        | Plugin::ImageLocality => true,
    }
}

/// The order of pods: the highest priority first, then the earliest.
type QueueKey = (std::cmp::Reverse<i32>, u64);

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Active,
    BackingOff {
        until: Milliseconds,
    },
    Unschedulable {
        since: Milliseconds,
    },
    Gated,
    /// In an attempt that started after this number of events.
    InFlight {
        events: u64,
    },
}

#[derive(Debug, Clone)]
struct QueuedPod {
    key: QueueKey,
    attempts: u32,
    /// The plugins that rejected the last attempt; empty before the first one, or if there was no
    /// node.
    rejected_by: Vec<Plugin>,
    failed_at: Milliseconds,
    state: State,
}

/// Pods that wait for a node.
#[derive(Debug, Default)]
pub struct Queue {
    backoff: BackoffConfig,
    pods: HashMap<Arc<str>, QueuedPod>,
    active: BTreeMap<QueueKey, Arc<str>>,
    backing_off: BTreeSet<(Milliseconds, Arc<str>)>,
    unschedulable: BTreeSet<(Milliseconds, Arc<str>)>,
    /// Pods in an attempt, by the number of events at its start, so that events are matched without
    /// iterating over all pods.
    in_flight: BTreeSet<(u64, Arc<str>)>,
    gated: usize,
    arrivals: u64,
    events: u64,
    /// The events since the start of the oldest running attempt.
    recent: Vec<(u64, Event)>,
}

/// The number of pods in each state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueLengths {
    pub active: usize,
    pub backing_off: usize,
    pub unschedulable: usize,
    pub gated: usize,
    pub in_flight: usize,
}

impl Queue {
    #[must_use]
    pub fn new(backoff: BackoffConfig) -> Queue {
        Queue { backoff, ..Queue::default() }
    }

    /// Adds a pod, or updates its priority and gates. A waiting pod keeps its arrival order.
    pub fn add(&mut self, pod: &str, priority: i32, gated: bool) {
        let order = match self.pods.get(pod) {
            Some(queued) => queued.key.1,
            None => {
                self.arrivals += 1;
                self.arrivals
            }
        };
        let key = (std::cmp::Reverse(priority), order);
        let state = match self.pods.get(pod).map(|w| &w.state) {
            _ if gated => State::Gated,
            None | Some(State::Gated) => State::Active,
            Some(state) => state.clone(),
        };
        let (attempts, rejected_by, failed_at) = match self.take_pod(pod) {
            Some(old) => (old.attempts, old.rejected_by, old.failed_at),
            None => (0, Vec::new(), 0),
        };
        self.insert_pod(pod.into(), QueuedPod { key, attempts, rejected_by, failed_at, state });
    }

    /// Removes a pod that is gone or bound.
    pub fn remove(&mut self, pod: &str) {
        self.take_pod(pod);
        self.forget_events();
    }

    /// Returns the next pod to attempt.
    pub fn pop(&mut self, now: Milliseconds) -> Option<Arc<str>> {
        self.advance(now);
        let (_, pod) = self.active.pop_first()?;
        if let Some(queued) = self.pods.get_mut(&pod) {
            queued.attempts += 1;
            queued.state = State::InFlight { events: self.events };
            self.in_flight.insert((self.events, pod.clone()));
        }
        Some(pod)
    }

    /// Records a failed attempt. Without a rejecting plugin (no node, or an error) the pod just
    /// backs off.
    pub fn failed(&mut self, pod: &str, rejected_by: &[Plugin], now: Milliseconds) {
        let Some(mut queued) = self.take_pod(pod) else { return };
        let since = match queued.state {
            State::InFlight { events } => events,
            _ => self.events,
        };
        queued.rejected_by = rejected_by.to_vec();
        queued.failed_at = now;
        let missed = self.recent.iter().filter(|(number, _)| *number > since);
        let helped =
            missed.into_iter().any(|(_, event)| rejected_by.iter().any(|p| could_help(*p, *event)));
        queued.state = if helped || rejected_by.is_empty() {
            self.after_failure(&queued)
        } else {
            State::Unschedulable { since: now }
        };
        self.insert_pod(pod.into(), queued);
        self.forget_events();
    }

    /// Records an event: pods that it could help are retried after their back-off.
    pub fn on_event(&mut self, event: Event, now: Milliseconds) {
        self.events += 1;
        if !self.in_flight.is_empty() {
            self.recent.push((self.events, event));
        }
        let helped = |queue: &Queue, pod: &Arc<str>| {
            let rejected_by = queue.pods.get(pod).map(|w| w.rejected_by.as_slice());
            rejected_by.is_some_and(|by| by.iter().any(|plugin| could_help(*plugin, event)))
        };
        let pods: Vec<Arc<str>> = self.unschedulable.iter().map(|(_, pod)| pod.clone()).collect();
        for pod in pods {
            if helped(self, &pod) {
                self.retry(&pod);
            }
        }
        self.advance(now);
    }

    /// Returns the time at which a pod becomes due without an event.
    #[must_use]
    pub fn next_due(&self) -> Option<Milliseconds> {
        let flush = self.unschedulable.first();
        let flush = flush.map(|(since, _)| since.saturating_add(self.backoff.unschedulable));
        let backoff = self.backing_off.first().map(|(until, _)| *until);
        backoff.into_iter().chain(flush).min()
    }

    #[must_use]
    pub fn lengths(&self) -> QueueLengths {
        QueueLengths {
            active: self.active.len(),
            backing_off: self.backing_off.len(),
            unschedulable: self.unschedulable.len(),
            gated: self.gated,
            in_flight: self.in_flight.len(),
        }
    }

    /// Advances time: pods whose back-off is over become active, and pods that were unschedulable
    /// for too long are retried.
    fn advance(&mut self, now: Milliseconds) {
        while let Some((since, pod)) = self.unschedulable.first().cloned() {
            if since.saturating_add(self.backoff.unschedulable) > now {
                break;
            }
            self.retry(&pod);
        }
        while let Some((until, pod)) = self.backing_off.first().cloned() {
            if until > now {
                break;
            }
            self.change(&pod, |_, _| State::Active);
        }
    }

    fn retry(&mut self, pod: &str) {
        self.change(pod, |queue, queued| queue.after_failure(queued));
    }

    fn after_failure(&self, queued: &QueuedPod) -> State {
        let doublings = queued.attempts.saturating_sub(1).min(30);
        let wait = self.backoff.first_backoff.saturating_mul(1 << doublings);
        let wait = wait.min(self.backoff.longest_backoff);
        State::BackingOff { until: queued.failed_at.saturating_add(wait) }
    }

    fn change(&mut self, pod: &str, to: impl Fn(&Queue, &QueuedPod) -> State) {
        if let Some(mut queued) = self.take_pod(pod) {
            queued.state = to(self, &queued);
            self.insert_pod(pod.into(), queued);
        }
    }

    fn insert_pod(&mut self, pod: Arc<str>, queued: QueuedPod) {
        match queued.state {
            State::Active => {
                self.active.insert(queued.key, pod.clone());
            }
            State::BackingOff { until } => {
                self.backing_off.insert((until, pod.clone()));
            }
            State::Unschedulable { since } => {
                self.unschedulable.insert((since, pod.clone()));
            }
            State::Gated => self.gated += 1,
            State::InFlight { events } => {
                self.in_flight.insert((events, pod.clone()));
            }
        }
        self.pods.insert(pod, queued);
    }

    fn take_pod(&mut self, pod: &str) -> Option<QueuedPod> {
        let (key, queued) = self.pods.remove_entry(pod)?;
        match queued.state {
            State::Active => {
                self.active.remove(&queued.key);
            }
            State::BackingOff { until } => {
                self.backing_off.remove(&(until, key));
            }
            State::Unschedulable { since } => {
                self.unschedulable.remove(&(since, key));
            }
            State::Gated => self.gated -= 1,
            State::InFlight { events } => {
                self.in_flight.remove(&(events, key));
            }
        }
        Some(queued)
    }

    /// Drops events that no running attempt has missed.
    fn forget_events(&mut self) {
        match self.in_flight.first() {
            None => self.recent.clear(),
            Some((oldest, _)) => {
                let seen = self.recent.partition_point(|(number, _)| number <= oldest);
                self.recent.drain(..seen);
            }
        }
    }
}
