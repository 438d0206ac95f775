//! Controllers with a real API server in one process. Nodes are objects only; a minimal kubelet
//! reports bound pods as running and removes deleted ones.
//!
//! No test sleeps for a fixed time: every wait is for a state, with a deadline.

use std::sync::Arc;
use std::time::{Duration, Instant};

use berth::in_process::InProcess;
use client::kind::{
    BUDGETS, CONFIG_MAPS, DAEMON_SETS, DEPLOYMENTS, EVENTS, JOBS, NAMESPACES, NODES, PODS, QUOTAS,
    REPLICA_SETS, SERVICE_ACCOUNTS,
};
use client::{Client, DeleteOptions, Kind, PatchKind, Propagation, Reflector, Scope};
use controllers::{Handle, Options};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

#[path = "controllers/jobs.rs"]
mod jobs;
#[path = "controllers/reports.rs"]
mod reports;

/// Number of identical observations in a row after which the controllers count as idle.
const LOOKS_AT_REST: u32 = 30;

/// Timeout of a wait.
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
        let served = apiserver::Options {
            gates: objects::FeatureGates::parse("QOSResources=true").unwrap(),
            ..apiserver::Options::default()
        };
        let api = apiserver::Api::new(store, served).await.unwrap();
        let transport = Arc::new(InProcess::new(api, "system:kube-controller-manager"));
        let client = Client::new(transport, "test");
        let handle = controllers::run(&client, options).unwrap();
        tokio::spawn(kubelet(client.clone()));
        Cluster { client, handle: Some(handle), _dir: dir }
    }

    /// Stops the controllers once they are idle; one that keeps writing fails the test.
    async fn stop(mut self) {
        let scope = Scope::default();
        let (mut last, mut same) = (String::new(), 0);
        let rests = self
            .until(async || {
                let now = self.client.list(NAMESPACES, &scope, |_| Ok(())).await.unwrap();
                same = if now == last { same + 1 } else { 0 };
                last = now;
                same >= LOOKS_AT_REST
            })
            .await;
        assert!(rests, "the loops do not come to rest\n{}", self.errors());
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
        self.client.create(NODES, "", &node).await.unwrap();
        let status = json!({"status": node["status"]});
        let kind = PatchKind::Merge;
        self.client.patch_subresource(NODES, "", name, "status", kind, &status).await.unwrap();
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

    /// Waits until an object fulfils a condition.
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
        if !found {
            let pods = self.client.list_values(PODS, &Scope::default()).await.unwrap_or_default();
            let pods: Vec<String> = pods.iter().map(brief).collect();
            panic!("{what}: {name} is still {last:#}\n{}pods: {pods:#?}", self.errors());
        }
        last
    }

    /// Waits until the objects of a kind in a namespace fulfil a condition.
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

