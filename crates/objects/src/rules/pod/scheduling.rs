//! Constraints on the nodes of a pod: affinity, tolerations, spreading.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::Value;

use super::super::meta::validate_label_selector;
use super::super::names::{self, label_key_problems, label_value_problems};
use super::Scope;
use crate::cursor::{Causes, Cursor};
use crate::taint::canonical_integer;

pub(super) const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
pub(super) const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const NOT_AN_OPERATOR: &str = "not a valid selector operator";
const NOT_POSITIVE: &str = "must be greater than zero";

fn label_name(at: &Cursor<'_>, causes: &mut Causes) {
    names::report_as(causes, at, at.text(), &label_key_problems(at.text()));
}

pub(super) fn validate_affinity(affinity: &Cursor<'_>, scope: Scope, causes: &mut Causes) {
    if !affinity.is_set() {
        return;
    }
    let node = affinity.field("nodeAffinity");
    let required = node.field(REQUIRED);
    if required.is_set() {
        validate_node_selector(&required, scope.invalid_node_affinity_values, causes);
    }
    let preferred = node.field(PREFERRED);
    for term in preferred.items() {
        validate_weight(&term, causes);
        validate_node_term(&term.field("preference"), true, causes);
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let pods = affinity.field(kind);
        let required = pods.field(REQUIRED);
        for term in required.items() {
            validate_pod_term(&term, scope, causes);
        }
        let preferred = pods.field(PREFERRED);
        for term in preferred.items() {
            validate_weight(&term, causes);
            validate_pod_term(&term.field("podAffinityTerm"), scope, causes);
        }
    }
}

fn validate_weight(term: &Cursor<'_>, causes: &mut Causes) {
    let weight = term.field("weight");
    if !(1..=100).contains(&weight.int().unwrap_or(0)) {
        causes.invalid_as(&weight, weight.int().unwrap_or(0), "must be in the range 1-100");
    }
}

/// Validates terms of which one must match; also used by other kinds that select nodes.
pub(super) fn validate_node_selector(
    selector: &Cursor<'_>,
    allow_invalid_values: bool,
    causes: &mut Causes,
) {
    let terms = selector.field("nodeSelectorTerms");
    if terms.is_empty() {
        return causes.required(&terms, "must have at least one node selector term");
    }
    for term in terms.items() {
        validate_node_term(&term, allow_invalid_values, causes);
    }
}

fn validate_node_term(term: &Cursor<'_>, allow_invalid_values: bool, causes: &mut Causes) {
    let expressions = term.field("matchExpressions");
    for expression in expressions.items() {
        let (operator, values) = (expression.field("operator"), expression.field("values"));
        match operator.text() {
            "In" | "NotIn" => {
                if values.is_empty() {
                    let detail = "must be specified when `operator` is 'In' or 'NotIn'";
                    causes.required(&values, detail);
                }
            }
            "Exists" | "DoesNotExist" => {
                if !values.is_empty() {
                    let detail =
                        "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                    causes.forbidden(&values, detail);
                }
            }
            "Gt" | "Lt" => {
                if values.len() != 1 {
                    let detail = "must be specified single value when `operator` is 'Lt' or 'Gt'";
                    causes.required(&values, detail);
                }
            }
            text => causes.invalid_as(&operator, text, NOT_AN_OPERATOR),
        }
        label_name(&expression.field("key"), causes);
        if !allow_invalid_values {
            for value in values.items() {
                names::report(causes, &value, &label_value_problems(value.text()));
            }
        }
    }
    let fields = term.field("matchFields");
    for field in fields.items() {
        let (operator, values) = (field.field("operator"), field.field("values"));
        match operator.text() {
            "In" | "NotIn" => {
                if values.len() != 1 {
                    let detail = "must be only one value when `operator` is 'In' or 'NotIn' for \
                                  node field selector";
                    causes.required(&values, detail);
                }
            }
            text => causes.invalid_as(&operator, text, NOT_AN_OPERATOR),
        }
        let key = field.field("key");
        if key.text() != "metadata.name" {
            causes.invalid_as(&key, key.text(), "not a valid field selector key");
            continue;
        }
        for value in values.items() {
            names::report(causes, &value, &names::dns_subdomain(value.text()));
        }
    }
}

