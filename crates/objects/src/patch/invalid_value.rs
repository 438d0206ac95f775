//! The text of a patched object that could not be decoded, for the error of the response.
//!
//! Upstream shows what its libraries have: for a strategic patch the patch as a Go map, for the
//! others the patched JSON. In that, maps that the patch visited have sorted keys, and the others
//! are as the server wrote them, in the order of the fields' declaration.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::{PatchKind, text};
use crate::go;
use crate::schema::{Schema, Shape, TypeId};

/// Returns the invalid value of the response, given the object before and after a patch.
#[must_use]
pub fn invalid_value(
    kind: PatchKind,
    schema: &Schema,
    id: TypeId,
    live: &Value,
    patch: &[u8],
    patched: &Value,
) -> String {
    let patch = text::read(patch).map(|read| read.value).unwrap_or_default();
    let visited = match kind {
        PatchKind::Strategic | PatchKind::Apply => return go::value(&patch),
        PatchKind::Merge => VisitedPaths::by_merge(Some(live), &patch),
        PatchKind::Json => VisitedPaths::by_operations(patched, &patch),
    };
    let mut writer = Writer { schema, text: String::new() };
    writer.write(&Shape::Struct(id), Some(live), patched, Some(&visited));
    writer.text
}

/// The maps and lists that a patch visited, by key.
#[derive(Default)]
struct VisitedPaths(BTreeMap<String, VisitedPaths>);

impl VisitedPaths {
    fn by_merge(live: Option<&Value>, patch: &Value) -> VisitedPaths {
        let mut visited = VisitedPaths::default();
        if let (Some(Value::Object(live)), Value::Object(patch)) = (live, patch) {
            for (key, value) in patch {
                if value.is_object() && live.get(key).is_some_and(Value::is_object) {
                    visited.0.insert(key.clone(), VisitedPaths::by_merge(live.get(key), value));
                }
            }
        }
        visited
    }

    /// Follows the operations' paths within the patched object: a path can be longer than any value
    /// is deep.
    fn by_operations(patched: &Value, patch: &Value) -> VisitedPaths {
        let mut visited = VisitedPaths::default();
        for operation in patch.as_array().into_iter().flatten() {
            for name in ["path", "from"] {
                let path = operation.get(name).and_then(Value::as_str).unwrap_or_default();
                let mut tokens: Vec<&str> = path.split('/').skip(1).collect();
                tokens.pop();
                let (mut at, mut value) = (&mut visited, patched);
                for token in tokens {
                    let token = token.replace("~1", "/").replace("~0", "~");
                    let below = match value {
                        Value::Object(map) => map.get(&token),
                        Value::Array(items) => {
                            token.parse::<usize>().ok().and_then(|place| items.get(place))
                        }
                        _ => None,
                    };
                    let Some(below) = below else { break };
                    value = below;
                    at = at.0.entry(token).or_default();
                }
            }
        }
        visited
    }
}

struct Writer<'s> {
    schema: &'s Schema,
    text: String,
}

impl Writer<'_> {
    fn write(
        &mut self,
        shape: &Shape,
        live: Option<&Value>,
        value: &Value,
        visited: Option<&VisitedPaths>,
    ) {
        match value {
            Value::Object(map) => self.write_map(shape, live, map, visited),
            Value::Array(items) => {
                let inner = match shape {
                    Shape::List(inner) => inner,
                    _ => &Shape::Any,
                };
                self.text.push('[');
                for (at, item) in items.iter().enumerate() {
                    if at > 0 {
                        self.text.push(',');
                    }
                    let below = visited.and_then(|visited| visited.0.get(&at.to_string()));
                    self.write(inner, live.and_then(|live| live.get(at)), item, below);
                }
                self.text.push(']');
            }
            Value::String(string) => self.write_string(string),
            other => {
                let _ = write!(self.text, "{other}");
            }
        }
    }

    fn write_map(
        &mut self,
        shape: &Shape,
        live: Option<&Value>,
        map: &Map<String, Value>,
        visited: Option<&VisitedPaths>,
    ) {
        let type_ = match shape {
            Shape::Struct(id) => Some(self.schema.get(*id)),
            _ => None,
        };
        let mut keys: Vec<&String> = map.keys().collect();
        // A new value came from the patch, not from a structure.
        if let (Some(type_), None, true) = (type_, visited, live.is_some_and(Value::is_object)) {
            let position =
                |key: &String| type_.field(key).map_or(usize::MAX, |field| field.position);
            keys.sort_by_key(|key| position(key));
        }
        self.text.push('{');
        for (at, key) in keys.into_iter().enumerate() {
            if at > 0 {
                self.text.push(',');
            }
            self.write_string(key);
            self.text.push(':');
            let inner = match shape {
                Shape::Map(inner) => inner,
                _ => type_
                    .and_then(|type_| type_.field(key))
                    .map_or(&Shape::Any, |field| &field.shape),
            };
            let below = visited.and_then(|visited| visited.0.get(key));
            let value = map.get(key).unwrap_or(&Value::Null);
            self.write(inner, live.and_then(|live| live.get(key)), value, below);
        }
        self.text.push('}');
    }

    /// Writes a JSON string as Go does, escaped for HTML.
    fn write_string(&mut self, string: &str) {
        let text = Value::from(string).to_string();
        for character in text.chars() {
            match character {
                '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                    let _ = write!(self.text, "\\u{:04x}", u32::from(character));
                }
                other => self.text.push(other),
            }
        }
    }
}
