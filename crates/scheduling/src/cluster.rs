//! The cluster state for scheduling: nodes, pods and the objects that select pods, updated one
//! object at a time.
//!
//! Main type: [`Cluster`]. It updates sums per node and counts per shape with every change, so that
//! an attempt iterates over nodes and shapes, never over all pods. It records the current state;
//! [`crate::Scheduler`] makes decisions.

use std::collections::HashMap;
use std::sync::Arc;

use objects::types;
use serde_json::Value;
use thiserror::Error;

use crate::classes::NodeClasses;
use crate::interner::{Interner, Symbol};
use crate::labels::Selector;
use crate::machine::{Machine, MachineView};
use crate::node::{NodeState, NodeView, Occupancy};
use crate::object::{Controller, PersistentVolume, PersistentVolumeClaim, StorageClass};
use crate::shape::PodShape;
use crate::shape_index::{ShapeId, ShapeIndex};
use crate::taints::{self, Taint};
use crate::time;
use crate::volumes::Volumes;
use crate::workloads::Workloads;

/// The reason why an object is rejected.
#[derive(Debug, Error)]
pub enum ObjectError {
    #[error("failed to parse the {kind}")]
    Unreadable { kind: &'static str, source: serde_json::Error },
    #[error("the {kind} has no name")]
    Nameless { kind: &'static str },
}

/// A pod, by its position in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PodId(pub(crate) u32);

/// The part of a pod that is not shared with others of its shape.
#[derive(Debug)]
pub(crate) struct PodEntry {
    /// `namespace/name`.
    pub(crate) key: Arc<str>,
    pub(crate) uid: Box<str>,
    pub(crate) shape: ShapeId,
    /// Its node, which may be unknown.
    pub(crate) node: Option<Symbol>,
    pub(crate) slot: Option<u32>,
    pub(crate) nominated: Option<Symbol>,
    pub(crate) started: Option<time::Milliseconds>,
    pub(crate) gates: Box<[Box<str>]>,
    /// It is being deleted.
    pub(crate) ending: bool,
    /// It is being deleted by preemption.
    pub(crate) preempted: bool,
    /// It was assumed on its node, and the API has not confirmed it yet.
    assumed: bool,
}

impl PodEntry {
    pub(crate) fn name(&self) -> &str {
        self.key.split_once('/').map_or(&self.key, |(_, name)| name)
    }
}

/// An image and the nodes that have it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ImageSpread {
    /// As the first node with the image reports it.
    pub(crate) size: i64,
    pub(crate) nodes: usize,
}

/// Interner that are used in every attempt.
#[derive(Debug, Clone)]
pub(crate) struct WellKnownSymbols {
    pub(crate) hostname: Symbol,
    pub(crate) unschedulable: Taint,
    pub(crate) everything: Selector,
}

/// Nodes, pods and the objects that select pods.
#[derive(Debug)]
pub struct Cluster {
    pub(crate) symbols: Interner,
    pub(crate) known: WellKnownSymbols,
    /// Boxed, so that iterating over the list does not touch every node.
    nodes: Vec<Option<Box<NodeState>>>,
    slots: HashMap<Symbol, u32>,
    free_slots: Vec<u32>,
    /// Slots in the order in which nodes were added.
    pub(crate) order: Vec<u32>,
    /// By slot: the last change of the node.
    pub(crate) changed: Vec<u64>,
    /// By slot: true if pods are nominated to the node.
    pub(crate) awaited: Vec<bool>,
    clock: u64,
    /// The QoS classes that nodes offer, each distinct set once.
    offers: Vec<Arc<NodeClasses>>,
    /// Changes with the nodes' objects, not with their pods.
    pub(crate) nodes_epoch: u64,
    pods: Vec<Option<PodEntry>>,
    free_pods: Vec<PodId>,
    ids: HashMap<Arc<str>, PodId>,
    /// Pods nominated to a node of this name, known or unknown.
    nominees: HashMap<Symbol, Vec<PodId>>,
    /// Pods on unknown nodes.
    homeless: HashMap<Symbol, Vec<PodId>>,
    pub(crate) shapes: ShapeIndex,
    pub(crate) workloads: Workloads,
    pub(crate) volumes: Volumes,
    pub(crate) images: HashMap<Symbol, ImageSpread>,
    /// Claims by `namespace/name`: the number of volumes of pods on nodes that use them.
    claim_users: HashMap<Symbol, u32>,
}

impl Default for Cluster {
    fn default() -> Cluster {
        Cluster::new()
    }
}

impl Cluster {
    #[must_use]
    pub fn new() -> Cluster {
        let mut symbols = Interner::default();
        let known = WellKnownSymbols {
            hostname: symbols.intern("kubernetes.io/hostname"),
            unschedulable: taints::unschedulable(&mut symbols),
            everything: Selector::everything(),
        };
        Cluster {
            known,
            volumes: Volumes::new(&mut symbols),
            symbols,
            nodes: Vec::new(),
            slots: HashMap::new(),
            free_slots: Vec::new(),
            order: Vec::new(),
            changed: Vec::new(),
            awaited: Vec::new(),
            offers: Vec::new(),
            clock: 0,
            nodes_epoch: 0,
            pods: Vec::new(),
            free_pods: Vec::new(),
            ids: HashMap::new(),
            nominees: HashMap::new(),
            homeless: HashMap::new(),
            shapes: ShapeIndex::default(),
            workloads: Workloads::default(),
            images: HashMap::new(),
            claim_users: HashMap::new(),
        }
    }

