//! Vectors written by hand, byte by byte, and properties of every type of the schema.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::schema::{Field, Number, Shape};

/// A field of length-delimited bytes, below 128 of them.
fn len(number: u8, content: &[u8]) -> Vec<u8> {
    assert!(number < 16 && content.len() < 128);
    let mut bytes = vec![number << 3 | 2, u8::try_from(content.len()).unwrap()];
    bytes.extend_from_slice(content);
    bytes
}

/// A varint field below 128.
fn int(number: u8, value: u8) -> Vec<u8> {
    assert!(number < 16 && value < 128);
    vec![number << 3, value]
}

fn message(fields: &[Vec<u8>]) -> Vec<u8> {
    fields.concat()
}

fn enveloped(api_version: &str, kind: &str, object: &[u8]) -> Vec<u8> {
    let mut bytes = b"k8s\0".to_vec();
    let names = message(&[len(1, api_version.as_bytes()), len(2, kind.as_bytes())]);
    bytes.extend(len(1, &names));
    // The length of the object may need two bytes.
    bytes.push(0x12);
    if object.len() >= 128 {
        bytes.push(u8::try_from(object.len() & 0x7f).unwrap() | 0x80);
        bytes.push(u8::try_from(object.len() >> 7).unwrap());
    } else {
        bytes.push(u8::try_from(object.len()).unwrap());
    }
    bytes.extend_from_slice(object);
    bytes
}

/// Reads an enveloped object as a server does.
fn read(bytes: &[u8]) -> Result<(Value, Vec<String>), ProtobufError> {
    let schema = Schema::served();
    let envelope = Envelope::read(bytes)?;
    let id = type_of(schema, &envelope.api_version, &envelope.kind).unwrap();
    let decoded = decode(schema, id, envelope.message)?;
    let mut value = decoded.value;
    value["kind"] = envelope.kind.into();
    value["apiVersion"] = envelope.api_version.into();
    Ok((value, decoded.strict))
}

/// `sent` is the message of Go, `written` ours, `object` the JSON of both.
#[track_caller]
fn check(sent: &[u8], written: &[u8], object: &Value) {
    let schema = Schema::served();
    let names = [&object["apiVersion"], &object["kind"]].map(|name| name.as_str().unwrap());
    let id = type_of(schema, names[0], names[1]).unwrap();
    let canonical = schema.decode_value(id, object.clone()).unwrap();
    assert_eq!(canonical.value, *object, "the vector itself");
    assert_eq!(read(&enveloped(names[0], names[1], sent)), Ok((object.clone(), vec![])));
    let ours = Envelope::write(schema, id, object).unwrap();
    assert_eq!(ours, enveloped(names[0], names[1], written));
    assert_eq!(read(&ours), Ok((object.clone(), vec![])));
}

#[test]
fn a_pod_is_read_and_written() {
    let limits = |name: &str, amount: &str| {
        len(1, &message(&[len(1, name.as_bytes()), len(2, &len(1, amount.as_bytes()))]))
    };
    let written_container = message(&[
        len(1, b"c"),
        len(2, b"i"),
        len(8, &message(&[limits("cpu", "500m"), limits("memory", "1Gi")])),
        len(
            10,
            &message(&[
                // httpGet is in the embedded handler; the port is a text.
                len(
                    1,
                    &len(
                        2,
                        &message(&[len(1, b"/"), len(2, &message(&[int(1, 1), len(3, b"web")]))]),
                    ),
                ),
                int(6, 3),
            ]),
        ),
    ]);
    let written = message(&[
        len(
            1,
            &message(&[
                len(1, b"p"),
                len(8, &message(&[int(1, 100), int(2, 0)])),
                len(11, &message(&[len(1, b"a"), len(2, b"b")])),
            ]),
        ),
        // 31 is above what one byte of tag holds.
        len(
            2,
            &message(&[
                len(1, &message(&[len(1, b"v"), len(2, &len(2, &[]))])),
                len(2, &written_container),
                int(4, 30),
            ]),
        ),
        len(3, &[]),
    ]);
    // As Go sends it: zeros of all fields that are not pointers, and an empty time for an unset
    // one.
    let sent = message(&[
        len(
            1,
            &message(&[
                len(1, b"p"),
                len(2, b""),
                len(3, b""),
                int(7, 0),
                len(8, &message(&[int(1, 100), int(2, 0)])),
                len(11, &message(&[len(1, b"a"), len(2, b"b")])),
            ]),
        ),
        len(
            2,
            &message(&[
                len(1, &message(&[len(1, b"v"), len(2, &len(2, &len(1, b"")))])),
                len(2, &written_container),
                len(3, b""),
                int(4, 30),
                int(11, 0),
            ]),
        ),
        len(3, &message(&[len(1, b""), len(3, b"")])),
    ]);
    let object = json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": "p", "creationTimestamp": "1970-01-01T00:01:40Z", "labels": {"a": "b"}},
        "spec": {
            "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [{
                "name": "c", "image": "i",
                "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}},
                "livenessProbe": {"httpGet": {"path": "/", "port": "web"}, "failureThreshold": 3},
            }],
            "terminationGracePeriodSeconds": 30,
        },
        "status": {},
    });
    check(&sent, &written, &object);
}

