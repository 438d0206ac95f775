//! Converts a plan into pictures of its machines, and into a page.
//!
//! Main entries: [`picture`] for one machine, [`page`] for all. This file builds the owners of
//! CPUs; [`crate::picture`] draws them.

use objects::Quantity;
use placement::demand::MemoryKind;
use placement::node::{CpuPolicy, MemoryPolicy, Node};
use placement::{Bytes, CpuSet, Ledger};

use super::{ContainerReport, MachineReport, PodReport, RefusedReport, Report};
use crate::picture::{
    ContainerRow, CpuAssignment, CpuOwner, MemoryShare, OwnerRef, Page, Picture, RefusedRow,
    render_html,
};
use crate::simulate::Simulation;

/// The most machines drawn on a page; the others are in the table.
const MAX_PICTURES: usize = 24;

/// Returns the picture of one machine of a plan with its containers.
#[must_use]
pub fn picture(simulation: &mut Simulation<'_>, report: &Report, machine: usize) -> Picture {
    of_fleet(simulation, report, machine).0
}

fn of_fleet(
    simulation: &mut Simulation<'_>,
    report: &Report,
    machine: usize,
) -> (Picture, Vec<Vec<Option<usize>>>) {
    let node = &simulation.shape_of(machine).configured.node;
    let ledger = simulation.ledger(machine).clone();
    picture_with_owners(node, &ledger, &report.machines[machine])
}

/// Returns a machine's picture, and the index of the owner for each pod and container.
pub(crate) fn picture_with_owners(
    node: &Node,
    ledger: &Ledger,
    about: &MachineReport,
) -> (Picture, Vec<Vec<Option<usize>>>) {
    let mut picture = Picture {
        title: about.name.clone(),
        os: about.os,
        topology: node.topology.clone(),
        owners: Vec::new(),
    };
    let mut owners_by_pod: Vec<Vec<Option<usize>>> = Vec::new();
    for pod in &about.pods {
        let mut of_pod = Vec::new();
        for container in &pod.containers {
            let exclusive = container.cpus.as_ref().filter(|cpus| !passed_on(pod, container, cpus));
            of_pod.push(exclusive.map(|cpus| {
                let assignment = CpuAssignment::Exclusive(cpus.clone());
                picture.owners.push(owner(pod, container, assignment));
                picture.owners.len() - 1
            }));
        }
        owners_by_pod.push(of_pod);
    }
    if let CpuPolicy::Static(policy) = &node.cpu {
        let mut system =
            CpuOwner::new("system", CpuAssignment::Reserved(policy.reserved().clone()));
        system.memory = reserved_memory(node, ledger);
        system.note = "reserved for the system and the kubelet".to_owned();
        picture.owners.push(system);
        sharing(about, &ledger.cpu.shared, &mut picture, &mut owners_by_pod);
    }
    (picture, owners_by_pod)
}

/// Returns true if all CPUs of an init container went to later containers, which are drawn instead.
fn passed_on(pod: &PodReport, container: &ContainerReport, cpus: &CpuSet) -> bool {
    let others = pod.containers.iter().filter(|other| other.role != "init");
    let later = others.filter_map(|other| other.cpus.as_ref());
    let mut passed = CpuSet::new();
    later.for_each(|more| passed.union_with(more));
    container.role == "init" && cpus.is_subset(&passed)
}

/// Adds the containers that share CPUs, one owner for each container of a workload.
fn sharing(
    about: &MachineReport,
    pool: &CpuSet,
    picture: &mut Picture,
    owners_by_pod: &mut [Vec<Option<usize>>],
) {
    let mut known: Vec<(&str, &str, &str, usize, usize)> = Vec::new();
    for (pod, owners_by_pod) in about.pods.iter().zip(owners_by_pod) {
        for (container, assignment) in pod.containers.iter().zip(owners_by_pod) {
            if container.cpus.is_some() || container.role == "init" {
                continue;
            }
            let key = (pod.namespace.as_str(), pod.workload.as_str(), container.name.as_str());
            let at = match known.iter_mut().find(|(n, w, c, ..)| (*n, *w, *c) == key) {
                Some((.., at, count)) => {
                    *count += 1;
                    let more = owner(pod, container, CpuAssignment::SharedPool(CpuSet::new()));
                    picture.owners[*at].memory.extend(more.memory);
                    *at
                }
                None => {
                    let assignment = CpuAssignment::SharedPool(pool.clone());
                    picture.owners.push(owner(pod, container, assignment));
                    let at = picture.owners.len() - 1;
                    known.push((key.0, key.1, key.2, at, 1));
                    at
                }
            };
            *assignment = Some(at);
        }
    }
    for (namespace, workload, _, at, count) in known {
        if count > 1 {
            let name = workload.rsplit_once('/').map_or(workload, |(_, name)| name);
            picture.owners[at].label = format!("{} × {count}", with(namespace, name));
        }
    }
}

fn with(namespace: &str, name: &str) -> String {
    match namespace {
        "default" => name.to_owned(),
        namespace => format!("{namespace}/{name}"),
    }
}

