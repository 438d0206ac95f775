//! The state machine of the scheduler: [`SchedulerState`] takes informer events and returns the
//! next action.
//!
//! The `scheduling` crate selects nodes and orders pods. This file keeps it in step with the API
//! and with the results of earlier decisions. It awaits nothing and reads no clock.

use std::collections::HashMap;

use client::{Change, Key};
use scheduling::queue::{BackoffConfig, Event, Queue};
use scheduling::{
    AttemptError, MachineView, Milliseconds, Nomination, Outcome, ProfileError, Scheduler,
    Settings, Tie,
};
use serde_json::Value;

use super::projection::{NodeFingerprint, ObservedNode, ObservedPod, PodState};
use crate::counters::PendingPods;
use crate::supervise::{PanicMessage, catch_panic_sync};

/// A change from an informer.
#[derive(Debug)]
pub(crate) enum InformerEvent {
    Pods(Change<ObservedPod>),
    Nodes(Change<ObservedNode>),
    /// Namespaces, budgets, services and replica sets, by their kind.
    Groupings(GroupingKind, Change<Value>),
}

/// A kind whose objects group pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum GroupingKind {
    Namespace,
    Service,
    Budget,
    ReplicaSet,
}

impl GroupingKind {
    pub(crate) const ALL: [GroupingKind; 4] = [
        GroupingKind::Namespace,
        GroupingKind::Service,
        GroupingKind::Budget,
        GroupingKind::ReplicaSet,
    ];

    fn name(self) -> &'static str {
        match self {
            GroupingKind::Namespace => "Namespace",
            GroupingKind::Service => "Service",
            GroupingKind::Budget => "PodDisruptionBudget",
            GroupingKind::ReplicaSet => "ReplicaSet",
        }
    }
}

/// A pod or node, with its uid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectRef {
    pub(crate) key: Key,
    pub(crate) uid: String,
}

/// An action for the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    Bind {
        pod: ObjectRef,
        node: String,
    },
    Refuse(Box<Refusal>),
    /// The attempt panicked. The pod is retried after its back-off.
    Failed {
        pod: ObjectRef,
        panicked: PanicMessage,
    },
}

/// A pod for which no node was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) pod: ObjectRef,
    /// The generation of the pod in this attempt.
    pub(crate) generation: i64,
    pub(crate) message: String,
    /// The message, cut to the size of an event.
    pub(crate) event_message: String,
    /// The condition differs from the one in the pod's status.
    pub(crate) is_news: bool,
    /// The new nominated node, if it changed; empty to clear it.
    pub(crate) nominated: Option<String>,
    /// Pods to preempt, the most important first, and their node.
    pub(crate) victims: Vec<ObjectRef>,
    pub(crate) victims_on: String,
    /// Pods that lose their nomination to the node.
    pub(crate) displaced: Vec<ObjectRef>,
}

/// A node with an invalid machine report. It is scheduled to as if it had no report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InvalidReport {
    pub(crate) node: ObjectRef,
    pub(crate) message: String,
}

/// The cluster, the queue, and the state of pods between attempts.
#[derive(Debug)]
pub(crate) struct SchedulerState {
    scheduler: Scheduler,
    queue: Queue,
    pods: HashMap<Key, PodState>,
    nodes: HashMap<Key, NodeFingerprint>,
    groupings: HashMap<(GroupingKind, Key), ()>,
    invalid_reports: Vec<InvalidReport>,
    /// Kinds that have not been listed yet, one bit each: pods, nodes and the grouping kinds.
    missing: u32,
    attempts: u64,
}

impl SchedulerState {
    pub(crate) fn new(
        settings: &Settings,
        backoff: BackoffConfig,
    ) -> Result<SchedulerState, ProfileError> {
        Ok(SchedulerState {
            scheduler: Scheduler::new(settings)?,
            queue: Queue::new(backoff),
            pods: HashMap::new(),
            nodes: HashMap::new(),
            groupings: HashMap::new(),
            invalid_reports: Vec::new(),
            missing: (1 << (2 + GroupingKind::ALL.len())) - 1,
            attempts: 0,
        })
    }

    /// Returns true if every kind that decisions depend on has been listed.
    pub(crate) fn is_ready(&self) -> bool {
        self.missing == 0
    }

    pub(crate) fn next_due(&self) -> Option<Milliseconds> {
        self.queue.next_due()
    }

    pub(crate) fn pending(&self) -> PendingPods {
        let lengths = self.queue.lengths();
        PendingPods {
            active: lengths.active,
            backoff: lengths.backing_off,
            unschedulable: lengths.unschedulable,
            gated: lengths.gated,
        }
    }

