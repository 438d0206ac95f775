//! Changes of a stored pod: images, tolerations, gates, deadlines and classes through the pod
//! itself; resources through `resize`; ephemeral containers through their subresource.

use std::collections::{BTreeSet, HashMap, HashSet};

use serde_json::{Map, Value};

use super::amounts;
use super::scheduling::{REQUIRED, validate_tolerations};
use super::spec::validate_pod;
use super::{NO_FIELD, Scope, annotations, containers, equality};
use crate::cursor::{BadValue, Causes, Cursor};
use crate::pod::is_sidecar;
use crate::pod::resources::{PodResources, Side};
use crate::resources::{CPU, MEMORY};

const MAY_CHANGE: &str = "pod updates may not change fields other than \
    `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,\
    `spec.tolerations` (only additions to existing tolerations),\
    `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

const ONLY_COMPUTE: &str = "only cpu and memory resources are mutable";

const LISTS: [&str; 2] = ["containers", "initContainers"];

pub(super) fn validate(pod: &Cursor<'_>, old: &Cursor<'_>, scope: Scope, causes: &mut Causes) {
    validate_pod(pod, scope, causes);
    validate_annotations(pod, old, scope, causes);
    let (spec, old_spec) = (pod.field("spec"), old.field("spec"));
    for list in LISTS {
        let (new, old) = (spec.field(list), old_spec.field(list));
        if new.len() != old.len() {
            return causes.forbidden(&new, "pod updates may not add or remove containers");
        }
        for container in new.items() {
            let image = container.field("image");
            if image.text().is_empty() {
                causes.required(&image, "");
            }
            containers::validate_image_of_pod(&container, causes);
        }
    }
    let (deadline, old_deadline) =
        (spec.field("activeDeadlineSeconds"), old_spec.field("activeDeadlineSeconds"));
    match (deadline.int(), old_deadline.int()) {
        (Some(new), _) if !(0..=i64::from(i32::MAX)).contains(&new) => {
            let detail = "must be between 0 and 2147483647, inclusive";
            return causes.invalid(&deadline, detail);
        }
        (Some(new), Some(old)) if old < new => {
            let detail = "must be less than or equal to previous value";
            return causes.invalid(&deadline, detail);
        }
        (None, Some(_)) => {
            let detail = "must not update from a positive integer to nil value";
            causes.invalid(&deadline, detail);
        }
        _ => {}
    }
    validate_added_tolerations(&spec, &old_spec, scope, causes);
    validate_removed_gates(&spec, &old_spec, causes);
    if equality::same(spec.value(), old_spec.value()) {
        return;
    }
    let mut put_back = spec.value().clone();
    put_back_allowed(&mut put_back, old_spec.value());
    if !old_spec.field("schedulingGates").is_empty() {
        validate_gated(&spec, &old_spec, &mut put_back, causes);
    }
    if !equality::same(&put_back, old_spec.value()) {
        let differences = equality::differences(old_spec.value(), &put_back, "spec");
        causes.forbidden(&spec, &format!("{MAY_CHANGE}\n{differences}"));
    }
}

fn validate_annotations(pod: &Cursor<'_>, old: &Cursor<'_>, scope: Scope, causes: &mut Causes) {
    let (meta, old_meta) = (pod.field("metadata"), old.field("metadata"));
    let (new, old) = (meta.field("annotations"), old_meta.field("annotations"));
    annotations::validate_update(&new, &old, &pod.field("spec"), scope, causes);
}

/// Restores everything that may change, for the comparison with the old spec.
fn put_back_allowed(spec: &mut Value, old: &Value) {
    for list in LISTS {
        let old_list = old.get(list).and_then(Value::as_array).map(Vec::as_slice);
        let new_list = spec.get_mut(list).and_then(Value::as_array_mut);
        for (new, old) in new_list.into_iter().flatten().zip(old_list.unwrap_or_default()) {
            if let Some(container) = new.as_object_mut() {
                copy(container, old, "image");
            }
            put_back_classes(new, old);
        }
    }
    let Some(spec) = spec.as_object_mut() else { return };
    for field in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        copy(spec, old, field);
    }
    let grace = "terminationGracePeriodSeconds";
    if old.get(grace).and_then(Value::as_i64).is_some_and(|seconds| seconds < 0)
        && spec.get(grace).and_then(Value::as_i64) == Some(1)
    {
        copy(spec, old, grace);
    }
}

