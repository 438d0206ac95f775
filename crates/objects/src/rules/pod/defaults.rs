//! Defaults of pods. Some apply to pods and not to templates: requests from limits, service links,
//! host ports, pod-level resources.

use serde_json::{Map, Value, json};

use super::amounts;
use super::images;
use crate::pod::resources::{PodResources, Side};
use crate::resources::{is_huge_pages, is_pod_level, may_be_overcommitted};

/// Permission bits of files in volumes: 0644.
const FILE_MODE: i64 = 0o644;

/// The lifetime of a projected token: an hour.
const TOKEN_SECONDS: i64 = 3600;

/// The maximum lifetime of a projected certificate: a day.
const CERTIFICATE_SECONDS: i64 = 86_400;

type Object = Map<String, Value>;

fn set(object: &mut Object, field: &str, value: impl Into<Value>) {
    if !object.contains_key(field) {
        object.insert(field.to_owned(), value.into());
    }
}

fn child<'a>(object: &'a mut Object, field: &str) -> Option<&'a mut Object> {
    object.get_mut(field)?.as_object_mut()
}

fn items<'a>(object: &'a mut Object, field: &str) -> impl Iterator<Item = &'a mut Object> {
    let items = object.get_mut(field).and_then(Value::as_array_mut);
    items.into_iter().flatten().filter_map(Value::as_object_mut)
}

pub(super) fn set_pod_defaults(pod: &mut Value) {
    if let Some(status) = pod.get_mut("status").and_then(Value::as_object_mut) {
        agree_on_addresses(status);
    }
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else { return };
    set_spec_defaults(spec);
    for list in ["containers", "initContainers"] {
        for container in items(spec, list) {
            requests_from_limits(container);
        }
    }
    if spec.contains_key("resources") {
        set_pod_level_defaults(spec);
    }
    set(spec, "enableServiceLinks", true);
    if spec.get("hostNetwork") == Some(&Value::Bool(true)) {
        for list in ["containers", "initContainers"] {
            for container in items(spec, list) {
                for port in items(container, "ports") {
                    if let Some(number) = port.get("containerPort").cloned()
                        && number != 0
                    {
                        set(port, "hostPort", number);
                    }
                }
            }
        }
    }
}

/// Sets `podIP` to the first of `podIPs`; where both are given and differ, the older field wins.
fn agree_on_addresses(status: &mut Object) {
    let first = status.get("podIPs").and_then(|ips| ips.get(0)).and_then(|ip| ip.get("ip"));
    match (status.get("podIP").cloned(), first.cloned()) {
        (Some(ip), first) if first.as_ref() != Some(&ip) => {
            status.insert("podIPs".to_owned(), json!([{"ip": ip}]));
        }
        (None, Some(first)) => {
            status.insert("podIP".to_owned(), first);
        }
        _ => {}
    }
}

/// Sets the defaults of a pod template. There are fewer than for a pod, since the pods made from it
/// are defaulted again.
pub fn set_template_defaults(template: &mut Value) {
    if let Some(spec) = template.get_mut("spec").and_then(Value::as_object_mut) {
        set_spec_defaults(spec);
    }
}

fn set_spec_defaults(spec: &mut Object) {
    set(spec, "dnsPolicy", "ClusterFirst");
    set(spec, "restartPolicy", "Always");
    set(spec, "securityContext", json!({}));
    set(spec, "terminationGracePeriodSeconds", 30);
    set(spec, "schedulerName", "default-scheduler");
    // The same field under its older name.
    match (spec.get("serviceAccountName").cloned(), spec.get("serviceAccount").cloned()) {
        (Some(name), _) => {
            spec.insert("serviceAccount".to_owned(), name);
        }
        (None, Some(name)) => {
            spec.insert("serviceAccountName".to_owned(), name);
        }
        (None, None) => {}
    }
    for volume in items(spec, "volumes") {
        set_volume_defaults(volume);
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in items(spec, list) {
            set_container_defaults(container);
        }
    }
    if let Some(overhead) = child(spec, "overhead") {
        round_up(overhead);
    }
    if let Some(resources) = child(spec, "resources") {
        round_up_resources(resources);
    }
}

