//! Annotations with a meaning for pods: mirror pods, deletion cost, and the older annotations of
//! seccomp and AppArmor profiles, which must agree with the fields that replaced them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::security::{app_armor_problems, validate_descending_path};
use super::{Scope, for_each_container};
use crate::cursor::{Causes, Cursor};
pub(super) use crate::pod::MIRROR_ANNOTATION as MIRROR;

const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
pub(super) const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
pub(super) const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
pub(super) const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
/// The message about such an annotation.
pub(super) const USE_THE_FIELD: &str =
    "deprecated since v1.30; use the \"appArmorProfile\" field instead";

const RUNTIME_DEFAULT: &str = "runtime/default";
const DOCKER_DEFAULT: &str = "docker/default";
const UNCONFINED: &str = "unconfined";
const LOCALHOST: &str = "localhost/";

fn is_deletion_cost(text: &str) -> bool {
    let first = text.bytes().next();
    let plain = text == "0" || first.is_some_and(|b| b == b'-' || (b'1'..=b'9').contains(&b));
    plain && text.parse::<i32>().is_ok()
}

pub(super) fn has_invalid_deletion_cost(meta: &Value) -> bool {
    let cost = meta.get("annotations").and_then(|a| a.get(DELETION_COST));
    cost.and_then(Value::as_str).is_some_and(|cost| !is_deletion_cost(cost))
}

pub(super) fn is_mirror(pod: &Value) -> bool {
    pod["metadata"].get("annotations").is_some_and(|a| a.get(MIRROR).is_some())
}

pub(super) fn validate(
    annotations: &Cursor<'_>,
    spec: &Cursor<'_>,
    scope: Scope,
    causes: &mut Causes,
) {
    if annotations.is_empty() {
        return;
    }
    let mirror = annotations.key(MIRROR);
    if mirror.is_set() && spec.field("nodeName").text().is_empty() {
        causes.invalid(&mirror, "must set spec.nodeName if mirror pod annotation is set");
    }
    let cost = annotations.key(DELETION_COST);
    if cost.is_set() && !scope.invalid_deletion_cost && !is_deletion_cost(cost.text()) {
        causes.invalid(&cost, "must be a 32bit integer");
    }
    let pod_profile = annotations.field(SECCOMP_POD);
    if pod_profile.is_set() {
        validate_seccomp(&pod_profile, causes);
    }
    for (key, _) in annotations.entries() {
        if key.starts_with(SECCOMP_CONTAINER) {
            validate_seccomp(&annotations.field(key), causes);
        }
    }
    for (key, value) in annotations.entries() {
        let Some(container) = key.strip_prefix(APP_ARMOR) else { continue };
        let mut found = false;
        for_each_container(spec, |c| found |= c.field("name").text() == container);
        if !found {
            causes.invalid_as(&value, container, "container not found");
        }
        let profile = value.text();
        let known = matches!(profile, "" | RUNTIME_DEFAULT | UNCONFINED);
        if !known && !profile.starts_with(LOCALHOST) {
            let shown = crate::go::quoted(profile);
            causes.invalid(&value, &format!("invalid AppArmor profile name: {shown}"));
        }
    }
}

fn validate_seccomp(profile: &Cursor<'_>, causes: &mut Causes) {
    match profile.text() {
        RUNTIME_DEFAULT | DOCKER_DEFAULT | UNCONFINED => {}
        text => match text.strip_prefix(LOCALHOST) {
            Some(path) => validate_descending_path(profile, path, causes),
            None => causes.invalid(profile, "must be a valid seccomp profile"),
        },
    }
}

/// Validates the change of annotations.
pub(super) fn validate_update(
    annotations: &Cursor<'_>,
    old: &Cursor<'_>,
    spec: &Cursor<'_>,
    scope: Scope,
    causes: &mut Causes,
) {
    for (key, value) in old.entries() {
        let new = annotations.key(key);
        if new.value() == value.value() {
            continue;
        }
        if key.starts_with(APP_ARMOR) {
            causes.forbidden(&new, "may not remove or update AppArmor annotations");
        }
        if key == MIRROR {
            causes.forbidden(&new, "may not remove or update mirror pod annotation");
        }
    }
    for (key, value) in annotations.entries() {
        if old.key(key).is_set() {
            continue;
        }
        if key.starts_with(APP_ARMOR) {
            causes.forbidden(&value, "may not add AppArmor annotations");
        }
        if key == MIRROR {
            causes.forbidden(&value, "may not add mirror pod annotation");
        }
    }
    validate(annotations, spec, scope, causes);
}

