//! Changes the number of exclusive CPUs of a placed pod: [`replan`].
//!
//! ```text
//! grow:   commit (Surplus::Kept) ──▶ others leave ──▶ the container is widened
//! shrink: the container leaves ──▶ commit (Surplus::Returned) ──▶ others may come
//! ```
//!
//! There are two steps because CPUs change owners: a CPU is never assigned to a container while
//! another one still runs on it. Memory stays where it is.

use crate::affinity::Hint;
use crate::alignment::AlignmentPolicy;
use crate::cpu::CpuRefusal;
use crate::cpuset::CpuSet;
use crate::demand::Demand;
use crate::ledger::Ledger;
use crate::node::{CpuPolicy, Node};
use crate::rationale::{ContainerRationale, Refusal, WhyCpus};

use super::{Attempt, ContainerPlacement, Placement};

/// The handling of CPUs that a container has and no longer requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surplus {
    /// The container keeps them for now.
    Kept,
    /// They return to the shared pool.
    Returned,
}

/// Places a placed pod again with a changed number of CPUs. Containers keep as many of their CPUs
/// as they request.
pub fn replan(
    node: &Node,
    ledger: &Ledger,
    demand: &Demand,
    surplus: Surplus,
) -> Result<Placement, Refusal> {
    let mut attempt = Attempt { node, demand, draft: ledger.draft_for(&demand.uid) };
    let mut containers = Vec::with_capacity(demand.containers.len());
    for index in 0..demand.containers.len() {
        containers.push(attempt.replace(index, surplus)?);
    }
    Ok(Placement { pod: demand.uid.clone(), containers, draft: attempt.draft })
}

impl Attempt<'_> {
    fn replace(&mut self, index: usize, surplus: Surplus) -> Result<ContainerPlacement, Refusal> {
        let (node, demand) = (self.node, self.demand);
        let container = &demand.containers[index];
        let own = self.draft.cpu.assigned(&demand.uid, &container.name).cloned();
        let (CpuPolicy::Static(policy), Some(own)) = (&node.cpu, own) else {
            // It shared so far: if it gets CPUs of its own now, it does so as a new one would.
            return self.place(index, None);
        };
        let requested = demand.exclusive_cpus(index);
        let count = requested.unwrap_or(0);
        let changed = if count == own.len() || (count < own.len() && surplus == Surplus::Kept) {
            own.clone()
        } else {
            let free = self.free_for(&own, policy.available(&self.draft.cpu));
            policy.change(&node.topology, &own, count, &free).map_err(|refusal| match refusal {
                CpuRefusal::NotEnough(_) => {
                    Refusal::Cpus { container: container.name.clone(), refusal, agreement: None }
                }
                _ => Refusal::WholeCores { container: container.name.clone(), refusal },
            })?
        };
        if changed != own {
            self.hand_over(index, &changed);
        }
        let cpus = (!changed.is_empty()).then_some(changed);
        let why_cpus = match &cpus {
            Some(_) => WhyCpus::Exclusive { requested: count, reused: 0, outside: 0, kept: true },
            None => WhyCpus::SharesByFraction { milli_cpus: container.milli_cpus },
        };
        let (memory, why_memory) = self.place_memory(index, Hint::NOWHERE, None, cpus.as_ref())?;
        let rationale = ContainerRationale { cpus: why_cpus, memory: why_memory, agreement: None };
        let (name, role) = (container.name.clone(), container.role);
        Ok(ContainerPlacement { name, role, cpus, memory, rationale })
    }

    /// Returns the free CPUs in addition to `own`, on the same nodes if the policy guarantees them.
    fn free_for(&self, own: &CpuSet, available: CpuSet) -> CpuSet {
        let topology = &self.node.topology;
        match self.node.alignment.policy {
            AlignmentPolicy::Restricted | AlignmentPolicy::SingleNumaNode => {
                &available & &topology.cpus_in(topology.nodes_of(own))
            }
            AlignmentPolicy::None | AlignmentPolicy::BestEffort => available,
        }
    }

    fn hand_over(&mut self, index: usize, cpus: &CpuSet) {
        let (uid, name) = (&self.demand.uid, &self.demand.containers[index].name);
        let draft = &mut self.draft.cpu;
        draft.release(uid, name);
        if cpus.is_empty() {
            return;
        }
        draft.shared.subtract(cpus);
        draft.assignments.entry(uid.clone()).or_default().insert(name.clone(), cpus.clone());
    }
}