/// Restores the classes of a container, which may change; whether the node can apply that is
/// checked elsewhere.
fn put_back_classes(container: &mut Value, old: &Value) {
    let Some(resources) = container.get_mut("resources").and_then(Value::as_object_mut) else {
        return;
    };
    copy(resources, &old["resources"], "qosResources");
}

fn copy(object: &mut Map<String, Value>, from: &Value, field: &str) {
    match from.get(field) {
        Some(value) => {
            object.insert(field.to_owned(), value.clone());
        }
        None => {
            object.remove(field);
        }
    }
}

/// Returns the part of a toleration that may not change.
fn fixed_part(toleration: &Value) -> [&str; 4] {
    ["key", "operator", "value", "effect"]
        .map(|field| toleration.get(field).and_then(Value::as_str).unwrap_or_default())
}

fn validate_added_tolerations(
    spec: &Cursor<'_>,
    old: &Cursor<'_>,
    scope: Scope,
    causes: &mut Causes,
) {
    let (tolerations, old) = (spec.field("tolerations"), old.field("tolerations"));
    let now: HashSet<_> = tolerations.items().map(|new| fixed_part(new.value())).collect();
    if !old.items().all(|old| now.contains(&fixed_part(old.value()))) {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        return causes.forbidden(&tolerations, detail);
    }
    validate_tolerations(&tolerations, scope.comparing_tolerations, causes);
}

fn validate_removed_gates(spec: &Cursor<'_>, old: &Cursor<'_>, causes: &mut Causes) {
    let (gates, old) = (spec.field("schedulingGates"), old.field("schedulingGates"));
    let before: BTreeSet<&str> = old.items().map(|gate| gate.field("name").text()).collect();
    for gate in gates.items() {
        let name = gate.field("name");
        if !before.contains(name.text()) {
            let detail = format!(
                "only deletion is allowed, but found new scheduling gate '{}'",
                name.text()
            );
            causes.forbidden(&name, &detail);
        }
    }
}

/// Until a pod is released for scheduling, its node selection can be narrowed.
fn validate_gated(spec: &Cursor<'_>, old: &Cursor<'_>, put_back: &mut Value, causes: &mut Causes) {
    let (selector, old_selector) = (spec.field("nodeSelector"), old.field("nodeSelector"));
    if selector.value() != old_selector.value() {
        if old_selector.entries().any(|(key, value)| selector.key(key).value() != value.value()) {
            let detail =
                "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
            causes.invalid(&selector, detail);
        }
        if let Some(spec) = put_back.as_object_mut() {
            copy(spec, old.value(), "nodeSelector");
        }
    }
    let (affinity, old_affinity) = (spec.field("affinity"), old.field("affinity"));
    let (node, old_node) = (affinity.field("nodeAffinity"), old_affinity.field("nodeAffinity"));
    if node.value() == old_node.value() {
        return;
    }
    validate_gated_affinity(&node, &old_node, causes);
    let Some(spec) = put_back.as_object_mut() else { return };
    let others = ["podAffinity", "podAntiAffinity"];
    match spec.get_mut("affinity").and_then(Value::as_object_mut) {
        None if old_node.is_set() => {
            let affinity = serde_json::json!({"nodeAffinity": old_node.value()});
            spec.insert("affinity".to_owned(), affinity);
        }
        None => {}
        Some(affinity)
            if !old_affinity.is_set()
                && others.iter().all(|kind| !affinity.contains_key(*kind)) =>
        {
            spec.remove("affinity");
        }
        Some(affinity) => copy(affinity, old_affinity.value(), "nodeAffinity"),
    }
}

