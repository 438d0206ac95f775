//! Nodes: what they are ([`NodeView`]) and what is on them ([`Occupancy`]).
//!
//! A node's object changes seldom and its pods often, so the two are kept apart. Whether a pod fits is
//! decided elsewhere.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::amounts::Amounts;
use crate::classes::{ClassUse, NodeClasses};
use crate::cluster::PodId;
use crate::labels::Labels;
use crate::object::NodeObject;
use crate::placing::Machine;
use crate::shape::{self, HostPort, PodShape};
use crate::symbols::{Symbol, Symbols};
use crate::taints::{self, Taint};

/// What scheduling reads of a node's object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeView {
    pub(crate) name: Symbol,
    pub(crate) labels: Labels,
    pub(crate) taints: Box<[Taint]>,
    pub(crate) unschedulable: bool,
    pub(crate) allocatable: Amounts,
    pub(crate) most_pods: i64,
    /// By name: size.
    pub(crate) images: Box<[(Symbol, i64)]>,
    pub(crate) features: Box<[Arc<str>]>,
    pub(crate) classes: Arc<NodeClasses>,
}

impl NodeView {
    pub(crate) fn new(node: &NodeObject, symbols: &mut Symbols) -> NodeView {
        let mut names = std::collections::HashSet::new();
        let images = node
            .status
            .images
            .iter()
            .flat_map(|image| image.names.iter().map(|name| (name, image.size_bytes)));
        NodeView {
            name: symbols.intern(&node.metadata.name),
            labels: Labels::new(&node.metadata.labels, symbols),
            taints: node.spec.taints.iter().map(|t| taints::taint(t, symbols)).collect(),
            unschedulable: node.spec.unschedulable,
            allocatable: shape::read(&node.status.allocatable, symbols),
            most_pods: node.status.allocatable.get("pods").map_or(0, objects::Quantity::value),
            images: images
                .filter(|(name, _)| names.insert(*name))
                .map(|(name, size)| (symbols.intern(name), size.max(0)))
                .collect(),
            features: node.status.declared_features.iter().map(|f| f.as_str().into()).collect(),
            classes: Arc::new(NodeClasses::new(&node.status.qos_resources, symbols)),
        }
    }
}

/// What the pods of a node take together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Occupancy {
    pub(crate) requested: Amounts,
    /// Cpu and memory as the fit score counts them.
    pub(crate) scored_milli_cpu: i64,
    pub(crate) scored_memory: i64,
    pub(crate) pods: i64,
    /// A port is listed as often as it is used.
    pub(crate) ports: SmallVec<[HostPort; 2]>,
    pub(crate) classes: ClassUse,
}

impl Occupancy {
    pub(crate) fn add(&mut self, shape: &PodShape, node: &NodeView) {
        self.requested.add(&shape.requests);
        self.scored_milli_cpu = self.scored_milli_cpu.saturating_add(shape.scored.milli_cpu);
        self.scored_memory = self.scored_memory.saturating_add(shape.scored.memory);
        self.pods += 1;
        self.ports.extend_from_slice(&shape.ports);
        if !shape.classes.is_empty() {
            self.classes.add(&shape.classes.on(&node.classes), &node.classes);
        }
    }

    pub(crate) fn remove(&mut self, shape: &PodShape, node: &NodeView) {
        self.requested.subtract(&shape.requests);
        self.requested.scalars.retain(|(_, amount)| *amount != 0);
        self.scored_milli_cpu = self.scored_milli_cpu.saturating_sub(shape.scored.milli_cpu);
        self.scored_memory = self.scored_memory.saturating_sub(shape.scored.memory);
        self.pods -= 1;
        for port in &shape.ports {
            if let Some(at) = self.ports.iter().position(|p| p == port) {
                self.ports.swap_remove(at);
            }
        }
        if !shape.classes.is_empty() {
            self.classes.subtract(&shape.classes.on(&node.classes));
        }
    }
}

/// A node with its pods.
#[derive(Debug)]
pub(crate) struct NodeState {
    pub(crate) view: NodeView,
    pub(crate) occupancy: Occupancy,
    /// In the order in which they came; the last takes the place of one that leaves.
    pub(crate) pods: Vec<PodId>,
    /// Pods that wait to be placed here once others are gone.
    pub(crate) nominated: Vec<PodId>,
    pub(crate) machine: Option<Machine>,
}
