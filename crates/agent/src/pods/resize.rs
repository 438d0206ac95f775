//! Changes of CPU, memory and classes of pods that run: whether one is possible ([`judge`]), in which
//! order it is made ([`steps`]), and what is told of it ([`describe`]).
//!
//! ```text
//!   wanted ──judge──▶ allocated ──steps──▶ in force        Deferred: tried again when others give back
//!              └──▶ Deferred or Infeasible                 Infeasible: until something else is wanted
//! ```
//!
//! As upstream does it. Pure: what pods have is given, and nothing is changed.

use std::collections::BTreeMap;

use cri::ClassSupport;
use host::cgroups::Limits;
use objects::resources::{CPU, MEMORY};
use objects::rules::pod::class_resources::full_name;
use objects::{QosClass, Quantity};
use serde::Serialize;
use thiserror::Error;

use crate::admission::{self, Neighbour, Rejection};
use crate::ledger::allocations::{Given, PodGiven};
use crate::runtime::lower::{CgroupVersion, NodeFacts, SwapBehavior};
use crate::spec::{Container, Pod};
use crate::status::{Resources, is_static};

/// What there is to decide by beside the node.
#[derive(Debug)]
pub struct Rules<'a> {
    pub facts: &'a NodeFacts,
    /// Whether Guaranteed containers may have CPUs of their own, and whether their number may change.
    pub static_cpus: bool,
    pub change_static_cpus: bool,
    /// Whether Guaranteed containers have memory of their own.
    pub static_memory: bool,
    pub classes: &'a ClassSupport,
}

/// Why a change is not made. Display is what is told, in upstream's words where it has some.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Refused {
    /// Not now: tried again when others give something back.
    #[error("{0}")]
    Deferred(Rejection),
    #[error("{0}")]
    Infeasible(Infeasible),
}

/// Why a change is never made on this node.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Infeasible {
    #[error("In-place resize of static-pods is not supported")]
    StaticPod,
    #[error("In-place resize of containers with swap is not supported.")]
    Swap,
    #[error("Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\"")]
    StaticCpus,
    #[error("Resize is infeasible for Guaranteed Pods alongside Memory Manager policy \"Static\"")]
    StaticMemory,
    #[error(
        "Node didn't have enough capacity: {resource}, requested: {requested}, capacity: {capacity}"
    )]
    Capacity { resource: &'static str, requested: i64, capacity: i64 },
    #[error(
        "the runtime cannot change the class of QoS resource \"{resource}\" of container \
         \"{container}\" while it runs"
    )]
    Class { resource: String, container: String },
    #[error(transparent)]
    Never(Rejection),
}

impl Infeasible {
    /// As the metric has it.
    #[must_use]
    pub fn detail(&self) -> &'static str {
        match self {
            Infeasible::StaticPod => "static_pod",
            Infeasible::Swap => "container_memory_swap",
            Infeasible::StaticCpus => "guaranteed_pod_cpu_manager_static_policy",
            Infeasible::StaticMemory => "guaranteed_pod_memory_manager_static_policy",
            Infeasible::Capacity { .. } => "insufficient_node_allocatable",
            Infeasible::Class { .. } => "qos_resource_class",
            Infeasible::Never(_) => "placement",
        }
    }
}

/// Whether a pod that was allocated what `has` says can be given what `wanted` does.
pub fn judge(
    wanted: &Pod,
    has: &Pod,
    node: &admission::Node,
    others: &[Neighbour<'_>],
    rules: &Rules<'_>,
) -> Result<(), Refused> {
    check_kind(wanted, has, rules).map_err(Refused::Infeasible)?;
    check_capacity(wanted, node).map_err(Refused::Infeasible)?;
    let lacking = admission::lacking(wanted, node, others);
    if let Some(first) = lacking.into_iter().next() {
        return Err(Refused::Deferred(first));
    }
    admission::check_classes(wanted, node, others).map_err(|rejection| match rejection {
        Rejection::OutOfClass { .. } => Refused::Deferred(rejection),
        never => Refused::Infeasible(Infeasible::Never(never)),
    })
}

/// Containers that are in both, as they are wanted and as they are.
fn pairs<'a>(wanted: &'a Pod, has: &'a Pod) -> impl Iterator<Item = (&'a Container, Given, Given)> {
    wanted.containers().filter_map(|(_, container)| {
        let (_, before) = has.container(&container.name)?;
        Some((container, Given::of(&container.resources), Given::of(&before.resources)))
    })
}

