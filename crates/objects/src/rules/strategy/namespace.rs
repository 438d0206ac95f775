//! Namespaces: the label with their name, the finalizer that keeps them until they are empty, the
//! phase during deletion.

use serde_json::Value;

use super::super::checks::{keep, part_mut};
use super::super::meta::metadata_mut;
use super::super::{Subresource, names};
use crate::cursor::{Causes, Cursor};

const NAME_LABEL: &str = "kubernetes.io/metadata.name";
const FINALIZER: &str = "kubernetes";
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];

/// Adds the label with the namespace's name.
pub(super) fn set_defaults(namespace: &mut Value) {
    let name = namespace["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    if name.is_empty() {
        return;
    }
    if let Some(meta) = metadata_mut(namespace) {
        let labels = meta.entry("labels").or_insert_with(|| Value::Object(serde_json::Map::new()));
        if !labels.is_object() {
            *labels = Value::Object(serde_json::Map::new());
        }
        if let Some(labels) = labels.as_object_mut() {
            labels.insert(NAME_LABEL.to_owned(), name.into());
        }
    }
}

pub(super) fn prepare_create(namespace: &mut Value) {
    // The name may have been generated after the defaults were set.
    set_defaults(namespace);
    if let Some(status) = part_mut(namespace, "status") {
        status.clear();
        status.insert("phase".to_owned(), "Active".into());
    }
    let Some(spec) = part_mut(namespace, "spec") else { return };
    let finalizers = spec.entry("finalizers").or_insert(Value::Null);
    match finalizers.as_array_mut() {
        Some(list) if list.iter().any(|f| f == FINALIZER) => {}
        Some(list) => list.push(FINALIZER.into()),
        None => *finalizers = Value::Array(vec![FINALIZER.into()]),
    }
}

pub(super) fn prepare_update(namespace: &mut Value, old: &Value, subresource: Subresource) {
    match subresource {
        Subresource::Status => {}
        Subresource::Finalize => keep(namespace, old, "status"),
        _ => {
            if let Some(spec) = part_mut(namespace, "spec") {
                match old["spec"].get("finalizers") {
                    Some(finalizers) => {
                        spec.insert("finalizers".to_owned(), finalizers.clone());
                    }
                    None => {
                        spec.remove("finalizers");
                    }
                }
            }
        }
    }
}

pub(super) fn validate(namespace: &Cursor<'_>, causes: &mut Causes) {
    let spec = namespace.field("spec");
    let finalizers = spec.field("finalizers");
    for finalizer in finalizers.items() {
        validate_finalizer(&finalizers, finalizer.text(), causes);
    }
}

fn validate_finalizer(at: &Cursor<'_>, name: &str, causes: &mut Causes) {
    names::report_as(causes, at, name, &names::label_key_problems(name));
    if !name.contains('/') && !STANDARD_FINALIZERS.contains(&name) {
        let detail = "name is neither a standard finalizer name nor is it fully qualified";
        causes.invalid_as(at, name, detail);
    }
}

pub(super) fn validate_subresource(
    namespace: &Cursor<'_>,
    subresource: Subresource,
    causes: &mut Causes,
) {
    if subresource == Subresource::Finalize {
        let spec = namespace.field("spec");
        let finalizers = spec.field("finalizers");
        for finalizer in finalizers.items() {
            validate_finalizer(&finalizer, finalizer.text(), causes);
        }
        return;
    }
    let leaving = namespace.field("metadata").field("deletionTimestamp").is_set();
    let status = namespace.field("status");
    let phase = status.field("phase").called("Phase");
    match (leaving, phase.text()) {
        (false, "Active") | (true, "Terminating") => {}
        (false, text) => {
            let detail = "may only be 'Active' if `deletionTimestamp` is empty";
            causes.invalid_as(&phase, text, detail);
        }
        (true, text) => {
            let detail = "may only be 'Terminating' if `deletionTimestamp` is not empty";
            causes.invalid_as(&phase, text, detail);
        }
    }
}
