//! The memory manager: decides from which NUMA nodes a container's memory and huge pages come.
//!
//! Main types: [`StaticMemory`], the checked policy (`Static` on Linux, `BestEffort` on Windows:
//! the same bookkeeping), and [`MemoryLedger`], its allocations. A node serves either containers
//! that use it alone or containers of one group of nodes, never both. Reservations are in
//! [`reserve`]. Nothing here knows CPUs.

use std::collections::BTreeMap;

use smallvec::SmallVec;
use thiserror::Error;

use crate::affinity::search::{Fit, fittest, smallest_size, within_reach};
use crate::affinity::{Dimension, Family, Hint, Preference, Threshold};
use crate::demand::{ContainerName, Demand, MemoryAmounts, MemoryKind, PodUid, QosClass, Role};
use crate::ids::Bytes;
use crate::numa::{MAX_NODES, NumaMask};
use crate::topology::Topology;

pub mod reserve;

use reserve::ReservedMemory;

/// One kind of memory on one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryTable {
    pub total: u64,
    pub system_reserved: u64,
    pub allocatable: u64,
    pub reserved: u64,
    pub free: u64,
}

/// The state of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    /// Blocks that use the node.
    pub assignments: u64,
    /// The nodes it is grouped with, itself included.
    pub cells: NumaMask,
    /// In order of kind.
    pub tables: SmallVec<[(MemoryKind, MemoryTable); 2]>,
}

impl NodeState {
    /// Returns a kind of memory; zero if the node has none of it.
    fn table(&self, kind: MemoryKind) -> MemoryTable {
        self.tables.iter().find(|(k, _)| *k == kind).map(|(_, table)| *table).unwrap_or_default()
    }

    fn table_mut(&mut self, kind: MemoryKind) -> Option<&mut MemoryTable> {
        self.tables.iter_mut().find(|(k, _)| *k == kind).map(|(_, table)| table)
    }
}

/// Memory of one kind that a container has on some nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub nodes: NumaMask,
    pub kind: MemoryKind,
    pub size: u64,
}

/// A container's blocks, in order of kind.
pub type Blocks = SmallVec<[Block; 2]>;

/// The allocations of the memory manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryLedger {
    /// By node position.
    pub nodes: Vec<NodeState>,
    pub assignments: BTreeMap<PodUid, BTreeMap<ContainerName, Blocks>>,
    /// Memory of finished init containers of one pod, by exact nodes, free for its later
    /// containers. Only the pod that was served last has it; it is not kept across restarts.
    pub reuse: Option<(PodUid, Blocks)>,
}

/// Why the memory manager cannot be used. The texts are the kubelet's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StaticMemoryError {
    #[error("[memorymanager] you should specify the system reserved memory")]
    NothingReserved,
}

/// Why a container cannot have its memory. The texts are the kubelet's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MemoryRefusal {
    #[error("[memorymanager] failed to represent quantity as int64")]
    NotExact,
    #[error(
        "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough \
         memory is available"
    )]
    NoNodes,
    #[error("[memorymanager] failed to find the default preferred hint")]
    NoPreferredNodes,
    #[error("[memorymanager] failed to find NUMA nodes to extend the current topology hint")]
    CannotExtend,
    #[error("[memorymanager] failed to find the extended preferred hint")]
    CannotExtendPreferred,
    #[error("[memorymanager] preferred hint violates NUMA node allocation")]
    MixedGroups,
}

/// Why recorded memory does not fit the machine or the configuration. The texts are the kubelet's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MemoryStateError {
    #[error("[memorymanager] machine state can not be empty when it has memory assignments")]
    NoMachine,
    #[error(
        "[memorymanager] (pod: {pod}, container: {container}) the memory assignment uses the NUMA \
         that does not exist"
    )]
    UnknownNode { pod: PodUid, container: ContainerName },
    #[error(
        "[memorymanager] (pod: {pod}, container: {container}) the memory assignment uses memory \
         resource that does not exist"
    )]
    UnknownKind { pod: PodUid, container: ContainerName },
    #[error("[memorymanager] the expected machine state is different from the real one")]
    OtherMachine,
}

