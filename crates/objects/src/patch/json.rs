//! JSON patch (RFC 6902), with the behaviour of upstream's library: `replace` of an absent key of a
//! map succeeds, a negative index counts from the end, text before a path's first `/` is ignored,
//! and only `replace` and `test` can apply to the whole document.

use serde_json::{Map, Value};

use super::{PatchError, Patched, json_name, text};
use crate::decode_budget::MAX_DEPTH;
use crate::problems::MAX_PROBLEMS;

/// Upstream's limit.
pub const MAX_OPERATIONS: usize = 10_000;

/// The limit on the bytes that `copy` adds in one patch: copies of copies double with every
/// operation.
pub const MAX_COPIED_BYTES: usize = 3 << 20;

/// The limit on values and list items that the operations of one patch process. Without a limit,
/// ten thousand inserts at the front of a long list, or moves of a large object, take minutes.
const MAX_TOUCHED: usize = 20_000_000;

/// Applies all operations of a patch in order, or none.
pub fn json(object: Value, patch: &[u8]) -> Result<Patched, PatchError> {
    let read = text::read(patch)?;
    let mut strict: Vec<String> =
        read.strict.into_iter().map(|note| format!("json patch {note}")).collect();
    let operations = match read.value {
        Value::Array(operations) => operations,
        Value::Null => Vec::new(),
        other => return Err(wrong_type(&other, "Go value of type []handlers.jsonPatchOp")),
    };
    check_types(&operations, &mut strict)?;
    if operations.len() > MAX_OPERATIONS {
        return Err(PatchError::TooManyOperations(operations.len()));
    }
    let mut document = Document { value: object, copied: 0, visited: 0 };
    for operation in operations {
        let operation = match operation {
            Value::Object(operation) => operation,
            _ => Map::new(),
        };
        document.operate(operation).map_err(PatchError::DoesNotApply)?;
    }
    Ok(Patched { value: document.value, strict })
}

fn wrong_type(found: &Value, wanted: &str) -> PatchError {
    let found = json_name(found);
    PatchError::Malformed(format!(
        "error decoding patch: json: cannot unmarshal {found} into {wanted}"
    ))
}