/// Renders a pod in one line.
fn brief(pod: &Value) -> String {
    let (metadata, status) = (&pod["metadata"], &pod["status"]["phase"]);
    let (node, labels) = (&pod["spec"]["nodeName"], &metadata["labels"]);
    format!(
        "{} {status} on {node}, {labels}, of {}, finalizers {}, deleted {}, version {}",
        metadata["name"],
        metadata["ownerReferences"][0]["name"],
        metadata["finalizers"],
        metadata["deletionTimestamp"],
        metadata["resourceVersion"]
    )
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

/// Reports bound pods as running, or as ended by their label, and removes deleted ones.
async fn kubelet(client: Client) {
    let mut pods = Reflector::new(client.clone(), PODS, Scope::default(), |pod: Value| pod);
    loop {
        let Ok(changes) = pods.step().await else { return };
        for change in changes {
            let seen = match change {
                client::Change::Replaced { all, .. } => {
                    all.into_iter().map(|(_, _, pod)| pod).collect()
                }
                client::Change::Applied { object, .. } => vec![object],
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
    let wanted = pod["metadata"]["labels"]["ends"].as_str().unwrap_or("Running");
    if pod["status"]["phase"] == wanted {
        return;
    }
    let ready = if wanted == "Running" { "True" } else { "False" };
    let status = json!({"status": {
        "phase": wanted,
        "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": now()}],
    }});
    let kind = PatchKind::StrategicMerge;
    let _ = client.patch_subresource(PODS, &namespace, &name, "status", kind, &status).await;
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
fn pods_are_bound_or_get_the_reason() {
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
        // The two nodes may be observed one after the other.
        let expected = "0/2 nodes are available: 2 Insufficient cpu.";
        let says = |p: &Value| {
            let condition = condition(p, "PodScheduled");
            condition["reason"] == "Unschedulable"
                && condition["message"].as_str().is_some_and(|m| m.starts_with(expected))
        };
        let refused = cluster.wait("it has the reason", PODS, "a", "big", says).await;
        let message = &condition(&refused, "PodScheduled")["message"];
        let failed = |e: &Value| e["reason"] == "FailedScheduling" && e["message"] == *message;
        let events = cluster
            .wait_all("events are written", EVENTS, "a", |events| {
                events.iter().any(failed) && events.iter().any(|e| e["reason"] == "Scheduled")
            })
            .await;
        let find = |reason: &str| events.iter().find(|e| e["reason"] == reason).unwrap();
        assert_eq!(find("FailedScheduling")["type"], "Warning");
        let assigned = find("Scheduled")["message"].as_str().unwrap();
        assert!(assigned.starts_with("Successfully assigned a/fits to n"), "{assigned}");
        assert_eq!(find("Scheduled")["reportingComponent"], "default-scheduler");
        cluster.stop().await;
    });
}

fn workload(name: &str, spec: &Value) -> Value {
    let mut object = json!({
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "c", "image": "v1"}]},
            },
        },
    });
    merge(&mut object["spec"], spec);
    object
}

fn rolled_out(deployment: &Value, replicas: i64) -> bool {
    let status = &deployment["status"];
    status["observedGeneration"] == deployment["metadata"]["generation"]
        && ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"]
            .iter()
            .all(|field| status[*field] == replicas)
}

fn image(image: &str) -> Value {
    json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}})
}

