//! The admission plugin NodeRestriction: what a node may write to the objects that the Node
//! authorizer ([`crate::node_authorizer`]) allows.
//!
//! It applies to every user that is a node, whatever other rights the user has, and does not depend
//! on other plugins.

use std::collections::BTreeSet;

use objects::rules::pod::references;
use serde_json::Value;

use crate::access_reviews::texts;
use crate::admission::{forbidden, named};
use crate::api::Api;
use crate::error::ApiError;
use crate::node_authorizer::LEASE_NAMESPACE;
use crate::route::ResourcePath;
use crate::subresources::core_resource;
use crate::write::subresource_name;

/// The annotation of mirror pods.
pub(crate) const MIRROR: &str = objects::pod::MIRROR_ANNOTATION;

/// Labels in Kubernetes' own namespaces that a node may set.
const KUBELET_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

/// Label namespaces, with subdomains, in which a node may set any label.
const KUBELET_NAMESPACES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

/// Checks an object that a node creates.
pub(crate) fn check_create(
    api: &Api,
    node: &str,
    path: &ResourcePath,
    object: &Value,
) -> Result<(), ApiError> {
    let no = |why: String| Err(forbidden(path, object, &why));
    if node.is_empty() {
        return no(unknown_node());
    }
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    match (path.resource.group, path.resource.plural) {
        ("", "pods") => check_mirror(api, node, path, object),
        ("", "nodes") => {
            check_node_name(node, path, object, name)?;
            if !object["spec"]["configSource"].is_null() {
                return no(format!(
                    "node {node:?} is not allowed to create pods with a non-nil configSource"
                ));
            }
            let labels = forbidden_labels(&Value::Null, &object["metadata"]["labels"]);
            match labels.is_empty() {
                true => Ok(()),
                false => no(format!(
                    "node {node:?} is not allowed to set the following labels: {labels}"
                )),
            }
        }
        ("coordination.k8s.io", "leases") => check_lease(node, path, object, name),
        _ => Ok(()),
    }
}

/// Checks an update by a node, before immutable fields are reset.
pub(crate) fn check_update(
    node: &str,
    path: &ResourcePath,
    old: &Value,
    new: &Value,
) -> Result<(), ApiError> {
    let no = |why: String| Err(forbidden(path, new, &why));
    if node.is_empty() {
        return no(unknown_node());
    }
    match (path.resource.group, path.resource.plural) {
        ("", "pods") => match subresource_name(path) {
            "" => no(format!(
                "unexpected operation \"UPDATE\", node {node:?} can only create and delete mirror \
                 pods"
            )),
            "status" => check_pod_status(node, path, old, new),
            subresource => no(unexpected_subresource(subresource)),
        },
        ("", "nodes") => {
            check_node_name(node, path, new, &path.name)?;
            let source = |of: &Value| of["spec"]["configSource"].clone();
            if !source(new).is_null() && source(new) != source(old) {
                return no(format!(
                    "node {node:?} is not allowed to update configSource to a new non-nil \
                     configSource"
                ));
            }
            if !same(&old["spec"]["taints"], &new["spec"]["taints"]) {
                return no(format!("node {node:?} is not allowed to modify taints"));
            }
            let owners = |of: &Value| of["metadata"]["ownerReferences"].clone();
            if !same(&owners(old), &owners(new)) {
                return no(format!("node {node:?} is not allowed to modify ownerReferences"));
            }
            let labels = forbidden_labels(&old["metadata"]["labels"], &new["metadata"]["labels"]);
            match labels.is_empty() {
                true => Ok(()),
                false => no(format!("is not allowed to modify labels: {labels}")),
            }
        }
        ("coordination.k8s.io", "leases") => check_lease(node, path, new, &path.name),
        _ => Ok(()),
    }
}

/// Checks an object that a node deletes.
pub(crate) fn check_delete(
    node: &str,
    path: &ResourcePath,
    object: &Value,
) -> Result<(), ApiError> {
    let no = |why: String| Err(forbidden(path, object, &why));
    if node.is_empty() {
        return no(unknown_node());
    }
    match (path.resource.group, path.resource.plural) {
        ("", "pods") if object["spec"]["nodeName"] != node => {
            no(format!("node {node:?} can only delete pods with spec.nodeName set to itself"))
        }
        ("", "nodes") => check_node_name(node, path, object, &path.name),
        ("coordination.k8s.io", "leases") => check_lease(node, path, object, &path.name),
        _ => Ok(()),
    }
}