/// The memory manager's hints for a container or a pod.
#[derive(Clone, Debug)]
pub enum MemoryHints {
    /// The memory manager does not constrain it.
    None,
    /// No set of nodes suffices; merging treats that as "anywhere", so the refusal comes later.
    Nowhere,
    /// The same hints for each of these kinds.
    Each(Family, SmallVec<[MemoryKind; 2]>),
}

/// The guarantee that memory stays on its nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryGuarantee {
    /// `Static`: the operating system keeps memory on its nodes.
    Strict,
    /// `BestEffort`: it only tends to, depending on the CPUs of a container. Only containers have
    /// hints then, not pods.
    BestEffort,
}

/// The policy on one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticMemory {
    reserved: ReservedMemory,
    guarantee: MemoryGuarantee,
}

impl StaticMemory {
    pub fn new(
        reserved: ReservedMemory,
        guarantee: MemoryGuarantee,
    ) -> Result<StaticMemory, StaticMemoryError> {
        if reserved.total(MemoryKind::Memory) == 0 {
            return Err(StaticMemoryError::NothingReserved);
        }
        Ok(StaticMemory { reserved, guarantee })
    }

    #[must_use]
    pub fn guarantee(&self) -> MemoryGuarantee {
        self.guarantee
    }

    /// Returns a ledger without allocations.
    #[must_use]
    pub fn empty_ledger(&self, topology: &Topology) -> MemoryLedger {
        let nodes = topology
            .nodes()
            .iter()
            .enumerate()
            .map(|(position, node)| {
                let mut tables: SmallVec<[(MemoryKind, MemoryTable); 2]> = SmallVec::new();
                let mut in_huge_pages = 0u64;
                for pages in &node.huge_pages {
                    let kind = MemoryKind::HugePages(pages.page_size);
                    let total = pages.page_size.0.saturating_mul(pages.count);
                    in_huge_pages = in_huge_pages.saturating_add(total);
                    let reserved = self.reserved.get(position, kind);
                    tables.push((kind, MemoryTable::new(total, reserved, 0)));
                }
                let reserved = self.reserved.get(position, MemoryKind::Memory);
                let memory = MemoryTable::new(node.memory.0, reserved, in_huge_pages);
                tables.push((MemoryKind::Memory, memory));
                tables.sort_by_key(|(kind, _)| *kind);
                NodeState { assignments: 0, cells: NumaMask::single(position), tables }
            })
            .collect();
        MemoryLedger { nodes, ..MemoryLedger::default() }
    }

    /// Checks recorded state against the machine, as strictly as the kubelet. An entirely empty one
    /// is filled.
    pub fn check(
        &self,
        topology: &Topology,
        ledger: &mut MemoryLedger,
    ) -> Result<(), MemoryStateError> {
        if ledger.nodes.is_empty() {
            if !ledger.assignments.is_empty() {
                return Err(MemoryStateError::NoMachine);
            }
            *ledger = self.empty_ledger(topology);
            return Ok(());
        }
        let expected = self.recount(topology, ledger)?;
        if same_totals(&ledger.nodes, &expected) && same_reservations(&ledger.nodes, &expected) {
            Ok(())
        } else {
            Err(MemoryStateError::OtherMachine)
        }
    }

