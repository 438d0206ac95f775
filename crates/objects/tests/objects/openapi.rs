//! OpenAPI documents equal the recorded ones, apart from descriptions and our own fields.

use std::sync::LazyLock;

use objects::catalog::RESOURCES;
use objects::openapi::OpenApi;
use objects::schema::Schema;
use serde_json::{Value, json};

use crate::answers::answer;

static DOCUMENTS: LazyLock<OpenApi> =
    LazyLock::new(|| OpenApi::render(Schema::served(), RESOURCES, "v1.37.0"));

fn v2() -> Value {
    serde_json::from_slice(&DOCUMENTS.v2.body).unwrap()
}

fn v3(key: &str) -> Value {
    serde_json::from_slice(&DOCUMENTS.v3[key].body).unwrap()
}

/// Returns a value without descriptions and without fields that upstream does not have.
fn bare(value: &Value) -> Value {
    match value {
        Value::Object(entries) => entries
            .iter()
            .filter(|(key, value)| *key != "description" || !value.is_string())
            .filter(|(key, _)| !key.starts_with("qosResources"))
            .map(|(key, value)| (key.clone(), bare(value)))
            .collect(),
        Value::Array(items) => items.iter().map(bare).collect(),
        other => other.clone(),
    }
}

#[test]
fn definitions_equal_the_recorded_ones() {
    let recorded = answer("openapi/v2", "/openapi/v2");
    let ours = v2();
    let definitions = recorded["definitions(kept)"].as_object().unwrap();
    assert!(definitions.len() >= 50);
    for (name, definition) in definitions {
        let mut our = bare(&ours["definitions"][name]);
        let mut definition = definition.clone();
        if name.ends_with(".DeleteOptions") {
            // Options belong to every group, and we have fewer groups.
            let all = definition["x-kubernetes-group-version-kind"].take();
            let some = our["x-kubernetes-group-version-kind"].take();
            let all = all.as_array().unwrap();
            assert!(some.as_array().unwrap().iter().all(|kind| all.contains(kind)));
        }
        assert_eq!(our, definition, "{name}");
    }
}

#[test]
fn every_definition_and_field_has_a_description() {
    for (name, definition) in v2()["definitions"].as_object().unwrap() {
        let words = |value: &Value| value["description"].as_str().is_some_and(|doc| doc.len() > 5);
        assert!(words(definition), "{name}");
        for (field, property) in definition["properties"].as_object().into_iter().flatten() {
            assert!(words(property), "{name} {field}");
        }
    }
}

#[test]
fn references_lead_somewhere() {
    fn check(document: &Value, value: &Value) {
        match value {
            Value::Object(entries) => {
                if let Some(Value::String(target)) = entries.get("$ref") {
                    let pointer = target.strip_prefix('#').unwrap();
                    assert!(document.pointer(pointer).is_some(), "{target}");
                }
                entries.values().for_each(|value| check(document, value));
            }
            Value::Array(items) => items.iter().for_each(|value| check(document, value)),
            _ => {}
        }
    }
    let document = v2();
    check(&document, &document);
    for key in DOCUMENTS.v3.keys() {
        let document = v3(key);
        check(&document, &document);
    }
}

#[test]
fn recorded_paths_of_what_we_serve_are_there() {
    let recorded = answer("openapi/v2", "/openapi/v2");
    let ours = v2();
    let paths = ours["paths"].as_object().unwrap();
    for path in recorded["paths(kept)"].as_array().unwrap() {
        let path = path.as_str().unwrap();
        let proxy = path.ends_with("/proxy") || path.ends_with("/proxy/{path}");
        assert!(proxy || paths.contains_key(path), "{path}");
    }
    let top = |value: &Value| {
        let mut keys: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
        keys.sort();
        keys
    };
    let mut keys: Vec<String> = recorded["top_keys"]
        .as_array()
        .unwrap()
        .iter()
        .map(|k| k.as_str().unwrap().to_owned())
        .collect();
    keys.sort();
    assert_eq!(top(&ours), keys);
    assert_eq!(ours["swagger"], recorded["swagger"]);
}

/// Returns a parameter, or the target of a reference, without its description.
fn parameter(document: &Value, given: &Value) -> Value {
    let target = given.get("$ref").and_then(Value::as_str);
    let given = target.map_or(given, |target| document.pointer(&target[1..]).unwrap());
    bare(given)
}

