//! Validation walks an object with a [`ValueCursor`], a value and its path. [`Causes`] collects the
//! errors in the form of API responses.
//!
//! A cursor at an absent field is a cursor at `null`, so that a walk needs no `if let` per step.
//! The path is a chain of borrowed steps; text is made only when there is something to report.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;

use crate::go;

/// A value in an object, and its path. The value outlives the path: a value that was read from a
/// cursor can be kept after the cursor is gone.
#[derive(Debug, Clone, Copy)]
pub struct ValueCursor<'v, 'p> {
    value: &'v Value,
    parent: Option<&'p ValueCursor<'v, 'p>>,
    step: Step<'p>,
}

/// A [`ValueCursor`] with one lifetime, for parameters.
pub type Cursor<'a> = ValueCursor<'a, 'a>;

#[derive(Debug, Clone, Copy)]
enum Step<'a> {
    Field(&'a str),
    Key(&'a str),
    Index(usize),
}

static NULL: Value = Value::Null;

impl<'v, 'p> ValueCursor<'v, 'p> {
    /// Returns a cursor at the top of an object, or at a part of one whose path is `path` (may be
    /// empty).
    #[must_use]
    pub fn top(value: &'v Value, path: &'p str) -> ValueCursor<'v, 'p> {
        ValueCursor { value, parent: None, step: Step::Field(path) }
    }

    #[must_use]
    pub fn field<'c>(&'c self, name: &'c str) -> ValueCursor<'v, 'c> {
        let value = self.value.get(name).unwrap_or(&NULL);
        ValueCursor { value, parent: Some(self), step: Step::Field(name) }
    }

    /// Returns the value of a map key: `[key]`.
    #[must_use]
    pub fn key<'c>(&'c self, key: &'c str) -> ValueCursor<'v, 'c> {
        let value = self.value.get(key).unwrap_or(&NULL);
        ValueCursor { value, parent: Some(self), step: Step::Key(key) }
    }

    #[must_use]
    pub fn index<'c>(&'c self, index: usize) -> ValueCursor<'v, 'c> {
        let value = self.value.get(index).unwrap_or(&NULL);
        ValueCursor { value, parent: Some(self), step: Step::Index(index) }
    }

    /// Iterates over the items of a list; empty for other values.
    pub fn items<'c>(&'c self) -> impl Iterator<Item = ValueCursor<'v, 'c>> {
        let items = self.value.as_array().map(Vec::as_slice).unwrap_or_default();
        let place =
            |(index, value)| ValueCursor { value, parent: Some(self), step: Step::Index(index) };
        items.iter().enumerate().map(place)
    }

    /// Iterates over the entries of a map; empty for other values.
    pub fn entries<'c>(&'c self) -> impl Iterator<Item = (&'v str, ValueCursor<'v, 'c>)>
    where
        'v: 'c,
    {
        self.value.as_object().into_iter().flatten().map(|(key, value)| {
            (key.as_str(), ValueCursor { value, parent: Some(self), step: Step::Key(key) })
        })
    }

    /// Returns the same value under another name, where messages do not use the field's own.
    #[must_use]
    pub fn called(self, name: &'p str) -> ValueCursor<'v, 'p> {
        ValueCursor { step: Step::Field(name), ..self }
    }

    /// Returns another value at the same path.
    #[must_use]
    pub fn at_value(self, value: &'v Value) -> ValueCursor<'v, 'p> {
        ValueCursor { value, ..self }
    }

    #[must_use]
    pub fn value(&self) -> &'v Value {
        self.value
    }

    /// Reports whether the value is neither absent nor `null`.
    #[must_use]
    pub fn is_set(&self) -> bool {
        !self.value.is_null()
    }

    /// Returns the text, or an empty one.
    #[must_use]
    pub fn text(&self) -> &'v str {
        self.value.as_str().unwrap_or_default()
    }

    #[must_use]
    pub fn int(&self) -> Option<i64> {
        self.value.as_i64()
    }

    #[must_use]
    pub fn bool(&self) -> Option<bool> {
        self.value.as_bool()
    }

    #[must_use]
    pub fn is_true(&self) -> bool {
        self.bool() == Some(true)
    }

    /// Returns the number of items or entries.
    #[must_use]
    pub fn len(&self) -> usize {
        match self.value {
            Value::Array(items) => items.len(),
            Value::Object(entries) => entries.len(),
            _ => 0,
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `spec.containers[0].name`.
    #[must_use]
    pub fn path(&self) -> String {
        let mut chain = Vec::new();
        let mut at = Some(self);
        while let Some(place) = at {
            chain.push(place.step);
            at = place.parent;
        }
        let mut text = String::new();
        for step in chain.iter().rev() {
            match step {
                Step::Field("") => {}
                Step::Field(name) if text.is_empty() => text.push_str(name),
                Step::Field(name) => {
                    text.push('.');
                    text.push_str(name);
                }
                Step::Key(key) => {
                    let _ = write!(text, "[{key}]");
                }
                Step::Index(index) => {
                    let _ = write!(text, "[{index}]");
                }
            }
        }
        text
    }
}

/// One error, as `details.causes` of a response lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cause {
    pub reason: &'static str,
    pub message: String,
    pub field: String,
}

