//! Patches: [`json()`] (RFC 6902), [`merge()`] (RFC 7386) and [`strategic()`], each from an object
//! and the body of a request to a [`Patched`] value or a [`PatchError`].
//!
//! The value is raw: the caller decodes it under the schema, which finds unknown fields and wrong
//! types. [`crate::apply`] has server-side apply. Defaults and validation are elsewhere.

use serde_json::Value;
use thiserror::Error;

use crate::decode_budget::TooLarge;

mod invalid_value;
mod json;
mod merge;
mod order;
mod strategic;
mod text;

pub use invalid_value::invalid_value;
pub use json::{MAX_COPIED_BYTES, MAX_OPERATIONS, json};
pub use merge::merge;
pub use strategic::strategic;

/// The formats of a patch, selected by the content type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PatchKind {
    Json,
    Merge,
    Strategic,
    /// Server-side apply; see [`crate::apply`].
    Apply,
}

impl PatchKind {
    /// Returns `None` for a type that is answered with 415. Parameters after a `;` are ignored.
    #[must_use]
    pub fn of_content_type(content_type: &str) -> Option<PatchKind> {
        match content_type.split(';').next().unwrap_or_default().trim() {
            "application/json-patch+json" => Some(PatchKind::Json),
            "application/merge-patch+json" => Some(PatchKind::Merge),
            "application/strategic-merge-patch+json" => Some(PatchKind::Strategic),
            "application/apply-patch+yaml" => Some(PatchKind::Apply),
            _ => None,
        }
    }
}

/// A patched object, not yet decoded.
#[derive(Debug, Clone, PartialEq)]
pub struct Patched {
    pub value: Value,
    /// `duplicate field "data.a"` of the patch. The caller decides whether that is an error, a
    /// warning or ignored. It comes before the findings of decoding.
    pub strict: Vec<String>,
}

/// An object could not be patched.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PatchError {
    #[error("invalid JSON patch")]
    NotJson,
    /// Valid JSON, but not a patch.
    #[error("{0}")]
    Malformed(String),
    #[error(
        "Request entity too large: The allowed maximum operations in a JSON patch is \
         {MAX_OPERATIONS}, got {0}"
    )]
    TooManyOperations(usize),
    #[error("Request entity too large: {0}")]
    TooLarge(TooLarge),
    /// The patch does not fit this object. Clients get no further details.
    #[error("the server rejected our request due to an error in our request")]
    DoesNotApply(String),
}

impl PatchError {
    /// The HTTP status of the response.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            PatchError::NotJson | PatchError::Malformed(_) => 400,
            PatchError::TooManyOperations(_) | PatchError::TooLarge(_) => 413,
            PatchError::DoesNotApply(_) => 422,
        }
    }

    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            PatchError::NotJson | PatchError::Malformed(_) => "BadRequest",
            PatchError::TooManyOperations(_) | PatchError::TooLarge(_) => "RequestEntityTooLarge",
            PatchError::DoesNotApply(_) => "Invalid",
        }
    }
}

/// Returns the name that Go's decoder has for the type of a value.
fn json_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests;
