//! Converts ledgers to state files and back: restarts, imports from a kubelet, migrations.
//!
//! Main entries: [`states_of`] (the states to write), [`restore`] (strict: the state must fit) and
//! [`migrate`] (keeps what still fits and names the rest). [`recover`] rebuilds a ledger whose file
//! was lost. [`crate::state_file`] reads and writes the texts; nothing here accesses a disk.

use std::collections::BTreeMap;
use std::fmt;

use thiserror::Error;

use crate::cpu::CpuLedger;
use crate::cpuset::CpuSet;
use crate::demand::{ContainerName, MemoryKind, PodUid};
use crate::ids::{Bytes, NumaId};
use crate::ledger::Ledger;
use crate::memory::{
    Block, Blocks, MemoryGuarantee, MemoryLedger, MemoryStateError, MemoryTable, NodeState,
};
use crate::node::{CpuPolicy, MemoryPolicy, Node, RestoredLedger, StateError};
use crate::numa::NumaMask;
use crate::state_file::{self, CpuState, MemoryState};

impl CpuPolicy {
    /// The policy's name, as configured and as written to the state file.
    #[must_use]
    pub fn policy_name(&self) -> &'static str {
        match self {
            CpuPolicy::None => "none",
            CpuPolicy::Static(_) => "static",
        }
    }
}

impl MemoryPolicy {
    /// The policy's name, as configured and as written to the state file.
    #[must_use]
    pub fn policy_name(&self) -> &'static str {
        match self {
            MemoryPolicy::None => "None",
            MemoryPolicy::Static(policy) => match policy.guarantee() {
                MemoryGuarantee::Strict => "Static",
                MemoryGuarantee::BestEffort => "BestEffort",
            },
        }
    }
}

/// Returns the states to write for a ledger.
#[must_use]
pub fn states_of(node: &Node, ledger: &Ledger) -> (CpuState, MemoryState) {
    let mut cpu = CpuState::empty(node.cpu.policy_name());
    cpu.default_cpus = ledger.cpu.shared.clone();
    for (pod, containers) in &ledger.cpu.assignments {
        let entry = cpu.entries.entry(pod.to_string()).or_default();
        entry.extend(containers.iter().map(|(name, cpus)| (name.to_string(), cpus.clone())));
    }
    let mut memory = MemoryState::empty(node.memory.policy_name());
    let ids = |mask: NumaMask| node.topology.node_ids(mask).collect::<Vec<NumaId>>();
    for (position, state) in ledger.memory.nodes.iter().enumerate() {
        let Some(id) = node.topology.nodes().get(position).map(|n| n.id) else { continue };
        let tables = state.tables.iter().map(|(kind, t)| {
            let table = state_file::MemoryTable {
                total: Bytes(t.total),
                system_reserved: Bytes(t.system_reserved),
                allocatable: Bytes(t.allocatable),
                reserved: Bytes(t.reserved),
                free: Bytes(t.free),
            };
            (kind.to_string(), table)
        });
        let written = state_file::NodeState {
            assignments: i64::try_from(state.assignments).unwrap_or(i64::MAX),
            cells: ids(state.cells),
            memory: tables.collect(),
        };
        memory.nodes.insert(id, written);
    }
    for (pod, containers) in &ledger.memory.assignments {
        let entry = memory.entries.entry(pod.to_string()).or_default();
        for (name, blocks) in containers {
            let blocks = blocks.iter().map(|block| state_file::Block {
                numa: ids(block.nodes),
                resource: block.kind.to_string(),
                size: Bytes(block.size),
            });
            entry.insert(name.to_string(), blocks.collect());
        }
    }
    (cpu, memory)
}

/// Restores the ledger of states that must fit the node; the errors are the kubelet's.
pub fn restore(
    node: &Node,
    cpu: &CpuState,
    memory: &MemoryState,
) -> Result<RestoredLedger, StateError> {
    node.restore(Ledger { cpu: cpu_ledger(cpu), memory: memory_ledger(node, memory)? })
}

fn cpu_ledger(state: &CpuState) -> CpuLedger {
    let mut ledger = CpuLedger { shared: state.default_cpus.clone(), ..CpuLedger::default() };
    for (pod, containers) in &state.entries {
        let entry = ledger.assignments.entry(PodUid::new(pod)).or_default();
        entry.extend(containers.iter().map(|(n, cpus)| (ContainerName::new(n), cpus.clone())));
    }
    ledger
}

