//! Bodies whose values would take far more memory than the text are rejected while they are
//! decoded, and the reports about a body are bounded.

use objects::FeatureGates;
use objects::apply::FieldSet;
use objects::catalog;
use objects::patch::{self, PatchError};
use objects::protobuf::{self, ProtobufError};
use objects::rules::{self, RuleContext};
use objects::schema::{DecodeError, Schema, TypeId};
use objects::timestamp::Timestamp;
use serde_json::{Value, json};

fn type_of(name: &str) -> (&'static Schema, TypeId) {
    let schema = Schema::served();
    (schema, schema.find(name).unwrap())
}

fn pod_type() -> (&'static Schema, TypeId) {
    type_of("io.k8s.api.core.v1.Pod")
}

fn listed(item: &str, count: usize) -> String {
    let items = item.repeat(count);
    format!("[{}]", items.trim_end_matches(','))
}

#[test]
fn json_that_grows_is_refused() {
    let (schema, id) = pod_type();
    let bodies = [
        // Each container has fields that are written even if they are not given.
        format!(r#"{{"spec":{{"containers":{}}}}}"#, listed("{},", 1_000_000)),
        format!(r#"{{"spec":{{"containers":{}}}}}"#, listed("null,", 600_000)),
        format!(r#"{{"spec":{{"volumes":{}}}}}"#, listed(r#"{"name":"a"},"#, 200_000)),
    ];
    for body in bodies {
        let error = schema.decode(id, body.as_bytes()).unwrap_err();
        assert!(matches!(error, DecodeError::TooLarge(_)), "{error}");
        let text = error.to_string();
        assert_eq!(text, "the decoded values take more than 67108864 bytes of memory");
    }
    let any = listed(r#"{"":0},"#, 400_000);
    assert!(matches!(schema.decode_any(any.as_bytes()), Err(DecodeError::TooLarge(_))));
    let nested = listed(r#"[[[]]],"#, 400_000);
    assert!(matches!(schema.decode_any(nested.as_bytes()), Err(DecodeError::TooLarge(_))));
}

#[test]
fn the_largest_objects_that_can_be_stored_are_decoded() {
    let (schema, id) = pod_type();
    let variables = listed(r#"{"name":"A","value":"b"},"#, 60_000);
    let body = format!(r#"{{"spec":{{"containers":[{{"name":"c","env":{variables}}}]}}}}"#);
    assert!(body.len() > 1_490_000, "{}", body.len());
    assert!(schema.decode(id, body.as_bytes()).is_ok());
}

#[test]
fn messages_that_grow_are_refused() {
    let (schema, id) = pod_type();
    let containers = [0x12, 0].repeat(1_400_000);
    let mut message = vec![0x12];
    let mut length = containers.len();
    while length >= 0x80 {
        message.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    message.push(length as u8);
    message.extend(containers);
    let error = protobuf::decode(schema, id, &message).unwrap_err();
    assert!(matches!(error, ProtobufError::TooLarge(_)), "{error}");
}

#[test]
fn patches_that_grow_are_refused() {
    let (schema, id) = pod_type();
    let body = format!(r#"{{"x":{}}}"#, listed(r#"{"":0},"#, 400_000));
    let operation = format!(r#"[{{"op":"add","path":"/x","value":{body}}}]"#);
    let outcomes = [
        patch::merge(json!({}), body.as_bytes()),
        patch::strategic(schema, id, json!({}), body.as_bytes()),
        patch::json(json!({}), operation.as_bytes()),
    ];
    for outcome in outcomes {
        let error = outcome.unwrap_err();
        assert!(matches!(error, PatchError::TooLarge(_)), "{error}");
        assert_eq!((error.status(), error.reason()), (413, "RequestEntityTooLarge"));
    }
}

#[test]
fn a_hundred_unknown_fields_are_reported() {
    let (schema, id) = pod_type();
    let fields: Vec<String> = (0..100_000).map(|n| format!(r#""x{n}":1"#)).collect();
    let body = format!("{{{}}}", fields.join(","));
    let strict = schema.decode(id, body.as_bytes()).unwrap().strict;
    assert_eq!(strict.len(), 100);
    assert_eq!(strict[99], r#"unknown field "x99""#);
    // A repeated problem is reported once, and leaves room for others.
    let body = format!(r#"{{{}"y":1}}"#, r#""x":1,"#.repeat(1000));
    let strict = schema.decode(id, body.as_bytes()).unwrap().strict;
    assert_eq!(strict, [r#"unknown field "x""#, r#"unknown field "y""#]);
}

#[test]
fn duplicate_fields_of_a_patch_are_reported_with_little_text() {
    let long = "k".repeat(200_000);
    let same = r#""a":1,"#.repeat(100_000);
    let body = format!(r#"{{"{long}":{{{same}"b":1}}}}"#);
    let strict = patch::merge(json!({}), body.as_bytes()).unwrap().strict;
    assert_eq!(strict.len(), 1);
    let fields: String = (0..1000).map(|n| format!(r#""a{n}":1,"a{n}":1,"#)).collect();
    let body = format!(r#"{{"{long}":{{{fields}"b":1}}}}"#);
    let strict = patch::merge(json!({}), body.as_bytes()).unwrap().strict;
    assert_eq!(strict.len(), 1);
    let body = format!(r#"{{"k":{{{fields}"b":1}}}}"#);
    let strict = patch::merge(json!({}), body.as_bytes()).unwrap().strict;
    assert_eq!(strict.len(), 100);
}

#[test]
fn causes_and_warnings_are_bounded() {
    let gates = FeatureGates::default();
    let ctx = RuleContext { gates: &gates, allow_privileged: true, now: Timestamp::new(0, 0) };
    let pods = catalog::of_kind("v1", "Pod").unwrap();
    let (schema, id) = pod_type();
    let pod = |container: Value, metadata: Value| {
        let pod = json!({"metadata": metadata, "spec": {"containers": [container]}});
        let mut pod = schema.decode_value(id, pod).unwrap().value;
        rules::set_defaults(pods, &mut pod);
        pod
    };
    // Each port is a duplicate of all previous ones.
    let ports: Vec<Value> = (0..5000).map(|_| json!({"containerPort": 80})).collect();
    let pod_of_ports = pod(json!({"name": "c", "ports": ports}), json!({"name": "p"}));
    assert!(rules::warnings(pods, &pod_of_ports, None).len() <= 200);
    // Each further controller is reported with the list of all.
    let owner = |n: usize| {
        let uid = format!("u{n}");
        json!({"apiVersion": "v1", "kind": "K", "name": "n", "uid": uid, "controller": true})
    };
    let owners: Vec<Value> = (0..5000).map(owner).collect();
    let object = pod(json!({"name": "c"}), json!({"name": "p", "ownerReferences": owners}));
    let causes = rules::validate_create(pods, &object, &ctx);
    let text: usize = causes.0.iter().map(|cause| cause.message.len()).sum();
    assert!(causes.is_full() && text < 2 << 20, "{text}");
    // Each unknown claim is reported with all known ones.
    let claims: Vec<Value> = (0..5000).map(|n| json!({"name": format!("x{n}")})).collect();
    let mut object =
        pod(json!({"name": "c", "resources": {"claims": claims}}), json!({"name": "p"}));
    let known: Vec<Value> = (0..5000).map(|n| json!({"name": format!("y{n}")})).collect();
    object["spec"]["resourceClaims"] = json!(known);
    let causes = rules::validate_create(pods, &object, &ctx);
    let text: usize = causes.0.iter().map(|cause| cause.message.len()).sum();
    assert!(causes.is_full() && text < 2 << 20, "{text}");
}

#[test]
fn paths_of_a_set_are_bounded() {
    let long = format!("f:{}", "k".repeat(100_000));
    let below: serde_json::Map<String, Value> =
        (0..10_000).map(|n| (format!("f:a{n}"), json!({}))).collect();
    let set = FieldSet::parse(&json!({long: below})).unwrap();
    let text: usize = set.paths().iter().map(String::len).sum();
    assert!(text < 1 << 20, "{text}");
}