#[test]
fn a_deployment_is_read_and_written() {
    let labels = |number| len(number, &message(&[len(1, b"app"), len(2, b"web")]));
    let template = message(&[
        len(1, &labels(11)),
        len(2, &len(2, &message(&[len(1, b"web"), len(2, b"nginx"), len(8, &[])]))),
    ]);
    let spec = message(&[
        // Set to zero: replicas is a pointer.
        int(1, 0),
        len(2, &labels(1)),
        len(3, &template),
        len(4, &len(2, &len(1, &message(&[int(1, 0), int(2, 5)])))),
    ]);
    let written = message(&[len(1, &len(1, b"web")), len(2, &spec), len(3, &[])]);
    let sent = message(&[
        len(1, &message(&[len(1, b"web"), len(8, &[])])),
        len(2, &message(&[spec, int(5, 0), int(7, 0)])),
        len(3, &message(&[int(1, 0), int(2, 0), int(3, 0), int(4, 0), int(5, 0), int(7, 0)])),
    ]);
    let object = json!({
        "kind": "Deployment", "apiVersion": "apps/v1",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web", "image": "nginx", "resources": {}}]},
            },
            "strategy": {"rollingUpdate": {"maxUnavailable": 5}},
        },
        "status": {},
    });
    check(&sent, &written, &object);
}

#[test]
fn an_access_review_is_read_and_written() {
    let attributes = message(&[len(1, b"default"), len(2, b"create"), len(5, b"pods")]);
    let written = message(&[len(1, &[]), len(2, &len(1, &attributes)), len(3, &int(1, 1))]);
    let all = message(&[
        len(1, b"default"),
        len(2, b"create"),
        len(3, b""),
        len(4, b""),
        len(5, b"pods"),
        len(6, b""),
        len(7, b""),
    ]);
    let status = message(&[int(1, 1), len(2, b""), len(3, b""), int(4, 0)]);
    let sent = message(&[len(1, &len(8, &[])), len(2, &len(1, &all)), len(3, &status)]);
    let object = json!({
        "kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
        "metadata": {},
        "spec": {"resourceAttributes": {"namespace": "default", "verb": "create", "resource": "pods"}},
        "status": {"allowed": true},
    });
    check(&sent, &written, &object);
}

#[test]
fn delete_options_are_read_and_written() {
    let bytes = message(&[int(1, 0), len(2, &len(1, b"u")), len(4, b"Foreground"), len(5, b"All")]);
    let object = json!({
        "kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0,
        "preconditions": {"uid": "u"}, "propagationPolicy": "Foreground", "dryRun": ["All"],
    });
    check(&bytes, &bytes, &object);
}

#[test]
fn a_status_is_read_and_written() {
    let cause = message(&[len(1, b"FieldValueInvalid"), len(2, b"no"), len(3, b"spec.x")]);
    let details = message(&[len(1, b"a"), len(3, b"pods"), len(4, &cause)]);
    let code = vec![0x30, 0xa6, 0x03]; // 422
    let written = message(&[
        len(1, &[]),
        len(2, b"Failure"),
        len(3, b"wrong"),
        len(4, b"Invalid"),
        len(5, &details),
        code.clone(),
    ]);
    let sent = message(&[
        len(1, &message(&[len(1, b""), len(2, b""), len(3, b"")])),
        len(2, b"Failure"),
        len(3, b"wrong"),
        len(4, b"Invalid"),
        len(
            5,
            &message(&[
                len(1, b"a"),
                len(2, b""),
                len(3, b"pods"),
                len(4, &cause),
                int(5, 0),
                len(6, b""),
            ]),
        ),
        code,
    ]);
    let object = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "wrong",
        "reason": "Invalid", "code": 422,
        "details": {"name": "a", "kind": "pods",
            "causes": [{"reason": "FieldValueInvalid", "message": "no", "field": "spec.x"}]},
    });
    check(&sent, &written, &object);
}

