//! Patches from the Node object in the API to the wanted one: [`of_status`] and [`of_metadata`], or nothing.
//!
//! A patch has only the differences, so that conditions, labels, annotations and extended resources of other writers
//! are kept.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::list;
use super::object::OWN_LABELS;

/// Returns a strategic merge patch for the status of a Node. A heartbeat alone is not a difference;
/// `anyway` writes the conditions for it.
pub(super) fn of_status(has: &Value, wanted: &Value, anyway: bool) -> Option<Value> {
    let mut patch = Map::new();
    let wanted = &with_extended_resources(has, wanted);
    for (field, wanted) in wanted.as_object().into_iter().flatten() {
        let has = &has[field];
        let changed = match field.as_str() {
            "conditions" if anyway || conditions_differ(has, wanted) => Some(wanted.clone()),
            "conditions" => None,
            _ if has == wanted => None,
            "capacity" | "allocatable" => Some(amounts(has, wanted)),
            // Lists that are merged by key would keep entries that are gone.
            "addresses" => {
                let mut all = vec![json!({"$patch": "replace"})];
                all.extend_from_slice(list(wanted));
                Some(Value::Array(all))
            }
            "qosResources" => {
                let mut whole = wanted.clone();
                whole["$patch"] = "replace".into();
                Some(whole)
            }
            _ => Some(wanted.clone()),
        };
        patch.extend(changed.map(|changed| (field.clone(), changed)));
    }
    // Fields that a runtime no longer reports are removed.
    for field in ["runtimeHandlers", "features", "qosResources", "declaredFeatures"] {
        if !has[field].is_null() && wanted[field].is_null() {
            patch.insert(field.to_owned(), Value::Null);
        }
    }
    (!patch.is_empty()).then(|| json!({"status": patch}))
}

fn conditions_differ(has: &Value, wanted: &Value) -> bool {
    list(wanted).iter().any(|wanted| {
        let has = list(has).iter().find(|has| has["type"] == wanted["type"]);
        has.is_none_or(|has| {
            ["status", "reason", "message"].iter().any(|field| has[*field] != wanted[*field])
        })
    })
}

/// Returns a status that keeps the extended resources of other writers, as upstream does: their capacity
/// is unchanged and all of it is allocatable. A resource that is only allocatable is removed.
fn with_extended_resources(has: &Value, wanted: &Value) -> Value {
    let mut all = wanted.clone();
    for (name, amount) in has["capacity"].as_object().into_iter().flatten() {
        if name.contains('/')
            && wanted["capacity"].is_object()
            && wanted["capacity"][name].is_null()
        {
            all["capacity"][name] = amount.clone();
            all["allocatable"][name] = amount.clone();
        }
    }
    all
}

/// Returns the amounts that change. Amounts that are gone, such as huge pages of a size that the kernel
/// no longer has, are null.
fn amounts(has: &Value, wanted: &Value) -> Value {
    let mut patch = Map::new();
    for (name, amount) in wanted.as_object().into_iter().flatten() {
        if has[name] != *amount {
            patch.insert(name.clone(), amount.clone());
        }
    }
    for (name, _) in has.as_object().into_iter().flatten() {
        if wanted[name].is_null() {
            patch.insert(name.clone(), Value::Null);
        }
    }
    patch.into()
}

/// Returns a merge patch for labels and annotations.
pub(super) fn of_metadata(
    has: &Value,
    labels: &BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
) -> Option<Value> {
    let mut changed_labels = Map::new();
    for name in OWN_LABELS {
        let (has, wanted) = (has["labels"][name].as_str(), labels.get(name).map(String::as_str));
        if has != wanted {
            changed_labels.insert(name.to_owned(), wanted.into());
        }
    }
    let differs = |(name, value): &(&String, &String)| {
        has["annotations"][name.as_str()].as_str() != Some(value.as_str())
    };
    let changed = annotations.iter().filter(differs);
    let changed: Map<String, Value> =
        changed.map(|(name, value)| (name.clone(), value.clone().into())).collect();
    let mut metadata = Map::new();
    for (field, map) in [("labels", changed_labels), ("annotations", changed)] {
        if !map.is_empty() {
            metadata.insert(field.to_owned(), map.into());
        }
    }
    (!metadata.is_empty()).then(|| json!({"metadata": metadata}))
}
