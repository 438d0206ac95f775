//! The `scale` of a deployment or replica set: desired and current replicas and the selector, in a
//! form that is common to all workloads (`autoscaling/v1`).

use serde_json::{Map, Value, json};

use super::super::checks::{self, NOT_NEGATIVE};
use crate::cursor::{Causes, Cursor};
use crate::selector::LabelSelector;

/// Returns the scale of an object.
#[must_use]
pub fn of(object: &Value) -> Value {
    let mut meta = Map::new();
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object["metadata"].get(field) {
            meta.insert(field.to_owned(), value.clone());
        }
    }
    let mut spec = Map::new();
    if let Some(replicas) = object["spec"]["replicas"].as_i64().filter(|count| *count != 0) {
        spec.insert("replicas".to_owned(), replicas.into());
    }
    let mut status = Map::new();
    status.insert("replicas".to_owned(), object["status"]["replicas"].as_i64().unwrap_or(0).into());
    let selector = LabelSelector::from_value(&object["spec"]["selector"]);
    if let Ok(selector) = selector.map(|selector| selector.to_string())
        && !selector.is_empty()
    {
        status.insert("selector".to_owned(), selector.into());
    }
    json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": meta,
        "spec": spec,
        "status": status,
    })
}

/// Validates a scale that is written.
#[must_use]
pub fn validate(scale: &Value) -> Causes {
    let mut causes = Causes::default();
    let top = Cursor::top(scale, "");
    let spec = top.field("spec");
    let replicas = spec.field("replicas");
    if replicas.int().is_some_and(|count| count < 0) {
        causes.invalid(&replicas, NOT_NEGATIVE);
    }
    causes
}

/// Returns the object with the replicas of a scale. The resource version of the scale, if any, is
/// copied, so that the write is rejected if the object has changed since.
#[must_use]
pub fn apply(object: &Value, scale: &Value) -> Value {
    let mut object = object.clone();
    let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
    if let Some(spec) = checks::part_mut(&mut object, "spec") {
        spec.insert("replicas".to_owned(), replicas.into());
    }
    let version = scale["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    if !version.is_empty()
        && let Some(meta) = checks::part_mut(&mut object, "metadata")
    {
        meta.insert("resourceVersion".to_owned(), version.into());
    }
    object
}
