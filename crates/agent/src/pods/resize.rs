//! In-place resize of CPU, memory and classes of running pods: [`judge`] decides if it is possible, [`steps`]
//! orders the steps, and [`describe`] renders the event.
//!
//! ```text
//!   wanted ──judge──▶ allocated ──steps──▶ actuated     Deferred: retried when other pods release resources
//!              └──▶ Deferred or Infeasible              Infeasible: final until the spec changes
//! ```
//!
//! Decides as upstream does. Pure: it takes the pods' resources as arguments and changes nothing.

use std::collections::BTreeMap;

use cri::ClassSupport;
use host::cgroups::Limits;
use objects::resources::{CPU, MEMORY};
use objects::rules::pod::class_resources::full_name;
use objects::{QosClass, Quantity};
use serde::Serialize;
use thiserror::Error;

use crate::ledger::allocations::{AllocatedResources, PodAllocation};
use crate::runtime::lower::{CgroupVersion, NodeEnvironment, SwapBehavior};
use lifecycle::admission::{self, AdmittedPod, Rejection};
use lifecycle::spec::{Container, Pod};
use lifecycle::status::{Resources, is_static};

/// The inputs of a decision other than the node.
#[derive(Debug)]
pub struct ResizeRules<'a> {
    pub node_env: &'a NodeEnvironment,
    /// True if Guaranteed containers can have exclusive CPUs, and if the number of these can change.
    pub static_cpus: bool,
    pub change_static_cpus: bool,
    /// True if Guaranteed containers have exclusive memory.
    pub static_memory: bool,
    pub classes: &'a ClassSupport,
}

/// The reason why a resize is not made. `Display` is the reported text, upstream's where it has one.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ResizeRefusal {
    /// Not possible now; retried when other pods release resources.
    #[error("{0}")]
    Deferred(Rejection),
    #[error("{0}")]
    Infeasible(Infeasible),
}

/// The reason why a resize is not possible on this node at all.
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
    /// Returns the label value of the metric.
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

/// Decides if a pod with the allocated resources of `has` can be resized to those of `wanted`.
pub fn judge(
    wanted: &Pod,
    has: &Pod,
    node: &admission::Node,
    others: &[AdmittedPod<'_>],
    rules: &ResizeRules<'_>,
) -> Result<(), ResizeRefusal> {
    check_kind(wanted, has, rules).map_err(ResizeRefusal::Infeasible)?;
    check_capacity(wanted, node).map_err(ResizeRefusal::Infeasible)?;
    let lacking = admission::lacking(wanted, node, others);
    if let Some(first) = lacking.into_iter().next() {
        return Err(ResizeRefusal::Deferred(first));
    }
    admission::check_classes(wanted, node, others).map_err(|rejection| match rejection {
        Rejection::OutOfClass { .. } => ResizeRefusal::Deferred(rejection),
        never => ResizeRefusal::Infeasible(Infeasible::Never(never)),
    })
}

/// Returns the containers of both pods, with wanted and allocated resources.
fn pairs<'a>(
    wanted: &'a Pod,
    has: &'a Pod,
) -> impl Iterator<Item = (&'a Container, AllocatedResources, AllocatedResources)> {
    wanted.containers().filter_map(|(_, container)| {
        let (_, before) = has.container(&container.name)?;
        Some((
            container,
            AllocatedResources::of(&container.resources),
            AllocatedResources::of(&before.resources),
        ))
    })
}