/// Checks a request of a node to a pod's subresource that is neither read nor written as a pod.
pub(crate) fn check_subresource(
    node: &str,
    path: &ResourcePath,
    pod: &Value,
) -> Result<(), ApiError> {
    let no = |why: String| Err(forbidden(path, pod, &why));
    match subresource_name(path) {
        "eviction" if pod["spec"]["nodeName"] == node => Ok(()),
        "eviction" => {
            no(format!("node {node} can only evict pods with spec.nodeName set to itself"))
        }
        subresource => no(unexpected_subresource(subresource)),
    }
}

fn unexpected_subresource(subresource: &str) -> String {
    format!("unexpected pod subresource {subresource:?}, only 'status' and 'eviction' are allowed")
}

fn unknown_node() -> String {
    "could not determine node from user \"system:node:\"".to_owned()
}

/// Returns true if two lists are equal; an absent list is empty.
fn same(old: &Value, new: &Value) -> bool {
    let is_empty = |list: &Value| list.as_array().is_none_or(Vec::is_empty);
    old == new || is_empty(old) && is_empty(new)
}

fn check_node_name(
    node: &str,
    path: &ResourcePath,
    object: &Value,
    name: &str,
) -> Result<(), ApiError> {
    match name == node {
        true => Ok(()),
        false => {
            let why = format!("node {node:?} is not allowed to modify node {name:?}");
            Err(forbidden(path, object, &why))
        }
    }
}

fn check_lease(node: &str, path: &ResourcePath, lease: &Value, name: &str) -> Result<(), ApiError> {
    if path.namespace != LEASE_NAMESPACE {
        let why = format!("can only access leases in the {LEASE_NAMESPACE:?} system namespace");
        return Err(forbidden(path, lease, &why));
    }
    if name != node {
        let why = "can only access node lease with the same name as the requesting node";
        return Err(forbidden(path, lease, why));
    }
    Ok(())
}

/// Checks that a node creates only mirror pods of its static pods, without references to other
/// objects.
fn check_mirror(api: &Api, node: &str, path: &ResourcePath, pod: &Value) -> Result<(), ApiError> {
    let no = |why: String| Err(forbidden(path, pod, &why));
    if pod["metadata"]["annotations"].get(MIRROR).is_none() {
        return no(format!(
            "pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"
        ));
    }
    let only =
        |what: &str| no(format!("node {node:?} can only create pods with {what} set to itself"));
    if pod["spec"]["nodeName"] != node {
        return only("spec.nodeName");
    }
    let owners = pod["metadata"]["ownerReferences"].as_array().map(Vec::as_slice);
    let owner = match owners.unwrap_or_default() {
        [] => return only("an owner reference"),
        [owner] => owner,
        _ => return only("a single owner reference"),
    };
    if owner["apiVersion"] != "v1" || owner["kind"] != "Node" || owner["name"] != node {
        return only("an owner reference");
    }
    if owner["controller"] != true {
        return only("a controller owner reference");
    }
    if owner["blockOwnerDeletion"] == true {
        return no(format!("node {node:?} must not set blockOwnerDeletion on an owner reference"));
    }
    let Some(found) = named(api, "", "nodes", node)? else {
        return Err(ApiError::not_found_as("node", core_resource("nodes")?, node));
    };
    let text = |of: &Value| of.as_str().unwrap_or_default().to_owned();
    let (given, uid) = (text(&owner["uid"]), text(&found["metadata"]["uid"]));
    if given != uid {
        return no(format!("node {node} UID mismatch: expected {given} got {uid}"));
    }
    match references::api_objects(&pod["spec"]) {
        Some(objects) => no(format!("node {node:?} can not create pods that reference {objects}")),
        None => Ok(()),
    }
}

fn check_pod_status(
    node: &str,
    path: &ResourcePath,
    old: &Value,
    new: &Value,
) -> Result<(), ApiError> {
    let no = |why: String| Err(forbidden(path, new, &why));
    if old["spec"]["nodeName"] != node {
        return no(format!(
            "node {node:?} can only update pod status for pods with spec.nodeName set to itself"
        ));
    }
    let labels = |of: &Value| of["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    if labels(old) != labels(new) {
        return no(format!("node {node:?} cannot update labels through pod status"));
    }
    for (field, what) in [
        ("resourceClaimStatuses", "resource claim statues"),
        ("extendedResourceClaimStatus", "extended resource claim status"),
        ("nodeAllocatableResourceClaimStatuses", "node allocatable resource claim statuses"),
    ] {
        if !same(&old["status"][field], &new["status"][field]) {
            return no(format!("node {node:?} cannot update {what}"));
        }
    }
    Ok(())
}

