//! Objects as YAML, for clients that ask for it.

use std::fmt::Write as _;

use serde_json::Value;

/// Renders a value as a YAML document.
#[must_use]
pub(crate) fn render(value: &Value) -> String {
    let mut text = String::new();
    block(&mut text, value, 0, false);
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// Writes a value at the start of a line. `inline` is set after `- `, where the first key of a map
/// stays on the line.
fn block(text: &mut String, value: &Value, indent: usize, inline: bool) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (index, (key, value)) in fields.iter().enumerate() {
                if index > 0 || !inline {
                    pad(text, indent);
                }
                text.push_str(&scalar(key));
                text.push(':');
                nested(text, value, indent);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (index, item) in items.iter().enumerate() {
                if index > 0 || !inline {
                    pad(text, indent);
                }
                text.push('-');
                text.push(' ');
                block(text, item, indent + 2, true);
            }
        }
        other => {
            text.push_str(&flat(other));
            text.push('\n');
        }
    }
}

/// Writes the value of a key.
fn nested(text: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            text.push('\n');
            block(text, value, indent + 2, false);
        }
        // Lists have their key's indent, as is usual for Kubernetes objects.
        Value::Array(items) if !items.is_empty() => {
            text.push('\n');
            block(text, value, indent, false);
        }
        other => {
            text.push(' ');
            text.push_str(&flat(other));
            text.push('\n');
        }
    }
}

fn pad(text: &mut String, indent: usize) {
    text.extend(std::iter::repeat_n(' ', indent));
}

fn flat(value: &Value) -> String {
    match value {
        Value::String(word) => scalar(word),
        Value::Object(_) => "{}".to_owned(),
        Value::Array(_) => "[]".to_owned(),
        other => other.to_string(),
    }
}

/// Returns a YAML scalar: bare if it is unambiguous, quoted otherwise.
fn scalar(word: &str) -> String {
    let bare = !word.is_empty()
        && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./@".contains(&b))
        && word.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'/')
        && !matches!(
            word.to_ascii_lowercase().as_str(),
            "true" | "false" | "yes" | "no" | "on" | "off" | "null" | "y" | "n"
        );
    if bare {
        return word.to_owned();
    }
    // JSON quoting is valid YAML.
    let mut quoted = String::with_capacity(word.len() + 2);
    let _ = write!(quoted, "{}", Value::from(word));
    quoted
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rendered_yaml_parses_to_the_same_value() {
        let value = json!({
            "kind": "Pod", "n": 1, "b": true, "none": null, "empty": {}, "list": [],
            "text": "a: b\n- c", "yes": "yes", "num": "12", "": "x",
            "items": [{"a": 1, "b": [1, [2, 3]]}, "x", {}],
            "deep": {"x": {"y": ["z"]}},
        });
        let text = render(&value);
        let (documents, errors) = objects::yaml::parse(&text);
        assert!(errors.is_empty(), "{errors:?}\n{text}");
        assert_eq!(documents[0].to_json(), value, "{text}");
    }
}
