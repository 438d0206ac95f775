//! What the API server does to an object between reading and storing it, kind by kind.
//!
//! In the order of a request: [`set_defaults`], what admission puts in (elsewhere),
//! [`prepare_create`] or [`prepare_update`] (fields a client may not set, status, generation),
//! [`validate_create`] or [`validate_update`], [`warnings`], what admission refuses (elsewhere). Objects are canonical values ([`crate::schema`]). Everything
//! is a function of its arguments; other objects (quotas, limit ranges, priority classes) are
//! admission's business.

mod checks;
mod kinds;
pub mod meta;
pub mod names;
pub mod pod;
pub mod pod_security;
mod resource_names;

pub(crate) use kinds::TEMPLATE_GENERATION;
pub use kinds::{event, is_system_priority, node, review, scale, service, token};

use serde_json::Value;

use crate::catalog::Resource;
use crate::cursor::Causes;
use crate::feature_gates::FeatureGates;
use crate::timestamp::Timestamp;

/// What a rule may know beside the object.
#[derive(Debug, Clone, Copy)]
pub struct Setting<'a> {
    pub gates: &'a FeatureGates,
    /// `--allow-privileged`.
    pub allow_privileged: bool,
    pub now: Timestamp,
}

/// The subresource that a request writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Subresource {
    /// The object itself: everything but the status.
    Main,
    Status,
    /// `pods/resize`.
    Resize,
    /// `pods/ephemeralcontainers`.
    EphemeralContainers,
    /// `namespaces/finalize`.
    Finalize,
}

/// Whether the resource is pods.
fn is_pods(resource: &Resource) -> bool {
    resource.group.is_empty() && resource.kind == "Pod"
}

/// Sets what a client left out and the API promises.
pub fn set_defaults(resource: &Resource, object: &mut Value) {
    match is_pods(resource) {
        true => pod::set_defaults(object),
        false => kinds::set_defaults(resource, object),
    }
}

/// Clears what a client may not set on a new object and sets what the server does: generation,
/// status. The object's name and id must be known, as a job's labels are made from them, and what
/// admission fills in must be there, as a pod's QoS class follows from it. Returns warnings of what
/// can no longer be seen afterwards.
pub fn prepare_create(
    resource: &Resource,
    object: &mut Value,
    setting: &Setting<'_>,
) -> Vec<String> {
    meta::prepare_create(object);
    if is_pods(resource) {
        return pod::prepare_create(object, setting);
    }
    kinds::prepare_create(resource, object, setting);
    Vec::new()
}

/// Puts back what a request to `subresource` may not change, and counts the generation on where the
/// rest changed what the generation counts.
pub fn prepare_update(
    resource: &Resource,
    object: &mut Value,
    old: &Value,
    subresource: Subresource,
    setting: &Setting<'_>,
) {
    meta::prepare_update(object, old);
    match is_pods(resource) {
        true => pod::prepare_update(object, old, subresource),
        false => kinds::prepare_update(resource, object, old, subresource, setting),
    }
}

#[must_use]
pub fn validate_create(resource: &Resource, object: &Value, setting: &Setting<'_>) -> Causes {
    let causes = match is_pods(resource) {
        true => pod::validate_create(object, setting),
        false => kinds::validate_create(resource, object, setting),
    };
    causes.distinct()
}

#[must_use]
pub fn validate_update(
    resource: &Resource,
    object: &Value,
    old: &Value,
    subresource: Subresource,
    setting: &Setting<'_>,
) -> Causes {
    let causes = match is_pods(resource) {
        true => pod::validate_update(object, old, subresource, setting),
        false => kinds::validate_update(resource, object, old, subresource, setting),
    };
    causes.distinct()
}

/// What a client should hear about an object that is accepted, in `Warning` headers.
#[must_use]
pub fn warnings(resource: &Resource, object: &Value, old: Option<&Value>) -> Vec<String> {
    match is_pods(resource) {
        true => pod::warnings(object, old),
        false => kinds::warnings(resource, object, old),
    }
}
