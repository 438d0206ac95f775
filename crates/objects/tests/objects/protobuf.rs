//! Bodies that kubectl sent in protobuf equal the objects that it prints as JSON, and every kind of
//! the catalog has a message.

use objects::catalog::RESOURCES;
use objects::protobuf::{self, Envelope};
use objects::schema::Schema;
use serde_json::Value;

const RECORDED: &str = include_str!("../../../../testdata/golden-protobuf/kubectl.jsonl");

fn bytes_of(hexadecimal: &str) -> Vec<u8> {
    let digits = hexadecimal.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[test]
fn protobuf_bodies_of_kubectl_equal_its_json() {
    let schema = Schema::served();
    let mut count = 0;
    for line in RECORDED.lines() {
        let recorded: Value = serde_json::from_str(line).unwrap();
        let body = bytes_of(recorded["body"].as_str().unwrap());
        let envelope = Envelope::read(&body).unwrap();
        let id = protobuf::type_of(schema, &envelope.api_version, &envelope.kind).unwrap();
        let mut decoded = protobuf::decode(schema, id, envelope.message).unwrap();
        decoded.value["kind"] = envelope.kind.into();
        decoded.value["apiVersion"] = envelope.api_version.into();
        let printed = schema.decode_value(id, recorded["object"].clone()).unwrap();
        assert_eq!(decoded, printed, "{}", recorded["command"]);
        // And back: shorter by the zeros that Go sends, and the same object.
        let written = Envelope::write(schema, id, &printed.value).unwrap();
        assert!(written.len() <= body.len(), "{}", recorded["command"]);
        let message = Envelope::read(&written).unwrap().message;
        let mut again = protobuf::decode(schema, id, message).unwrap();
        again.value["kind"] = decoded.value["kind"].clone();
        again.value["apiVersion"] = decoded.value["apiVersion"].clone();
        assert_eq!(again, decoded);
        count += 1;
    }
    assert_eq!(count, 22);
}

#[test]
fn every_kind_of_the_catalog_has_a_message() {
    let schema = Schema::served();
    for resource in RESOURCES {
        let found = protobuf::type_of(schema, &resource.api_version(), resource.kind);
        assert!(found.is_some() && found == resource.type_id(schema), "{}", resource.kind);
    }
}
