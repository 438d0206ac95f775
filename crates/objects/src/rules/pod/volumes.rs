//! Volumes: names, exactly one source each, and the sources that are not disks of a provider (those
//! are in [`super::inline_volumes`]).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::super::meta::{validate_annotations, validate_label_selector, validate_labels};
use super::super::names;
use super::amounts::quantity;
use super::security::{validate_descending_path, validate_local_path, validate_no_backsteps};
use super::{Scope, containers, env, inline_volumes};
use crate::cursor::{BadValue, Causes, Cursor};

/// The valid volumes by name; containers can mount only these.
pub(super) type KnownVolumes<'a> = BTreeMap<&'a str, &'a Value>;

const FILE_MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";
const LEAST_TOKEN_SECONDS: i64 = 600;

/// Sources in the order of the checks: the field, its name in the error about a second source, and
/// its name in errors about its contents.
const SOURCES: [(&str, &str, &str); 30] = [
    ("emptyDir", "emptyDir", "emptyDir"),
    ("hostPath", "hostPath", "hostPath"),
    ("gitRepo", "gitRepo", "gitRepo"),
    ("gcePersistentDisk", "gcePersistentDisk", "persistentDisk"),
    ("awsElasticBlockStore", "awsElasticBlockStore", "awsElasticBlockStore"),
    ("secret", "secret", "secret"),
    ("nfs", "nfs", "nfs"),
    ("iscsi", "iscsi", "iscsi"),
    ("glusterfs", "glusterfs", "glusterfs"),
    ("flocker", "flocker", "flocker"),
    ("persistentVolumeClaim", "persistentVolumeClaim", "persistentVolumeClaim"),
    ("rbd", "rbd", "rbd"),
    ("cinder", "cinder", "cinder"),
    ("cephfs", "cephFS", "cephfs"),
    ("quobyte", "quobyte", "quobyte"),
    ("downwardAPI", "downwarAPI", "downwardAPI"),
    ("fc", "fc", "fc"),
    ("flexVolume", "flexVolume", "flexVolume"),
    ("configMap", "configMap", "configMap"),
    ("azureFile", "azureFile", "azureFile"),
    ("vsphereVolume", "vsphereVolume", "vsphereVolume"),
    ("photonPersistentDisk", "photonPersistentDisk", "photonPersistentDisk"),
    ("portworxVolume", "portworxVolume", "portworxVolume"),
    ("azureDisk", "azureDisk", "azureDisk"),
    ("storageos", "storageos", "storageos"),
    ("projected", "projected", "projected"),
    ("scaleIO", "scaleIO", "scaleIO"),
    ("csi", "csi", "csi"),
    ("ephemeral", "ephemeral", "ephemeral"),
    ("image", "image", "image"),
];

/// Validates all volumes and returns the valid ones. `meta` is the pod's metadata, null for a
/// template.
pub(super) fn validate<'a>(
    volumes: &Cursor<'a>,
    meta: &Cursor<'_>,
    scope: Scope,
    causes: &mut Causes,
) -> KnownVolumes<'a> {
    let mut known = KnownVolumes::new();
    let pod = meta.field("name").text();
    let made: BTreeSet<String> = match pod {
        "" => BTreeSet::new(),
        pod => volumes
            .items()
            .filter(|volume| volume.field("ephemeral").is_set())
            .map(|volume| format!("{pod}-{}", volume.field("name").text()))
            .collect(),
    };
    let list = volumes.value().as_array().map(Vec::as_slice).unwrap_or_default();
    for (volume, value) in volumes.items().zip(list) {
        let before = causes.0.len();
        validate_source(&volume, pod, scope, causes);
        let name = volume.field("name");
        match name.text() {
            "" => causes.required(&name, ""),
            text => names::report(causes, &name, &names::dns_label(text)),
        }
        if known.contains_key(name.text()) {
            causes.duplicate(&name);
        }
        if causes.0.len() == before {
            let name = value.get("name").and_then(Value::as_str).unwrap_or_default();
            known.insert(name, value);
        }
        let claim = volume.field("persistentVolumeClaim");
        let claim = claim.field("claimName");
        if claim.is_set() && made.contains(claim.text()) {
            let detail = "must not reference a PVC that gets created for an ephemeral volume";
            causes.invalid(&claim, detail);
        }
    }
    known
}

