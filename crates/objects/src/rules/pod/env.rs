//! Environment variables, and volumes and devices mounted into a container.

use std::collections::{BTreeMap, BTreeSet};

use super::super::names;
use super::amounts::quantity;
use super::for_each_container;
use super::security::{has_backsteps, validate_descending_path, validate_no_backsteps};
use super::volumes::KnownVolumes;
use crate::cursor::{Causes, Cursor};

const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// Fields that can be put into files; the ones for variables differ.
pub(super) const VOLUME_FIELDS: [&str; 5] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];

/// Fields that have a name, but are allowed neither in variables nor in files.
const OTHER_FIELDS: [&str; 3] = ["spec.restartPolicy", "spec.schedulerName", "status.phase"];

const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

const BYTE_DIVISORS: [&str; 13] =
    ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

pub(super) fn validate(variables: &Cursor<'_>, causes: &mut Causes) {
    for variable in variables.items() {
        let name = variable.field("name");
        match name.text() {
            "" => causes.required(&name, ""),
            text => names::report(causes, &name, &names::env_name(text)),
        }
        let source = variable.field("valueFrom");
        if source.is_set() {
            validate_source(&variable, &source, causes);
        }
    }
}

fn validate_source(variable: &Cursor<'_>, source: &Cursor<'_>, causes: &mut Causes) {
    let mut sources = 0;
    let field = source.field("fieldRef");
    if field.is_set() {
        sources += 1;
        validate_field_ref(&field, &ENV_FIELDS, causes);
    }
    let resource = source.field("resourceFieldRef");
    if resource.is_set() {
        sources += 1;
        validate_resource_ref(&resource, false, causes);
    }
    for reference in ["configMapKeyRef", "secretKeyRef"] {
        let reference = source.field(reference);
        if reference.is_set() {
            sources += 1;
            validate_key_ref(&reference, causes);
        }
    }
    let file = source.field("fileKeyRef");
    if file.is_set() {
        sources += 1;
        validate_file_ref(&file, causes);
    }
    if sources == 0 {
        let detail = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, \
                      `secretKeyRef` or `fileKeyRef`";
        causes.invalid_as(source, "", detail);
    } else if !variable.field("value").text().is_empty() {
        causes.invalid_as(source, "", "may not be specified when `value` is not empty");
    } else if sources > 1 {
        causes.invalid_as(source, "", "may not have more than one field specified at a time");
    }
}

pub(super) fn validate_field_ref(reference: &Cursor<'_>, allowed: &[&str], causes: &mut Causes) {
    let version = reference.field("apiVersion");
    if version.text().is_empty() {
        return causes.required(&version, "");
    }
    let field = reference.field("fieldPath");
    let path = field.text();
    if path.is_empty() {
        return causes.required(&field, "");
    }
    if version.text() != "v1" {
        let detail =
            format!("error converting fieldPath: unsupported pod version: {}", version.text());
        return causes.invalid(&field, &detail);
    }
    let subscripted = path
        .strip_suffix("']")
        .and_then(|rest| rest.split_once("['"))
        .filter(|(before, _)| !before.is_empty());
    // `spec.host` is the old name of `spec.nodeName`.
    let known = match subscripted {
        Some((before, _)) => matches!(before, "metadata.annotations" | "metadata.labels"),
        None => {
            ENV_FIELDS.contains(&path)
                || VOLUME_FIELDS.contains(&path)
                || OTHER_FIELDS.contains(&path)
                || path == "spec.host"
        }
    };
    if !known {
        let detail = match subscripted {
            Some(_) => format!(
                "error converting fieldPath: field label does not support subscript: {path}"
            ),
            None => format!("error converting fieldPath: field label not supported: {path}"),
        };
        return causes.invalid(&field, &detail);
    }
    match subscripted {
        Some(("metadata.annotations", key)) => {
            let key = key.to_lowercase();
            names::report_as(causes, reference, &key, &names::label_key_problems(&key));
        }
        Some((_, key)) => {
            names::report_as(causes, reference, key, &names::label_key_problems(key));
        }
        None => {
            let path = if path == "spec.host" { "spec.nodeName" } else { path };
            if !allowed.contains(&path) {
                causes.not_supported_as(&field, path, allowed);
            }
        }
    }
}

