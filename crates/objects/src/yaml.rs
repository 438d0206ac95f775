//! YAML and JSON text as trees of values with line and column.
//!
//! Main type: [`Node`]; entry: [`parse`], which reads a stream of documents and returns everything
//! it could read together with all errors. [`read`] has the typed readers. Duplicate keys, deep
//! nesting, and anchors that expand to too many values or too much text are rejected here. JSON is
//! read as YAML. ADR 0003 describes the choice of the parser.

use std::fmt;

use thiserror::Error;

use crate::field::{FieldPath, FieldProblem, Step};

mod build;
pub mod read;
pub mod write;

pub use build::{parse, parse_within};

/// A position in a text, counted from one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark {
    pub line: u32,
    pub column: u32,
}

impl Mark {
    pub const START: Mark = Mark { line: 1, column: 1 };
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// A value and its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub mark: Mark,
    pub value: Value,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Scalar(Scalar),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// A field: key and value. Keys of one map differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub key: String,
    /// The key is written without quotes, so that YAML 1.1 reads `1` and `yes` as other types.
    pub plain_key: bool,
    pub mark: Mark,
    pub value: Node,
}

/// A scalar, not yet interpreted: `1` is a number for one field and an error for another, and a
/// quantity needs its digits as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scalar {
    pub text: String,
    /// Written without quotes, so that `true`, `12` and `null` are not text.
    pub plain: bool,
}

/// The meaning of an unquoted scalar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolved {
    Null,
    Bool(bool),
    Number,
    Text,
}

impl Scalar {
    /// Returns the meaning of the scalar by the rules of Kubernetes' own reader.
    #[must_use]
    pub fn resolve(&self) -> Resolved {
        if !self.plain {
            return Resolved::Text;
        }
        match self.text.as_str() {
            "" | "~" | "null" | "Null" | "NULL" => Resolved::Null,
            "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => {
                Resolved::Bool(true)
            }
            "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => {
                Resolved::Bool(false)
            }
            text if is_number(text) => Resolved::Number,
            _ => Resolved::Text,
        }
    }
}

fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let starts_right = digits.bytes().next().is_some_and(|b| b.is_ascii_digit() || b == b'.');
    let hexadecimal = digits
        .strip_prefix("0x")
        .is_some_and(|h| !h.is_empty() && h.bytes().all(|b| b.is_ascii_hexdigit()));
    let octal = digits
        .strip_prefix("0o")
        .is_some_and(|o| !o.is_empty() && o.bytes().all(|b| (b'0'..=b'7').contains(&b)));
    starts_right && (hexadecimal || octal || digits.parse::<f64>().is_ok())
}

impl Node {
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar(s) if s.resolve() == Resolved::Null)
    }

    /// Returns the value of a field; `None` if this is not a map or has no such field.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|entry| &entry.value)
    }

    fn entry(&self, key: &str) -> Option<&Entry> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|entry| entry.key == key),
            _ => None,
        }
    }

    /// Returns the text of a scalar field.
    #[must_use]
    pub fn get_text(&self, key: &str) -> Option<&str> {
        match &self.get(key)?.value {
            Value::Scalar(scalar) => Some(&scalar.text),
            _ => None,
        }
    }

    /// Returns the position of the key of a field.
    #[must_use]
    pub fn mark_of_key(&self, key: &str) -> Option<Mark> {
        self.entry(key).map(|entry| entry.mark)
    }

    /// Returns the value one step below this one.
    #[must_use]
    pub fn at(&self, step: &Step) -> Option<&Node> {
        match (step, &self.value) {
            (Step::Field(name) | Step::Key(name), Value::Map(_)) => self.get(name),
            (Step::Index(index), Value::List(items)) => items.get(*index),
            _ => None,
        }
    }

    /// Returns the position of the value at `path`, or of its nearest parent that is in the text.
    #[must_use]
    pub fn locate(&self, path: &FieldPath) -> Mark {
        let mut node = self;
        for step in path.steps() {
            let Some(next) = node.at(step) else { break };
            node = next;
        }
        node.mark
    }

    /// Describes the type of this value for people.
    #[must_use]
    pub fn describe(&self) -> String {
        match &self.value {
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a map of fields".to_owned(),
            Value::Scalar(scalar) => match scalar.resolve() {
                Resolved::Null => "nothing".to_owned(),
                Resolved::Bool(value) => value.to_string(),
                Resolved::Number => format!("the number {}", scalar.text),
                Resolved::Text => format!("the text {:?}", shortened(&scalar.text)),
            },
        }
    }

    /// Returns the value as JSON, without positions.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        use serde_json::Value as Json;
        match &self.value {
            Value::List(items) => Json::Array(items.iter().map(Node::to_json).collect()),
            Value::Map(entries) => {
                Json::Object(entries.iter().map(|e| (e.key.clone(), e.value.to_json())).collect())
            }
            Value::Scalar(scalar) => match scalar.resolve() {
                Resolved::Null => Json::Null,
                Resolved::Bool(value) => Json::Bool(value),
                Resolved::Text => Json::String(scalar.text.clone()),
                Resolved::Number => json_number(&scalar.text),
            },
        }
    }
}

fn json_number(text: &str) -> serde_json::Value {
    let text = text.strip_prefix('+').unwrap_or(text);
    let number = text
        .parse::<i64>()
        .map(serde_json::Number::from)
        .or_else(|_| text.parse::<u64>().map(serde_json::Number::from))
        .ok()
        .or_else(|| text.parse().ok().and_then(serde_json::Number::from_f64));
    number.map_or_else(|| serde_json::Value::String(text.to_owned()), serde_json::Value::Number)
}

/// Shortens a text for a message.
pub(crate) fn shortened(text: &str) -> String {
    const ENOUGH: usize = 60;
    match text.char_indices().nth(ENOUGH) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// An error in a text.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Problem {
    #[error("not YAML: {0}")]
    Syntax(String),
    #[error("the field is given twice (first at {first})")]
    DuplicateKey { first: Mark },
    #[error("a key must be a scalar")]
    KeyNotText,
    #[error("nested deeper than {limit} levels")]
    TooDeep { limit: usize },
    #[error("anchors and aliases expand to more than {limit} values")]
    TooManyAliases { limit: usize },
    #[error("anchors and aliases expand to more than {limit} bytes of text")]
    TooLongAliases { limit: usize },
    #[error("the text has more than {limit} values")]
    TooManyValues { limit: usize },
    #[error("the alias is inside the value that it refers to")]
    AliasInsideItself,
    #[error("'<<' takes a map or a list of maps")]
    MergeOfNoMap,
    #[error("tag {0:?} has no meaning in Kubernetes files")]
    Tag(String),
    #[error("expected {expected}, found {found}")]
    Expected { expected: String, found: String },
    #[error("unknown field {name:?}{}", did_you_mean(.nearest.as_deref()))]
    UnknownField { name: String, nearest: Option<String> },
    #[error(transparent)]
    Field(#[from] FieldProblem),
    /// Any other error; the text has the actual and the expected value.
    #[error("{0}")]
    Other(String),
}

pub(crate) fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map(|name| format!("; did you mean {name:?}?")).unwrap_or_default()
}

/// An error, its field, and its position in the text. The caller adds the file name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub struct YamlError {
    pub mark: Mark,
    pub path: FieldPath,
    pub problem: Problem,
}

impl fmt::Display for YamlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.mark)?;
        if !self.path.is_root() {
            write!(f, "{}: ", self.path)?;
        }
        write!(f, "{}", self.problem)
    }
}

#[cfg(test)]
mod tests;