    /// Like [`StaticMemory::check`], but reservations that do not add up on an unchanged machine
    /// are recomputed from the blocks; returns true if that was needed. The kubelet's way of
    /// releasing memory lets reservations drift once a node has served both alone and in a group,
    /// and its own check then refuses to start.
    pub fn restore(
        &self,
        topology: &Topology,
        ledger: &mut MemoryLedger,
    ) -> Result<bool, MemoryStateError> {
        match self.check(topology, ledger) {
            Ok(()) => Ok(false),
            Err(MemoryStateError::OtherMachine) => {
                let expected = self.recount(topology, ledger)?;
                if !same_totals(&ledger.nodes, &expected) {
                    return Err(MemoryStateError::OtherMachine);
                }
                ledger.nodes = expected;
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }

    /// Computes the node states from the blocks alone.
    fn recount(
        &self,
        topology: &Topology,
        ledger: &MemoryLedger,
    ) -> Result<Vec<NodeState>, MemoryStateError> {
        let mut expected = self.empty_ledger(topology);
        for (pod, containers) in &ledger.assignments {
            for (container, blocks) in containers {
                for block in blocks {
                    if !block.nodes.is_subset(topology.all_nodes()) {
                        let (pod, container) = (pod.clone(), container.clone());
                        return Err(MemoryStateError::UnknownNode { pod, container });
                    }
                    let known = |node: usize| {
                        expected.nodes[node].tables.iter().any(|(k, _)| *k == block.kind)
                    };
                    if !block.nodes.iter().all(known) {
                        let (pod, container) = (pod.clone(), container.clone());
                        return Err(MemoryStateError::UnknownKind { pod, container });
                    }
                }
            }
        }
        // Blocks with the fewest nodes first; otherwise a group could fill the only node of another
        // block.
        let mut blocks: Vec<&Block> =
            ledger.assignments.values().flat_map(|pod| pod.values().flatten()).collect();
        blocks.sort_by_key(|block| block.nodes.len());
        for block in blocks {
            expected.take(block.nodes, block.kind, block.size);
        }
        Ok(expected.nodes)
    }

    /// The hints of one container.
    #[must_use]
    pub fn hints(&self, ledger: &MemoryLedger, demand: &Demand, container: usize) -> MemoryHints {
        let wanted = &demand.containers[container];
        let Some(amounts) = self.amounts(demand, wanted.memory.as_ref()) else {
            return MemoryHints::None;
        };
        match ledger.blocks(&demand.uid, &wanted.name) {
            Some(blocks) => hints_of_assigned(blocks, amounts),
            None => described(ledger, &demand.uid, amounts),
        }
    }

    /// The hints of a whole pod.
    #[must_use]
    pub fn pod_hints(&self, ledger: &MemoryLedger, demand: &Demand) -> MemoryHints {
        if self.guarantee == MemoryGuarantee::BestEffort {
            return MemoryHints::None;
        }
        let total = demand.pod_memory();
        let Some(amounts) = self.amounts(demand, total.as_ref()) else { return MemoryHints::None };
        let mut names = demand.containers.iter().map(|c| &c.name);
        match names.find_map(|name| ledger.blocks(&demand.uid, name)) {
            Some(blocks) => hints_of_assigned(blocks, amounts),
            None => described(ledger, &demand.uid, amounts),
        }
    }

    /// Returns the amounts if the pod gets memory from specific nodes.
    fn amounts<'a>(
        &self,
        demand: &Demand,
        amounts: Option<&'a MemoryAmounts>,
    ) -> Option<&'a MemoryAmounts> {
        amounts.filter(|_| demand.qos == QosClass::Guaranteed && !demand.pod_level)
    }

    /// Allocates memory to a container; `None` if it gets no specific nodes. Repeating it for a
    /// container that has its memory changes only what later containers may reuse. With `binding`
    /// the nodes are those of the container's CPUs and are used unchanged.
    pub fn allocate(
        &self,
        ledger: &mut MemoryLedger,
        demand: &Demand,
        container: usize,
        affinity: Hint,
        binding: bool,
    ) -> Result<Option<Blocks>, MemoryRefusal> {
        if demand.qos != QosClass::Guaranteed || demand.pod_level {
            return Ok(None);
        }
        let wanted = &demand.containers[container];
        if let Some(blocks) = ledger.blocks(&demand.uid, &wanted.name).cloned() {
            ledger.note_reuse(&demand.uid, wanted.role, &blocks);
            return Ok(Some(blocks));
        }
        let amounts = wanted.memory.as_ref().ok_or(MemoryRefusal::NotExact)?;
        let nodes = choose(ledger, &demand.uid, amounts, affinity, binding)?;
        let mut blocks = Blocks::new();
        for (kind, size) in amounts {
            blocks.push(Block { nodes, kind: *kind, size: size.0 });
            let reusable = ledger.reusable(&demand.uid, nodes, *kind);
            ledger.take(nodes, *kind, size.0.saturating_sub(reusable));
        }
        ledger.note_reuse(&demand.uid, wanted.role, &blocks);
        ledger
            .assignments
            .entry(demand.uid.clone())
            .or_default()
            .insert(wanted.name.clone(), blocks.clone());
        ledger.shrink_init_containers(demand, container, &blocks);
        Ok(Some(blocks))
    }
}

