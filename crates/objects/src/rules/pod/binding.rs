//! Bindings: the request that assigns a pod to a node. The node need not exist.

use serde_json::Value;

use crate::cursor::{Causes, Cursor};

/// Validates a binding.
#[must_use]
pub fn validate_binding(binding: &Value) -> Causes {
    let mut causes = Causes::default();
    let top = Cursor::top(binding, "");
    let target = top.field("target");
    let kind = target.field("kind");
    if !matches!(kind.text(), "" | "Node") {
        causes.not_supported(&kind, &["Node", "<empty>"]);
    }
    let name = target.field("name");
    if name.text().is_empty() {
        causes.required(&name, "");
    }
    causes
}