    /// Returns the number of nodes.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.order.len()
    }

    /// Returns the number of pods, placed or pending.
    #[must_use]
    pub fn pod_count(&self) -> usize {
        self.ids.len()
    }

    /// Returns the number of distinct shapes and of interned strings, as a measure of memory.
    #[must_use]
    pub fn shared_counts(&self) -> (usize, usize) {
        (self.shapes.len(), self.symbols.len())
    }

    /// Returns the names of all nodes in the order in which they were added.
    pub fn node_names(&self) -> impl Iterator<Item = &str> {
        self.order.iter().map(|slot| self.node_name(*slot))
    }

    /// Returns the node that a pod is bound to or assumed on.
    #[must_use]
    pub fn node_of(&self, pod: &str) -> Option<&str> {
        let entry = self.pod(*self.ids.get(pod)?)?;
        Some(self.symbols.text(entry.node?))
    }

    /// Returns the node that a pod is nominated to.
    #[must_use]
    pub fn nominated_node_of(&self, pod: &str) -> Option<&str> {
        let entry = self.pod(*self.ids.get(pod)?)?;
        Some(self.symbols.text(entry.nominated?))
    }

    #[must_use]
    pub fn has_pod(&self, pod: &str) -> bool {
        self.ids.contains_key(pod)
    }

    /// Returns the pods of a node as `namespace/name`.
    pub fn pods_on(&self, node: &str) -> impl Iterator<Item = &str> {
        let slot = self.slot(node);
        let pods = slot.and_then(|slot| self.node(slot)).into_iter().flat_map(|n| &n.pods);
        pods.filter_map(|id| Some(&*self.pod(*id)?.key))
    }

    pub(crate) fn slot(&self, node: &str) -> Option<u32> {
        self.slots.get(&self.symbols.find(node)?).copied()
    }

    pub(crate) fn slot_of(&self, node: Symbol) -> Option<u32> {
        self.slots.get(&node).copied()
    }

    pub(crate) fn node(&self, slot: u32) -> Option<&NodeState> {
        self.nodes.get(slot as usize)?.as_deref()
    }

    pub(crate) fn slot_count(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn node_name(&self, slot: u32) -> &str {
        self.node(slot).map_or("", |node| self.symbols.text(node.view.name))
    }

    pub(crate) fn id(&self, pod: &str) -> Option<PodId> {
        self.ids.get(pod).copied()
    }

    pub(crate) fn pod(&self, id: PodId) -> Option<&PodEntry> {
        self.pods.get(id.0 as usize)?.as_ref()
    }

    /// Returns a pod with its shape.
    pub(crate) fn pod_with_shape(&self, id: PodId) -> Option<(&PodEntry, &PodShape)> {
        let entry = self.pod(id)?;
        Some((entry, &self.shapes.entry(entry.shape)?.shape))
    }

    pub(crate) fn is_claim_used(&self, claim: Symbol) -> bool {
        self.claim_users.contains_key(&claim)
    }

    fn touch(&mut self, slot: u32) {
        self.clock += 1;
        if let Some(changed) = self.changed.get_mut(slot as usize) {
            *changed = self.clock;
        }
    }
}

fn read<'a, T: serde::Deserialize<'a>>(
    kind: &'static str,
    value: &'a Value,
) -> Result<T, ObjectError> {
    T::deserialize(value).map_err(|source| ObjectError::Unreadable { kind, source })
}

/// Nodes.
impl Cluster {
    /// Adds or updates a node.
    pub fn apply_node(&mut self, node: &Value) -> Result<(), ObjectError> {
        self.apply_node_object(&read("Node", node)?)
    }

