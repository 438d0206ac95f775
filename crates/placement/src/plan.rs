//! Places a whole pod: one pure function from a node, a ledger and a demand to a placement or a
//! refusal.
//!
//! Main entry: [`plan`], which returns a [`Placement`]. Containers are placed in start order, each
//! after the allocations of those before it; nothing changes until the placement is committed to
//! the ledger. The agent, the scheduler and the planner use the same code.

use smallvec::SmallVec;

use objects::pod::OsName;

use crate::affinity::{Family, Hint, Preference};
use crate::alignment::{AlignmentPolicy, Scope};
use crate::cpu::{CpuRefusal, StaticCpus};
use crate::cpuset::CpuSet;
use crate::demand::{ContainerName, Demand, PodUid, QosClass, Role};
use crate::ids::Bytes;
use crate::ledger::Ledger;
use crate::memory::{Blocks, MemoryHints, StaticMemory};
use crate::node::{CpuPolicy, MemoryPolicy, Node};
use crate::numa::NumaMask;
use crate::rationale::{
    Agreement, ContainerRationale, HintSummary, Refusal, Subject, WhyCpus, WhyMemory, render_nodes,
};
use crate::topology::Topology;
use crate::windows::{Affinity, AffinityDemand, AffinityMode, plan_affinity};

mod replan;

pub use replan::{Surplus, replan};

/// The placement of one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerPlacement {
    pub name: ContainerName,
    pub role: Role,
    /// Its exclusive CPUs; `None` if it shares.
    pub cpus: Option<CpuSet>,
    /// The nodes of its memory; `None` if any.
    pub memory: Option<Blocks>,
    pub rationale: ContainerRationale,
}

/// The placement of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    pub pod: PodUid,
    pub containers: Vec<ContainerPlacement>,
    /// The ledger after the commit, restricted to this pod's changes.
    pub(crate) draft: Ledger,
}

impl Placement {
    /// Returns the pool of containers without exclusive CPUs, once this placement is committed.
    #[must_use]
    pub fn shared_pool(&self) -> &CpuSet {
        &self.draft.cpu.shared
    }

    /// Returns the exclusive resources of its containers and the reasons in a line; `None` if there
    /// are none.
    #[must_use]
    pub fn summary(&self, node: &Node) -> Option<String> {
        let own = self.containers.iter().filter_map(|one| one.summary(&node.topology));
        let own: Vec<String> = own.collect();
        (!own.is_empty()).then(|| own.join("; "))
    }

    /// Returns the affinity for a Windows runtime of one container; see
    /// [`ContainerPlacement::affinity`].
    #[must_use]
    pub fn affinity(&self, node: &Node, ledger: &Ledger, container: usize) -> Option<Affinity> {
        self.containers[container].affinity(node, ledger)
    }
}

impl ContainerPlacement {
    /// Returns its exclusive resources and the reason in a line; `None` if it has none.
    fn summary(&self, topology: &Topology) -> Option<String> {
        if self.cpus.is_none() && self.memory.is_none() {
            return None;
        }
        let cpus = match &self.cpus {
            Some(cpus) => format!("CPUs {cpus}"),
            None => "shared CPUs".to_owned(),
        };
        let mut text = format!("container {} has {cpus}", self.name);
        for block in self.memory.iter().flatten() {
            let nodes = render_nodes(topology, block.nodes);
            text += &format!(" and {} of {} on {nodes}", Bytes(block.size), block.kind);
        }
        let agreement = self.rationale.agreement.map(|agreement| agreement.render(topology));
        let why = match (&self.cpus, agreement) {
            (_, Some(agreement)) => agreement,
            (Some(_), None) => self.rationale.cpus.to_string(),
            (None, None) => self.rationale.memory.to_string(),
        };
        Some(format!("{text} ({why})"))
    }

    /// Returns the nodes of its memory; `None` if any.
    #[must_use]
    pub fn memory_nodes(&self) -> Option<NumaMask> {
        let blocks = self.memory.as_ref()?;
        Some(blocks.iter().fold(NumaMask::EMPTY, |nodes, block| nodes | block.nodes))
    }

    /// Returns the affinity for a Windows runtime: the decision of both managers in one set of
    /// CPUs. A container without exclusive CPUs follows the shared pool of `ledger`, to which the
    /// placement has been committed. `None` if no manager constrains it.
    #[must_use]
    pub fn affinity(&self, node: &Node, ledger: &Ledger) -> Option<Affinity> {
        let cpus = match (&self.cpus, &node.cpu) {
            (Some(cpus), _) => cpus.clone(),
            (None, CpuPolicy::Static(_)) => ledger.cpu.shared.clone(),
            (None, CpuPolicy::None) => CpuSet::new(),
        };
        let nodes: Option<Vec<CpuSet>> = self
            .memory_nodes()
            .map(|nodes| nodes.iter().map(|n| node.topology.nodes()[n].cpus.clone()).collect());
        let mut others = ledger.cpu.exclusive(None);
        if let Some(own) = &self.cpus {
            others.subtract(own);
        }
        plan_affinity(AffinityDemand {
            cpus: &cpus,
            memory_nodes: nodes.as_deref(),
            exclusive_to_others: &others,
            mode: node.affinity_mode,
        })
    }
}

