//! Requests and responses recorded between a kubelet and containerd (`testdata/golden-node`): our
//! messages contain all their fields, and our deadlines equal the kubelet's.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use cri::{Rpc, v1};
use flate2::read::GzDecoder;
use prost::Message;
use prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, MethodDescriptor, SerializeOptions,
};
use serde_json::Value;

use crate::description::method;
use crate::for_every_request;

/// Returns the lines of `cri.jsonl`.
fn lines() -> Vec<Value> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden-node/cri.jsonl.gz");
    let mut text = String::new();
    GzDecoder::new(std::fs::File::open(path).unwrap()).read_to_string(&mut text).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns every recorded call.
fn calls() -> Vec<Value> {
    let lines = lines();
    lines.iter().filter_map(|line| line["calls"].as_array()).flatten().cloned().collect()
}

/// Converts bytes from the recording's text to base64, as protobuf's JSON has them.
fn encode_bytes(value: &mut Value, message: &MessageDescriptor) {
    let Some(object) = value.as_object_mut() else { return };
    for (name, value) in object {
        let Some(field) = message.get_field_by_name(name) else { continue };
        let values = if field.is_list() {
            value.as_array_mut().unwrap().iter_mut().collect()
        } else {
            vec![value]
        };
        for value in values {
            encode_bytes_of(value, &field);
        }
    }
}

fn encode_bytes_of(value: &mut Value, field: &FieldDescriptor) {
    match field.kind() {
        Kind::Bytes => *value = BASE64_STANDARD.encode(value.as_str().unwrap()).into(),
        Kind::Message(message) if !field.is_map() => encode_bytes(value, &message),
        _ => {}
    }
}

fn to_json(message: &DynamicMessage) -> Value {
    let options = SerializeOptions::new().use_proto_field_name(true);
    message.serialize_with_options(serde_json::value::Serializer, &options).unwrap()
}

/// Decodes bytes to the Rust type and encodes them again.
fn through<T: Message + Default>(bytes: &[u8]) -> Vec<u8> {
    T::decode(bytes).unwrap().encode_to_vec()
}

/// Decodes and encodes a call's request or response with its Rust type.
fn through_types(method: &MethodDescriptor, is_request: bool, bytes: &[u8]) -> Vec<u8> {
    macro_rules! pick {
        (unary: $($request:ident),*) => { $(
            if method.name() == <v1::$request as Rpc>::METHOD {
                return if is_request {
                    through::<v1::$request>(bytes)
                } else {
                    through::<<v1::$request as Rpc>::Response>(bytes)
                };
            }
        )* };
        // No stream was recorded.
        (streaming: $($request:ident),*) => {};
    }
    for_every_request!(pick);
    panic!("no type for {}", method.name());
}

#[test]
fn no_field_that_the_kubelet_sends_is_lost() {
    let mut seen = BTreeSet::new();
    let (mut requests, calls) = (0, calls());
    for call in &calls {
        let method = method(call["call"].as_str().unwrap());
        seen.insert(method.name().to_owned());
        for (part, descriptor) in [("request", method.input()), ("response", method.output())] {
            let Some(recorded) = call.get(part) else { continue };
            let mut recorded = recorded.clone();
            encode_bytes(&mut recorded, &descriptor);
            // Rejects fields that the descriptor lacks.
            let message = DynamicMessage::deserialize(descriptor.clone(), &recorded)
                .unwrap_or_else(|error| panic!("{}.{part}: {error}: {recorded}", method.name()));
            let bytes = through_types(&method, part == "request", &message.encode_to_vec());
            let back = DynamicMessage::decode(descriptor, bytes.as_slice()).unwrap();
            assert_eq!(to_json(&back), recorded, "{}.{part}", method.name());
            requests += usize::from(part == "request");
        }
    }
    // Guards against an empty recording: every call, and all calls of a pod's life.
    assert_eq!(requests, calls.len());
    for name in
        ["RunPodSandbox", "CreateContainer", "UpdateContainerResources", "ExecSync", "PullImage"]
    {
        assert!(seen.contains(name), "{name} is not in the recording");
    }
}

/// Returns our deadline for a recorded call.
fn deadline(call: &str, request: &Value) -> Option<Duration> {
    let method = method(call);
    let mut request = request.clone();
    encode_bytes(&mut request, &method.input());
    let bytes = DynamicMessage::deserialize(method.input(), &request).unwrap().encode_to_vec();
    let timeout = cri::Settings::default().request_timeout;
    macro_rules! pick {
        (unary: $($request:ident),*) => { $(
            if call == <v1::$request as Rpc>::METHOD {
                return v1::$request::decode(bytes.as_slice()).unwrap().deadline(timeout);
            }
        )* };
        (streaming: $($request:ident),*) => {};
    }
    for_every_request!(pick);
    panic!("no type for {call}");
}

#[test]
fn deadlines_equal_the_kubelets() {
    let mut compared = 0;
    for call in calls() {
        // Absent if the kubelet set no deadline or none was recorded.
        let Some(recorded) = call.get("deadline_s").and_then(Value::as_u64) else { continue };
        let name = call["call"].as_str().unwrap();
        let ours = deadline(name, &call["request"]);
        assert_eq!(ours, Some(Duration::from_secs(recorded)), "{name} {}", call["request"]);
        compared += 1;
    }
    assert!(compared > 100, "{compared} calls");

    let lines = lines();
    let table = lines.iter().find(|line| line["kind"] == "deadlines").unwrap();
    for (name, seconds) in table["seconds"].as_object().unwrap() {
        // These two depend on the request and are among the calls above.
        if name == "StopContainer" || name == "ExecSync" {
            continue;
        }
        let ours = deadline(name, &Value::Object(serde_json::Map::new()));
        let seconds = seconds[0].as_u64().unwrap();
        assert_eq!(ours, Some(Duration::from_secs(seconds)), "{name}");
    }
}

#[test]
fn calls_with_a_duration_get_a_longer_deadline() {
    let timeout = Duration::from_secs(120);
    let exec = |seconds| v1::ExecSyncRequest { timeout: seconds, ..Default::default() };
    assert_eq!(exec(0).deadline(timeout), None);
    assert_eq!(exec(-1).deadline(timeout), None);
    assert_eq!(exec(3).deadline(timeout), Some(Duration::from_secs(123)));
    let stop = |seconds| v1::StopContainerRequest { timeout: seconds, ..Default::default() };
    assert_eq!(stop(30).deadline(timeout), Some(Duration::from_secs(150)));
    assert_eq!(stop(-5).deadline(timeout), Some(timeout));
    assert!(stop(i64::MAX).deadline(timeout) > Some(timeout));
    assert_eq!(v1::PullImageRequest::default().deadline(timeout), None);
}
