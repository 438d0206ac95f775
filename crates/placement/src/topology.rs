//! The model of one machine: logical CPUs, cores, sockets, NUMA nodes, uncore caches, memory.
//!
//! Main type: [`Topology`], built and checked by [`Topology::new`] from [`Parts`]. Sibling lists
//! are real, never averages: holes in the numbering, offline CPUs, mixed core sizes, nodes
//! without CPUs and nodes without memory are ordinary. It does not discover anything (`host` does)
//! and holds no state of allocations (the ledger does).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::cpuset::{CpuSet, MAX_CPU};
use crate::ids::{Bytes, CacheId, CoreId, CpuId, NumaId, SocketId};
use crate::numa::{MAX_NODES, NumaMask};

/// One online logical CPU and where it sits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cpu {
    pub cpu: CpuId,
    pub core: CoreId,
    pub socket: SocketId,
    pub numa: NumaId,
    #[serde(rename = "uncoreCache")]
    pub cache: CacheId,
}

/// Huge pages of one size on one NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HugePages {
    pub page_size: Bytes,
    pub count: u64,
}

/// One NUMA node's memory. A node may have no memory, no CPUs, or neither.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeMemory {
    pub numa: NumaId,
    pub memory: Bytes,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub huge_pages: Vec<HugePages>,
}

/// The input of a topology. Order does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Parts {
    pub cpus: Vec<Cpu>,
    /// May leave out nodes that have CPUs but no memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeMemory>,
    /// Row and column per NUMA node in order of id, as in the ACPI SLIT; empty if unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub distances: Vec<Vec<u32>>,
}

/// A NUMA node of a [`Topology`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaNode {
    pub id: NumaId,
    pub cpus: CpuSet,
    pub memory: Bytes,
    pub huge_pages: Vec<HugePages>,
    /// By position: what its CPUs belong to.
    pub(crate) sockets: Vec<u16>,
    pub(crate) cores: Vec<u16>,
    pub(crate) caches: Vec<u16>,
}

/// A core, socket or cache: an id and its CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain<Id> {
    pub id: Id,
    pub cpus: CpuSet,
}

/// By position: what a socket's CPUs belong to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SocketMembers {
    pub(crate) nodes: Vec<u8>,
    pub(crate) cores: Vec<u16>,
}

/// The location of one CPU, by position in the topology's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CpuLocation {
    pub(crate) core: u16,
    pub(crate) socket: u16,
    pub(crate) node: u8,
    pub(crate) cache: u16,
}

/// A checked machine. All lists are in order of id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    cpus: Vec<Cpu>,
    all: CpuSet,
    cores: Vec<Domain<CoreId>>,
    sockets: Vec<Domain<SocketId>>,
    nodes: Vec<NumaNode>,
    caches: Vec<Domain<CacheId>>,
    distances: Vec<Vec<u32>>,
    /// By socket position.
    socket_members: Vec<SocketMembers>,
    largest_core: usize,
    /// Indexed by CPU id; `None` where the numbering has a hole.
    locations: Vec<Option<CpuLocation>>,
}

/// Why parts do not make a machine.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TopologyError {
    #[error("a machine needs at least one CPU")]
    NoCpus,
    #[error("CPU {0} is listed twice")]
    DuplicateCpu(CpuId),
    #[error("CPU id {0} is above {MAX_CPU}, the highest id a CPU can have")]
    CpuTooHigh(CpuId),
    #[error("NUMA node {0} is listed twice")]
    DuplicateNode(NumaId),
    #[error("core {core} has CPUs in sockets {first} and {second}: a core belongs to one socket")]
    CoreSpansSockets { core: CoreId, first: SocketId, second: SocketId },
    #[error("core {core} has CPUs in NUMA nodes {first} and {second}: a core belongs to one node")]
    CoreSpansNodes { core: CoreId, first: NumaId, second: NumaId },
    #[error("the machine has {0} NUMA nodes; at most {MAX_NODES} are supported")]
    TooManyNodes(usize),
    #[error(
        "the distance table has {rows} rows; it needs one row and one column for each of the \
         {nodes} NUMA nodes"
    )]
    DistanceRows { rows: usize, nodes: usize },
    #[error("row {row} of the distance table has {columns} columns; it needs {nodes}")]
    DistanceColumns { row: usize, columns: usize, nodes: usize },
    #[error("the memory of NUMA node {0} adds up to more than 2^64 bytes")]
    MemoryOverflow(NumaId),
}

