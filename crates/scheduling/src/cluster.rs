//! The cluster as scheduling sees it: nodes, pods and what selects them, kept up to date one object at
//! a time.
//!
//! Main type: [`Cluster`]. Sums per node and the places of each shape are kept with every change, so
//! that an attempt walks nodes and shapes, never all pods. It answers questions about what is; what
//! should be is [`crate::Scheduler`]'s business.

use std::collections::HashMap;
use std::sync::Arc;

use objects::selector::LabelSelector;
use serde_json::Value;
use thiserror::Error;

use crate::classes::NodeClasses;
use crate::labels::Selector;
use crate::node::{NodeState, NodeView, Occupancy};
use crate::object::{NodeObject, OtherObject, PodObject};
use crate::placing::{Machine, MachineView};
use crate::shape::PodShape;
use crate::shapes::{ShapeId, Shapes};
use crate::symbols::{Symbol, Symbols};
use crate::taints::{self, Taint};
use crate::time;
use crate::volumes::Volumes;
use crate::workloads::Workloads;

/// Why an object cannot be taken in.
#[derive(Debug, Error)]
pub enum ObjectError {
    #[error("not a {kind} that can be read")]
    Unreadable { kind: &'static str, source: serde_json::Error },
    #[error("a {kind} without a name")]
    Nameless { kind: &'static str },
}

/// A pod, by its place in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PodId(pub(crate) u32);

/// A pod: what of it is not shared with others of its shape.
#[derive(Debug)]
pub(crate) struct PodEntry {
    /// `namespace/name`.
    pub(crate) key: Arc<str>,
    pub(crate) uid: Box<str>,
    pub(crate) shape: ShapeId,
    /// Where it is; the node need not be known.
    pub(crate) node: Option<Symbol>,
    pub(crate) slot: Option<u32>,
    pub(crate) nominated: Option<Symbol>,
    pub(crate) started: Option<time::Milliseconds>,
    pub(crate) gates: Box<[Box<str>]>,
    /// It is being deleted.
    pub(crate) ending: bool,
    /// It is being deleted to make room.
    pub(crate) preempted: bool,
    /// It was given its node here, and the API has not said so yet.
    assumed: bool,
}

impl PodEntry {
    pub(crate) fn name(&self) -> &str {
        self.key.split_once('/').map_or(&self.key, |(_, name)| name)
    }
}

/// An image as nodes have it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ImageSpread {
    /// As the first node said that had it.
    pub(crate) size: i64,
    pub(crate) nodes: usize,
}

/// Symbols that are asked for all the time.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) hostname: Symbol,
    pub(crate) unschedulable: Taint,
    pub(crate) everything: Selector,
}

