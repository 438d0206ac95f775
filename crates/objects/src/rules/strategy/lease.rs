//! Leases: durations and counters. Coordinated leader election, which upstream has behind a gate
//! that is off, is not supported: its fields are dropped.

use serde_json::Value;

use super::super::checks::non_negative;
use crate::cursor::{Causes, Cursor};

pub(super) fn prepare(lease: &mut Value, old: Option<&Value>) {
    let Some(spec) = lease.get_mut("spec").and_then(Value::as_object_mut) else { return };
    for field in ["strategy", "preferredHolder"] {
        if old.is_none_or(|old| old["spec"].get(field).is_none()) {
            spec.remove(field);
        }
    }
}

pub(super) fn validate(lease: &Cursor<'_>, causes: &mut Causes) {
    let spec = lease.field("spec");
    let duration = spec.field("leaseDurationSeconds");
    if duration.int().is_some_and(|seconds| seconds <= 0) {
        causes.invalid(&duration, "must be greater than 0");
    }
    non_negative(&spec.field("leaseTransitions"), causes);
}