impl MemoryTable {
    /// Reserving more than there is leaves nothing; it does not wrap around.
    fn new(total: u64, system_reserved: u64, elsewhere: u64) -> MemoryTable {
        let allocatable = total.saturating_sub(system_reserved).saturating_sub(elsewhere);
        MemoryTable { total, system_reserved, allocatable, reserved: 0, free: allocatable }
    }
}

impl MemoryLedger {
    #[must_use]
    pub fn blocks(&self, pod: &PodUid, container: &str) -> Option<&Blocks> {
        self.assignments.get(pod)?.get(container)
    }

    fn reusable(&self, pod: &PodUid, nodes: NumaMask, kind: MemoryKind) -> u64 {
        let reuse = self.reuse.as_ref().filter(|(uid, _)| uid == pod);
        reuse
            .and_then(|(_, blocks)| blocks.iter().find(|b| b.nodes == nodes && b.kind == kind))
            .map_or(0, |block| block.size)
    }

    /// Reserves `size` on `nodes`, filling one after the other.
    fn take(&mut self, nodes: NumaMask, kind: MemoryKind, mut size: u64) {
        for node in nodes.iter() {
            let state = &mut self.nodes[node];
            state.assignments += 1;
            state.cells = nodes;
            if let Some(table) = state.table_mut(kind) {
                let part = size.min(table.free);
                table.reserved += part;
                table.free -= part;
                size -= part;
            }
        }
    }

    /// Reserves a recorded block.
    pub(crate) fn take_block(&mut self, block: &Block) {
        self.take(block.nodes, block.kind, block.size);
    }

    /// Releases the memory of a container.
    pub fn release(&mut self, pod: &PodUid, container: &str) {
        let Some(containers) = self.assignments.get_mut(pod) else { return };
        let Some(blocks) = containers.remove(container) else { return };
        if containers.is_empty() {
            self.assignments.remove(pod);
        }
        for block in blocks {
            let mut size = block.size;
            for node in block.nodes.iter() {
                let Some(state) = self.nodes.get_mut(node) else { continue };
                state.assignments = state.assignments.saturating_sub(1);
                if state.assignments == 0 {
                    state.cells = NumaMask::single(node);
                }
                if let Some(table) = state.table_mut(block.kind) {
                    let part = size.min(table.reserved);
                    table.reserved -= part;
                    table.free += part;
                    size -= part;
                }
            }
        }
    }

    /// Releases the memory of init containers that ended before a container starts.
    pub fn starting(&mut self, demand: &Demand, container: usize) {
        for earlier in demand.containers.iter().take(container) {
            if earlier.role == Role::Init {
                self.release(&demand.uid, &earlier.name);
            }
        }
    }

    /// An init container that ends before the next starts leaves its memory to later ones, the
    /// largest of each kind on the same nodes; memory that another container takes is no longer
    /// reusable.
    fn note_reuse(&mut self, pod: &PodUid, role: Role, blocks: &Blocks) {
        let mut reuse = match self.reuse.take() {
            Some((uid, reuse)) if uid == *pod => reuse,
            _ => Blocks::new(),
        };
        for block in blocks {
            let known = reuse.iter_mut().find(|b| b.nodes == block.nodes && b.kind == block.kind);
            match (role, known) {
                (Role::Init, Some(known)) => known.size = known.size.max(block.size),
                (Role::Init, None) => reuse.push(*block),
                (_, Some(known)) => known.size = known.size.saturating_sub(block.size),
                (_, None) => {}
            }
        }
        self.reuse = Some((pod.clone(), reuse));
    }

    /// Memory that a container reuses is subtracted from the init containers it came from, so that
    /// the blocks of a pod add up to its allocation.
    fn shrink_init_containers(&mut self, demand: &Demand, container: usize, blocks: &Blocks) {
        let Some(containers) = self.assignments.get_mut(&demand.uid) else { return };
        for block in blocks {
            let mut size = block.size;
            for earlier in demand.containers.iter().take(container) {
                if earlier.role != Role::Init {
                    continue;
                }
                for init in containers.get_mut(&earlier.name).into_iter().flatten() {
                    if init.kind == block.kind && init.nodes == block.nodes {
                        let part = size.min(init.size);
                        init.size -= part;
                        size -= part;
                    }
                }
            }
        }
    }

    fn free(&self, nodes: NumaMask, kind: MemoryKind) -> u64 {
        nodes.iter().fold(0, |sum: u64, n| sum.saturating_add(self.nodes[n].table(kind).free))
    }

