//! Resource lists and amounts of canonical values, for rules that look at single entries.
//!
//! What a pod needs as a whole is computed by [`crate::pod::resources`]; whether amounts are valid is
//! checked in [`super::resources`].

use serde_json::{Map, Value};

use crate::pod::resources::Side;
use crate::quantity::Quantity;

/// Returns an amount of a canonical value; zero if it is not an amount.
pub(super) fn quantity(value: &Value) -> Quantity {
    value.as_str().and_then(|text| Quantity::parse(text).ok()).unwrap_or_default()
}

/// Returns `resources.requests` or `resources.limits`.
pub(super) fn list(resources: &Value, side: Side) -> Option<&Map<String, Value>> {
    resources.get(side.field())?.as_object()
}
