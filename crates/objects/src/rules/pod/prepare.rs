//! Prepares pods: removes what a request may not set, sets status and generation, and restores what
//! a subresource does not write.

use std::collections::{HashMap, VecDeque};

use serde_json::{Map, Value, json};

use super::super::{RuleContext, Subresource, meta};
use super::{annotations, disabled, equality};
use crate::pod::resources::PodResources;

/// The grace period that replaces negative ones.
const LEAST_GRACE_SECONDS: i64 = 1;

/// Returns warnings about what is removed.
pub(super) fn create(pod: &mut Value, ctx: &RuleContext<'_>) -> Vec<String> {
    if let Some(meta) = meta::metadata_mut(pod) {
        meta.insert("generation".to_owned(), 1.into());
    }
    drop_fields(pod.get_mut("spec"), &Value::Null);
    let class = PodResources::of_spec(&pod["spec"]).qos_class().as_str();
    let mut status = json!({"phase": "Pending", "qosClass": class});
    let gated = pod["spec"].get("schedulingGates").and_then(Value::as_array);
    if gated.is_some_and(|gates| !gates.is_empty()) {
        status["conditions"] = json!([{
            "type": "PodScheduled",
            "status": "False",
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
            "lastProbeTime": null,
            "lastTransitionTime": ctx.now.to_seconds_text(),
        }]);
    }
    if let Some(pod) = pod.as_object_mut() {
        pod.insert("status".to_owned(), status);
    }
    merge_label_keys(pod);
    annotations::copy_app_armor(pod)
}

pub(super) fn update(pod: &mut Value, old: &Value, subresource: Subresource) {
    match subresource {
        Subresource::Main | Subresource::Finalize => {
            put(pod, "status", &old["status"]);
        }
        Subresource::Status => {
            put(pod, "spec", &old["spec"]);
            prepare_status(pod, old);
            return;
        }
        Subresource::EphemeralContainers => {
            let added = pod["spec"].get("ephemeralContainers").cloned();
            put(pod, "spec", &old["spec"]);
            put(pod, "status", &old["status"]);
            meta::keep_old(pod, old);
            if let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) {
                set_or_remove(spec, "ephemeralContainers", added);
            }
        }
        Subresource::Resize => prepare_resize(pod, old),
    }
    drop_fields(pod.get_mut("spec"), &old["spec"]);
    if !equality::same(&pod["spec"], &old["spec"]) {
        meta::bump_generation(pod);
    }
}

/// Removes disabled fields from a template; `old` is the stored one on update, else null.
pub fn drop_template_fields(template: &mut Value, old: &Value) {
    drop_fields(template.get_mut("spec"), &old["spec"]);
}

/// Removes disabled fields, and replaces negative grace periods.
fn drop_fields(spec: Option<&mut Value>, old: &Value) {
    let Some(spec) = spec.and_then(Value::as_object_mut) else { return };
    disabled::drop_from(spec, old);
    if let Some(grace) = spec.get_mut("terminationGracePeriodSeconds")
        && grace.as_i64().is_some_and(|seconds| seconds < 0)
    {
        *grace = LEAST_GRACE_SECONDS.into();
    }
}

fn put(object: &mut Value, field: &str, value: &Value) {
    if let Some(object) = object.as_object_mut() {
        set_or_remove(object, field, (!value.is_null()).then(|| value.clone()));
    }
}

fn set_or_remove(object: &mut Map<String, Value>, field: &str, value: Option<Value>) {
    match value {
        Some(value) => {
            object.insert(field.to_owned(), value);
        }
        None => {
            object.remove(field);
        }
    }
}