fn check_kind(wanted: &Pod, has: &Pod, rules: &Rules<'_>) -> Result<(), Infeasible> {
    if is_static(wanted) {
        return Err(Infeasible::StaticPod);
    }
    for (container, to, from) in pairs(wanted, has) {
        let swaps = !to.agrees_on(MEMORY, &from) && may_swap(wanted, container, rules.facts);
        if swaps && !restarts_for(container, MEMORY) {
            return Err(Infeasible::Swap);
        }
        if to.classes != from.classes {
            check_class_change(container, &to, &from, rules.classes)?;
        }
    }
    if crate::qos_class(wanted) != QosClass::Guaranteed {
        return Ok(());
    }
    let changes = |resource: &str| {
        let requested = |given: &Given| given.requests.get(resource).map(Quantity::milli_value);
        pairs(wanted, has).any(|(_, to, from)| requested(&to) != requested(&from))
    };
    if rules.static_cpus && !rules.change_static_cpus && changes(CPU) {
        return Err(Infeasible::StaticCpus);
    }
    if rules.static_memory && changes(MEMORY) {
        return Err(Infeasible::StaticMemory);
    }
    Ok(())
}

/// Whether pages of the container may be in swap, whose limit would have to follow.
fn may_swap(pod: &Pod, container: &Container, facts: &NodeFacts) -> bool {
    let of = &container.resources;
    facts.swap == SwapBehavior::LimitedSwap
        && facts.cgroups.version == CgroupVersion::V2
        && facts.cgroups.swap_controller
        && crate::qos_class(pod) == QosClass::Burstable
        && of.requests.contains_key(MEMORY)
        && of.requests.get(MEMORY) != of.limits.get(MEMORY)
}

/// Annotations are read when a container is made; only a runtime with the extension can be told later.
fn check_class_change(
    container: &Container,
    to: &Given,
    from: &Given,
    support: &ClassSupport,
) -> Result<(), Infeasible> {
    let classes = |given: &Given| -> BTreeMap<String, String> {
        given.classes.iter().map(|of| (full_name(&of.name).to_owned(), of.class.clone())).collect()
    };
    let (to, from) = (classes(to), classes(from));
    let changed = to.keys().chain(from.keys()).find(|name| to.get(*name) != from.get(*name));
    match (changed, support) {
        (Some(resource), ClassSupport::Annotations) => {
            Err(Infeasible::Class { resource: resource.clone(), container: container.name.clone() })
        }
        _ => Ok(()),
    }
}

fn check_capacity(wanted: &Pod, node: &admission::Node) -> Result<(), Infeasible> {
    let requests = crate::requests(wanted);
    for resource in [MEMORY, CPU] {
        let (requested, capacity) = (
            admission::amount(&requests, resource),
            admission::amount(&node.allocatable, resource),
        );
        if requested > capacity {
            return Err(Infeasible::Capacity { resource, requested, capacity });
        }
    }
    Ok(())
}

fn restarts_for(container: &Container, resource: &str) -> bool {
    let policies = &container.resize_policy;
    policies.iter().any(|of| of.resource_name == resource && of.restart_policy == RESTART)
}

const RESTART: &str = "RestartContainer";

/// Returns whether a container of a pod that has `has` must start again to have what its spec says. A
/// container without a limit of its own has the limit of its pod, and a change of that is one of its own.
#[must_use]
pub fn needs_restart(container: &Container, pod: &Pod, has: &PodGiven) -> bool {
    let (before, to) = (has.container(container), Given::of(&container.resources));
    let by_pod = of_pod(has, pod, Part::Limits);
    let changes = |of: &str| {
        let inherits = !to.limits.contains_key(of) && by_pod.contains(&of);
        inherits || !to.agrees_on(of, &before)
    };
    [CPU, MEMORY].into_iter().any(|of| changes(of) && restarts_for(container, of))
}

/// One step of a change.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Limit the pod's cgroup so.
    Pod(Limits),
    /// Give the containers what they are to have of a resource.
    Containers(&'static str),
}

