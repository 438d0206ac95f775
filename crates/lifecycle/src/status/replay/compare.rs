//! Compares a generated status with a recorded one, without what recording lost.

use serde_json::{Value, json};

use crate::status::{PodStatus, conditions};

/// Returns the status without the fields that cannot be compared.
pub(super) fn comparable(status: &Value, drop_resources: bool) -> Value {
    let mut status = status.clone();
    if drop_resources && let Some(status) = status.as_object_mut() {
        status.remove("resources");
    }
    times(&mut status);
    status
}

fn times(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                let is_time =
                    ["lastTransitionTime", "lastProbeTime", "startedAt", "finishedAt", "startTime"]
                        .contains(&name.as_str());
                let unknown = field.is_null() || field == "1970-01-01T00:00:00Z";
                if is_time && !unknown {
                    *field = json!("<TIME>");
                }
                times(field);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(times),
        _ => {}
    }
}

/// Returns the status without the conditions of other writers.
pub(super) fn ours(status: &Value) -> Value {
    let mut status = status.clone();
    if let Some(conditions) = status["conditions"].as_array_mut() {
        conditions.retain(|c| conditions::is_ours(c["type"].as_str().unwrap()));
    }
    status
}

pub(super) fn foreign(status: &Value) -> Vec<Value> {
    let all = status["conditions"].as_array().cloned().unwrap_or_default();
    let is_foreign = |c: &Value| {
        let kind = c["type"].as_str().unwrap();
        !conditions::is_ours(kind) && kind != conditions::DISRUPTION_TARGET
    };
    all.into_iter().filter(is_foreign).collect()
}

/// Returns true if the two differ only in a field of containers that was not recorded.
pub(super) fn without(
    got: &PodStatus,
    recorded: &Value,
    field: &str,
    drop_resources: bool,
) -> bool {
    let mut got = serde_json::to_value(got).unwrap();
    if recorded.to_string().contains(field) {
        return false;
    }
    for list in ["initContainerStatuses", "containerStatuses"] {
        for status in got.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            status.as_object_mut().unwrap().remove(field);
        }
    }
    comparable(&got, drop_resources) == comparable(recorded, drop_resources)
}

pub(super) fn compare(
    got: &PodStatus,
    recorded: &Value,
    drop_resources: bool,
) -> Result<(), String> {
    let got = comparable(&serde_json::to_value(got).unwrap(), drop_resources);
    let wanted = comparable(recorded, drop_resources);
    if got == wanted {
        return Ok(());
    }
    let mut differences = Vec::new();
    differ("", &got, &wanted, &mut differences);
    Err(differences.join("\n    "))
}

fn differ(path: &str, got: &Value, wanted: &Value, found: &mut Vec<String>) {
    match (got, wanted) {
        (Value::Object(a), Value::Object(b)) => {
            let names: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for name in names {
                let (a, b) = (&got[name.as_str()], &wanted[name.as_str()]);
                differ(&format!("{path}.{name}"), a, b, found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                differ(&format!("{path}[{index}]"), a, b, found);
            }
        }
        _ if got != wanted => found.push(format!("{path}: got {got}, recorded {wanted}")),
        _ => {}
    }
}
