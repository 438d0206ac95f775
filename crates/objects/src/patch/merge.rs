//! JSON merge patch (RFC 7386). As upstream's library does, `null` is also dropped from objects
//! inside lists, where the RFC would keep it.

use serde_json::{Map, Value};

use super::{PatchError, Patched, json_name, text};

/// Merges a patch into an object.
pub fn merge(object: Value, patch: &[u8]) -> Result<Patched, PatchError> {
    let read = text::read(patch)?;
    let patch = match read.value {
        Value::Object(patch) => patch,
        Value::Null => return Err(PatchError::Malformed("Invalid JSON Patch".to_owned())),
        other => {
            let message = format!(
                "error decoding patch: json: cannot unmarshal {} into Go value of type \
                 map[string]interface {{}}",
                json_name(&other)
            );
            return Err(PatchError::Malformed(message));
        }
    };
    let mut value = object;
    match &mut value {
        Value::Object(object) => merge_objects(object, patch),
        other => *other = pruned(Value::Object(patch)),
    }
    Ok(Patched { value, strict: read.strict })
}

fn merge_objects(object: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (key, value) in patch {
        match (object.get_mut(&key), value) {
            (_, Value::Null) => {
                object.remove(&key);
            }
            (Some(Value::Object(current)), Value::Object(value)) => merge_objects(current, value),
            (Some(current @ Value::Object(_)), value) => *current = value,
            (Some(current), value) => *current = pruned(value),
            (None, value) => {
                object.insert(key, pruned(value));
            }
        }
    }
}

/// Without the members that are `null`.
fn pruned(value: Value) -> Value {
    match value {
        Value::Object(object) => {
            let kept = object.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key, pruned(value))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(pruned).collect()),
        other => other,
    }
}