/// The number of causes that are kept. Upstream has no limit; a hundred thousand causes are a
/// response of 10 MB.
const MAX_CAUSES: usize = 1000;

/// The limit on the text of all causes. Some show a whole list for each of its items.
const MAX_TEXT: usize = 256 << 10;

/// All errors of an object, in the order in which they were found, up to a limit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Causes(pub Vec<Cause>, Text);

/// The bytes of all messages and fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Text(usize);

impl Causes {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reports whether further causes are dropped. The first one never is.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.0.len() >= MAX_CAUSES || self.1.0 >= MAX_TEXT
    }

    /// Drops all causes.
    pub fn clear(&mut self) {
        *self = Causes::default();
    }

    /// Adds the causes of another check.
    pub fn append(&mut self, other: Causes) {
        for Cause { reason, message, field } in other.0 {
            self.add(reason, field, message);
        }
    }

    /// Adds a cause with a path given as text.
    pub fn add(&mut self, reason: &'static str, field: impl Into<String>, message: String) {
        if self.is_full() {
            return;
        }
        let field = field.into();
        self.1.0 += message.len() + field.len();
        self.0.push(Cause { reason, message, field });
    }

    /// Adds a cause at a cursor. Texts are made only for causes that are kept.
    fn add_at(&mut self, reason: &'static str, at: &Cursor<'_>, message: impl FnOnce() -> String) {
        if !self.is_full() {
            self.add(reason, at.path(), message());
        }
    }

    pub fn required(&mut self, at: &Cursor<'_>, detail: &str) {
        self.add_at("FieldValueRequired", at, || with_detail("Required value", detail));
    }

    /// Reports a value that is not allowed.
    pub fn invalid(&mut self, at: &Cursor<'_>, detail: &str) {
        self.invalid_as(at, at.value, detail);
    }

    /// Like [`Causes::invalid`], but shows another value.
    pub fn invalid_as(&mut self, at: &Cursor<'_>, shown: impl Into<BadValue>, detail: &str) {
        self.add_at("FieldValueInvalid", at, || {
            with_detail(&format!("Invalid value: {}", shown.into().0), detail)
        });
    }

    pub fn forbidden(&mut self, at: &Cursor<'_>, detail: &str) {
        self.add_at("FieldValueForbidden", at, || with_detail("Forbidden", detail));
    }

    pub fn duplicate(&mut self, at: &Cursor<'_>) {
        self.duplicate_as(at, at.value);
    }

    pub fn duplicate_as(&mut self, at: &Cursor<'_>, shown: impl Into<BadValue>) {
        let message = || format!("Duplicate value: {}", shown.into().0);
        self.add_at("FieldValueDuplicate", at, message);
    }

    pub fn not_supported(&mut self, at: &Cursor<'_>, supported: &[&str]) {
        self.not_supported_as(at, at.value, supported);
    }

    pub fn not_found(&mut self, at: &Cursor<'_>) {
        self.not_found_as(at, at.value, "");
    }

    pub fn too_long(&mut self, at: &Cursor<'_>, max: usize) {
        let message = || format!("Too long: may not be more than {max} bytes");
        self.add_at("FieldValueTooLong", at, message);
    }

    pub fn not_found_as(&mut self, at: &Cursor<'_>, shown: impl Into<BadValue>, detail: &str) {
        self.add_at("FieldValueNotFound", at, || {
            with_detail(&format!("Not found: {}", shown.into().0), detail)
        });
    }

    /// Like [`Causes::not_supported`], but shows another value.
    pub fn not_supported_as(
        &mut self,
        at: &Cursor<'_>,
        shown: impl Into<BadValue>,
        supported: &[&str],
    ) {
        self.add_at("FieldValueNotSupported", at, || {
            let supported: Vec<String> = supported.iter().map(|name| format!("{name:?}")).collect();
            let (shown, supported) = (shown.into().0, supported.join(", "));
            format!("Unsupported value: {shown}: supported values: {supported}")
        });
    }

    /// Removes repeated causes, as upstream does.
    #[must_use]
    pub fn distinct(mut self) -> Causes {
        let mut seen = std::collections::BTreeSet::new();
        self.0.retain(|cause| seen.insert((cause.field.clone(), cause.message.clone())));
        self
    }

    pub fn too_many(&mut self, at: &Cursor<'_>, max: usize) {
        let message = || format!("Too many: {}: must have at most {max} items", at.len());
        self.add_at("FieldValueTooMany", at, message);
    }
}

