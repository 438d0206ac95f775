//! The edits, checked by decoding the result with the generated types, which have the numbers of the protocol.

use prost::Message as _;

use super::*;

/// A field that no version of the protocol has.
const UNKNOWN: u32 = 3000;

fn encoded(message: &impl prost::Message) -> Bytes {
    let mut bytes = message.encode_to_vec();
    prost::encoding::string::encode(UNKNOWN, &"newer".to_owned(), &mut bytes);
    bytes.into()
}

fn keeps_unknown_field(bytes: &Bytes) -> bool {
    let message = crate::wire::Message::parse(bytes).unwrap();
    message.last(UNKNOWN).unwrap().is_some_and(|value| value == "newer")
}

fn pairs<T: FromIterator<(String, String)>>(pairs: &[(&str, &str)]) -> T {
    pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn sandbox_config() -> v1::PodSandboxConfig {
    v1::PodSandboxConfig {
        hostname: "h".to_owned(),
        annotations: pairs(&[("a", "b")]),
        qos_resources: vec![v1::PodQosResource {
            name: "net".to_owned(),
            class: "fast".to_owned(),
        }],
        ..Default::default()
    }
}

fn container_config() -> v1::ContainerConfig {
    let resources =
        v1::LinuxContainerResources { cpuset_cpus: "1".to_owned(), ..Default::default() };
    v1::ContainerConfig {
        annotations: pairs(&[("a", "b")]),
        linux: Some(v1::LinuxContainerConfig { resources: Some(resources), ..Default::default() }),
        qos_resources: vec![v1::ContainerQosResource {
            name: "rdt".to_owned(),
            class: "gold".to_owned(),
        }],
        ..Default::default()
    }
}

fn recorded(classes: &[(&str, &str)]) -> String {
    serde_json::to_string(&pairs::<Assignments>(classes)).unwrap()
}

#[test]
fn sandbox_request_has_assignments_in_place_of_classes() {
    let request = v1::RunPodSandboxRequest {
        config: Some(sandbox_config()),
        runtime_handler: "x".to_owned(),
    };
    let bytes = encoded(&request);
    let mut edit = ConfigEdit::run_sandbox(&bytes).unwrap();
    assert_eq!(edit.take_requested().unwrap(), pairs::<Requested>(&[("net", "fast")]));
    edit.record(&pairs(&[("v.example/net", "fast")])).unwrap();
    edit.put_back(&pairs(&[("other", "c")]));
    let bytes = edit.finish();
    assert!(keeps_unknown_field(&bytes));
    let edited = v1::RunPodSandboxRequest::decode(bytes).unwrap();
    let text = recorded(&[("v.example/net", "fast")]);
    let config = v1::PodSandboxConfig {
        annotations: pairs(&[("a", "b"), (ANNOTATION, &text)]),
        qos_resources: vec![v1::PodQosResource { name: "other".to_owned(), class: "c".to_owned() }],
        ..sandbox_config()
    };
    assert_eq!(edited, v1::RunPodSandboxRequest { config: Some(config), ..request });
}

#[test]
fn container_request_is_adjusted() {
    let request = v1::CreateContainerRequest {
        pod_sandbox_id: "s".to_owned(),
        config: Some(container_config()),
        sandbox_config: Some(sandbox_config()),
    };
    let mut edit = ConfigEdit::create_container(&encoded(&request)).unwrap();
    assert_eq!(edit.take_requested().unwrap(), pairs::<Requested>(&[("rdt", "gold")]));
    let adjustment = Adjustment {
        annotations: pairs(&[("k", "v")]),
        unified: pairs(&[("io.max", "8:0 rbps=1\n8:16 rbps=2")]),
    };
    edit.adjust(&adjustment).unwrap();
    edit.record(&pairs(&[("k8s.io/rdt", "gold")])).unwrap();
    let bytes = edit.finish();
    assert!(keeps_unknown_field(&bytes));
    let mut expected = request;
    let sandbox = expected.sandbox_config.as_mut().unwrap();
    sandbox.qos_resources.clear();
    let config = expected.config.as_mut().unwrap();
    config.qos_resources.clear();
    let text = recorded(&[("k8s.io/rdt", "gold")]);
    config.annotations = pairs(&[("a", "b"), ("k", "v"), (ANNOTATION, &text)]);
    let resources = config.linux.as_mut().unwrap().resources.as_mut().unwrap();
    resources.unified = pairs(&[("io.max", "8:0 rbps=1\n8:16 rbps=2")]);
    assert_eq!(v1::CreateContainerRequest::decode(bytes).unwrap(), expected);
}

#[test]
fn client_cannot_set_the_assignments_itself() {
    let mut config = container_config();
    config.annotations.insert(ANNOTATION.to_owned(), recorded(&[("k8s.io/rdt", "gold")]));
    config.qos_resources.clear();
    let request = v1::CreateContainerRequest { config: Some(config), ..Default::default() };
    let mut edit = ConfigEdit::create_container(&encoded(&request)).unwrap();
    edit.record(&Assignments::new()).unwrap();
    let edited = v1::CreateContainerRequest::decode(edit.finish()).unwrap();
    assert_eq!(edited.config.unwrap().annotations, pairs(&[("a", "b")]));
}

#[test]
fn pull_request_loses_the_classes_of_its_sandbox() {
    let request = v1::PullImageRequest {
        image: Some(v1::ImageSpec { image: "i".to_owned(), ..Default::default() }),
        sandbox_config: Some(sandbox_config()),
        ..Default::default()
    };
    let bytes = strip_pull(&encoded(&request)).unwrap();
    assert!(keeps_unknown_field(&bytes));
    let sandbox = v1::PodSandboxConfig { qos_resources: vec![], ..sandbox_config() };
    let expected = v1::PullImageRequest { sandbox_config: Some(sandbox), ..request };
    assert_eq!(v1::PullImageRequest::decode(bytes).unwrap(), expected);
}

#[test]
fn update_is_split_into_classes_and_the_rest() {
    let request = v1::UpdateContainerResourcesRequest {
        container_id: "c".to_owned(),
        linux: Some(v1::LinuxContainerResources { cpu_shares: 5, ..Default::default() }),
        qos_resources: vec![v1::ContainerQosResource {
            name: "rdt".to_owned(),
            class: "gold".to_owned(),
        }],
        ..Default::default()
    };
    let (requested, rest) = take_update(Level::Container, &encoded(&request)).unwrap();
    assert_eq!(requested, pairs::<Requested>(&[("rdt", "gold")]));
    assert!(keeps_unknown_field(&rest));
    let expected = v1::UpdateContainerResourcesRequest { qos_resources: vec![], ..request.clone() };
    assert_eq!(v1::UpdateContainerResourcesRequest::decode(rest.clone()).unwrap(), expected);
    let back = put_back_update(Level::Container, &rest, &requested).unwrap();
    assert_eq!(v1::UpdateContainerResourcesRequest::decode(back).unwrap(), request);

    let request = v1::UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: "s".to_owned(),
        qos_resources: vec![v1::PodQosResource {
            name: "net".to_owned(),
            class: "fast".to_owned(),
        }],
        ..Default::default()
    };
    let (requested, rest) = take_update(Level::Pod, &encoded(&request)).unwrap();
    assert_eq!(requested, pairs::<Requested>(&[("net", "fast")]));
    let rest = v1::UpdatePodSandboxResourcesRequest::decode(rest).unwrap();
    assert_eq!(rest, v1::UpdatePodSandboxResourcesRequest { qos_resources: vec![], ..request });
}

