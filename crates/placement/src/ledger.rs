//! What a node has handed out.
//!
//! Main type: [`Ledger`]. Only [`Ledger::commit`] and the `release` functions change it; deciding
//! is [`crate::plan`]'s business, writing it to disk the agent's.

use crate::cpu::CpuLedger;
use crate::demand::{ContainerName, Demand, PodUid};
use crate::memory::{MemoryGuarantee, MemoryLedger};
use crate::node::{MemoryPolicy, Node};
use crate::plan::Placement;

/// CPUs and memory handed out on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    pub cpu: CpuLedger,
    pub memory: MemoryLedger,
}

impl Ledger {
    /// The part of the ledger that planning a pod depends on: what is left, and what the pod
    /// itself has. Cheap however many other pods there are.
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

    /// Writes down a placement that was planned against this very ledger.
    pub fn commit(&mut self, placement: &Placement) {
        let draft = &placement.draft;
        let pod = &placement.pod;
        self.cpu.shared = draft.cpu.shared.clone();
        self.cpu.reuse = draft.cpu.reuse.clone();
        match draft.cpu.assignments.get(pod) {
            Some(containers) => self.cpu.assignments.insert(pod.clone(), containers.clone()),
            // It has given back what it had.
            None => self.cpu.assignments.remove(pod),
        };
        self.memory.nodes.clone_from(&draft.memory.nodes);
        self.memory.reuse = draft.memory.reuse.clone();
        if let Some(containers) = draft.memory.assignments.get(pod) {
            self.memory.assignments.insert(pod.clone(), containers.clone());
        }
    }

    /// A container is about to start: memory of init containers that ended before it is free.
    /// Where nodes are no guarantee the kubelet keeps it booked until the pod goes, and so do we.
    pub fn starting(&mut self, node: &Node, demand: &Demand, container: usize) {
        if matches!(&node.memory, MemoryPolicy::Static(p) if p.guarantee() == MemoryGuarantee::Strict)
        {
            self.memory.starting(demand, container);
        }
    }

    /// Takes back what one container has.
    pub fn release_container(&mut self, pod: &PodUid, container: &str) {
        self.cpu.release(pod, container);
        self.memory.release(pod, container);
    }

    /// Takes back what a pod has.
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
        // A pod that is gone leaves nothing to reuse, not even to a namesake.
        self.cpu.reuse.take_if(|(uid, _)| uid == pod);
        self.memory.reuse.take_if(|(uid, _)| uid == pod);
    }

    /// The pods that have something.
    pub fn pods(&self) -> impl Iterator<Item = &PodUid> {
        let mut pods: Vec<&PodUid> =
            self.cpu.assignments.keys().chain(self.memory.assignments.keys()).collect();
        pods.sort();
        pods.dedup();
        pods.into_iter()
    }
}