#[test]
fn a_deployment_is_rolled_out_updated_rolled_back_and_scaled() {
    runtime().block_on(async {
        let cluster = Cluster::start(Options::default()).await;
        cluster.namespace("a").await;
        for node in ["n1", "n2", "n3"] {
            cluster.node(node).await;
        }
        cluster.create(DEPLOYMENTS, "a", &workload("web", &json!({"replicas": 3}))).await;
        let first = cluster
            .wait("rollout", DEPLOYMENTS, "a", "web", |d| {
                rolled_out(d, 3)
                    && condition(d, "Progressing")["reason"] == "NewReplicaSetAvailable"
            })
            .await;
        assert_eq!(first["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "1");
        assert_eq!(condition(&first, "Available")["status"], "True");
        cluster.merge(DEPLOYMENTS, "a", "web", &image("v2")).await;
        let revision = |d: &Value, number: &str| {
            d["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == number
        };
        cluster
            .wait("update", DEPLOYMENTS, "a", "web", |d| rolled_out(d, 3) && revision(d, "2"))
            .await;
        cluster.merge(DEPLOYMENTS, "a", "web", &image("v1")).await;
        cluster
            .wait("rollback", DEPLOYMENTS, "a", "web", |d| rolled_out(d, 3) && revision(d, "3"))
            .await;
        let sets = cluster.list(REPLICA_SETS, "a").await;
        assert_eq!(sets.len(), 2, "going back takes the old set");
        cluster.merge(DEPLOYMENTS, "a", "web", &json!({"spec": {"replicas": 5}})).await;
        cluster.wait("up", DEPLOYMENTS, "a", "web", |d| rolled_out(d, 5)).await;
        cluster.merge(DEPLOYMENTS, "a", "web", &json!({"spec": {"replicas": 1}})).await;
        cluster.wait("down", DEPLOYMENTS, "a", "web", |d| rolled_out(d, 1)).await;
        let pods = cluster.wait_all("one is left", PODS, "a", |pods| pods.len() == 1).await;
        assert!(pods[0]["metadata"]["labels"]["pod-template-hash"].is_string());
        let events = cluster.list(EVENTS, "a").await;
        let has_event = |reason: &str, part: &str| {
            events.iter().any(|e| {
                e["reason"] == reason && e["message"].as_str().is_some_and(|m| m.contains(part))
            })
        };
        assert!(has_event("ScalingReplicaSet", "Scaled up replica set web-"));
        assert!(has_event("SuccessfulCreate", "Created pod: web-"));
        assert!(has_event("SuccessfulDelete", "Deleted pod: web-"));
        cluster.stop().await;
    });
}

#[test]
fn a_daemon_set_follows_its_nodes_and_is_updated() {
    runtime().block_on(async {
        let cluster = Cluster::start(Options::default()).await;
        cluster.namespace("a").await;
        cluster.node("n1").await;
        cluster.node("n2").await;
        cluster.create(DAEMON_SETS, "a", &workload("agent", &json!({}))).await;
        let ready = |count: i64| {
            move |d: &Value| {
                let status = &d["status"];
                [
                    "desiredNumberScheduled",
                    "numberReady",
                    "updatedNumberScheduled",
                    "numberAvailable",
                ]
                .iter()
                .all(|field| status[*field] == count)
                    && status["observedGeneration"] == d["metadata"]["generation"]
            }
        };
        cluster.wait("two", DAEMON_SETS, "a", "agent", ready(2)).await;
        cluster.node("n3").await;
        cluster.wait("three", DAEMON_SETS, "a", "agent", ready(3)).await;
        cluster.merge(DAEMON_SETS, "a", "agent", &image("v2")).await;
        cluster.wait("updated", DAEMON_SETS, "a", "agent", ready(3)).await;
        let pods = cluster.wait_all("one each", PODS, "a", |pods| pods.len() == 3).await;
        let mut nodes: Vec<_> =
            pods.iter().map(|p| p["spec"]["nodeName"].as_str().unwrap()).collect();
        nodes.sort_unstable();
        assert_eq!(nodes, ["n1", "n2", "n3"]);
        assert!(pods.iter().all(|p| p["spec"]["containers"][0]["image"] == "v2"));
        cluster.stop().await;
    });
}

fn job(spec: &Value, ends: &str) -> Value {
    let mut object = json!({"metadata": {}, "spec": {"template": {
        "metadata": {"labels": {"ends": ends}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]},
    }}});
    merge(&mut object["spec"], spec);
    object
}

fn named(mut object: Value, name: &str) -> Value {
    object["metadata"]["name"] = name.into();
    object
}

#[test]
fn jobs_complete_fail_and_are_removed_after_their_time() {
    runtime().block_on(async {
        let cluster = Cluster::start(Options::default()).await;
        cluster.namespace("a").await;
        cluster.node("n1").await;
        let three = json!({"completions": 3, "parallelism": 2});
        cluster.create(JOBS, "a", &named(job(&three, "Succeeded"), "good")).await;
        let indexed = json!({"completions": 2, "parallelism": 2, "completionMode": "Indexed"});
        cluster.create(JOBS, "a", &named(job(&indexed, "Succeeded"), "indexed")).await;
        let strict = json!({"backoffLimit": 0});
        cluster.create(JOBS, "a", &named(job(&strict, "Failed"), "bad")).await;
        let short = json!({"ttlSecondsAfterFinished": 0});
        cluster.create(JOBS, "a", &named(job(&short, "Succeeded"), "short")).await;
        let types = |job: &Value| -> Vec<String> {
            let conditions = job["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().map(|c| c["type"].as_str().unwrap_or_default().to_owned()).collect()
        };
        let good = cluster
            .wait("complete", JOBS, "a", "good", |j| condition(j, "Complete")["status"] == "True")
            .await;
        assert_eq!(types(&good), ["SuccessCriteriaMet", "Complete"]);
        assert_eq!(good["status"]["succeeded"], 3);
        assert!(good["status"]["completionTime"].is_string());
        let indexed = cluster
            .wait("complete", JOBS, "a", "indexed", |j| {
                condition(j, "Complete")["status"] == "True"
            })
            .await;
        assert_eq!(indexed["status"]["completedIndexes"], "0,1");
        let bad = cluster
            .wait("failed", JOBS, "a", "bad", |j| condition(j, "Failed")["status"] == "True")
            .await;
        assert_eq!(types(&bad), ["FailureTarget", "Failed"]);
        assert_eq!(condition(&bad, "Failed")["reason"], "BackoffLimitExceeded");
        cluster.wait("removed", JOBS, "a", "short", Value::is_null).await;
        let left = cluster
            .wait_all("pods of the removed job go too", PODS, "a", |pods| pods.len() == 6)
            .await;
        assert!(left.iter().all(|pod| pod["metadata"]["finalizers"].is_null()));
        cluster.stop().await;
    });
}

#[test]
fn deleting_a_namespace_deletes_its_objects() {
    runtime().block_on(async {
        let cluster = Cluster::start(Options::default()).await;
        cluster.namespace("gone").await;
        cluster.node("n1").await;
        cluster
            .wait("account", SERVICE_ACCOUNTS, "gone", "default", |account| !account.is_null())
            .await;
        cluster.create(DEPLOYMENTS, "gone", &workload("web", &json!({"replicas": 2}))).await;
        cluster.wait("rollout", DEPLOYMENTS, "gone", "web", |d| rolled_out(d, 2)).await;
        let options = DeleteOptions::default();
        cluster.client.delete(NAMESPACES, "", "gone", &options).await.unwrap();
        cluster.wait("gone", NAMESPACES, "", "gone", Value::is_null).await;
        for kind in [PODS, REPLICA_SETS, DEPLOYMENTS, SERVICE_ACCOUNTS, EVENTS] {
            assert_eq!(cluster.list(kind, "gone").await, Vec::<Value>::new(), "{kind:?}");
        }
        cluster.stop().await;
    });
}

#[test]
fn dependents_follow_the_propagation_policy() {
    runtime().block_on(async {
        let cluster = Cluster::start(Options::default()).await;
        cluster.namespace("a").await;
        cluster.node("n1").await;
        let policies = [Propagation::Background, Propagation::Foreground, Propagation::Orphan];
        for (name, propagation) in ["back", "fore", "orphan"].into_iter().zip(policies) {
            cluster.create(DEPLOYMENTS, "a", &workload(name, &json!({"replicas": 2}))).await;
            cluster.wait("rollout", DEPLOYMENTS, "a", name, |d| rolled_out(d, 2)).await;
            let options =
                DeleteOptions { propagation: Some(propagation), ..DeleteOptions::default() };
            cluster.client.delete(DEPLOYMENTS, "a", name, &options).await.unwrap();
            cluster.wait("deleted", DEPLOYMENTS, "a", name, Value::is_null).await;
            let count = |objects: &[Value]| {
                objects.iter().filter(|o| o["metadata"]["labels"]["app"] == name).count()
            };
            if propagation == Propagation::Orphan {
                let sets = cluster.list(REPLICA_SETS, "a").await;
                assert_eq!(count(&sets), 1);
                assert!(sets.iter().all(|set| set["metadata"]["ownerReferences"].is_null()));
                assert_eq!(count(&cluster.list(PODS, "a").await), 2);
            } else {
                if propagation == Propagation::Foreground {
                    assert_eq!(count(&cluster.list(REPLICA_SETS, "a").await), 0, "they went first");
                }
                cluster.wait_all("sets go", REPLICA_SETS, "a", |sets| count(sets) == 0).await;
                cluster.wait_all("pods go", PODS, "a", |pods| count(pods) == 0).await;
            }
        }
        cluster.stop().await;
    });
}

#[test]
fn quotas_and_budgets_report_current_usage() {
    runtime().block_on(async {
        let cluster = Cluster::start(Options::default()).await;
        cluster.namespace("a").await;
        cluster.node("n1").await;
        let quota = json!({
            "metadata": {"name": "q"},
            "spec": {"hard": {"pods": "10", "requests.cpu": "4", "count/deployments.apps": "3"}},
        });
        cluster.create(QUOTAS, "a", &quota).await;
        cluster.wait("calculated", QUOTAS, "a", "q", |q| q["status"]["used"]["pods"] == "0").await;
        let resources = json!({"replicas": 3, "template": {"spec": {"containers": [{
            "name": "c", "image": "v1", "resources": {"requests": {"cpu": "500m"}},
        }]}}});
        cluster.create(DEPLOYMENTS, "a", &workload("web", &resources)).await;
        let budget = json!({
            "metadata": {"name": "b"},
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}},
        });
        cluster.create(BUDGETS, "a", &budget).await;
        cluster
            .wait("used", QUOTAS, "a", "q", |q| {
                q["status"]["used"]["pods"] == "3" && q["status"]["used"]["requests.cpu"] == "1500m"
            })
            .await;
        let budget = cluster
            .wait("healthy", BUDGETS, "a", "b", |b| b["status"]["currentHealthy"] == 3)
            .await;
        assert_eq!(
            (&budget["status"]["desiredHealthy"], &budget["status"]["disruptionsAllowed"]),
            (&json!(2), &json!(1))
        );
        assert_eq!(budget["status"]["expectedPods"], 3);
        cluster.merge(DEPLOYMENTS, "a", "web", &json!({"spec": {"replicas": 1}})).await;
        cluster.wait("freed", QUOTAS, "a", "q", |q| q["status"]["used"]["pods"] == "1").await;
        cluster.stop().await;
    });
}

#[test]
fn namespace_account_and_authority_are_created_and_restored() {
    runtime().block_on(async {
        let (authorities, root_ca) = tokio::sync::watch::channel("certificate".to_owned());
        let options = Options { root_ca: Some(root_ca), ..Options::default() };
        let cluster = Cluster::start(options).await;
        cluster.namespace("a").await;
        // A pod created at once waits for the account of its namespace.
        let made = cluster.create(PODS, "a", &pod("early", &json!({}))).await;
        assert_eq!(made["spec"]["serviceAccountName"], "default");
        let is_right = |map: &Value| {
            let description = &map["metadata"]["annotations"]["kubernetes.io/description"];
            map["data"] == json!({"ca.crt": "certificate"})
                && description.as_str().is_some_and(|text| text.starts_with("Contains a CA bundle"))
        };
        let name = "kube-root-ca.crt";
        for namespace in ["a", "default", "kube-system"] {
            cluster.wait("it is there", CONFIG_MAPS, namespace, name, is_right).await;
        }
        let change = json!({
            "metadata": {"annotations": null}, "data": {"ca.crt": "another", "more": "x"},
        });
        cluster.merge(CONFIG_MAPS, "a", name, &change).await;
        cluster.wait("it is put right", CONFIG_MAPS, "a", name, is_right).await;
        for (kind, name) in [(CONFIG_MAPS, name), (SERVICE_ACCOUNTS, "default")] {
            let before = cluster.get(kind, "a", name).await.unwrap();
            cluster.client.delete(kind, "a", name, &DeleteOptions::default()).await.unwrap();
            let uid = &before["metadata"]["uid"];
            let is_new = |it: &Value| !it.is_null() && it["metadata"]["uid"] != *uid;
            cluster.wait("it is back", kind, "a", name, is_new).await;
        }
        // Every namespace receives a new authority.
        authorities.send_replace("another".to_owned());
        let is_another = |map: &Value| map["data"] == json!({"ca.crt": "another"});
        for namespace in ["a", "default", "kube-system"] {
            cluster.wait("it is new", CONFIG_MAPS, namespace, name, is_another).await;
        }
        cluster.stop().await;
    });
}

#[test]
fn a_more_important_pod_takes_the_capacity_of_a_class() {
    runtime().block_on(async {
        let cluster = Cluster::start(Options::default()).await;
        cluster.namespace("a").await;
        let classes = json!({"status": {"qosResources": {"podQOSResources": [
            {"name": "example.com/lane", "classes": [{"name": "fast", "capacity": 1}]},
        ]}}});
        cluster.node_with("n1", &classes).await;
        let priorities = Kind {
            group: "scheduling.k8s.io",
            version: "v1",
            kind: "PriorityClass",
            plural: "priorityclasses",
            namespaced: false,
        };
        let class = json!({"metadata": {"name": "high"}, "value": 1000});
        cluster.create(priorities, "", &class).await;
        let fast =
            json!({"spec": {"qosResources": [{"name": "example.com/lane", "class": "fast"}]}});
        cluster.create(PODS, "a", &pod("low", &fast)).await;
        cluster.wait("it runs", PODS, "a", "low", |p| p["status"]["phase"] == "Running").await;
        cluster.create(PODS, "a", &pod("equal", &fast)).await;
        let waiting = cluster
            .wait("it waits", PODS, "a", "equal", |p| {
                condition(p, "PodScheduled")["reason"] == "Unschedulable"
            })
            .await;
        let message = condition(&waiting, "PodScheduled")["message"].as_str().unwrap();
        assert!(
            message.starts_with("0/1 nodes are available: ") && message.contains("fast"),
            "{message}"
        );
        let options = DeleteOptions::default();
        cluster.client.delete(PODS, "a", "equal", &options).await.unwrap();
        let mut high = fast.clone();
        high["spec"]["priorityClassName"] = "high".into();
        cluster.create(PODS, "a", &pod("high", &high)).await;
        cluster.wait("it runs", PODS, "a", "high", |p| p["status"]["phase"] == "Running").await;
        cluster.wait("the other is gone", PODS, "a", "low", Value::is_null).await;
        cluster
            .wait_all("it has an event", EVENTS, "a", |events| {
                events.iter().any(|e| e["reason"] == "Preempted")
            })
            .await;
        cluster.stop().await;
    });
}

/// Returns the spec of host-process pods: one init container and two containers.
fn host_processes() -> Value {
    let container = |name: &str| json!({"name": name, "image": "i", "command": ["pwsh"]});
    json!({
        "hostNetwork": true,
        "nodeSelector": {"kubernetes.io/os": "windows"},
        "securityContext": {"windowsOptions": {
            "hostProcess": true, "runAsUserName": "NT AUTHORITY\\SYSTEM",
        }},
        "initContainers": [container("prepare")],
        "containers": [container("proxy"), container("logs")],
    })
}

#[test]
fn host_processes_run_on_windows_nodes() {
    runtime().block_on(async {
        let cluster = Cluster::start(Options::default()).await;
        cluster.namespace("a").await;
        cluster.node("linux").await;
        for name in ["windows-1", "windows-2"] {
            let labels = json!({"metadata": {"labels": {"kubernetes.io/os": "windows"}}});
            cluster.node_with(name, &labels).await;
        }
        let labels = json!({"app": "agent"});
        let agents = json!({
            "metadata": {"name": "agents"},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": host_processes()},
            },
        });
        cluster.create(DAEMON_SETS, "a", &agents).await;
        cluster
            .wait("on every node", DAEMON_SETS, "a", "agents", |set| {
                set["status"]["desiredNumberScheduled"] == 2 && set["status"]["numberReady"] == 2
            })
            .await;
        let mut template = host_processes();
        template["restartPolicy"] = "Never".into();
        let labels = json!({"ends": "Succeeded"});
        let task = json!({
            "metadata": {"name": "task"},
            "spec": {"template": {"metadata": {"labels": labels}, "spec": template}},
        });
        cluster.create(JOBS, "a", &task).await;
        cluster.wait("done", JOBS, "a", "task", |job| job["status"]["succeeded"] == 1).await;
        let pods = cluster.client.list_values(PODS, &Scope::default()).await.unwrap();
        assert_eq!(pods.len(), 3);
        for pod in pods {
            let (spec, node) = (&pod["spec"], pod["spec"]["nodeName"].as_str().unwrap());
            assert!(node.starts_with("windows-"), "{pod:#}");
            let options = &spec["securityContext"]["windowsOptions"];
            assert_eq!(
                (&options["hostProcess"], &spec["hostNetwork"]),
                (&json!(true), &json!(true))
            );
        }
        // Pods on the host's network must set `hostNetwork`.
        let mut offline = pod("offline", &json!({}));
        offline["spec"] = host_processes();
        offline["spec"]["hostNetwork"] = false.into();
        offline["kind"] = "Pod".into();
        let refused = cluster.client.create(PODS, "a", &offline).await.unwrap_err().to_string();
        let why = "hostNetwork must be true if pod contains any hostProcess containers";
        assert!(refused.contains(why), "{refused}");
        cluster.stop().await;
    });
}

