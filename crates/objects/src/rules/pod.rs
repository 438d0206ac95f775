//! Pods, and the pod templates of workloads: defaults, fields that a create or an update may set,
//! validation, warnings.
//!
//! The functions here take whole pods. [`set_template_defaults`], [`validate_template`],
//! [`drop_template_fields`] and [`template_warnings`] do the same for templates. [`admission`] has
//! the rules that depend on other objects (priorities, runtime classes), and [`accounts`] those of
//! service accounts; quotas and limit ranges are elsewhere.

use serde_json::Value;

use super::meta::{self, MetaRule};
use super::names::NameRule;
use super::{RuleContext, Subresource};
use crate::cursor::{Causes, Cursor};
use crate::feature_gates::Gate;

pub mod accounts;
pub mod admission;
mod amounts;
mod annotations;
mod binding;
pub mod class_resources;
mod containers;
mod defaults;
mod disabled;
mod env;
mod equality;
mod handlers;
mod images;
mod inline_volumes;
mod prepare;
pub mod references;
mod resources;
mod scheduling;
mod security;
mod spec;
mod status;
mod update;
mod volumes;
mod warnings;

pub use binding::validate_binding;
pub use defaults::set_template_defaults;
pub use prepare::drop_template_fields;
pub(super) use scheduling::validate_tolerations;
pub(super) use status::ip_warning;
pub(super) use warnings::deprecated_node_label;
pub use warnings::template_warnings;

/// The rule for the metadata of pods.
pub const META: MetaRule =
    MetaRule { name: NameRule::DnsSubdomain, namespaced: true, standard_finalizers: true };

/// The path of errors about the pod as a whole.
const NO_FIELD: &str = "[]";

/// The rules for one pod spec. Some rules are newer than stored pods that violate them: such pods
/// keep what they have.
#[derive(Debug, Clone, Copy)]
struct Scope {
    allow_privileged: bool,
    /// The spec belongs to a pod, not to a template.
    is_pod: bool,
    host_process: bool,
    class_resources: class_resources::RequestRules,
    indivisible_huge_pages: bool,
    invalid_selector_values: bool,
    invalid_node_affinity_values: bool,
    invalid_spread_selectors: bool,
    token_path_anywhere: bool,
    host_sysctls: bool,
    invalid_deletion_cost: bool,
    older_ips: bool,
    init_restarts: bool,
    devices_in_user_namespace: bool,
    comparing_tolerations: bool,
}

impl Scope {
    fn new(ctx: &RuleContext<'_>, is_pod: bool, old_meta: &Value, old_spec: &Value) -> Scope {
        let update = !old_spec.is_null();
        Scope {
            allow_privileged: ctx.allow_privileged,
            is_pod,
            host_process: ctx.gates.enabled(Gate::WindowsHostProcessContainers)
                || security::uses_host_process(old_spec),
            comparing_tolerations: ctx.gates.enabled(Gate::TaintTolerationComparisonOperators)
                || scheduling::has_comparing_tolerations(old_spec),
            class_resources: class_resources::RequestRules::new(ctx.gates, old_spec),
            indivisible_huge_pages: update && resources::has_indivisible_huge_pages(old_spec),
            invalid_selector_values: update && scheduling::has_invalid_selector_values(old_spec),
            invalid_node_affinity_values: update
                && scheduling::has_invalid_node_affinity_values(old_spec),
            invalid_spread_selectors: update && scheduling::has_invalid_spread_selectors(old_spec),
            token_path_anywhere: update && volumes::has_odd_token_paths(old_spec),
            host_sysctls: update && security::has_host_sysctls(old_spec),
            older_ips: update && spec::has_older_ips(old_spec),
            init_restarts: update && containers::has_init_restarts(old_spec),
            devices_in_user_namespace: update && security::has_devices_of_own_users(old_spec),
            invalid_deletion_cost: !old_meta.is_null()
                && annotations::has_invalid_deletion_cost(old_meta),
        }
    }

    fn of_new(ctx: &RuleContext<'_>, is_pod: bool) -> Scope {
        Scope::new(ctx, is_pod, &Value::Null, &Value::Null)
    }

    fn of_update(ctx: &RuleContext<'_>, old: &Value) -> Scope {
        Scope::new(ctx, true, &old["metadata"], &old["spec"])
    }
}

pub(super) fn set_defaults(pod: &mut Value) {
    defaults::set_pod_defaults(pod);
}

pub(super) fn prepare_create(pod: &mut Value, ctx: &RuleContext<'_>) -> Vec<String> {
    prepare::create(pod, ctx)
}

pub(super) fn prepare_update(pod: &mut Value, old: &Value, subresource: Subresource) {
    prepare::update(pod, old, subresource);
}

pub(super) fn validate_create(pod: &Value, ctx: &RuleContext<'_>) -> Causes {
    let mut causes = Causes::default();
    let top = Cursor::top(pod, "");
    let scope = Scope::of_new(ctx, true);
    spec::validate_pod(&top, scope, &mut causes);
    spec::validate_only_on_create(&top, &mut causes);
    causes
}

pub(super) fn validate_update(
    pod: &Value,
    old: &Value,
    part: Subresource,
    ctx: &RuleContext<'_>,
) -> Causes {
    let mut causes = Causes::default();
    let (top, old_top) = (Cursor::top(pod, ""), Cursor::top(old, ""));
    meta::validate(
        &top.field("metadata"),
        MetaRule { name: NameRule::PathSegment, standard_finalizers: false, ..META },
        &mut causes,
    );
    meta::validate_update(&top.field("metadata"), &old_top.field("metadata"), META, &mut causes);
    let scope = Scope::of_update(ctx, old);
    match part {
        Subresource::Main | Subresource::Finalize => {
            update::validate(&top, &old_top, scope, &mut causes)
        }
        Subresource::Status => status::validate_update(&top, &old_top, scope, &mut causes),
        Subresource::Resize => update::validate_resize(&top, &old_top, scope, &mut causes),
        Subresource::EphemeralContainers => {
            update::validate_ephemeral_containers(&top, &old_top, scope, &mut causes);
        }
    }
    causes
}

/// Validates a workload's pod template; `old` is the stored one on update, else null.
pub fn validate_template(
    template: &Cursor<'_>,
    old: &Value,
    ctx: &RuleContext<'_>,
    causes: &mut Causes,
) {
    let scope = Scope::new(ctx, false, &old["metadata"], &old["spec"]);
    spec::validate_template(template, scope, causes);
}

pub(super) fn warnings(pod: &Value, old: Option<&Value>) -> Vec<String> {
    match old {
        None => warnings::on_create(pod),
        Some(_) => Vec::new(),
    }
}

/// Returns warnings about a status that a client wrote.
#[must_use]
pub fn status_warnings(pod: &Value) -> Vec<String> {
    status::warnings(pod)
}

/// Visits all containers of a spec: init containers, containers, ephemeral containers.
fn for_each_container(spec: &Cursor<'_>, mut visit: impl FnMut(&Cursor<'_>)) {
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        let list = spec.field(list);
        for container in list.items() {
            visit(&container);
        }
    }
}

/// Iterates over all containers of a spec, in the same order.
fn containers_of(spec: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers", "ephemeralContainers"]
        .into_iter()
        .filter_map(|list| spec.get(list)?.as_array())
        .flatten()
}

#[cfg(test)]
mod tests;