#[test]
fn bytes_raw_json_and_fine_times_are_read_and_written() {
    let secret = message(&[
        len(1, &message(&[len(1, b"s"), len(2, b"")])),
        len(2, &message(&[len(1, b"k"), len(2, b"\xff\x00")])),
        len(3, b"Opaque"),
    ]);
    let (value, _) = read(&enveloped("v1", "Secret", &secret)).unwrap();
    assert_eq!(value["data"], json!({"k": "/wA="}));
    let lease =
        message(&[len(1, &[]), len(2, &len(4, &message(&[int(1, 1), vec![0x10, 0xe8, 0x07]])))]);
    let (value, _) = read(&enveloped("coordination.k8s.io/v1", "Lease", &lease)).unwrap();
    assert_eq!(value["spec"]["renewTime"], "1970-01-01T00:00:01.000001Z");
    let revision = message(&[len(1, &[]), len(2, &len(1, b"{\"a\":[1]}")), int(3, 7)]);
    let (value, _) = read(&enveloped("apps/v1", "ControllerRevision", &revision)).unwrap();
    assert_eq!(value["data"], json!({"a": [1]}));
    let extra =
        len(2, &len(5, &message(&[len(1, b"k"), len(2, &message(&[len(1, b"a"), len(1, b"b")]))])));
    let kind = "SubjectAccessReview";
    let (value, _) = read(&enveloped("authorization.k8s.io/v1", kind, &extra)).unwrap();
    assert_eq!(value["spec"]["extra"], json!({"k": ["a", "b"]}));
}

#[test]
fn unknown_fields_are_named_if_they_hold_something() {
    let spec = message(&[
        len(2, &message(&[len(1, b"c"), len(15, b""), vec![0xf8, 0x3f, 1]])),
        vec![0xf8, 0x3f, 0],
    ]);
    let pod = message(&[len(2, &spec), len(9, &message(&[int(1, 0), len(2, b"")])), len(10, b"x")]);
    let (_, strict) = read(&enveloped("v1", "Pod", &pod)).unwrap();
    assert_eq!(
        strict,
        [r#"unknown protobuf field 1023 of "spec.containers[0]""#, "unknown protobuf field 10"]
    );
}

#[test]
fn errors_contain_the_path() {
    let error_text =
        |kind: &str, object: &[u8]| read(&enveloped("v1", kind, object)).unwrap_err().to_string();
    for (object, expected) in [
        (int(1, 0), "proto: metadata: the wire type is Varint and should be Length"),
        (
            len(1, &len(1, b"\xff")),
            "proto: metadata.name: not UTF-8: invalid utf-8 sequence of 1 bytes from index 0",
        ),
        (vec![0x0a, 5, 0], "proto: metadata: the message ends within a field"),
        (vec![0x0a], "proto: metadata: the message ends within a field"),
        (vec![0x07], "proto: 0 is not a field number"),
        (
            len(2, &len(2, &len(8, &len(1, &message(&[len(1, b"cpu"), len(2, &len(1, b"?"))]))))),
            "proto: spec.containers[0].resources.limits.cpu: quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        (
            len(1, &len(8, &[8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f])),
            "proto: metadata.creationTimestamp: 72057594037927935 seconds since 1970 are not in the years 1 to 9999",
        ),
    ] {
        assert_eq!(error_text("Pod", &object), expected);
    }
    for (bytes, expected) in [
        (
            &b""[..],
            "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]",
        ),
        (
            b"k8s",
            "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]",
        ),
        (b"k8s\0\x0a", "the envelope: the message ends within a field"),
        (b"k8s\0\x1a\x04gzip", "the envelope: the content encoding \"gzip\" is not supported"),
        (
            b"k8s\0\x22\x01x",
            "the envelope: the content type \"x\" is not \"application/vnd.kubernetes.protobuf\"",
        ),
    ] {
        assert_eq!(Envelope::read(bytes).unwrap_err().to_string(), expected);
    }
}

#[test]
fn a_list_and_a_watch_event_are_framed() {
    let schema = Schema::served();
    let pod = schema.find("io.k8s.api.core.v1.ConfigMap").unwrap();
    let meta = schema.find("io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta").unwrap();
    let mut list = ListEnvelope::new("v1", "ConfigMapList");
    let item = |name: &str| json!({"metadata": {"name": name}});
    list.push(schema, pod, &item("a")).unwrap();
    list.push(schema, pod, &item("b")).unwrap();
    let pieces = list.finish(schema, meta, &json!({"resourceVersion": "7"})).unwrap();
    let wanted = message(&[
        len(1, &len(2, b"7")),
        len(2, &len(1, &len(1, b"a"))),
        len(2, &len(1, &len(1, b"b"))),
    ]);
    assert_eq!(pieces.concat(), enveloped("v1", "ConfigMapList", &wanted));
    let (value, _) = read(&pieces.concat()).unwrap();
    assert_eq!(value["items"], json!([item("a"), item("b")]));

    let frame = watch_event("ADDED", b"object");
    let event = message(&[len(1, b"ADDED"), len(2, &len(1, b"object"))]);
    assert_eq!(frame, [&[0, 0, 0, u8::try_from(event.len()).unwrap()], &event[..]].concat());
}

#[test]
fn a_long_list_is_one_list_in_several_pieces() {
    let schema = Schema::served();
    let id = schema.find("io.k8s.api.core.v1.ConfigMap").unwrap();
    let meta = schema.find("io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta").unwrap();
    let mut list = ListEnvelope::new("v1", "ConfigMapList");
    let text = "x".repeat(100_000);
    for index in 0..12 {
        let item = json!({"metadata": {"name": format!("c{index}")}, "data": {"t": text}});
        list.push(schema, id, &item).unwrap();
    }
    let pieces = list.finish(schema, meta, &json!({})).unwrap();
    assert!(pieces.len() > 3, "{}", pieces.len());
    let (value, _) = read(&pieces.concat()).unwrap();
    assert_eq!(value["items"].as_array().unwrap().len(), 12);
    assert_eq!(value["items"][11]["data"]["t"].as_str().unwrap().len(), 100_000);
}

#[test]
fn every_field_of_every_kind_has_a_number() {
    let schema = Schema::served();
    for (_, type_) in schema.types().filter(|(_, type_)| !type_.package.ends_with("pkg.version")) {
        let has_kind = type_.kind.is_some() || type_.list_of.is_some();
        for field in &type_.fields {
            let in_envelope = has_kind && matches!(field.name.as_str(), "kind" | "apiVersion");
            assert_eq!(
                field.number == Number::Nowhere,
                in_envelope,
                "{}.{}",
                type_.name,
                field.name
            );
            let ours = field.name.starts_with("qosResources");
            if ours {
                assert!(matches!(field.number, Number::Own(1000..2000)), "{}", type_.name);
            }
        }
    }
}

/// Decisions read from bytes; constant once these are used up, so that proptest can shrink.
struct Choices<'a>(std::slice::Iter<'a, u8>);

