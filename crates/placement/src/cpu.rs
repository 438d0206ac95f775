//! The CPU manager: decides which containers get exclusive CPUs, and which ones.
//!
//! Main types: [`StaticCpus`], the checked static policy, and [`CpuLedger`], its allocations.
//! Containers of Guaranteed pods that request whole CPUs get exclusive CPUs; all others share the
//! rest. [`pick`] chooses among free CPUs, and [`options`] has the options. Nothing here knows
//! memory or merges hints.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::affinity::search::smallest_size;
use crate::affinity::{Dimension, Family, Hint, Preference, Threshold};
use crate::alignment::AlignmentPolicy;
use crate::cpuset::CpuSet;
use crate::demand::{ContainerName, Demand, PodUid, Role};
use crate::ids::CpuId;
use crate::numa::{MAX_NODES, NumaMask};
use crate::topology::Topology;

pub mod distribute;
pub mod options;
pub mod pick;

use options::{CpuOptions, OptionsError};
use pick::{NotEnoughCpus, pick};

/// The static policy on one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticCpus {
    options: CpuOptions,
    reserved: CpuSet,
    /// Reserved CPUs and their siblings.
    reserved_cores: CpuSet,
}

/// The CPUs reserved for the system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    pub count: usize,
    /// If empty, the policy chooses `count` CPUs.
    pub cpus: CpuSet,
}

/// The reason why the static policy cannot be used. The texts are the kubelet's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StaticCpusError {
    #[error(transparent)]
    Options(#[from] OptionsError),
    #[error(
        "Topolgy manager {policy} policy is incompatible with CPUManager {option} policy option",
        policy = AlignmentPolicy::SingleNumaNode.name(),
        option = options::ALIGN_BY_SOCKET
    )]
    AlignBySocketOnOneNode,
    #[error(
        "Align by socket is not compatible with hardware where number of sockets are more than \
         number of NUMA"
    )]
    AlignBySocketHardware,
    #[error(
        "[cpumanager] unable to reserve the required amount of CPUs (size of {cpus} did not equal \
         {count})"
    )]
    Reserve { cpus: CpuSet, count: usize },
    #[error(
        "[cpumanager] unable to build the reserved physical CPUs from the reserved set: unknown \
         CPU ID: {0}"
    )]
    UnknownReserved(CpuId),
}

/// The reason why a container cannot get its CPUs. The texts are the kubelet's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CpuRefusal {
    #[error(transparent)]
    NotEnough(#[from] NotEnoughCpus),
    #[error(
        "SMT Alignment Error: requested {requested} cpus not multiple cpus per core = {per_core}"
    )]
    NotWholeCores { requested: usize, per_core: usize },
    #[error(
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = \
         {available}, requested CPUs = {requested}, CPUs per core = {per_core}"
    )]
    NotEnoughCores { requested: usize, available: usize, per_core: usize },
}

/// The reason why recorded CPUs do not fit the machine or the configuration. The texts are the
/// kubelet's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CpuStateError {
    #[error("default cpuset cannot be empty")]
    EmptySharedPool,
    #[error("not all reserved cpus: \"{reserved}\" are present in defaultCpuSet: \"{shared}\"")]
    ReservedNotShared { reserved: CpuSet, shared: CpuSet },
    #[error(
        "some of strictly reserved cpus: \"{reserved}\" are present in defaultCpuSet: \"{shared}\""
    )]
    StrictlyReservedShared { reserved: CpuSet, shared: CpuSet },
    #[error(
        "pod: {pod}, container: {container} cpuset: \"{cpus}\" overlaps with default cpuset \
         \"{shared}\""
    )]
    ExclusiveShared { pod: PodUid, container: ContainerName, cpus: CpuSet, shared: CpuSet },
    #[error(
        "current set of available CPUs \"{machine}\" doesn't match with CPUs in state \"{state}\""
    )]
    OtherCpus { machine: CpuSet, state: CpuSet },
}

/// The allocations of the CPU manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuLedger {
    /// The shared pool: CPUs that are not exclusive to a container.
    pub shared: CpuSet,
    pub assignments: BTreeMap<PodUid, BTreeMap<ContainerName, CpuSet>>,
    /// CPUs of finished init containers of one pod, free for its later containers. Only the pod
    /// that was placed last has them; they are not kept across restarts.
    pub reuse: Option<(PodUid, CpuSet)>,
}

impl CpuLedger {
    #[must_use]
    pub fn assigned(&self, pod: &PodUid, container: &str) -> Option<&CpuSet> {
        self.assignments.get(pod)?.get(container)
    }