    pub fn apply_node_object(&mut self, node: &types::Node) -> Result<(), ObjectError> {
        if node.metadata.name.is_empty() {
            return Err(ObjectError::Nameless { kind: "Node" });
        }
        let mut view = NodeView::new(node, &mut self.symbols);
        // Nodes share equal class offers, so that one copy stays in the processor cache during a
        // search.
        match self.offers.iter().find(|offer| **offer == view.classes) {
            Some(offer) => view.classes = offer.clone(),
            None => self.offers.push(view.classes.clone()),
        }
        let Some(slot) = self.slot_of(view.name) else {
            self.add_node(view);
            return Ok(());
        };
        let Some(old) = self.node(slot).map(|n| n.view.clone()).filter(|old| *old != view) else {
            return Ok(());
        };
        self.count_images(&old, false);
        self.count_images(&view, true);
        let mut occupancy = Occupancy::default();
        let pods = self.node(slot).map(|n| n.pods.clone()).unwrap_or_default();
        for (_, shape) in pods.iter().filter_map(|id| self.pod_with_shape(*id)) {
            occupancy.add(shape, &view);
        }
        if let Some(Some(state)) = self.nodes.get_mut(slot as usize) {
            state.view = view;
            state.occupancy = occupancy;
        }
        self.nodes_epoch += 1;
        self.touch(slot);
        Ok(())
    }

    fn add_node(&mut self, view: NodeView) {
        let name = view.name;
        self.count_images(&view, true);
        let state = Box::new(NodeState {
            view,
            occupancy: Occupancy::default(),
            pods: Vec::new(),
            nominated: Vec::new(),
            machine: None,
        });
        let slot = match self.free_slots.pop() {
            Some(slot) => {
                self.nodes[slot as usize] = Some(state);
                slot
            }
            None => {
                self.nodes.push(Some(state));
                self.changed.push(0);
                self.awaited.push(false);
                u32::try_from(self.nodes.len() - 1).unwrap_or(u32::MAX)
            }
        };
        self.slots.insert(name, slot);
        self.order.push(slot);
        self.nodes_epoch += 1;
        self.touch(slot);
        for id in self.homeless.remove(&name).unwrap_or_default() {
            self.place(id);
        }
        // Pods may already be nominated to a node of this name.
        let waiting = self.nominees.get(&name).cloned().unwrap_or_default();
        self.awaited[slot as usize] = !waiting.is_empty();
        if let Some(Some(state)) = self.nodes.get_mut(slot as usize) {
            state.nominated = waiting;
        }
    }

    /// Removes a node. Its pods stay known, but do not count until it returns.
    pub fn remove_node(&mut self, name: &str) {
        let Some(slot) = self.slot(name) else { return };
        let pods = self.node(slot).map(|n| n.pods.clone()).unwrap_or_default();
        for id in &pods {
            self.unplace(*id);
        }
        if let (false, Some(name)) = (pods.is_empty(), self.symbols.find(name)) {
            self.homeless.insert(name, pods);
        }
        self.touch(slot);
        self.nodes_epoch += 1;
        self.order.retain(|s| *s != slot);
        self.free_slots.push(slot);
        if let Some(state) = self.nodes.get_mut(slot as usize).and_then(Option::take) {
            self.slots.remove(&state.view.name);
            self.count_images(&state.view, false);
        }
    }