impl Choices<'_> {
    fn below(&mut self, end: u8) -> u8 {
        self.0.next().copied().unwrap_or_default() % end
    }
}

/// Generates a value of a shape in canonical form, without empty lists and maps.
fn some(schema: &Schema, shape: &Shape, choices: &mut Choices<'_>) -> Value {
    let pick = choices.below(4);
    match shape {
        Shape::String => Value::from(["", "a", "Ωmega", "x y"][usize::from(pick)]),
        Shape::Bool => Value::from(pick % 2 == 1),
        Shape::Int32 => Value::from([0, 1, i32::MIN, i32::MAX][usize::from(pick)]),
        Shape::Int64 => Value::from([0, 1, i64::MIN, i64::MAX][usize::from(pick)]),
        Shape::Float64 => Value::from([0.0, 1.5, -2.25, f64::MAX][usize::from(pick)]),
        Shape::Quantity => Value::from(["0", "1500m", "1Gi", "-3"][usize::from(pick)]),
        Shape::IntOrString => {
            [json!(0), json!("25%"), json!(80), json!("")][usize::from(pick)].clone()
        }
        Shape::Time => {
            Value::from(["1970-01-01T00:00:00Z", "2026-01-02T03:04:05Z"][usize::from(pick % 2)])
        }
        Shape::MicroTime => Value::from(
            ["1969-12-31T23:59:59.000001Z", "2026-01-02T03:04:05.678901Z"][usize::from(pick % 2)],
        ),
        Shape::Bytes => Value::from(["", "Zg==", "/wA=", "Zm9v"][usize::from(pick)]),
        Shape::Any | Shape::Fields => json!({"f:a": {"k:{\"b\":1}": {}}}),
        Shape::Struct(id) => Value::Object(some_structure(schema, *id, choices)),
        Shape::List(item) => (0..=pick % 2).map(|_| some(schema, item, choices)).collect(),
        Shape::Map(value) => {
            let keys = ["", "k", "example.com/k"];
            let entries = keys.iter().take(1 + usize::from(pick % 3));
            entries.map(|key| ((*key).to_owned(), some(schema, value, choices))).collect()
        }
    }
}