fn set_container_defaults(container: &mut Object) {
    if !container.contains_key("imagePullPolicy") {
        let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
        let policy = pull_policy(image);
        container.insert("imagePullPolicy".to_owned(), policy.into());
    }
    set(container, "terminationMessagePath", "/dev/termination-log");
    set(container, "terminationMessagePolicy", "File");
    for port in items(container, "ports") {
        set(port, "protocol", "TCP");
    }
    for variable in items(container, "env") {
        if let Some(source) = child(variable, "valueFrom") {
            set_field_ref_defaults(source);
            if let Some(file) = child(source, "fileKeyRef") {
                set(file, "optional", false);
            }
        }
    }
    if let Some(resources) = child(container, "resources") {
        round_up_resources(resources);
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = child(container, probe) {
            set(probe, "timeoutSeconds", 1);
            set(probe, "periodSeconds", 10);
            set(probe, "successThreshold", 1);
            set(probe, "failureThreshold", 3);
            set_http_defaults(probe);
            if let Some(grpc) = child(probe, "grpc")
                && grpc.get("service").is_none_or(Value::is_null)
            {
                grpc.insert("service".to_owned(), "".into());
            }
        }
    }
    if let Some(lifecycle) = child(container, "lifecycle") {
        for handler in ["postStart", "preStop"] {
            if let Some(handler) = child(lifecycle, handler) {
                set_http_defaults(handler);
            }
        }
    }
}

fn set_http_defaults(handler: &mut Object) {
    if let Some(http) = child(handler, "httpGet") {
        set(http, "path", "/");
        set(http, "scheme", "HTTP");
    }
}

fn set_field_ref_defaults(holder: &mut Object) {
    if let Some(field) = child(holder, "fieldRef") {
        set(field, "apiVersion", "v1");
    }
}

/// Returns Always for an image whose tag can change.
fn pull_policy(image: &str) -> &'static str {
    if images::means_latest(image) { "Always" } else { "IfNotPresent" }
}

fn round_up_resources(resources: &mut Object) {
    for list in ["limits", "requests"] {
        if let Some(list) = child(resources, list) {
            round_up(list);
        }
    }
}

/// Rounds amounts up to milli-units, the precision in which they are counted.
fn round_up(list: &mut Object) {
    for value in list.values_mut() {
        // Only a text with `n`, `u` or many digits can be more precise.
        if value.as_str().is_some_and(|text| text.bytes().any(|b| matches!(b, b'n' | b'u' | b'.')))
        {
            *value = amounts::quantity(value).round_up_to_milli().to_string().into();
        }
    }
}

fn requests_from_limits(container: &mut Object) {
    let Some(resources) = child(container, "resources") else { return };
    fill_from(resources, Side::Limits, Side::Requests, |_| true);
}

/// Copies entries of one list to the other where that has none.
fn fill_from(resources: &mut Object, from: Side, to: Side, take: impl Fn(&str) -> bool) {
    let Some(given) = resources.get(from.field()).and_then(Value::as_object) else { return };
    let missing = |name: &str| {
        let list = resources.get(to.field()).and_then(Value::as_object);
        list.is_none_or(|list| !list.contains_key(name))
    };
    let added: Vec<(String, Value)> = given
        .iter()
        .filter(|(name, _)| take(name) && missing(name))
        .map(|(name, amount)| (name.clone(), amount.clone()))
        .collect();
    add_entries(resources, to, added);
}

fn add_entries(resources: &mut Object, side: Side, added: Vec<(String, Value)>) {
    if added.is_empty() {
        return;
    }
    set(resources, side.field(), json!({}));
    if let Some(list) = child(resources, side.field()) {
        list.extend(added);
    }
}

/// Adds entries that the pod level lacks, from the sum of the containers.
fn from_containers(spec: &Object, side: Side, take: impl Fn(&str) -> bool) -> Vec<(String, Value)> {
    let spec = Value::Object(
        // Overhead and pod-level resources are ignored.
        ["containers", "initContainers"]
            .into_iter()
            .filter_map(|field| Some((field.to_owned(), spec.get(field)?.clone())))
            .collect(),
    );
    let sums = PodResources::of_spec(&spec).of_containers(side);
    sums.into_iter()
        .filter(|(name, _)| take(name))
        .map(|(name, amount)| (name, amount.to_string().into()))
        .collect()
}

