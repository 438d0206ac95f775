use cri::v1;
use proptest::prelude::*;
use prost::Message as _;

use super::*;

fn container(name: &str) -> v1::ContainerConfig {
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: name.to_owned(), attempt: 3 }),
        annotations: [("a".to_owned(), "b".to_owned())].into(),
        qos_resources: vec![v1::ContainerQosResource {
            name: "k8s.io/rdt".to_owned(),
            class: "gold".to_owned(),
        }],
        tty: true,
        ..Default::default()
    }
}

fn encoded(message: &impl prost::Message) -> Bytes {
    message.encode_to_vec().into()
}

#[test]
fn unchanged_message_keeps_every_byte() {
    // Field 2000 is unknown to every version of the protocol.
    let mut bytes = container("c").encode_to_vec();
    prost::encoding::string::encode(2000, &"newer".to_owned(), &mut bytes);
    prost::encoding::fixed64::encode(2001, &7, &mut bytes);
    prost::encoding::float::encode(2002, &7.5, &mut bytes);
    let bytes = Bytes::from(bytes);
    assert_eq!(Message::parse(&bytes).unwrap().encode(), bytes);
}

#[test]
fn taken_field_is_gone_and_the_others_stay() {
    let config = container("c");
    let mut message = Message::parse(&encoded(&config)).unwrap();
    let taken = message.take(117).unwrap();
    let classes: Vec<_> =
        taken.into_iter().map(|value| v1::ContainerQosResource::decode(value).unwrap()).collect();
    assert_eq!(classes, config.qos_resources);
    let rest = v1::ContainerConfig::decode(message.encode()).unwrap();
    assert_eq!(rest, v1::ContainerConfig { qos_resources: vec![], ..config });
}

#[test]
fn nested_message_is_replaced_in_place() {
    let config = container("c");
    let request = v1::CreateContainerRequest {
        pod_sandbox_id: "s".to_owned(),
        config: Some(config),
        sandbox_config: Some(v1::PodSandboxConfig::default()),
    };
    let mut message = Message::parse(&encoded(&request)).unwrap();
    let mut nested = message.nested(2).unwrap().unwrap();
    nested.push_entry(10, "a", "replaced");
    nested.push_entry(10, "new", "x");
    message.set_nested(2, &nested);
    let mut expected = request;
    expected.config.as_mut().unwrap().annotations =
        [("a".to_owned(), "replaced".to_owned()), ("new".to_owned(), "x".to_owned())].into();
    assert_eq!(v1::CreateContainerRequest::decode(message.encode()).unwrap(), expected);
    // The order of the fields is the one of the request.
    let numbers: Vec<_> = message.fields.iter().map(|field| field.number).collect();
    assert_eq!(numbers, [1, 2, 3]);
}

#[test]
fn message_in_pieces_is_opened_and_replaced_as_one() {
    let first = v1::ContainerConfig { working_dir: "/a".to_owned(), ..Default::default() };
    let second = v1::ContainerConfig { log_path: "x.log".to_owned(), ..Default::default() };
    let mut message = Message::default();
    message.push(2, &first.encode_to_vec());
    message.push(1, b"s");
    message.push(2, &second.encode_to_vec());
    let nested = message.nested(2).unwrap().unwrap();
    message.set_nested(2, &nested);
    assert_eq!(message.fields.len(), 2);
    let config = v1::CreateContainerRequest::decode(message.encode()).unwrap().config.unwrap();
    assert_eq!((&*config.working_dir, &*config.log_path), ("/a", "x.log"));
}

#[test]
fn absent_nested_message_is_added() {
    let mut message = Message::default();
    assert_eq!(message.nested(2), Ok(None));
    message.set_nested(2, &Message::default());
    assert_eq!(message.encode(), Bytes::from_static(&[0x12, 0]));
}

#[test]
fn malformed_bytes_are_refused() {
    let check = |bytes: &'static [u8], expected: &str| {
        let error = Message::parse(&Bytes::from_static(bytes)).unwrap_err();
        assert_eq!(error.to_string(), expected, "{bytes:x?}");
    };
    check(&[0x12, 5, 1], "field 2 at byte 0 ends 4 bytes after the end of the message");
    check(&[8, 1, 0x0d, 1], "field 1 at byte 2 ends 3 bytes after the end of the message");
    check(&[0x0b], "field 1 at byte 0 is a group, which proto3 does not have");
    check(&[0x0c], "field 1 at byte 0 is a group, which proto3 does not have");
    let error = Message::parse(&Bytes::from_static(&[0x80])).unwrap_err();
    assert!(matches!(error, WireError::Malformed { at: 0, .. }), "{error}");
    let endless = [0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
    let error = Message::parse(&Bytes::copy_from_slice(&endless)).unwrap_err();
    assert!(matches!(error, WireError::Truncated { number: 2, at: 0, .. }), "{error}");
}

#[test]
fn number_in_place_of_a_message_is_refused() {
    let mut message = Message::parse(&Bytes::from_static(&[0x10, 1])).unwrap();
    assert_eq!(message.nested(2), Err(WireError::NotDelimited { number: 2 }));
    assert_eq!(message.take(2), Err(WireError::NotDelimited { number: 2 }));
    assert_eq!(message.take(3), Ok(vec![]));
}

proptest! {
    #[test]
    fn any_bytes_are_kept_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let bytes = Bytes::from(bytes);
        if let Ok(message) = Message::parse(&bytes) {
            prop_assert_eq!(message.encode(), bytes);
        }
    }
}