fn owner(pod: &PodReport, container: &ContainerReport, assignment: CpuAssignment) -> CpuOwner {
    let mut owner = CpuOwner::new(with(&pod.namespace, &pod.name), assignment);
    if pod.containers.len() > 1 {
        owner.detail.clone_from(&container.name);
    }
    owner.note.clone_from(&container.why);
    for block in &container.memory {
        let size = Quantity::parse(&block.size).ok().and_then(|size| size.checked_value());
        let size = size.and_then(|size| u64::try_from(size).ok()).unwrap_or(0);
        // The share of each node in a block is unknown; it is drawn as equal parts.
        let nodes = block.numa_nodes.len().max(1) as u64;
        owner.memory.extend(block.numa_nodes.iter().map(|node| MemoryShare {
            node: *node,
            kind: MemoryKind::parse(&block.resource).unwrap_or(MemoryKind::Memory),
            amount: Bytes(size / nodes),
        }));
    }
    owner
}

fn reserved_memory(node: &placement::Node, ledger: &Ledger) -> Vec<MemoryShare> {
    let MemoryPolicy::Static(_) = &node.memory else { return Vec::new() };
    let nodes = node.topology.nodes().iter().zip(&ledger.memory.nodes);
    let shares = nodes.flat_map(|(numa, state)| {
        state.tables.iter().map(|(kind, table)| MemoryShare {
            node: numa.id,
            kind: *kind,
            amount: Bytes(table.system_reserved),
        })
    });
    shares.filter(|share| share.amount.0 > 0).collect()
}

/// Renders the whole plan as a page: identical machines are drawn once.
#[must_use]
pub fn page(simulation: &mut Simulation<'_>, report: &Report) -> String {
    let groups = simulation.identical_machines();
    let mut pictures = Vec::new();
    let mut rows: Vec<ContainerRow> = Vec::new();
    for group in &groups {
        let Some((first, rest)) = group.split_first() else { continue };
        let (mut drawn, owners_by_pod) = of_fleet(simulation, report, *first);
        if let Some(last) = rest.last() {
            let last = &report.machines[*last].name;
            drawn.title = format!("{} … {last} ({} identical)", drawn.title, group.len());
        }
        let shown = pictures.len() < MAX_PICTURES;
        for machine in group {
            let owner_of = |pod: usize, container: usize| {
                let index = owners_by_pod[pod][container].filter(|_| shown && machine == first)?;
                Some(OwnerRef { picture: pictures.len(), index })
            };
            rows.extend(machine_rows(report, *machine, owner_of));
        }
        if shown {
            pictures.push(drawn);
        }
    }
    let summary = &report.summary;
    let machines = summary.machines;
    let verdict = match summary.refused {
        0 => format!("All {} pods have their place on {machines} machine(s).", summary.pods),
        refused => format!(
            "{} of {} pods have their place on {machines} machine(s); {refused} were refused.",
            summary.placed, summary.pods
        ),
    };
    let page = Page {
        title: "Plan".to_owned(),
        verdict,
        containers: rows,
        refused: report.refused.iter().map(refused_row).collect(),
    };
    render_html(&pictures, &page)
}

fn machine_rows(
    report: &Report,
    machine: usize,
    owner_of: impl Fn(usize, usize) -> Option<OwnerRef>,
) -> Vec<ContainerRow> {
    let about = &report.machines[machine];
    let mut rows = Vec::new();
    for (number, pod) in about.pods.iter().enumerate() {
        for (index, container) in pod.containers.iter().enumerate() {
            let groups: Vec<String> = container
                .affinity
                .iter()
                .map(|group| format!("group {}: {}", group.group, group.mask))
                .collect();
            let cpus = match &container.cpus {
                Some(cpus) => cpus.to_string(),
                None => "shared".to_owned(),
            };
            rows.push(ContainerRow {
                pod: with(&pod.namespace, &pod.name),
                container: container.name.clone(),
                machine: match report.machines.len() {
                    1 => String::new(),
                    _ => about.name.clone(),
                },
                cpus: if groups.is_empty() {
                    cpus
                } else {
                    format!("{cpus} ({})", groups.join(", "))
                },
                memory: super::text::memory(container),
                why: match &container.warning {
                    Some(warning) => format!("{}. Warning: {warning}", container.why),
                    None => container.why.clone(),
                },
                owner: owner_of(number, index),
            });
        }
    }
    rows
}

fn refused_row(refused: &RefusedReport) -> RefusedRow {
    let more = match refused.count {
        1 => String::new(),
        count => format!(" and {} more like it", count - 1),
    };
    let detail = refused.detail.as_ref().map(|detail| format!(" ({detail})")).unwrap_or_default();
    RefusedRow {
        pod: format!("{}{more}", with(&refused.namespace, &refused.name)),
        reason: format!("{}: {}{detail}", refused.reason, refused.message),
        remedies: refused.remedies.iter().flatten().map(|remedy| remedy.text.clone()).collect(),
    }
}
