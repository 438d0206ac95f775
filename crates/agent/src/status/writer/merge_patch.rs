//! Computes a strategic merge patch between two statuses: [`merge_patch`].
//!
//! As in the API's schema, conditions are merged by type and addresses by value, and other lists are replaced. Fields
//! that are gone are set to null.

use serde_json::{Map, Value, json};

/// Returns the patch.
pub(super) fn merge_patch(
    old: &Map<String, Value>,
    new: &Map<String, Value>,
) -> Map<String, Value> {
    let mut changes = Map::new();
    for (name, value) in new {
        let before = old.get(name);
        if before == Some(value) {
            continue;
        }
        let change = match (name.as_str(), before, value) {
            ("conditions", Some(Value::Array(before)), Value::Array(now)) => {
                by_type(before, now).into()
            }
            ("podIPs" | "hostIPs", Some(Value::Array(before)), Value::Array(now))
                if !before.is_empty() =>
            {
                let mut all = vec![json!({"$patch": "replace"})];
                all.extend(now.iter().cloned());
                all.into()
            }
            (_, Some(Value::Object(before)), Value::Object(now)) => merge_patch(before, now).into(),
            _ => value.clone(),
        };
        changes.insert(name.clone(), change);
    }
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        changes.insert(name.clone(), Value::Null);
    }
    changes
}

/// Returns the conditions that are new, changed or deleted.
fn by_type(old: &[Value], new: &[Value]) -> Vec<Value> {
    let find = |list: &[Value], kind: &Value| list.iter().find(|c| c["type"] == *kind).cloned();
    let mut changes = Vec::new();
    for condition in new {
        match find(old, &condition["type"]) {
            Some(before) if before == *condition => {}
            Some(Value::Object(before)) => {
                let now = condition.as_object().cloned().unwrap_or_default();
                let mut change = merge_patch(&before, &now);
                change.insert("type".to_owned(), condition["type"].clone());
                changes.push(change.into());
            }
            _ => changes.push(condition.clone()),
        }
    }
    for condition in old {
        if find(new, &condition["type"]).is_none() {
            changes.push(json!({"$patch": "delete", "type": condition["type"]}));
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(old: &Value, new: &Value) -> Value {
        merge_patch(old.as_object().unwrap(), new.as_object().unwrap()).into()
    }

    #[test]
    fn only_what_changed_is_sent() {
        let old = json!({
            "phase": "Pending", "reason": "x", "hostIP": "1.2.3.4",
            "podIPs": [{"ip": "1.1.1.1"}],
            "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
            "containerStatuses": [{"name": "a", "ready": false}],
            "conditions": [
                {"type": "Ready", "status": "False", "reason": "ContainersNotReady"},
                {"type": "PodScheduled", "status": "True"},
                {"type": "PodResizePending", "status": "True"},
            ],
        });
        let new = json!({
            "phase": "Running", "hostIP": "1.2.3.4",
            "podIPs": [{"ip": "2.2.2.2"}],
            "resources": {"requests": {"cpu": "2"}},
            "containerStatuses": [{"name": "a", "ready": true}],
            "conditions": [
                {"type": "Ready", "status": "True"},
                {"type": "PodScheduled", "status": "True"},
                {"type": "Initialized", "status": "True"},
            ],
        });
        let wanted = json!({
            "phase": "Running", "reason": null,
            "podIPs": [{"$patch": "replace"}, {"ip": "2.2.2.2"}],
            "resources": {"requests": {"cpu": "2", "memory": null}},
            "containerStatuses": [{"name": "a", "ready": true}],
            "conditions": [
                {"type": "Ready", "status": "True", "reason": null},
                {"type": "Initialized", "status": "True"},
                {"$patch": "delete", "type": "PodResizePending"},
            ],
        });
        assert_eq!(changes(&old, &new), wanted);
        assert_eq!(changes(&new, &new), json!({}));
    }

    #[test]
    fn the_first_status_is_sent_whole() {
        let new = json!({"phase": "Pending", "podIPs": [{"ip": "1.1.1.1"}], "conditions": []});
        assert_eq!(changes(&json!({}), &new), new);
    }
}