/// Restores everything but resources and resize policies. If containers were added, removed or
/// renamed nothing is restored, so that validation reports it.
fn prepare_resize(pod: &mut Value, old: &Value) {
    let lists = ["containers", "initContainers"];
    let names = |pod: &Value, list: &str| -> Vec<String> {
        let items = pod["spec"].get(list).and_then(Value::as_array).into_iter().flatten();
        items.map(|c| c["name"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let len = |pod: &Value, list: &str| {
        pod["spec"].get(list).and_then(Value::as_array).map_or(0, Vec::len)
    };
    if lists.iter().any(|list| len(pod, list) != len(old, list)) {
        return;
    }
    let mut spec = old["spec"].clone();
    let Some(fields) = spec.as_object_mut() else { return };
    for list in lists {
        if len(pod, list) == 0 {
            continue;
        }
        if names(pod, list) != names(old, list) {
            fields.insert(list.to_owned(), pod["spec"][list].clone());
            continue;
        }
        let containers = fields.get_mut(list).and_then(Value::as_array_mut);
        for (at, container) in containers.into_iter().flatten().enumerate() {
            let Some(container) = container.as_object_mut() else { continue };
            for field in ["resources", "resizePolicy"] {
                set_or_remove(container, field, pod["spec"][list][at].get(field).cloned());
            }
        }
    }
    set_or_remove(fields, "resources", pod["spec"].get("resources").cloned());
    put(pod, "spec", &spec);
    put(pod, "status", &old["status"]);
    meta::keep_old(pod, old);
}

fn prepare_status(pod: &mut Value, old: &Value) {
    if let Some(meta) = meta::metadata_mut(pod) {
        let old = &old["metadata"];
        for field in ["deletionTimestamp", "ownerReferences"] {
            set_or_remove(meta, field, old.get(field).cloned());
        }
    }
    let Some(status) = pod.get_mut("status").and_then(Value::as_object_mut) else { return };
    let old_status = &old["status"];
    for field in ["qosClass", "observedGeneration"] {
        if !status.contains_key(field)
            && let Some(value) = old_status.get(field)
        {
            status.insert(field.to_owned(), value.clone());
        }
    }
    keep_observed_generations(status, old_status);
}

/// A condition without a generation keeps that of the stored condition of its type. Of several
/// conditions of one type, the first takes that of the first.
fn keep_observed_generations(status: &mut Map<String, Value>, old: &Value) {
    let mut before: HashMap<&Value, VecDeque<&Value>> = HashMap::new();
    for old in old.get("conditions").and_then(Value::as_array).into_iter().flatten() {
        before.entry(&old["type"]).or_default().push_back(old);
    }
    let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        let of_type = before.get_mut(&condition["type"]);
        let Some(found) = of_type.and_then(VecDeque::pop_front) else { continue };
        if let Some(condition) = condition.as_object_mut()
            && !condition.contains_key("observedGeneration")
            && let Some(generation) = found.get("observedGeneration")
        {
            condition.insert("observedGeneration".to_owned(), generation.clone());
        }
    }
}

/// Converts `matchLabelKeys` and `mismatchLabelKeys` to conditions on the values of this pod's
/// labels.
fn merge_label_keys(pod: &mut Value) {
    let uses = |term: &Value| {
        term.get("matchLabelKeys").is_some() || term.get("mismatchLabelKeys").is_some()
    };
    let spec = &pod["spec"];
    let affinity = ["podAffinity", "podAntiAffinity"].into_iter().any(|kind| {
        let of_kind = spec.get("affinity").and_then(|affinity| affinity.get(kind));
        of_kind.is_some_and(|of_kind| {
            let terms =
                |field: &str| of_kind.get(field).and_then(Value::as_array).into_iter().flatten();
            terms(REQUIRED).any(uses) || terms(PREFERRED).any(|t| uses(&t["podAffinityTerm"]))
        })
    });
    let spread = spec.get("topologySpreadConstraints").and_then(Value::as_array);
    if !affinity && !spread.is_some_and(|constraints| constraints.iter().any(uses)) {
        return;
    }
    let labels = pod["metadata"].get("labels").cloned().unwrap_or_default();
    let Some(spec) = pod.get_mut("spec") else { return };
    for kind in ["podAffinity", "podAntiAffinity"] {
        let Some(of_kind) = spec.get_mut("affinity").and_then(|a| a.get_mut(kind)) else {
            continue;
        };
        for term in array(of_kind, PREFERRED) {
            if let Some(term) = term.get_mut("podAffinityTerm") {
                add_label_conditions(term, &labels);
            }
        }
        for term in array(of_kind, REQUIRED) {
            add_label_conditions(term, &labels);
        }
    }
    for constraint in array(spec, "topologySpreadConstraints") {
        add_label_conditions(constraint, &labels);
    }
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

fn array<'a>(value: &'a mut Value, field: &str) -> impl Iterator<Item = &'a mut Value> {
    value.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten()
}

fn add_label_conditions(term: &mut Value, labels: &Value) {
    let mut added = Vec::new();
    for (field, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
        for key in term.get(field).and_then(Value::as_array).into_iter().flatten() {
            let key = key.as_str().unwrap_or_default();
            if let Some(value) = labels.get(key) {
                added.push(json!({"key": key, "operator": operator, "values": [value]}));
            }
        }
    }
    if added.is_empty() {
        return;
    }
    let selector = term.get_mut("labelSelector").and_then(Value::as_object_mut);
    let Some(selector) = selector else { return };
    let expressions = selector.entry("matchExpressions").or_insert_with(|| json!([]));
    if let Some(expressions) = expressions.as_array_mut() {
        expressions.extend(added);
    }
}
