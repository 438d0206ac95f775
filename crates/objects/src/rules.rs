//! The rules that the API server applies to an object between decoding and storing it, by kind.
//!
//! In the order of a request: [`set_defaults`], mutating admission (elsewhere), [`prepare_create`]
//! or [`prepare_update`] (fields that a client may not set, status, generation),
//! [`validate_create`] or [`validate_update`], [`warnings`], validating admission (elsewhere).
//! Objects are canonical values ([`crate::schema`]). Everything is a function of its arguments;
//! admission handles other objects (quotas, limit ranges, priority classes).

mod checks;
pub mod meta;
pub mod names;
pub mod pod;
pub mod pod_security;
mod resource_names;
mod strategy;

pub(crate) use strategy::TEMPLATE_GENERATION;
pub use strategy::{event, is_system_priority, node, review, scale, service, token};

use serde_json::Value;

use crate::catalog::Resource;
use crate::cursor::Causes;
use crate::feature_gates::FeatureGates;
use crate::timestamp::Timestamp;

/// The inputs of a rule apart from the object.
#[derive(Debug, Clone, Copy)]
pub struct RuleContext<'a> {
    pub gates: &'a FeatureGates,
    /// `--allow-privileged`.
    pub allow_privileged: bool,
    pub now: Timestamp,
}

/// The part of an object that a request writes.
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

/// Sets the defaults of fields that a client left out.
pub fn set_defaults(resource: &Resource, object: &mut Value) {
    (strategy::find(resource).set_defaults)(object);
}

/// Clears fields that a client may not set on a new object, and sets the generation and the status.
/// The name and the UID must be known, because the labels of a job contain them. Admission must have
/// run, because the QoS class of a pod depends on it. Returns warnings about fields that were removed.
pub fn prepare_create(
    resource: &Resource,
    object: &mut Value,
    ctx: &RuleContext<'_>,
) -> Vec<String> {
    meta::prepare_create(object);
    strategy::find(resource).prepare_create(resource, object, ctx)
}

/// Restores what a request to `part` may not change, and increments the generation if what it counts
/// has changed.
pub fn prepare_update(
    resource: &Resource,
    object: &mut Value,
    old: &Value,
    part: Subresource,
    ctx: &RuleContext<'_>,
) {
    meta::prepare_update(object, old);
    strategy::find(resource).prepare_update(resource, object, old, part, ctx);
}

#[must_use]
pub fn validate_create(resource: &Resource, object: &Value, ctx: &RuleContext<'_>) -> Causes {
    strategy::find(resource).validate_create(resource, object, ctx).distinct()
}

#[must_use]
pub fn validate_update(
    resource: &Resource,
    object: &Value,
    old: &Value,
    part: Subresource,
    ctx: &RuleContext<'_>,
) -> Causes {
    strategy::find(resource).validate_update(resource, object, old, part, ctx).distinct()
}

/// Returns the `Warning` headers for an object that is accepted.
#[must_use]
pub fn warnings(resource: &Resource, object: &Value, old: Option<&Value>) -> Vec<String> {
    (strategy::find(resource).warnings)(resource, object, old)
}