impl Topology {
    pub fn new(parts: Parts) -> Result<Topology, TopologyError> {
        let Parts { mut cpus, nodes: memory, distances } = parts;
        if cpus.is_empty() {
            return Err(TopologyError::NoCpus);
        }
        cpus.sort_by_key(|c| c.cpu);
        if let Some(pair) = cpus.windows(2).find(|p| p[0].cpu == p[1].cpu) {
            return Err(TopologyError::DuplicateCpu(pair[0].cpu));
        }
        if let Some(last) = cpus.last().filter(|c| c.cpu.0 > MAX_CPU) {
            return Err(TopologyError::CpuTooHigh(last.cpu));
        }

        let mut cores: BTreeMap<CoreId, (CpuSet, SocketId, NumaId)> = BTreeMap::new();
        let mut sockets: BTreeMap<SocketId, CpuSet> = BTreeMap::new();
        let mut caches: BTreeMap<CacheId, CpuSet> = BTreeMap::new();
        let mut nodes: BTreeMap<NumaId, NumaNode> = BTreeMap::new();
        for node in memory {
            let total = node.huge_pages.iter().try_fold(0u64, |sum, pages| {
                sum.checked_add(pages.page_size.0.checked_mul(pages.count)?)
            });
            if total.is_none() {
                return Err(TopologyError::MemoryOverflow(node.numa));
            }
            let id = node.numa;
            let entry = NumaNode::new(id, node.memory, node.huge_pages);
            if nodes.insert(id, entry).is_some() {
                return Err(TopologyError::DuplicateNode(id));
            }
        }
        for c in &cpus {
            let (set, socket, node) =
                cores.entry(c.core).or_insert_with(|| (CpuSet::new(), c.socket, c.numa));
            if *socket != c.socket {
                return Err(TopologyError::CoreSpansSockets {
                    core: c.core,
                    first: *socket,
                    second: c.socket,
                });
            }
            if *node != c.numa {
                return Err(TopologyError::CoreSpansNodes {
                    core: c.core,
                    first: *node,
                    second: c.numa,
                });
            }
            set.insert(c.cpu);
            sockets.entry(c.socket).or_default().insert(c.cpu);
            caches.entry(c.cache).or_default().insert(c.cpu);
            nodes
                .entry(c.numa)
                .or_insert_with(|| NumaNode::new(c.numa, Bytes::ZERO, Vec::new()))
                .cpus
                .insert(c.cpu);
        }
        if nodes.len() > MAX_NODES {
            return Err(TopologyError::TooManyNodes(nodes.len()));
        }
        check_distances(&distances, nodes.len())?;

        let cores: Vec<_> =
            cores.into_iter().map(|(id, (cpus, _, _))| Domain { id, cpus }).collect();
        let sockets: Vec<_> = sockets.into_iter().map(|(id, cpus)| Domain { id, cpus }).collect();
        let caches: Vec<_> = caches.into_iter().map(|(id, cpus)| Domain { id, cpus }).collect();
        let mut nodes: Vec<_> = nodes.into_values().collect();

        let highest = cpus.last().map_or(0, |c| c.cpu.0 as usize);
        let mut locations = vec![None; highest + 1];
        let mut socket_members = vec![SocketMembers::default(); sockets.len()];
        for c in &cpus {
            // Every id was put into the maps above and there are at most 65,536 CPUs, so both
            // the look-ups and the narrowing hold.
            let location = CpuLocation {
                core: cores.partition_point(|d| d.id < c.core) as u16,
                socket: sockets.partition_point(|d| d.id < c.socket) as u16,
                node: nodes.partition_point(|d| d.id < c.numa) as u8,
                cache: caches.partition_point(|d| d.id < c.cache) as u16,
            };
            locations[c.cpu.0 as usize] = Some(location);
            let node = &mut nodes[location.node as usize];
            insert_sorted(&mut node.sockets, location.socket);
            insert_sorted(&mut node.cores, location.core);
            insert_sorted(&mut node.caches, location.cache);
            let socket = &mut socket_members[location.socket as usize];
            insert_sorted(&mut socket.nodes, location.node);
            insert_sorted(&mut socket.cores, location.core);
        }
        for node in &mut nodes {
            node.huge_pages.sort_by_key(|p| p.page_size);
        }
        let all = cpus.iter().map(|c| c.cpu).collect();
        let largest_core = cores.iter().map(|c| c.cpus.len()).max().unwrap_or(1);
        Ok(Topology {
            cpus,
            all,
            cores,
            sockets,
            nodes,
            caches,
            distances,
            socket_members,
            largest_core,
            locations,
        })
    }