/// Checks that annotations and fields of a new pod do not contradict each other.
pub(super) fn validate_agreement(annotations: &Cursor<'_>, spec: &Cursor<'_>, causes: &mut Causes) {
    let concerns = |key: &str| {
        key == SECCOMP_POD || [SECCOMP_CONTAINER, APP_ARMOR].iter().any(|p| key.starts_with(p))
    };
    let given = annotations.value().as_object();
    if !given.is_some_and(|given| given.keys().any(|key| concerns(key))) {
        return;
    }
    let context = spec.field("securityContext");
    agree_on_seccomp(annotations.key(SECCOMP_POD), &context.field("seccompProfile"), causes);
    for_each_container(spec, |container| {
        let key = format!("{SECCOMP_CONTAINER}{}", container.field("name").text());
        let context = container.field("securityContext");
        agree_on_seccomp(annotations.key(&key), &context.field("seccompProfile"), causes);
    });
    if spec.field("os").field("name").text() == "windows" {
        return;
    }
    let of_pod = context.field("appArmorProfile");
    for_each_container(spec, |container| {
        let context = container.field("securityContext");
        let own = context.field("appArmorProfile");
        let profile = if own.is_set() { own } else { own.at_value(of_pod.value()) };
        let key = format!("{APP_ARMOR}{}", container.field("name").text());
        let annotation = annotations.key(&key);
        if annotation.is_set() {
            agree("apparmor", &annotation, &profile, &[RUNTIME_DEFAULT], causes);
        }
    });
}

fn agree_on_seccomp(annotation: Cursor<'_>, profile: &Cursor<'_>, causes: &mut Causes) {
    if annotation.is_set() {
        agree("seccomp", &annotation, profile, &[RUNTIME_DEFAULT, DOCKER_DEFAULT], causes);
    }
}

fn agree(
    what: &str,
    annotation: &Cursor<'_>,
    profile: &Cursor<'_>,
    defaults: &[&str],
    causes: &mut Causes,
) {
    let text = annotation.text();
    let differs = |causes: &mut Causes, field: &str, other: &str| {
        let detail = format!("{what} {other} in annotation and field must match");
        causes.forbidden(&profile.field(field), &detail);
    };
    match profile.field("type").text() {
        "Unconfined" if text != UNCONFINED => differs(causes, "type", "type"),
        "RuntimeDefault" if !defaults.contains(&text) => differs(causes, "type", "type"),
        "Localhost" => match text.strip_prefix(LOCALHOST) {
            None => differs(causes, "type", "type"),
            Some(path) if profile.field("localhostProfile").value() != path => {
                differs(causes, "localhostProfile", "profile");
            }
            Some(_) => {}
        },
        _ => {}
    }
}

/// Copies older AppArmor annotations of a new pod to fields, if the container has none and the
/// pod's differs. Returns warnings about annotations that are copied or cannot be.
pub(super) fn copy_app_armor(pod: &mut Value) -> Vec<String> {
    let mut warnings = Vec::new();
    let annotations = pod["metadata"].get("annotations").and_then(Value::as_object);
    let profiles: BTreeMap<String, Option<Value>> = annotations
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| {
            let profile = app_armor_of(value.as_str().unwrap_or_default());
            Some((key.strip_prefix(APP_ARMOR)?.to_owned(), profile))
        })
        .collect();
    if profiles.is_empty() || pod["spec"]["os"]["name"] == "windows" {
        return warnings;
    }
    let of_pod = pod["spec"]["securityContext"].get("appArmorProfile").cloned();
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        let containers = pod.get_mut("spec").and_then(|spec| spec.get_mut(list)?.as_array_mut());
        for container in containers.into_iter().flatten().filter_map(Value::as_object_mut) {
            let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
            let Some((name, profile)) = profiles.get_key_value(name) else { continue };
            let context = container.get("securityContext");
            let has_field = context.is_some_and(|context| !context["appArmorProfile"].is_null());
            if has_field || (profile.is_some() && of_pod == *profile) {
                continue;
            }
            warnings.push(format!("metadata.annotations[{APP_ARMOR}{name}]: {USE_THE_FIELD}"));
            let Some(profile) = profile else { continue };
            let context = container.entry("securityContext").or_insert_with(|| json!({}));
            if let Some(context) = context.as_object_mut() {
                context.insert("appArmorProfile".to_owned(), profile.clone());
            }
        }
    }
    warnings
}

fn app_armor_of(annotation: &str) -> Option<Value> {
    match annotation {
        UNCONFINED => Some(json!({"type": "Unconfined"})),
        RUNTIME_DEFAULT => Some(json!({"type": "RuntimeDefault"})),
        _ => {
            let path = annotation.strip_prefix(LOCALHOST).filter(|path| !path.is_empty())?;
            let profile = json!({"type": "Localhost", "localhostProfile": path});
            app_armor_problems(&profile).is_empty().then_some(profile)
        }
    }
}
