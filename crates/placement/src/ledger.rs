//! The allocations of a node.
//!
//! Main type: [`Ledger`]. Only [`Ledger::commit`] and the `release` functions change it;
//! [`crate::plan`] decides, and the agent writes the ledger to disk.

use crate::cpu::CpuLedger;
use crate::demand::{ContainerName, Demand, PodUid};
use crate::memory::{MemoryGuarantee, MemoryLedger};
use crate::node::{MemoryPolicy, Node};
use crate::plan::Placement;

/// CPUs and memory allocated on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    pub cpu: CpuLedger,
    pub memory: MemoryLedger,
}

impl Ledger {
    /// Returns the part of the ledger that planning a pod depends on: the free resources, and the
    /// pod's own. The cost does not depend on the number of other pods.
    #[must_use]
    pub(crate) fn draft_for(&self, pod: &PodUid) -> Ledger {
        let own = |uid: &PodUid| uid == pod;
        let mut cpu = CpuLedger {
            shared: self.cpu.shared.clone(),
            assignments: Default::default(),
            reuse: self.cpu.reuse.clone().filter(|(uid, _)| own(uid)),
        };
        if let Some(containers) = self.cpu.assignments.get(pod) {
            cpu.assignments.insert(pod.clone(), containers.clone());
        }
        let mut memory = MemoryLedger {
            nodes: self.memory.nodes.clone(),
            assignments: Default::default(),
            reuse: self.memory.reuse.clone().filter(|(uid, _)| own(uid)),
        };
        if let Some(containers) = self.memory.assignments.get(pod) {
            memory.assignments.insert(pod.clone(), containers.clone());
        }
        Ledger { cpu, memory }
    }

    /// Applies a placement that was planned against this very ledger.
    pub fn commit(&mut self, placement: &Placement) {
        let draft = &placement.draft;
        let pod = &placement.pod;
        self.cpu.shared = draft.cpu.shared.clone();
        self.cpu.reuse = draft.cpu.reuse.clone();
        match draft.cpu.assignments.get(pod) {
            Some(containers) => self.cpu.assignments.insert(pod.clone(), containers.clone()),
            // It has released its CPUs.
            None => self.cpu.assignments.remove(pod),
        };
        self.memory.nodes.clone_from(&draft.memory.nodes);
        self.memory.reuse = draft.memory.reuse.clone();
        if let Some(containers) = draft.memory.assignments.get(pod) {
            self.memory.assignments.insert(pod.clone(), containers.clone());
        }
    }

    /// Frees the memory of init containers that ended before a container starts. Without a strict
    /// guarantee the kubelet keeps it reserved until the pod ends, and so do we.
    pub fn starting(&mut self, node: &Node, demand: &Demand, container: usize) {
        if matches!(&node.memory, MemoryPolicy::Static(p) if p.guarantee() == MemoryGuarantee::Strict)
        {
            self.memory.starting(demand, container);
        }
    }

    /// Releases the resources of one container.
    pub fn release_container(&mut self, pod: &PodUid, container: &str) {
        self.cpu.release(pod, container);
        self.memory.release(pod, container);
    }

    /// Releases the resources of a pod.
    pub fn release(&mut self, pod: &PodUid) {
        let names = |containers: Option<Vec<ContainerName>>| containers.unwrap_or_default();
        let cpu = self.cpu.assignments.get(pod).map(|c| c.keys().cloned().collect());
        for container in names(cpu) {
            self.cpu.release(pod, &container);
        }
        let memory = self.memory.assignments.get(pod).map(|c| c.keys().cloned().collect());
        for container in names(memory) {
            self.memory.release(pod, &container);
        }
        // A deleted pod leaves nothing to reuse, not even to a pod with the same UID.
        self.cpu.reuse.take_if(|(uid, _)| uid == pod);
        self.memory.reuse.take_if(|(uid, _)| uid == pod);
    }

    /// Returns the pods with allocations.
    pub fn pods(&self) -> impl Iterator<Item = &PodUid> {
        let mut pods: Vec<&PodUid> =
            self.cpu.assignments.keys().chain(self.memory.assignments.keys()).collect();
        pods.sort();
        pods.dedup();
        pods.into_iter()
    }
}
