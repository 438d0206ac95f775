//! The rules of every kind that is not a pod: which module has them, and what all kinds share:
//! metadata, generation, the status kept apart.
//!
//! One module for each kind, or for a few small ones that are alike.

use serde_json::Value;

use super::meta::{self, MetaRule};
use super::names::NameRule;
use super::{Setting, Subresource, checks};
use crate::catalog::Resource;
use crate::cursor::{Causes, Cursor};
use crate::schema::Schema;

mod budget;
mod class;
mod config;
pub mod event;
mod job;
mod job_status;
mod lease;
mod limit_range;
mod namespace;
pub mod node;
mod quota;
pub mod review;
pub mod scale;
pub mod service;
mod service_warnings;
#[cfg(test)]
mod tests;
pub mod token;
mod workload;

pub use class::is_system_priority;
pub(crate) use workload::TEMPLATE_GENERATION;

/// How the objects of a kind are named; nothing for kinds that leave it to the server's own rule.
fn meta_rule(resource: &Resource) -> Option<MetaRule> {
    let name = match (resource.group, resource.kind) {
        ("", "Namespace" | "Service") => NameRule::DnsLabel,
        ("policy", "PodDisruptionBudget") | ("" | "events.k8s.io", "Event") => return None,
        _ => NameRule::DnsSubdomain,
    };
    Some(MetaRule {
        name,
        namespaced: resource.namespaced,
        standard_finalizers: resource.group != "coordination.k8s.io",
    })
}

/// What holds for any object: its name can stand in a path.
fn plain_rule(resource: &Resource) -> MetaRule {
    let name = NameRule::PathSegment;
    MetaRule { name, namespaced: resource.namespaced, standard_finalizers: false }
}

/// Whether changes of the spec are counted.
fn counts_generation(resource: &Resource) -> bool {
    matches!(
        (resource.group, resource.kind),
        ("apps", "DaemonSet" | "Deployment" | "ReplicaSet")
            | ("batch", "Job")
            | ("policy", "PodDisruptionBudget")
    )
}

/// Whether the status is written through a subresource only.
fn has_status(resource: &Resource) -> bool {
    resource.subresource("status").is_some()
}

/// What a status is before anything was observed.
fn empty_status(resource: &Resource) -> Value {
    let schema = Schema::served();
    let name = format!("{}.{}Status", resource.package, resource.kind);
    schema.find(&name).map_or_else(|| Value::Object(serde_json::Map::new()), |id| schema.zero(id))
}

pub(super) fn set_defaults(resource: &Resource, object: &mut Value) {
    match (resource.group, resource.kind) {
        ("", "Namespace") => namespace::set_defaults(object),
        ("", "Node") => node::set_defaults(object),
        ("", "Secret") => config::set_secret_defaults(object),
        ("", "Service") => service::set_defaults(object),
        ("", "ResourceQuota") => quota::set_defaults(object),
        ("", "LimitRange") => limit_range::set_defaults(object),
        ("apps", "DaemonSet") => workload::set_daemon_set_defaults(object),
        ("apps", "Deployment") => workload::set_deployment_defaults(object),
        ("apps", "ReplicaSet") => workload::set_replica_set_defaults(object),
        ("batch", "Job") => job::set_defaults(object),
        ("scheduling.k8s.io", "PriorityClass") => class::set_priority_defaults(object),
        _ => {}
    }
}

pub(super) fn prepare_create(resource: &Resource, object: &mut Value, setting: &Setting<'_>) {
    if has_status(resource) && resource.kind != "Node" {
        checks::set(object, "status", empty_status(resource));
    }
    let first = counts_generation(resource) || resource.kind == "PriorityClass";
    if first && let Some(meta) = meta::metadata_mut(object) {
        meta.insert("generation".to_owned(), 1.into());
    }
    workload::prepare_template(object, &Value::Null);
    match (resource.group, resource.kind) {
        ("", "Namespace") => namespace::prepare_create(object),
        ("", "Node") => node::prepare_create(object, setting),
        ("", "Service") => service::prepare_create(object),
        ("", "ServiceAccount") => config::prepare_account(object),
        ("", "LimitRange") => limit_range::prepare(object, None, setting),
        ("", "ResourceQuota") => quota::prepare(object, None, setting),
        ("apps", "DaemonSet") => workload::prepare_daemon_set(object),
        ("batch", "Job") => job::prepare_create(object),
        ("coordination.k8s.io", "Lease") => lease::prepare(object, None),
        _ => {}
    }
}

