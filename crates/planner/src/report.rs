//! The plan of a fleet as a report: the output of `berth plan`.
//!
//! Main type: [`Report`], serialised as `kind: Plan`, `apiVersion: berth.dev/v1alpha1` with stable
//! names; [`Report::new`] builds it from a [`Simulation`]. `placement` renders rationales, [`text`]
//! renders for a terminal. It decides nothing.

use std::collections::BTreeMap;

use objects::Workload;
use objects::pod::OsName;
use objects::yaml::write;
use placement::configured::{Capacity, Configured, total_memory};
use placement::demand::{MemoryKind, Role};
use placement::memory::Block;
use placement::node::{CpuPolicy, MemoryPolicy, Node};
use placement::plan::ContainerPlacement;
use placement::rationale::{ContainerRationale, WhyMemory};
use placement::windows::Affinity;
use placement::{Bytes, CpuSet, Ledger, NumaId, Topology};
use serde::Serialize;

use crate::remedy::{Remedy, remedies};
use crate::simulate::{PodRef, RefusedPods, Rejection, Simulation, Strategy};

pub mod picture;
pub mod text;

pub const API_VERSION: &str = "berth.dev/v1alpha1";
pub const KIND: &str = "Plan";

/// The most refused pods for which remedies are computed; each takes about a hundred trial
/// placements.
const MAX_REMEDIES: usize = 100;