fn validate_source(volume: &Cursor<'_>, pod: &str, scope: Scope, causes: &mut Causes) {
    let mut given = false;
    // Usually there are a name and one source.
    let fields = volume.value().as_object();
    let is_given =
        |field: &str| fields.is_some_and(|fields| fields.keys().any(|given| given == field));
    for (field, forbidden_as, called) in SOURCES {
        if !is_given(field) {
            continue;
        }
        let source = volume.field(field);
        if !source.is_set() {
            continue;
        }
        if given {
            let at = volume.field(forbidden_as);
            causes.forbidden(&at, "may not specify more than 1 volume type");
        } else {
            given = true;
            validate_one(field, &source.called(called), volume, pod, scope, causes);
        }
        if field == "iscsi" {
            inline_volumes::validate_iscsi_name(volume, &source, causes);
        }
    }
    if !given {
        causes.required(volume, "must specify a volume type");
    }
}

fn validate_one(
    field: &str,
    source: &Cursor<'_>,
    volume: &Cursor<'_>,
    pod: &str,
    scope: Scope,
    causes: &mut Causes,
) {
    match field {
        "emptyDir" => {
            let limit = source.field("sizeLimit");
            if limit.is_set() && quantity(limit.value()).is_negative() {
                let detail = "SizeLimit field must be a valid resource quantity";
                causes.forbidden(&limit, detail);
            }
        }
        "hostPath" => validate_host_path(source, causes),
        "gitRepo" => {
            required(source, "repository", causes);
            let directory = source.field("directory");
            validate_descending_path(&directory, directory.text(), causes);
        }
        "secret" => {
            required(source, "secretName", causes);
            validate_files(source, causes);
        }
        "configMap" => {
            required(source, "name", causes);
            validate_files(source, causes);
        }
        "nfs" => {
            required(source, "server", causes);
            required(source, "path", causes);
            let path = source.field("path");
            if !path.text().starts_with('/') {
                causes.invalid_as(&path, path.text(), "must be an absolute path");
            }
        }
        "persistentVolumeClaim" => required(source, "claimName", causes),
        "downwardAPI" => {
            validate_mode(&source.field("defaultMode"), causes);
            let items = source.field("items");
            for file in items.items() {
                validate_downward_file(&source.at_value(file.value()), causes);
            }
        }
        "projected" => validate_projected(source, scope, causes),
        "csi" => validate_csi(source, causes),
        "ephemeral" => validate_ephemeral(source, volume, pod, causes),
        "image" => {
            if scope.is_pod {
                required(source, "reference", causes);
            }
            containers::validate_pull_policy(&source.field("pullPolicy"), causes);
        }
        field => inline_volumes::validate(field, source, causes),
    }
}

pub(super) fn required(holder: &Cursor<'_>, field: &str, causes: &mut Causes) {
    if holder.field(field).text().is_empty() {
        causes.required(&holder.field(field), "");
    }
}

fn validate_host_path(source: &Cursor<'_>, causes: &mut Causes) {
    let path = source.field("path");
    if path.text().is_empty() {
        return causes.required(&path, "");
    }
    validate_no_backsteps(&path, path.text(), causes);
    let kind = source.field("type");
    let kinds = [
        "",
        "BlockDevice",
        "CharDevice",
        "Directory",
        "DirectoryOrCreate",
        "File",
        "FileOrCreate",
        "Socket",
    ];
    if kind.is_set() && !kinds.contains(&kind.text()) {
        causes.not_supported(&kind, &kinds);
    }
}

fn validate_mode(mode: &Cursor<'_>, causes: &mut Causes) {
    if mode.int().is_some_and(|bits| !(0..=0o777).contains(&bits)) {
        causes.invalid(mode, FILE_MODE);
    }
}