pub(super) fn prepare_update(
    resource: &Resource,
    object: &mut Value,
    old: &Value,
    subresource: Subresource,
    setting: &Setting<'_>,
) {
    if subresource == Subresource::Status {
        checks::keep(object, old, "spec");
    } else if has_status(resource) {
        checks::keep(object, old, "status");
    }
    if subresource == Subresource::Main {
        workload::prepare_template(object, old);
    }
    match (resource.group, resource.kind) {
        ("", "Namespace") => namespace::prepare_update(object, old, subresource),
        ("", "Node") => node::prepare_update(object, old, subresource, setting),
        ("", "Service") if subresource == Subresource::Main => service::prepare_update(object, old),
        ("", "ServiceAccount") => config::prepare_account(object),
        ("", "LimitRange") => limit_range::prepare(object, Some(old), setting),
        ("", "ResourceQuota") if subresource == Subresource::Main => {
            quota::prepare(object, Some(old), setting)
        }
        ("apps", "DaemonSet") => workload::prepare_daemon_set_update(object, old),
        ("apps", "Deployment") if subresource == Subresource::Status => {
            meta::keep_labels(object, old)
        }
        ("coordination.k8s.io", "Lease") => lease::prepare(object, Some(old)),
        _ => {}
    }
    let changed = |of: &str| !checks::is_same(&object[of], &old[of]);
    // The annotations of a deployment are handed on to its replica sets.
    let annotations = |object: &Value| object["metadata"]["annotations"].clone();
    let counts = changed("spec")
        || (resource.kind == "Deployment"
            && !checks::is_same(&annotations(object), &annotations(old)));
    if subresource == Subresource::Main && counts_generation(resource) && counts {
        meta::bump_generation(object);
    }
}

pub(super) fn validate_create(
    resource: &Resource,
    object: &Value,
    setting: &Setting<'_>,
) -> Causes {
    let mut causes = Causes::default();
    let shorn = (resource.group, resource.kind) == ("batch", "Job");
    let shorn = shorn.then(|| job::without_made_labels(object));
    let top = Cursor::top(shorn.as_ref().unwrap_or(object), "");
    if let Some(rule) = meta_rule(resource) {
        meta::validate(&top.field("metadata"), rule, &mut causes);
    }
    validate(resource, &top, None, setting, &mut causes);
    if causes.is_empty() {
        meta::validate(&top.field("metadata"), plain_rule(resource), &mut causes);
    }
    causes
}

pub(super) fn validate_update(
    resource: &Resource,
    object: &Value,
    old: &Value,
    subresource: Subresource,
    setting: &Setting<'_>,
) -> Causes {
    let mut causes = Causes::default();
    let (top, old) = (Cursor::top(object, ""), Cursor::top(old, ""));
    let (meta, old_meta) = (top.field("metadata"), old.field("metadata"));
    meta::validate(&meta, plain_rule(resource), &mut causes);
    let rule = meta_rule(resource);
    let own_rule = rule.unwrap_or(plain_rule(resource));
    if subresource != Subresource::Main {
        meta::validate_update(&meta, &old_meta, own_rule, &mut causes);
        validate_subresource(resource, &top, &old, subresource, setting, &mut causes);
        return causes;
    }
    // Upstream asks three questions, in an order that differs between kinds.
    let metadata = |causes: &mut Causes| {
        meta::validate_update(&meta, &old_meta, own_rule, causes);
    };
    let object = |causes: &mut Causes| {
        if let Some(rule) = rule {
            meta::validate(&meta, rule, causes);
        }
        validate(resource, &top, Some(&old), setting, causes);
    };
    let change = |causes: &mut Causes| validate_change(resource, &top, &old, setting, causes);
    match resource.kind {
        "ConfigMap" | "Secret" | "Service" | "ServiceAccount" => {
            metadata(&mut causes);
            change(&mut causes);
            object(&mut causes);
        }
        "Deployment" | "Job" | "Lease" | "PriorityClass" | "ResourceQuota"
        | "ControllerRevision" => {
            metadata(&mut causes);
            validate(resource, &top, Some(&old), setting, &mut causes);
            change(&mut causes);
        }
        // The older form of events is never compared with what it was.
        "Event" if resource.group.is_empty() => object(&mut causes),
        _ => {
            object(&mut causes);
            metadata(&mut causes);
            change(&mut causes);
        }
    }
    causes
}

