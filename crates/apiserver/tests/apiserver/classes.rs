//! QoS-class resources (KEP-3008) as native fields.

use apiserver::Options;
use http::Method;
use objects::{FeatureGates, Gate};
use serde_json::{Value, json};

use crate::{Cluster, options, pod};

const PODS: &str = "/api/v1/namespaces/default/pods";

fn classy(name: &str, class: &str) -> Value {
    let mut pod = pod(name);
    pod["spec"]["containers"][0]["resources"] =
        json!({"qosResources": [{"name": "rdt", "class": class}]});
    pod["spec"]["qosResources"] = json!([{"name": "example.com/network", "class": "fast"}]);
    pod
}

#[tokio::test]
async fn class_requests_are_stored_unchanged() {
    let cluster = Cluster::new().await;
    let created = cluster.create(PODS, classy("p", "gold")).await;
    let read = cluster.get(&format!("{PODS}/p")).await;
    assert_eq!(created, read);
    let wanted = classy("p", "gold");
    assert_eq!(read["spec"]["qosResources"], wanted["spec"]["qosResources"]);
    assert_eq!(
        read["spec"]["containers"][0]["resources"],
        wanted["spec"]["containers"][0]["resources"]
    );
}

#[tokio::test]
async fn unknown_official_names_and_repeated_resources_are_refused() {
    let cluster = Cluster::new().await;
    for (resources, field) in [
        (json!([{"name": "nonsense", "class": "a"}]), "qosResources[0].name"),
        (json!([{"name": "k8s.io/nonsense", "class": "a"}]), "qosResources[0].name"),
        (
            json!([{"name": "rdt", "class": "a"}, {"name": "rdt", "class": "b"}]),
            "qosResources[1].name",
        ),
        (json!([{"name": "rdt", "class": ""}]), "qosResources[0].class"),
    ] {
        let mut pod = pod("p");
        pod["spec"]["containers"][0]["resources"] = json!({"qosResources": resources});
        let (status, answer) = cluster.send(Method::POST, PODS, pod).await;
        assert_eq!(status, 422, "{answer}");
        let named = answer["details"]["causes"][0]["field"].as_str().unwrap();
        assert!(named.ends_with(field), "{named}");
    }
}

#[tokio::test]
async fn quota_limits_a_namespace_to_its_classes() {
    let cluster = Cluster::new().await;
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "classes"},
        "spec": {"qosResources": {
            "container": [{"name": "rdt", "classes": [{"name": "gold", "capacity": 2}]}],
            "pod": [{"name": "example.com/network", "classes": [{"name": "fast"}]}],
        }},
    });
    let path = "/api/v1/namespaces/default/resourcequotas";
    let created = cluster.create(path, quota.clone()).await;
    assert_eq!(created["spec"], quota["spec"]);
    // As the quota controller would have counted it.
    let status = json!({"status": {
        "qosResources": quota["spec"]["qosResources"],
        "qosResourcesUsage": {
            "container": [{"name": "rdt", "classes": [{"name": "gold", "capacity": 0}]}],
            "pod": [],
        },
    }});
    let path = format!("{path}/classes/status");
    let (code, answer) = cluster.send(Method::PATCH, &path, status).await;
    assert_eq!(code, 200, "{answer}");
    cluster.create(PODS, classy("a", "gold")).await;
    cluster.create(PODS, classy("b", "gold")).await;
    for (name, class) in [("c", "gold"), ("d", "silver")] {
        let (code, answer) = cluster.send(Method::POST, PODS, classy(name, class)).await;
        assert_eq!(code, 403, "{answer}");
        assert!(answer["message"].as_str().unwrap().contains(class), "{answer}");
    }
}

#[tokio::test]
async fn class_requests_are_rejected_with_the_gate_off() {
    let mut gates = FeatureGates::default();
    gates.set(Gate::QosResources, false).unwrap();
    let cluster = Cluster::with(Options { gates, ..options() }).await;
    let (code, answer) = cluster.send(Method::POST, PODS, classy("p", "gold")).await;
    assert_eq!(code, 422, "{answer}");
    cluster.create(PODS, pod("plain")).await;
}

#[tokio::test]
async fn node_reports_classes_in_either_spelling() {
    let cluster = Cluster::new().await;
    let classes =
        json!([{"name": "rdt", "mutable": true, "classes": [{"name": "gold", "capacity": 4}]}]);
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"},
        "status": {"qosResources": {"containerQoSResources": classes}},
    });
    let created = cluster.create("/api/v1/nodes", node).await;
    assert_eq!(created["status"]["qosResources"], json!({"containerQOSResources": classes}));
}

#[tokio::test]
async fn class_changes_in_place_atomically_if_the_node_allows() {
    let cluster = Cluster::new().await;
    let class = |name: &str, mutable: bool| json!({"name": name, "mutable": mutable, "classes": [{"name": "gold"}, {"name": "silver"}]});
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"},
        "status": {"qosResources": {"containerQOSResources": [class("rdt", true), class("blockio", false)]}},
    });
    cluster.create("/api/v1/nodes", node).await;
    let mut bound = pod("p");
    bound["spec"]["nodeName"] = json!("n");
    bound["spec"]["containers"][0]["resources"] = json!({"qosResources": [
        {"name": "rdt", "class": "gold"}, {"name": "blockio", "class": "gold"},
    ]});
    cluster.create(PODS, bound).await;
    let path = format!("{PODS}/p/resize");
    let mut pod = cluster.get(&format!("{PODS}/p")).await;
    let requests = pod["spec"]["containers"][0]["resources"]["qosResources"].clone();
    // Both at once: the immutable resource rejects the whole update.
    for request in pod["spec"]["containers"][0]["resources"]["qosResources"].as_array_mut().unwrap()
    {
        request["class"] = json!("silver");
    }
    let (code, answer) = cluster.send(Method::PUT, &path, pod.clone()).await;
    assert_eq!(code, 422, "{answer}");
    let stored = cluster.get(&format!("{PODS}/p")).await;
    assert_eq!(stored["spec"]["containers"][0]["resources"]["qosResources"], requests);
    pod["spec"]["containers"][0]["resources"]["qosResources"][1]["class"] = json!("gold");
    let (code, answer) = cluster.send(Method::PUT, &path, pod).await;
    assert_eq!(code, 200, "{answer}");
    let changed = &answer["spec"]["containers"][0]["resources"]["qosResources"];
    assert_eq!((&changed[0]["class"], &changed[1]["class"]), (&json!("silver"), &json!("gold")));
}
