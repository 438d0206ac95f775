//! Dry runs of deletions, and repeated deletions of terminating objects.

use http::Method;
use serde_json::{Value, json};

use crate::{Cluster, pod};

const PODS: &str = "/api/v1/namespaces/default/pods";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A pod on a node with its own grace period.
fn bound(name: &str, grace: i64) -> Value {
    let mut bound = pod(name);
    bound["spec"]["nodeName"] = "n".into();
    bound["spec"]["terminationGracePeriodSeconds"] = grace.into();
    bound
}

fn grace(pod: &Value) -> &Value {
    &pod["metadata"]["deletionGracePeriodSeconds"]
}

#[tokio::test]
async fn delete_dry_run_returns_the_marked_object() {
    let cluster = Cluster::new().await;
    let mut kept = pod("kept");
    kept["metadata"]["finalizers"] = json!(["e.io/f"]);
    for (pod, query, seconds) in [
        (pod("unbound"), "", 0),
        (bound("bound", 7), "", 7),
        (bound("at-once", 7), "&gracePeriodSeconds=0", 0),
        (bound("negative", 7), "&gracePeriodSeconds=-5", 1),
        (kept, "", 0),
    ] {
        let created = cluster.create(PODS, pod).await;
        let name = created["metadata"]["name"].as_str().unwrap();
        let path = format!("{PODS}/{name}");
        let dry = format!("{path}?dryRun=All{query}");
        let (status, shown) = cluster.send(Method::DELETE, &dry, Value::Null).await;
        assert_eq!((status, &shown["kind"]), (200, &json!("Pod")), "{shown}");
        assert_eq!(grace(&shown), seconds, "{name}");
        assert!(shown["metadata"]["deletionTimestamp"].is_string(), "{shown}");
        assert_eq!(shown["metadata"]["generation"], 2);
        let version = |pod: &Value| pod["metadata"]["resourceVersion"].clone();
        assert_eq!(version(&shown), version(&created));
        assert_eq!(cluster.get(&path).await, created, "nothing changes");
    }
    // Kinds that are removed at once respond with a Status, unless finalizers are handled first.
    let map = |name: &str, finalizers: &[&str]| json!({"metadata": {"name": name, "finalizers": finalizers}});
    cluster.create(MAPS, map("plain", &[])).await;
    let (status, answer) =
        cluster.send(Method::DELETE, &format!("{MAPS}/plain?dryRun=All"), Value::Null).await;
    assert_eq!(
        (status, &answer["kind"], &answer["status"]),
        (200, &json!("Status"), &json!("Success"))
    );
    cluster.create(MAPS, map("orphaning", &["orphan"])).await;
    let path = format!("{MAPS}/orphaning?dryRun=All&propagationPolicy=Background");
    let (status, answer) = cluster.send(Method::DELETE, &path, Value::Null).await;
    assert_eq!((status, &answer["kind"]), (200, &json!("ConfigMap")), "{answer}");
    assert!(answer["metadata"].get("finalizers").is_none());
    assert!(answer["metadata"].get("deletionTimestamp").is_none());
    assert_eq!(
        cluster.get(&format!("{MAPS}/orphaning")).await["metadata"]["finalizers"],
        json!(["orphan"])
    );
}

#[tokio::test]
async fn only_an_explicit_grace_period_shortens_a_termination() {
    let cluster = Cluster::new().await;
    cluster.create(PODS, bound("p", 5)).await;
    let path = format!("{PODS}/p");
    let delete = |query: &str| {
        let path = format!("{path}{query}");
        let cluster = &cluster;
        async move { cluster.send(Method::DELETE, &path, Value::Null).await.1 }
    };
    let first = delete("?gracePeriodSeconds=60").await;
    assert_eq!(grace(&first), 60);
    // The pod's own grace period is shorter, but the request does not name it.
    assert_eq!(delete("").await, first);
    assert_eq!(delete("?gracePeriodSeconds=61").await, first);
    // While the pod terminates, finalizers are not changed.
    assert_eq!(delete("?propagationPolicy=Foreground").await, first);
    // A finished pod is not removed before its agent confirms it.
    let done = json!({"status": {"phase": "Succeeded"}});
    let (status, finished) = cluster.send(Method::PATCH, &format!("{path}/status"), done).await;
    assert_eq!(status, 200, "{finished}");
    assert_eq!(delete("").await, finished);
    assert_eq!(grace(&delete("?gracePeriodSeconds=10").await), 10);
    assert_eq!(grace(&delete("?gracePeriodSeconds=-1").await), 1);
    delete("?gracePeriodSeconds=0").await;
    assert_eq!(cluster.send(Method::GET, &path, Value::Null).await.0, 404);
}

#[tokio::test]
async fn orphan_dependents_option_returns_202_while_terminating() {
    let cluster = Cluster::new().await;
    cluster.create(PODS, bound("bound", 5)).await;
    cluster.create(PODS, pod("unbound")).await;
    for (name, query, expected) in [
        ("bound", "orphanDependents=false&dryRun=All", 202),
        ("unbound", "orphanDependents=false&dryRun=All", 200),
        ("bound", "propagationPolicy=Background", 200),
        ("bound", "orphanDependents=false", 202),
        ("unbound", "orphanDependents=false", 200),
    ] {
        let path = format!("{PODS}/{name}?{query}");
        assert_eq!(cluster.send(Method::DELETE, &path, Value::Null).await.0, expected, "{path}");
    }
    let path = format!("{PODS}/bound?propagationPolicy=");
    let (status, answer) = cluster.send(Method::DELETE, &path, Value::Null).await;
    assert_eq!(status, 422, "{answer}");
}
