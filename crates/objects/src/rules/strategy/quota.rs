//! Resource quotas as objects: names and amounts that can be bounded, scopes that fit them, and the
//! classes of QoS resources of a namespace.
//!
//! [`crate::quota`] applies quotas to other objects.

use std::collections::BTreeSet;

use serde_json::Value;

use super::super::checks::{NOT_NEGATIVE, round_amounts};
use super::super::names::{self, label_key_problems};
use super::super::pod::class_resources;
use super::super::{RuleContext, resource_names};
use crate::cursor::{BadValue, Causes, Cursor};
use crate::feature_gates::Gate;

const SCOPES: [&str; 7] = [
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
];

pub(super) fn set_defaults(quota: &mut Value) {
    for (part, list) in [("spec", "hard"), ("status", "hard"), ("status", "used")] {
        round_amounts(quota.get_mut(part).and_then(|part| part.get_mut(list)));
    }
}

/// Without the gate a quota keeps its classes and gets no new ones.
pub(super) fn prepare(quota: &mut Value, old: Option<&Value>, ctx: &RuleContext<'_>) {
    let kept = old.is_some_and(|old| old["spec"].get("qosResources").is_some());
    if ctx.gates.enabled(Gate::QosResources) || kept {
        return;
    }
    if let Some(spec) = quota.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("qosResources");
    }
}

pub(super) fn validate(quota: &Cursor<'_>, is_update: bool, causes: &mut Causes) {
    let spec = quota.field("spec");
    validate_amounts(&spec.field("hard"), causes);
    validate_scopes(&spec, causes);
    validate_selector(&spec, causes);
    validate_classes(&spec.field("qosResources"), causes);
    if !is_update {
        validate_status(quota, causes);
    }
}

fn validate_amounts(list: &Cursor<'_>, causes: &mut Causes) {
    for (name, amount) in list.entries() {
        resource_names::of_quotas(&amount, name, causes);
        resource_names::amount(&amount, name, causes);
    }
}

pub(super) fn validate_status(quota: &Cursor<'_>, causes: &mut Causes) {
    let status = quota.field("status");
    validate_amounts(&status.field("hard"), causes);
    validate_amounts(&status.field("used"), causes);
    validate_classes(&status.field("qosResources"), causes);
    validate_classes(&status.field("qosResourcesUsage"), causes);
}

/// Checks that the scopes are unchanged.
pub(super) fn validate_change(quota: &Cursor<'_>, old: &Cursor<'_>, causes: &mut Causes) {
    let (spec, old_spec) = (quota.field("spec"), old.field("spec"));
    let (scopes, old_scopes) = (spec.field("scopes"), old_spec.field("scopes"));
    let set = |scopes: &Cursor<'_>| -> BTreeSet<String> {
        scopes.items().map(|scope| scope.text().to_owned()).collect()
    };
    if set(&scopes) != set(&old_scopes) {
        causes.invalid(&scopes, super::super::checks::IMMUTABLE);
    }
}

/// Returns the number of bounded resources that cannot be combined with a scope.
fn has_unfit_resource(spec: &Cursor<'_>, scope: &str) -> usize {
    let hard = spec.field("hard");
    let unfit = hard.entries().filter(|(name, _)| {
        resource_names::is_standard_quota(name) && !resource_names::fits_scope(scope, name)
    });
    unfit.count()
}

fn are_conflicting<'a>(scopes: impl Iterator<Item = &'a str>) -> usize {
    let scopes: BTreeSet<&str> = scopes.collect();
    let pairs = [("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")];
    pairs.iter().filter(|(a, b)| scopes.contains(a) && scopes.contains(b)).count()
}

fn validate_scopes(spec: &Cursor<'_>, causes: &mut Causes) {
    let scopes = spec.field("scopes");
    for scope in scopes.items() {
        if !SCOPES.contains(&scope.text()) {
            causes.invalid(&scopes, "unsupported scope");
        }
        for _ in 0..has_unfit_resource(spec, scope.text()) {
            causes.invalid(&scopes, "unsupported scope applied to resource");
        }
    }
    for _ in 0..are_conflicting(scopes.items().map(|scope| scope.text())) {
        causes.invalid(&scopes, "conflicting scopes");
    }
}