fn memory_ledger(node: &Node, state: &MemoryState) -> Result<MemoryLedger, MemoryStateError> {
    let topology = &node.topology;
    let mut ledger = MemoryLedger::default();
    if state.nodes.is_empty() && state.entries.is_empty() {
        return Ok(ledger);
    }
    if !state.nodes.is_empty() && state.nodes.len() != topology.nodes().len() {
        return Err(MemoryStateError::OtherMachine);
    }
    for (id, written) in &state.nodes {
        let cells = mask_of(node, &written.cells).ok_or(MemoryStateError::OtherMachine)?;
        if topology.node_position(*id) != Some(ledger.nodes.len()) {
            return Err(MemoryStateError::OtherMachine);
        }
        let tables = written.memory.iter().map(|(name, t)| {
            let table = MemoryTable {
                total: t.total.0,
                system_reserved: t.system_reserved.0,
                allocatable: t.allocatable.0,
                reserved: t.reserved.0,
                free: t.free.0,
            };
            Some((MemoryKind::parse(name)?, table))
        });
        let mut node_state = NodeState {
            assignments: u64::try_from(written.assignments).unwrap_or(u64::MAX),
            cells,
            tables: tables.collect::<Option<_>>().ok_or(MemoryStateError::OtherMachine)?,
        };
        node_state.tables.sort_by_key(|(kind, _)| *kind);
        ledger.nodes.push(node_state);
    }
    for (pod, containers) in &state.entries {
        let pod = PodUid::new(pod);
        for (name, blocks) in containers {
            let container = ContainerName::new(name);
            let blocks = read_blocks(node, blocks).map_err(|fault| {
                let (pod, container) = (pod.clone(), container.clone());
                match fault {
                    BlockFault::Node(_) => MemoryStateError::UnknownNode { pod, container },
                    BlockFault::Kind(_) => MemoryStateError::UnknownKind { pod, container },
                }
            })?;
            ledger.assignments.entry(pod.clone()).or_default().insert(container, blocks);
        }
    }
    Ok(ledger)
}

enum BlockFault {
    Node(NumaId),
    Kind(String),
}

fn read_blocks(node: &Node, written: &[state_file::Block]) -> Result<Blocks, BlockFault> {
    let mut blocks = Blocks::new();
    for block in written {
        let missing = block.numa.iter().find(|id| node.topology.node_position(**id).is_none());
        if let Some(missing) = missing {
            return Err(BlockFault::Node(*missing));
        }
        let kind = MemoryKind::parse(&block.resource)
            .ok_or_else(|| BlockFault::Kind(block.resource.clone()))?;
        let nodes = mask_of(node, &block.numa).unwrap_or_default();
        blocks.push(Block { nodes, kind, size: block.size.0 });
    }
    blocks.sort_by_key(|block| block.kind);
    Ok(blocks)
}

fn mask_of(node: &Node, ids: &[NumaId]) -> Option<NumaMask> {
    ids.iter().map(|id| node.topology.node_position(*id)).collect()
}

/// The CPUs that running containers may use, by pod and container.
pub type CpusInUse = BTreeMap<PodUid, BTreeMap<ContainerName, CpuSet>>;

/// Allocates the CPUs that running containers use exclusively, and returns these containers. This
/// is for a ledger whose file was lost: the runtime still has the CPUs of each container.
///
/// A container uses its CPUs exclusively if none of them is reserved and no other pod may use one.
/// A shared container fails this, because the shared pool contains the reserved CPUs. With strict
/// reservation the only shared pod of a node passes, so the caller compares with the pod's demand
/// when it knows the pod. Pods that are in the ledger are left unchanged.
pub fn recover(node: &Node, ledger: &mut Ledger, running: &CpusInUse) -> CpusInUse {
    let mut recovered = CpusInUse::new();
    let CpuPolicy::Static(policy) = &node.cpu else { return recovered };
    for (pod, containers) in running {
        if ledger.cpu.assignments.contains_key(pod) {
            continue;
        }
        let others = running.iter().filter(|(other, _)| *other != pod);
        let others: Vec<&CpuSet> = others.flat_map(|(_, containers)| containers.values()).collect();
        for (container, cpus) in containers {
            let is_own = !cpus.is_empty()
                && cpus.is_subset(&policy.allocatable(&node.topology))
                && others.iter().all(|other| cpus.is_disjoint(other))
                && cpus.is_disjoint(&ledger.cpu.exclusive(Some(pod)));
            if is_own {
                ledger.cpu.shared.subtract(cpus);
                let own = ledger.cpu.assignments.entry(pod.clone()).or_default();
                own.insert(container.clone(), cpus.clone());
                let own = recovered.entry(pod.clone()).or_default();
                own.insert(container.clone(), cpus.clone());
            }
        }
    }
    recovered
}

