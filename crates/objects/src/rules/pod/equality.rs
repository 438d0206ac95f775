//! Equality of parts of pods: amounts by value, everything else as written.

use serde_json::Value;

use super::amounts::quantity;

/// Reports whether two canonical values mean the same.
pub(super) fn same(a: &Value, b: &Value) -> bool {
    a == b || same_but(a, b, false)
}

/// Reports whether a field holds amounts, directly or by resource name.
fn holds_amounts(field: &str) -> bool {
    matches!(field, "requests" | "limits" | "overhead" | "sizeLimit" | "divisor")
}

fn same_but(a: &Value, b: &Value, amounts: bool) -> bool {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter().all(|(field, value)| {
                    b.get(field).is_some_and(|other| {
                        same_but(value, other, amounts || holds_amounts(field))
                    })
                })
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_but(a, b, amounts))
        }
        (Value::String(a), Value::String(b)) if a == b => true,
        (Value::String(_), Value::String(_)) if amounts => quantity(a) == quantity(b),
        _ => a == b,
    }
}

/// Returns the differences, a line for each removed and each added value, with the field names of
/// the API. Long lists are cut.
pub(super) fn differences(old: &Value, new: &Value, at: &str) -> String {
    const MOST: usize = 20;
    let mut lines = Vec::new();
    collect(old, new, at, false, &mut lines);
    if lines.len() > MOST {
        lines.truncate(MOST);
        lines.push("…".to_owned());
    }
    lines.join("\n")
}

fn collect(old: &Value, new: &Value, at: &str, amounts: bool, lines: &mut Vec<String>) {
    if same_but(old, new, amounts) {
        return;
    }
    match (old, new) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let (a, b) =
                    (a.get(key).unwrap_or(&Value::Null), b.get(key).unwrap_or(&Value::Null));
                let amounts = amounts || holds_amounts(key);
                collect(a, b, &format!("{at}.{key}"), amounts, lines);
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            for index in 0..a.len().max(b.len()) {
                let item = |list: &[Value]| list.get(index).cloned().unwrap_or_default();
                collect(&item(a), &item(b), &format!("{at}[{index}]"), amounts, lines);
            }
        }
        _ => {
            if !old.is_null() {
                lines.push(format!("- {at}: {old}"));
            }
            if !new.is_null() {
                lines.push(format!("+ {at}: {new}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn amounts_are_the_same_however_they_are_written() {
        let cpu = |text: &str| json!({"resources": {"limits": {"cpu": text}}, "name": "a"});
        assert!(same(&cpu("1"), &cpu("1000m")) && !same(&cpu("1"), &cpu("2")));
        assert!(!same(&json!({"value": "1"}), &json!({"value": "1000m"})));
    }
}
