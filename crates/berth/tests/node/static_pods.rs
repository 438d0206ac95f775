//! Static pods, and the node's own actions: evictions by limits, and log rotation.

use std::path::{Path, PathBuf};

use client::Scope;
use client::kind::EVENTS;
use objects::kubelet_config::{EvictionSignal, Threshold};
use objects::{KubeletConfig, Quantity};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Berth, SLEEP, TIMEOUT, phase, pod, until};

fn set(config: &mut KubeletConfig, field: &str, value: impl Into<Value>) {
    config.untyped.insert(field.to_owned(), value.into());
}

/// Writes a manifest atomically.
fn write(directory: &Path, pod: &Value) {
    let mut pod = pod.clone();
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    pod["metadata"]["namespace"] = "test".into();
    std::fs::write(directory.join(".new"), pod.to_string()).unwrap();
    std::fs::rename(directory.join(".new"), directory.join("web.json")).unwrap();
}

fn container_id(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]["containerID"]
}

fn hash(pod: &Value) -> &str {
    pod["metadata"]["annotations"]["kubernetes.io/config.hash"].as_str().unwrap()
}

fn is_running(pod: &Value) -> bool {
    phase(pod) == "Running" && pod["metadata"]["deletionTimestamp"].is_null()
}

#[tokio::test(flavor = "multi_thread")]
async fn static_pod_follows_its_file_and_has_a_mirror() {
    let place = TempDir::new().unwrap();
    let manifests = place.path().to_owned();
    let mut berth = Berth::start(|config| {
        config.static_pod_path = Some(manifests.display().to_string());
        set(config, "fileCheckFrequency", "200ms");
    })
    .await;
    write(&manifests, &pod("web", SLEEP));
    let shown = berth.until("web-node-1", is_running).await;
    let annotations = &shown["metadata"]["annotations"];
    assert_eq!(annotations["kubernetes.io/config.source"], "file");
    assert_eq!(annotations["kubernetes.io/config.mirror"], hash(&shown));
    let owner = &shown["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["name"]), (&"Node".into(), &"node-1".into()));
    let first = hash(&shown).to_owned();
    let directory = |uid: &str| berth.settings.agent.root.join("pods").join(uid);
    let (of_first, same) = (directory(&first), container_id(&shown).clone());
    assert!(of_first.exists());

    // Deleting the mirror pod does not affect the static pod.
    berth.delete("web-node-1").await;
    let again = |pod: &Value| is_running(pod) && pod["metadata"]["uid"] != shown["metadata"]["uid"];
    let back = berth.until("web-node-1", again).await;
    assert_eq!((container_id(&back), hash(&back)), (&same, first.as_str()));

    // An invalid file is reported and does not affect other files.
    std::fs::write(manifests.join("wrong.yaml"), "apiVersion: v1\nkind: Job\n").unwrap();
    let message = node_event(&berth, "FailedStaticPod").await;
    assert!(
        message.ends_with("wrong.yaml: line 2, column 7: kind: should be \"Pod\", found \"Job\""),
        "{message}"
    );
    berth.restart().await;
    let after = berth.until("web-node-1", is_running).await;
    assert_eq!((container_id(&after), hash(&after)), (&same, first.as_str()));

    let mut changed = pod("web", SLEEP);
    changed["spec"]["containers"][0]["env"] = json!([{"name": "A", "value": "B"}]);
    write(&manifests, &changed);
    let other = |pod: &Value| is_running(pod) && hash(pod) != first;
    let now = berth.until("web-node-1", other).await;
    assert_ne!(container_id(&now), &same);
    rig::wait_until(TIMEOUT, || (!of_first.exists()).then_some(())).unwrap();
    let of_second = berth.settings.agent.root.join("pods").join(hash(&now));
    std::fs::remove_file(manifests.join("web.json")).unwrap();
    berth.gone("web-node-1").await;
    assert!(!of_second.exists());
    berth.end().await;
}

/// Returns the message of a node event.
async fn node_event(berth: &Berth, reason: &str) -> String {
    let scope = Scope { namespace: "default".to_owned(), ..Scope::default() };
    until(reason, async || {
        let events = berth.api.list_values(EVENTS, &scope).await.unwrap();
        let event = events.iter().find(|event| event["reason"] == reason)?;
        Some(event["message"].as_str().unwrap().to_owned())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_that_exceeds_its_volume_limit_is_evicted() {
    let mut berth = Berth::start(|_| {}).await;
    let script = "trap 'exit 0' TERM; head -c 3145728 /dev/zero > /scratch/full; sleep 600 & wait";
    let mut greedy = pod("greedy", &["sh", "-c", script]);
    greedy["spec"]["volumes"] = json!([{"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}]);
    greedy["spec"]["containers"][0]["volumeMounts"] =
        json!([{"name": "scratch", "mountPath": "/scratch"}]);
    let mut modest = greedy.clone();
    modest["metadata"]["name"] = "modest".into();
    modest["spec"]["volumes"][0]["emptyDir"]["sizeLimit"] = "4Mi".into();
    berth.create(modest).await;
    berth.until("modest", is_running).await;
    berth.create(greedy).await;
    let evicted = berth.until("greedy", |pod| phase(pod) == "Failed").await;
    let status = &evicted["status"];
    assert_eq!(status["reason"], "Evicted", "{evicted:#}");
    let message = "Usage of EmptyDir volume \"scratch\" exceeds the limit \"1Mi\". ";
    assert_eq!(status["message"], message);
    berth.until("modest", is_running).await;
    for name in ["greedy", "modest"] {
        berth.delete(name).await;
        berth.gone(name).await;
    }
    berth.end().await;
}

/// Memory for pods on this machine in MiB, and the eviction threshold within it.
const SHARE_MIB: u64 = 200;
const LEAST_MIB: u64 = 50;

#[tokio::test(flavor = "multi_thread")]
async fn pod_exceeding_allocatable_memory_is_evicted() {
    // The sum of the NUMA nodes may be less than the kernel's total.
    let topology = berth::machine_source::load_machine(None).unwrap().topology;
    let reserved = placement::configured::total_memory(&topology) - (SHARE_MIB << 20);
    let mut berth = Berth::start(|config| {
        config.system_reserved.insert("memory".to_owned(), Quantity::from_bytes(reserved));
        let least = Threshold::Quantity(format!("{LEAST_MIB}Mi").parse().unwrap());
        let hard = [(EvictionSignal::MemoryAvailable, least)];
        config.eviction_hard = Some(hard.into());
    })
    .await;
    berth.create(pod("modest", SLEEP)).await;
    berth.until("modest", is_running).await;
    let taken = SHARE_MIB - LEAST_MIB + 20;
    let script = format!(
        "trap 'exit 0' TERM; dd if=/dev/zero of=/memory/file bs=1M count={taken}; sleep 600 & wait"
    );
    let mut greedy = pod("greedy", &["sh", "-c", &script]);
    greedy["spec"]["volumes"] = json!([{"name": "memory", "emptyDir": {"medium": "Memory"}}]);
    greedy["spec"]["containers"][0]["volumeMounts"] =
        json!([{"name": "memory", "mountPath": "/memory"}]);
    berth.create(greedy).await;
    let evicted = berth.until("greedy", |pod| phase(pod) == "Failed").await;
    assert_eq!(evicted["status"]["reason"], "Evicted", "{evicted:#}");
    let message = evicted["status"]["message"].as_str().unwrap();
    let start = format!(
        "The node was low on resource: memory. Threshold quantity: {LEAST_MIB}Mi, available: "
    );
    assert!(message.starts_with(&start), "{message}");
    berth.until("modest", is_running).await;
    for name in ["greedy", "modest"] {
        berth.delete(name).await;
        berth.gone(name).await;
    }
    berth.end().await;
}

/// Returns files whose names begin with `start`.
fn named(directory: &Path, start: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let fits = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with(start);
    entries.map(|entry| entry.path()).filter(fits).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn large_log_is_rotated() {
    let mut berth = Berth::start(|config| {
        set(config, "containerLogMaxSize", "8Ki");
        set(config, "containerLogMonitorInterval", "3s");
    })
    .await;
    let script = "trap 'exit 0' TERM; for i in $(seq 1000); do echo line $i; done; \
                  while true; do echo more; sleep 1 & wait $!; done";
    let uid = berth.create(pod("chatty", &["sh", "-c", script])).await;
    let directory = berth.settings.agent.logs.join(format!("test_chatty_{uid}")).join("c");
    let holds = |paths: Vec<PathBuf>, line: &str| {
        paths.iter().any(|path| std::fs::read_to_string(path).is_ok_and(|text| text.contains(line)))
    };
    until("a rotated log", async || holds(named(&directory, "0.log."), "line 7").then_some(()))
        .await;
    let current = directory.join("0.log");
    until("a new log", async || holds(vec![current.clone()], "more").then_some(())).await;
    assert!(!holds(vec![current], "line 7\n"));
    berth.delete("chatty").await;
    berth.gone("chatty").await;
    assert!(!directory.exists());
    berth.end().await;
}
