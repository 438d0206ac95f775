//! kube-rs with a Berth server: typed and dynamic objects, patches, watcher and reflector, errors.

use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use kube::{Api, Client, Config, Error, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::server::Server;

/// Timeout of any action; long, because the machine may be busy.
const TIMEOUT: Duration = Duration::from_secs(90);

/// Runs a test with a client of its own server.
fn with_client<F: Future<Output = ()>>(test: impl FnOnce(Client) -> F) {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let kubeconfig = Kubeconfig::read_from(server.kubeconfig()).unwrap();
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
        let client = Client::try_from(config).unwrap();
        timeout(TIMEOUT, test(client)).await.expect("the test takes too long");
    });
}

fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn pod(name: &str) -> Pod {
    object(json!({
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"containers": [{
            "name": "c",
            "image": "registry.example/app:1.0",
            "resources": {"requests": {"cpu": "0.25"}},
        }]},
    }))
}

/// Returns the reason and code of the server's error.
fn refusal<T: std::fmt::Debug>(result: Result<T, Error>) -> (String, u16) {
    match result.unwrap_err() {
        Error::Api(status) => (status.reason.clone(), status.code),
        other => panic!("not an answer of the server: {other}"),
    }
}

#[test]
fn kube_rs_creates_patches_lists_and_deletes() {
    with_client(|client| async move {
        let pods: Api<Pod> = Api::default_namespaced(client.clone());
        let made = pods.create(&PostParams::default(), &pod("a")).await.unwrap();
        assert!(made.uid().is_some());
        let requests = made.spec.unwrap().containers[0].resources.clone().unwrap().requests;
        assert_eq!(requests.unwrap()["cpu"].0, "250m");

        let parameters = PatchParams::default();
        let label = json!({"metadata": {"labels": {"tier": "front"}}});
        let patched = pods.patch("a", &parameters, &Patch::Merge(&label)).await.unwrap();
        assert_eq!(patched.labels()["tier"], "front");
        let image =
            json!({"spec": {"containers": [{"name": "c", "image": "registry.example/app:2"}]}});
        let patched = pods.patch("a", &parameters, &Patch::Strategic(&image)).await.unwrap();
        let container = &patched.spec.as_ref().unwrap().containers[0];
        assert_eq!(container.image.as_deref(), Some("registry.example/app:2"));
        assert!(container.resources.is_some(), "a strategic patch merges by name");

        pods.create(&PostParams::default(), &pod("b")).await.unwrap();
        let page = pods.list(&ListParams::default().labels("app=web").limit(1)).await.unwrap();
        assert_eq!(page.items.iter().map(|p| p.name_any()).collect::<Vec<_>>(), ["a"]);
        let token = page.metadata.continue_.unwrap();
        let page = pods.list(&ListParams::default().limit(1).continue_token(&token)).await.unwrap();
        assert_eq!(page.items.iter().map(|p| p.name_any()).collect::<Vec<_>>(), ["b"]);
        let names = pods.list_metadata(&ListParams::default()).await.unwrap();
        assert_eq!(names.items.len(), 2);

        let nodes: Api<Node> = Api::all(client.clone());
        let node: Node = object(json!({"metadata": {"name": "pier"}}));
        nodes.create(&PostParams::default(), &node).await.unwrap();
        let status = json!({"status": {"capacity": {"cpu": "8"}}});
        let patched = nodes.patch_status("pier", &parameters, &Patch::Merge(&status)).await;
        assert_eq!(patched.unwrap().status.unwrap().capacity.unwrap()["cpu"].0, "8");
        let cordoned = nodes.cordon("pier").await.unwrap();
        assert_eq!(cordoned.spec.unwrap().unschedulable, Some(true));

        let deployments: Api<Deployment> = Api::default_namespaced(client);
        let fleet: Deployment = object(json!({
            "metadata": {"name": "fleet"},
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": {"app": "fleet"}},
                "template": {
                    "metadata": {"labels": {"app": "fleet"}},
                    "spec": {"containers": [{"name": "c", "image": "registry.example/app:1"}]},
                },
            },
        }));
        deployments.create(&PostParams::default(), &fleet).await.unwrap();
        let two = json!({"spec": {"replicas": 2}});
        let scale = deployments.patch_scale("fleet", &parameters, &Patch::Merge(&two)).await;
        assert_eq!(scale.unwrap().spec.unwrap().replicas, Some(2));

        pods.delete("a", &DeleteParams::default().grace_period(0)).await.unwrap();
        assert!(pods.get_opt("a").await.unwrap().is_none());
    });
}

