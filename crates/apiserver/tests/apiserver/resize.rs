//! Resizing a pod on a node.

use http::Method;
use serde_json::json;

use crate::{Cluster, pod};

const PODS: &str = "/api/v1/namespaces/default/pods";

#[tokio::test]
async fn resize_is_limited_by_allocatable_resources() {
    let cluster = Cluster::new().await;
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"},
        "status": {"allocatable": {"cpu": "1700m", "memory": "1Gi"}},
    });
    cluster.create("/api/v1/nodes", node).await;
    let mut bound = pod("p");
    bound["spec"]["nodeName"] = "n".into();
    bound["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "100m"}});
    cluster.create(PODS, bound).await;
    let mut resized = cluster.get(&format!("{PODS}/p")).await;
    resized["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "100".into();
    let path = format!("{PODS}/p/resize");
    let (code, answer) = cluster.send(Method::PUT, &path, resized.clone()).await;
    assert_eq!((code, &answer["reason"]), (403, &json!("Forbidden")), "{answer}");
    let said = "pods \"p\" is forbidden: node didn't have enough allocatable resources: cpu, \
                requested: 100000, allocatable: 1700";
    assert_eq!(answer["message"], said);
    assert_eq!(answer["details"]["causes"], json!([{"reason": "NodeCapacity"}]));
    let stored = cluster.get(&format!("{PODS}/p")).await;
    assert_eq!(stored["spec"]["containers"][0]["resources"]["requests"]["cpu"], "100m");
    // All allocatable resources, regardless of other pods.
    resized["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "1700m".into();
    let (code, answer) = cluster.send(Method::PUT, &path, resized).await;
    assert_eq!(code, 200, "{answer}");
}

#[tokio::test]
async fn resize_needs_an_existing_node() {
    let cluster = Cluster::new().await;
    let mut bound = pod("p");
    bound["spec"]["nodeName"] = "gone".into();
    bound["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "100m"}});
    cluster.create(PODS, bound).await;
    let mut resized = cluster.get(&format!("{PODS}/p")).await;
    let path = format!("{PODS}/p/resize");
    // Nothing changes, so the node is not checked.
    let (code, answer) = cluster.send(Method::PUT, &path, resized.clone()).await;
    assert_eq!(code, 200, "{answer}");
    resized["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "200m".into();
    let (code, answer) = cluster.send(Method::PUT, &path, resized).await;
    let said = "pods \"p\" is forbidden: node \"gone\" not found";
    assert_eq!((code, &answer["message"]), (403, &json!(said)));
}

#[tokio::test]
async fn resize_gets_limit_range_defaults() {
    let cluster = Cluster::new().await;
    let mut burstable = pod("p");
    burstable["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "100m"}});
    cluster.create(PODS, burstable).await;
    let item =
        json!({"type": "Container", "default": {"cpu": "2"}, "defaultRequest": {"memory": "1Mi"}});
    let range = json!({"metadata": {"name": "l"}, "spec": {"limits": [item]}});
    cluster.create("/api/v1/namespaces/default/limitranges", range).await;
    let mut resized = cluster.get(&format!("{PODS}/p")).await;
    resized["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "200m".into();
    let path = format!("{PODS}/p/resize");
    let (code, answer) = cluster.send(Method::PUT, &path, resized).await;
    assert_eq!(code, 200, "{answer}");
    let given = json!({"limits": {"cpu": "2"}, "requests": {"cpu": "200m", "memory": "1Mi"}});
    assert_eq!(answer["spec"]["containers"][0]["resources"], given);
    assert_eq!(answer["metadata"]["annotations"], serde_json::Value::Null);
}