    fn allocatable(&self, nodes: NumaMask, kind: MemoryKind) -> u64 {
        nodes
            .iter()
            .fold(0, |sum: u64, n| sum.saturating_add(self.nodes[n].table(kind).allocatable))
    }

    /// Returns true if grouping `nodes` would mix single and group use, or two groups.
    fn mixes_groups(&self, nodes: NumaMask) -> bool {
        nodes.len() > 1
            && nodes.iter().any(|n| {
                let state = &self.nodes[n];
                state.assignments > 0 && state.cells != nodes
            })
    }
}

/// Returns true if `nodes` could serve `amounts`, including what the pod may reuse.
fn serves(ledger: &MemoryLedger, pod: &PodUid, amounts: &MemoryAmounts, nodes: NumaMask) -> bool {
    let alone_in_group = nodes.len() == 1 && nodes.iter().any(|n| ledger.nodes[n].cells.len() > 1);
    !alone_in_group
        && !ledger.mixes_groups(nodes)
        && amounts.iter().all(|(kind, size)| {
            let reusable = ledger.reusable(pod, nodes, *kind);
            ledger.allocatable(nodes, *kind) >= size.0
                && ledger.free(nodes, *kind).saturating_add(reusable) >= size.0
        })
}

/// All sets of nodes that can serve `amounts`. Preferred are those with as few nodes as an empty
/// machine would need.
fn described(ledger: &MemoryLedger, pod: &PodUid, amounts: &MemoryAmounts) -> MemoryHints {
    if amounts.is_empty() {
        return MemoryHints::Nowhere;
    }
    let all = NumaMask::first(ledger.nodes.len());
    let dimensions = |amount: fn(&MemoryTable) -> u64| -> SmallVec<[Dimension; 1]> {
        amounts
            .iter()
            .map(|(kind, size)| {
                let mut weight = [0; MAX_NODES];
                for (position, node) in ledger.nodes.iter().enumerate() {
                    weight[position] = amount(&node.table(*kind));
                }
                Dimension { weight, need: size.0 }
            })
            .collect()
    };
    let size = smallest_size(&Threshold {
        ground: all,
        must: NumaMask::EMPTY,
        least: 1,
        dimensions: dimensions(|table| table.allocatable),
        preference: Preference::Size(0),
    })
    .unwrap_or(all.len());

    // Unused nodes can be grouped freely; each of the others can serve alone or in its group.
    let unused: NumaMask = all.iter().filter(|n| ledger.nodes[*n].assignments == 0).collect();
    let mut family = if unused.len() > 1 {
        Family::described(Threshold {
            ground: unused,
            must: NumaMask::EMPTY,
            least: 2,
            dimensions: dimensions(|table| table.free),
            preference: Preference::Size(size),
        })
    } else {
        Family::default()
    };
    let consider = |family: &mut Family, nodes: NumaMask| {
        if family.find(nodes).is_none() && serves(ledger, pod, amounts, nodes) {
            family.listed.push((nodes, nodes.len() == size));
        }
    };
    for node in all.iter() {
        consider(&mut family, NumaMask::single(node));
        consider(&mut family, ledger.nodes[node].cells);
    }
    if let Some((_, blocks)) = ledger.reuse.as_ref().filter(|(uid, _)| uid == pod) {
        for block in blocks {
            consider(&mut family, block.nodes);
        }
    }
    if family.is_empty() {
        return MemoryHints::Nowhere;
    }
    MemoryHints::Each(family, amounts.iter().map(|(kind, _)| *kind).collect())
}

/// Returns the hints of allocated memory: its nodes, or no constraint if it was allocated under
/// another request.
fn hints_of_assigned(blocks: &Blocks, amounts: &MemoryAmounts) -> MemoryHints {
    let as_requested = blocks.len() == amounts.len()
        && blocks.iter().all(|b| amounts.contains(&(b.kind, Bytes(b.size))));
    match blocks.first().filter(|_| as_requested) {
        Some(block) => MemoryHints::Each(
            Family::listed([(block.nodes, true)]),
            amounts.iter().map(|(kind, _)| *kind).collect(),
        ),
        None if as_requested => MemoryHints::Nowhere,
        None => MemoryHints::None,
    }
}