fn validate_gated_affinity(node: &Cursor<'_>, old: &Cursor<'_>, causes: &mut Causes) {
    let old_required = old.field(REQUIRED);
    if !old_required.is_set() {
        return;
    }
    let required = node.field(REQUIRED);
    let (terms, old_terms) =
        (required.field("nodeSelectorTerms"), old_required.field("nodeSelectorTerms"));
    if !old_terms.is_empty() && old_terms.len() != terms.len() {
        let detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        let shown = match terms.value() {
            Value::Array(terms) => render_list(terms, render_term),
            _ => "null".to_owned(),
        };
        return causes.invalid_as(&terms, BadValue::literal(shown), detail);
    }
    for (term, old) in terms.items().zip(old_terms.items()) {
        if !only_adds(&term, &old) {
            let detail = "only additions are allowed (no mutations or deletions)";
            causes.invalid_as(&term, BadValue::literal(render_term(term.value())), detail);
        }
    }
}

fn render_list(items: &[Value], shown: fn(&Value) -> String) -> String {
    format!("[{}]", items.iter().map(shown).collect::<Vec<_>>().join(","))
}

/// Renders a term as upstream's messages do: every field, with its Go name.
fn render_term(term: &Value) -> String {
    let shown = |field: &str, none: &str| match term.get(field).and_then(Value::as_array) {
        Some(conditions) => render_list(conditions, render_condition),
        None => none.to_owned(),
    };
    let (expressions, fields) = (shown("matchExpressions", "[]"), shown("matchFields", "null"));
    format!("{{\"MatchExpressions\":{expressions},\"MatchFields\":{fields}}}")
}

fn render_condition(condition: &Value) -> String {
    let text = |field: &str| Value::from(condition[field].as_str().unwrap_or_default());
    let (key, operator, values) = (text("key"), text("operator"), &condition["values"]);
    format!("{{\"Key\":{key},\"Operator\":{operator},\"Values\":{values}}}")
}

fn only_adds(term: &Cursor<'_>, old: &Cursor<'_>) -> bool {
    const KINDS: [&str; 2] = ["matchExpressions", "matchFields"];
    // A term without conditions matches no node; with one it would match some.
    if KINDS.iter().all(|kind| old.field(kind).is_empty())
        && KINDS.iter().any(|kind| !term.field(kind).is_empty())
    {
        return false;
    }
    KINDS.iter().all(|kind| {
        let (new, old) = (term.field(kind), old.field(kind));
        new.len() >= old.len() && new.items().zip(old.items()).all(|(n, o)| n.value() == o.value())
    })
}

pub(super) fn validate_ephemeral_containers(
    pod: &Cursor<'_>,
    old: &Cursor<'_>,
    scope: Scope,
    causes: &mut Causes,
) {
    validate_pod(pod, scope, causes);
    validate_annotations(pod, old, scope, causes);
    if annotations::is_mirror(old.value()) {
        return only(causes, "static pods do not support ephemeral containers");
    }
    let (spec, old_spec) = (pod.field("spec"), old.field("spec"));
    let (new, before) = (spec.field("ephemeralContainers"), old_spec.field("ephemeralContainers"));
    let mut by_name = HashMap::with_capacity(new.len());
    for container in new.items() {
        by_name.entry(container.field("name").text()).or_insert(container);
    }
    for old in before.items() {
        let name = old.field("name").text();
        let shown = crate::go::quoted(name);
        match by_name.get(name) {
            None => {
                let detail = format!("existing ephemeral containers {shown} may not be removed\n");
                causes.forbidden(&new, &detail);
            }
            Some(container) if !equality::same(container.value(), old.value()) => {
                let differences =
                    equality::differences(old.value(), container.value(), &container.path());
                let detail = format!(
                    "existing ephemeral containers {shown} may not be changed\n{differences}"
                );
                causes.forbidden(&new, &detail);
            }
            Some(_) => {}
        }
    }
}