/// Places a pod or returns the reason why not. Planning a pod that is already placed returns the
/// same placement.
pub fn plan(node: &Node, ledger: &Ledger, demand: &Demand) -> Result<Placement, Refusal> {
    let mut attempt = Attempt { node, demand, draft: ledger.draft_for(&demand.uid) };
    let containers = attempt.place_all()?;
    Ok(Placement { pod: demand.uid.clone(), containers, draft: attempt.draft })
}

/// Returns the kubelet's ledger after it refused a pod. The kubelet allocates containers one by one
/// and releases them when one fails, which can shift memory between the nodes of a group. Berth
/// leaves its ledger unchanged; this is for comparisons with a kubelet's recorded state.
#[must_use]
pub fn ledger_after_kubelet_rollback(node: &Node, ledger: &Ledger, demand: &Demand) -> Ledger {
    let mut attempt = Attempt { node, demand, draft: ledger.draft_for(&demand.uid) };
    let _ = attempt.place_all();
    let placement =
        Placement { pod: demand.uid.clone(), containers: Vec::new(), draft: attempt.draft };
    let mut ledger = ledger.clone();
    ledger.commit(&placement);
    ledger.release(&demand.uid);
    ledger
}

/// A pod that is being placed.
struct Attempt<'a> {
    node: &'a Node,
    demand: &'a Demand,
    draft: Ledger,
}