fn validate_files(source: &Cursor<'_>, causes: &mut Causes) {
    validate_mode(&source.field("defaultMode"), causes);
    let items = source.field("items");
    for item in items.items() {
        validate_key_to_path(&item, causes);
    }
}

fn validate_key_to_path(item: &Cursor<'_>, causes: &mut Causes) {
    required(item, "key", causes);
    required(item, "path", causes);
    let path = item.field("path");
    validate_local_path(&path, path.text(), causes);
    validate_mode(&item.field("mode"), causes);
}

/// Validates a file with a field of the pod. Errors have the path of the whole list.
fn validate_downward_file(file: &Cursor<'_>, causes: &mut Causes) {
    required(file, "path", causes);
    let path = file.field("path");
    validate_local_path(&path, path.text(), causes);
    let (field, resource) = (file.field("fieldRef"), file.field("resourceFieldRef"));
    if field.is_set() {
        env::validate_field_ref(&field, &env::VOLUME_FIELDS, causes);
        if resource.is_set() {
            let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
            causes.invalid_as(file, "resource", detail);
        }
    } else if resource.is_set() {
        env::validate_resource_ref(&resource, true, causes);
    } else {
        causes.required(file, "one of fieldRef and resourceFieldRef is required");
    }
    validate_mode(&file.field("mode"), causes);
}

fn validate_projected(projected: &Cursor<'_>, scope: Scope, causes: &mut Causes) {
    validate_mode(&projected.field("defaultMode"), causes);
    let mut paths = BTreeSet::new();
    let sources = projected.field("sources");
    let mut conflict = |path: String, shown: &str, causes: &mut Causes| {
        if !path.is_empty() && !paths.insert(path) {
            causes.invalid_as(projected, shown, "conflicting duplicate paths");
        }
    };
    for source in sources.items() {
        let mut given = 0;
        for field in ["secret", "configMap"] {
            let reference = source.field(field);
            if !reference.is_set() {
                continue;
            }
            given += 1;
            required(&reference, "name", causes);
            let items = reference.field("items");
            for item in items.items() {
                validate_key_to_path(&item, causes);
                let path = item.field("path").text().to_owned();
                conflict(path, reference.field("name").text(), causes);
            }
        }
        let downward = source.field("downwardAPI");
        if downward.is_set() {
            given += 1;
            let items = downward.field("items");
            for file in items.items() {
                validate_downward_file(&downward.at_value(file.value()), causes);
                let path = file.field("path").text();
                conflict(path.to_owned(), path, causes);
            }
        }
        let token = source.field("serviceAccountToken");
        if token.is_set() {
            given += 1;
            validate_token(projected, &token, scope, causes);
        }
        let bundle = source.field("clusterTrustBundle");
        if bundle.is_set() {
            given += 1;
            validate_trust_bundle(&bundle, causes);
            let path = bundle.field("path").text();
            conflict(path.to_owned(), path, causes);
        }
        let certificate = source.field("podCertificate");
        if certificate.is_set() {
            given += 1;
            validate_certificate(&certificate, causes);
        }
        if given > 1 {
            let detail = "may not specify more than 1 volume type per source";
            causes.forbidden(&source, detail);
        }
    }
}

fn validate_token(projected: &Cursor<'_>, token: &Cursor<'_>, scope: Scope, causes: &mut Causes) {
    let life = token.field("expirationSeconds");
    let seconds = life.int().unwrap_or(0);
    if seconds < LEAST_TOKEN_SECONDS {
        let detail = "may not specify a duration less than 10 minutes";
        causes.invalid_as(&life, seconds, detail);
    }
    if seconds > 1 << 32 {
        let detail = "may not specify a duration larger than 2^32 seconds";
        causes.invalid_as(&life, seconds, detail);
    }
    let (path, at) = (token.field("path"), projected.field("path"));
    if path.text().is_empty() {
        causes.required(&at, "");
    } else if !scope.token_path_anywhere {
        validate_local_path(&at, path.text(), causes);
    }
}