/// Rejects the whole request and drops all other causes.
fn only(causes: &mut Causes, detail: &str) {
    causes.clear();
    causes.add("FieldValueForbidden", NO_FIELD, format!("Forbidden: {detail}"));
}

pub(super) fn validate_resize(
    pod: &Cursor<'_>,
    old: &Cursor<'_>,
    scope: Scope,
    causes: &mut Causes,
) {
    validate_pod(pod, scope, causes);
    if annotations::is_mirror(old.value()) {
        return only(causes, "static pods cannot be resized");
    }
    let (spec, old_spec) = (pod.field("spec"), old.field("spec"));
    if old_spec.field("os").field("name").text() == "windows" {
        return only(causes, "windows pods cannot be resized");
    }
    let status = old.field("status");
    let class = match status.field("qosClass").text() {
        "" => PodResources::of_spec(old_spec.value()).qos_class().as_str(),
        class => class,
    };
    if class != PodResources::of_spec(spec.value()).qos_class().as_str() {
        let shown = pod.field("status");
        let detail = "Pod QOS Class may not change as a result of resizing";
        causes.invalid_as(&spec, shown.field("qosClass").text(), detail);
    }
    if !is_resize_supported(&status) {
        causes.forbidden(&spec, "Pod running on node without support for resize");
    }
    let mut put_back = spec.value().clone();
    put_back_resources(&mut put_back, old_spec.value());
    validate_pod_level_resize(&spec, &old_spec, &put_back, causes);
    if !status.field("nodeAllocatableResourceClaimStatuses").is_empty() {
        let detail = "pods with node allocatable resource claims cannot be resized";
        causes.forbidden(&spec, detail);
    }
    if !validate_same_containers(&spec, &old_spec, causes) {
        return;
    }
    for list in ["initContainers", "containers"] {
        let (new, old) = (spec.field(list), old_spec.field(list));
        for (new, old) in new.items().zip(old.items()) {
            validate_nothing_removed(&new.field("resources"), &old.field("resources"), causes);
        }
    }
    let compared = put_back.get("containers").and_then(Value::as_array).into_iter().flatten();
    for (new, old) in compared.zip(old_spec.field("containers").items()) {
        if !equality::same(new, old.value()) {
            causes.forbidden(&spec, ONLY_COMPUTE);
        }
    }
    validate_init_resize(&spec, &old_spec, &put_back, causes);
    if causes.is_empty() && !equality::same(&put_back, old_spec.value()) {
        causes.forbidden(&spec, ONLY_COMPUTE);
    }
}

fn validate_init_resize(
    spec: &Cursor<'_>,
    old: &Cursor<'_>,
    put_back: &Value,
    causes: &mut Causes,
) {
    let (new, old) = (spec.field("initContainers"), old.field("initContainers"));
    let compared = put_back.get("initContainers").and_then(Value::as_array).into_iter().flatten();
    for ((container, old), put_back) in new.items().zip(old.items()).zip(compared) {
        if !equality::same(put_back, old.value()) {
            let detail = "only cpu and memory resources for init or sidecar containers are mutable";
            causes.forbidden(&container, detail);
        }
        let policies = container.field("resizePolicy");
        let restarts =
            policies.items().any(|p| p.field("restartPolicy").text() == "RestartContainer");
        let changed = !equality::same(container.value(), old.value());
        if changed && restarts && !is_sidecar(container.value()) {
            let detail = "non-sidecar init containers with a resize policy of RestartContainer \
                          cannot be resized";
            causes.forbidden(&container, detail);
        }
    }
}

