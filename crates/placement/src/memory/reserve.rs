//! Memory reserved for the system, per NUMA node.
//!
//! Main type: [`ReservedMemory`], and [`ReservedMemory::new`], which checks `reservedMemory`
//! against the machine and against the node's total reservation.

use std::collections::BTreeMap;

use objects::Quantity;
use smallvec::SmallVec;
use thiserror::Error;

use crate::demand::MemoryKind;
use crate::ids::NumaId;
use crate::topology::Topology;

/// One entry of `reservedMemory`.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// As configured: it need not be a node of the machine, nor a sensible number.
    pub numa_node: i64,
    /// By resource name.
    pub limits: BTreeMap<String, Quantity>,
}

/// Bytes reserved, by node position and kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservedMemory {
    nodes: Vec<SmallVec<[(MemoryKind, u64); 2]>>,
}

/// Why reservations cannot be used. The texts are the kubelet's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReserveError {
    #[error(
        "the reserved memory configuration references a NUMA node {0} that does not exist on this \
         machine"
    )]
    UnknownNode(i64),
    #[error(
        "the total amount {total:?} of type {kind:?} is not equal to the value {expected:?} \
         determined by Node Allocatable feature"
    )]
    NotEqual { total: String, kind: String, expected: String },
    #[error("could not covert a variable of type Quantity to int64")]
    NotExact,
}

impl ReservedMemory {
    /// Checks that `entries` name nodes of the machine and add up to `expected`: what kube-reserved,
    /// system-reserved and the hard eviction threshold take from the node.
    pub fn new(
        topology: &Topology,
        entries: &[Entry],
        expected: &BTreeMap<String, Quantity>,
    ) -> Result<ReservedMemory, ReserveError> {
        let mut totals: BTreeMap<&str, Quantity> = BTreeMap::new();
        for entry in entries {
            position(topology, entry)?;
            for (name, amount) in &entry.limits {
                let total = totals.entry(name).or_insert_with(Quantity::zero);
                *total = total.checked_add(amount).ok_or(ReserveError::NotExact)?;
            }
        }
        let names = totals.keys().copied().chain(expected.keys().map(String::as_str));
        for name in names.filter(|name| MemoryKind::parse(name).is_some()) {
            let zero = Quantity::zero();
            let total = totals.get(name).unwrap_or(&zero);
            let wanted = expected.get(name).unwrap_or(&zero);
            if total != wanted {
                return Err(ReserveError::NotEqual {
                    total: total.to_string(),
                    kind: name.to_owned(),
                    expected: wanted.to_string(),
                });
            }
        }
        let mut reserved = ReservedMemory { nodes: vec![SmallVec::new(); topology.nodes().len()] };
        for entry in entries {
            let position = position(topology, entry)?;
            for (name, amount) in &entry.limits {
                let bytes = amount.as_i64().ok_or(ReserveError::NotExact)?;
                let bytes = u64::try_from(bytes).map_err(|_| ReserveError::NotExact)?;
                if let Some(kind) = MemoryKind::parse(name) {
                    reserved.set(position, kind, bytes);
                }
            }
        }
        Ok(reserved)
    }

    /// Builds reservations without checks; nodes are positions.
    #[must_use]
    pub fn from_bytes(
        entries: impl IntoIterator<Item = (usize, MemoryKind, u64)>,
    ) -> ReservedMemory {
        let mut reserved = ReservedMemory::default();
        for (node, kind, bytes) in entries {
            reserved.set(node, kind, bytes);
        }
        reserved
    }

    fn set(&mut self, node: usize, kind: MemoryKind, bytes: u64) {
        if self.nodes.len() <= node {
            self.nodes.resize(node + 1, SmallVec::new());
        }
        let amounts = &mut self.nodes[node];
        match amounts.iter_mut().find(|(k, _)| *k == kind) {
            Some((_, amount)) => *amount = bytes,
            None => amounts.push((kind, bytes)),
        }
    }

    #[must_use]
    pub fn get(&self, node: usize, kind: MemoryKind) -> u64 {
        let amounts = self.nodes.get(node).into_iter().flatten();
        amounts.filter(|(k, _)| *k == kind).map(|(_, bytes)| *bytes).next().unwrap_or(0)
    }

    #[must_use]
    pub fn total(&self, kind: MemoryKind) -> u64 {
        (0..self.nodes.len()).fold(0, |sum: u64, node| sum.saturating_add(self.get(node, kind)))
    }
}

fn position(topology: &Topology, entry: &Entry) -> Result<usize, ReserveError> {
    u32::try_from(entry.numa_node)
        .ok()
        .and_then(|id| topology.node_position(NumaId(id)))
        .ok_or(ReserveError::UnknownNode(entry.numa_node))
}
