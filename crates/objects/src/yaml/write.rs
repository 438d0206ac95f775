//! Writes JSON and YAML for people.
//!
//! [`document`] writes a value as block YAML, as Kubernetes objects are shown. The others take compact
//! JSON text of a serializer and keep its order of fields: [`pretty_json`] only adds white space,
//! [`fields`] writes YAML with JSON below the first level, and [`blocks`] writes a line per field. They
//! check nothing.

use std::fmt::Write as _;

use serde_json::Value;

/// The longest line, unless a single value is longer.
const WIDTH: usize = 100;

/// Spreads compact JSON over lines and ends it with a line feed.
pub fn pretty_json(json: &str) -> String {
    let mut out = String::new();
    put(json, 0, &mut out);
    out.push('\n');
    out
}

/// Writes the fields of an object as YAML, each on its own lines, with JSON, which is YAML too, below
/// the first level.
pub fn fields(json: &str) -> String {
    let mut out = String::new();
    let json = &bare_keys(json);
    for field in items(json.get(1..json.len().saturating_sub(1)).unwrap_or_default()) {
        let Some(end) = key_end(field) else { continue };
        let (key, value) = (&field[..end], &field[end + 1..]);
        out.push_str(key);
        out.push(':');
        if value.starts_with('[') && value[1..].starts_with(['{', '[']) {
            for item in items(&value[1..value.len() - 1]) {
                out.push_str("\n- ");
                put(item, 1, &mut out);
            }
        } else if value.starts_with(['{', '[']) {
            out.push(' ');
            put(value, 1, &mut out);
        } else {
            out.push(' ');
            out.push_str(plain(value));
        }
        out.push('\n');
    }
    out
}

/// Writes YAML with every field and every object of a list on its own lines.
pub fn blocks(json: &str) -> String {
    let mut out = String::new();
    put_block(&bare_keys(json), 0, &mut out);
    out
}

/// Writes the fields of an object or the objects of a list, each on its lines.
fn put_block(value: &str, indent: usize, out: &mut String) {
    let pad = "  ".repeat(indent);
    let inner = value.get(1..value.len().saturating_sub(1)).unwrap_or_default();
    for (number, item) in items(inner).into_iter().enumerate() {
        // The first field of an object in a list follows the dash.
        if number > 0 || !out.ends_with("- ") {
            out.push_str(&pad);
        }
        let Some(end) = key_end(item).filter(|_| value.starts_with('{')) else {
            out.push_str("- ");
            put_block(item, indent + 1, out);
            continue;
        };
        out.push_str(&item[..=end]);
        let content = &item[end + 1..];
        let nested = content.starts_with("[{") || (content.starts_with('{') && content != "{}");
        if nested {
            out.push('\n');
            put_block(content, indent + usize::from(content.starts_with('{')), out);
        } else {
            out.push(' ');
            out.push_str(&if content.starts_with('[') {
                space(content)
            } else {
                plain(content).to_owned()
            });
            out.push('\n');
        }
    }
}

/// Removes the quotes of keys, which are plain words in our files.
fn bare_keys(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let mut start = 0;
    for (at, _, _) in structure(json).filter(|(.., c)| *c == ':') {
        let key = json[start..at].trim_end_matches('"');
        let from = key.rfind('"').map_or(0, |quote| quote + 1);
        out.push_str(json[start..start + from].strip_suffix('"').unwrap_or_default());
        out.push_str(&key[from..]);
        start = at;
    }
    out.push_str(&json[start..]);
    out
}

/// Returns a word without its quotes if YAML needs none.
fn plain(value: &str) -> &str {
    let word = value.trim_matches('"');
    let simple =
        |c: char| c.is_ascii_alphabetic() || matches!(c, '/' | '.' | '-') || c.is_ascii_digit();
    let starts = word.starts_with(|c: char| c.is_ascii_alphabetic());
    if starts && !is_special(word) && word.chars().all(simple) { word } else { value }
}

fn put(value: &str, indent: usize, out: &mut String) {
    let (Some(open @ ('{' | '[')), Some(close)) = (value.chars().next(), value.chars().last())
    else {
        out.push_str(value);
        return;
    };
    let items = items(&value[1..value.len() - 1]);
    let spaced: Vec<String> = items.iter().map(|item| space(item)).collect();
    let length: usize = spaced.iter().map(|item| item.len() + 2).sum();
    // The whole file is never one line, however small the machine.
    if indent > 0 && indent * 2 + length <= WIDTH {
        out.push(open);
        out.push_str(&spaced.join(", "));
        out.push(close);
        return;
    }
    out.push(open);
    let pad = "  ".repeat(indent + 1);
    let scalars = open == '[' && items.iter().all(|item| !item.starts_with(['{', '[']));
    let mut column = 0;
    for (index, item) in items.iter().enumerate() {
        let fits = scalars && index > 0 && column + item.len() + 2 <= WIDTH;
        if fits {
            out.push(' ');
        } else {
            out.push('\n');
            out.push_str(&pad);
            column = pad.len();
        }
        column += item.len() + 2;
        match (open, key_end(item)) {
            ('{', Some(end)) => {
                out.push_str(&item[..=end]);
                out.push(' ');
                put(&item[end + 1..], indent + 1, out);
            }
            _ => put(item, indent + 1, out),
        }
        if index + 1 < items.len() {
            out.push(',');
        }
    }
    out.push('\n');
    out.push_str(&"  ".repeat(indent));
    out.push(close);
}

