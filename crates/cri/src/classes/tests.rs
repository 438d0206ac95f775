//! QoS-class resources are sent in the form that the runtime advertises.

use super::*;

fn pod(name: &str, class: &str) -> v1::PodQosResource {
    v1::PodQosResource { name: name.to_owned(), class: class.to_owned() }
}

fn container(name: &str, class: &str) -> v1::ContainerQosResource {
    v1::ContainerQosResource { name: name.to_owned(), class: class.to_owned() }
}

fn unsupported(level: Level, name: &str, class: &str) -> Unsupported {
    Unsupported { level, name: name.to_owned(), class: class.to_owned() }
}

fn annotations(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Returns the support of a runtime that advertises these resources.
fn advertising(pod: &[&str], container: &[&str]) -> ClassSupport {
    let info = |names: &[&str]| {
        names
            .iter()
            .map(|&name| v1::QosResourceInfo { name: name.to_owned(), ..Default::default() })
            .collect()
    };
    let resources = v1::ResourcesInfo {
        pod_qos_resources: info(pod),
        container_qos_resources: info(container),
    };
    ClassSupport::of(&v1::RuntimeStatus { resources: Some(resources), ..Default::default() })
}

fn creating(
    classes: &[v1::ContainerQosResource],
    pod_classes: &[v1::PodQosResource],
) -> v1::CreateContainerRequest {
    v1::CreateContainerRequest {
        config: Some(v1::ContainerConfig { qos_resources: classes.to_vec(), ..Default::default() }),
        sandbox_config: Some(v1::PodSandboxConfig {
            qos_resources: pod_classes.to_vec(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

#[test]
fn a_runtime_without_advertised_resources_gets_annotations() {
    assert_eq!(ClassSupport::of(&v1::RuntimeStatus::default()), ClassSupport::Annotations);
    let mut request = creating(
        &[container("k8s.io/rdt", "gold"), container("blockio", "slow")],
        &[pod("rdt", "bronze"), pod("k8s.io/blockio", "fast")],
    );
    assert_eq!(ClassSupport::Annotations.fit_create(&mut request), []);
    let mut expected = creating(&[], &[]);
    expected.config.as_mut().unwrap().annotations = annotations(&[
        ("io.kubernetes.cri.blockio-class", "slow"),
        ("io.kubernetes.cri.rdt-class", "gold"),
    ]);
    expected.sandbox_config.as_mut().unwrap().annotations = annotations(&[
        ("blockio.resources.beta.kubernetes.io/pod", "fast"),
        ("rdt.resources.beta.kubernetes.io/pod", "bronze"),
    ]);
    assert_eq!(request, expected);
}

#[test]
fn a_class_field_overrides_its_annotation_and_keeps_others() {
    let mut config = v1::PodSandboxConfig {
        annotations: annotations(&[("rdt.resources.beta.kubernetes.io/pod", "old"), ("x", "y")]),
        qos_resources: vec![pod("rdt", "new")],
        ..Default::default()
    };
    assert_eq!(ClassSupport::Annotations.fit_sandbox(&mut config), []);
    let expected = annotations(&[("rdt.resources.beta.kubernetes.io/pod", "new"), ("x", "y")]);
    assert_eq!((config.annotations, config.qos_resources), (expected, vec![]));
}

#[test]
fn classes_without_an_annotation_are_returned() {
    let mut request =
        creating(&[container("vendor.com/x", "a"), container("rdt", "gold")], &[pod("net", "b")]);
    assert_eq!(
        ClassSupport::Annotations.fit_create(&mut request),
        [unsupported(Level::Pod, "net", "b"), unsupported(Level::Container, "vendor.com/x", "a")]
    );
    let config = request.config.unwrap();
    assert_eq!(config.annotations, annotations(&[("io.kubernetes.cri.rdt-class", "gold")]));
    assert_eq!(config.qos_resources, []);
    assert_eq!(
        unsupported(Level::Container, "vendor.com/x", "a").to_string(),
        "the runtime does not support class \"a\" of QoS-class resource \"vendor.com/x\" for a container"
    );
}

#[test]
fn the_default_class_needs_no_annotation() {
    let mut request = creating(&[container("rdt", ""), container("vendor.com/x", "")], &[]);
    assert_eq!(ClassSupport::Annotations.fit_create(&mut request), []);
    assert_eq!(request, creating(&[], &[]));
}

#[test]
fn a_change_cannot_be_an_annotation() {
    let mut request = v1::UpdateContainerResourcesRequest {
        qos_resources: vec![container("rdt", "gold")],
        ..Default::default()
    };
    assert_eq!(
        ClassSupport::Annotations.fit_update(&mut request),
        [unsupported(Level::Container, "rdt", "gold")]
    );
    assert_eq!(request, v1::UpdateContainerResourcesRequest::default());

    let mut request = v1::UpdatePodSandboxResourcesRequest {
        qos_resources: vec![pod("rdt", "gold")],
        ..Default::default()
    };
    assert_eq!(
        ClassSupport::Annotations.fit_sandbox_update(&mut request),
        [unsupported(Level::Pod, "rdt", "gold")]
    );
    assert_eq!(request, v1::UpdatePodSandboxResourcesRequest::default());
}

#[test]
fn a_runtime_that_advertises_resources_gets_the_fields() {
    let support = advertising(&["k8s.io/blockio"], &["rdt", "vendor.com/x"]);
    let request = creating(
        &[container("rdt", "gold"), container("vendor.com/x", ""), container("unknown", "y")],
        &[pod("k8s.io/blockio", "fast")],
    );
    let mut fitted = request.clone();
    assert_eq!(support.fit_create(&mut fitted), []);
    assert_eq!(fitted, request);
}

#[test]
fn official_names_are_sent_in_the_runtimes_spelling() {
    let support = advertising(&["k8s.io/blockio"], &["rdt"]);
    let mut request = creating(&[container("k8s.io/rdt", "gold")], &[pod("blockio", "fast")]);
    assert_eq!(support.fit_create(&mut request), []);
    assert_eq!(request, creating(&[container("rdt", "gold")], &[pod("k8s.io/blockio", "fast")]));
    // Neither spelling is advertised at this level: it is sent unchanged, and the runtime rejects
    // it.
    let mut request = creating(&[container("blockio", "fast")], &[]);
    assert_eq!(support.fit_create(&mut request), []);
    assert_eq!(request, creating(&[container("blockio", "fast")], &[]));
}

#[test]
fn an_empty_resource_list_counts_as_advertised() {
    let mut request = creating(&[container("rdt", "gold")], &[]);
    assert_eq!(advertising(&[], &[]).fit_create(&mut request), []);
    assert_eq!(request, creating(&[container("rdt", "gold")], &[]));
}

#[test]
fn the_configuration_in_a_pull_is_fitted_too() {
    let mut request = v1::PullImageRequest {
        sandbox_config: Some(v1::PodSandboxConfig {
            qos_resources: vec![pod("net", "b")],
            ..Default::default()
        }),
        ..Default::default()
    };
    assert_eq!(
        ClassSupport::Annotations.fit_pull(&mut request),
        [unsupported(Level::Pod, "net", "b")]
    );
    assert_eq!(request.sandbox_config, Some(v1::PodSandboxConfig::default()));
    assert_eq!(ClassSupport::Annotations.fit_pull(&mut v1::PullImageRequest::default()), []);
}