fn check_kind(wanted: &Pod, has: &Pod, rules: &ResizeRules<'_>) -> Result<(), Infeasible> {
    if is_static(wanted) {
        return Err(Infeasible::StaticPod);
    }
    for (container, to, from) in pairs(wanted, has) {
        let swaps = !to.agrees_on(MEMORY, &from) && may_swap(wanted, container, rules.node_env);
        if swaps && !restarts_for(container, MEMORY) {
            return Err(Infeasible::Swap);
        }
        if to.classes != from.classes {
            check_class_change(container, &to, &from, rules.classes)?;
        }
    }
    if lifecycle::qos_class(wanted) != QosClass::Guaranteed {
        return Ok(());
    }
    let changes = |resource: &str| {
        let requested =
            |given: &AllocatedResources| given.requests.get(resource).map(Quantity::milli_value);
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

/// Returns true if pages of the container may be in swap, whose limit would have to change too.
fn may_swap(pod: &Pod, container: &Container, node_env: &NodeEnvironment) -> bool {
    let of = &container.resources;
    node_env.swap == SwapBehavior::LimitedSwap
        && node_env.cgroups.version == CgroupVersion::V2
        && node_env.cgroups.swap_controller
        && lifecycle::qos_class(pod) == QosClass::Burstable
        && of.requests.contains_key(MEMORY)
        && of.requests.get(MEMORY) != of.limits.get(MEMORY)
}

/// Checks a change of classes. Annotations are read when a container is created; only a runtime with the
/// extension accepts later changes.
fn check_class_change(
    container: &Container,
    to: &AllocatedResources,
    from: &AllocatedResources,
    support: &ClassSupport,
) -> Result<(), Infeasible> {
    let classes = |given: &AllocatedResources| -> BTreeMap<String, String> {
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
    let requests = lifecycle::requests(wanted);
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

/// Returns true if a container of a pod with the actuated resources `has` must restart to get those of its
/// spec. A container without its own limit has the limit of its pod, so a change of that one also counts.
#[must_use]
pub fn needs_restart(container: &Container, pod: &Pod, has: &PodAllocation) -> bool {
    let (before, to) = (has.container(container), AllocatedResources::of(&container.resources));
    let by_pod = of_pod(has, pod, Part::Limits);
    let changes = |of: &str| {
        let inherits = !to.limits.contains_key(of) && by_pod.contains(&of);
        inherits || !to.agrees_on(of, &before)
    };
    [CPU, MEMORY].into_iter().any(|of| changes(of) && restarts_for(container, of))
}

/// One step of a resize.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Set the limits of the pod's cgroup.
    Pod(Limits),
    /// Set the containers' amounts of a resource.
    Containers(&'static str),
}

/// Returns the steps from one set of limits of the pod's cgroup to another. The pod's limit grows before its
/// containers' limits and shrinks after them. Memory comes first.
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

/// The pod-level amounts that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The limits of containers without limits of their own.
    Limits,
    All,
}

/// Returns the resources whose pod-level amounts differ between `has` and the spec.
#[must_use]
pub fn of_pod(has: &PodAllocation, pod: &Pod, part: Part) -> Vec<&'static str> {
    let level = |of: &PodAllocation| {
        let mut level = of.pod_level_resources.clone().unwrap_or_default();
        if part == Part::Limits {
            level.requests.clear();
        }
        level
    };
    let (before, to_have) = (level(has), level(&PodAllocation::of(pod)));
    [CPU, MEMORY].into_iter().filter(|resource| !before.agrees_on(resource, &to_have)).collect()
}

/// Returns the pod while the limits of its containers change in one resource. Its pod-level amounts of other
/// resources are still the old ones, so that containers without their own limits do not exceed its cgroup.
#[must_use]
pub fn with_level(pod: &Pod, level: &mut Option<AllocatedResources>, resource: &str) -> Pod {
    let mut now = pod.clone();
    if let (Some(level), Some(wanted)) = (level, &mut now.spec.resources) {
        level.take(resource, &AllocatedResources::of(wanted));
        wanted.limits.clone_from(&level.limits);
        wanted.requests.clone_from(&level.requests);
    }
    now
}

/// A new memory limit that is below current usage.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InUse {
    #[error("attempting to set pod memory limit ({limit}) below current usage ({usage})")]
    Pod { limit: u64, usage: u64 },
    #[error(
        "attempting to set container \"{name}\" memory limit ({limit}) below current usage ({usage})"
    )]
    Container { name: String, limit: u64, usage: u64 },
}

/// Renders the error for memory limits that cannot be decreased.
#[must_use]
pub fn cannot_decrease(in_use: &[InUse]) -> String {
    let texts: Vec<String> = in_use.iter().map(ToString::to_string).collect();
    match texts.as_slice() {
        [one] => format!("cannot decrease memory limits: {one}"),
        all => format!("cannot decrease memory limits: [{}]", all.join(", ")),
    }
}

/// Renders the resources of a pod for an event.
#[must_use]
pub fn describe(pod: &Pod, error: Option<&str>) -> String {
    #[derive(Serialize)]
    struct ContainerSummary<'a> {
        name: &'a str,
        resources: Resources,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Summary<'a> {
        #[serde(skip_serializing_if = "Vec::is_empty")]
        init_containers: Vec<ContainerSummary<'a>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        containers: Vec<ContainerSummary<'a>>,
        generation: i64,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'a str>,
    }
    fn of(container: &Container) -> ContainerSummary<'_> {
        let AllocatedResources { limits, requests, .. } =
            AllocatedResources::of(&container.resources);
        ContainerSummary { name: &container.name, resources: Resources { limits, requests } }
    }
    let summary = Summary {
        init_containers: pod.spec.init_containers.iter().map(of).collect(),
        containers: pod.spec.containers.iter().map(of).collect(),
        generation: pod.metadata.generation,
        error,
    };
    // Maps with string keys always serialize.
    serde_json::to_string(&summary).unwrap_or_default()
}

#[cfg(test)]
mod tests;
