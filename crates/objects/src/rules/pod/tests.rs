//! What the recordings cannot show: gates that are off, classes, and how long a create takes.

use serde_json::{Value, json};

use super::super::{self as rules, Part, Setting};
use super::class_resources;
use crate::catalog::{self, Resource};
use crate::feature_gates::FeatureGates;
use crate::timestamp::Timestamp;

fn pods() -> &'static Resource {
    catalog::find("", "v1", "pods").unwrap()
}

fn setting(gates: &FeatureGates) -> Setting<'_> {
    Setting { gates, allow_privileged: true, now: Timestamp::new(0, 0) }
}

/// A pod as it would be stored, from a spec without containers and one container.
fn pod(spec: &Value, container: &Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "n", "resourceVersion": "1"},
        "spec": {"containers": [{"name": "c", "image": "app:1", "resources": {}}]},
    });
    for (field, value) in spec.as_object().unwrap() {
        pod["spec"][field] = value.clone();
    }
    for (field, value) in container.as_object().unwrap() {
        pod["spec"]["containers"][0][field] = value.clone();
    }
    rules::set_defaults(pods(), &mut pod);
    pod
}

fn created(pod: &Value, gates: &str) -> Vec<String> {
    let gates = FeatureGates::parse(gates).unwrap();
    let mut pod = pod.clone();
    rules::prepare_create(pods(), &mut pod, &setting(&gates));
    shown(rules::validate_create(pods(), &pod, &setting(&gates)))
}

fn updated(new: &Value, old: &Value, part: Part, gates: &str) -> Vec<String> {
    let gates = FeatureGates::parse(gates).unwrap();
    let mut new = new.clone();
    rules::prepare_update(pods(), &mut new, old, part, &setting(&gates));
    shown(rules::validate_update(pods(), &new, old, part, &setting(&gates)))
}

fn shown(causes: crate::cursor::Causes) -> Vec<String> {
    causes.0.into_iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect()
}

fn with_class(class: &str) -> Value {
    let classes = json!([{"name": "k8s.io/rdt", "class": class}]);
    pod(&json!({}), &json!({"resources": {"qosResources": classes}}))
}

#[test]
fn host_process_pods_are_refused_while_the_gate_is_off_and_stored_ones_go_on() {
    let context = json!({"windowsOptions": {"hostProcess": true}});
    let pod = pod(&json!({"hostNetwork": true, "securityContext": context}), &json!({}));
    assert!(created(&pod, "").is_empty());
    let off = "WindowsHostProcessContainers=false";
    assert_eq!(
        created(&pod, off),
        ["spec: Forbidden: hostProcess may not be set when the WindowsHostProcessContainers \
          feature gate is disabled"]
    );
    let mut labelled = pod.clone();
    labelled["metadata"]["labels"] = json!({"a": "b"});
    assert!(updated(&labelled, &pod, Part::Main, off).is_empty());
}

#[test]
fn pods_that_ask_for_classes_are_refused_while_the_gate_is_off_and_stored_ones_go_on() {
    let asking = with_class("gold");
    let refused = created(&asking, "");
    assert_eq!(
        refused,
        ["spec.containers[0].resources.qosResources: Forbidden: may not be set when the \
          QOSResources feature gate is disabled"]
    );
    assert!(created(&asking, "QOSResources=true").is_empty());
    let mut labelled = asking.clone();
    labelled["metadata"]["labels"] = json!({"a": "b"});
    assert!(updated(&labelled, &asking, Part::Main, "").is_empty());
    let pod_level =
        json!([{"name": "blockio", "class": "slow"}, {"name": "acme.com/x", "class": "a"}]);
    let pod = pod(&json!({"qosResources": pod_level}), &json!({}));
    assert!(created(&pod, "QOSResources=true").is_empty());
    assert_eq!(pod["spec"]["qosResources"][0]["name"], "blockio");
}

#[test]
fn the_class_of_a_container_can_change_through_the_pod_and_through_resize() {
    let (gold, silver) = (with_class("gold"), with_class("silver"));
    for part in [Part::Main, Part::Resize] {
        assert!(updated(&silver, &gold, part, "QOSResources=true").is_empty(), "{part:?}");
        assert!(!updated(&with_class(""), &gold, part, "QOSResources=true").is_empty());
    }
    let mut bumped = silver.clone();
    let gates = FeatureGates::parse("QOSResources=true").unwrap();
    rules::prepare_update(pods(), &mut bumped, &gold, Part::Main, &setting(&gates));
    assert_eq!(bumped["metadata"]["generation"], 1);
    let refused = class_resources::validate_changes(&silver, &gold, |_| Some(false));
    assert_eq!(
        shown(refused),
        [
            "spec.containers[0].resources.qosResources[0].class: Forbidden: may not be changed while \
          the container runs"
        ]
    );
}

#[test]
fn pod_level_classes_do_not_change() {
    let with = |class: &str| {
        let classes = json!([{"name": "acme.com/net", "class": class}]);
        pod(&json!({"qosResources": classes}), &json!({}))
    };
    let refused = updated(&with("b"), &with("a"), Part::Main, "QOSResources=true");
    assert_eq!(refused.len(), 1);
    assert!(refused[0].starts_with("spec: Forbidden: pod updates may not change"), "{refused:?}");
    assert!(
        refused[0]
            .ends_with("- spec.qosResources[0].class: \"a\"\n+ spec.qosResources[0].class: \"b\"")
    );
}

#[test]
fn nothing_panics_on_values_of_the_wrong_kind() {
    let gates = FeatureGates::default();
    for odd in [
        json!(null),
        json!([]),
        json!("x"),
        json!({"spec": []}),
        json!({"spec": {"containers": {}, "volumes": 3, "initContainers": [null, 1]}, "metadata": "m", "status": []}),
    ] {
        let mut pod = odd.clone();
        rules::set_defaults(pods(), &mut pod);
        rules::prepare_create(pods(), &mut pod, &setting(&gates));
        let _ = rules::validate_create(pods(), &pod, &setting(&gates));
        let _ = rules::warnings(pods(), &pod, None);
        for part in [Part::Main, Part::Status, Part::Resize, Part::EphemeralContainers] {
            let mut new = odd.clone();
            rules::prepare_update(pods(), &mut new, &pod, part, &setting(&gates));
            let _ = rules::validate_update(pods(), &new, &pod, part, &setting(&gates));
        }
    }
}
