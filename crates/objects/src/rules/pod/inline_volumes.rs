//! Volumes of storage providers that are specified in a pod itself. Most are deprecated and Berth
//! mounts none of them; they are validated as upstream does.

use super::super::names;
use super::volumes::required;
use crate::cursor::{Causes, Cursor};

const PARTITION: &str = "must be between 1 and 255, inclusive";
const LUN: &str = "must be between 0 and 255, inclusive";
const HOST_PORTS: &str = "must be a host:port pair or multiple pairs separated by commas";

pub(super) fn validate(field: &str, source: &Cursor<'_>, causes: &mut Causes) {
    match field {
        "gcePersistentDisk" => disk(source, "pdName", causes),
        "awsElasticBlockStore" => disk(source, "volumeID", causes),
        "iscsi" => iscsi(source, causes),
        "glusterfs" => {
            required(source, "endpoints", causes);
            required(source, "path", causes);
        }
        "flocker" => flocker(source, causes),
        "rbd" => {
            required_list(source, "monitors", causes);
            required(source, "image", causes);
        }
        "cinder" => {
            required(source, "volumeID", causes);
            secret_name(source, causes);
        }
        "cephfs" => required_list(source, "monitors", causes),
        "quobyte" => quobyte(source, causes),
        "fc" => fibre_channel(source, causes),
        "flexVolume" => flex(source, causes),
        "azureFile" => {
            required(source, "secretName", causes);
            required(source, "shareName", causes);
        }
        "vsphereVolume" => required(source, "volumePath", causes),
        "photonPersistentDisk" => required(source, "pdID", causes),
        "portworxVolume" => required(source, "volumeID", causes),
        "azureDisk" => azure_disk(source, causes),
        "storageos" => {
            required(source, "volumeName", causes);
            for field in ["volumeName", "volumeNamespace"] {
                let name = source.field(field);
                if !name.text().is_empty() {
                    names::report(causes, &name, &names::dns_label(name.text()));
                }
            }
            secret_name(source, causes);
        }
        "scaleIO" => {
            for field in ["gateway", "system", "volumeName"] {
                required(source, field, causes);
            }
        }
        _ => {}
    }
}

fn required_list(source: &Cursor<'_>, field: &str, causes: &mut Causes) {
    if source.field(field).is_empty() {
        causes.required(&source.field(field), "");
    }
}

fn secret_name(source: &Cursor<'_>, causes: &mut Causes) {
    let secret = source.field("secretRef");
    if secret.is_set() {
        required(&secret, "name", causes);
    }
}

fn disk(source: &Cursor<'_>, name: &str, causes: &mut Causes) {
    required(source, name, causes);
    let partition = source.field("partition");
    if partition.int().is_some_and(|number| !(0..=255).contains(&number)) {
        causes.invalid(&partition, PARTITION);
    }
}

/// Reports whether a text is the name of an iSCSI target or initiator, in one of three formats.
fn is_iscsi_name(name: &str) -> bool {
    let alphanumeric = |text: &str, length: usize| {
        text.len() == length && text.bytes().all(|b| b.is_ascii_alphanumeric())
    };
    match name.get(..3) {
        Some("iqn") => {
            let Some((date, rest)) = name
                .strip_prefix("iqn.")
                .and_then(|rest| Some((rest.get(..7)?, rest.get(7..)?.strip_prefix('.')?)))
            else {
                return false;
            };
            let date = date.as_bytes();
            let dated = date.iter().enumerate().all(|(at, b)| match at {
                4 => *b == b'-',
                _ => b.is_ascii_digit(),
            });
            let Some((domain, unit)) = rest.split_once(':') else { return false };
            let in_domain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.');
            dated
                && !domain.is_empty()
                && domain.bytes().all(in_domain)
                && !unit.is_empty()
                && !unit.contains([',', ';', '*', '&', '$', '|'])
                && !unit.contains(char::is_whitespace)
        }
        Some("eui") => name.get(4..).is_some_and(|rest| alphanumeric(rest, 16)),
        Some("naa") => name.get(4..).is_some_and(|rest| alphanumeric(rest, 32)),
        _ => false,
    }
}

fn iscsi_name(at: &Cursor<'_>, causes: &mut Causes) {
    let text = at.text();
    if !["iqn", "eui", "naa"].iter().any(|kind| text.starts_with(kind)) {
        causes.invalid_as(at, text, "must be valid format starting with iqn, eui, or naa");
    } else if !is_iscsi_name(text) {
        causes.invalid_as(at, text, "must be valid format");
    }
}

fn iscsi(source: &Cursor<'_>, causes: &mut Causes) {
    required(source, "targetPortal", causes);
    let iqn = source.field("iqn");
    match iqn.text() {
        "" => causes.required(&iqn, ""),
        _ => iscsi_name(&iqn, causes),
    }
    let lun = source.field("lun");
    if lun.int().is_some_and(|number| !(0..=255).contains(&number)) {
        causes.invalid(&lun, LUN);
    }
    let secured =
        source.field("chapAuthDiscovery").is_true() || source.field("chapAuthSession").is_true();
    if secured && !source.field("secretRef").is_set() {
        causes.required(&source.field("secretRef"), "");
    }
    let initiator = source.field("initiatorName");
    if initiator.is_set() {
        iscsi_name(&initiator.called("initiatorname"), causes);
    }
}

