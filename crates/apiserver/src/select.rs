//! Label and field selectors of a list, watch or deletion: [`Selection`].

use std::borrow::Cow;
use std::collections::BTreeMap;

use objects::catalog::Resource;
use objects::selector::{FieldSelector, LabelSelector};
use serde::Deserialize;
use serde_json::Value;
use store::Entry;

use crate::codec;
use crate::error::ApiError;
use crate::read;
use crate::request::Request;
use crate::route::ResourcePath;

#[derive(Debug, Clone, Default)]
pub(crate) struct Selection {
    labels: LabelSelector,
    fields: FieldSelector,
}

/// The part of a stored object that label selectors need.
#[derive(Deserialize)]
struct Labelled<'a> {
    #[serde(borrow)]
    metadata: Labels<'a>,
}

#[derive(Deserialize)]
struct Labels<'a> {
    #[serde(default, borrow)]
    labels: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
}

impl Selection {
    pub(crate) fn of(request: &Request, path: &ResourcePath) -> Result<Selection, ApiError> {
        let bad = |error: &dyn std::fmt::Display| ApiError::bad_request(error.to_string());
        let labels =
            LabelSelector::parse(request.query.text("labelSelector")).map_err(|e| bad(&e))?;
        let fields =
            FieldSelector::parse(request.query.text("fieldSelector")).map_err(|e| bad(&e))?;
        for requirement in fields.requirements() {
            if let Some(complaint) = unknown_field(path.resource, &requirement.field) {
                return Err(ApiError::bad_request(complaint));
            }
        }
        Ok(Selection { labels, fields })
    }

    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Returns the only key that can match, if the selection names an object.
    pub(crate) fn only_key(&self, path: &ResourcePath) -> Option<String> {
        let name = self.fields.requires_exactly("metadata.name")?;
        let namespace = match (path.resource.namespaced, path.namespace.as_str()) {
            (true, "") => return None,
            (_, namespace) => namespace,
        };
        Some(codec::key(path.resource, namespace, name))
    }

    /// Returns true if a stored object matches. Parses only as much of it as the selection needs.
    pub(crate) fn matches_bytes(
        &self,
        resource: &Resource,
        entry: &Entry,
    ) -> Result<bool, ApiError> {
        if self.is_everything() {
            return Ok(true);
        }
        if !self.labels.is_empty() {
            let json = entry.value.get(4..).unwrap_or_default();
            let labelled: Labelled<'_> = serde_json::from_slice(json)
                .map_err(|error| ApiError::internal(format!("{}: {error}", entry.key)))?;
            let labels = &labelled.metadata.labels;
            if !self.labels.matches(|key| labels.get(key).map(AsRef::as_ref)) {
                return Ok(false);
            }
        }
        if self.fields.is_empty() {
            return Ok(true);
        }
        let object = read::load(resource, entry)?;
        Ok(self.fields_match(resource, &object))
    }

    fn fields_match(&self, resource: &Resource, object: &Value) -> bool {
        self.fields.requirements().iter().all(|requirement| {
            let found = field(resource, object, &requirement.field);
            (found == requirement.value) == requirement.equals
        })
    }
}

/// Returns the selectable fields of a resource, in addition to name and namespace.
fn selectable(resource: &Resource) -> &'static [&'static str] {
    match (resource.group, resource.plural) {
        ("", "pods") => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ],
        ("", "nodes") => &["spec.unschedulable"],
        ("", "namespaces") => &["status.phase"],
        ("", "secrets") => &["type"],
        ("", "services") => &["spec.clusterIP", "spec.type"],
        ("batch", "jobs") => &["status.successful"],
        ("", "events") => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        ("events.k8s.io", "events") => &[
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "regarding.resourceVersion",
            "regarding.fieldPath",
            "reason",
            "reportingController",
            "source",
            "type",
        ],
        _ => &[],
    }
}

/// Returns the error message for a field that cannot be selected by.
fn unknown_field(resource: &Resource, field: &str) -> Option<String> {
    let own = selectable(resource);
    // Nodes and namespaces have no selectable namespace; other cluster-scoped kinds accept the
    // field, as upstream has no rule against it.
    let placeless = matches!((resource.group, resource.plural), ("", "nodes" | "namespaces"));
    let common = field == "metadata.name" || (field == "metadata.namespace" && !placeless);
    if common || own.contains(&field) {
        return None;
    }
    Some(match (resource.group, own) {
        (_, []) => format!(
            "{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
        ),
        ("batch", _) => format!("field label {field:?} not supported for batchv1.Job"),
        _ => format!("field label not supported: {field}"),
    })
}

/// Returns the value of a selectable field, as selectors compare it.
fn field<'a>(resource: &Resource, object: &'a Value, name: &str) -> Cow<'a, str> {
    let text = |path: &str| {
        let mut value = object;
        for step in path.split('.') {
            value = &value[step];
        }
        match value {
            Value::String(text) => Cow::Borrowed(text.as_str()),
            Value::Null => Cow::Borrowed(""),
            other => Cow::Owned(other.to_string()),
        }
    };
    let flag = |path: &str| match text(path) {
        empty if empty.is_empty() => Cow::Borrowed("false"),
        given => given,
    };
    match (resource.plural, name) {
        ("pods", "status.podIP") => text("status.podIP"),
        // As recorded from upstream: the list never equals a single address.
        ("pods", "status.podIPs") => Cow::Borrowed(""),
        ("pods", "spec.hostNetwork") | ("nodes", "spec.unschedulable") => flag(name),
        ("jobs", "status.successful") => count(&object["status"]["succeeded"]),
        ("events", name) => event_field(object, name),
        _ => text(name),
    }
}

fn count(value: &Value) -> Cow<'_, str> {
    Cow::Owned(value.as_i64().unwrap_or(0).to_string())
}

/// Returns the field of an event in either group's spelling.
fn event_field<'a>(event: &'a Value, name: &str) -> Cow<'a, str> {
    let text = |value: &'a Value| Cow::Borrowed(value.as_str().unwrap_or_default());
    let spelt = |core: &str, events: &str| event.get(core).unwrap_or(&event[events]);
    let either = |first: &'a Value, second: &'a Value| match first.as_str() {
        Some(first) if !first.is_empty() => Cow::Borrowed(first),
        _ => text(second),
    };
    let component = &spelt("source", "deprecatedSource")["component"];
    let reporter = spelt("reportingComponent", "reportingController");
    match name {
        "source" => either(component, reporter),
        "reportingComponent" | "reportingController" => either(reporter, component),
        _ => match name.split_once('.') {
            Some(("involvedObject" | "regarding", subresource)) => {
                text(&spelt("involvedObject", "regarding")[subresource])
            }
            Some(("metadata", subresource)) => text(&event["metadata"][subresource]),
            _ => text(&event[name]),
        },
    }
}
