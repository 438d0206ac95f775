//! One manifest as a static pod: [`read`], which makes of a text what an API server and a scheduler would
//! have made of it, or says what is wrong where.
//!
//! Pure: the text is given, and so is the time. Which files there are is known elsewhere; whether the node
//! takes the pod is for admission to say.

use objects::field::Step;
use objects::rules::{self, Setting};
use objects::schema::{DecodeError, Schema};
use objects::timestamp::Timestamp;
use objects::yaml::{self, Mark, Node, Problem};
use objects::{FeatureGates, FieldPath, YamlError, catalog};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use super::references;
use crate::pods::pod_set::Read;
use crate::runtime::lower::Origin;
use crate::runtime::lower::annotations::{CONFIG_SEEN, CONFIG_SOURCE};

/// What the manifest of a static pod hashes to, and what its uid is.
pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";

/// What is the same for all manifests of a node.
#[derive(Debug, Clone, Copy)]
pub struct Around<'a> {
    /// The node's name.
    pub node: &'a str,
    pub gates: &'a FeatureGates,
}

/// Why a text is no static pod: everything that is wrong, each with its place in the text.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct ManifestError(pub Vec<YamlError>);

impl ManifestError {
    fn at(mark: Mark, path: FieldPath, problem: impl Into<String>) -> ManifestError {
        ManifestError(vec![YamlError { mark, path, problem: Problem::Other(problem.into()) }])
    }
}

/// Reads the pod in `text`. `place` tells manifests of equal text apart: where the file is.
pub fn read(
    text: &str,
    place: &str,
    around: Around<'_>,
    now: Timestamp,
) -> Result<Read, ManifestError> {
    let document = document(text)?;
    let mut pod = decoded(&document)?;
    dress(&mut pod, place, around.node, now);
    let Some(resource) = catalog::of_kind("v1", "Pod") else {
        return Err(ManifestError::at(Mark::START, FieldPath::root(), "pods are not known"));
    };
    rules::set_defaults(resource, &mut pod);
    let setting = Setting { gates: around.gates, allow_privileged: true, now };
    let causes = rules::validate_create(resource, &pod, &setting);
    let found = causes.0.into_iter().map(|cause| located(&document, &cause.field, cause.message));
    let mut problems: Vec<YamlError> = found.collect();
    if let Some((path, kind)) = references::of_api(&pod) {
        let words = format!("static pods may not reference {kind}");
        problems.push(YamlError {
            mark: document.locate(&path),
            path,
            problem: Problem::Other(words),
        });
    }
    if !problems.is_empty() {
        return Err(ManifestError(problems));
    }
    let text = pod.to_string();
    match serde_json::from_value(pod) {
        Ok(pod) => Ok(Read { pod: std::sync::Arc::new(pod), text: text.into() }),
        Err(error) => Err(ManifestError::at(Mark::START, FieldPath::root(), error.to_string())),
    }
}

/// The one document of a file.
fn document(text: &str) -> Result<Node, ManifestError> {
    let (documents, errors) = yaml::parse(text);
    if !errors.is_empty() {
        return Err(ManifestError(errors));
    }
    let mut whole = documents.into_iter().filter(|document| !document.is_null());
    let Some(document) = whole.next() else {
        let words = "the file is empty; a static pod is one object of kind Pod";
        return Err(ManifestError::at(Mark::START, FieldPath::root(), words));
    };
    if let Some(second) = whole.next() {
        let words = "a second object begins here; a file holds one static pod";
        return Err(ManifestError::at(second.mark, FieldPath::root(), words));
    }
    for (field, wanted) in [("apiVersion", "v1"), ("kind", "Pod")] {
        let found = document.get_text(field);
        if found != Some(wanted) {
            let path = FieldPath::of(field);
            let found = found.map_or("nothing".to_owned(), |found| format!("{found:?}"));
            let words = format!("should be {wanted:?}, found {found}");
            return Err(ManifestError::at(document.locate(&path), path, words));
        }
    }
    Ok(document)
}

/// The pod in the form that rules expect. Fields nobody knows are dropped, as upstream drops them.
fn decoded(document: &Node) -> Result<Value, ManifestError> {
    let schema = Schema::served();
    let known = catalog::of_kind("v1", "Pod").and_then(|resource| resource.type_id(schema));
    let Some(type_id) = known else {
        return Err(ManifestError::at(Mark::START, FieldPath::root(), "pods are not known"));
    };
    schema.decode_value(type_id, document.to_json()).map(|decoded| decoded.value).map_err(|error| {
        let path = match &error {
            DecodeError::Type { path, .. }
            | DecodeError::Value { path, .. }
            | DecodeError::TooDeep { path } => path.as_str(),
            DecodeError::Syntax(_) | DecodeError::TooLarge(_) => "",
        };
        let words = match &error {
            DecodeError::Type { found, wanted, .. } => format!("expected {wanted}, found {found}"),
            other => other.to_string(),
        };
        ManifestError(vec![located(document, path, words)])
    })
}

fn located(document: &Node, field: &str, words: String) -> YamlError {
    let path = path(field);
    YamlError { mark: document.locate(&path), path, problem: Problem::Other(words) }
}

/// `spec.containers[0].resources.limits[cpu]` as a path.
fn path(text: &str) -> FieldPath {
    let mut steps = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(inside) = rest.strip_prefix('[') {
            let (key, after) = inside.split_once(']').unwrap_or((inside, ""));
            steps.push(match key.parse() {
                Ok(index) => Step::Index(index),
                Err(_) => Step::Key(key.to_owned()),
            });
            rest = after;
        } else {
            rest = rest.strip_prefix('.').unwrap_or(rest);
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            if end > 0 {
                steps.push(Step::Field(rest[..end].to_owned()));
            }
            rest = &rest[end..];
        }
    }
    steps.into_iter().collect()
}

/// Gives the pod the name, uid, node and marks of a static pod.
fn dress(pod: &mut Value, place: &str, node: &str, now: Timestamp) {
    // A uid in a file is one of some API's, and two files may have the same.
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
        (CONFIG_SOURCE, Origin::File.as_str()),
    ];
    for (name, value) in marks {
        metadata["annotations"][name] = value.into();
    }
    let spec = &mut pod["spec"];
    spec["nodeName"] = node.into();
    tolerate(spec);
    pod["status"] = json!({"phase": "Pending"});
}

/// Nothing that befalls the node drives a static pod away.
fn tolerate(spec: &mut Value) {
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

/// 32 hexadecimal digits, the same after every restart. Does not equal upstream's, which prints Go values;
/// nothing compares the two.
fn hash(node: &str, place: &str, content: &str) -> String {
    let mut hash = Sha256::new();
    for part in [node, place, content] {
        hash.update(part);
        // A byte that no text has, so that no two parts run together.
        hash.update([0xff]);
    }
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