fn validate_pod_term(term: &Cursor<'_>, scope: Scope, causes: &mut Causes) {
    let selector = term.field("labelSelector");
    let lenient = scope.invalid_selector_values;
    validate_label_selector(&selector, lenient, causes);
    validate_label_selector(&term.field("namespaceSelector"), lenient, causes);
    let namespaces = term.field("namespaces");
    for namespace in namespaces.items() {
        let problems = names::dns_label(namespace.text());
        names::report_as(causes, &term.field("namespace"), namespace.text(), &problems);
    }
    validate_label_keys(term, &selector, causes);
    let topology = term.field("topologyKey");
    if topology.text().is_empty() {
        causes.required(&topology, "can not be empty");
    }
    label_name(&topology, causes);
}

fn validate_label_keys(term: &Cursor<'_>, selector: &Cursor<'_>, causes: &mut Causes) {
    let (matching, differing) = (term.field("matchLabelKeys"), term.field("mismatchLabelKeys"));
    if matching.is_empty() && differing.is_empty() {
        return;
    }
    for keys in [&matching, &differing] {
        if keys.is_empty() {
            continue;
        }
        if !selector.is_set() {
            causes.forbidden(keys, "must not be specified when labelSelector is not set");
            continue;
        }
        for key in keys.items() {
            label_name(&key, causes);
        }
    }
    // The selector already has the conditions of the keys, so a key given in both occurs twice.
    if selector.is_set() {
        let at: BTreeMap<&str, usize> =
            matching.items().enumerate().map(|(at, key)| (key.text(), at)).collect();
        let labels = selector.field("matchLabels");
        let mut seen: BTreeSet<&str> = labels.entries().map(|(key, _)| key).collect();
        let expressions = selector.field("matchExpressions");
        for expression in expressions.items() {
            let key = expression.field("key").text();
            if let Some(at) = at.get(key)
                && seen.contains(key)
            {
                let detail = "exists in both matchLabelKeys and labelSelector";
                causes.invalid_as(&term.index(*at), key, detail);
            }
            seen.insert(key);
        }
    }
    let differing: BTreeSet<&str> = differing.items().map(|key| key.text()).collect();
    for key in matching.items() {
        if differing.contains(key.text()) {
            causes.invalid(&key, "exists in both matchLabelKeys and mismatchLabelKeys");
        }
    }
}

/// Reports whether a toleration compares numbers.
pub(super) fn has_comparing_tolerations(spec: &Value) -> bool {
    let mut tolerations = spec["tolerations"].as_array().into_iter().flatten();
    tolerations.any(|toleration| matches!(toleration["operator"].as_str(), Some("Lt" | "Gt")))
}

/// `compare` allows the operators `Lt` and `Gt`.
pub(in crate::rules) fn validate_tolerations(
    tolerations: &Cursor<'_>,
    compare: bool,
    causes: &mut Causes,
) {
    for toleration in tolerations.items() {
        let (key, operator) = (toleration.field("key"), toleration.field("operator"));
        let (value, effect) = (toleration.field("value"), toleration.field("effect"));
        if !key.text().is_empty() {
            label_name(&key, causes);
        } else if operator.text() != "Exists" {
            let detail = "operator must be Exists when `key` is empty, which means \"match all \
                          values and all keys\"";
            causes.invalid_as(&operator, operator.text(), detail);
        }
        if toleration.field("tolerationSeconds").is_set() && effect.text() != "NoExecute" {
            let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            causes.invalid_as(&effect, effect.text(), detail);
        }
        match operator.text() {
            "Equal" | "" => {
                let problems = label_value_problems(value.text());
                if !problems.is_empty() {
                    causes.invalid_as(&operator, value.text(), &problems.join(";"));
                }
            }
            "Exists" => {
                if !value.text().is_empty() {
                    let detail = "value must be empty when `operator` is 'Exists'";
                    causes.invalid_as(&operator, value.text(), detail);
                }
            }
            "Lt" | "Gt" if compare => {
                if canonical_integer(value.text()).is_none() {
                    let detail = "must be a valid decimal integer in canonical form";
                    causes.invalid_as(&value, value.text(), detail);
                }
            }
            // The message lists them although their gate is off.
            text @ ("Lt" | "Gt") => {
                causes.not_supported_as(&operator, text, &["Equal", "Exists", "Lt", "Gt"]);
            }
            text => causes.not_supported_as(&operator, text, &["Equal", "Exists"]),
        }
        let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        if !effect.text().is_empty() && !effects.contains(&effect.text()) {
            causes.not_supported(&effect, &effects);
        }
    }
}

