//! The last-applied annotation of client-side apply, for `kubectl` when it changes to server-side
//! apply: the annotation resolves conflicts over fields that client-side apply set, and is kept up
//! to date.

use serde_json::{Map, Value};

use super::FieldManager;
use super::set::FieldSet;
use super::walk::Walker;
use crate::schema::TypeId;

/// The only manager with this behaviour.
pub(super) const KUBECTL: &str = "kubectl";

const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The limit on the size of all annotations of an object.
const MAX_ANNOTATIONS: usize = 256 << 10;

fn annotation(object: &Value) -> Option<&str> {
    let text = object.get("metadata")?.get("annotations")?.get(ANNOTATION)?.as_str()?;
    Some(text).filter(|text| !text.is_empty())
}

/// Returns the fields that client-side apply set and that have not changed since.
pub(super) fn allowed(
    walker: Walker<'_>,
    id: TypeId,
    live: &Value,
    by: &FieldManager<'_>,
) -> Option<FieldSet> {
    let last: Value = serde_json::from_str(annotation(live)?).ok()?;
    if last.get("apiVersion").and_then(Value::as_str) != Some(by.api_version) {
        return None;
    }
    walker.check(id, &last).ok()?;
    let mut fields = walker.claimed_with_bookkeeping(id, &last);
    let difference = walker.compare_all(id, &last, live);
    fields.subtract(&difference.changed);
    fields.subtract(&difference.removed);
    Some(fields)
}

/// Sets the annotation to the applied object, if there is one.
pub(super) fn renew(merged: &mut Value, applied: &Value) {
    if annotation(merged).is_none() {
        return;
    }
    let mut applied = applied.clone();
    let metadata = applied.get_mut("metadata").and_then(|metadata| metadata.get_mut("annotations"));
    if let Some(annotations) = metadata.and_then(Value::as_object_mut) {
        annotations.remove(ANNOTATION);
    }
    let text = format!("{applied}\n");
    let annotations =
        merged.get_mut("metadata").and_then(|metadata| metadata.get_mut("annotations"));
    let Some(annotations) = annotations.and_then(Value::as_object_mut) else { return };
    annotations.insert(ANNOTATION.to_owned(), Value::String(text));
    if size(annotations) > MAX_ANNOTATIONS {
        annotations.remove(ANNOTATION);
    }
}

fn size(annotations: &Map<String, Value>) -> usize {
    let size = |(key, value): (&String, &Value)| key.len() + value.as_str().map_or(0, str::len);
    annotations.iter().map(size).sum()
}