    /// Sets the machine of a node; `None` if it does not report one. Pods that were assumed here
    /// and that the agent has not committed yet are added to its ledger.
    pub fn set_machine(&mut self, node: &str, machine: Option<MachineView>) {
        let Some(slot) = self.slot(node) else { return };
        let mut machine = machine.map(Machine::new);
        if let Some(machine) = &mut machine {
            let pods = self.node(slot).into_iter().flat_map(|n| &n.pods);
            for (entry, shape) in pods.filter_map(|id| self.pod_with_shape(*id)) {
                if let Some(demand) = &shape.machine {
                    machine.add(&demand.of(entry.machine_uid()));
                }
            }
        }
        if let Some(Some(state)) = self.nodes.get_mut(slot as usize) {
            state.machine = machine;
        }
        self.touch(slot);
    }

    fn count_images(&mut self, view: &NodeView, come: bool) {
        for (name, size) in &view.images {
            if come {
                let image =
                    self.images.entry(*name).or_insert(ImageSpread { size: *size, nodes: 0 });
                image.nodes += 1;
            } else if let Some(image) = self.images.get_mut(name) {
                image.nodes -= 1;
                if image.nodes == 0 {
                    self.images.remove(name);
                }
            }
        }
    }
}

impl PodEntry {
    /// Returns the pod's id in a ledger: agents use the uid, tests the name.
    pub(crate) fn machine_uid(&self) -> &str {
        if self.uid.is_empty() { &self.key } else { &self.uid }
    }
}

/// Pods.
impl Cluster {
    /// Adds or updates a pod. A finished pod is removed.
    pub fn apply_pod(&mut self, pod: &Value) -> Result<(), ObjectError> {
        self.apply_pod_object(&read("Pod", pod)?)
    }

    pub fn apply_pod_object(&mut self, pod: &types::Pod) -> Result<(), ObjectError> {
        if pod.metadata.name.is_empty() {
            return Err(ObjectError::Nameless { kind: "Pod" });
        }
        let key = format!("{}/{}", pod.metadata.namespace, pod.metadata.name);
        if matches!(pod.status.phase.as_str(), "Succeeded" | "Failed") {
            self.remove_pod(&key);
            return Ok(());
        }
        let named =
            |text: &str, symbols: &mut Interner| (!text.is_empty()).then(|| symbols.intern(text));
        let mut node = named(&pod.spec.node_name, &mut self.symbols);
        let mut nominated = named(&pod.status.nominated_node_name, &mut self.symbols);
        let mut assumed = false;
        let old = self.ids.get(key.as_str()).and_then(|id| self.pod(*id));
        // An assumed node stays until the API reports another one for the same pod.
        if let Some(old) = old.filter(|old| *old.uid == *pod.metadata.uid) {
            if node.is_none() && old.assumed {
                node = old.node;
                assumed = true;
            }
            nominated = nominated.or(old.nominated);
        }
        if node.is_some() {
            nominated = None;
        }
        let ending = pod.metadata.deletion_timestamp.is_some();
        let shape = PodShape::new(pod, &mut self.symbols);
        let started = pod.status.start_time.map(|time| time.seconds() * 1000);
        let gates = pod.spec.scheduling_gates.iter().map(|g| g.name.as_str().into()).collect();
        let preempted = ending && is_preempted(pod);
        // Most updates of a running pod do not matter to scheduling and must be cheap.
        if let Some(id) = self.id(&key)
            && let Some((old, old_shape)) = self.pod_with_shape(id)
            && (&*old.uid, old.node, old.nominated, old.ending)
                == (pod.metadata.uid.as_str(), node, nominated, ending)
            && *old_shape == shape
        {
            if let Some(Some(entry)) = self.pods.get_mut(id.0 as usize) {
                entry.started = started;
                entry.gates = gates;
                entry.preempted = preempted;
                entry.assumed = assumed;
            }
            return Ok(());
        }
        self.remove_pod(&key);
        let key: Arc<str> = key.into();
        let entry = PodEntry {
            key: key.clone(),
            uid: pod.metadata.uid.as_str().into(),
            shape: self.shapes.take(shape),
            node,
            slot: None,
            nominated,
            started,
            gates,
            ending,
            preempted,
            assumed,
        };
        let id = match self.free_pods.pop() {
            Some(id) => {
                self.pods[id.0 as usize] = Some(entry);
                id
            }
            None => {
                self.pods.push(Some(entry));
                PodId(u32::try_from(self.pods.len() - 1).unwrap_or(u32::MAX))
            }
        };
        self.ids.insert(key, id);
        if node.is_some() {
            self.place(id);
        } else if let Some(nominated) = nominated {
            self.list_nomination(id, nominated, true);
        }
        Ok(())
    }

