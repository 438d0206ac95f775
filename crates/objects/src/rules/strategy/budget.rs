//! Disruption budgets.

use std::collections::BTreeSet;

use serde_json::Value;

use super::super::checks::{at_most_all, non_negative, number_or_percent, selector_text};
use super::super::meta::validate_label_selector;
use super::super::names;
use crate::cursor::{BadValue, Causes, Cursor};

const REASON_LIMIT: usize = 1024;
const MESSAGE_LIMIT: usize = 32 << 10;

pub(super) fn validate(budget: &Cursor<'_>, causes: &mut Causes) {
    let spec = budget.field("spec");
    let (min, max) = (spec.field("minAvailable"), spec.field("maxUnavailable"));
    if min.is_set() && max.is_set() {
        let detail = "minAvailable and maxUnavailable cannot be both set";
        causes.invalid_as(&spec, render_spec(spec.value()), detail);
    }
    for bound in [&min, &max] {
        number_or_percent(bound, causes);
        at_most_all(bound, causes);
    }
    validate_label_selector(&spec.field("selector"), false, causes);
    let policy = spec.field("unhealthyPodEvictionPolicy");
    if policy.is_set() && !matches!(policy.text(), "IfHealthyBudget" | "AlwaysAllow") {
        causes.not_supported(&policy, &["AlwaysAllow", "IfHealthyBudget"]);
    }
}

/// Renders a budget's spec as Go does.
fn render_spec(spec: &Value) -> BadValue {
    BadValue::literal(format!(
        r#"{{"MinAvailable":{},"Selector":{},"MaxUnavailable":{},"UnhealthyPodEvictionPolicy":{}}}"#,
        spec["minAvailable"],
        selector_text(&spec["selector"]),
        spec["maxUnavailable"],
        spec["unhealthyPodEvictionPolicy"]
    ))
}

pub(super) fn validate_status(budget: &Cursor<'_>, causes: &mut Causes) {
    let status = budget.field("status");
    validate_conditions(&status.field("conditions"), causes);
    for field in ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"] {
        non_negative(&status.field(field), causes);
    }
}

/// Validates conditions in the form of newer kinds: each type once, every field but the message
/// required.
fn validate_conditions(conditions: &Cursor<'_>, causes: &mut Causes) {
    let mut seen = BTreeSet::new();
    for condition in conditions.items() {
        let kind = condition.field("type");
        match kind.text() {
            "" => causes.required(&kind, "must be set"),
            text => names::report(causes, &kind, &names::label_key_problems(text)),
        }
        if !seen.insert(kind.text().to_owned()) {
            causes.duplicate_as(&kind, kind.text());
        }
        let status = condition.field("status");
        if !matches!(status.text(), "True" | "False" | "Unknown") {
            causes.not_supported(&status, &["False", "True", "Unknown"]);
        }
        non_negative(&condition.field("observedGeneration"), causes);
        let changed = condition.field("lastTransitionTime");
        if !changed.is_set() {
            causes.required(&changed, "must be set");
        }
        validate_reason(&condition.field("reason"), causes);
        let message = condition.field("message");
        if message.text().len() > MESSAGE_LIMIT {
            causes.too_long(&message, MESSAGE_LIMIT);
        }
    }
}

fn validate_reason(reason: &Cursor<'_>, causes: &mut Causes) {
    let text = reason.text();
    if text.is_empty() {
        return causes.required(reason, "must be set");
    }
    let bytes = text.as_bytes();
    let fits = bytes[0].is_ascii_alphabetic()
        && bytes.last().is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_')
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"_,:".contains(b));
    if !fits {
        let detail = "a condition reason must start with alphabetic character, optionally followed \
                      by a string of alphanumeric characters or '_,:', and must end with an \
                      alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName',  \
                      or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is \
                      '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')";
        causes.invalid(reason, detail);
    }
    if text.len() > REASON_LIMIT {
        causes.too_long(reason, REASON_LIMIT);
    }
}