impl Attempt<'_> {
    /// Places containers in start order, up to the first that cannot be placed.
    fn place_all(&mut self) -> Result<Vec<ContainerPlacement>, Refusal> {
        let alignment = self.node.alignment;
        let aligned = alignment.policy != AlignmentPolicy::None;
        let for_pod = match alignment.scope {
            Scope::Pod if aligned => Some(self.agree(None)?),
            _ => None,
        };
        let mut containers = Vec::with_capacity(self.demand.containers.len());
        for index in 0..self.demand.containers.len() {
            containers.push(self.place(index, for_pod)?);
        }
        Ok(containers)
    }

    fn cpu_policy(&self) -> Option<&StaticCpus> {
        match &self.node.cpu {
            CpuPolicy::Static(policy) => Some(policy),
            CpuPolicy::None => None,
        }
    }

    fn memory_policy(&self) -> Option<&StaticMemory> {
        match &self.node.memory {
            MemoryPolicy::Static(policy) => Some(policy),
            MemoryPolicy::None => None,
        }
    }

    /// Merges the hints of CPUs and memory, for one container or for the whole pod.
    fn agree(&self, container: Option<usize>) -> Result<Agreement, Refusal> {
        let Node { topology, alignment, .. } = self.node;
        let (demand, draft) = (self.demand, &self.draft);
        let cpu = self.cpu_policy().and_then(|policy| match container {
            Some(index) => policy.hints(topology, &draft.cpu, demand, index),
            None => policy.pod_hints(topology, &draft.cpu, demand),
        });
        let memory = self.memory_policy().map_or(MemoryHints::None, |policy| match container {
            Some(index) => policy.hints(&draft.memory, demand, index),
            None => policy.pod_hints(&draft.memory, demand),
        });
        let anywhere = Family::anywhere(true);
        let mut families: SmallVec<[(&Family, usize); 2]> = SmallVec::new();
        families.push((cpu.as_ref().unwrap_or(&anywhere), 1));
        families.push(match &memory {
            MemoryHints::Each(family, kinds) => (family, kinds.len()),
            MemoryHints::None | MemoryHints::Nowhere => (&anywhere, 1),
        });
        let (hint, admitted) = alignment.decide(&families, topology);
        let in_detail = !(admitted && hint.preferred);
        let agreement = Agreement {
            policy: alignment.policy,
            scope: alignment.scope,
            cpu: cpu.as_ref().map(|family| summarize(family, in_detail)),
            memory: match &memory {
                MemoryHints::None => None,
                MemoryHints::Nowhere => Some(summarize(&Family::default(), in_detail)),
                MemoryHints::Each(family, _) => Some(summarize(family, in_detail)),
            },
            hint,
        };
        if admitted {
            return Ok(agreement);
        }
        let subject = match container {
            Some(index) => Subject::Container(demand.containers[index].name.clone()),
            None => Subject::Pod,
        };
        Err(Refusal::NotAligned { subject, agreement })
    }

    fn place(
        &mut self,
        index: usize,
        for_pod: Option<Agreement>,
    ) -> Result<ContainerPlacement, Refusal> {
        let agreement = match self.node.alignment.policy {
            AlignmentPolicy::None => None,
            _ if for_pod.is_some() => for_pod,
            _ => Some(self.agree(Some(index))?),
        };
        let hint = agreement.map_or(Hint::NOWHERE, |agreement| agreement.hint);
        let (cpus, why_cpus) = self.place_cpus(index, hint, agreement)?;
        let (memory, why_memory) = self.place_memory(index, hint, agreement, cpus.as_ref())?;
        let container = &self.demand.containers[index];
        Ok(ContainerPlacement {
            name: container.name.clone(),
            role: container.role,
            cpus,
            memory,
            rationale: ContainerRationale { cpus: why_cpus, memory: why_memory, agreement },
        })
    }

    fn place_cpus(
        &mut self,
        index: usize,
        hint: Hint,
        agreement: Option<Agreement>,
    ) -> Result<(Option<CpuSet>, WhyCpus), Refusal> {
        let (node, demand) = (self.node, self.demand);
        let CpuPolicy::Static(policy) = &node.cpu else { return Ok((None, WhyCpus::NoPolicy)) };
        let container = &demand.containers[index];
        let Some(requested) = demand.exclusive_cpus(index) else {
            let why = match demand.qos {
                QosClass::Guaranteed if demand.pod_level => WhyCpus::SharesByPodLevel,
                QosClass::Guaranteed => {
                    WhyCpus::SharesByFraction { milli_cpus: container.milli_cpus }
                }
                class => WhyCpus::SharesByClass(class),
            };
            return Ok((None, why));
        };
        let kept = self.draft.cpu.assigned(&demand.uid, &container.name).is_some();
        let reusable = self.draft.cpu.reuse.as_ref().map(|(_, cpus)| cpus.clone());
        let cpus = policy
            .allocate(&node.topology, &mut self.draft.cpu, demand, index, hint)
            .map_err(|refusal| match refusal {
                CpuRefusal::NotEnough(_) => {
                    Refusal::Cpus { container: container.name.clone(), refusal, agreement }
                }
                _ => Refusal::WholeCores { container: container.name.clone(), refusal },
            })?;
        let set = cpus.clone().unwrap_or_default();
        let why = WhyCpus::Exclusive {
            requested,
            reused: reusable.filter(|_| !kept).map_or(0, |reusable| reusable.count_common(&set)),
            outside: hint
                .nodes
                .map_or(0, |nodes| set.len() - set.count_common(&node.topology.cpus_in(nodes))),
            kept,
        };
        Ok((cpus, why))
    }

    fn place_memory(
        &mut self,
        index: usize,
        hint: Hint,
        agreement: Option<Agreement>,
        cpus: Option<&CpuSet>,
    ) -> Result<(Option<Blocks>, WhyMemory), Refusal> {
        let (node, demand) = (self.node, self.demand);
        let MemoryPolicy::Static(policy) = &node.memory else {
            return Ok((None, WhyMemory::NoPolicy));
        };
        if demand.qos != QosClass::Guaranteed {
            return Ok((None, WhyMemory::AnywhereByClass(demand.qos)));
        }
        if demand.pod_level {
            return Ok((None, WhyMemory::AnywhereByPodLevel));
        }
        let container = &demand.containers[index];
        let kept = self.draft.memory.blocks(&demand.uid, &container.name).is_some();
        // Windows takes memory from the node of the CPU that asks for it, so CPUs that are not
        // widened by memory nodes decide them.
        let follows_cpus = node.os == OsName::Windows
            && node.affinity_mode == AffinityMode::CpuOnly
            && cpus.is_some();
        let hint = match cpus.filter(|_| follows_cpus) {
            Some(cpus) => Hint { nodes: Some(node.topology.nodes_of(cpus)), ..hint },
            None => hint,
        };
        let blocks = policy
            .allocate(&mut self.draft.memory, demand, index, hint, follows_cpus)
            .map_err(|refusal| Refusal::Memory {
                container: container.name.clone(),
                refusal,
                wanted: container.memory.clone().unwrap_or_default(),
                agreement,
            })?;
        let nodes = blocks.iter().flatten().fold(NumaMask::EMPTY, |all, b| all | b.nodes);
        let widened = !kept && hint.nodes.is_some_and(|agreed| !nodes.is_subset(agreed));
        Ok((blocks, WhyMemory::Placed { widened, follows_cpus, kept }))
    }
}

/// Summarizes a family for an explanation. The search for the fewest nodes is only worthwhile after
/// a failure.
fn summarize(family: &Family, in_detail: bool) -> HintSummary {
    let ground = family.threshold.as_ref().map_or(NumaMask::EMPTY, |t| t.ground);
    let listed = family.listed.iter().fold(NumaMask::EMPTY, |all, (mask, _)| all | *mask);
    let alone = (ground | listed)
        .iter()
        .filter(|node| family.find(NumaMask::single(*node)).is_some())
        .collect();
    let preferred = family.threshold.as_ref().map(|t| match t.preference {
        Preference::Size(size) | Preference::SizeOrSockets { size, .. } => size,
    });
    HintSummary { alone, fewest: if in_detail { family.smallest() } else { None }, preferred }
}