    /// Removes a pod, by `namespace/name`.
    pub fn remove_pod(&mut self, pod: &str) {
        let Some(id) = self.ids.remove(pod) else { return };
        if let Some(PodEntry { node: Some(node), slot: None, .. }) = self.pod(id) {
            let node = *node;
            if let Some(pods) = self.homeless.get_mut(&node) {
                pods.retain(|other| *other != id);
            }
        }
        self.unplace(id);
        let Some(entry) = self.pods.get_mut(id.0 as usize).and_then(Option::take) else { return };
        if let Some(nominated) = entry.nominated {
            self.list_nomination(id, nominated, false);
        }
        self.shapes.release(entry.shape);
        self.free_pods.push(id);
    }

    /// Assumes a pending pod on a node before the API confirms it.
    pub fn assume(&mut self, pod: &str, node: &str) {
        let Some(id) = self.id(pod) else { return };
        let node = self.symbols.intern(node);
        self.nominate(pod, None);
        if let Some(Some(entry)) = self.pods.get_mut(id.0 as usize)
            && entry.node.is_none()
        {
            entry.node = Some(node);
            entry.assumed = true;
            self.place(id);
        }
    }

    /// Reverts an assumed pod whose binding failed.
    pub fn forget(&mut self, pod: &str) {
        let Some(id) = self.id(pod) else { return };
        if self.pod(id).is_some_and(|entry| entry.assumed) {
            self.unplace(id);
            if let Some(Some(entry)) = self.pods.get_mut(id.0 as usize) {
                entry.node = None;
                entry.assumed = false;
            }
        }
    }

    /// Sets or clears the nominated node of a pending pod.
    pub fn nominate(&mut self, pod: &str, node: Option<&str>) {
        let Some(id) = self.id(pod) else { return };
        let node = node.map(|node| self.symbols.intern(node));
        let Some(Some(entry)) = self.pods.get_mut(id.0 as usize) else { return };
        let old = std::mem::replace(&mut entry.nominated, node);
        if let Some(old) = old {
            self.list_nomination(id, old, false);
        }
        if let Some(node) = node {
            self.list_nomination(id, node, true);
        }
    }

    /// Removes the scheduling gates of a pod.
    pub fn ungate(&mut self, pod: &str) {
        let Some(id) = self.id(pod) else { return };
        if let Some(Some(entry)) = self.pods.get_mut(id.0 as usize) {
            entry.gates = Box::default();
        }
    }

    fn list_nomination(&mut self, id: PodId, node: Symbol, come: bool) {
        let nominees = self.nominees.entry(node).or_default();
        nominees.retain(|other| *other != id);
        if come {
            nominees.push(id);
        }
        let nominees = nominees.clone();
        if nominees.is_empty() {
            self.nominees.remove(&node);
        }
        let Some(slot) = self.slot_of(node) else { return };
        self.awaited[slot as usize] = !nominees.is_empty();
        if let Some(Some(state)) = self.nodes.get_mut(slot as usize) {
            state.nominated = nominees;
        }
        self.touch(slot);
    }

    /// Counts a pod on its node, if the node is known.
    fn place(&mut self, id: PodId) {
        let Some(Some(entry)) = self.pods.get_mut(id.0 as usize) else { return };
        let Some(node) = entry.node else { return };
        let Some(slot) = self.slots.get(&node).copied() else {
            self.homeless.entry(node).or_default().push(id);
            return;
        };
        entry.slot = Some(slot);
        let Some(shape) = self.shapes.entry(entry.shape).map(|e| e.shape.clone()) else { return };
        self.shapes.place(entry.shape, slot, entry.ending);
        for (claim, _) in &shape.volumes.claims {
            *self.claim_users.entry(*claim).or_default() += 1;
        }
        if let Some(Some(state)) = self.nodes.get_mut(slot as usize) {
            state.pods.push(id);
            state.occupancy.add(&shape, &state.view);
            if let (Some(machine), Some(demand)) = (&mut state.machine, &shape.machine) {
                machine.add(&demand.of(entry.machine_uid()));
            }
        }
        self.touch(slot);
    }