pub(super) fn has_odd_token_paths(spec: &Value) -> bool {
    let volumes = spec.get("volumes").and_then(Value::as_array).into_iter().flatten();
    volumes
        .filter_map(|volume| volume.get("projected")?.get("sources")?.as_array())
        .flatten()
        .filter_map(|source| source.get("serviceAccountToken")?.get("path")?.as_str())
        .any(|path| {
            let mut causes = Causes::default();
            validate_local_path(&Cursor::top(&Value::Null, ""), path, &mut causes);
            !causes.is_empty()
        })
}

fn validate_trust_bundle(bundle: &Cursor<'_>, causes: &mut Causes) {
    let (name, signer) = (bundle.field("name"), bundle.field("signerName"));
    let selector = bundle.field("labelSelector");
    match (name.is_set(), signer.is_set()) {
        (true, true) => {
            causes.invalid(bundle, "only one of name and signerName may be used");
        }
        (true, false) => {
            if name.text().is_empty() {
                causes.required(&name, "must be a valid object name");
            }
            // The name of a signer's bundle begins with the signer's name and a colon.
            let text = name.text().rsplit(':').next().unwrap_or_default();
            for problem in names::dns_subdomain(text) {
                let detail = format!("not a valid clustertrustbundlename: {problem}");
                causes.invalid(&name, &detail);
            }
            if selector.is_set() {
                let detail = "labelSelector must be unset if name is specified";
                causes.invalid(&selector, detail);
            }
        }
        (false, true) => {
            if signer.text().is_empty() {
                causes.required(&signer, "must be a valid signer name");
            }
            validate_signer(&signer, causes);
            validate_label_selector(&selector, false, causes);
        }
        (false, false) => {
            causes.required(bundle, "either name or signerName must be specified");
        }
    }
    required(bundle, "path", causes);
    let path = bundle.field("path");
    validate_local_path(&path, path.text(), causes);
}

/// Validates the name of a signer of certificates: `domain/path`.
fn validate_signer(signer: &Cursor<'_>, causes: &mut Causes) {
    let text = signer.text();
    if text.is_empty() {
        return causes.required(signer, "");
    }
    let Some((domain, path)) = text.split_once('/').filter(|(_, path)| !path.contains('/')) else {
        let detail =
            "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        return causes.invalid(signer, detail);
    };
    for part in domain.split('.') {
        names::report_as(causes, signer, part, &names::dns_label(part));
    }
    if !domain.contains('.') {
        let detail = "should be a domain with at least two segments separated by dots";
        causes.invalid_as(signer, domain, detail);
    }
    names::report_as(causes, signer, path, &names::dns_subdomain(path));
}

fn validate_certificate(certificate: &Cursor<'_>, causes: &mut Causes) {
    validate_signer(&certificate.field("signerName"), causes);
    let key = certificate.field("keyType");
    let kinds = ["ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519", "RSA3072", "RSA4096"];
    if !kinds.contains(&key.text()) {
        causes.not_supported_as(&key, key.text(), &kinds);
    }
    let mut given = 0;
    for field in ["credentialBundlePath", "keyPath", "certificateChainPath"] {
        let path = certificate.field(field);
        if !path.text().is_empty() {
            given += 1;
            validate_local_path(&path, path.text(), causes);
        }
    }
    if given == 0 {
        let detail = "specify at least one of credentialBundlePath, keyPath, and \
                      certificateChainPath";
        causes.required(certificate, detail);
    }
}

fn validate_csi(csi: &Cursor<'_>, causes: &mut Causes) {
    let driver = csi.field("driver");
    if driver.text().is_empty() {
        causes.required(&driver, "");
    } else {
        if driver.text().len() > 63 {
            causes.too_long(&driver, 63);
        }
        let problems = names::dns_subdomain(&driver.text().to_lowercase());
        names::report_as(causes, &driver, driver.text(), &problems);
    }
    let secret = csi.field("nodePublishSecretRef");
    if secret.is_set() {
        let name = secret.field("name");
        match name.text() {
            "" => causes.required(&name, ""),
            text => {
                names::report_as(causes, &csi.field("name"), text, &names::dns_subdomain(text));
            }
        }
    }
}

