//! What a pod asks for: [`requests`], [`limits`] and [`qos_class`] of it as a whole, and
//! [`placement_demand`], what placement has to know of it.
//!
//! Read from the agent's own view of a pod, in which the API server has filled in the defaults. What
//! single containers get is placement's.

use objects::resources::{self, CPU, MEMORY};
use objects::{QosClass, Quantity};
use placement::Bytes;
use placement::demand::{
    ContainerDemand, ContainerName, Demand, MemoryAmounts, MemoryKind, PodUid, Role,
};

use crate::spec::{self, Container, Pod, Requirements, ResourceList};

/// What the node must have for the pod: pod-level requests where given, else those of the containers
/// at the worst moment, and overhead.
#[must_use]
pub fn requests(pod: &Pod) -> ResourceList {
    let mut total = together(pod, |container| &container.resources.requests);
    if let Some(level) = &pod.spec.resources {
        replace(&mut total, &level.requests);
    }
    resources::add(&mut total, &pod.spec.overhead);
    total
}

/// The limits of the pod, where there are any. Overhead only widens a limit that exists.
#[must_use]
pub fn limits(pod: &Pod) -> ResourceList {
    let mut total = together(pod, |container| &container.resources.limits);
    if let Some(level) = &pod.spec.resources {
        replace(&mut total, &level.limits);
    }
    let widened: ResourceList = pod
        .spec
        .overhead
        .iter()
        .filter(|(name, _)| total.contains_key(*name))
        .map(|(name, amount)| (name.clone(), amount.clone()))
        .collect();
    resources::add(&mut total, &widened);
    total
}

fn replace(total: &mut ResourceList, given: &ResourceList) {
    for (name, amount) in given.iter().filter(|(name, _)| resources::is_pod_level(name)) {
        total.insert(name.clone(), amount.clone());
    }
}

/// The sum of what runs at once, at the moment at which it is largest.
fn together(pod: &Pod, of: impl Fn(&Container) -> &ResourceList) -> ResourceList {
    let mut running = ResourceList::new();
    for container in &pod.spec.containers {
        resources::add(&mut running, of(container));
    }
    let (mut sidecars, mut starting) = (ResourceList::new(), ResourceList::new());
    for container in &pod.spec.init_containers {
        let mut moment = sidecars.clone();
        resources::add(&mut moment, of(container));
        if container.is_sidecar() {
            resources::add(&mut running, of(container));
            sidecars.clone_from(&moment);
        }
        resources::raise(&mut starting, &moment);
    }
    resources::raise(&mut running, &starting);
    running
}

/// How firmly the pod's requests are promised to it. The API's word stands, where it has one.
#[must_use]
pub fn qos_class(pod: &Pod) -> QosClass {
    match pod.status.get("qosClass").and_then(serde_json::Value::as_str) {
        Some("Guaranteed") => return QosClass::Guaranteed,
        Some("Burstable") => return QosClass::Burstable,
        Some("BestEffort") => return QosClass::BestEffort,
        _ => {}
    }
    let (mut requests, mut limits) = (ResourceList::new(), ResourceList::new());
    let mut all_limited = true;
    let mut count = |of: &Requirements, may_lack: bool| {
        resources::add(&mut requests, &that_count(&of.requests));
        let counted = that_count(&of.limits);
        all_limited &= may_lack || counted.len() == 2;
        resources::add(&mut limits, &counted);
    };
    match &pod.spec.resources {
        Some(level) => count(level, level.limits.is_empty()),
        None => {
            for container in pod.spec.containers.iter().chain(&pod.spec.init_containers) {
                count(&container.resources, false);
            }
        }
    }
    if requests.is_empty() && limits.is_empty() {
        QosClass::BestEffort
    } else if all_limited && requests == limits {
        QosClass::Guaranteed
    } else {
        QosClass::Burstable
    }
}

/// The amounts above zero of the resources the class depends on.
fn that_count(list: &ResourceList) -> ResourceList {
    list.iter()
        .filter(|(name, amount)| (*name == CPU || *name == MEMORY) && amount.sign() > 0)
        .map(|(name, amount)| (name.clone(), amount.clone()))
        .collect()
}

/// What placement has to know of the pod.
#[must_use]
pub fn placement_demand(pod: &Pod) -> Demand {
    let containers = pod.containers().filter_map(|(role, container)| {
        let role = match role {
            spec::Role::Init => Role::Init,
            spec::Role::Sidecar => Role::Sidecar,
            spec::Role::App => Role::App,
            // They use what their pod has.
            spec::Role::Ephemeral => return None,
        };
        let requests = &container.resources.requests;
        let bytes = |amount: &Quantity| amount.as_i64().and_then(|bytes| u64::try_from(bytes).ok());
        let memory: Option<MemoryAmounts> = requests
            .iter()
            .filter_map(|(name, amount)| Some((MemoryKind::parse(name)?, amount)))
            .map(|(kind, amount)| Some((kind, Bytes(bytes(amount)?))))
            .collect();
        Some(ContainerDemand {
            name: ContainerName::new(&container.name),
            role,
            milli_cpus: requests.get(CPU).map_or(0, Quantity::milli_value),
            memory: memory.map(|mut amounts| {
                amounts.sort_by_key(|(kind, _)| *kind);
                amounts
            }),
        })
    });
    Demand {
        uid: PodUid::new(&pod.metadata.uid),
        qos: qos_class(pod),
        pod_level: pod.spec.resources.is_some(),
        containers: containers.collect(),
    }
}