fn validate_pod_level_resize(
    spec: &Cursor<'_>,
    old: &Cursor<'_>,
    put_back: &Value,
    causes: &mut Causes,
) {
    let (resources, old_resources) = (spec.field("resources"), old.field("resources"));
    if old_resources.is_set() && !resources.is_set() {
        return causes.forbidden(&resources, "pod-level resources cannot be removed");
    }
    for side in ["requests", "limits"] {
        let (new, old) = (resources.field(side), old_resources.field(side));
        if old.entries().any(|(name, _)| !new.key(name).is_set()) {
            causes.forbidden(&new, &format!("pod-level resource {side} cannot be removed"));
        }
    }
    let after = put_back.get("resources").unwrap_or(&Value::Null);
    if !equality::same(after, old_resources.value()) {
        causes.forbidden(spec, "only cpu and memory resources are mutable at pod-level");
    }
}

/// Reports whether the node supports resize: such a node reports the resources of running
/// containers.
fn is_resize_supported(status: &Cursor<'_>) -> bool {
    let statuses = status.field("containerStatuses");
    let running =
        statuses.items().find(|container| container.field("state").field("running").is_set());
    running.is_none_or(|container| container.field("resources").is_set())
}

fn validate_same_containers(spec: &Cursor<'_>, old: &Cursor<'_>, causes: &mut Causes) -> bool {
    let before = causes.0.len();
    for list in LISTS {
        let (new, old) = (spec.field(list), old.field(list));
        if new.len() != old.len() {
            let detail = format!("{list} may not be added or removed on resize");
            causes.forbidden(&new, &detail);
            continue;
        }
        for (new, old) in new.items().zip(old.items()) {
            if new.field("name").text() != old.field("name").text() {
                let detail = format!("{list} may not be renamed or reordered on resize");
                causes.forbidden(&new.field("name"), &detail);
            }
        }
    }
    causes.0.len() == before
}

fn validate_nothing_removed(resources: &Cursor<'_>, old: &Cursor<'_>, causes: &mut Causes) {
    for side in ["requests", "limits"] {
        let (new, old) = (resources.field(side), old.field(side));
        if old.entries().any(|(name, _)| !new.key(name).is_set()) {
            causes.forbidden(&new, &format!("resource {side} cannot be removed"));
        }
    }
}

/// Restores what a resize may change: CPU, memory and classes of containers, and the pod's own
/// resources. Claims are removed, as upstream does: a container with claims then differs from the
/// old one, and is not resized.
fn put_back_resources(spec: &mut Value, old: &Value) {
    for list in LISTS {
        let old_list = old.get(list).and_then(Value::as_array).map(Vec::as_slice);
        let new_list = spec.get_mut(list).and_then(Value::as_array_mut);
        for (new, old) in new_list.into_iter().flatten().zip(old_list.unwrap_or_default()) {
            put_back_compute(new, old);
            put_back_classes(new, old);
            if let Some(resources) = new.get_mut("resources").and_then(Value::as_object_mut) {
                resources.remove("claims");
            }
        }
    }
    let Some(spec) = spec.as_object_mut().filter(|spec| spec.contains_key("resources")) else {
        return;
    };
    let mut holder = serde_json::json!({"resources": spec["resources"].take()});
    put_back_compute(&mut holder, old);
    let resources = holder["resources"].take();
    // A pod without resources of its own can get some.
    if old.get("resources").is_none() && resources.as_object().is_some_and(Map::is_empty) {
        spec.remove("resources");
    } else {
        spec.insert("resources".to_owned(), resources);
    }
}

fn put_back_compute(holder: &mut Value, old: &Value) {
    let Some(resources) = holder.get_mut("resources").and_then(Value::as_object_mut) else {
        return;
    };
    for side in [Side::Requests, Side::Limits] {
        let before = amounts::list(&old["resources"], side);
        let field = side.field();
        let mut list = resources.get(field).and_then(Value::as_object).cloned().unwrap_or_default();
        for name in [CPU, MEMORY] {
            match before.and_then(|before| before.get(name)) {
                Some(amount) => {
                    list.insert(name.to_owned(), amount.clone());
                }
                None => {
                    list.remove(name);
                }
            }
        }
        if list.is_empty() {
            resources.remove(field);
        } else {
            resources.insert(field.to_owned(), Value::Object(list));
        }
    }
}