/// The steps from one limit of the pod's cgroup to another: what grows does so before the containers,
/// what shrinks after them. Memory first.
#[must_use]
pub fn steps(from: &Limits, to: &Limits) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut add = |resource: &'static str, parts: Vec<(bool, Limits)>| {
        let (before, after): (Vec<_>, Vec<_>) = parts.into_iter().partition(|(grows, _)| *grows);
        let pod = |(_, limits): (bool, Limits)| Step::Pod(limits);
        steps.extend(before.into_iter().map(pod));
        steps.push(Step::Containers(resource));
        steps.extend(after.into_iter().map(pod));
    };
    let mut memory = Vec::new();
    if from.memory != to.memory || from.unified != to.unified {
        let unified = to.unified.clone();
        let limits = Limits { memory: to.memory, unified, ..Limits::default() };
        memory.push((to.memory >= from.memory, limits));
    }
    add(MEMORY, memory);
    let mut cpu = Vec::new();
    if from.cpu_quota != to.cpu_quota {
        let time = |of: &Limits| of.cpu_quota.map(|quota| quota.time);
        let limits = Limits { cpu_quota: to.cpu_quota, ..Limits::default() };
        cpu.push((time(to) >= time(from), limits));
    }
    if from.cpu_shares != to.cpu_shares {
        let limits = Limits { cpu_shares: to.cpu_shares, ..Limits::default() };
        cpu.push((to.cpu_shares >= from.cpu_shares, limits));
    }
    add(CPU, cpu);
    steps
}

/// The amounts of a pod as a whole that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The limits of containers without limits of their own.
    Limits,
    All,
}

/// The resources of which the pod as a whole is to have something else than it `has`.
#[must_use]
pub fn of_pod(has: &PodGiven, pod: &Pod, part: Part) -> Vec<&'static str> {
    let level = |of: &PodGiven| {
        let mut level = of.pod_level_resources.clone().unwrap_or_default();
        if part == Part::Limits {
            level.requests.clear();
        }
        level
    };
    let (before, to_have) = (level(has), level(&PodGiven::of(pod)));
    [CPU, MEMORY].into_iter().filter(|resource| !before.agrees_on(resource, &to_have)).collect()
}

/// The pod while the limits of its containers change in one resource: of the others it has as a whole what
/// it had, for containers without limits of their own are not to get ahead of its cgroup.
#[must_use]
pub fn with_level(pod: &Pod, level: &mut Option<Given>, resource: &str) -> Pod {
    let mut now = pod.clone();
    if let (Some(level), Some(wanted)) = (level, &mut now.spec.resources) {
        level.take(resource, &Given::of(wanted));
        wanted.limits.clone_from(&level.limits);
        wanted.requests.clone_from(&level.requests);
    }
    now
}

/// What a lower limit of memory would be below.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InUse {
    #[error("attempting to set pod memory limit ({limit}) below current usage ({usage})")]
    Pod { limit: u64, usage: u64 },
    #[error(
        "attempting to set container \"{name}\" memory limit ({limit}) below current usage ({usage})"
    )]
    Container { name: String, limit: u64, usage: u64 },
}

/// What is told of limits that cannot be lowered.
#[must_use]
pub fn cannot_decrease(in_use: &[InUse]) -> String {
    let texts: Vec<String> = in_use.iter().map(ToString::to_string).collect();
    match texts.as_slice() {
        [one] => format!("cannot decrease memory limits: {one}"),
        all => format!("cannot decrease memory limits: [{}]", all.join(", ")),
    }
}

/// What an event says of the resources of a pod.
#[must_use]
pub fn describe(pod: &Pod, error: Option<&str>) -> String {
    #[derive(Serialize)]
    struct Of<'a> {
        name: &'a str,
        resources: Resources,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Summary<'a> {
        #[serde(skip_serializing_if = "Vec::is_empty")]
        init_containers: Vec<Of<'a>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        containers: Vec<Of<'a>>,
        generation: i64,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'a str>,
    }
    fn of(container: &Container) -> Of<'_> {
        let Given { limits, requests, .. } = Given::of(&container.resources);
        Of { name: &container.name, resources: Resources { limits, requests } }
    }
    let summary = Summary {
        init_containers: pod.spec.init_containers.iter().map(of).collect(),
        containers: pod.spec.containers.iter().map(of).collect(),
        generation: pod.metadata.generation,
        error,
    };
    // Maps with keys of text: there is nothing that could not be written.
    serde_json::to_string(&summary).unwrap_or_default()
}

#[cfg(test)]
mod tests;