#[test]
fn an_operation_has_the_shape_of_the_recorded_one() {
    let recorded = &answer("openapi/v2", "/openapi/v2")["example_operation"];
    let document = v2();
    let path = recorded["path"].as_str().unwrap();
    let mut ours = document["paths"][path]["patch"].clone();
    let mut recorded = recorded["patch"].clone();
    let parameters = ours["parameters"].take();
    let parameters: Vec<Value> =
        parameters.as_array().unwrap().iter().map(|p| parameter(&document, p)).collect();
    let names: Vec<&str> = parameters.iter().map(|p| p["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["body", "dryRun", "fieldManager", "fieldValidation", "force"]);
    let theirs = recorded["parameters"].take();
    for (at, theirs) in theirs.as_array().unwrap().iter().enumerate() {
        match theirs.get("$ref") {
            Some(target) => {
                let name = target.as_str().unwrap().rsplit('/').next().unwrap();
                assert_eq!(name.rsplit_once('-').unwrap().0, names[at]);
            }
            // kubectl before 1.27 finds these only if they are not references.
            None => assert_eq!(parameters[at], bare(theirs)),
        }
    }
    assert_eq!(ours, recorded);
}

#[test]
fn documents_of_the_third_edition_have_the_recorded_schemas() {
    for (key, path) in [
        ("api/v1", "/openapi/v3/api/v1"),
        ("apis/apps/v1", "/openapi/v3/apis/apps/v1"),
        ("apis/batch/v1", "/openapi/v3/apis/batch/v1"),
    ] {
        let recorded = answer("openapi/v3", path);
        let ours = v3(key);
        for top in recorded["top_keys"].as_array().unwrap() {
            assert!(ours.get(top.as_str().unwrap()).is_some(), "{key} {top}");
        }
        assert_eq!(ours["openapi"], recorded["openapi"]);
        let schemas = &ours["components"]["schemas"];
        for (name, fields) in recorded["schemas(kept)"].as_object().unwrap() {
            let our: Vec<&String> = schemas[name]["properties"]
                .as_object()
                .into_iter()
                .flat_map(|properties| properties.keys())
                .filter(|field| !field.starts_with("qosResources"))
                .collect();
            assert_eq!(json!(our), *fields, "{key} {name}");
        }
        if recorded["gvk_of_pod"].is_array() {
            let pod = &schemas["io.k8s.api.core.v1.Pod"];
            assert_eq!(pod["x-kubernetes-group-version-kind"], recorded["gvk_of_pod"]);
        }
        let schemes = ours["components"]["securitySchemes"].as_object().unwrap();
        assert_eq!(json!(schemes.keys().collect::<Vec<_>>()), recorded["securitySchemes"]);
    }
}

#[test]
fn v3_wraps_references_and_has_zero_defaults() {
    let document = v3("api/v1");
    let schemas = &document["components"]["schemas"];
    let of = |type_: &str, field: &str| {
        bare(&schemas[format!("io.k8s.api.core.v1.{type_}")]["properties"][field])
    };
    let spec = "#/components/schemas/io.k8s.api.core.v1.PodSpec";
    assert_eq!(of("Pod", "spec"), json!({"allOf": [{"$ref": spec}], "default": {}}));
    let time = "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.Time";
    assert_eq!(of("PodCondition", "lastProbeTime"), json!({"allOf": [{"$ref": time}]}));
    assert_eq!(of("Container", "name"), json!({"default": "", "type": "string"}));
    let quantity = "#/components/schemas/io.k8s.apimachinery.pkg.api.resource.Quantity";
    let limits = json!({"additionalProperties": {"$ref": quantity}, "type": "object"});
    assert_eq!(of("ResourceRequirements", "limits"), limits);
    let protocol = json!({"default": "TCP", "enum": ["SCTP", "TCP", "UDP"], "type": "string"});
    assert_eq!(of("ContainerPort", "protocol"), protocol);
    let command = json!({
        "items": {"default": "", "type": "string"},
        "type": "array",
        "x-kubernetes-list-type": "atomic",
    });
    assert_eq!(of("Container", "command"), command);
    assert_eq!(of("Pod", "kind"), json!({"type": "string"}));
}

#[test]
fn the_index_leads_to_every_document_by_its_hash() {
    let index: Value = serde_json::from_slice(&DOCUMENTS.v3_index.body).unwrap();
    let recorded = answer("openapi/v3", "/openapi/v3");
    let paths = index["paths"].as_object().unwrap();
    assert_eq!(paths.len(), DOCUMENTS.v3.len());
    for (key, entry) in paths {
        assert!(recorded["paths"].get(key).is_some(), "{key} is not a key upstream has");
        let hash = &DOCUMENTS.v3[key].hash;
        assert_eq!(entry, &json!({"serverRelativeURL": format!("/openapi/v3/{key}?hash={hash}")}));
    }
}