    /// Stops counting a pod on its node.
    fn unplace(&mut self, id: PodId) {
        let Some(Some(entry)) = self.pods.get_mut(id.0 as usize) else { return };
        let Some(slot) = entry.slot.take() else { return };
        let Some(shape) = self.shapes.entry(entry.shape).map(|e| e.shape.clone()) else { return };
        self.shapes.unplace(entry.shape, slot, entry.ending);
        for (claim, _) in &shape.volumes.claims {
            if let Some(users) = self.claim_users.get_mut(claim) {
                *users -= 1;
                if *users == 0 {
                    self.claim_users.remove(claim);
                }
            }
        }
        if let Some(Some(state)) = self.nodes.get_mut(slot as usize) {
            if let Some(at) = state.pods.iter().position(|other| *other == id) {
                state.pods.swap_remove(at);
            }
            state.occupancy.remove(&shape, &state.view);
            if let (Some(machine), Some(_)) = (&mut state.machine, &shape.machine) {
                machine.remove(entry.machine_uid());
            }
        }
        self.touch(slot);
    }
}

fn is_preempted(pod: &types::Pod) -> bool {
    let target = pod.status.conditions.iter().find(|c| c.kind == "DisruptionTarget");
    target.is_some_and(|c| c.status == "True" && c.reason == "PreemptionByScheduler")
}

macro_rules! others {
    ($($(#[$doc:meta])* $apply:ident, $type:ty, $kind:literal, $owner:ident;)*) => {
        /// Other objects that scheduling uses. Each function adds or updates an object.
        impl Cluster {
            $($(#[$doc])* pub fn $apply(&mut self, object: &Value) -> Result<(), ObjectError> {
                let object: $type = read($kind, object)?;
                if object.metadata.name.is_empty() {
                    return Err(ObjectError::Nameless { kind: $kind });
                }
                self.$owner.$apply(&object, &mut self.symbols);
                Ok(())
            })*
        }
    };
}

others! {
    apply_namespace, types::Namespace, "Namespace", workloads;
    apply_service, types::Service, "Service", workloads;
    /// A PodDisruptionBudget.
    apply_budget, types::PodDisruptionBudget, "PodDisruptionBudget", workloads;
    /// A PersistentVolume.
    apply_volume, PersistentVolume, "PersistentVolume", volumes;
    /// A PersistentVolumeClaim.
    apply_claim, PersistentVolumeClaim, "PersistentVolumeClaim", volumes;
    /// A StorageClass.
    apply_class, StorageClass, "StorageClass", volumes;
}

impl Cluster {
    /// A ReplicaSet, StatefulSet or ReplicationController, named by its kind.
    pub fn apply_controller(
        &mut self,
        kind: &'static str,
        object: &Value,
    ) -> Result<(), ObjectError> {
        let object: Controller = read(kind, object)?;
        self.workloads.apply_controller(kind, &object, &mut self.symbols);
        Ok(())
    }

    /// Removes an object of one of these kinds, by the kind and name of the API.
    pub fn remove_other(&mut self, kind: &str, namespace: &str, name: &str) {
        let symbols = &mut self.symbols;
        let (ns, symbol) = (symbols.intern(namespace), symbols.intern(name));
        match kind {
            "Namespace" => self.workloads.remove_namespace(symbol),
            "Service" => self.workloads.remove_service(ns, symbol),
            "PodDisruptionBudget" => self.workloads.remove_budget(ns, symbol),
            "PersistentVolume" => self.volumes.remove_volume(symbol),
            "PersistentVolumeClaim" => {
                let key = symbols.intern(&format!("{namespace}/{name}"));
                self.volumes.remove_claim(key);
            }
            "StorageClass" => self.volumes.remove_class(symbol),
            kind => {
                let kind = symbols.intern(kind);
                self.workloads.remove_controller(ns, kind, symbol);
            }
        }
    }
}