    fn reusable(&self, pod: &PodUid) -> CpuSet {
        match &self.reuse {
            Some((uid, cpus)) if uid == pod => cpus.clone(),
            _ => CpuSet::new(),
        }
    }

    /// Returns all exclusive CPUs, without those of the pod `except`.
    #[must_use]
    pub fn exclusive(&self, except: Option<&PodUid>) -> CpuSet {
        let mut cpus = CpuSet::new();
        for (pod, containers) in &self.assignments {
            if except != Some(pod) {
                containers.values().for_each(|set| cpus.union_with(set));
            }
        }
        cpus
    }

    /// Releases a container's CPUs, except those that another container of the pod still has.
    pub fn release(&mut self, pod: &PodUid, container: &str) {
        let Some(containers) = self.assignments.get_mut(pod) else { return };
        let Some(mut freed) = containers.remove(container) else { return };
        for kept in containers.values() {
            freed.subtract(kept);
        }
        if containers.is_empty() {
            self.assignments.remove(pod);
        }
        self.shared.union_with(&freed);
    }
}

impl StaticCpus {
    pub fn new(
        topology: &Topology,
        options: CpuOptions,
        reservation: &Reservation,
        alignment: AlignmentPolicy,
    ) -> Result<StaticCpus, StaticCpusError> {
        if options.align_by_socket {
            if alignment == AlignmentPolicy::SingleNumaNode {
                return Err(StaticCpusError::AlignBySocketOnOneNode);
            }
            if topology.sockets().len() > topology.nodes_with_cpus().len() {
                return Err(StaticCpusError::AlignBySocketHardware);
            }
        }
        let count = reservation.count;
        let reserved = if reservation.cpus.is_empty() {
            pick(topology, topology.all_cpus(), count, options.reserving(topology))
                .unwrap_or_default()
        } else {
            reservation.cpus.clone()
        };
        if reserved.len() != count {
            return Err(StaticCpusError::Reserve { cpus: reserved, count });
        }
        if let Some(unknown) = (&reserved - topology.all_cpus()).first() {
            return Err(StaticCpusError::UnknownReserved(unknown));
        }
        let reserved_cores = topology.whole_cores(&reserved);
        Ok(StaticCpus { options, reserved, reserved_cores })
    }

    #[must_use]
    pub fn options(&self) -> &CpuOptions {
        &self.options
    }

    #[must_use]
    pub fn reserved(&self) -> &CpuSet {
        &self.reserved
    }

    /// Returns the CPUs that could be allocated on an empty machine.
    #[must_use]
    pub fn allocatable(&self, topology: &Topology) -> CpuSet {
        topology.all_cpus() - &self.reserved
    }

    /// Returns the CPUs that can be allocated now.
    #[must_use]
    pub fn available(&self, ledger: &CpuLedger) -> CpuSet {
        &ledger.shared - &self.reserved
    }

    /// Returns a ledger without allocations.
    #[must_use]
    pub fn empty_ledger(&self, topology: &Topology) -> CpuLedger {
        CpuLedger { shared: self.pool(topology), ..CpuLedger::default() }
    }

    /// Returns all CPUs that are shared or allocated.
    fn pool(&self, topology: &Topology) -> CpuSet {
        if self.options.strict_reservation {
            self.allocatable(topology)
        } else {
            topology.all_cpus().clone()
        }
    }

    /// Checks recorded state in the kubelet's order. An empty one is filled.
    pub fn check(&self, topology: &Topology, ledger: &mut CpuLedger) -> Result<(), CpuStateError> {
        if ledger.shared.is_empty() {
            if ledger.assignments.is_empty() {
                ledger.shared = self.pool(topology);
                return Ok(());
            }
            // The kubelet never starts with an empty pool. If reserved CPUs are not part of it,
            // allocating all others is legitimate and must not block a restart.
            if ledger.exclusive(None) != self.pool(topology) {
                return Err(CpuStateError::EmptySharedPool);
            }
        }
        let reserved_shared = &self.reserved & &ledger.shared;
        if self.options.strict_reservation {
            if !reserved_shared.is_empty() {
                return Err(CpuStateError::StrictlyReservedShared {
                    reserved: reserved_shared,
                    shared: ledger.shared.clone(),
                });
            }
        } else if reserved_shared != self.reserved {
            return Err(CpuStateError::ReservedNotShared {
                reserved: self.reserved.clone(),
                shared: ledger.shared.clone(),
            });
        }
        let mut known = ledger.shared.clone();
        for (pod, containers) in &ledger.assignments {
            for (container, cpus) in containers {
                if !cpus.is_disjoint(&ledger.shared) {
                    return Err(CpuStateError::ExclusiveShared {
                        pod: pod.clone(),
                        container: container.clone(),
                        cpus: cpus.clone(),
                        shared: ledger.shared.clone(),
                    });
                }
                known.union_with(cpus);
            }
        }
        let machine = self.pool(topology);
        if known != machine {
            return Err(CpuStateError::OtherCpus { machine, state: known });
        }
        Ok(())
    }