/// Returns the changed labels that a node may not set, in order.
fn forbidden_labels(old: &Value, new: &Value) -> String {
    let keys = |of: &Value| -> BTreeSet<String> {
        of.as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect()
    };
    let all: BTreeSet<String> = keys(old).union(&keys(new)).cloned().collect();
    let forbidden = all.into_iter().filter(|key| old.get(key) != new.get(key) && is_forbidden(key));
    forbidden.collect::<Vec<_>>().join(", ")
}

/// Returns true if a label is reserved for node isolation, or an unknown label in Kubernetes'
/// namespaces.
fn is_forbidden(label: &str) -> bool {
    let Some((namespace, _)) = label.split_once('/') else { return false };
    let within = |domain: &str| {
        let below = namespace.strip_suffix(domain);
        below.is_some_and(|below| below.is_empty() || below.ends_with('.'))
    };
    if within("node-restriction.kubernetes.io") {
        return true;
    }
    let is_kubernetes = within("kubernetes.io") || within("k8s.io");
    let may_be_set =
        KUBELET_LABELS.contains(&label) || KUBELET_NAMESPACES.iter().any(|domain| within(domain));
    is_kubernetes && !may_be_set
}

/// Checks a token requested by a node: it must be bound to a pod on the node, for an audience of
/// one of its volumes. `pod` looks up the bound pod.
pub(crate) fn check_token(
    user: &str,
    node: &str,
    spec: &Value,
    pod: impl FnOnce(&str) -> Result<Option<Value>, ApiError>,
) -> Result<Result<(), String>, ApiError> {
    let no = |why: &str| Ok(Err(why.to_owned()));
    let reference = &spec["boundObjectRef"];
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    if (text("apiVersion"), text("kind")) != ("v1", "Pod") || text("name").is_empty() {
        return no("node requested token not bound to a pod");
    }
    if text("uid").is_empty() {
        return no("node requested token with a pod binding without a uid");
    }
    let Some(pod) = pod(text("name"))? else {
        return Err(ApiError::not_found_as("pod", core_resource("pods")?, text("name")));
    };
    if pod["metadata"]["uid"] != text("uid") {
        return no(&crate::tokens::another_uid(text("uid")));
    }
    if pod["spec"]["nodeName"] != node {
        return no("node requested token bound to a pod scheduled on a different node");
    }
    let audiences = texts(&spec["audiences"]);
    let audience = match audiences.as_slice() {
        [] => "",
        [audience] => audience,
        _ => return no("node may only request 0 or 1 audiences"),
    };
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    let sources = volumes.flat_map(|volume| volume["projected"]["sources"].as_array());
    let mut tokens = sources.flatten().filter_map(|source| source.get("serviceAccountToken"));
    // A projection without an audience is for the API server.
    match tokens.any(|token| token["audience"].as_str().unwrap_or_default() == audience) {
        true => Ok(Ok(())),
        false => {
            no(&format!("{user} is not authorized to request tokens for audience {audience:?}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn node_may_set_only_its_own_labels() {
        for (label, expected) in [
            ("plain", false),
            ("example.com/x", false),
            ("node.cluster.x-k8s.io/a", false),
            ("kubernetes.io/hostname", false),
            ("topology.kubernetes.io/zone", false),
            ("kubelet.kubernetes.io/x", false),
            ("foo.node.kubernetes.io/x", false),
            ("kubernetes.io/hostname2", true),
            ("topology.kubernetes.io/rack", true),
            ("k8s.io/foo", true),
            ("a.k8s.io/foo", true),
            ("node-role.kubernetes.io/control-plane", true),
            ("node-restriction.kubernetes.io/x", true),
            ("foo.node-restriction.kubernetes.io/x", true),
            ("x.kubelet-kubernetes.io/y", false),
            ("evilkubernetes.io/x", false),
        ] {
            assert_eq!(is_forbidden(label), expected, "{label}");
        }
        let old = json!({"k8s.io/b": "1", "k8s.io/same": "1", "plain": "1"});
        let new = json!({"k8s.io/a": "1", "k8s.io/same": "1"});
        assert_eq!(forbidden_labels(&old, &new), "k8s.io/a, k8s.io/b");
        assert_eq!(forbidden_labels(&Value::Null, &json!({"plain": ""})), "");
    }
}