#[test]
fn kube_rs_applies_with_conflicts() {
    with_client(|client| async move {
        let maps: Api<ConfigMap> = Api::default_namespaced(client);
        let till = |colour: &str| -> ConfigMap {
            object(json!({
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "till"},
                "data": {"colour": colour},
            }))
        };
        let painter = PatchParams::apply("painter");
        let made = maps.patch("till", &painter, &Patch::Apply(&till("red"))).await.unwrap();
        assert_eq!(made.managed_fields()[0].manager.as_deref(), Some("painter"));
        let decorator = PatchParams::apply("decorator");
        let result = maps.patch("till", &decorator, &Patch::Apply(&till("blue"))).await;
        assert_eq!(refusal(result), ("Conflict".to_owned(), 409));
        let made = maps.patch("till", &decorator.force(), &Patch::Apply(&till("blue"))).await;
        assert_eq!(made.unwrap().data.unwrap()["colour"], "blue");
    });
}

#[test]
fn kube_rs_reads_errors_as_they_are_meant() {
    with_client(|client| async move {
        let pods: Api<Pod> = Api::default_namespaced(client.clone());
        let result = pods.get("nope").await;
        assert_eq!(refusal(result), ("NotFound".to_owned(), 404));
        let result = pods.create(&PostParams::default(), &pod("Not_A_Name")).await;
        assert_eq!(refusal(result), ("Invalid".to_owned(), 422));
        pods.create(&PostParams::default(), &pod("a")).await.unwrap();
        let result = pods.create(&PostParams::default(), &pod("a")).await;
        assert_eq!(refusal(result), ("AlreadyExists".to_owned(), 409));
        let mut stale = pods.get("a").await.unwrap();
        let label = Patch::Merge(json!({"metadata": {"labels": {"x": "y"}}}));
        pods.patch("a", &PatchParams::default(), &label).await.unwrap();
        stale.labels_mut().insert("x".to_owned(), "z".to_owned());
        let result = pods.replace("a", &PostParams::default(), &stale).await;
        assert_eq!(refusal(result), ("Conflict".to_owned(), 409));
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let result = namespaces.delete("default", &DeleteParams::default()).await;
        assert_eq!(refusal(result.map(|_| ())), ("Forbidden".to_owned(), 403));
        assert_eq!(client.apiserver_version().await.unwrap().major, "1");
    });
}

#[test]
fn kube_rs_watches_and_reflects() {
    with_client(|client| async move {
        let pods: Api<Pod> = Api::default_namespaced(client);
        pods.create(&PostParams::default(), &pod("before")).await.unwrap();
        for config in [watcher::Config::default(), watcher::Config::default().streaming_lists()] {
            let (store, writer) = reflector::store();
            let stream = watcher(pods.clone(), config).reflect(writer).touched_objects();
            let mut stream = std::pin::pin!(stream);
            let first = stream.try_next().await.unwrap().unwrap();
            assert_eq!(first.name_any(), "before");

            pods.create(&PostParams::default(), &pod("after")).await.unwrap();
            // The scheduler also writes to pods.
            while stream.try_next().await.unwrap().unwrap().name_any() != "after" {}
            assert_eq!(store.len(), 2);

            pods.delete("after", &DeleteParams::default().grace_period(0)).await.unwrap();
            while store.len() != 1 {
                stream.next().await.unwrap().unwrap();
            }
            assert_eq!(store.state()[0].name_any(), "before");
        }
    });
}

/// kube-rs' types lack these fields.
#[test]
fn kube_rs_keeps_qos_classes_in_dynamic_objects() {
    with_client(|client| async move {
        let resource = ApiResource::erase::<Pod>(&());
        let pods: Api<DynamicObject> = Api::default_namespaced_with(client, &resource);
        let wanted = json!([{"name": "rdt", "class": "gold"}]);
        let mut body = serde_json::to_value(pod("classy")).unwrap();
        body["spec"]["containers"][0]["resources"]["qosResources"] = wanted.clone();
        pods.create(&PostParams::default(), &object(body)).await.unwrap();
        let read = pods.get("classy").await.unwrap();
        assert_eq!(read.data["spec"]["containers"][0]["resources"]["qosResources"], wanted);
    });
}