    /// Returns the hints of one container; `None` if the policy does not constrain it.
    #[must_use]
    pub fn hints(
        &self,
        topology: &Topology,
        ledger: &CpuLedger,
        demand: &Demand,
        container: usize,
    ) -> Option<Family> {
        let requested = demand.exclusive_cpus(container)?;
        if let Some(assigned) = ledger.assigned(&demand.uid, &demand.containers[container].name) {
            return Some(self.hints_of_assigned(topology, assigned, requested));
        }
        let reusable = ledger.reusable(&demand.uid);
        Some(self.family(topology, &self.available(ledger), &reusable, requested))
    }

    /// Returns the hints of a whole pod; `None` if the policy does not constrain it.
    #[must_use]
    pub fn pod_hints(
        &self,
        topology: &Topology,
        ledger: &CpuLedger,
        demand: &Demand,
    ) -> Option<Family> {
        let requested = demand.pod_exclusive_cpus()?;
        let mut assigned = CpuSet::new();
        for (index, container) in demand.containers.iter().enumerate() {
            if let Some(cpus) = ledger.assigned(&demand.uid, &container.name) {
                if cpus.len() != demand.exclusive_cpus(index).unwrap_or(0) {
                    return Some(Family::anywhere(false));
                }
                assigned.union_with(cpus);
            }
        }
        if assigned.len() == requested {
            return Some(self.family(topology, &assigned, &CpuSet::new(), requested));
        }
        assigned.union_with(&ledger.reusable(&demand.uid));
        Some(self.family(topology, &self.available(ledger), &assigned, requested))
    }

    fn hints_of_assigned(
        &self,
        topology: &Topology,
        assigned: &CpuSet,
        requested: usize,
    ) -> Family {
        if assigned.len() == requested {
            self.family(topology, assigned, &CpuSet::new(), requested)
        } else {
            // Assigned under another request, which cannot be satisfied.
            Family::anywhere(false)
        }
    }

    /// All sets of nodes that hold all reusable CPUs and, counting those, enough available ones.
    /// Preferred are those with as few nodes as an empty machine would need.
    fn family(
        &self,
        topology: &Topology,
        available: &CpuSet,
        reusable: &CpuSet,
        requested: usize,
    ) -> Family {
        let ground = topology.nodes_with_cpus();
        let mut total = Dimension { weight: [0; MAX_NODES], need: requested as u64 };
        // A CPU that is reusable and available counts twice, as in the kubelet.
        let need = requested.saturating_sub(reusable.len()) as u64;
        let mut free = Dimension { weight: [0; MAX_NODES], need };
        for (position, node) in topology.nodes().iter().enumerate() {
            total.weight[position] = node.cpus.len() as u64;
            free.weight[position] = node.cpus.count_common(available) as u64;
        }
        let size = smallest_size(&Threshold {
            ground,
            must: NumaMask::EMPTY,
            least: 1,
            dimensions: smallvec::smallvec![total],
            preference: Preference::Size(0),
        })
        .unwrap_or(ground.len());
        let family = Family::described(Threshold {
            ground,
            must: topology.nodes_of(reusable),
            least: 1,
            dimensions: smallvec::smallvec![free],
            preference: self.preference(topology, size),
        });
        if family.is_empty() { Family::anywhere(false) } else { family }
    }

    fn preference(&self, topology: &Topology, size: usize) -> Preference {
        let nodes_per_socket = topology.nodes_with_cpus().len() / topology.sockets().len();
        if !self.options.align_by_socket || nodes_per_socket == 0 {
            return Preference::Size(size);
        }
        let mut sockets_of = Box::new([0; MAX_NODES]);
        for (position, node) in topology.nodes().iter().enumerate() {
            // There are no more sockets than nodes under this option, so they fit a word.
            sockets_of[position] = node.sockets.iter().fold(0, |set, s| set | 1u64 << s);
        }
        let sockets = size.div_ceil(nodes_per_socket);
        Preference::SizeOrSockets { size, sockets, sockets_of }
    }

