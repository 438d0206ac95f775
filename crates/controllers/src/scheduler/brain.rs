//! The scheduler loop without its hands: [`Brain`] takes in what changed and says what to do next.
//!
//! Deciding where a pod goes is `scheduling`'s, and so is whose turn it is; here the two are kept in
//! step with what the API tells and with what became of earlier decisions. Nothing is awaited, no
//! clock is read.

use std::collections::HashMap;

use client::{Change, Key};
use scheduling::queue::{Event, Patience, Queue};
use scheduling::{
    AttemptError, MachineView, Milliseconds, Nomination, Outcome, ProfileError, Scheduler,
    Settings, Tie,
};
use serde_json::Value;

use super::observed::{NodeFacets, PodFacts, SeenNode, SeenPod};
use crate::counters::PendingPods;
use crate::supervise::{Panicked, caught_now};

/// What came from the API.
#[derive(Debug)]
pub(crate) enum Observed {
    Pods(Change<SeenPod>),
    Nodes(Change<SeenNode>),
    /// Namespaces, budgets, services and replica sets, by their kind.
    Others(Other, Change<Value>),
}

/// A kind that decides who belongs together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Other {
    Namespace,
    Service,
    Budget,
    ReplicaSet,
}

impl Other {
    pub(crate) const ALL: [Other; 4] =
        [Other::Namespace, Other::Service, Other::Budget, Other::ReplicaSet];

    fn name(self) -> &'static str {
        match self {
            Other::Namespace => "Namespace",
            Other::Service => "Service",
            Other::Budget => "PodDisruptionBudget",
            Other::ReplicaSet => "ReplicaSet",
        }
    }
}

/// A pod or node and which of that name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Who {
    pub(crate) key: Key,
    pub(crate) uid: String,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    Bind {
        pod: Who,
        node: String,
    },
    Refuse(Box<Refusal>),
    /// The attempt panicked. The pod is tried again after its back-off.
    Failed {
        pod: Who,
        panicked: Panicked,
    },
}

/// A pod that found no node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) pod: Who,
    /// The generation of the pod that was looked at.
    pub(crate) generation: i64,
    pub(crate) message: String,
    /// Cut to what an event can hold.
    pub(crate) event_message: String,
    /// Whether the condition says something else than it did.
    pub(crate) is_news: bool,
    /// The node it waits for from now on, if that has changed; empty for none.
    pub(crate) nominated: Option<String>,
    /// Pods that make room, the most important first, and where.
    pub(crate) victims: Vec<Who>,
    pub(crate) victims_on: String,
    /// Pods that no longer wait for the node.
    pub(crate) displaced: Vec<Who>,
}

/// A node whose report cannot be used: it is scheduled to as if it told nothing of its machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Complaint {
    pub(crate) node: Who,
    pub(crate) message: String,
}

/// The cluster, the queue, and what is known of pods beside.
#[derive(Debug)]
pub(crate) struct Brain {
    scheduler: Scheduler,
    queue: Queue,
    pods: HashMap<Key, PodFacts>,
    nodes: HashMap<Key, NodeFacets>,
    others: HashMap<(Other, Key), ()>,
    complaints: Vec<Complaint>,
    /// Kinds that have not been listed yet: pods, nodes and the others.
    missing: u32,
    attempts: u64,
}

impl Brain {
    pub(crate) fn new(settings: &Settings, patience: Patience) -> Result<Brain, ProfileError> {
        Ok(Brain {
            scheduler: Scheduler::new(settings)?,
            queue: Queue::new(patience),
            pods: HashMap::new(),
            nodes: HashMap::new(),
            others: HashMap::new(),
            complaints: Vec::new(),
            missing: (1 << (2 + Other::ALL.len())) - 1,
            attempts: 0,
        })
    }

    /// Whether everything has been listed that decisions depend on.
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