fn some_structure(schema: &Schema, id: TypeId, choices: &mut Choices<'_>) -> Map<String, Value> {
    let sent = |field: &&Field| field.number != Number::Nowhere;
    let mut object = Map::new();
    for field in schema.get(id).fields.iter().filter(sent) {
        if choices.below(3) == 1 {
            object.insert(field.name.clone(), some(schema, &field.shape, choices));
        }
    }
    object
}

/// Returns the value with all zeros that Go would send.
fn as_go_sends(schema: &Schema, id: TypeId, value: &Value) -> Value {
    let mut object = Map::new();
    for field in &schema.get(id).fields {
        let given = value.get(&field.name).filter(|value| !value.is_null());
        let solid = match &field.shape {
            Shape::Struct(_) | Shape::String | Shape::Bool | Shape::Int32 | Shape::Int64 => true,
            Shape::Quantity | Shape::IntOrString => given.is_some(),
            _ => false,
        };
        let sent = match (given, &field.shape) {
            (Some(given), Shape::Struct(id)) => as_go_sends(schema, *id, given),
            (Some(given), Shape::List(item)) => match (&**item, given) {
                (Shape::Struct(id), Value::Array(items)) => {
                    items.iter().map(|item| as_go_sends(schema, *id, item)).collect()
                }
                _ => given.clone(),
            },
            (Some(given), _) => given.clone(),
            (None, Shape::Struct(id)) if !field.pointer => as_go_sends(schema, *id, &json!({})),
            (None, shape) if solid && !field.pointer => schema.zero_of(shape),
            (None, _) => continue,
        };
        object.insert(field.name.clone(), sent);
    }
    Value::Object(object)
}

fn served_kinds() -> Vec<TypeId> {
    let has_kind = |type_: &crate::schema::Type| type_.kind.is_some() || type_.list_of.is_some();
    Schema::served().types().filter(|(_, type_)| has_kind(type_)).map(|(id, _)| id).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn encoded_values_are_decoded_unchanged(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let schema = Schema::served();
        for id in served_kinds() {
            let drawn = Value::Object(some_structure(schema, id, &mut Choices(bytes.iter())));
            let object = schema.decode_value(id, drawn).unwrap().value;
            let mut message = Vec::new();
            encode(schema, id, &object, &mut message).unwrap();
            let decoded = decode(schema, id, &message).unwrap();
            prop_assert_eq!(&decoded.value, &object, "{}", &schema.get(id).name);
            prop_assert!(decoded.strict.is_empty());
            let mut as_sent = Vec::new();
            encode(schema, id, &as_go_sends(schema, id, &object), &mut as_sent).unwrap();
            let decoded = decode(schema, id, &as_sent).unwrap();
            prop_assert_eq!(&decoded.value, &object, "{} from Go", &schema.get(id).name);
        }
    }

    /// The two halves of a message concatenated are the message.
    #[test]
    fn fields_may_come_in_any_order(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
        let schema = Schema::served();
        let id = schema.find("io.k8s.api.core.v1.Pod").unwrap();
        let drawn = Value::Object(some_structure(schema, id, &mut Choices(bytes.iter())));
        let object = schema.decode_value(id, drawn).unwrap().value;
        let mut message = Vec::new();
        for field in ["status", "spec", "metadata"] {
            let part = json!({field: object[field]});
            encode(schema, id, &part, &mut message).unwrap();
        }
        prop_assert_eq!(decode(schema, id, &message).unwrap().value, object);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Any bytes are an object or an error, and an object is canonical.
    #[test]
    fn random_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let schema = Schema::served();
        for id in served_kinds() {
            if let Ok(decoded) = decode(schema, id, &bytes) {
                let again = schema.decode_value(id, decoded.value.clone()).unwrap();
                prop_assert_eq!(again.value, decoded.value);
            }
        }
        let _ = Envelope::read(&bytes);
        let _ = Envelope::read(&[&MAGIC[..], &bytes].concat());
    }

    /// A message with one byte changed, or cut short.
    #[test]
    fn damaged_messages_do_no_harm(
        choices in proptest::collection::vec(any::<u8>(), 0..500),
        at in any::<proptest::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<bool>(),
    ) {
        let schema = Schema::served();
        let id = schema.find("io.k8s.api.core.v1.Pod").unwrap();
        let object = Value::Object(some_structure(schema, id, &mut Choices(choices.iter())));
        let mut message = Vec::new();
        encode(schema, id, &object, &mut message).unwrap();
        if !message.is_empty() {
            let at = at.index(message.len());
            message[at] = byte;
            if cut {
                message.truncate(at);
            }
        }
        if let Ok(decoded) = decode(schema, id, &message) {
            let mut again = Vec::new();
            encode(schema, id, &decoded.value, &mut again).unwrap();
        }
    }
}