    /// Allocates CPUs to a container; `None` if it shares. Repeating it for a container that has
    /// its CPUs changes only what later containers may reuse.
    pub fn allocate(
        &self,
        topology: &Topology,
        ledger: &mut CpuLedger,
        demand: &Demand,
        container: usize,
        affinity: Hint,
    ) -> Result<Option<CpuSet>, CpuRefusal> {
        let Some(requested) = demand.exclusive_cpus(container) else { return Ok(None) };
        let name = &demand.containers[container].name;
        let role = demand.containers[container].role;
        if let Some(cpus) = ledger.assigned(&demand.uid, name).cloned() {
            note_reuse(ledger, &demand.uid, role, &cpus);
            return Ok(Some(cpus));
        }
        if self.options.full_cores {
            self.check_whole_cores(topology, ledger, requested)?;
        }
        let mut free = self.available(ledger);
        free.union_with(&ledger.reusable(&demand.uid));
        let cpus = self.choose(topology, &free, requested, affinity)?;
        ledger.shared.subtract(&cpus);
        ledger
            .assignments
            .entry(demand.uid.clone())
            .or_default()
            .insert(name.clone(), cpus.clone());
        note_reuse(ledger, &demand.uid, role, &cpus);
        Ok(Some(cpus))
    }

    /// Changes the number of CPUs of a container: it keeps as many as possible, and additional ones
    /// come from `free`, as near to its own as possible.
    pub fn change(
        &self,
        topology: &Topology,
        own: &CpuSet,
        requested: usize,
        free: &CpuSet,
    ) -> Result<CpuSet, CpuRefusal> {
        let per_core = topology.cpus_per_core();
        if self.options.full_cores && !requested.is_multiple_of(per_core) {
            return Err(CpuRefusal::NotWholeCores { requested, per_core });
        }
        if requested <= own.len() {
            return Ok(pick(topology, own, requested, self.options.picking(topology))?);
        }
        let near = Hint { nodes: Some(topology.nodes_of(own)), ..Hint::NOWHERE };
        let more = self.choose(topology, free, requested - own.len(), near)?;
        Ok(own | &more)
    }

    fn check_whole_cores(
        &self,
        topology: &Topology,
        ledger: &CpuLedger,
        requested: usize,
    ) -> Result<(), CpuRefusal> {
        let per_core = topology.cpus_per_core();
        if !requested.is_multiple_of(per_core) {
            return Err(CpuRefusal::NotWholeCores { requested, per_core });
        }
        let available = (&ledger.shared - &self.reserved_cores).len();
        if requested > available {
            return Err(CpuRefusal::NotEnoughCores { requested, available, per_core });
        }
        Ok(())
    }

    /// Takes as many as possible on the agreed nodes, and the rest anywhere.
    fn choose(
        &self,
        topology: &Topology,
        free: &CpuSet,
        requested: usize,
        affinity: Hint,
    ) -> Result<CpuSet, NotEnoughCpus> {
        let picking = self.options.picking(topology);
        let mut cpus = CpuSet::new();
        if let Some(nodes) = affinity.nodes {
            let aligned = free & &self.aligned_with(topology, nodes);
            cpus = pick(topology, &aligned, requested.min(aligned.len()), picking)?;
        }
        if cpus.len() < requested {
            let rest = pick(topology, &(free - &cpus), requested - cpus.len(), picking)?;
            cpus.union_with(&rest);
        }
        Ok(cpus)
    }

    fn aligned_with(&self, topology: &Topology, nodes: NumaMask) -> CpuSet {
        if !self.options.align_by_socket {
            return topology.cpus_in(nodes);
        }
        let mut cpus = CpuSet::new();
        for node in nodes.iter().filter_map(|n| topology.nodes().get(n)) {
            for socket in &node.sockets {
                cpus.union_with(&topology.sockets()[*socket as usize].cpus);
            }
        }
        cpus
    }
}

/// An init container that ends before the next starts leaves its CPUs to later containers; CPUs
/// that another container takes are no longer reusable.
fn note_reuse(ledger: &mut CpuLedger, pod: &PodUid, role: Role, cpus: &CpuSet) {
    let mut reuse = ledger.reusable(pod);
    match role {
        Role::Init => reuse.union_with(cpus),
        Role::Sidecar | Role::App => reuse.subtract(cpus),
    }
    ledger.reuse = Some((pod.clone(), reuse));
}
