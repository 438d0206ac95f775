use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::*;
use crate::schema::{Schema, Shape, TypeId};

/// Returns a value in which every field is set.
fn full(schema: &Schema, shape: &Shape) -> Value {
    match shape {
        Shape::String => json!("text"),
        Shape::Bool => json!(true),
        Shape::Int32 | Shape::Int64 => json!(7),
        Shape::Float64 => json!(0.5),
        Shape::Quantity => json!("1500m"),
        Shape::IntOrString => json!("25%"),
        Shape::Time => json!("2026-01-02T03:04:05Z"),
        Shape::MicroTime => json!("2026-01-02T03:04:05.000006Z"),
        Shape::Bytes => json!("YQ=="),
        Shape::Any | Shape::Fields => json!({"a": {}}),
        Shape::Struct(id) => full_object(schema, *id),
        Shape::List(inner) => json!([full(schema, inner)]),
        Shape::Map(inner) => json!({"key": full(schema, inner)}),
    }
}

fn full_object(schema: &Schema, id: TypeId) -> Value {
    let fields = schema.get(id).fields.iter();
    let is_generated = |name: &str| !matches!(name, "managedFields" | "config" | "configSource");
    let fields = fields.filter(|field| is_generated(&field.name));
    let values = fields.map(|field| (field.name.clone(), full(schema, &field.shape)));
    Value::Object(values.collect::<Map<_, _>>())
}

/// Checks that a type reads and writes all fields of the schema, and zero values as the schema does.
fn check<T: DeserializeOwned + Serialize + Default>(name: &str) {
    let schema = Schema::served();
    let id = schema.find(name).unwrap();
    let mut object = full_object(schema, id);
    for field in ["apiVersion", "kind"] {
        object.as_object_mut().unwrap().remove(field);
    }
    let typed: T = serde_json::from_str(&object.to_string()).unwrap();
    assert_eq!(serde_json::to_value(&typed).unwrap(), object, "{name}");
    let from_value: T = serde_json::from_value(object.clone()).unwrap();
    assert_eq!(serde_json::to_value(&from_value).unwrap(), object, "{name}");
    assert_eq!(serde_json::to_value(T::default()).unwrap(), schema.zero(id), "{name}");
}

#[test]
fn every_field_of_the_schema_is_read_and_written() {
    check::<ConfigMap>("io.k8s.api.core.v1.ConfigMap");
    check::<Event>("io.k8s.api.core.v1.Event");
    check::<Lease>("io.k8s.api.coordination.v1.Lease");
    check::<Namespace>("io.k8s.api.core.v1.Namespace");
    check::<Node>("io.k8s.api.core.v1.Node");
    check::<Pod>("io.k8s.api.core.v1.Pod");
    check::<PodDisruptionBudget>("io.k8s.api.policy.v1.PodDisruptionBudget");
    check::<ReplicaSet>("io.k8s.api.apps.v1.ReplicaSet");
    check::<Secret>("io.k8s.api.core.v1.Secret");
    check::<Service>("io.k8s.api.core.v1.Service");
}

#[test]
fn null_is_absent_and_unknown_fields_are_skipped() {
    let pod: Pod = serde_json::from_value(json!({
        "kind": "Pod", "apiVersion": "v1", "later": [1, {"a": null}],
        "metadata": {"name": "p", "labels": null, "creationTimestamp": null, "managedFields": [{}]},
        "spec": {
            "containers": [{"name": "c", "resources": null, "ports": null, "securityContext": null}],
            "priority": null,
        },
        "status": null,
    }))
    .unwrap();
    let expected = Pod {
        metadata: ObjectMeta { name: "p".into(), ..ObjectMeta::default() },
        spec: PodSpec {
            containers: vec![Container { name: "c".into(), ..Container::default() }],
            ..PodSpec::default()
        },
        ..Pod::default()
    };
    assert_eq!(pod, expected);
}

#[test]
fn classes_of_qos_resources_are_read() {
    let pod: Pod = serde_json::from_value(json!({"spec": {
        "qosResources": [{"name": "pod", "class": "gold"}],
        "containers": [{"resources": {"qosResources": [{"name": "rdt", "class": "silver"}]}}],
    }}))
    .unwrap();
    assert_eq!(pod.spec.qos_resources[0].class, "gold");
    assert_eq!(pod.spec.containers[0].resources.qos_resources[0].class, "silver");
}

#[test]
fn malformed_values_are_named_in_the_error() {
    for (metadata, message) in [
        (json!({"creationTimestamp": "soon"}), "\"soon\" is not a time"),
        (json!({"name": 5}), "invalid type: integer `5`, expected a string"),
        (json!([]), "expected an object of type ObjectMeta"),
    ] {
        let error = serde_json::from_value::<ObjectMeta>(metadata).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    let port = |port: Value| serde_json::from_value::<ServicePort>(json!({"targetPort": port}));
    assert_eq!(port(json!(80)).unwrap().target_port, IntOrString::Int(80));
    assert_eq!(port(json!("web")).unwrap().target_port, IntOrString::String("web".into()));
    let error = port(json!(1_i64 << 40)).unwrap_err().to_string();
    assert!(error.contains("1099511627776 is not a 32-bit integer"), "{error}");
}