/// With an initiator of its own, the volume's name becomes part of a name on the node.
pub(super) fn validate_iscsi_name(volume: &Cursor<'_>, source: &Cursor<'_>, causes: &mut Causes) {
    let name = volume.field("name");
    let length = name.text().len() + 1 + source.field("targetPortal").text().len();
    if source.field("initiatorName").is_set() && length > 64 {
        let detail = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 \
                      characters if iscsi.initiatorName is specified.";
        causes.invalid(&name, detail);
    }
}

fn flocker(source: &Cursor<'_>, causes: &mut Causes) {
    let name = source.field("datasetName");
    match (name.text().is_empty(), source.field("datasetUUID").text().is_empty()) {
        (true, true) => {
            causes.required(source, "one of datasetName and datasetUUID is required");
        }
        (false, false) => {
            let detail = "datasetName and datasetUUID can not be specified simultaneously";
            causes.invalid_as(source, "resource", detail);
        }
        _ => {}
    }
    if name.text().contains('/') {
        causes.invalid(&name, "must not contain '/'");
    }
}

fn is_host_port(text: &str) -> bool {
    match text.strip_prefix('[').and_then(|rest| rest.split_once("]:")) {
        Some((_, port)) => !port.contains(':'),
        None => text.matches(':').count() == 1 && !text.contains(['[', ']']),
    }
}

fn quobyte(source: &Cursor<'_>, causes: &mut Causes) {
    let registry = source.field("registry");
    if registry.text().is_empty() {
        causes.required(&registry, HOST_PORTS);
    } else if source.field("tenant").text().len() >= 65 {
        let detail = "must be a UUID and may not exceed a length of 64 characters";
        causes.required(&source.field("tenant"), detail);
    } else {
        for pair in registry.text().split(',') {
            if !is_host_port(pair) {
                causes.invalid(&registry, HOST_PORTS);
            }
        }
    }
    required(source, "volume", causes);
}

fn fibre_channel(source: &Cursor<'_>, causes: &mut Causes) {
    let (targets, ids) = (source.field("targetWWNs"), source.field("wwids"));
    if targets.is_empty() && ids.is_empty() {
        let detail = "must specify either targetWWNs or wwids, but not both";
        causes.required(&targets, detail);
    }
    if !targets.is_empty() && !ids.is_empty() {
        let detail = "targetWWNs and wwids can not be specified simultaneously";
        causes.invalid(&targets, detail);
    }
    let lun = source.field("lun");
    if !targets.is_empty() {
        match lun.int() {
            None => causes.required(&lun, "lun is required if targetWWNs is specified"),
            Some(0..=255) => {}
            Some(_) => causes.invalid(&lun, LUN),
        }
    }
}

fn flex(source: &Cursor<'_>, causes: &mut Causes) {
    required(source, "driver", causes);
    let options = source.field("options");
    for (key, value) in options.entries() {
        let domain = key.split_once('/').map_or(key, |(domain, _)| domain).to_lowercase();
        let reserved = |suffix: &str| domain == suffix || domain.ends_with(&format!(".{suffix}"));
        if reserved("kubernetes.io") || reserved("k8s.io") {
            let detail = "kubernetes.io and k8s.io namespaces are reserved";
            causes.invalid_as(&value, key, detail);
        }
    }
}

fn azure_disk(source: &Cursor<'_>, causes: &mut Causes) {
    required(source, "diskName", causes);
    required(source, "diskURI", causes);
    let caching = source.field("cachingMode");
    if caching.is_set() && !matches!(caching.text(), "None" | "ReadOnly" | "ReadWrite") {
        causes.not_supported(&caching, &["None", "ReadOnly", "ReadWrite"]);
    }
    let kind = source.field("kind");
    if kind.is_set() && !matches!(kind.text(), "Dedicated" | "Managed" | "Shared") {
        causes.not_supported(&kind, &["Dedicated", "Managed", "Shared"]);
    }
    let uri = source.field("diskURI");
    let (begins, form) = match kind.text() {
        "" => return,
        "Managed" => (
            "/subscriptions/",
            "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}",
        ),
        _ => (
            "https://",
            "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd",
        ),
    };
    if !uri.text().starts_with(begins) {
        causes.not_supported_as(&uri, uri.text(), &[form]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iscsi_names_come_in_three_kinds() {
        for good in [
            "iqn.2015-02.example.com:test",
            "eui.0123456789ABCDEF",
            "naa.62004567BA64678D0123456789ABCDEF",
        ] {
            assert!(is_iscsi_name(good), "{good}");
        }
        for bad in ["", "iqn", "iqn.2015-02.example.com", "iqn.20-02.a:b", "eui.01", "naa.6", "é"]
        {
            assert!(!is_iscsi_name(bad), "{bad}");
        }
    }
}
