//! Feature gates over time: one store, served by servers with different gates.

use apiserver::{Api, Options, User};
use http::Method;
use objects::FeatureGates;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{options, pod, send_as};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// A store that outlives its servers.
struct Data(TempDir);

impl Data {
    fn new() -> Data {
        Data(tempfile::tempdir().unwrap())
    }

    /// Runs `work` on a server with these gates, and returns its result after the server has ended.
    async fn serve<T>(&self, gates: &str, work: impl AsyncFnOnce(&Api) -> T) -> T {
        let path = self.0.path().join("store");
        let store = store::Store::open(&path, store::Options::default()).unwrap();
        let gates = FeatureGates::default().with(gates).unwrap();
        let options = Options { gates, ..options() };
        let api = Api::new(store.clone(), options).await.unwrap();
        let result = work(&api).await;
        drop(api);
        tokio::task::spawn_blocking(move || store.close()).await.unwrap();
        result
    }
}

async fn send(api: &Api, method: Method, path: &str, body: Value) -> (u16, Value) {
    send_as(api, User::member("admin", "system:masters"), method, path, body).await
}

/// Stores a pod with the gate on and updates it with the gate off: it keeps `field`, a new pod with
/// the field is rejected, the field cannot be added to a pod without it, and everything is
/// unchanged with the gate on again.
async fn survives(gate: &str, asking: Value, without: Value, field: &str) {
    let data = Data::new();
    let (on, off) = (format!("{gate}=true"), format!("{gate}=false"));
    let wanted = asking.pointer(field).cloned().unwrap();
    data.serve(&on, async |api| {
        let (code, made) = send(api, Method::POST, PODS, asking.clone()).await;
        assert_eq!((code, made.pointer(field)), (201, Some(&wanted)), "{made}");
    })
    .await;
    data.serve(&off, async |api| {
        let path = format!("{PODS}/asking");
        let label = json!({"metadata": {"labels": {"seen": "off"}}});
        let (code, changed) = send(api, Method::PATCH, &path, label).await;
        assert_eq!((code, changed.pointer(field)), (200, Some(&wanted)), "{changed}");
        let (code, mut whole) = send(api, Method::GET, &path, Value::Null).await;
        assert_eq!(code, 200);
        whole["metadata"]["annotations"] = json!({"a": "b"});
        let (code, replaced) = send(api, Method::PUT, &path, whole).await;
        assert_eq!((code, replaced.pointer(field)), (200, Some(&wanted)), "{replaced}");
        let mut again = asking.clone();
        again["metadata"]["name"] = "again".into();
        let (code, answer) = send(api, Method::POST, PODS, again).await;
        assert_ne!(code, 201, "{answer}");
        let (code, answer) = send(api, Method::POST, PODS, without.clone()).await;
        assert_eq!(code, 201, "{answer}");
    })
    .await;
    data.serve(&on, async |api| {
        let (_, found) = send(api, Method::GET, &format!("{PODS}/asking"), Value::Null).await;
        assert_eq!(found.pointer(field), Some(&wanted));
        assert_eq!(found["metadata"]["labels"]["seen"], "off");
        assert_eq!(found["metadata"]["annotations"]["a"], "b");
    })
    .await;
}

#[tokio::test]
async fn stored_classes_survive_a_server_with_the_gate_off() {
    let mut asking = pod("asking");
    asking["spec"]["containers"][0]["resources"] =
        json!({"qosResources": [{"name": "rdt", "class": "gold"}]});
    let field = "/spec/containers/0/resources/qosResources";
    survives("QOSResources", asking.clone(), pod("plain"), field).await;
    asking = pod("asking");
    asking["spec"]["qosResources"] = json!([{"name": "example.com/network", "class": "fast"}]);
    survives("QOSResources", asking, pod("plain"), "/spec/qosResources").await;
}

#[tokio::test]
async fn stored_host_process_pod_survives_the_gate_being_off() {
    let mut asking = pod("asking");
    asking["spec"]["hostNetwork"] = true.into();
    asking["spec"]["os"] = json!({"name": "windows"});
    asking["spec"]["securityContext"] = json!({"windowsOptions": {"hostProcess": true}});
    let field = "/spec/securityContext/windowsOptions/hostProcess";
    survives("WindowsHostProcessContainers", asking, pod("plain"), field).await;
}

#[tokio::test]
async fn class_quotas_survive_a_server_with_the_gate_off() {
    let data = Data::new();
    let path = "/api/v1/namespaces/default/resourcequotas";
    let bounds = json!({"container": [
        {"name": "rdt", "classes": [{"name": "gold", "capacity": 2}]},
    ]});
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
        "spec": {"hard": {"pods": "9"}, "qosResources": bounds},
    });
    let made = data.serve("QOSResources=true", async |api| {
        let (code, made) = send(api, Method::POST, path, quota).await;
        assert_eq!(code, 201, "{made}");
        made["spec"]["qosResources"].clone()
    });
    let made = made.await;
    assert!(!made.is_null());
    data.serve("QOSResources=false", async |api| {
        let patch = json!({"spec": {"hard": {"pods": "8"}}});
        let (code, changed) = send(api, Method::PATCH, &format!("{path}/q"), patch).await;
        assert_eq!((code, &changed["spec"]["qosResources"]), (200, &made), "{changed}");
    })
    .await;
}

#[tokio::test]
async fn unknown_official_names_survive_strict_validation() {
    const NODES: &str = "/api/v1/nodes";
    let data = Data::new();
    let mut asking = pod("asking");
    asking["spec"]["qosResources"] = json!([{"name": "network", "class": "fast"}]);
    let offers = json!({"containerQOSResources": [{"name": "k8s.io/disk"}]});
    let node = |name: &str| {
        let status = json!({"qosResources": offers});
        json!({"metadata": {"name": name}, "status": status})
    };
    let lax = "QOSResources=true,QOSResourcesStrictNames=false";
    data.serve(lax, async |api| {
        for (path, object) in [(PODS, asking.clone()), (NODES, node("n"))] {
            let (code, answer) = send(api, Method::POST, path, object).await;
            assert_eq!(code, 201, "{answer}");
        }
    })
    .await;
    data.serve("QOSResources=true", async |api| {
        let label = json!({"metadata": {"labels": {"seen": "strict"}}});
        for path in [format!("{PODS}/asking"), format!("{NODES}/n"), format!("{NODES}/n/status")] {
            let (code, answer) = send(api, Method::PATCH, &path, label.clone()).await;
            assert_eq!(code, 200, "{path}: {answer}");
        }
        let mut again = asking.clone();
        again["metadata"]["name"] = "again".into();
        let known = "supported values: \"k8s.io/rdt\", \"k8s.io/blockio\", \"rdt\", \"blockio\"";
        for (path, object, field) in [
            (PODS, again, "spec.qosResources[0].name"),
            (NODES, node("m"), "status.qosResources.containerQOSResources[0].name"),
        ] {
            let (code, answer) = send(api, Method::POST, path, object).await;
            let cause = &answer["details"]["causes"][0];
            assert_eq!((code, &cause["field"]), (422, &json!(field)), "{answer}");
            assert!(cause["message"].as_str().unwrap().ends_with(known), "{cause}");
        }
    })
    .await;
}
