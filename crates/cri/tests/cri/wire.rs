//! Encoded messages, compared with bytes written by hand from the protocol's field numbers.

use cri::v1;
use prost::Message;

fn check<T: Message + Default + PartialEq + std::fmt::Debug>(message: &T, bytes: &[u8]) {
    assert_eq!(message.encode_to_vec(), bytes, "{message:?}");
    assert_eq!(&T::decode(bytes).unwrap(), message);
}

#[test]
fn windows_affinity_has_masks_and_groups() {
    let affinity = |cpu_mask, cpu_group| v1::WindowsCpuGroupAffinity { cpu_mask, cpu_group };
    let resources = v1::WindowsContainerResources {
        memory_limit_in_bytes: 300,
        affinity_cpus: vec![affinity(0b101, 0), affinity(1 << 63, 1)],
        ..Default::default()
    };
    check(
        &resources,
        &[
            0x20, 0xac, 0x02, // 4: 300
            0x32, 0x02, 0x08, 0x05, // 6: {1: 5}
            0x32, 0x0d, 0x08, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01, 0x10,
            0x01, // 6: {1: 2^63, 2: 1}
        ],
    );
}

#[test]
fn container_classes_and_cdi_devices_have_separate_field_numbers() {
    let gold = || v1::ContainerQosResource { name: "rdt".to_owned(), class: "gold".to_owned() };
    const GOLD: &[u8] = b"\x0a\x03rdt\x12\x04gold";
    let config = v1::ContainerConfig {
        cdi_devices: vec![v1::CdiDevice { name: "a=b".to_owned() }],
        stop_signal: v1::Signal::Sigterm.into(),
        qos_resources: vec![gold()],
        ..Default::default()
    };
    let mut bytes = vec![0x8a, 0x01, 0x05, 0x0a, 0x03, b'a', b'=', b'b']; // 17: {1: "a=b"}
    bytes.extend([0x90, 0x01, 0x17]); // 18: 23
    bytes.extend([0xaa, 0x07, 0x0b]); // 117: 11 bytes
    bytes.extend(GOLD);
    check(&config, &bytes);

    // The proposal's field number is a device today, for every sender.
    let mut seed = vec![0x8a, 0x01, 0x0b];
    seed.extend(GOLD);
    let config = v1::ContainerConfig::decode(seed.as_slice()).unwrap();
    assert_eq!((config.qos_resources.len(), config.cdi_devices.len()), (0, 1));

    let mut bytes = vec![0x2a, 0x0b]; // 5
    bytes.extend(GOLD);
    let qos_resources = vec![gold()];
    check(&v1::UpdateContainerResourcesRequest { qos_resources, ..Default::default() }, &bytes);
    bytes[0] = 0x1a; // 3
    check(&v1::ContainerResources { qos_resources: vec![gold()], ..Default::default() }, &bytes);
}

#[test]
fn classes_of_a_pod_have_the_proposals_numbers() {
    let qos_resources = vec![v1::PodQosResource { name: "n".to_owned(), class: "c".to_owned() }];
    let mut bytes = b"\x52\x06\x0a\x01n\x12\x01c".to_vec(); // 10
    check(
        &v1::PodSandboxConfig { qos_resources: qos_resources.clone(), ..Default::default() },
        &bytes,
    );
    check(
        &v1::PodSandboxStatus { qos_resources: qos_resources.clone(), ..Default::default() },
        &bytes,
    );
    bytes.splice(..1, [0xc2, 0x06]); // 104
    check(&v1::UpdatePodSandboxResourcesRequest { qos_resources, ..Default::default() }, &bytes);
}

#[test]
fn a_runtime_advertises_classes_in_its_status() {
    let classes = vec![v1::QosResourceClassInfo { name: "g".to_owned(), capacity: 2 }];
    let resource = v1::QosResourceInfo { name: "rdt".to_owned(), mutable: true, classes };
    let resources =
        v1::ResourcesInfo { container_qos_resources: vec![resource], ..Default::default() };
    check(
        &v1::RuntimeStatus { resources: Some(resources), ..Default::default() },
        b"\x12\x10\x12\x0e\x0a\x03rdt\x10\x01\x1a\x05\x0a\x01g\x10\x02",
    );
    // An empty list is sent too.
    let resources = Some(v1::ResourcesInfo::default());
    check(&v1::RuntimeStatus { resources, ..Default::default() }, &[0x12, 0x00]);
}

#[test]
fn maps_are_encoded_in_key_order() {
    let labels = [("b", "2"), ("a", "1")];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    check(
        &v1::PodSandboxConfig { labels, ..Default::default() },
        b"\x32\x06\x0a\x01a\x12\x011\x32\x06\x0a\x01b\x12\x012",
    );
}

#[test]
fn environment_values_need_not_be_utf8() {
    let value = vec![0xff, 0x00];
    check(&v1::KeyValue { key: "K".to_owned(), value }, b"\x0a\x01K\x12\x02\xff\x00");
}

#[test]
fn unknown_fields_are_ignored() {
    // Field 200 with "x", and then a name.
    let bytes = b"\xc2\x0c\x01x\x12\x0acontainerd";
    let version = v1::VersionResponse::decode(bytes.as_slice()).unwrap();
    assert_eq!(version.runtime_name, "containerd");
}

#[test]
fn passwords_are_not_printed() {
    let auth = v1::AuthConfig {
        username: "u".to_owned(),
        password: "p4ssw0rd".to_owned(),
        auth: "a-secret".to_owned(),
        server_address: "s".to_owned(),
        identity_token: String::new(),
        registry_token: "t0ken".to_owned(),
    };
    let request = v1::PullImageRequest { auth: Some(auth), ..Default::default() };
    let printed = format!("{request:?}");
    for secret in ["p4ssw0rd", "a-secret", "t0ken"] {
        assert!(!printed.contains(secret), "{printed}");
    }
    assert!(printed.contains(r#"password: "(secret)""#), "{printed}");
    assert!(printed.contains(r#"identity_token: """#), "{printed}");
}
