//! The rules of every kind: [`Strategy`] has the differences between kinds, and the functions here
//! the steps that kinds share (metadata, generation, the separate status).
//!
//! [`table`] has one strategy for each kind. The rules themselves are in one module for each kind,
//! or for a few small ones that are alike. Pods have steps of their own ([`super::pod`]).

use serde_json::Value;

use super::meta::{self, MetaRule};
use super::names::NameRule;
use super::{RuleContext, Subresource, checks};
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
mod table;
#[cfg(test)]
mod tests;
pub mod token;
mod workload;

pub use class::is_system_priority;
pub(crate) use workload::TEMPLATE_GENERATION;

/// The rules of one kind (a strategy in upstream's registry).
pub(super) struct Strategy {
    group: &'static str,
    kind: &'static str,
    /// The rule for names; `None` for kinds that leave names to the rule for all objects.
    name: Option<NameRule>,
    standard_finalizers: bool,
    generation: Generation,
    /// A create request cannot set the status.
    clears_status: bool,
    pub(super) set_defaults: fn(&mut Value),
    prepare_create: fn(&mut Value, &RuleContext<'_>),
    prepare_update: fn(&mut Value, &Value, Subresource, &RuleContext<'_>),
    /// Returns a new object without the labels that the server generates for it.
    without_generated: Option<fn(&Value) -> Value>,
    /// Validates an object; on update, with the old one.
    validate: fn(&Cursor<'_>, Option<&Cursor<'_>>, &RuleContext<'_>, &mut Causes),
    /// Validates the difference between an object and the old one.
    validate_change: fn(&Cursor<'_>, &Cursor<'_>, &RuleContext<'_>, &mut Causes),
    /// Validates a write to a subresource.
    validate_part: fn(&Cursor<'_>, &Cursor<'_>, Subresource, &RuleContext<'_>, &mut Causes),
    update_order: UpdateOrder,
    pub(super) warnings: fn(&Resource, &Value, Option<&Value>) -> Vec<String>,
    /// Steps that replace the shared ones.
    steps: Option<Steps>,
}

/// Which changes increase `metadata.generation`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Generation {
    /// The kind has no generation.
    None,
    /// The generation is always 1.
    Constant,
    Spec,
    SpecAndAnnotations,
}

/// The order in which upstream validates an update, which differs between kinds.
#[derive(Clone, Copy)]
enum UpdateOrder {
    ObjectMetadataChange,
    MetadataChangeObject,
    /// The metadata of the object is validated only against the old one.
    MetadataSpecChange,
    /// The object is never compared with the old one.
    ObjectOnly,
}

/// The steps of a kind whose rules do not follow the order of the other kinds.
struct Steps {
    prepare_create: fn(&mut Value, &RuleContext<'_>) -> Vec<String>,
    prepare_update: fn(&mut Value, &Value, Subresource),
    validate_create: fn(&Value, &RuleContext<'_>) -> Causes,
    validate_update: fn(&Value, &Value, Subresource, &RuleContext<'_>) -> Causes,
}

/// Returns the strategy of a resource's kind.
pub(super) fn find(resource: &Resource) -> &'static Strategy {
    let fits =
        |strategy: &&Strategy| strategy.kind == resource.kind && strategy.group == resource.group;
    table::STRATEGIES.iter().find(fits).unwrap_or(&table::PLAIN)
}

/// The rule for the metadata of any object: its name must be usable in a path.
fn plain_rule(resource: &Resource) -> MetaRule {
    let name = NameRule::PathSegment;
    MetaRule { name, namespaced: resource.namespaced, standard_finalizers: false }
}

/// Returns true if the status is written only through a subresource.
fn has_status(resource: &Resource) -> bool {
    resource.subresource("status").is_some()
}

/// Returns the status of an object that was not observed yet.
fn empty_status(resource: &Resource) -> Value {
    let schema = Schema::served();
    let name = format!("{}.{}Status", resource.package, resource.kind);
    schema.find(&name).map_or_else(|| Value::Object(serde_json::Map::new()), |id| schema.zero(id))
}

impl Strategy {
    fn meta_rule(&self, resource: &Resource) -> Option<MetaRule> {
        let (namespaced, standard_finalizers) = (resource.namespaced, self.standard_finalizers);
        self.name.map(|name| MetaRule { name, namespaced, standard_finalizers })
    }

    pub(super) fn prepare_create(
        &self,
        resource: &Resource,
        object: &mut Value,
        ctx: &RuleContext<'_>,
    ) -> Vec<String> {
        if let Some(steps) = &self.steps {
            return (steps.prepare_create)(object, ctx);
        }
        if has_status(resource) && self.clears_status {
            checks::set(object, "status", empty_status(resource));
        }
        if self.generation != Generation::None
            && let Some(meta) = meta::metadata_mut(object)
        {
            meta.insert("generation".to_owned(), 1.into());
        }
        workload::prepare_template(object, &Value::Null);
        (self.prepare_create)(object, ctx);
        Vec::new()
    }

    pub(super) fn prepare_update(
        &self,
        resource: &Resource,
        object: &mut Value,
        old: &Value,
        part: Subresource,
        ctx: &RuleContext<'_>,
    ) {
        if let Some(steps) = &self.steps {
            return (steps.prepare_update)(object, old, part);
        }
        if part == Subresource::Status {
            checks::keep(object, old, "spec");
        } else if has_status(resource) {
            checks::keep(object, old, "status");
        }
        if part == Subresource::Main {
            workload::prepare_template(object, old);
        }
        (self.prepare_update)(object, old, part, ctx);
        if part == Subresource::Main && self.is_new_generation(object, old) {
            meta::bump_generation(object);
        }
    }

    fn is_new_generation(&self, object: &Value, old: &Value) -> bool {
        let spec = || !checks::is_same(&object["spec"], &old["spec"]);
        let annotations = |object: &Value| object["metadata"]["annotations"].clone();
        match self.generation {
            Generation::None | Generation::Constant => false,
            Generation::Spec => spec(),
            Generation::SpecAndAnnotations => {
                spec() || !checks::is_same(&annotations(object), &annotations(old))
            }
        }
    }

    pub(super) fn validate_create(
        &self,
        resource: &Resource,
        object: &Value,
        ctx: &RuleContext<'_>,
    ) -> Causes {
        if let Some(steps) = &self.steps {
            return (steps.validate_create)(object, ctx);
        }
        let mut causes = Causes::default();
        let stripped = self.without_generated.map(|strip| strip(object));
        let top = Cursor::top(stripped.as_ref().unwrap_or(object), "");
        if let Some(rule) = self.meta_rule(resource) {
            meta::validate(&top.field("metadata"), rule, &mut causes);
        }
        (self.validate)(&top, None, ctx, &mut causes);
        if causes.is_empty() {
            meta::validate(&top.field("metadata"), plain_rule(resource), &mut causes);
        }
        causes
    }

    pub(super) fn validate_update(
        &self,
        resource: &Resource,
        object: &Value,
        old: &Value,
        part: Subresource,
        ctx: &RuleContext<'_>,
    ) -> Causes {
        if let Some(steps) = &self.steps {
            return (steps.validate_update)(object, old, part, ctx);
        }
        let mut causes = Causes::default();
        let (top, old) = (Cursor::top(object, ""), Cursor::top(old, ""));
        let (meta, old_meta) = (top.field("metadata"), old.field("metadata"));
        meta::validate(&meta, plain_rule(resource), &mut causes);
        let rule = self.meta_rule(resource);
        let metadata = |causes: &mut Causes| {
            meta::validate_update(&meta, &old_meta, rule.unwrap_or(plain_rule(resource)), causes);
        };
        if part != Subresource::Main {
            metadata(&mut causes);
            (self.validate_part)(&top, &old, part, ctx, &mut causes);
            return causes;
        }
        let spec = |causes: &mut Causes| (self.validate)(&top, Some(&old), ctx, causes);
        let object = |causes: &mut Causes| {
            if let Some(rule) = rule {
                meta::validate(&meta, rule, causes);
            }
            spec(causes);
        };
        let change = |causes: &mut Causes| (self.validate_change)(&top, &old, ctx, causes);
        match self.update_order {
            UpdateOrder::ObjectMetadataChange => {
                object(&mut causes);
                metadata(&mut causes);
                change(&mut causes);
            }
            UpdateOrder::MetadataChangeObject => {
                metadata(&mut causes);
                change(&mut causes);
                object(&mut causes);
            }
            UpdateOrder::MetadataSpecChange => {
                metadata(&mut causes);
                spec(&mut causes);
                change(&mut causes);
            }
            UpdateOrder::ObjectOnly => object(&mut causes),
        }
        causes
    }
}
