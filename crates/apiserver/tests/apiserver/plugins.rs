//! Disabled admission plugins no longer have an effect.

use apiserver::{Options, Plugin, Plugins};
use http::Method;
use serde_json::{Value, json};

use crate::{Cluster, pod};

const NAMESPACE: &str = "/api/v1/namespaces/a";

/// Creates the objects that a plugin depends on.
async fn set_up(cluster: &Cluster, plugin: Plugin) {
    match plugin {
        Plugin::LimitRanger => {
            let limits = json!([{"type": "Container", "max": {"cpu": "1"}}]);
            let range = json!({"metadata": {"name": "x"}, "spec": {"limits": limits}});
            cluster.create(&format!("{NAMESPACE}/limitranges"), range).await;
        }
        Plugin::ResourceQuota => {
            let quotas = format!("{NAMESPACE}/resourcequotas");
            let (hard, used) = (json!({"pods": "1"}), json!({"pods": "1"}));
            let quota = json!({"metadata": {"name": "x"}, "spec": {"hard": hard}});
            cluster.create(&quotas, quota).await;
            // There is no quota controller here.
            let status = json!({"status": {"hard": hard, "used": used}});
            let (code, answer) =
                cluster.send(Method::PATCH, &format!("{quotas}/x/status"), status).await;
            assert_eq!(code, 200, "{answer}");
        }
        _ => {}
    }
}

/// A pod that a plugin rejects.
fn refused(plugin: Plugin) -> Value {
    let mut pod = pod("p");
    let spec = &mut pod["spec"];
    match plugin {
        Plugin::LimitRanger => {
            spec["containers"][0]["resources"] = json!({"limits": {"cpu": "2"}});
        }
        Plugin::ServiceAccount => spec["serviceAccountName"] = "none".into(),
        Plugin::PodSecurity => spec["hostNetwork"] = true.into(),
        Plugin::Priority => spec["priorityClassName"] = "none".into(),
        Plugin::RuntimeClass => spec["runtimeClassName"] = "none".into(),
        _ => {}
    }
    pod
}

/// Returns the response of a server with these plugins to a pod that one of them rejects.
async fn answered(plugins: Plugins, plugin: Plugin) -> (u16, Value) {
    let cluster = Cluster::with(Options { plugins, ..Options::default() }).await;
    let labels = json!({"pod-security.kubernetes.io/enforce": "baseline"});
    let namespace = json!({"metadata": {"name": "a", "labels": labels}});
    cluster.create("/api/v1/namespaces", namespace).await;
    let account = json!({"metadata": {"name": "default"}});
    cluster.create(&format!("{NAMESPACE}/serviceaccounts"), account).await;
    set_up(&cluster, plugin).await;
    cluster.send(Method::POST, &format!("{NAMESPACE}/pods"), refused(plugin)).await
}

#[tokio::test]
async fn disabled_plugin_rejects_nothing() {
    for plugin in [
        Plugin::LimitRanger,
        Plugin::ServiceAccount,
        Plugin::PodSecurity,
        Plugin::Priority,
        Plugin::RuntimeClass,
        Plugin::ResourceQuota,
    ] {
        let (code, answer) = answered(Plugins::default(), plugin).await;
        assert_eq!(code, 403, "{plugin}: {answer}");
        let (code, answer) = answered(Plugins::default().without(plugin), plugin).await;
        assert_eq!(code, 201, "{plugin}: {answer}");
    }
}

#[tokio::test]
async fn tolerations_are_added_unless_their_plugin_is_off() {
    let plugin = Plugin::DefaultTolerationSeconds;
    let (_, with) = answered(Plugins::default(), plugin).await;
    assert_eq!(with["spec"]["tolerations"].as_array().map(Vec::len), Some(2), "{with}");
    let (code, without) = answered(Plugins::default().without(plugin), plugin).await;
    assert_eq!((code, without["spec"].get("tolerations")), (201, None));
}

#[tokio::test]
async fn namespace_lifecycle_cannot_be_disabled() {
    let plugins = Plugins::default().without(Plugin::NamespaceLifecycle);
    let plugins = plugins.without(Plugin::ServiceAccount);
    let cluster = Cluster::with(Options { plugins, ..Options::default() }).await;
    let (code, answer) = cluster.send(Method::POST, &format!("{NAMESPACE}/pods"), pod("p")).await;
    assert_eq!((code, &answer["reason"]), (404, &json!("NotFound")));
}

#[tokio::test]
async fn topology_labels_are_added_unless_disabled() {
    const ZONE: &str = "topology.kubernetes.io/zone";
    for (plugins, expected) in [
        (Plugins::default(), json!({ZONE: "z", "a": "b"})),
        (Plugins::default().without(Plugin::PodTopologyLabels), json!({ZONE: "mine", "a": "b"})),
    ] {
        let plugins = plugins.without(Plugin::ServiceAccount);
        let cluster = Cluster::with(Options { plugins, ..Options::default() }).await;
        let labels = json!({ZONE: "z", "kubernetes.io/hostname": "n"});
        cluster.create("/api/v1/nodes", json!({"metadata": {"name": "n", "labels": labels}})).await;
        let pods = "/api/v1/namespaces/default/pods";
        let labelled = |name: &str| {
            let mut pod = pod(name);
            pod["metadata"]["labels"] = json!({ZONE: "mine", "a": "b"});
            pod
        };
        cluster.create(pods, labelled("bound")).await;
        let binding = json!({
            "metadata": {"name": "bound"}, "target": {"kind": "Node", "name": "n"},
        });
        cluster.create(&format!("{pods}/bound/binding"), binding).await;
        let mut born = labelled("born");
        born["spec"]["nodeName"] = "n".into();
        cluster.create(pods, born).await;
        for name in ["bound", "born"] {
            let pod = cluster.get(&format!("{pods}/{name}")).await;
            assert_eq!(pod["metadata"]["labels"], expected, "{name}");
        }
        let mut elsewhere = labelled("elsewhere");
        elsewhere["spec"]["nodeName"] = "gone".into();
        cluster.create(pods, elsewhere).await;
    }
}
