//! Nodes: the fields of their objects ([`NodeView`]) and the sums of their pods ([`Occupancy`]).
//!
//! A node's object rarely changes and its pods often do, so the two are kept apart. Filters are in
//! [`crate::filters`].

use std::sync::Arc;

use objects::types;
use smallvec::SmallVec;

use crate::classes::{ClassUse, NodeClasses};
use crate::cluster::PodId;
use crate::interner::{Interner, Symbol};
use crate::labels::Labels;
use crate::machine::Machine;
use crate::resources::ResourceVector;
use crate::shape::{self, HostPort, PodShape};
use crate::taints::{self, Taint};

/// The fields of a node's object that scheduling reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeView {
    pub(crate) name: Symbol,
    pub(crate) labels: Labels,
    pub(crate) taints: Box<[Taint]>,
    pub(crate) unschedulable: bool,
    pub(crate) allocatable: ResourceVector,
    pub(crate) most_pods: i64,
    /// Name and size.
    pub(crate) images: Box<[(Symbol, i64)]>,
    pub(crate) features: Box<[Arc<str>]>,
    pub(crate) classes: Arc<NodeClasses>,
}

impl NodeView {
    pub(crate) fn new(node: &types::Node, symbols: &mut Interner) -> NodeView {
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
            classes: Arc::new(NodeClasses::new(node.status.qos_resources.as_deref(), symbols)),
        }
    }
}

/// The resources that the pods of a node use in total.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Occupancy {
    pub(crate) requested: ResourceVector,
    /// CPU and memory as the fit score counts them.
    pub(crate) scored_milli_cpu: i64,
    pub(crate) scored_memory: i64,
    pub(crate) pods: i64,
    /// A port is listed once for each use.
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
    /// In the order in which they were added; the last one replaces a removed one.
    pub(crate) pods: Vec<PodId>,
    /// Pods nominated to this node.
    pub(crate) nominated: Vec<PodId>,
    pub(crate) machine: Option<Machine>,
}