fn check_types(operations: &[Value], strict: &mut Vec<String>) -> Result<(), PatchError> {
    for (index, operation) in operations.iter().enumerate() {
        let fields = match operation {
            Value::Object(fields) => fields,
            Value::Null => continue,
            other => return Err(wrong_type(other, "Go value of type handlers.jsonPatchOp")),
        };
        for (name, value) in fields {
            match (name.as_str(), value) {
                ("op" | "path" | "from", Value::String(_) | Value::Null) | ("value", _) => {}
                ("op" | "path" | "from", other) => {
                    let wanted = format!("Go struct field jsonPatchOp.{name} of type string");
                    return Err(wrong_type(other, &wanted));
                }
                _ if strict.len() < MAX_PROBLEMS => {
                    let name = crate::yaml::shortened(name);
                    strict.push(format!("json patch unknown field \"[{index}].{name}\""));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

struct Document {
    value: Value,
    /// Bytes.
    copied: usize,
    /// Against [`MAX_TOUCHED`].
    visited: usize,
}

/// A path: the tokens of the parent, and the last token.
struct Pointer<'p> {
    text: &'p str,
    holders: Vec<String>,
    last: String,
}

impl Pointer<'_> {
    fn parse(text: &str) -> Option<Pointer<'_>> {
        let (_, tokens) = text.split_once('/')?;
        let mut holders: Vec<String> = tokens.split('/').map(unescaped).collect();
        let last = holders.pop()?;
        Some(Pointer { text, holders, last })
    }
}

/// `~1` is a slash and `~0` a tilde.
fn unescaped(token: &str) -> String {
    // In this order `~01` becomes `~1`, as in one pass from the left.
    token.replace("~1", "/").replace("~0", "~")
}

impl Document {
    fn operate(&mut self, mut operation: Map<String, Value>) -> Result<(), String> {
        let value = operation.remove("value");
        let text = |name: &str| operation.get(name).and_then(Value::as_str);
        let path = || text("path").ok_or("operation missing path field");
        let from = || text("from").ok_or("operation, missing from field");
        match text("op") {
            Some("add") => self.add(&self.pointer(path()?)?, value.unwrap_or_default()),
            Some("remove") => self.remove(&self.pointer(path()?)?).map(drop),
            Some("replace") if path()?.is_empty() => match value {
                Some(value @ (Value::Object(_) | Value::Array(_))) => {
                    self.value = value;
                    Ok(())
                }
                _ => Err("replace operation value must be object or array".to_owned()),
            },
            Some("test") if path()?.is_empty() => match value {
                Some(value) if value == self.value => Ok(()),
                _ => Err("testing value  failed".to_owned()),
            },
            Some("replace") => self.replace(&self.pointer(path()?)?, value.unwrap_or_default()),
            Some("move") => {
                let taken = self.remove(&self.pointer(from()?)?)?;
                self.add(&self.pointer(path()?)?, taken)
            }
            Some("copy") => {
                let found = self.get(&self.pointer(from()?)?)?.cloned().unwrap_or_default();
                self.copied += found.to_string().len();
                if self.copied > MAX_COPIED_BYTES {
                    return Err(format!(
                        "Unable to complete the copy, the accumulated size increase of copy is \
                         {}, exceeding the limit {MAX_COPIED_BYTES}",
                        self.copied
                    ));
                }
                self.add(&self.pointer(path()?)?, found)
            }
            Some("test") => self.test(&self.pointer(path()?)?, value.as_ref()),
            op => Err(format!("Unexpected kind: {}", op.unwrap_or("unknown"))),
        }
    }

    fn pointer<'p>(&self, text: &'p str) -> Result<Pointer<'p>, String> {
        Pointer::parse(text).ok_or_else(|| missing(text))
    }

    fn holder(&mut self, pointer: &Pointer<'_>) -> Result<&mut Value, String> {
        let mut at = &mut self.value;
        for token in &pointer.holders {
            let next = match at {
                Value::Object(object) => object.get_mut(token),
                Value::Array(items) => match index(items.len(), token) {
                    Ok(index) => items.get_mut(index),
                    Err(_) => None,
                },
                _ => None,
            };
            at = next.ok_or_else(|| missing(pointer.text))?;
        }
        match at {
            Value::Object(_) | Value::Array(_) => Ok(at),
            _ => Err(missing(pointer.text)),
        }
    }

    /// Returns the value at a path; an absent key of a map is not an error.
    fn get(&mut self, pointer: &Pointer<'_>) -> Result<Option<&Value>, String> {
        match self.holder(pointer)? {
            Value::Object(object) => Ok(object.get(&pointer.last)),
            Value::Array(items) => {
                let index = index(items.len(), &pointer.last)?;
                Ok(items.get(index))
            }
            _ => Ok(None),
        }
    }

    /// Counts the values that an operation processes.
    fn touch(&mut self, values: usize) -> Result<(), String> {
        self.visited = self.visited.saturating_add(values);
        if self.visited > MAX_TOUCHED {
            return Err("the operations touch too many values".to_owned());
        }
        Ok(())
    }

    /// Rejects values that would be nested deeper than any value that can be read.
    fn admit(&mut self, pointer: &Pointer<'_>, value: &Value) -> Result<(), String> {
        let Measure { depth, values } = Measure::of(value);
        self.touch(values)?;
        if pointer.holders.len() + 1 + depth > MAX_DEPTH {
            return Err("exceeded max depth".to_owned());
        }
        Ok(())
    }

    fn add(&mut self, pointer: &Pointer<'_>, value: Value) -> Result<(), String> {
        self.admit(pointer, &value)?;
        match self.holder(pointer)? {
            Value::Object(object) => {
                object.insert(pointer.last.clone(), value);
            }
            Value::Array(items) if pointer.last == "-" => items.push(value),
            Value::Array(items) => {
                let index = index(items.len() + 1, &pointer.last)?;
                items.insert(index, value);
                let moved = items.len() - index;
                self.touch(moved)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn replace(&mut self, pointer: &Pointer<'_>, value: Value) -> Result<(), String> {
        self.admit(pointer, &value)?;
        match self.holder(pointer)? {
            Value::Object(object) => {
                object.insert(pointer.last.clone(), value);
            }
            Value::Array(items) => {
                let index = index(items.len(), &pointer.last)?;
                items[index] = value;
            }
            _ => {}
        }
        Ok(())
    }

    fn remove(&mut self, pointer: &Pointer<'_>) -> Result<Value, String> {
        let gone = match self.holder(pointer)? {
            Value::Object(object) => object.remove(&pointer.last),
            Value::Array(items) => {
                let index = index(items.len(), &pointer.last)?;
                let gone = items.remove(index);
                let moved = items.len() - index;
                self.touch(moved)?;
                Some(gone)
            }
            _ => None,
        };
        gone.ok_or_else(|| format!("Unable to remove nonexistent key: {}", pointer.last))
    }

    fn test(&mut self, pointer: &Pointer<'_>, wanted: Option<&Value>) -> Result<(), String> {
        let found = self.get(pointer)?.unwrap_or(&Value::Null);
        if found == wanted.unwrap_or(&Value::Null) {
            Ok(())
        } else {
            Err(format!("testing value {} failed", pointer.text))
        }
    }
}

fn missing(path: &str) -> String {
    format!("doc is missing path: {path:?}")
}

/// The depth of a value, and the number of values in it.
struct Measure {
    depth: usize,
    values: usize,
}

impl Measure {
    fn of(value: &Value) -> Measure {
        let mut measure = Measure { depth: 0, values: 1 };
        let mut inner = |value: &Value| {
            let Measure { depth, values } = Measure::of(value);
            measure.depth = measure.depth.max(depth);
            measure.values += values;
        };
        match value {
            Value::Array(items) => items.iter().for_each(&mut inner),
            Value::Object(object) => object.values().for_each(&mut inner),
            _ => return measure,
        }
        measure.depth += 1;
        measure
    }
}

/// Returns the index that a token means in a list of a length.
fn index(length: usize, token: &str) -> Result<usize, String> {
    let number: i64 =
        token.parse().map_err(|_| format!("value was not a proper array index: '{token}'"))?;
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let at = if number < 0 { number.saturating_add(length) } else { number };
    let fits = (0..length).contains(&at).then_some(at).and_then(|at| usize::try_from(at).ok());
    fits.ok_or_else(|| format!("Unable to access invalid index: {number}"))
}