/// An assignment that a migration could not keep, or had to correct.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Change {
    #[error("{manager} policy was {from:?} and is {to:?}: {}", policy_effect(to))]
    Policy { manager: &'static str, from: String, to: &'static str },
    #[error(
        "pod {pod}, container {container}: its CPUs {cpus} are released: {why}; it gets others \
         when the pod is admitted again"
    )]
    CpusReleased { pod: String, container: String, cpus: CpuSet, why: CpuFault },
    #[error("the shared pool was \"{from}\" and is \"{to}\"")]
    SharedPool { from: CpuSet, to: CpuSet },
    #[error(
        "pod {pod}, container {container}: its memory is released: {why}; it gets other memory \
         when the pod is admitted again"
    )]
    MemoryReleased { pod: String, container: String, why: MemoryFault },
    #[error("memory reservations were recomputed from the containers' blocks")]
    MemoryRecounted,
    #[error("pod {pod}: its pod-level resources are released, because no policy here assigns them")]
    PodLevelReleased { pod: String },
}

fn policy_effect(to: &str) -> &'static str {
    if to.eq_ignore_ascii_case("none") {
        "nothing is assigned any more"
    } else {
        "running containers get theirs when their pods are admitted again"
    }
}

/// The reason why CPUs cannot be kept.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CpuFault {
    #[error("the machine has no CPU {0} (any more)")]
    Missing(CpuSet),
    #[error("CPU {0} is reserved for the system now")]
    Reserved(CpuSet),
    #[error("CPU {cpus} belongs to pod {other} as well")]
    HeldTwice { cpus: CpuSet, other: String },
}

/// The reason why memory cannot be kept.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MemoryFault {
    #[error("the machine has no NUMA node {0} (any more)")]
    Node(NumaId),
    #[error("{0} is not there on its nodes (any more)")]
    Kind(String),
    #[error("its nodes have only {free} of {kind} left for the {wanted} it had")]
    TooLittle { kind: String, wanted: Bytes, free: Bytes },
}

/// The result of a migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migration {
    pub ledger: Ledger,
    pub changes: Vec<Change>,
}

/// Keeps everything that still fits the machine and the configuration, and names the rest.
/// Containers keep running either way; those that lost resources get new ones when their pods are
/// admitted again.
#[must_use]
pub fn migrate(node: &Node, cpu: &CpuState, memory: &MemoryState) -> Migration {
    let mut changes = Vec::new();
    let cpu = migrate_cpus(node, cpu, &mut changes);
    let memory = migrate_memory(node, memory, &mut changes);
    Migration { ledger: Ledger { cpu, memory }, changes }
}

fn note_policy(manager: &'static str, from: &str, to: &'static str, changes: &mut Vec<Change>) {
    if from != to {
        changes.push(Change::Policy { manager, from: from.to_owned(), to });
    }
}

