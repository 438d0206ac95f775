//! The table of fields that a write through a resource or subresource cannot change, as in
//! upstream's strategies. Such a write does not own them.

use serde_json::Value;

use super::set::{FieldSet, Node, is_member, make_member};

/// The treatment of the fields of a set.
#[derive(Debug, Clone, Copy)]
enum Reset {
    /// These fields and all fields in them are restored.
    Except(&'static [&'static [&'static str]]),
    /// Only these fields, their parents and the fields in them are written. `*` stands for any list
    /// item.
    Only(&'static [&'static [&'static str]]),
}

const STATUS: Reset = Reset::Except(&[&["f:status"]]);
const SPEC: Reset = Reset::Except(&[&["f:spec"]]);

const POD_STATUS: Reset = Reset::Except(&[
    &["f:spec"],
    &["f:metadata", "f:deletionTimestamp"],
    &["f:metadata", "f:ownerReferences"],
]);
const POD_EPHEMERAL: Reset = Reset::Only(&[&["f:spec", "f:ephemeralContainers"]]);
const POD_RESIZE: Reset = Reset::Only(&[
    &["f:spec", "f:containers", "*", "f:resources"],
    &["f:spec", "f:containers", "*", "f:resizePolicy"],
    &["f:spec", "f:initContainers", "*", "f:resources"],
    &["f:spec", "f:initContainers", "*", "f:resizePolicy"],
]);
const DEPLOYMENT_STATUS: Reset = Reset::Except(&[&["f:spec"], &["f:metadata", "f:labels"]]);

/// Kinds whose status is written through a subresource of its own.
const WITH_STATUS: &[&str] = &[
    "CronJob",
    "DaemonSet",
    "Deployment",
    "Job",
    "Namespace",
    "Node",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Pod",
    "PodDisruptionBudget",
    "ReplicaSet",
    "ReplicationController",
    "ResourceQuota",
    "Service",
    "StatefulSet",
];

fn of(kind: &str, subresource: &str) -> Option<Reset> {
    match (kind, subresource) {
        ("Pod", "status") => Some(POD_STATUS),
        ("Pod", "ephemeralcontainers") => Some(POD_EPHEMERAL),
        ("Pod", "resize") => Some(POD_RESIZE),
        ("Deployment", "status") => Some(DEPLOYMENT_STATUS),
        (kind, "status") if WITH_STATUS.contains(&kind) => Some(SPEC),
        (kind, "" | "finalize") if WITH_STATUS.contains(&kind) => Some(STATUS),
        _ => None,
    }
}

/// Returns the fields of a set that a write through a subresource of a kind really writes.
pub(super) fn written(kind: &str, subresource: &str, mut set: FieldSet) -> FieldSet {
    match of(kind, subresource) {
        None => set,
        Some(Reset::Except(paths)) => {
            for path in paths {
                set.subtract_with_all_below(&FieldSet::of(path));
            }
            set
        }
        Some(Reset::Only(paths)) => FieldSet(only(&set.0, paths)),
    }
}

fn only(node: &Node, paths: &[&[&str]]) -> Node {
    let mut kept = Node::new();
    for (element, below) in node {
        let Value::Object(below) = below else { continue };
        let rest: Vec<&[&str]> = paths
            .iter()
            .filter_map(|path| path.split_first())
            .filter(|(step, _)| **step == "*" || *step == element)
            .map(|(_, rest)| rest)
            .collect();
        if rest.is_empty() {
            continue;
        }
        let member = is_member(below);
        let mut inside = if rest.iter().any(|rest| rest.is_empty()) {
            below.clone()
        } else {
            only(below, &rest)
        };
        if member {
            make_member(&mut inside);
        }
        if member || !inside.is_empty() {
            kept.insert(element.clone(), Value::Object(inside));
        }
    }
    kept
}