    pub(crate) fn observe(&mut self, projection: InformerEvent, now: Milliseconds) {
        match projection {
            InformerEvent::Pods(change) => {
                let known: Vec<Key> = match &change {
                    Change::Replaced { .. } => self.pods.keys().cloned().collect(),
                    _ => Vec::new(),
                };
                each(change, known, |key, pod| match pod {
                    Some(pod) => self.pod_changed(key, &pod, now),
                    None => self.pod_removed(&key, now),
                })
                .then(|| self.missing &= !1);
            }
            InformerEvent::Nodes(change) => {
                let known: Vec<Key> = match &change {
                    Change::Replaced { .. } => self.nodes.keys().cloned().collect(),
                    _ => Vec::new(),
                };
                each(change, known, |key, node| match node {
                    Some(node) => self.node_changed(key, &node, now),
                    None => self.node_removed(&key, now),
                })
                .then(|| self.missing &= !2);
            }
            InformerEvent::Groupings(kind, change) => {
                let known: Vec<Key> = match &change {
                    Change::Replaced { .. } => {
                        let same = self.groupings.keys().filter(|(other, _)| *other == kind);
                        same.map(|(_, key)| key.clone()).collect()
                    }
                    _ => Vec::new(),
                };
                each(change, known, |key, object| self.grouping_changed(kind, key, object, now))
                    .then(|| self.missing &= !(4 << (kind as u32)));
            }
        }
    }

    fn pod_changed(&mut self, key: Key, pod: &ObservedPod, now: Milliseconds) {
        let state = &pod.state;
        if state.ended {
            self.pod_removed(&key, now);
            return;
        }
        let old = self.pods.get(&key);
        if old.is_some_and(|old| old.uid != state.uid) {
            self.pod_removed(&key, now);
        }
        let old = self.pods.get(&key).cloned();
        // An unreadable pod keeps its last state; its agent reports the error.
        if self.scheduler.cluster_mut().apply_pod_object(&pod.object).is_err() {
            return;
        }
        if state.bound {
            if old.as_ref().is_none_or(|old| !old.bound) {
                self.queue.remove(key.as_str());
                self.queue.on_event(Event::PodAdded, now);
            } else if old.as_ref().is_some_and(|old| old.fingerprint != state.fingerprint) {
                self.queue.on_event(Event::PodChanged, now);
            }
        } else if !state.ours || state.ending {
            self.queue.remove(key.as_str());
        } else if old
            .as_ref()
            .is_none_or(|old| (old.gated, old.priority) != (state.gated, state.priority))
        {
            self.queue.add(key.as_str(), state.priority, state.gated);
        }
        self.pods.insert(key, state.clone());
    }

    fn pod_removed(&mut self, key: &Key, now: Milliseconds) {
        let Some(state) = self.pods.remove(key) else { return };
        // A nominated pod kept other pods off its node.
        let counted = state.bound
            || self.scheduler.cluster().nominated_node_of(key.as_str()).is_some()
            || self.scheduler.cluster().node_of(key.as_str()).is_some();
        self.scheduler.cluster_mut().remove_pod(key.as_str());
        self.queue.remove(key.as_str());
        if counted {
            self.queue.on_event(Event::PodRemoved, now);
        }
    }

    fn node_changed(&mut self, key: Key, node: &ObservedNode, now: Milliseconds) {
        if self.scheduler.cluster_mut().apply_node_object(&node.object).is_err() {
            return;
        }
        let new = node.fingerprint;
        let old = self.nodes.get(&key).copied();
        if old.and_then(|old| old.machine) != new.machine {
            self.machine_changed(&key, node);
        }
        self.nodes.insert(key, new);
        let Some(old) = old else {
            self.queue.on_event(Event::NodeAdded, now);
            return;
        };
        for (changed, event) in [
            (old.machine != new.machine, Event::Machine),
            (old.resources != new.resources, Event::NodeResources),
            (old.labels != new.labels, Event::NodeLabels),
            (old.taints != new.taints, Event::NodeTaints),
            (old.other != new.other, Event::NodeOther),
        ] {
            if changed {
                self.queue.on_event(event, now);
            }
        }
    }

    /// Parses a changed machine report of a node.
    fn machine_changed(&mut self, key: &Key, node: &ObservedNode) {
        let machine =
            MachineView::parse(&node.object.metadata.annotations).unwrap_or_else(|error| {
                let node_ref =
                    ObjectRef { key: key.clone(), uid: node.object.metadata.uid.clone() };
                self.invalid_reports
                    .push(InvalidReport { node: node_ref, message: error.to_string() });
                None
            });
        self.scheduler.cluster_mut().set_machine(key.as_str(), machine);
    }

    /// Returns the new invalid reports, each once.
    pub(crate) fn take_invalid_reports(&mut self) -> Vec<InvalidReport> {
        std::mem::take(&mut self.invalid_reports)
    }

    fn node_removed(&mut self, key: &Key, now: Milliseconds) {
        if self.nodes.remove(key).is_some() {
            self.scheduler.cluster_mut().remove_node(key.as_str());
            self.queue.on_event(Event::NodeRemoved, now);
        }
    }

