//! Priority classes and runtime classes.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::super::checks::{IMMUTABLE, default, unchanged};
use super::super::meta::validate_labels;
use super::super::{names, pod, resource_names};
use crate::cursor::{BadValue, Causes, Cursor};

const SYSTEM_PREFIX: &str = "system-";
const HIGHEST_OF_USERS: i64 = 1_000_000_000;
/// The priority classes of the system, with their priorities.
const SYSTEM: [(&str, i64); 2] =
    [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];

/// Reports whether a priority class is one of the system's.
#[must_use]
pub fn is_system_priority(name: &str) -> bool {
    SYSTEM.iter().any(|(known, _)| *known == name)
}

pub(super) fn set_priority_defaults(class: &mut Value) {
    if let Some(fields) = class.as_object_mut() {
        default(fields, "preemptionPolicy", "PreemptLowerPriority");
    }
}

pub(super) fn validate_priority(class: &Cursor<'_>, causes: &mut Causes) {
    let meta = class.field("metadata");
    let (name, value) = (meta.field("name"), class.field("value"));
    let number = value.int().unwrap_or(0);
    if name.text().starts_with(SYSTEM_PREFIX) {
        if let Some(error) = not_known(name.text(), number, class.field("globalDefault").is_true())
        {
            let detail = format!(
                "priority class names with '{SYSTEM_PREFIX}' prefix are reserved for system use \
                 only. error: {error}"
            );
            causes.forbidden(&name, &detail);
        }
    } else if number > HIGHEST_OF_USERS {
        let detail =
            format!("maximum allowed value of a user defined priority is {HIGHEST_OF_USERS}");
        causes.forbidden(&value, &detail);
    }
    let policy = class.field("preemptionPolicy");
    match (policy.is_set(), policy.text()) {
        (false, _) | (true, "PreemptLowerPriority" | "Never") => {}
        (true, "") => causes.required(&policy, ""),
        (true, _) => causes.not_supported(&policy, &["PreemptLowerPriority", "Never"]),
    }
}

/// Returns why a class is not one of the system's.
fn not_known(name: &str, value: i64, global: bool) -> Option<String> {
    match SYSTEM.iter().find(|(known, _)| *known == name) {
        None => Some(format!("{name} is not a known system priority class")),
        Some((_, known)) if *known != value => {
            Some(format!("value of {name} PriorityClass must be {known}"))
        }
        Some(_) if global => Some(format!("globalDefault of {name} PriorityClass must be false")),
        Some(_) => None,
    }
}

pub(super) fn validate_priority_change(class: &Cursor<'_>, old: &Cursor<'_>, causes: &mut Causes) {
    let value = class.field("value");
    if value.int().unwrap_or(0) != old.field("value").int().unwrap_or(0) {
        causes.forbidden(&value, "may not be changed in an update.");
    }
    unchanged(&class.field("preemptionPolicy"), &old.field("preemptionPolicy"), causes);
}

pub(super) fn validate_runtime(class: &Cursor<'_>, causes: &mut Causes) {
    let handler = class.field("handler");
    if handler.text().is_empty() {
        causes.required(&handler, "");
    } else {
        names::report(causes, &handler, &names::dns_label(handler.text()));
    }
    let overhead = class.field("overhead");
    // Upstream validates the overhead like a container's limits, and the message shows that.
    let fixed = overhead.field("podFixed").called("limits");
    for (name, amount) in fixed.entries() {
        resource_names::of_containers(&amount, name, causes);
        resource_names::amount(&amount, name, causes);
    }
    let scheduling = class.field("scheduling");
    validate_labels(&scheduling.field("nodeSelector"), causes);
    validate_tolerations(&scheduling.field("tolerations"), causes);
}

fn validate_tolerations(tolerations: &Cursor<'_>, causes: &mut Causes) {
    pod::validate_tolerations(tolerations, false, causes);
    let mut seen = HashSet::new();
    for toleration in tolerations.items() {
        if !seen.insert(toleration.value()) {
            causes.duplicate_as(&toleration, render_toleration(toleration.value()));
        }
    }
}

/// Renders a toleration as Go does.
fn render_toleration(toleration: &Value) -> BadValue {
    let text = |field: &str| json!(toleration[field].as_str().unwrap_or_default());
    BadValue::literal(format!(
        r#"{{"Key":{},"Operator":{},"Value":{},"Effect":{},"TolerationSeconds":{}}}"#,
        text("key"),
        text("operator"),
        text("value"),
        text("effect"),
        toleration["tolerationSeconds"],
    ))
}

pub(super) fn validate_runtime_change(class: &Cursor<'_>, old: &Cursor<'_>, causes: &mut Causes) {
    let handler = class.field("handler");
    if handler.text() != old.field("handler").text() {
        causes.invalid_as(&handler, &Value::Null, IMMUTABLE);
    }
}

pub(super) fn runtime_warnings(class: &Value) -> Vec<String> {
    let selector = class["scheduling"]["nodeSelector"].as_object().into_iter().flatten();
    let deprecated = selector.filter_map(|(key, _)| pod::deprecated_node_label(key));
    deprecated.map(|what| format!("scheduling.nodeSelector: {what}")).collect()
}