fn with_detail(message: &str, detail: &str) -> String {
    if detail.is_empty() { message.to_owned() } else { format!("{message}: {detail}") }
}

/// A value as a message shows it: text quoted, everything else as JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadValue(String);

impl BadValue {
    /// A text that is shown without quotes.
    #[must_use]
    pub fn literal(text: String) -> BadValue {
        BadValue(text)
    }
}

impl From<&Value> for BadValue {
    fn from(value: &Value) -> BadValue {
        match value {
            Value::String(text) => BadValue::from(text.as_str()),
            Value::Null => BadValue("null".to_owned()),
            value => BadValue(value.to_string()),
        }
    }
}

impl From<&str> for BadValue {
    fn from(text: &str) -> BadValue {
        BadValue(go::quoted(text))
    }
}

impl From<i64> for BadValue {
    fn from(number: i64) -> BadValue {
        BadValue(number.to_string())
    }
}

impl From<bool> for BadValue {
    fn from(value: bool) -> BadValue {
        BadValue(value.to_string())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn causes_name_the_place_and_show_the_value() {
        let pod = json!({"spec": {"containers": [{"name": "A\"b", "ports": [1, 2]}], "limits": {"cpu": "x"}}});
        let top = Cursor::top(&pod, "");
        let spec = top.field("spec");
        let containers = spec.field("containers");
        let mut causes = Causes::default();
        for container in containers.items() {
            causes.invalid(&container.field("name"), "bad");
            causes.required(&container.field("image"), "");
            causes.too_many(&container.field("ports"), 1);
        }
        let limits = spec.field("limits");
        causes.not_supported(&limits.key("cpu"), &["1", "2"]);
        let shown: Vec<_> =
            causes.0.iter().map(|c| format!("{}: {}", c.field, c.message)).collect();
        assert_eq!(
            shown,
            [
                r#"spec.containers[0].name: Invalid value: "A\"b": bad"#,
                "spec.containers[0].image: Required value",
                "spec.containers[0].ports: Too many: 2: must have at most 1 items",
                r#"spec.limits[cpu]: Unsupported value: "x": supported values: "1", "2""#,
            ]
        );
    }
}