pub(super) fn validate_spread(constraints: &Cursor<'_>, scope: Scope, causes: &mut Causes) {
    let pair = |constraint: &Value| {
        let text = |field: &str| constraint.get(field).and_then(Value::as_str).unwrap_or_default();
        (text("topologyKey").to_owned(), text("whenUnsatisfiable").to_owned())
    };
    let mut later: HashMap<(String, String), usize> = HashMap::with_capacity(constraints.len());
    for constraint in constraints.items() {
        *later.entry(pair(constraint.value())).or_default() += 1;
    }
    for constraint in constraints.items() {
        let skew = constraint.field("maxSkew");
        if skew.int().unwrap_or(0) <= 0 {
            causes.invalid_as(&skew, skew.int().unwrap_or(0), NOT_POSITIVE);
        }
        let key = constraint.field("topologyKey");
        if key.text().is_empty() {
            causes.required(&key, "can not be empty");
        }
        let action = constraint.field("whenUnsatisfiable");
        if !matches!(action.text(), "DoNotSchedule" | "ScheduleAnyway") {
            let supported = ["DoNotSchedule", "ScheduleAnyway"];
            causes.not_supported_as(&action, action.text(), &supported);
        }
        let left = later.entry(pair(constraint.value())).or_default();
        *left = left.saturating_sub(1);
        if *left > 0 {
            let shown = format!("{{{}, {}}}", key.text(), action.text());
            let pair = constraint.field("{topologyKey, whenUnsatisfiable}");
            causes.duplicate_as(&pair, shown.as_str());
        }
        let domains = constraint.field("minDomains");
        if domains.int().is_some_and(|number| number <= 0) {
            causes.invalid(&domains, NOT_POSITIVE);
        }
        if domains.is_set() && action.text() != "DoNotSchedule" {
            let detail = format!(
                "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {}",
                action.text()
            );
            causes.invalid(&domains, &detail);
        }
        for policy in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            let policy = constraint.field(policy);
            if policy.is_set() && !matches!(policy.text(), "Honor" | "Ignore") {
                causes.not_supported(&policy, &["Honor", "Ignore"]);
            }
        }
        validate_label_keys(&constraint, &constraint.field("labelSelector"), causes);
        if !scope.invalid_spread_selectors {
            validate_label_selector(&constraint.field("labelSelector"), false, causes);
        }
    }
}

fn pod_terms(spec: &Value) -> impl Iterator<Item = &Value> {
    ["podAffinity", "podAntiAffinity"]
        .into_iter()
        .filter_map(|kind| spec.get("affinity")?.get(kind))
        .flat_map(|pods| {
            let required = pods.get(REQUIRED).and_then(Value::as_array).into_iter().flatten();
            let preferred = pods.get(PREFERRED).and_then(Value::as_array).into_iter().flatten();
            required.chain(preferred.filter_map(|term| term.get("podAffinityTerm")))
        })
}

fn is_invalid_selector(selector: &Value) -> bool {
    let mut causes = Causes::default();
    validate_label_selector(&Cursor::top(selector, ""), false, &mut causes);
    !causes.is_empty()
}

pub(super) fn has_invalid_selector_values(spec: &Value) -> bool {
    pod_terms(spec).any(|term| {
        ["labelSelector", "namespaceSelector"]
            .into_iter()
            .filter_map(|field| term.get(field)?.get("matchExpressions")?.as_array())
            .flatten()
            .filter_map(|expression| expression.get("values")?.as_array())
            .flatten()
            .any(|value| !label_value_problems(value.as_str().unwrap_or_default()).is_empty())
    })
}

pub(super) fn has_invalid_node_affinity_values(spec: &Value) -> bool {
    let required = spec
        .get("affinity")
        .and_then(|affinity| affinity.get("nodeAffinity"))
        .and_then(|node| node.get(REQUIRED));
    let terms = required.and_then(|r| r.get("nodeSelectorTerms")).and_then(Value::as_array);
    terms
        .into_iter()
        .flatten()
        .filter_map(|term| term.get("matchExpressions")?.as_array())
        .flatten()
        .filter_map(|expression| expression.get("values")?.as_array())
        .flatten()
        .any(|value| !label_value_problems(value.as_str().unwrap_or_default()).is_empty())
}

pub(super) fn has_invalid_spread_selectors(spec: &Value) -> bool {
    let constraints = spec.get("topologySpreadConstraints").and_then(Value::as_array);
    constraints
        .into_iter()
        .flatten()
        .filter_map(|constraint| constraint.get("labelSelector"))
        .any(is_invalid_selector)
}