fn migrate_cpus(node: &Node, state: &CpuState, changes: &mut Vec<Change>) -> CpuLedger {
    note_policy("CPU manager", &state.policy, node.cpu.policy_name(), changes);
    let CpuPolicy::Static(policy) = &node.cpu else { return CpuLedger::default() };
    let mut ledger = policy.empty_ledger(&node.topology);
    let mut held: BTreeMap<&str, CpuSet> = BTreeMap::new();
    for (pod, containers) in &state.entries {
        for (container, cpus) in containers {
            let missing = cpus - node.topology.all_cpus();
            let reserved = cpus & policy.reserved();
            let twice = held.iter().find(|(other, h)| **other != pod && !h.is_disjoint(cpus));
            let why = if !missing.is_empty() {
                CpuFault::Missing(missing)
            } else if !reserved.is_empty() {
                CpuFault::Reserved(reserved)
            } else if let Some((other, theirs)) = twice {
                CpuFault::HeldTwice { cpus: cpus & theirs, other: (*other).to_owned() }
            } else {
                held.entry(pod).or_default().union_with(cpus);
                ledger.shared.subtract(cpus);
                let entry = ledger.assignments.entry(PodUid::new(pod)).or_default();
                entry.insert(ContainerName::new(container), cpus.clone());
                continue;
            };
            let (pod, container, cpus) = (pod.clone(), container.clone(), cpus.clone());
            changes.push(Change::CpusReleased { pod, container, cpus, why });
        }
    }
    for pod in state.pod_cpus.keys() {
        changes.push(Change::PodLevelReleased { pod: pod.clone() });
    }
    if !state.default_cpus.is_empty() && state.default_cpus != ledger.shared {
        let (from, to) = (state.default_cpus.clone(), ledger.shared.clone());
        changes.push(Change::SharedPool { from, to });
    }
    ledger
}

fn migrate_memory(node: &Node, state: &MemoryState, changes: &mut Vec<Change>) -> MemoryLedger {
    note_policy("memory manager", &state.policy, node.memory.policy_name(), changes);
    let MemoryPolicy::Static(policy) = &node.memory else { return MemoryLedger::default() };
    let mut ledger = policy.empty_ledger(&node.topology);
    let mut kept: Vec<(&String, &String, Blocks)> = Vec::new();
    for (pod, containers) in &state.entries {
        for (container, written) in containers {
            let blocks = match read_blocks(node, written) {
                Ok(blocks) => blocks,
                Err(fault) => {
                    let why = match fault {
                        BlockFault::Node(id) => MemoryFault::Node(id),
                        BlockFault::Kind(kind) => MemoryFault::Kind(kind),
                    };
                    let (pod, container) = (pod.clone(), container.clone());
                    changes.push(Change::MemoryReleased { pod, container, why });
                    continue;
                }
            };
            kept.push((pod, container, blocks));
        }
    }
    // Blocks with the fewest nodes first.
    kept.sort_by_key(|(_, _, blocks)| blocks.iter().map(|b| b.nodes.len()).min());
    for (pod, container, blocks) in kept {
        if let Some(why) = ledger.cannot_hold(&blocks) {
            let (pod, container) = (pod.clone(), container.clone());
            changes.push(Change::MemoryReleased { pod, container, why });
            continue;
        }
        ledger.hold(&PodUid::new(pod), &ContainerName::new(container), blocks);
    }
    for pod in state.pod_blocks.keys() {
        changes.push(Change::PodLevelReleased { pod: pod.clone() });
    }
    let before = memory_ledger(node, state).map(|before| before.nodes);
    let same = before.is_ok_and(|before| before.is_empty() || before == ledger.nodes);
    if !same && !changes.iter().any(|c| matches!(c, Change::MemoryReleased { .. })) {
        changes.push(Change::MemoryRecounted);
    }
    ledger
}

impl MemoryLedger {
    /// Returns the reason why the blocks of a container cannot be reserved; `None` if they can.
    fn cannot_hold(&self, blocks: &Blocks) -> Option<MemoryFault> {
        blocks.iter().find_map(|block| {
            let tables = block.nodes.iter().map(|n| {
                self.nodes.get(n)?.tables.iter().find(|(k, _)| *k == block.kind).map(|(_, t)| t)
            });
            let Some(tables) = tables.collect::<Option<Vec<_>>>() else {
                return Some(MemoryFault::Kind(block.kind.to_string()));
            };
            let free = tables.iter().fold(0u64, |sum, table| sum.saturating_add(table.free));
            (free < block.size).then(|| MemoryFault::TooLittle {
                kind: block.kind.to_string(),
                wanted: Bytes(block.size),
                free: Bytes(free),
            })
        })
    }

    fn hold(&mut self, pod: &PodUid, container: &ContainerName, blocks: Blocks) {
        for block in &blocks {
            self.take_block(block);
        }
        self.assignments.entry(pod.clone()).or_default().insert(container.clone(), blocks);
    }
}

impl fmt::Display for Migration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.changes.iter().try_for_each(|change| writeln!(f, "{change}"))
    }
}