pub(super) fn validate_resource_ref(reference: &Cursor<'_>, in_volume: bool, causes: &mut Causes) {
    let container = reference.field("containerName");
    let resource = reference.field("resource");
    let name = resource.text();
    let pages = name.starts_with("limits.hugepages-") || name.starts_with("requests.hugepages-");
    if in_volume && container.text().is_empty() {
        causes.required(&container, "");
    } else if name.is_empty() {
        causes.required(&resource, "");
    } else if !pages && !RESOURCES.contains(&name) {
        causes.not_supported(&resource, &RESOURCES);
    }
    let divisor = reference.field("divisor");
    let amount = quantity(divisor.value());
    if amount.is_zero() {
        return;
    }
    let shown = amount.to_string();
    let bytes = BYTE_DIVISORS.contains(&shown.as_str());
    let of = match name {
        "limits.cpu" | "requests.cpu" => {
            if !matches!(shown.as_str(), "1m" | "1") {
                let detail = "only divisor's values 1m and 1 are supported with the cpu resource";
                causes.invalid_as(&divisor, name, detail);
            }
            return;
        }
        "limits.memory" | "requests.memory" => "memory",
        "limits.ephemeral-storage" | "requests.ephemeral-storage" => "local ephemeral storage",
        _ if pages => "hugepages",
        _ => return,
    };
    if !bytes {
        let detail = format!(
            "only divisor's values {} are supported with the {of} resource",
            BYTE_DIVISORS.join(", ")
        );
        causes.invalid_as(&divisor, name, &detail);
    }
}

fn validate_key_ref(reference: &Cursor<'_>, causes: &mut Causes) {
    let name = reference.field("name");
    names::report_as(causes, &name, name.text(), &names::dns_subdomain(name.text()));
    let key = reference.field("key");
    match key.text() {
        "" => causes.required(&key, ""),
        text => names::report(causes, &key, &names::config_key(text)),
    }
}

fn validate_file_ref(reference: &Cursor<'_>, causes: &mut Causes) {
    let key = reference.field("key");
    match key.text() {
        "" => causes.required(&key, ""),
        text => names::report(causes, &key, &names::env_name(text)),
    }
    let volume = reference.field("volumeName");
    match volume.text() {
        "" => causes.required(&volume, ""),
        text => names::report(causes, &volume, &names::dns_label(text)),
    }
    let path = reference.field("path");
    match path.text() {
        "" => causes.required(&path, ""),
        text => validate_no_backsteps(&path, text, causes),
    }
}

/// Checks that files with variables are in volumes that containers can write.
pub(super) fn validate_file_volumes(spec: &Cursor<'_>, causes: &mut Causes) {
    let volumes = spec.field("volumes");
    for_each_container(spec, |container| {
        let variables = container.field("env");
        for variable in variables.items() {
            let source = variable.field("valueFrom");
            let file = source.field("fileKeyRef");
            if !file.is_set() {
                continue;
            }
            let name = file.field("volumeName");
            // The last volume of a name counts, as in lookups.
            let volume = volumes.items().filter(|v| v.field("name").text() == name.text()).last();
            match volume {
                None => causes.not_found_as(&name, name.text(), ""),
                Some(volume) if !volume.field("emptyDir").is_set() => {
                    causes.invalid(&name, "referenced volume must be of type emptyDir");
                }
                Some(_) => {}
            }
        }
    });
}

pub(super) fn validate_from(sources: &Cursor<'_>, causes: &mut Causes) {
    for source in sources.items() {
        let prefix = source.field("prefix");
        if !prefix.text().is_empty() {
            names::report(causes, &prefix, &names::env_name(prefix.text()));
        }
        let mut given = 0;
        for reference in ["configMapRef", "secretRef"] {
            let reference = source.field(reference);
            if !reference.is_set() {
                continue;
            }
            given += 1;
            let name = reference.field("name");
            match name.text() {
                "" => causes.required(&name, ""),
                text => {
                    let problems = names::NameRule::DnsSubdomain.prefix_problems(text);
                    names::report(causes, &name, &problems);
                }
            }
        }
        if given == 0 {
            let detail = "must specify one of: `configMapRef` or `secretRef`";
            causes.invalid_as(sources, "", detail);
        } else if given > 1 {
            let detail = "may not have more than one field specified at a time";
            causes.invalid_as(sources, "", detail);
        }
    }
}

/// Maps names to paths of a container's mounts or devices; the last of a name counts.
fn places<'a>(list: &Cursor<'a>, path: &str) -> BTreeMap<&'a str, &'a str> {
    let text = |value: &'a serde_json::Value, field: &str| {
        value.get(field).and_then(serde_json::Value::as_str).unwrap_or_default()
    };
    let items = list.value().as_array().into_iter().flatten();
    items.map(|item| (text(item, "name"), text(item, path))).collect()
}

