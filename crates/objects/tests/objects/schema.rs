//! Every object of the recorded server is already in the canonical form of our schema.

use std::collections::BTreeSet;

use objects::catalog;
use objects::schema::{Schema, TypeId};
use serde_json::Value;

use crate::answers::scenarios;

/// Kinds in responses that are not resources.
const BESIDES: &[(&str, &str, &str)] = &[
    ("v1", "Status", "io.k8s.apimachinery.pkg.apis.meta.v1.Status"),
    ("v1", "APIGroup", "io.k8s.apimachinery.pkg.apis.meta.v1.APIGroup"),
    ("v1", "APIGroupList", "io.k8s.apimachinery.pkg.apis.meta.v1.APIGroupList"),
    ("v1", "APIResourceList", "io.k8s.apimachinery.pkg.apis.meta.v1.APIResourceList"),
    ("autoscaling/v1", "Scale", "io.k8s.api.autoscaling.v1.Scale"),
    ("policy/v1", "Eviction", "io.k8s.api.policy.v1.Eviction"),
];

fn type_of(object: &Value) -> Option<TypeId> {
    let api_version = object["apiVersion"].as_str()?;
    let kind = object["kind"].as_str()?;
    let schema = Schema::served();
    if let Some(resource) = catalog::of_kind(api_version, kind) {
        return resource.type_id(schema);
    }
    let item = kind.strip_suffix("List").and_then(|item| catalog::of_kind(api_version, item));
    if let Some(resource) = item {
        return schema.find(&format!("{}.{kind}", resource.package));
    }
    let (.., name) = BESIDES.iter().find(|(v, k, _)| *v == api_version && *k == kind)?;
    schema.find(name)
}

/// Collects objects and lists of served kinds, with values for placeholders that are not strings.
fn objects_in(value: &Value, found: &mut Vec<(TypeId, Value)>) {
    match value {
        Value::Object(entries) => match type_of(value) {
            Some(id) => found.push((id, with_values(value))),
            None if value["kind"].is_string() => {}
            None => entries.values().for_each(|value| objects_in(value, found)),
        },
        Value::Array(items) => items.iter().for_each(|value| objects_in(value, found)),
        _ => {}
    }
}

fn with_values(value: &Value) -> Value {
    match value {
        Value::String(text) if text == "<time>" => "2026-01-01T00:00:00Z".into(),
        Value::String(text) if text == "<microtime>" => "2026-01-01T00:00:00.000001Z".into(),
        Value::String(text) if text.starts_with("<nodeport-") => 30000.into(),
        Value::Array(items) => items.iter().map(with_values).collect(),
        Value::Object(entries) => {
            entries.iter().map(|(key, value)| (key.clone(), with_values(value))).collect()
        }
        other => other.clone(),
    }
}

#[test]
fn recorded_answers_are_in_canonical_form() {
    let schema = Schema::served();
    let mut kinds = BTreeSet::new();
    let mut count = 0;
    for scenario in scenarios() {
        let mut found = Vec::new();
        for step in &scenario.steps {
            objects_in(&step["response"]["body"], &mut found);
            objects_in(&step["response"]["events"], &mut found);
        }
        for (id, object) in found {
            let decoded = schema.decode_value(id, object.clone());
            let decoded = decoded.unwrap_or_else(|error| panic!("{}: {error}", scenario.id));
            assert_eq!(decoded.strict, Vec::<String>::new(), "{}", scenario.id);
            assert_eq!(decoded.value, object, "{}", scenario.id);
            kinds.insert(schema.get(id).full_name());
            count += 1;
        }
    }
    assert!(count > 1500, "only {count} objects were found");
    for resource in catalog::RESOURCES {
        let name = format!("{}.{}", resource.package, resource.kind);
        // Reviews and bindings are answered with a Status or not recorded.
        let stored = resource.subresource("status").is_some();
        assert!(kinds.contains(&name) || !stored, "no recorded object of {name}");
    }
}