fn resource(name: &str) -> v1::QosResourceInfo {
    v1::QosResourceInfo { name: name.to_owned(), ..Default::default() }
}

#[test]
fn own_resources_join_those_of_the_runtime() {
    let foreign = v1::ResourcesInfo {
        pod_qos_resources: vec![resource("net")],
        container_qos_resources: vec![resource("rdt"), resource("v.example/x")],
    };
    let condition =
        v1::RuntimeCondition { r#type: "RuntimeReady".to_owned(), ..Default::default() };
    let status =
        v1::RuntimeStatus { conditions: vec![condition.clone()], resources: Some(foreign.clone()) };
    let response = v1::StatusResponse { status: Some(status), ..Default::default() };
    let offered = v1::ResourcesInfo {
        pod_qos_resources: vec![],
        container_qos_resources: vec![resource("k8s.io/rdt")],
    };
    let (found, bytes) = advertise(&encoded(&response), &offered).unwrap();
    assert_eq!(found, Some(foreign));
    assert!(keeps_unknown_field(&bytes));
    let status = v1::StatusResponse::decode(bytes).unwrap().status.unwrap();
    assert_eq!(status.conditions, [condition]);
    let resources = status.resources.unwrap();
    assert_eq!(resources.pod_qos_resources, [resource("net")]);
    assert_eq!(
        resources.container_qos_resources,
        [resource("k8s.io/rdt"), resource("v.example/x")]
    );
}

#[test]
fn runtime_without_resources_gets_those_of_the_layer() {
    let response =
        v1::StatusResponse { status: Some(v1::RuntimeStatus::default()), ..Default::default() };
    let offered = v1::ResourcesInfo {
        pod_qos_resources: vec![resource("v.example/x")],
        ..Default::default()
    };
    let (found, bytes) = advertise(&encoded(&response), &offered).unwrap();
    assert_eq!(found, None);
    let status = v1::StatusResponse::decode(bytes).unwrap().status.unwrap();
    assert_eq!(status.resources, Some(offered));
}

fn container_status(id: &str, class: &str) -> v1::ContainerStatus {
    let text = recorded(&[("k8s.io/rdt", class)]);
    v1::ContainerStatus {
        id: id.to_owned(),
        annotations: pairs(&[("a", "b"), (ANNOTATION, &text), ("z", "y")]),
        exit_code: 7,
        ..Default::default()
    }
}

/// Reports the assignments and the id.
fn report(level: Level, id: &str, assignments: Assignments) -> Requested {
    let mut classes: Requested = assignments.into_iter().collect();
    classes.push((level.to_string(), id.to_owned()));
    classes
}

fn reported_container(id: &str) -> v1::ContainerStatus {
    let class = |name: &str, class: &str| v1::ContainerQosResource {
        name: name.to_owned(),
        class: class.to_owned(),
    };
    v1::ContainerStatus {
        annotations: pairs(&[("a", "b"), ("z", "y")]),
        resources: Some(v1::ContainerResources {
            qos_resources: vec![class("k8s.io/rdt", "gold"), class("container", id)],
            ..Default::default()
        }),
        ..container_status(id, "")
    }
}

#[test]
fn statuses_report_classes_in_place_of_the_annotation() {
    let response = v1::ContainerStatusResponse {
        status: Some(container_status("c", "gold")),
        info: pairs(&[("info", "{}")]),
    };
    let bytes = report_container(&encoded(&response), &report).unwrap();
    assert!(keeps_unknown_field(&bytes));
    let edited = v1::ContainerStatusResponse::decode(bytes).unwrap();
    let expected = Some(reported_container("c"));
    assert_eq!(edited, v1::ContainerStatusResponse { status: expected, ..response });

    let text = recorded(&[("net", "fast")]);
    let response = v1::PodSandboxStatusResponse {
        status: Some(v1::PodSandboxStatus {
            id: "s".to_owned(),
            annotations: pairs(&[(ANNOTATION, &text)]),
            ..Default::default()
        }),
        containers_statuses: vec![container_status("c1", "gold"), container_status("c2", "gold")],
        ..Default::default()
    };
    let bytes = report_sandbox(&encoded(&response), &report).unwrap();
    assert!(keeps_unknown_field(&bytes));
    let edited = v1::PodSandboxStatusResponse::decode(bytes).unwrap();
    let status = edited.status.unwrap();
    assert!(status.annotations.is_empty());
    let classes: Requested =
        status.qos_resources.into_iter().map(|class| (class.name, class.class)).collect();
    assert_eq!(classes, pairs::<Requested>(&[("net", "fast"), ("pod", "s")]));
    let expected = [reported_container("c1"), reported_container("c2")];
    assert_eq!(edited.containers_statuses, expected);
}

#[test]
fn foreign_text_in_the_annotation_holds_no_assignment() {
    let annotations = pairs(&[(ANNOTATION, "not JSON")]);
    assert_eq!(assignments(&annotations), Assignments::new());
}