    pub(crate) fn observe(&mut self, observed: Observed, now: Milliseconds) {
        match observed {
            Observed::Pods(change) => {
                let known: Vec<Key> = match &change {
                    Change::Replaced { .. } => self.pods.keys().cloned().collect(),
                    _ => Vec::new(),
                };
                each(change, known, |key, pod| match pod {
                    Some(pod) => self.pod_seen(key, &pod, now),
                    None => self.pod_gone(&key, now),
                })
                .then(|| self.missing &= !1);
            }
            Observed::Nodes(change) => {
                let known: Vec<Key> = match &change {
                    Change::Replaced { .. } => self.nodes.keys().cloned().collect(),
                    _ => Vec::new(),
                };
                each(change, known, |key, node| match node {
                    Some(node) => self.node_seen(key, &node, now),
                    None => self.node_gone(&key, now),
                })
                .then(|| self.missing &= !2);
            }
            Observed::Others(kind, change) => {
                let known: Vec<Key> = match &change {
                    Change::Replaced { .. } => {
                        let same = self.others.keys().filter(|(other, _)| *other == kind);
                        same.map(|(_, key)| key.clone()).collect()
                    }
                    _ => Vec::new(),
                };
                each(change, known, |key, object| self.other_seen(kind, key, object, now))
                    .then(|| self.missing &= !(4 << (kind as u32)));
            }
        }
    }

    fn pod_seen(&mut self, key: Key, pod: &SeenPod, now: Milliseconds) {
        let facts = &pod.facts;
        if facts.ended {
            self.pod_gone(&key, now);
            return;
        }
        let old = self.pods.get(&key);
        if old.is_some_and(|old| old.uid != facts.uid) {
            self.pod_gone(&key, now);
        }
        let old = self.pods.get(&key).cloned();
        // A pod that cannot be read is left where it is: its agent will say what is wrong with it.
        if self.scheduler.cluster_mut().apply_pod_object(&pod.object).is_err() {
            return;
        }
        if facts.bound {
            if old.as_ref().is_none_or(|old| !old.bound) {
                self.queue.remove(key.as_str());
                self.queue.happened(Event::PodAdded, now);
            } else if old.as_ref().is_some_and(|old| old.fingerprint != facts.fingerprint) {
                self.queue.happened(Event::PodChanged, now);
            }
        } else if !facts.ours || facts.ending {
            self.queue.remove(key.as_str());
        } else if old
            .as_ref()
            .is_none_or(|old| (old.gated, old.priority) != (facts.gated, facts.priority))
        {
            self.queue.add(key.as_str(), facts.priority, facts.gated);
        }
        self.pods.insert(key, facts.clone());
    }

    fn pod_gone(&mut self, key: &Key, now: Milliseconds) {
        let Some(facts) = self.pods.remove(key) else { return };
        // One that waited for a node kept others away from it.
        let counted = facts.bound
            || self.scheduler.cluster().nominated_node_of(key.as_str()).is_some()
            || self.scheduler.cluster().node_of(key.as_str()).is_some();
        self.scheduler.cluster_mut().remove_pod(key.as_str());
        self.queue.remove(key.as_str());
        if counted {
            self.queue.happened(Event::PodRemoved, now);
        }
    }