fn validate_selector(spec: &Cursor<'_>, causes: &mut Causes) {
    let selector = spec.field("scopeSelector");
    let expressions = selector.field("matchExpressions");
    for expression in expressions.items() {
        // Upstream's path is the list and not the item.
        let at = expressions.at_value(expression.value());
        let (scope, operator) = (at.field("scopeName"), at.field("operator"));
        let values = at.field("values");
        if !SCOPES.contains(&scope.text()) {
            causes.invalid_as(&scope, scope.text(), "unsupported scope");
        }
        for _ in 0..has_unfit_resource(spec, scope.text()) {
            let shown = render_selector(selector.value());
            causes.invalid_as(&expressions, shown, "unsupported scope applied to resource");
        }
        let needs_exists = matches!(
            scope.text(),
            "BestEffort"
                | "NotBestEffort"
                | "Terminating"
                | "NotTerminating"
                | "CrossNamespacePodAffinity"
        );
        if needs_exists && operator.text() != "Exists" {
            let detail = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, \
                          ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, \
                          ResourceQuotaScopeNotBestEffort or \
                          ResourceQuotaScopeCrossNamespacePodAffinity";
            causes.invalid_as(&operator, operator.text(), detail);
        }
        match (operator.text(), values.is_empty()) {
            ("In" | "NotIn", true) => {
                let detail = "must be at least one value when `operator` is 'In' or 'NotIn' for \
                              scope selector";
                causes.required(&values, detail);
            }
            ("Exists" | "DoesNotExist", false) => {
                let detail = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for \
                              scope selector";
                causes.invalid(&values, detail);
            }
            ("In" | "NotIn", false) | ("Exists" | "DoesNotExist", true) => {}
            _ => causes.invalid_as(&operator, operator.text(), "not a valid selector operator"),
        }
    }
    let names: Vec<&str> =
        expressions.items().map(|e| e.value()["scopeName"].as_str().unwrap_or_default()).collect();
    for _ in 0..are_conflicting(names.into_iter()) {
        // Upstream shows the other list.
        causes.invalid_as(&expressions, spec.field("scopes").value(), "conflicting scopes");
    }
}

/// Renders a scope selector as Go does.
fn render_selector(selector: &Value) -> BadValue {
    let expressions = selector["matchExpressions"].as_array().into_iter().flatten();
    let shown = expressions.map(|expression| {
        format!(
            r#"{{"ScopeName":{},"Operator":{},"Values":{}}}"#,
            expression["scopeName"], expression["operator"], expression["values"]
        )
    });
    let shown: Vec<String> = shown.collect();
    BadValue::literal(format!(r#"{{"MatchExpressions":[{}]}}"#, shown.join(",")))
}

/// Validates classes with their capacities, for pods and for containers.
fn validate_classes(given: &Cursor<'_>, causes: &mut Causes) {
    let (pod, container) = (given.field("pod"), given.field("container"));
    for list in [&pod, &container] {
        let mut seen = BTreeSet::new();
        for resource in list.items() {
            let name = resource.field("name");
            class_resources::validate_form(&name, causes);
            if !name.text().is_empty()
                && !seen.insert(class_resources::full_name(name.text()).to_owned())
            {
                causes.duplicate(&name);
            }
            validate_capacities(&resource.field("classes"), causes);
        }
    }
    let of_pods: BTreeSet<&str> = resource_names_of(pod.value());
    for resource in container.items() {
        let name = resource.field("name");
        if of_pods.contains(class_resources::full_name(name.value().as_str().unwrap_or_default())) {
            causes.invalid(&name, "may not be both a pod-level and a container-level resource");
        }
    }
}

/// Returns the full names in a list of resources.
pub(super) fn resource_names_of(list: &Value) -> BTreeSet<&str> {
    let names = list.as_array().into_iter().flatten().filter_map(|item| item["name"].as_str());
    names.map(class_resources::full_name).collect()
}

/// Validates classes: each occurs once, with a capacity that is not negative.
pub(super) fn validate_capacities(classes: &Cursor<'_>, causes: &mut Causes) {
    let mut seen = BTreeSet::new();
    for class in classes.items() {
        let name = class.field("name");
        let text = name.value().as_str().unwrap_or_default();
        if text.is_empty() {
            causes.required(&name, "");
        } else {
            names::report(causes, &name, &label_key_problems(text));
            if !seen.insert(text.to_owned()) {
                causes.duplicate(&name);
            }
        }
        let capacity = class.field("capacity");
        if capacity.int().is_some_and(|number| number < 0) {
            causes.invalid(&capacity, NOT_NEGATIVE);
        }
    }
}
