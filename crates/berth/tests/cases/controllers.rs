//! The loops against a real API server in one process, with nodes that are objects only and a kubelet
//! that is a few lines: it says that bound pods run, and lets deleted ones go.
//!
//! Nothing here sleeps for a while and hopes: every wait is for a level, with a deadline.

use std::sync::Arc;
use std::time::{Duration, Instant};

use berth::in_process::InProcess;
use controllers::kind::{NAMESPACES, NODES, PODS};
use controllers::{
    Client, DeleteOptions, Handle, Key, Kind, Options, PatchKind, Propagation, Reflector, Scope,
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// How long a level may take to be reached.
const DEADLINE: Duration = Duration::from_secs(20);

struct Cluster {
    client: Client,
    handle: Option<Handle>,
    _dir: tempfile::TempDir,
}

impl Cluster {
    async fn start(options: Options) -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let store =
            store::Store::open(&dir.path().join("store"), store::Options::default()).unwrap();
        let api = apiserver::Api::new(store, apiserver::Options::default()).await.unwrap();
        let transport = Arc::new(InProcess::new(api, "system:kube-controller-manager"));
        let client = Client::new(transport, "test");
        let handle = controllers::run(&client, options).unwrap();
        tokio::spawn(kubelet(client.clone()));
        Cluster { client, handle: Some(handle), _dir: dir }
    }

    async fn stop(mut self) {
        if let Some(handle) = self.handle.take() {
            handle.stop().await;
        }
    }

    async fn namespace(&self, name: &str) {
        let object = json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}});
        self.client.create(NAMESPACES, "", &object).await.unwrap();
    }

    async fn node(&self, name: &str) {
        self.node_with(name, &json!({})).await;
    }

    async fn node_with(&self, name: &str, extra: &Value) {
        let mut node = json!({
            "kind": "Node", "apiVersion": "v1",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {
                "allocatable": {"cpu": "8", "memory": "16Gi", "pods": "110"},
                "capacity": {"cpu": "8", "memory": "16Gi", "pods": "110"},
                "conditions": [{
                    "type": "Ready", "status": "True", "reason": "KubeletReady",
                    "lastHeartbeatTime": now(), "lastTransitionTime": now(),
                }],
            },
        });
        merge(&mut node, extra);
        let status = node["status"].clone();
        let mut made = self.client.create(NODES, "", &node).await.unwrap();
        made["status"] = status;
        self.client.update_part(NODES, "status", &made).await.unwrap();
    }

    async fn create(&self, kind: Kind, namespace: &str, object: &Value) -> Value {
        let mut object = object.clone();
        object["kind"] = kind.kind.into();
        object["apiVersion"] = kind.api_version().into();
        let made = self.client.create(kind, namespace, &object).await;
        made.unwrap_or_else(|error| panic!("{} {object}: {error}", kind.kind))
    }

    async fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<Value> {
        match self.client.get(kind, namespace, name).await {
            Ok(object) => Some(object),
            Err(error) if error.is_not_found() => None,
            Err(error) => panic!("{error}"),
        }
    }

    async fn list(&self, kind: Kind, namespace: &str) -> Vec<Value> {
        let scope = Scope { namespace: namespace.to_owned(), ..Scope::default() };
        self.client.list_values(kind, &scope).await.unwrap()
    }

    async fn merge(&self, kind: Kind, namespace: &str, name: &str, patch: &Value) {
        let patched = self.client.patch(kind, namespace, name, PatchKind::Merge, patch).await;
        patched.unwrap_or_else(|error| panic!("{name} {patch}: {error}"));
    }

    /// Waits until an object is as it should be.
    async fn wait(
        &self,
        what: &str,
        kind: Kind,
        namespace: &str,
        name: &str,
        reached: impl Fn(&Value) -> bool,
    ) -> Value {
        let mut last = Value::Null;
        let found = self
            .until(async || {
                last = self.get(kind, namespace, name).await.unwrap_or_default();
                reached(&last)
            })
            .await;
        assert!(found, "{what}: {name} is still {last:#}\n{}", self.errors());
        last
    }

    /// Waits until all objects of a kind in a namespace are as they should be.
    async fn wait_all(
        &self,
        what: &str,
        kind: Kind,
        namespace: &str,
        reached: impl Fn(&[Value]) -> bool,
    ) -> Vec<Value> {
        let mut last = Vec::new();
        let found = self
            .until(async || {
                last = self.list(kind, namespace).await;
                reached(&last)
            })
            .await;
        let shown: Vec<Value> = last
            .iter()
            .map(|o| json!([o["metadata"], o["status"], o["spec"]["nodeName"]]))
            .collect();
        assert!(found, "{what}: still {:#}\n{}", json!(shown), self.errors());
        last
    }

    async fn until(&self, mut reached: impl AsyncFnMut() -> bool) -> bool {
        let end = Instant::now() + DEADLINE;
        while Instant::now() < end {
            if reached().await {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        false
    }

    fn errors(&self) -> String {
        let counters = self.handle.as_ref().map(Handle::counters);
        let errors = counters.map(|counters| counters.last_errors()).unwrap_or_default();
        errors.iter().map(|(name, error)| format!("{name}: {error}\n")).collect()
    }
}

fn now() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seconds = i64::try_from(since.as_secs()).unwrap();
    objects::timestamp::Timestamp::new(seconds, 0).to_seconds_text()
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key.as_str()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

/// Says that bound pods run (or have ended, as a label asks), and lets go of those that are deleted.
async fn kubelet(client: Client) {
    let tree = |raw: &serde_json::value::RawValue| serde_json::from_str::<Value>(raw.get());
    let mut pods = Reflector::new(client.clone(), PODS, Scope::default(), tree);
    loop {
        let Ok(changes) = pods.step().await else { return };
        for change in changes {
            let seen = match change {
                controllers::Change::Replaced { all, .. } => {
                    all.into_iter().map(|(_, _, pod)| pod).collect()
                }
                controllers::Change::Applied { object, .. } => vec![object],
                _ => Vec::new(),
            };
            for pod in seen {
                tend(&client, &pod).await;
            }
        }
    }
}

async fn tend(client: &Client, pod: &Value) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (namespace, name) = (text(&pod["metadata"]["namespace"]), text(&pod["metadata"]["name"]));
    if text(&pod["spec"]["nodeName"]).is_empty() || pod["metadata"]["labels"]["silent"] == "true" {
        return;
    }
    if pod["metadata"]["deletionTimestamp"].is_string() {
        let options = DeleteOptions {
            grace_seconds: Some(0),
            ..DeleteOptions::of_uid(pod["metadata"]["uid"].as_str().unwrap_or_default())
        };
        let _ = client.delete(PODS, &namespace, &name, &options).await;
        return;
    }
    let wanted = match pod["metadata"]["labels"]["ends"].as_str() {
        Some(phase) => phase,
        None => "Running",
    };
    if pod["status"]["phase"] == wanted {
        return;
    }
    let ready = if wanted == "Running" { "True" } else { "False" };
    let status = json!({"status": {
        "phase": wanted,
        "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": now()}],
    }});
    let kind = PatchKind::StrategicMerge;
    let _ = client.patch_part(PODS, &namespace, &name, "status", kind, &status).await;
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn pod(name: &str, extra: &Value) -> Value {
    let mut pod = json!({
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    });
    merge(&mut pod, extra);
    pod
}

fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let conditions = object["status"]["conditions"].as_array().map(Vec::as_slice);
    let found = conditions.unwrap_or_default().iter().find(|c| c["type"] == kind);
    found.unwrap_or(&Value::Null)
}

#[test]
fn pods_are_given_nodes_and_told_why_not() {
    runtime().block_on(async {
        let cluster = Cluster::start(Options::default()).await;
        cluster.namespace("a").await;
        cluster.node("n1").await;
        cluster.node("n2").await;
        let big = json!({"spec": {"containers": [
            {"name": "c", "image": "i", "resources": {"requests": {"cpu": "100"}}},
        ]}});
        cluster.create(PODS, "a", &pod("fits", &json!({}))).await;
        cluster.create(PODS, "a", &pod("big", &big)).await;
        cluster.wait("it runs", PODS, "a", "fits", |p| p["status"]["phase"] == "Running").await;
        let refused = cluster
            .wait("it is told", PODS, "a", "big", |p| {
                condition(p, "PodScheduled")["reason"] == "Unschedulable"
            })
            .await;
        let message = condition(&refused, "PodScheduled")["message"].as_str().unwrap().to_owned();
        assert!(message.starts_with("0/2 nodes are available: 2 Insufficient cpu."), "{message}");
        let events = cluster
            .wait_all("events are written", controllers::kind::EVENTS, "a", |events| {
                events.len() >= 2
            })
            .await;
        let find = |reason: &str| events.iter().find(|e| e["reason"] == reason).unwrap();
        assert_eq!(find("FailedScheduling")["type"], "Warning");
        assert_eq!(find("FailedScheduling")["message"], *message);
        let assigned = find("Scheduled")["message"].as_str().unwrap();
        assert!(assigned.starts_with("Successfully assigned a/fits to n"), "{assigned}");
        assert_eq!(find("Scheduled")["reportingComponent"], "default-scheduler");
        cluster.stop().await;
    });
}