/// Nodes, pods and what selects them.
#[derive(Debug)]
pub struct Cluster {
    pub(crate) symbols: Symbols,
    pub(crate) known: Known,
    /// Boxed, so that going through all of them does not touch each.
    nodes: Vec<Option<Box<NodeState>>>,
    slots: HashMap<Symbol, u32>,
    free_slots: Vec<u32>,
    /// Slots in the order in which nodes came.
    pub(crate) order: Vec<u32>,
    /// By slot: when anything about the node last changed.
    pub(crate) changed: Vec<u64>,
    /// By slot: whether pods wait for the node.
    pub(crate) awaited: Vec<bool>,
    clock: u64,
    /// What nodes offer of QoS classes, each different offer once.
    offers: Vec<Arc<NodeClasses>>,
    /// Changes with the nodes' objects, not with their pods.
    pub(crate) nodes_epoch: u64,
    pods: Vec<Option<PodEntry>>,
    free_pods: Vec<PodId>,
    ids: HashMap<Arc<str>, PodId>,
    /// Pods that wait for a node of this name, known or not.
    nominees: HashMap<Symbol, Vec<PodId>>,
    /// Pods on nodes that are not known.
    homeless: HashMap<Symbol, Vec<PodId>>,
    pub(crate) shapes: Shapes,
    pub(crate) workloads: Workloads,
    pub(crate) volumes: Volumes,
    pub(crate) images: HashMap<Symbol, ImageSpread>,
    /// Claims, by `namespace/name`: how many volumes of pods on nodes use them.
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
        let mut symbols = Symbols::default();
        let known = Known {
            hostname: symbols.intern("kubernetes.io/hostname"),
            unschedulable: taints::unschedulable(&mut symbols),
            everything: Selector::new(Some(&LabelSelector::default()), &mut symbols),
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
            shapes: Shapes::default(),
            workloads: Workloads::default(),
            images: HashMap::new(),
            claim_users: HashMap::new(),
        }
    }

    /// How many nodes there are.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.order.len()
    }

    /// How many pods there are, placed or not.
    #[must_use]
    pub fn pod_count(&self) -> usize {
        self.ids.len()
    }

    /// How many different shapes pods have, and how many texts are kept: a measure of memory.
    #[must_use]
    pub fn shared_counts(&self) -> (usize, usize) {
        (self.shapes.len(), self.symbols.len())
    }

    /// The names of all nodes, in the order in which they came.
    pub fn node_names(&self) -> impl Iterator<Item = &str> {
        self.order.iter().map(|slot| self.node_name(*slot))
    }

    /// The node a pod is on, or has been given.
    #[must_use]
    pub fn node_of(&self, pod: &str) -> Option<&str> {
        let entry = self.pod(*self.ids.get(pod)?)?;
        Some(self.symbols.text(entry.node?))
    }

    /// The node a pod waits for while others leave it.
    #[must_use]
    pub fn nominated_node_of(&self, pod: &str) -> Option<&str> {
        let entry = self.pod(*self.ids.get(pod)?)?;
        Some(self.symbols.text(entry.nominated?))
    }

    #[must_use]
    pub fn has_pod(&self, pod: &str) -> bool {
        self.ids.contains_key(pod)
    }

    /// The pods of a node, as `namespace/name`.
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

    /// A pod with its shape.
    pub(crate) fn shaped(&self, id: PodId) -> Option<(&PodEntry, &PodShape)> {
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
    /// Takes in a node that is new or has changed.
    pub fn apply_node(&mut self, node: &Value) -> Result<(), ObjectError> {
        self.apply_node_object(&read("Node", node)?)
    }

    pub fn apply_node_object(&mut self, node: &NodeObject) -> Result<(), ObjectError> {
        if node.metadata.name.is_empty() {
            return Err(ObjectError::Nameless { kind: "Node" });
        }
        let mut view = NodeView::new(node, &mut self.symbols);
        // Nodes are alike in what they offer; one copy stays at hand while all are looked at.
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
        for (_, shape) in pods.iter().filter_map(|id| self.shaped(*id)) {
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
            self.settle(id);
        }
        // Pods may have been waiting for a node of this name.
        let waiting = self.nominees.get(&name).cloned().unwrap_or_default();
        self.awaited[slot as usize] = !waiting.is_empty();
        if let Some(Some(state)) = self.nodes.get_mut(slot as usize) {
            state.nominated = waiting;
        }
    }

    /// Forgets a node. Its pods stay known, but count for nothing until it comes back.
    pub fn remove_node(&mut self, name: &str) {
        let Some(slot) = self.slot(name) else { return };
        let pods = self.node(slot).map(|n| n.pods.clone()).unwrap_or_default();
        for id in &pods {
            self.unsettle(*id);
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

    /// What is known of a node's machine; `None` if nothing is. Pods that the scheduler has sent there
    /// and the agent has not booked yet are booked on top.
    pub fn set_machine(&mut self, node: &str, machine: Option<MachineView>) {
        let Some(slot) = self.slot(node) else { return };
        let mut machine = machine.map(Machine::new);
        if let Some(machine) = &mut machine {
            let pods = self.node(slot).into_iter().flat_map(|n| &n.pods);
            for (entry, shape) in pods.filter_map(|id| self.shaped(*id)) {
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
    /// What the pod is called in a ledger: agents know pods by uid, tests by name.
    pub(crate) fn machine_uid(&self) -> &str {
        if self.uid.is_empty() { &self.key } else { &self.uid }
    }
}

/// Pods.
impl Cluster {
    /// Takes in a pod that is new or has changed. A pod that has ended is forgotten.
    pub fn apply_pod(&mut self, pod: &Value) -> Result<(), ObjectError> {
        self.apply_pod_object(&read("Pod", pod)?)
    }

    pub fn apply_pod_object(&mut self, pod: &PodObject) -> Result<(), ObjectError> {
        if pod.metadata.name.is_empty() {
            return Err(ObjectError::Nameless { kind: "Pod" });
        }
        let key = format!("{}/{}", pod.metadata.namespace, pod.metadata.name);
        if matches!(pod.status.phase.as_str(), "Succeeded" | "Failed") {
            self.remove_pod(&key);
            return Ok(());
        }
        let named =
            |text: &str, symbols: &mut Symbols| (!text.is_empty()).then(|| symbols.intern(text));
        let mut node = named(&pod.spec.node_name, &mut self.symbols);
        let mut nominated = named(&pod.status.nominated_node_name, &mut self.symbols);
        let mut assumed = false;
        let old = self.ids.get(key.as_str()).and_then(|id| self.pod(*id));
        // What was decided here stands until the API says something else of the same pod.
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
        let started = pod.status.start_time.as_deref().and_then(time::parse);
        let gates = pod.spec.scheduling_gates.iter().map(|g| g.name.as_str().into()).collect();
        let preempted = ending && is_preempted(pod);
        // Most changes of a running pod are of no account here and must not cost anything.
        if let Some(id) = self.id(&key)
            && let Some((old, old_shape)) = self.shaped(id)
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
            self.settle(id);
        } else if let Some(nominated) = nominated {
            self.list_nomination(id, nominated, true);
        }
        Ok(())
    }

    /// Forgets a pod, by `namespace/name`.
    pub fn remove_pod(&mut self, pod: &str) {
        let Some(id) = self.ids.remove(pod) else { return };
        if let Some(PodEntry { node: Some(node), slot: None, .. }) = self.pod(id) {
            let node = *node;
            if let Some(pods) = self.homeless.get_mut(&node) {
                pods.retain(|other| *other != id);
            }
        }
        self.unsettle(id);
        let Some(entry) = self.pods.get_mut(id.0 as usize).and_then(Option::take) else { return };
        if let Some(nominated) = entry.nominated {
            self.list_nomination(id, nominated, false);
        }
        self.shapes.give_back(entry.shape);
        self.free_pods.push(id);
    }

    /// Gives a pending pod a node, before the API knows of it.
    pub fn assume(&mut self, pod: &str, node: &str) {
        let Some(id) = self.id(pod) else { return };
        let node = self.symbols.intern(node);
        self.nominate(pod, None);
        if let Some(Some(entry)) = self.pods.get_mut(id.0 as usize)
            && entry.node.is_none()
        {
            entry.node = Some(node);
            entry.assumed = true;
            self.settle(id);
        }
    }

    /// Takes a node back that was given to a pod and could not be had after all.
    pub fn forget(&mut self, pod: &str) {
        let Some(id) = self.id(pod) else { return };
        if self.pod(id).is_some_and(|entry| entry.assumed) {
            self.unsettle(id);
            if let Some(Some(entry)) = self.pods.get_mut(id.0 as usize) {
                entry.node = None;
                entry.assumed = false;
            }
        }
    }

    /// Says which node a pending pod waits for, if any.
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

    /// Takes a pod's scheduling gates away.
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

    /// Counts a pod with its node, if that is known.
    fn settle(&mut self, id: PodId) {
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

    /// No longer counts a pod with its node.
    fn unsettle(&mut self, id: PodId) {
        let Some(Some(entry)) = self.pods.get_mut(id.0 as usize) else { return };
        let Some(slot) = entry.slot.take() else { return };
        let Some(shape) = self.shapes.entry(entry.shape).map(|e| e.shape.clone()) else { return };
        self.shapes.displace(entry.shape, slot, entry.ending);
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

fn is_preempted(pod: &PodObject) -> bool {
    let target = pod.status.conditions.iter().find(|c| c.kind == "DisruptionTarget");
    target.is_some_and(|c| c.status == "True" && c.reason == "PreemptionByScheduler")
}

macro_rules! others {
    ($($(#[$doc:meta])* $apply:ident, $kind:literal, $owner:ident;)*) => {
        /// What else scheduling looks at. Each function takes in an object that is new or has changed.
        impl Cluster {
            $($(#[$doc])* pub fn $apply(&mut self, object: &Value) -> Result<(), ObjectError> {
                let object: OtherObject = read($kind, object)?;
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
    apply_namespace, "Namespace", workloads;
    apply_service, "Service", workloads;
    /// A PodDisruptionBudget.
    apply_budget, "PodDisruptionBudget", workloads;
    /// A PersistentVolume.
    apply_volume, "PersistentVolume", volumes;
    /// A PersistentVolumeClaim.
    apply_claim, "PersistentVolumeClaim", volumes;
    /// A StorageClass.
    apply_class, "StorageClass", volumes;
}

impl Cluster {
    /// A ReplicaSet, StatefulSet or ReplicationController, named by its kind.
    pub fn apply_controller(
        &mut self,
        kind: &'static str,
        object: &Value,
    ) -> Result<(), ObjectError> {
        let object: OtherObject = read(kind, object)?;
        self.workloads.apply_controller(kind, &object, &mut self.symbols);
        Ok(())
    }

    /// Forgets an object of one of these kinds; names as in the API, kinds as in its objects.
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
