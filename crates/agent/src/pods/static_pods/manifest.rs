//! Parses one manifest as a static pod: [`read`] applies the defaults and validation of an API server and the
//! node name that a scheduler would set, or returns located errors.
//!
//! Pure: text and time are arguments. It does not list files, and admission decides if the pod runs.

use objects::rules::{self, RuleContext};
use objects::schema::{DecodeError, Schema};
use objects::timestamp::Timestamp;
use objects::yaml::{self, Mark, Node, Problem};
use objects::{FeatureGates, FieldPath, YamlError, catalog};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use super::references;
use crate::pods::pod_set::PodWithManifest;
use crate::runtime::lower::ConfigSource;
use crate::runtime::lower::annotations::{CONFIG_SEEN, CONFIG_SOURCE};

/// The annotation with the hash of a static pod's manifest, which is also its UID.
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";

/// The settings that are the same for all manifests of a node.
#[derive(Debug, Clone, Copy)]
pub struct ManifestContext<'a> {
    /// The node's name.
    pub node: &'a str,
    pub gates: &'a FeatureGates,
}

/// All errors of a manifest, each with its position in the text.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct ManifestError(pub Vec<YamlError>);

impl ManifestError {
    fn at(mark: Mark, path: FieldPath, problem: impl Into<String>) -> ManifestError {
        ManifestError(vec![YamlError { mark, path, problem: Problem::Other(problem.into()) }])
    }
}

/// Parses the pod in `text`. `place` is the path of the file, which distinguishes manifests of equal text.
pub fn read(
    text: &str,
    place: &str,
    context: ManifestContext<'_>,
    now: Timestamp,
) -> Result<PodWithManifest, ManifestError> {
    let document = document(text)?;
    let mut pod = decoded(&document)?;
    apply_static_pod_defaults(&mut pod, place, context.node, now);
    let Some(resource) = catalog::of_kind("v1", "Pod") else {
        return Err(ManifestError::at(Mark::START, FieldPath::root(), "the schema has no pods"));
    };
    rules::set_defaults(resource, &mut pod);
    let setting = RuleContext { gates: context.gates, allow_privileged: true, now };
    let causes = rules::validate_create(resource, &pod, &setting);
    let found = causes.0.into_iter().map(|cause| located(&document, &cause.field, cause.message));
    let mut problems: Vec<YamlError> = found.collect();
    if let Some((path, kind)) = references::of_api(&pod) {
        let message = format!("static pods may not reference {kind}");
        problems.push(YamlError {
            mark: document.locate(&path),
            path,
            problem: Problem::Other(message),
        });
    }
    if !problems.is_empty() {
        return Err(ManifestError(problems));
    }
    let text = pod.to_string();
    match serde_json::from_value(pod) {
        Ok(pod) => Ok(PodWithManifest { pod: std::sync::Arc::new(pod), text: text.into() }),
        Err(error) => Err(ManifestError::at(Mark::START, FieldPath::root(), error.to_string())),
    }
}

/// Returns the only document of a file.
fn document(text: &str) -> Result<Node, ManifestError> {
    let (documents, errors) = yaml::parse(text);
    if !errors.is_empty() {
        return Err(ManifestError(errors));
    }
    let mut whole = documents.into_iter().filter(|document| !document.is_null());
    let Some(document) = whole.next() else {
        let message = "the file is empty; a static pod is one object of kind Pod";
        return Err(ManifestError::at(Mark::START, FieldPath::root(), message));
    };
    if let Some(second) = whole.next() {
        let message = "a second object begins here; a file must contain one static pod";
        return Err(ManifestError::at(second.mark, FieldPath::root(), message));
    }
    for (field, wanted) in [("apiVersion", "v1"), ("kind", "Pod")] {
        let found = document.get_text(field);
        if found != Some(wanted) {
            let path = FieldPath::of(field);
            let found = found.map_or("nothing".to_owned(), |found| format!("{found:?}"));
            let message = format!("should be {wanted:?}, found {found}");
            return Err(ManifestError::at(document.locate(&path), path, message));
        }
    }
    Ok(document)
}

/// Decodes the pod into the form that the rules expect. Unknown fields are dropped, as upstream does.
fn decoded(document: &Node) -> Result<Value, ManifestError> {
    let schema = Schema::served();
    let known = catalog::of_kind("v1", "Pod").and_then(|resource| resource.type_id(schema));
    let Some(type_id) = known else {
        return Err(ManifestError::at(Mark::START, FieldPath::root(), "the schema has no pods"));
    };
    schema.decode_value(type_id, document.to_json()).map(|decoded| decoded.value).map_err(|error| {
        let path = match &error {
            DecodeError::Type { path, .. }
            | DecodeError::Value { path, .. }
            | DecodeError::TooDeep { path } => path.as_str(),
            DecodeError::Syntax(_) | DecodeError::TooLarge(_) => "",
        };
        let message = match &error {
            DecodeError::Type { found, wanted, .. } => format!("expected {wanted}, found {found}"),
            other => other.to_string(),
        };
        ManifestError(vec![located(document, path, message)])
    })
}

fn located(document: &Node, field: &str, message: String) -> YamlError {
    let path = FieldPath::parse(field);
    YamlError { mark: document.locate(&path), path, problem: Problem::Other(message) }
}

/// Sets the name, UID, node and annotations of a static pod.
fn apply_static_pod_defaults(pod: &mut Value, place: &str, node: &str, now: Timestamp) {
    // A UID in a file comes from an API server, and two files may have the same.
    if let Some(metadata) = pod["metadata"].as_object_mut() {
        metadata.remove("uid");
    }
    let hash = hash(node, place, &pod.to_string());
    let metadata = &mut pod["metadata"];
    if let Some(name) = metadata["name"].as_str().filter(|name| !name.is_empty()) {
        metadata["name"] = format!("{name}-{}", node.to_lowercase()).into();
    }
    if metadata["namespace"].as_str().is_none_or(str::is_empty) {
        metadata["namespace"] = "default".into();
    }
    metadata["uid"] = hash.as_str().into();
    metadata["creationTimestamp"] = Value::Null;
    let marks = [
        (CONFIG_HASH, hash.as_str()),
        (CONFIG_SEEN, &now.to_micros_text()),
        (CONFIG_SOURCE, ConfigSource::File.as_str()),
    ];
    for (name, value) in marks {
        metadata["annotations"][name] = value.into();
    }
    let spec = &mut pod["spec"];
    spec["nodeName"] = node.into();
    add_no_execute_toleration(spec);
    pod["status"] = json!({"phase": "Pending"});
}

/// Adds a toleration of all `NoExecute` taints, so that none evicts a static pod.
fn add_no_execute_toleration(spec: &mut Value) {
    let toleration = json!({"operator": "Exists", "effect": "NoExecute"});
    if !spec["tolerations"].is_array() {
        spec["tolerations"] = json!([]);
    }
    if let Some(all) = spec["tolerations"].as_array_mut()
        && !all.contains(&toleration)
    {
        all.push(toleration);
    }
}

/// Returns 32 hexadecimal digits that are stable across restarts. They differ from upstream's, which hashes
/// printed Go values; the two are never compared.
fn hash(node: &str, place: &str, content: &str) -> String {
    let mut hash = Sha256::new();
    for part in [node, place, content] {
        hash.update(part);
        // A byte that no UTF-8 text contains separates the parts.
        hash.update([0xff]);
    }
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