/// Returns the parts between the commas of the outermost level.
fn items(inner: &str) -> Vec<&str> {
    let mut items = Vec::new();
    let mut start = 0;
    for (at, depth, c) in structure(inner) {
        if c == ',' && depth == 0 {
            items.push(&inner[start..at]);
            start = at + 1;
        }
    }
    if start < inner.len() {
        items.push(&inner[start..]);
    }
    items
}

/// Returns the position of the colon after an object's key.
fn key_end(item: &str) -> Option<usize> {
    structure(item).find(|(_, _, c)| *c == ':').map(|(at, ..)| at)
}

/// Adds a space after each comma and colon.
fn space(value: &str) -> String {
    let mut out = String::with_capacity(value.len() + 16);
    let mut start = 0;
    for (at, _, c) in structure(value) {
        if matches!(c, ',' | ':') {
            out.push_str(&value[start..=at]);
            out.push(' ');
            start = at + 1;
        }
    }
    out.push_str(&value[start..]);
    out
}

/// Returns the commas and colons outside strings, with their position and depth of nesting.
fn structure(text: &str) -> impl Iterator<Item = (usize, usize, char)> + '_ {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    text.char_indices().filter_map(move |(at, c)| {
        if in_string {
            in_string = escaped || c != '"';
            escaped = !escaped && c == '\\';
            return None;
        }
        match c {
            '"' => in_string = true,
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.saturating_sub(1),
            ',' | ':' => return Some((at, depth, c)),
            _ => {}
        }
        None
    })
}

/// Writes a value as a YAML document.
#[must_use]
pub fn document(value: &Value) -> String {
    let mut text = String::new();
    block(&mut text, value, 0, false);
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// Writes a value at the start of a line. With `inline`, after `- `, the first key of a map stays on the
/// line.
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
        // Lists have the indent of their key, as is usual for Kubernetes objects.
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

/// Renders a text as a YAML scalar: bare if it can only be read as that text, quoted otherwise.
fn scalar(word: &str) -> String {
    let bare = !word.is_empty()
        && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./@".contains(&b))
        && word.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'/')
        && !is_special(word);
    if bare {
        return word.to_owned();
    }
    // JSON's quoting is YAML's.
    let mut quoted = String::with_capacity(word.len() + 2);
    let _ = write!(quoted, "{}", Value::from(word));
    quoted
}

/// Returns true for words that some parsers read as a boolean or null.
fn is_special(word: &str) -> bool {
    const SPECIAL: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    SPECIAL.contains(&word.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn blocks_are_parsed_back() {
        let value = serde_json::json!({
            "name": "a: b", "empty": {}, "none": [], "ids": [1, 2],
            "inner": {"a": 1, "deep": {"b": "true"}},
            "nodes": [{"id": 0, "pages": [{"size": "1Gi", "kinds": ["x", "y"]}]}, {"id": 1}],
        });
        let text = blocks(&value.to_string());
        let (documents, errors) = crate::yaml::parse(&text);
        assert!(errors.is_empty(), "{errors:?}\n{text}");
        assert_eq!(documents[0].to_json(), value, "{text}");
    }

    #[test]
    fn only_white_space_is_added() {
        let value = serde_json::json!({
            "name": "a, \"b\": [c\\", "empty": {}, "none": [], "rows": [[1, 2], [3, 4]],
            "long": (0..60).map(|n| format!("{n},{}", n + 60)).collect::<Vec<_>>(),
            "nodes": [{"id": 0, "cpus": "0-3", "pages": [{"size": "1Gi"}]}, {"id": 1}],
        });
        let text = pretty_json(&value.to_string());
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        assert!(text.lines().count() < 20, "{text}");
    }

    #[test]
    fn documents_are_parsed_back() {
        let value = json!({
            "kind": "Pod", "n": 1, "b": true, "none": null, "empty": {}, "list": [],
            "text": "a: b\n- c", "yes": "yes", "num": "12", "": "x",
            "items": [{"a": 1, "b": [1, [2, 3]]}, "x", {}],
            "deep": {"x": {"y": ["z"]}},
        });
        let text = document(&value);
        let (documents, errors) = crate::yaml::parse(&text);
        assert!(errors.is_empty(), "{errors:?}\n{text}");
        assert_eq!(documents[0].to_json(), value, "{text}");
    }
}