fn validate_ephemeral(ephemeral: &Cursor<'_>, volume: &Cursor<'_>, pod: &str, causes: &mut Causes) {
    let template = ephemeral.field("volumeClaimTemplate");
    if !template.is_set() {
        causes.required(&template, "");
    } else {
        let meta = template.field("metadata");
        validate_annotations(&meta.field("annotations"), causes);
        validate_labels(&meta.field("labels"), causes);
        for (field, value) in meta.entries() {
            if !matches!(field, "annotations" | "labels") && value.is_set() {
                causes.forbidden(&meta.field(field), "cannot be set");
            }
        }
        validate_claim(&template.field("spec"), causes);
    }
    let name = volume.field("name");
    if !pod.is_empty() && !name.text().is_empty() {
        let claim = format!("{pod}-{}", name.text());
        for problem in names::dns_subdomain(&claim) {
            causes.invalid(&name, &format!("PVC name {claim:?}: {problem}"));
        }
    }
}

fn validate_claim(spec: &Cursor<'_>, causes: &mut Causes) {
    let modes = spec.field("accessModes");
    if modes.is_empty() {
        causes.required(&modes, "at least 1 access mode is required");
    }
    validate_label_selector(&spec.field("selector"), false, causes);
    let supported = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
    let (mut once_pod, mut other) = (false, false);
    for mode in modes.items() {
        if !supported.contains(&mode.text()) {
            causes.not_supported_as(&modes, mode.text(), &supported);
        } else if mode.text() == "ReadWriteOncePod" {
            once_pod = true;
        } else {
            other = true;
        }
    }
    if once_pod && other {
        causes.forbidden(&modes, "may not use ReadWriteOncePod with other access modes");
    }
    let resources = spec.field("resources");
    let requests = resources.field("requests");
    let storage = resources.key("storage").at_value(requests.key("storage").value());
    if !storage.is_set() {
        causes.required(&storage, "");
    } else if quantity(storage.value()).sign() <= 0 {
        causes.invalid(&storage, "must be greater than zero");
    }
    validate_class(&spec.field("storageClassName"), causes);
    let mode = spec.field("volumeMode");
    if mode.is_set() && !matches!(mode.text(), "Block" | "Filesystem") {
        causes.not_supported(&mode, &["Block", "Filesystem"]);
    }
    validate_data_sources(spec, causes);
    validate_class(&spec.field("volumeAttributesClassName"), causes);
}

/// Validates the data source of a new volume, under its older and its newer name.
fn validate_data_sources(spec: &Cursor<'_>, causes: &mut Causes) {
    let (source, reference) = (spec.field("dataSource"), spec.field("dataSourceRef"));
    for at in [&source, &reference].into_iter().filter(|at| at.is_set()) {
        required(at, "name", causes);
        required(at, "kind", causes);
        let (group, kind) = (at.field("apiGroup"), at.field("kind").text());
        if !group.text().is_empty() {
            names::report(causes, &group, &names::dns_subdomain(group.text()));
        } else if kind != "PersistentVolumeClaim" {
            let detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            causes.invalid_as(at, kind, detail);
        }
    }
    let namespace = reference.field("namespace");
    if !namespace.text().is_empty() {
        names::report(causes, &namespace, &names::dns_label(namespace.text()));
    }
    let same = ["apiGroup", "kind", "name"]
        .iter()
        .all(|field| source.field(field).value() == reference.field(field).value());
    let detail = match (source.is_set(), reference.is_set()) {
        (true, true) if !namespace.text().is_empty() => {
            "may not be specified when dataSourceRef.namespace is specified"
        }
        (true, true) if !same => "must match dataSourceRef",
        _ => return,
    };
    // Upstream shows the path here, which is empty as JSON.
    causes.invalid_as(spec, BadValue::literal("{}".to_owned()), detail);
}

fn validate_class(class: &Cursor<'_>, causes: &mut Causes) {
    if !class.text().is_empty() {
        names::report(causes, class, &names::dns_subdomain(class.text()));
    }
}