/// Returns options that mark a node as unreachable soon.
fn impatient() -> Options {
    Options {
        node_monitor_grace: Duration::from_millis(1500),
        node_monitor_period: Duration::from_millis(100),
        ..Options::default()
    }
}

/// Returns a pod that is evicted from an unreachable node at once.
fn hasty(name: &str, node: &str) -> Value {
    let toleration = |what: &str| {
        json!({
            "key": format!("node.kubernetes.io/{what}"), "operator": "Exists",
            "effect": "NoExecute", "tolerationSeconds": 0,
        })
    };
    let tolerations = [toleration("unreachable"), toleration("not-ready")];
    pod(name, &json!({"spec": {"nodeName": node, "tolerations": tolerations}}))
}

fn is_silent_with(node: &Value, taints: usize) -> bool {
    condition(node, "Ready")["status"] == "Unknown"
        && node["spec"]["taints"].as_array().is_some_and(|all| all.len() == taints)
}

#[test]
fn pods_are_evicted_from_an_unreachable_node() {
    runtime().block_on(async {
        let cluster = Cluster::start(impatient()).await;
        cluster.namespace("a").await;
        cluster.node("n1").await;
        cluster.node("n2").await;
        // The other node keeps sending heartbeats.
        let client = cluster.client.clone();
        let mut heartbeats = tokio::task::JoinSet::new();
        heartbeats.spawn(async move {
            for beat in 0.. {
                let time = format!("2026-01-01T00:{:02}:{:02}Z", beat / 60 % 60, beat % 60);
                let ready = json!({"type": "Ready", "status": "True", "lastHeartbeatTime": time});
                let patch = json!({"status": {"conditions": [ready]}});
                let kind = PatchKind::StrategicMerge;
                client.patch_subresource(NODES, "", "n2", "status", kind, &patch).await.unwrap();
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
        let mut hasty = hasty("hasty", "n1");
        // No kubelet removes it.
        hasty["metadata"]["labels"] = json!({"silent": "true"});
        cluster.create(PODS, "a", &hasty).await;
        let patient = pod("patient", &json!({"spec": {"nodeName": "n1"}}));
        cluster.create(PODS, "a", &patient).await;
        let node = cluster.wait("tainted", NODES, "", "n1", |n| is_silent_with(n, 2)).await;
        assert_eq!(condition(&node, "Ready")["reason"], "NodeStatusUnknown");
        let evicted = cluster
            .wait("evicted", PODS, "a", "hasty", |p| p["metadata"]["deletionTimestamp"].is_string())
            .await;
        assert_eq!(condition(&evicted, "DisruptionTarget")["reason"], "DeletionByTaintManager");
        let patient = cluster.get(PODS, "a", "patient").await.unwrap();
        assert!(patient["metadata"]["deletionTimestamp"].is_null());
        // The cluster is not idle during heartbeats.
        heartbeats.shutdown().await;
        cluster.stop().await;
    });
}

#[test]
fn pods_stay_if_every_node_is_unhealthy() {
    runtime().block_on(async {
        let cluster = Cluster::start(impatient()).await;
        cluster.namespace("a").await;
        cluster.node("n1").await;
        cluster.create(PODS, "a", &hasty("hasty", "n1")).await;
        cluster.wait("tainted", NODES, "", "n1", |n| is_silent_with(n, 1)).await;
        // Pods bound to an unhealthy node stay as well; by then the first would have been evicted.
        cluster.create(PODS, "a", &hasty("late", "n1")).await;
        cluster
            .wait("its pods are not ready", PODS, "a", "hasty", |p| {
                condition(p, "Ready")["status"] == "False"
            })
            .await;
        let node = cluster.get(NODES, "", "n1").await.unwrap();
        assert_eq!(node["spec"]["taints"][0]["effect"], "NoSchedule");
        for name in ["hasty", "late"] {
            let pod = cluster.get(PODS, "a", name).await.unwrap();
            assert!(pod["metadata"]["deletionTimestamp"].is_null(), "{pod:#}");
        }
        cluster.stop().await;
    });
}
