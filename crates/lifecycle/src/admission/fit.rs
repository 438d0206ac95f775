//! Checks whether a pod fits on the node: resources, node affinity, node name, ports and taints.
//!
//! Returns all reasons against it in the kubelet's order; the first one is reported.

use objects::Quantity;
use objects::resources::{self, CPU, EPHEMERAL_STORAGE, MEMORY};
use objects::selector::NodeSelector;
use serde::Deserialize;

use super::{AdmittedPod, Node, Rejection, taints};
use crate::spec::{ContainerPort, Pod, ResourceList, Role};
use crate::status::is_static;

pub(super) const PODS: &str = "pods";

pub(super) fn check(pod: &Pod, node: &Node, others: &[AdmittedPod<'_>]) -> Vec<Rejection> {
    let mut reasons = insufficient(pod, node, others);
    let mut predicate = |holds: bool, name, why| {
        if !holds {
            reasons.push(Rejection::Predicate { name, why });
        }
    };
    predicate(
        matches_affinity(pod, node),
        "NodeAffinity",
        "node(s) didn't match Pod's node affinity/selector",
    );
    let named = pod.spec.node_name.is_empty() || pod.spec.node_name == node.name;
    predicate(named, "NodeName", "node(s) didn't match the requested node name");
    predicate(
        !ports_collide(pod, others),
        "NodePorts",
        "node(s) didn't have free ports for the requested pod ports",
    );
    // A static pod is meant for this node and no other, whatever is wrong with it. What is only not
    // to be scheduled here may run here once it was.
    let against = |taint: &&taints::Taint| {
        taint.effect == "NoExecute" && !taints::is_tolerated(pod, taint, node.compare_taints)
    };
    predicate(
        is_static(pod) || !node.taints.iter().any(|taint| against(&taint)),
        "TaintToleration",
        "node(s) had taints that the pod didn't tolerate",
    );
    reasons
}

/// Returns an amount in the unit of the resource.
pub fn amount(list: &ResourceList, resource: &str) -> i64 {
    let of = if resource == CPU { Quantity::milli_value } else { Quantity::value };
    list.get(resource).map_or(0, of)
}

pub(super) fn insufficient(pod: &Pod, node: &Node, others: &[AdmittedPod<'_>]) -> Vec<Rejection> {
    let requests = crate::requests(pod);
    let mut lacking = Vec::new();
    let mut check = |resource: &str, requested: i64, used: i64| {
        let capacity = amount(&node.allocatable, resource);
        if requested > 0 && requested > capacity.saturating_sub(used) {
            let resource = resource.to_owned();
            lacking.push(Rejection::Insufficient { resource, requested, used, capacity });
        }
    };
    check(PODS, 1, i64::try_from(others.len()).unwrap_or(i64::MAX));
    let first = [CPU, MEMORY, EPHEMERAL_STORAGE];
    // Extended resources that the node does not have are handled by another component.
    let is_ours = |name: &&str| {
        !first.contains(name)
            && (node.allocatable.contains_key(*name) || !resources::is_extended(name))
    };
    let rest = requests.keys().map(String::as_str).filter(is_ours);
    for resource in first.into_iter().chain(rest) {
        let used = others.iter().map(|other| amount(&other.requests, resource));
        let used = used.fold(0i64, i64::saturating_add);
        check(resource, amount(&requests, resource), used);
    }
    lacking
}

fn matches_affinity(pod: &Pod, node: &Node) -> bool {
    let selected = |(name, value): (&String, &String)| node.labels.get(name) == Some(value);
    if !pod.spec.node_selector.iter().all(selected) {
        return false;
    }
    let required = pod.spec.affinity.as_ref().map(
        |affinity| &affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"],
    );
    match required.filter(|required| !required.is_null()) {
        None => true,
        Some(required) => NodeSelector::deserialize(required).is_ok_and(|selector| {
            selector.matches(&node.name, |label| node.labels.get(label).map(String::as_str))
        }),
    }
}

fn ports_collide(pod: &Pod, others: &[AdmittedPod<'_>]) -> bool {
    let taken: Vec<&ContainerPort> =
        others.iter().flat_map(|other| host_ports(other.pod)).collect();
    host_ports(pod).any(|port| taken.iter().any(|other| collide(port, other)))
}

/// Returns the host ports that containers hold while the pod runs.
fn host_ports(pod: &Pod) -> impl Iterator<Item = &ContainerPort> {
    pod.containers()
        .filter(|(role, _)| matches!(role, Role::App | Role::Sidecar))
        .flat_map(|(_, container)| &container.ports)
        .filter(|port| port.host_port > 0)
}

fn collide(one: &ContainerPort, other: &ContainerPort) -> bool {
    let protocol = |port: &ContainerPort| match port.protocol.as_str() {
        "" => "TCP".to_owned(),
        named => named.to_owned(),
    };
    let everywhere = |port: &ContainerPort| matches!(port.host_ip.as_str(), "" | "0.0.0.0");
    one.host_port == other.host_port
        && protocol(one) == protocol(other)
        && (everywhere(one) || everywhere(other) || one.host_ip == other.host_ip)
}