    fn node_seen(&mut self, key: Key, node: &SeenNode, now: Milliseconds) {
        if self.scheduler.cluster_mut().apply_node_object(&node.object).is_err() {
            return;
        }
        let new = node.facets;
        let old = self.nodes.get(&key).copied();
        if old.and_then(|old| old.machine) != new.machine {
            self.machine_told(&key, node);
        }
        self.nodes.insert(key, new);
        let Some(old) = old else {
            self.queue.happened(Event::NodeAdded, now);
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
                self.queue.happened(event, now);
            }
        }
    }

    /// Takes in what a node tells of its machine, now that it is something else than before.
    fn machine_told(&mut self, key: &Key, node: &SeenNode) {
        let machine = MachineView::parse(&node.report.texts()).unwrap_or_else(|error| {
            let who = Who { key: key.clone(), uid: node.uid.to_string() };
            self.complaints.push(Complaint { node: who, message: error.to_string() });
            None
        });
        self.scheduler.cluster_mut().set_machine(key.as_str(), machine);
    }

    /// What nodes are to be told, each complaint once.
    pub(crate) fn take_complaints(&mut self) -> Vec<Complaint> {
        std::mem::take(&mut self.complaints)
    }

    fn node_gone(&mut self, key: &Key, now: Milliseconds) {
        if self.nodes.remove(key).is_some() {
            self.scheduler.cluster_mut().remove_node(key.as_str());
            self.queue.happened(Event::NodeRemoved, now);
        }
    }

    fn other_seen(&mut self, kind: Other, key: Key, object: Option<Value>, now: Milliseconds) {
        let cluster = self.scheduler.cluster_mut();
        match object {
            Some(object) => {
                let taken = match kind {
                    Other::Namespace => cluster.apply_namespace(&object),
                    Other::Service => cluster.apply_service(&object),
                    Other::Budget => cluster.apply_budget(&object),
                    Other::ReplicaSet => cluster.apply_controller("ReplicaSet", &object),
                };
                if taken.is_err() || self.others.insert((kind, key), ()).is_some() {
                    return;
                }
            }
            None => {
                cluster.remove_other(kind.name(), key.namespace(), key.name());
                self.others.remove(&(kind, key));
            }
        }
        self.queue.happened(Event::Grouping, now);
    }

    /// Tries the pod whose turn it is. Its decision counts from now on.
    pub(crate) fn decide(&mut self, now: Milliseconds) -> Option<Action> {
        loop {
            let name = self.queue.pop(now)?;
            let key = key_of(&name);
            let Some(facts) = self.pods.get(&key) else {
                self.queue.remove(&name);
                continue;
            };
            let pod = Who { key: key.clone(), uid: facts.uid.to_string() };
            self.attempts += 1;
            let tie = Tie::Seed(self.attempts);
            let scheduler = &mut self.scheduler;
            let attempt = match caught_now(|| scheduler.attempt(&name, tie)) {
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
                    self.queue.add(&name, facts.priority, true);
                }
                Outcome::Unschedulable(failure) => {
                    self.queue.failed(&name, &failure.plugins, now);
                    let same = facts.refused.as_ref().is_some_and(|refused| {
                        *refused.reason == *"Unschedulable"
                            && *refused.message == *failure.message
                            && refused.observed_generation == facts.generation
                    });
                    let nominated = match &failure.nomination {
                        Nomination::Unchanged => None,
                        Nomination::None => Some(String::new()),
                        Nomination::To(node) => Some(node.clone()),
                    };
                    let nominated = nominated.filter(|node| **node != *facts.nominated);
                    let preemption = failure.preemption.clone().unwrap_or_default();
                    return Some(Action::Refuse(Box::new(Refusal {
                        pod,
                        generation: facts.generation,
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

    fn named(&self, pods: &[String]) -> Vec<Who> {
        let known = pods.iter().filter_map(|pod| {
            let key = key_of(pod);
            let uid = self.pods.get(&key)?.uid.to_string();
            Some(Who { key, uid })
        });
        known.collect()
    }

    /// A pod has been bound; the API will say so again.
    pub(crate) fn bound(&mut self, pod: &Key) {
        self.queue.remove(pod.as_str());
    }

    /// A pod could not be bound: its node is free again, and it is tried later.
    pub(crate) fn not_bound(&mut self, pod: &Who, now: Milliseconds) {
        let same = self.pods.get(&pod.key).is_some_and(|facts| *facts.uid == *pod.uid);
        if same && self.pods.get(&pod.key).is_some_and(|facts| !facts.bound) {
            self.scheduler.cluster_mut().forget(pod.key.as_str());
            self.queue.failed(pod.key.as_str(), &[], now);
            self.queue.happened(Event::PodRemoved, now);
        }
    }
}

fn key_of(pod: &str) -> Key {
    let (namespace, name) = pod.split_once('/').unwrap_or(("", pod));
    Key::new(namespace, name)
}

/// Hands on what a change says of each object; whether it was a whole list. What is `known` and not in
/// the list is gone.
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
