//! What a pod needs as a whole, read from the object: [`of_pod`], the one sum limit ranges and
//! quotas go by, and [`class_uses`], how often it is in which class of a QoS resource.
//!
//! All containers and sidecars run at once; before that each init container runs beside the
//! sidecars started so far. What is needed is the most of any moment.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use crate::quantity::Quantity;
use crate::resources::{self, ResourceList};
use crate::rules::pod::class_resources::full_name;

/// Requests or limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Requests,
    Limits,
}

impl Side {
    fn field(self) -> &'static str {
        match self {
            Side::Requests => "requests",
            Side::Limits => "limits",
        }
    }
}

/// What beside the spec's containers goes into a sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum With {
    /// Nothing: what was asked for.
    Spec,
    /// What running containers still hold, and the overhead of running the pod.
    Holdings,
}

/// A list of amounts; what cannot be read counts for nothing.
pub(crate) fn amounts(list: &Value) -> ResourceList {
    let entries = list.as_object().into_iter().flatten();
    let read = |(name, amount): (&String, &Value)| {
        Some((name.clone(), Quantity::parse(amount.as_str()?).ok()?))
    };
    entries.filter_map(read).collect()
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn is_sidecar(container: &Value) -> bool {
    container["restartPolicy"] == "Always"
}

/// What a pod needs.
pub(crate) fn of_pod(pod: &Value, side: Side, with: With) -> ResourceList {
    let spec = &pod["spec"];
    let holdings = (with == With::Holdings).then(|| Holdings::of(pod));
    let own = |container: &Value, statuses: Statuses| match &holdings {
        None => amounts(&container["resources"][side.field()]),
        Some(holdings) => holdings.held(container, statuses, side),
    };
    let mut total = ResourceList::new();
    for container in items(&spec["containers"]) {
        resources::add(&mut total, &own(container, Statuses::Main));
    }
    let (mut sidecars, mut at_start) = (ResourceList::new(), ResourceList::new());
    for container in items(&spec["initContainers"]) {
        let mut needs = own(container, Statuses::Init);
        if is_sidecar(container) {
            resources::add(&mut total, &needs);
            resources::add(&mut sidecars, &needs);
            needs.values_mut().for_each(|amount| *amount = Quantity::zero());
        }
        // Of what this container does not need, the start needs as much as before.
        let shared = needs.keys().filter_map(|name| sidecars.get_key_value(name));
        let shared: ResourceList = shared.map(|(n, amount)| (n.clone(), amount.clone())).collect();
        resources::add(&mut needs, &shared);
        resources::raise(&mut at_start, &needs);
    }
    resources::raise(&mut total, &at_start);
    for (name, amount) in amounts(&spec["resources"][side.field()]) {
        if resources::is_pod_level(&name) {
            total.insert(name, amount);
        }
    }
    if with == With::Holdings {
        let mut overhead = amounts(&spec["overhead"]);
        // Something without a limit stays without one.
        if side == Side::Limits {
            overhead.retain(|name, _| total.get(name).is_some_and(|limit| !limit.is_zero()));
        }
        resources::add(&mut total, &overhead);
    }
    total
}

/// Which of a pod's lists of statuses a container is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Statuses {
    Main,
    Init,
}

/// The allocations of a pod's containers and what is in force, by name.
struct Holdings<'a> {
    statuses: HashMap<(Statuses, &'a Value), &'a Value>,
    /// A resize cannot be done.
    infeasible: bool,
}

impl<'a> Holdings<'a> {
    fn of(pod: &'a Value) -> Holdings<'a> {
        let status = &pod["status"];
        let mut statuses = HashMap::new();
        let lists =
            [(Statuses::Main, "containerStatuses"), (Statuses::Init, "initContainerStatuses")];
        for (list, field) in lists {
            for status in items(&status[field]) {
                statuses.entry((list, &status["name"])).or_insert(status);
            }
        }
        let infeasible = items(&status["conditions"]).iter().any(|condition| {
            condition["type"] == "PodResizePending" && condition["reason"] == "Infeasible"
        });
        Holdings { statuses, infeasible }
    }

    /// The most of what a container asks for, was given and has. A resize that cannot be done counts
    /// for nothing.
    fn held(&self, container: &Value, statuses: Statuses, side: Side) -> ResourceList {
        let asked = amounts(&container["resources"][side.field()]);
        match self.statuses.get(&(statuses, &container["name"])) {
            None => asked,
            Some(status) => held(status, asked, self.infeasible, side),
        }
    }
}

fn held(status: &Value, asked: ResourceList, infeasible: bool, side: Side) -> ResourceList {
    let has = amounts(&status["resources"][side.field()]);
    let given = match side {
        Side::Requests => amounts(&status["allocatedResources"]),
        Side::Limits => ResourceList::new(),
    };
    let known = !has.is_empty() || !given.is_empty();
    let mut most = if infeasible && known { ResourceList::new() } else { asked };
    resources::raise(&mut most, &has);
    resources::raise(&mut most, &given);
    most
}

/// The classes of one pod or container, by full resource name.
fn classes(requests: &Value) -> BTreeMap<&str, &str> {
    items(requests)
        .iter()
        .filter_map(|request| {
            Some((full_name(request["name"].as_str()?), request["class"].as_str()?))
        })
        .collect()
}

/// Which classes the pod itself asks for, by full resource name. For a container-level resource
/// that is the class of every container without one of its own.
pub(crate) fn pod_classes(pod: &Value) -> BTreeMap<&str, &str> {
    classes(&pod["spec"]["qosResources"])
}

/// The class a container is in, its own or the pod's.
pub(crate) fn class_of<'a>(
    pod: &'a Value,
    container: &'a Value,
    resource: &str,
) -> Option<&'a str> {
    let own = classes(&container["resources"]["qosResources"]);
    own.get(resource).copied().or_else(|| pod_classes(pod).get(resource).copied())
}

/// The containers of a pod that can be in classes: init containers, then containers.
pub(crate) fn class_containers(pod: &Value) -> impl Iterator<Item = &Value> {
    let spec = &pod["spec"];
    items(&spec["initContainers"]).iter().chain(items(&spec["containers"]))
}

/// The container-level resources the pod's containers name themselves.
pub(crate) fn named_by_containers(pod: &Value) -> Vec<&str> {
    let lists = class_containers(pod).map(|container| &container["resources"]["qosResources"]);
    let mut names: Vec<&str> = lists.flat_map(|list| classes(list).into_keys()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// How many containers are in which class of a container-level resource at once, at most.
pub(crate) fn class_uses<'a>(pod: &'a Value, resource: &str) -> BTreeMap<&'a str, i64> {
    let spec = &pod["spec"];
    let mut steady: BTreeMap<&str, i64> = BTreeMap::new();
    let mut most: BTreeMap<&str, i64> = BTreeMap::new();
    for container in items(&spec["initContainers"]) {
        let Some(class) = class_of(pod, container, resource) else { continue };
        if is_sidecar(container) {
            *steady.entry(class).or_default() += 1;
        } else {
            let now = steady.get(class).copied().unwrap_or(0) + 1;
            let peak = most.entry(class).or_default();
            *peak = (*peak).max(now);
        }
    }
    for container in items(&spec["containers"]) {
        if let Some(class) = class_of(pod, container, resource) {
            *steady.entry(class).or_default() += 1;
        }
    }
    for (class, uses) in steady {
        let peak = most.entry(class).or_default();
        *peak = (*peak).max(uses);
    }
    most
}