/// What must hold of an object, new or changed.
fn validate(
    resource: &Resource,
    top: &Cursor<'_>,
    old: Option<&Cursor<'_>>,
    setting: &Setting<'_>,
    causes: &mut Causes,
) {
    let old_spec = old.map_or(&Value::Null, |old| old.value().get("spec").unwrap_or(&Value::Null));
    match (resource.group, resource.kind) {
        ("", "Namespace") => namespace::validate(top, causes),
        ("", "Node") => node::validate(top, old, setting, causes),
        ("", "ConfigMap") => config::validate_config_map(top, causes),
        ("", "Secret") => config::validate_secret(top, causes),
        ("", "Service") => service::validate(top, causes),
        ("", "ResourceQuota") => quota::validate(top, old.is_some(), causes),
        ("", "LimitRange") => limit_range::validate(top, causes),
        ("" | "events.k8s.io", "Event") => event::validate(top, resource.group, old, causes),
        ("apps", "DaemonSet") => workload::validate_daemon_set(top, old_spec, setting, causes),
        ("apps", "Deployment") => workload::validate_deployment(top, old_spec, setting, causes),
        ("apps", "ReplicaSet") => workload::validate_replica_set(top, old_spec, setting, causes),
        ("apps", "ControllerRevision") => workload::validate_revision(top, causes),
        ("batch", "Job") => job::validate(top, old_spec, setting, causes),
        ("policy", "PodDisruptionBudget") => budget::validate(top, causes),
        ("scheduling.k8s.io", "PriorityClass") if old.is_none() => {
            class::validate_priority(top, causes);
        }
        ("node.k8s.io", "RuntimeClass") => class::validate_runtime(top, causes),
        ("coordination.k8s.io", "Lease") => lease::validate(top, causes),
        _ => {}
    }
}

/// What must hold between an object and what it was.
fn validate_change(
    resource: &Resource,
    top: &Cursor<'_>,
    old: &Cursor<'_>,
    setting: &Setting<'_>,
    causes: &mut Causes,
) {
    match (resource.group, resource.kind) {
        ("", "Node") => node::validate_change(top, old, setting, causes),
        ("", "ConfigMap") => config::validate_frozen(top, old, &["data", "binaryData"], causes),
        ("", "Secret") => {
            checks::unchanged(&top.field("type"), &old.field("type"), causes);
            config::validate_frozen(top, old, &["data"], causes);
        }
        ("", "Service") => service::validate_change(top, old, causes),
        ("", "ResourceQuota") => quota::validate_change(top, old, causes),
        ("events.k8s.io", "Event") => event::validate_change(top, old, causes),
        ("apps", "DaemonSet" | "Deployment" | "ReplicaSet") => {
            workload::validate_selector_kept(top, old, causes);
        }
        ("apps", "ControllerRevision") => workload::validate_revision_change(top, old, causes),
        ("batch", "Job") => job::validate_change(top, old, causes),
        ("scheduling.k8s.io", "PriorityClass") => class::validate_priority_change(top, old, causes),
        ("node.k8s.io", "RuntimeClass") => class::validate_runtime_change(top, old, causes),
        _ => {}
    }
}

/// What must hold of a status, or of another part that is written by itself.
fn validate_subresource(
    resource: &Resource,
    top: &Cursor<'_>,
    old: &Cursor<'_>,
    subresource: Subresource,
    setting: &Setting<'_>,
    causes: &mut Causes,
) {
    match (resource.group, resource.kind) {
        ("", "Namespace") => namespace::validate_subresource(top, subresource, causes),
        ("", "Node") => node::validate_change(top, old, setting, causes),
        ("", "ResourceQuota") => quota::validate_status(top, causes),
        ("", "Service") => service::validate_status(top, causes),
        ("apps", "DaemonSet") => workload::validate_daemon_set_status(top, old, causes),
        ("apps", "Deployment") => workload::validate_deployment_status(top, old, causes),
        ("apps", "ReplicaSet") => workload::validate_replica_set_status(top, causes),
        ("batch", "Job") => job_status::validate(top, old, causes),
        ("policy", "PodDisruptionBudget") => budget::validate_status(top, causes),
        _ => {}
    }
}

pub(super) fn warnings(resource: &Resource, object: &Value, old: Option<&Value>) -> Vec<String> {
    match (resource.group, resource.kind) {
        ("", "Service") => service_warnings::warnings(object),
        ("", "ServiceAccount") => config::service_account_warnings(object, old),
        ("", "Node") => node::warnings(object),
        ("node.k8s.io", "RuntimeClass") => class::runtime_warnings(object),
        ("apps", "DaemonSet" | "Deployment" | "ReplicaSet") | ("batch", "Job") => {
            workload::warnings(resource, object, old)
        }
        _ => Vec::new(),
    }
}
