//! Resources of a whole pod, from the object: [`of_pod`], the sum for limit ranges and quotas, and
//! [`class_uses`], the number of uses of each class of a QoS resource.
//!
//! The sum is that of [`crate::pod::resources`], over what containers request or over what they hold.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use crate::pod::Role;
use crate::pod::resources::{ContainerResources, PodResources, Side, peak, read_list as amounts};
use crate::resources::{self, ResourceList};
use crate::rules::pod::class_resources::full_name;

/// The parts of a sum in addition to the spec's containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum With {
    /// Nothing: what was asked for.
    Spec,
    /// Resources that running containers still hold, and the pod's overhead.
    Holdings,
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Returns what a pod needs.
pub(crate) fn of_pod(pod: &Value, side: Side, with: With) -> ResourceList {
    let mut resources = PodResources::of_spec(&pod["spec"]);
    match with {
        With::Spec => resources = resources.without_overhead(),
        With::Holdings => {
            let holdings = Holdings::of(pod);
            for container in &mut resources.containers {
                let held = holdings.held(container, side);
                container.requirements.set(side, held);
            }
        }
    }
    resources.effective(side)
}

/// Which of a pod's lists of statuses a container is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Statuses {
    Main,
    Init,
}

/// The allocations of a pod's containers and what is in force, by name.
struct Holdings<'a> {
    statuses: HashMap<(Statuses, &'a str), &'a Value>,
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
                let name = status["name"].as_str().unwrap_or_default();
                statuses.entry((list, name)).or_insert(status);
            }
        }
        let infeasible = items(&status["conditions"]).iter().any(|condition| {
            condition["type"] == "PodResizePending" && condition["reason"] == "Infeasible"
        });
        Holdings { statuses, infeasible }
    }

    /// The most of what a container asks for, was given and has. A resize that cannot be done counts
    /// for nothing.
    fn held(&self, container: &ContainerResources<'_>, side: Side) -> ResourceList {
        let asked = container.requirements.get(side).clone();
        let list = if container.role == Role::App { Statuses::Main } else { Statuses::Init };
        match self.statuses.get(&(list, container.name)) {
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

/// Returns the number of containers that are in a class of a container-level resource at once, at most.
pub(crate) fn class_uses<'a>(pod: &'a Value, resource: &str) -> BTreeMap<&'a str, i64> {
    let spec = &pod["spec"];
    let init = items(&spec["initContainers"]).iter().map(|c| (Role::of_init_container(c), c));
    let apps = items(&spec["containers"]).iter().map(|c| (Role::App, c));
    let users = init
        .chain(apps)
        .filter_map(|(role, container)| Some((role, class_of(pod, container, resource)?)));
    let users: Vec<(Role, &str)> = users.collect();
    let at_once = |class: &str| peak(users.iter().map(|(role, c)| (*role, i64::from(*c == class))));
    users.iter().map(|(_, class)| (*class, at_once(class))).collect()
}