pub(super) fn validate_mounts(
    container: &Cursor<'_>,
    volumes: &KnownVolumes<'_>,
    causes: &mut Causes,
) {
    let mounts = container.field("volumeMounts");
    if mounts.is_empty() {
        return;
    }
    let devices = places(&container.field("volumeDevices"), "devicePath");
    let device_paths: BTreeSet<&str> = devices.values().copied().collect();
    let mut paths = BTreeSet::new();
    for mount in mounts.items() {
        let (name, path) = (mount.field("name"), mount.field("mountPath"));
        if name.text().is_empty() {
            causes.required(&name, "");
        }
        if !volumes.contains_key(name.text()) {
            causes.not_found_as(&name, name.text(), "");
        }
        if path.text().is_empty() {
            causes.required(&path, "");
        }
        if !paths.insert(path.text()) {
            causes.invalid(&path, "must be unique");
        }
        if devices.contains_key(name.text()) {
            causes.invalid(&name, "must not already exist in volumeDevices");
        }
        if device_paths.contains(path.text()) {
            causes.invalid(&path, "must not already exist as a path in volumeDevices");
        }
        let expression = mount.field("subPathExpr");
        let sub_path = mount.field("subPath");
        if !sub_path.text().is_empty() {
            validate_descending_path(&mounts.field("subPath"), sub_path.text(), causes);
        }
        if !expression.text().is_empty() {
            if !sub_path.text().is_empty() {
                let detail = "subPathExpr and subPath are mutually exclusive";
                causes.invalid(&expression, detail);
            }
            validate_descending_path(&mounts.field("subPathExpr"), expression.text(), causes);
        }
        validate_propagation(container, &mounts, &mount, causes);
    }
}

fn validate_propagation(
    container: &Cursor<'_>,
    mounts: &Cursor<'_>,
    mount: &Cursor<'_>,
    causes: &mut Causes,
) {
    let propagation = mount.field("mountPropagation");
    if propagation.is_set() {
        let at = mounts.field("mountPropagation");
        let supported = ["Bidirectional", "HostToContainer", "None"];
        if !supported.contains(&propagation.text()) {
            causes.not_supported_as(&at, propagation.text(), &supported);
        }
        let context = container.field("securityContext");
        if propagation.text() == "Bidirectional" && !context.field("privileged").is_true() {
            let detail =
                "Bidirectional mount propagation is available only to privileged containers";
            causes.forbidden(&at, detail);
        }
    }
    let recursive = mount.field("recursiveReadOnly");
    if !recursive.is_set() {
        return;
    }
    let at = mounts.field("recursiveReadOnly");
    match recursive.text() {
        "Disabled" => {}
        "Enabled" | "IfPossible" => {
            if !mount.field("readOnly").is_true() {
                causes.forbidden(&at, "may only be specified when readOnly is true");
            }
            if propagation.is_set() && propagation.text() != "None" {
                let detail = "may only be specified when mountPropagation is None or not specified";
                causes.forbidden(&at, detail);
            }
        }
        text => causes.not_supported_as(&at, text, &["Disabled", "Enabled", "IfPossible"]),
    }
}

pub(super) fn validate_devices(
    container: &Cursor<'_>,
    volumes: &KnownVolumes<'_>,
    causes: &mut Causes,
) {
    let devices = container.field("volumeDevices");
    if devices.is_empty() {
        return;
    }
    let mounts = places(&container.field("volumeMounts"), "mountPath");
    let mount_paths: BTreeSet<&str> = mounts.values().copied().collect();
    let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
    for device in devices.items() {
        let (name, path) = (device.field("name"), device.field("devicePath"));
        if name.text().is_empty() {
            causes.required(&name, "");
        }
        if names.contains(name.text()) {
            causes.invalid(&name, "must be unique");
        }
        match volumes.get(name.text()) {
            None => causes.not_found_as(&name, name.text(), ""),
            Some(volume)
                if volume.get("persistentVolumeClaim").is_none()
                    && volume.get("ephemeral").is_none() =>
            {
                let detail = "can only use volume source type of PersistentVolumeClaim or \
                              Ephemeral for block mode";
                causes.invalid(&name, detail);
            }
            Some(_) => {}
        }
        if path.text().is_empty() {
            causes.required(&path, "");
        }
        if paths.contains(path.text()) {
            causes.invalid(&path, "must be unique");
        }
        if has_backsteps(path.text()) {
            causes.invalid(&path, "can not contain backsteps ('..')");
        } else {
            paths.insert(path.text());
        }
        if mounts.contains_key(name.text()) {
            causes.invalid(&name, "must not already exist in volumeMounts");
        }
        if mount_paths.contains(path.text()) {
            causes.invalid(&path, "must not already exist as a path in volumeMounts");
        }
        if !name.text().is_empty() {
            names.insert(name.text());
        }
    }
}