    /// The parts this machine was made from, in canonical order.
    #[must_use]
    pub fn parts(&self) -> Parts {
        let nodes = self.nodes.iter().map(|n| NodeMemory {
            numa: n.id,
            memory: n.memory,
            huge_pages: n.huge_pages.clone(),
        });
        Parts { cpus: self.cpus.clone(), nodes: nodes.collect(), distances: self.distances.clone() }
    }

    /// Every online CPU, in order of id.
    #[must_use]
    pub fn cpus(&self) -> &[Cpu] {
        &self.cpus
    }

    #[must_use]
    pub fn all_cpus(&self) -> &CpuSet {
        &self.all
    }

    #[must_use]
    pub fn cores(&self) -> &[Domain<CoreId>] {
        &self.cores
    }

    #[must_use]
    pub fn sockets(&self) -> &[Domain<SocketId>] {
        &self.sockets
    }

    #[must_use]
    pub fn nodes(&self) -> &[NumaNode] {
        &self.nodes
    }

    #[must_use]
    pub fn caches(&self) -> &[Domain<CacheId>] {
        &self.caches
    }

    /// Returns the distances by node position; `None` if the machine did not report them.
    #[must_use]
    pub fn distances(&self) -> Option<&[Vec<u32>]> {
        (!self.distances.is_empty()).then_some(&self.distances)
    }

    #[must_use]
    pub fn cpu(&self, id: CpuId) -> Option<&Cpu> {
        self.cpus.binary_search_by_key(&id, |c| c.cpu).ok().map(|i| &self.cpus[i])
    }

    /// All nodes, as a mask.
    #[must_use]
    pub fn all_nodes(&self) -> NumaMask {
        NumaMask::first(self.nodes.len())
    }

    /// The position of a node in [`Topology::nodes`] and in every [`NumaMask`].
    #[must_use]
    pub fn node_position(&self, id: NumaId) -> Option<usize> {
        self.nodes.binary_search_by_key(&id, |n| n.id).ok()
    }

    /// The node ids of a mask, ascending.
    pub fn node_ids(&self, mask: NumaMask) -> impl Iterator<Item = NumaId> + '_ {
        mask.iter().filter_map(|p| self.nodes.get(p)).map(|n| n.id)
    }

    /// The nodes that hold at least one of `cpus`.
    #[must_use]
    pub fn nodes_of(&self, cpus: &CpuSet) -> NumaMask {
        let mut mask = NumaMask::EMPTY;
        for (position, node) in self.nodes.iter().enumerate() {
            if !node.cpus.is_disjoint(cpus) {
                mask.insert(position);
            }
        }
        mask
    }

    /// The CPUs of the nodes in `mask`.
    #[must_use]
    pub fn cpus_in(&self, mask: NumaMask) -> CpuSet {
        let mut cpus = CpuSet::new();
        for node in mask.iter().filter_map(|p| self.nodes.get(p)) {
            cpus.union_with(&node.cpus);
        }
        cpus
    }

    /// `cpus` and all their siblings.
    #[must_use]
    pub fn whole_cores(&self, cpus: &CpuSet) -> CpuSet {
        let mut whole = CpuSet::new();
        for location in cpus.iter().filter_map(|c| self.location(c)) {
            whole.union_with(&self.cores[location.core as usize].cpus);
        }
        whole
    }

    /// Logical CPUs per core as the kubelet reckons: the integer quotient over the machine. It
    /// appears in admission messages and in `full-pcpus-only`'s check; never in a search for free
    /// cores, where the core's own siblings count.
    #[must_use]
    pub fn cpus_per_core(&self) -> usize {
        self.cpus.len() / self.cores.len()
    }

    /// The nodes that have CPUs.
    #[must_use]
    pub fn nodes_with_cpus(&self) -> NumaMask {
        (0..self.nodes.len()).filter(|p| !self.nodes[*p].cpus.is_empty()).collect()
    }

    /// The siblings of the largest core: an upper bound for counting by core size.
    pub(crate) fn largest_core(&self) -> usize {
        self.largest_core
    }

    pub(crate) fn socket_members(&self, socket: usize) -> &SocketMembers {
        &self.socket_members[socket]
    }

    pub(crate) fn location(&self, cpu: CpuId) -> Option<CpuLocation> {
        self.locations.get(cpu.0 as usize).copied().flatten()
    }
}