/// Returns the nodes to use: the agreed ones, widened until they suffice.
fn choose(
    ledger: &MemoryLedger,
    pod: &PodUid,
    amounts: &MemoryAmounts,
    affinity: Hint,
    binding: bool,
) -> Result<NumaMask, MemoryRefusal> {
    let all = NumaMask::first(ledger.nodes.len());
    let mut preferred = affinity.preferred;
    let mut nodes = match affinity.nodes.map(|nodes| nodes & all).filter(|n| !n.is_empty()) {
        Some(nodes) => nodes,
        None => {
            let (nodes, is_preferred) = best_containing(ledger, pod, amounts, NumaMask::EMPTY)
                .ok_or(MemoryRefusal::NoNodes)?;
            if preferred && !is_preferred {
                return Err(MemoryRefusal::NoPreferredNodes);
            }
            preferred = is_preferred;
            nodes
        }
    };
    let enough = amounts.iter().all(|(kind, size)| ledger.free(nodes, *kind) >= size.0);
    if !enough && !binding {
        let (wider, is_preferred) =
            best_containing(ledger, pod, amounts, nodes).ok_or(MemoryRefusal::CannotExtend)?;
        if preferred && !is_preferred {
            return Err(MemoryRefusal::CannotExtendPreferred);
        }
        nodes = wider;
    }
    if ledger.mixes_groups(nodes) {
        return Err(MemoryRefusal::MixedGroups);
    }
    Ok(nodes)
}

/// The best set of nodes that serves `amounts` and contains `nodes`: preferred ones first, then
/// the fewest, then the lowest.
fn best_containing(
    ledger: &MemoryLedger,
    pod: &PodUid,
    amounts: &MemoryAmounts,
    nodes: NumaMask,
) -> Option<(NumaMask, bool)> {
    let MemoryHints::Each(family, _) = described(ledger, pod, amounts) else { return None };
    let listed = family.listed.iter().copied().filter(|(mask, _)| nodes.is_subset(*mask));
    let described = family.threshold.iter().flat_map(|t| {
        let of_size = |size: usize| {
            fittest(
                t.ground,
                nodes,
                size,
                Fit::Lowest,
                |partial| t.dimensions.iter().all(|d| within_reach(d, partial)),
                |mask| t.contains(mask),
            )
        };
        let preferred = match t.preference {
            Preference::Size(size) if size >= t.least => of_size(size).map(|m| (m, true)),
            _ => None,
        };
        let fewest = (t.least..=t.ground.len()).find_map(of_size);
        [preferred, fewest.map(|m| (m, t.preference.holds(m)))]
    });
    listed
        .chain(described.flatten())
        .min_by_key(|(mask, preferred)| (!*preferred, mask.len(), mask.0))
}

/// Returns true if two machines have the same memory, regardless of reservations.
fn same_totals(recorded: &[NodeState], expected: &[NodeState]) -> bool {
    let totals = |nodes: &[NodeState]| -> Vec<(usize, MemoryKind, [u64; 3])> {
        let tables = nodes
            .iter()
            .enumerate()
            .flat_map(|(n, node)| node.tables.iter().map(move |(kind, table)| (n, *kind, *table)));
        tables.map(|(n, kind, t)| (n, kind, [t.total, t.system_reserved, t.allocatable])).collect()
    };
    recorded.len() == expected.len() && totals(recorded) == totals(expected)
}

/// Returns true if reservations add up, group by group, to the blocks: within a group the split may
/// differ.
fn same_reservations(recorded: &[NodeState], expected: &[NodeState]) -> bool {
    recorded.iter().zip(expected).all(|(a, b)| {
        a.assignments == b.assignments
            && a.cells == b.cells
            && a.tables.iter().all(|(kind, _)| {
                let sum = |nodes: &[NodeState], of: fn(&MemoryTable) -> u64| {
                    a.cells.iter().fold(0u64, |sum, n| {
                        let table = nodes.get(n).map(|node| node.table(*kind));
                        sum.saturating_add(table.as_ref().map_or(0, of))
                    })
                };
                sum(recorded, |t| t.free) == sum(expected, |t| t.free)
                    && sum(recorded, |t| t.reserved) == sum(expected, |t| t.reserved)
            })
    })
}