/// Options of the report.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Include every step of every decision.
    pub explain: bool,
    /// The number of machines was the question.
    pub how_many: bool,
    /// The configuration used, by shape.
    pub configurations: Vec<String>,
    /// Notes at the start of the report.
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub strategy: &'static str,
    pub summary: Summary,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    pub machines: Vec<MachineReport>,
    pub refused: Vec<RefusedReport>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    pub pods: u64,
    pub placed: u64,
    pub refused: u64,
    pub machines: usize,
    /// Machines with pods other than those of daemon sets.
    pub machines_used: usize,
    /// The number of machines needed, if that was the question.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machines_needed: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineReport {
    pub name: String,
    pub shape: String,
    pub os: OsName,
    pub configuration: String,
    pub cpus: usize,
    pub numa_nodes: usize,
    pub memory: String,
    pub pods: Vec<PodReport>,
    pub left: RemainingCapacity,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodReport {
    pub namespace: String,
    pub name: String,
    pub workload: String,
    pub qos_class: String,
    /// The reason for this machine.
    pub why: String,
    pub containers: Vec<ContainerReport>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerReport {
    pub name: String,
    pub role: &'static str,
    /// Exclusive CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuSet>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<MemoryReport>,
    /// The affinity sent to a Windows runtime.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub affinity: Vec<GroupReport>,
    pub why: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub explanation: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryReport {
    pub resource: String,
    pub size: String,
    pub numa_nodes: Vec<NumaId>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupReport {
    pub group: u16,
    pub mask: String,
}

/// The remaining capacity of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RemainingCapacity {
    /// CPUs that can still be allocated exclusively; absent without a CPU manager.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exclusive_cpus: Option<usize>,
    /// The most exclusive CPUs that a container could still get on one NUMA node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub largest_on_one_node: Option<usize>,
    /// The CPUs of the shared pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_cpus: Option<CpuSet>,
    /// The remaining requests by resource.
    pub requests: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub numa_nodes: Vec<RemainingOnNode>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RemainingOnNode {
    pub numa_node: NumaId,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exclusive_cpus: Option<usize>,
    /// By resource; absent without a memory manager.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub memory: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusedReport {
    pub namespace: String,
    /// The first of them.
    pub name: String,
    pub workload: String,
    /// The number of pods refused for the same reasons.
    pub count: u32,
    pub reason: String,
    pub message: String,
    /// The shortage in numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// By reason: the number of machines.
    pub machines: BTreeMap<String, usize>,
    /// The machine on which remedies were tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tried_on: Option<String>,
    /// Absent if none were computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedies: Option<Vec<RemedyReport>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RemedyReport {
    #[serde(flatten)]
    pub remedy: Remedy,
    pub text: String,
}

impl Report {
    #[must_use]
    pub fn new(simulation: &mut Simulation<'_>, options: &Options) -> Report {
        let machines: Vec<MachineReport> = (0..simulation.machines.len())
            .map(|machine| machine_report(simulation, machine, options))
            .collect();
        let refused = simulation.refused.clone();
        let refused = refused
            .iter()
            .enumerate()
            .map(|(number, refused)| refused_report(simulation, refused, number < MAX_REMEDIES))
            .collect();
        let workloads = simulation.workloads;
        let own = |pod: &PodRef| {
            !matches!(
                workloads[pod.workload as usize].replicas,
                objects::workload::Replicas::PerNode
            )
        };
        let used = simulation.machines.iter().filter(|m| m.pods.iter().any(own)).count();
        let (placed, refused_pods) = (simulation.pods_placed(), simulation.pods_refused());
        Report {
            api_version: API_VERSION,
            kind: KIND,
            strategy: simulation.strategy.name(),
            summary: Summary {
                pods: placed + refused_pods,
                placed,
                refused: refused_pods,
                machines: machines.len(),
                machines_used: used,
                machines_needed: options.how_many.then_some(machines.len()),
            },
            notes: options.notes.clone(),
            machines,
            refused,
        }
    }
}

impl Report {
    /// Renders the report as indented JSON.
    #[must_use]
    pub fn render_json(&self) -> String {
        // Keys are strings and numbers are integers, so this cannot fail.
        write::pretty_json(&serde_json::to_string(self).unwrap_or_default())
    }

    /// Renders the report as YAML.
    #[must_use]
    pub fn render_yaml(&self) -> String {
        write::blocks(&serde_json::to_string(self).unwrap_or_default())
    }
}

pub(crate) fn workload_name(workload: &Workload) -> String {
    format!("{}/{}", workload.kind, workload.name)
}

/// Returns a pod's name, with its namespace unless that is the default one.
fn full_name(workload: &Workload, index: u32) -> String {
    let name = workload.pod_name(index);
    match workload.namespace.as_str() {
        "default" => name,
        namespace => format!("{namespace}/{name}"),
    }
}

fn machine_report(
    simulation: &mut Simulation<'_>,
    machine: usize,
    options: &Options,
) -> MachineReport {
    let shape = simulation.shape_of(machine);
    let shape_number = simulation.machines[machine].shape;
    let node = &shape.configured.node;
    let ledger = simulation.ledger(machine).clone();
    let strategy = simulation.strategy;
    let placed_pods = simulation.placed_pods(machine);
    let pods = placed_pods.into_iter().map(|placed_pods| {
        let workload = &simulation.workloads[placed_pods.pod.workload as usize];
        let class = simulation.class(placed_pods.class);
        let containers = placed_pods.containers.iter();
        PodReport {
            namespace: workload.namespace.clone(),
            name: workload.pod_name(placed_pods.pod.index),
            workload: workload_name(workload),
            qos_class: class.demand.qos.to_string(),
            why: why_here(workload, strategy, machine, simulation.machines.len()),
            containers: containers
                .map(|container| container_report(container, node, &ledger, options.explain))
                .collect(),
        }
    });
    let pods = pods.collect();
    let topology = &node.topology;
    MachineReport {
        name: simulation.machines[machine].name.clone(),
        shape: shape.name.clone(),
        os: node.os,
        configuration: options.configurations.get(shape_number).cloned().unwrap_or_default(),
        cpus: topology.cpus().len(),
        numa_nodes: topology.nodes().len(),
        memory: Bytes(total_memory(topology)).to_string(),
        pods,
        left: left(&shape.configured, simulation.used(machine), &ledger),
    }
}

fn why_here(workload: &Workload, strategy: Strategy, machine: usize, machines: usize) -> String {
    if matches!(workload.replicas, objects::workload::Replicas::PerNode) {
        return "a daemon set runs on every machine".to_owned();
    }
    match (strategy, machines, machine) {
        (_, 1, _) => "the only machine".to_owned(),
        (Strategy::Pack, _, 0) => "the first machine took it".to_owned(),
        (Strategy::Pack, _, 1) => "the machine before refused it".to_owned(),
        (Strategy::Pack, _, n) => format!("the {n} machines before refused it"),
        (Strategy::Spread, ..) => "asked for least of those that took it".to_owned(),
    }
}

pub(crate) fn container_report(
    container: &ContainerPlacement,
    node: &Node,
    ledger: &Ledger,
    explain: bool,
) -> ContainerReport {
    let affinity = match node.os {
        OsName::Windows => container.affinity(node, ledger),
        OsName::Linux => None,
    };
    let groups = affinity.iter().flat_map(Affinity::groups);
    ContainerReport {
        name: container.name.to_string(),
        role: match container.role {
            Role::Init => "init",
            Role::Sidecar => "sidecar",
            Role::App => "app",
        },
        cpus: container.cpus.clone(),
        memory: container
            .memory
            .iter()
            .flatten()
            .map(|block| memory_report(block, &node.topology))
            .collect(),
        affinity: groups
            .map(|group| GroupReport {
                group: group.group.get(),
                mask: format!("{:#x}", group.mask),
            })
            .collect(),
        why: short(&container.rationale),
        explanation: if explain {
            long(&container.rationale, affinity.as_ref(), &node.topology)
        } else {
            Vec::new()
        },
        warning: affinity.as_ref().and_then(|affinity| affinity.locality.warning()),
    }
}

fn memory_report(block: &Block, topology: &Topology) -> MemoryReport {
    MemoryReport {
        resource: block.kind.to_string(),
        size: Bytes(block.size).to_string(),
        numa_nodes: topology.node_ids(block.nodes).collect(),
    }
}

/// Returns the reason in a few words; memory is mentioned only if it deviates from the alignment.
fn short(rationale: &ContainerRationale) -> String {
    match rationale.memory {
        WhyMemory::Placed { widened: true, .. } => {
            format!("{}; {}", rationale.cpus, rationale.memory)
        }
        _ => rationale.cpus.to_string(),
    }
}

fn long(
    rationale: &ContainerRationale,
    affinity: Option<&Affinity>,
    topology: &Topology,
) -> Vec<String> {
    let mut lines = vec![rationale.cpus.to_string(), rationale.memory.to_string()];
    lines.extend(rationale.agreement.map(|agreement| agreement.render(topology)));
    if let Some(affinity) = affinity {
        lines.push(format!("affinity: {}", affinity.reason));
        if !affinity.withheld.is_empty() {
            lines.push(format!(
                "left out of the affinity: CPUs {}, which belong to other containers alone",
                affinity.withheld
            ));
        }
    }
    lines
}

/// Returns the remaining capacity of a machine with these requests and this ledger.
pub(crate) fn left(configured: &Configured, used: &Capacity, ledger: &Ledger) -> RemainingCapacity {
    let (node, all) = (&configured.node, &configured.allocatable);
    let topology = &node.topology;
    let mut requests = BTreeMap::new();
    let milli = all.milli_cpus.saturating_sub(used.milli_cpus);
    requests.insert("cpu".to_owned(), objects::Quantity::from_milli(milli as i64).to_string());
    if all.memory != u64::MAX {
        let bytes = Bytes(all.memory.saturating_sub(used.memory));
        requests.insert("memory".to_owned(), rounded(bytes));
    }
    requests.insert("pods".to_owned(), all.pods.saturating_sub(used.pods).to_string());
    for (name, amount) in &all.others {
        let rest = amount.saturating_sub(used.others.get(name).copied().unwrap_or(0));
        let rest = match MemoryKind::parse(name) {
            Some(_) => Bytes(rest).to_string(),
            None => rest.to_string(),
        };
        requests.insert(name.clone(), rest);
    }
    let free = match &node.cpu {
        CpuPolicy::Static(policy) => Some(policy.available(&ledger.cpu)),
        CpuPolicy::None => None,
    };
    let numa_nodes = topology.nodes().iter().enumerate().map(|(position, numa)| RemainingOnNode {
        numa_node: numa.id,
        exclusive_cpus: free
            .as_ref()
            .filter(|_| !numa.cpus.is_empty())
            .map(|free| free.count_common(&numa.cpus)),
        memory: match &node.memory {
            MemoryPolicy::Static(_) => ledger.memory.nodes[position]
                .tables
                .iter()
                .map(|(kind, table)| (kind.to_string(), rounded(Bytes(table.free))))
                .collect(),
            MemoryPolicy::None => BTreeMap::new(),
        },
    });
    let numa_nodes = numa_nodes
        .filter(|node| node.exclusive_cpus.is_some() || !node.memory.is_empty())
        .collect();
    let most = usize::try_from(milli / 1000).unwrap_or(usize::MAX);
    RemainingCapacity {
        exclusive_cpus: free.as_ref().map(CpuSet::len),
        largest_on_one_node: free.as_ref().map(|free| largest_on_one_node(node, free).min(most)),
        shared_cpus: free.as_ref().map(|_| ledger.cpu.shared.clone()),
        requests,
        numa_nodes,
    }
}

/// Returns the most exclusive CPUs that one node can still give to one container.
fn largest_on_one_node(node: &Node, free: &CpuSet) -> usize {
    let topology = &node.topology;
    let whole = matches!(&node.cpu, CpuPolicy::Static(p) if p.options().full_cores);
    let of = |cpus: &CpuSet| {
        let free = free & cpus;
        if !whole {
            return free.len();
        }
        let cores = topology.cores().iter().filter(|core| core.cpus.is_subset(&free));
        let cpus: usize = cores.map(|core| core.cpus.len()).sum();
        let per_core = topology.cpus_per_core().max(1);
        cpus / per_core * per_core
    };
    topology.nodes().iter().map(|numa| of(&numa.cpus)).max().unwrap_or(0)
}

/// Formats an amount in whole mebibytes, rounded down.
pub(crate) fn rounded(bytes: Bytes) -> String {
    if bytes.0 < 1 << 20 {
        return bytes.to_string();
    }
    Bytes(bytes.0 >> 20 << 20).to_string()
}

fn refused_report(
    simulation: &mut Simulation<'_>,
    refused: &RefusedPods,
    with_remedies: bool,
) -> RefusedReport {
    let workloads = simulation.workloads;
    let workload = &workloads[refused.workload as usize];
    let name = |pod: PodRef| full_name(&workloads[pod.workload as usize], pod.index);
    let sought = with_remedies.then(|| remedies(simulation, refused, name));
    let (tried, found) = match sought {
        Some((machine, found)) => (machine, Some(found)),
        None => (None, None),
    };
    let first = refused.rejections.first();
    let rejections = refused.rejections.iter();
    RefusedReport {
        namespace: workload.namespace.clone(),
        name: workload.pod_name(refused.first),
        workload: workload_name(workload),
        count: refused.count,
        reason: first.map_or_else(|| "NoMachine".to_owned(), |(o, ..)| o.reason()),
        message: first.map_or_else(|| "there is no machine".to_owned(), |(o, ..)| o.to_string()),
        detail: first.and_then(|(rejection, machine, _)| {
            let shape = match (refused.spare, simulation.machines.get(*machine)) {
                (Some(spare), _) => spare,
                (None, Some(machine)) => machine.shape,
                (None, None) => return None,
            };
            detail(rejection, &simulation.shapes[shape].configured.node.topology)
        }),
        machines: rejections.map(|(rejection, _, count)| (rejection.reason(), *count)).collect(),
        tried_on: tried.map(|machine| simulation.machines[machine].name.clone()),
        remedies: found.map(|found| {
            let described = |remedy: Remedy| RemedyReport { text: remedy.to_string(), remedy };
            found.into_iter().map(described).collect()
        }),
    }
}

/// Returns details that the kubelet's message leaves out.
pub(crate) fn detail(rejection: &Rejection, topology: &Topology) -> Option<String> {
    match rejection {
        Rejection::Os { wanted, has, .. } => {
            Some(format!("the pod is for {wanted}, the machine runs {has}"))
        }
        Rejection::OtherMachine { .. } => None,
        Rejection::Resource { name, requested, used, capacity } => {
            let show = |amount: u64| match (name.as_str(), MemoryKind::parse(name)) {
                ("cpu", _) => objects::Quantity::from_milli(amount as i64).to_string(),
                (_, Some(_)) => rounded(Bytes(amount)),
                _ => amount.to_string(),
            };
            Some(format!(
                "it asks for {}; {} of {} are left",
                show(*requested),
                show(capacity.saturating_sub(*used)),
                show(*capacity)
            ))
        }
        Rejection::Placement(refusal) => refusal.evidence(topology),
    }
}
