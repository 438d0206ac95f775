//! The usage of objects, by the names that quotas use.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::catalog::Resource;
use crate::pod::resources::{Side, read_list as amounts};
use crate::quantity::{Format, Quantity};
use crate::resources::{
    QUOTA_COMPUTE, ResourceList, is_extended, is_huge_pages, is_native, is_quota_huge_pages,
};
use crate::timestamp::Timestamp;
use crate::totals::{self, With};

/// Resources that every container must specify if a quota bounds them. Upstream introduced this
/// before QoS classes, and kept it.
const MUST_SPECIFY: [&str; 6] =
    ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];

/// Core kinds that can be counted by their bare name.
const COUNTED_BARE: [&str; 4] =
    ["configmaps", "resourcequotas", "secrets", "replicationcontrollers"];

fn is_pod(resource: &Resource) -> bool {
    resource.group.is_empty() && resource.kind == "Pod"
}

fn is_service(resource: &Resource) -> bool {
    resource.group.is_empty() && resource.kind == "Service"
}

/// Reports whether a request for the resource is charged. Updates of most kinds change nothing.
pub(super) fn is_counted(resource: &Resource, is_update: bool) -> bool {
    resource.namespaced && (!is_update || is_pod(resource) || is_service(resource))
}

fn count_name(resource: &Resource) -> String {
    format!("count/{}", resource.qualified())
}

/// Reports whether a name in a quota counts objects of the resource.
pub(super) fn is_of(resource: &Resource, name: &str) -> bool {
    if is_pod(resource) {
        let is_vendors = name.starts_with("requests.") && !is_native(name);
        return matches!(name, "pods" | "count/pods")
            || QUOTA_COMPUTE.contains(&name)
            || is_quota_huge_pages(name)
            || is_vendors;
    }
    let counts = name.strip_prefix("count/").is_some_and(|counted| counted == resource.qualified());
    let is_bare = resource.group.is_empty()
        && COUNTED_BARE.contains(&resource.plural)
        && name == resource.plural;
    let of_service = is_service(resource)
        && matches!(name, "services" | "services.nodeports" | "services.loadbalancers");
    counts || is_bare || of_service
}

/// Returns the usage of an object.
#[must_use]
pub fn usage(resource: &Resource, object: &Value, now: Timestamp) -> ResourceList {
    let number = |count: usize| {
        Quantity::from_i64(i64::try_from(count).unwrap_or(i64::MAX), Format::DecimalSi)
    };
    let mut usage = ResourceList::new();
    usage.insert(count_name(resource), number(1));
    if resource.group.is_empty() && COUNTED_BARE.contains(&resource.plural) {
        usage.insert(resource.plural.to_owned(), number(1));
    }
    if is_service(resource) {
        let spec = &object["spec"];
        let ports = spec["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
        let (node_ports, balancers) = match spec["type"].as_str() {
            Some("NodePort") => (ports.len(), 0),
            Some("LoadBalancer") if spec["allocateLoadBalancerNodePorts"] != false => {
                (ports.len(), 1)
            }
            Some("LoadBalancer") => {
                let given = |port: &&Value| port["nodePort"].as_i64().unwrap_or(0) != 0;
                (ports.iter().filter(given).count(), 1)
            }
            _ => (0, 0),
        };
        usage.insert("services".to_owned(), number(1));
        usage.insert("services.nodeports".to_owned(), number(node_ports));
        usage.insert("services.loadbalancers".to_owned(), number(balancers));
    }
    if is_pod(resource) && is_alive(object, now) {
        let requests = totals::of_pod(object, Side::Requests, With::Holdings);
        let limits = totals::of_pod(object, Side::Limits, With::Holdings);
        usage.extend(compute(&requests, &limits));
        usage.insert("pods".to_owned(), number(1));
    }
    usage
}

/// Reports whether a pod still uses resources: it has not ended, and its deletion is not overdue.
pub(super) fn is_alive(pod: &Value, now: Timestamp) -> bool {
    if matches!(pod["status"]["phase"].as_str(), Some("Failed" | "Succeeded")) {
        return false;
    }
    let meta = &pod["metadata"];
    let deleted = meta["deletionTimestamp"].as_str().and_then(|time| Timestamp::parse(time).ok());
    match (deleted, meta["deletionGracePeriodSeconds"].as_i64()) {
        (Some(deleted), Some(grace)) => now <= deleted.plus_seconds(grace),
        _ => true,
    }
}

/// Returns requests and limits under all names that quotas use.
fn compute(requests: &ResourceList, limits: &ResourceList) -> ResourceList {
    let mut usage = ResourceList::new();
    for (name, amount) in requests {
        let is_standard = matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage");
        if is_standard || is_huge_pages(name) {
            usage.insert(name.clone(), amount.clone());
        }
        if is_standard || is_huge_pages(name) || is_extended(name) {
            usage.insert(format!("requests.{name}"), amount.clone());
        }
    }
    for (name, amount) in limits {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
            usage.insert(format!("limits.{name}"), amount.clone());
        }
    }
    usage
}

/// Returns the bounded resources that containers do not specify, with the containers.
pub(super) fn unspecified(
    resource: &Resource,
    object: &Value,
    bounded: &[String],
) -> BTreeMap<String, Vec<String>> {
    let mut missing: BTreeMap<String, Vec<String>> = BTreeMap::new();
    if !is_pod(resource) {
        return missing;
    }
    let resources = |holder: &Value| {
        compute(
            &amounts(&holder["resources"]["requests"]),
            &amounts(&holder["resources"]["limits"]),
        )
    };
    let of_pod = resources(&object["spec"]);
    let required: Vec<&String> = bounded
        .iter()
        .filter(|name| MUST_SPECIFY.contains(&name.as_str()) && !of_pod.contains_key(*name))
        .collect();
    for list in ["containers", "initContainers"] {
        for container in object["spec"][list].as_array().into_iter().flatten() {
            let specified = resources(container);
            for name in required.iter().filter(|name| !specified.contains_key(**name)) {
                let container = container["name"].as_str().unwrap_or_default().to_owned();
                missing.entry((*name).clone()).or_default().push(container);
            }
        }
    }
    for names in missing.values_mut() {
        names.sort_unstable();
        names.dedup();
    }
    missing
}