    fn grouping_changed(
        &mut self,
        kind: GroupingKind,
        key: Key,
        object: Option<Value>,
        now: Milliseconds,
    ) {
        let cluster = self.scheduler.cluster_mut();
        match object {
            Some(object) => {
                let taken = match kind {
                    GroupingKind::Namespace => cluster.apply_namespace(&object),
                    GroupingKind::Service => cluster.apply_service(&object),
                    GroupingKind::Budget => cluster.apply_budget(&object),
                    GroupingKind::ReplicaSet => cluster.apply_controller("ReplicaSet", &object),
                };
                if taken.is_err() || self.groupings.insert((kind, key), ()).is_some() {
                    return;
                }
            }
            None => {
                cluster.remove_other(kind.name(), key.namespace(), key.name());
                self.groupings.remove(&(kind, key));
            }
        }
        self.queue.on_event(Event::Grouping, now);
    }

    /// Attempts the next pod of the queue. The decision takes effect at once.
    pub(crate) fn decide(&mut self, now: Milliseconds) -> Option<Action> {
        loop {
            let name = self.queue.pop(now)?;
            let key = key_of(&name);
            let Some(state) = self.pods.get(&key) else {
                self.queue.remove(&name);
                continue;
            };
            let pod = ObjectRef { key: key.clone(), uid: state.uid.to_string() };
            self.attempts += 1;
            let tie = Tie::Seed(self.attempts);
            let scheduler = &mut self.scheduler;
            let attempt = match catch_panic_sync(|| scheduler.attempt(&name, tie)) {
                Ok(Ok(attempt)) => attempt,
                Ok(Err(AttemptError::UnknownPod(_) | AttemptError::HasNode { .. })) => {
                    self.queue.remove(&name);
                    continue;
                }
                Err(panicked) => {
                    self.queue.failed(&name, &[], now);
                    return Some(Action::Failed { pod, panicked });
                }
            };
            self.scheduler.adopt(&attempt);
            match attempt.outcome {
                Outcome::Scheduled(choice) => return Some(Action::Bind { pod, node: choice.node }),
                Outcome::Gated => {
                    self.queue.add(&name, state.priority, true);
                }
                Outcome::Unschedulable(failure) => {
                    self.queue.failed(&name, &failure.plugins, now);
                    let same = state.rejected_condition.as_ref().is_some_and(|rejected| {
                        rejected.reason == "Unschedulable"
                            && rejected.message == failure.message
                            && rejected.observed_generation == state.generation
                    });
                    let nominated = match &failure.nomination {
                        Nomination::Unchanged => None,
                        Nomination::None => Some(String::new()),
                        Nomination::To(node) => Some(node.clone()),
                    };
                    let nominated = nominated.filter(|node| **node != *state.nominated);
                    let preemption = failure.preemption.clone().unwrap_or_default();
                    return Some(Action::Refuse(Box::new(Refusal {
                        pod,
                        generation: state.generation,
                        event_message: failure.event_message(),
                        is_news: !same || nominated.is_some(),
                        nominated,
                        victims: self.named(&preemption.victims),
                        victims_on: preemption.nominated.unwrap_or_default(),
                        displaced: self.named(&preemption.displaced),
                        message: failure.message,
                    })));
                }
            }
        }
    }

    fn named(&self, pods: &[String]) -> Vec<ObjectRef> {
        let known = pods.iter().filter_map(|pod| {
            let key = key_of(pod);
            let uid = self.pods.get(&key)?.uid.to_string();
            Some(ObjectRef { key, uid })
        });
        known.collect()
    }

    /// Records a successful binding; the informer will deliver the bound pod.
    pub(crate) fn bound(&mut self, pod: &Key) {
        self.queue.remove(pod.as_str());
    }

    /// Records a failed binding: releases the node and retries the pod later.
    pub(crate) fn binding_failed(&mut self, pod: &ObjectRef, now: Milliseconds) {
        let same = self.pods.get(&pod.key).is_some_and(|state| *state.uid == *pod.uid);
        if same && self.pods.get(&pod.key).is_some_and(|state| !state.bound) {
            self.scheduler.cluster_mut().forget(pod.key.as_str());
            self.queue.failed(pod.key.as_str(), &[], now);
            self.queue.on_event(Event::PodRemoved, now);
        }
    }
}

fn key_of(pod: &str) -> Key {
    let (namespace, name) = pod.split_once('/').unwrap_or(("", pod));
    Key::new(namespace, name)
}

/// Calls `take` for each object of a change, with `None` for a removed one. Returns true if the
/// change was a complete list; `known` objects that are not in it are removed.
fn each<T>(change: Change<T>, known: Vec<Key>, mut take: impl FnMut(Key, Option<T>)) -> bool {
    match change {
        Change::Replaced { all, .. } => {
            let mut gone: std::collections::HashSet<Key> = known.into_iter().collect();
            for (key, ..) in &all {
                gone.remove(key);
            }
            for key in gone {
                take(key, None);
            }
            for (key, _, object) in all {
                take(key, Some(object));
            }
            true
        }
        Change::Applied { key, object, .. } => {
            take(key, Some(object));
            false
        }
        Change::Removed { key, .. } => {
            take(key, None);
            false
        }
        Change::Bookmark { .. } => false,
    }
}

#[cfg(test)]
mod tests;
