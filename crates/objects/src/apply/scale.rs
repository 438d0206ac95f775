//! Managers of the scale subresource: translates the owners of a workload's `spec.replicas` to
//! owners of the same field of its Scale object, and back.

use serde_json::Value;

use super::entries::{self, Entry, Operation};
use super::set::FieldSet;

const SCALE_VERSION: &str = "autoscaling/v1";
const REPLICAS: &[&str] = &["f:spec", "f:replicas"];

/// The `managedFields` of the Scale object of a workload.
#[must_use]
pub fn to_scale(workload: &Value) -> Value {
    let owners = entries::read_own(Some(workload)).into_iter();
    let owners = owners.filter(|entry| entry.fields.has(REPLICAS)).map(|entry| Entry {
        api_version: SCALE_VERSION.to_owned(),
        fields: FieldSet::of(REPLICAS),
        ..entry
    });
    entries::written(owners.collect())
}

/// The `managedFields` of a workload after a write to its Scale object, given the workload before
/// and the Scale object after. The new owner of the replicas has no time, as upstream.
#[must_use]
pub fn to_workload(workload: &Value, scale: &Value, api_version: &str) -> Value {
    let mut scaled = entries::read_own(Some(scale));
    let mut merged = Vec::new();
    for mut entry in entries::read_own(Some(workload)) {
        if !entry.fields.has(REPLICAS) {
            merged.push(entry);
            continue;
        }
        let kept = scaled.iter().position(|other| {
            other.manager == entry.manager
                && other.operation == entry.operation
                && other.subresource == entry.subresource
                && other.fields.has(REPLICAS)
                && (entry.operation == Operation::Apply || other.time == entry.time)
        });
        match kept {
            Some(at) => {
                scaled.remove(at);
            }
            None => entry.fields.subtract(&FieldSet::of(REPLICAS)),
        }
        if !entry.fields.is_empty() {
            merged.push(entry);
        }
    }
    let owners = scaled.into_iter().filter(|entry| entry.fields.has(REPLICAS));
    merged.extend(owners.map(|entry| Entry {
        api_version: api_version.to_owned(),
        time: None,
        fields: FieldSet::of(REPLICAS),
        ..entry
    }));
    entries::written(merged)
}