fn set_pod_level_defaults(spec: &mut Object) {
    let has = |spec: &Object, side: Side, name: &str| {
        spec.get("resources")
            .and_then(|resources| amounts::list(resources, side))
            .is_some_and(|list| list.contains_key(name))
    };
    let is_empty = |spec: &Object, side: Side| {
        spec.get("resources")
            .and_then(|resources| amounts::list(resources, side))
            .is_none_or(Map::is_empty)
    };
    if is_empty(spec, Side::Limits) && is_empty(spec, Side::Requests) {
        return;
    }
    let add = |spec: &mut Object, side: Side, added: Vec<(String, Value)>| {
        if let Some(resources) = child(spec, "resources") {
            add_entries(resources, side, added);
        }
    };
    // Huge pages cannot be overcommitted: the pod must have what its containers may use.
    let pages = from_containers(spec, Side::Limits, |name| {
        is_huge_pages(name) && !has(spec, Side::Requests, name) && !has(spec, Side::Limits, name)
    });
    add(spec, Side::Limits, pages);
    let limits_given = !is_empty(spec, Side::Limits);
    if limits_given {
        let requests = from_containers(spec, Side::Requests, |name| {
            is_pod_level(name) && may_be_overcommitted(name) && !has(spec, Side::Requests, name)
        });
        add(spec, Side::Requests, requests);
        if let Some(resources) = child(spec, "resources") {
            fill_from(resources, Side::Limits, Side::Requests, is_pod_level);
        }
    } else if !is_empty(spec, Side::Requests) {
        let limits = from_containers(spec, Side::Limits, |name| {
            is_pod_level(name) && may_be_overcommitted(name) && every_container_limits(spec, name)
        });
        add(spec, Side::Limits, limits);
    }
}

fn every_container_limits(spec: &Object, name: &str) -> bool {
    ["containers", "initContainers"]
        .into_iter()
        .filter_map(|field| spec.get(field)?.as_array())
        .flatten()
        .all(|container| {
            amounts::list(&container["resources"], Side::Limits)
                .is_some_and(|list| list.contains_key(name))
        })
}

fn set_volume_defaults(volume: &mut Object) {
    if volume.len() <= 1 && volume.keys().all(|key| key == "name") {
        volume.insert("emptyDir".to_owned(), json!({}));
        return;
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = child(volume, source) {
            set(source, "defaultMode", FILE_MODE);
        }
    }
    if let Some(downward) = child(volume, "downwardAPI") {
        items(downward, "items").for_each(set_field_ref_defaults);
    }
    if let Some(projected) = child(volume, "projected") {
        for source in items(projected, "sources") {
            if let Some(token) = child(source, "serviceAccountToken") {
                set(token, "expirationSeconds", TOKEN_SECONDS);
            }
            if let Some(downward) = child(source, "downwardAPI") {
                items(downward, "items").for_each(set_field_ref_defaults);
            }
            if let Some(certificate) = child(source, "podCertificate") {
                set(certificate, "maxExpirationSeconds", CERTIFICATE_SECONDS);
            }
        }
    }
    if let Some(path) = child(volume, "hostPath") {
        set(path, "type", "");
    }
    if let Some(image) = child(volume, "image") {
        let reference = image.get("reference").and_then(Value::as_str).unwrap_or_default();
        let policy = pull_policy(reference);
        set(image, "pullPolicy", policy);
    }
    if let Some(claim) =
        child(volume, "ephemeral").and_then(|source| child(source, "volumeClaimTemplate"))
        && let Some(spec) = child(claim, "spec")
    {
        set(spec, "volumeMode", "Filesystem");
        if let Some(resources) = child(spec, "resources") {
            round_up_resources(resources);
        }
    }
    for (source, field, value) in [
        ("iscsi", "iscsiInterface", "default"),
        ("rbd", "pool", "rbd"),
        ("rbd", "user", "admin"),
        ("rbd", "keyring", "/etc/ceph/keyring"),
        ("scaleIO", "storageMode", "ThinProvisioned"),
        ("scaleIO", "fsType", "xfs"),
        ("azureDisk", "cachingMode", "ReadWrite"),
        ("azureDisk", "kind", "Shared"),
        ("azureDisk", "fsType", "ext4"),
    ] {
        if let Some(source) = child(volume, source) {
            set(source, field, value);
        }
    }
    if let Some(disk) = child(volume, "azureDisk") {
        set(disk, "readOnly", false);
    }
}