impl NumaNode {
    fn new(id: NumaId, memory: Bytes, huge_pages: Vec<HugePages>) -> NumaNode {
        NumaNode {
            id,
            cpus: CpuSet::new(),
            memory,
            huge_pages,
            sockets: Vec::new(),
            cores: Vec::new(),
            caches: Vec::new(),
        }
    }
}

fn insert_sorted<T: Ord>(list: &mut Vec<T>, item: T) {
    if let Err(at) = list.binary_search(&item) {
        list.insert(at, item);
    }
}

fn check_distances(distances: &[Vec<u32>], nodes: usize) -> Result<(), TopologyError> {
    if distances.is_empty() {
        return Ok(());
    }
    if distances.len() != nodes {
        return Err(TopologyError::DistanceRows { rows: distances.len(), nodes });
    }
    match distances.iter().position(|row| row.len() != nodes) {
        Some(row) => {
            Err(TopologyError::DistanceColumns { row, columns: distances[row].len(), nodes })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(cpu: u32, core: u32, socket: u32, numa: u32) -> Cpu {
        Cpu {
            cpu: CpuId(cpu),
            core: CoreId(core),
            socket: SocketId(socket),
            numa: NumaId(numa),
            cache: CacheId(socket),
        }
    }

    #[test]
    fn holes_and_nodes_without_cpus_are_ordinary() {
        let topology = Topology::new(Parts {
            cpus: vec![cpu(70, 3, 0, 8), cpu(3, 3, 0, 8)],
            nodes: vec![NodeMemory {
                numa: NumaId(2),
                memory: Bytes::gib(1),
                huge_pages: Vec::new(),
            }],
            distances: Vec::new(),
        })
        .unwrap();
        assert_eq!(topology.all_cpus().to_string(), "3,70");
        assert_eq!(topology.nodes().iter().map(|n| n.id.0).collect::<Vec<_>>(), [2, 8]);
        assert_eq!(topology.nodes_of(topology.all_cpus()), NumaMask::single(1));
        assert_eq!(Topology::new(topology.parts()).unwrap(), topology);
    }

    #[test]
    fn impossible_machines_are_rejected_with_the_reason() {
        let check = |cpus: Vec<Cpu>, error: TopologyError| {
            assert_eq!(Topology::new(Parts { cpus, ..Parts::default() }), Err(error));
        };
        check(vec![], TopologyError::NoCpus);
        check(vec![cpu(1, 1, 0, 0), cpu(1, 1, 0, 0)], TopologyError::DuplicateCpu(CpuId(1)));
        check(vec![cpu(70_000, 0, 0, 0)], TopologyError::CpuTooHigh(CpuId(70_000)));
        check(
            vec![cpu(0, 0, 0, 0), cpu(1, 0, 1, 0)],
            TopologyError::CoreSpansSockets {
                core: CoreId(0),
                first: SocketId(0),
                second: SocketId(1),
            },
        );
        check((0..65).map(|n| cpu(n, n, 0, n)).collect(), TopologyError::TooManyNodes(65));
    }
}
