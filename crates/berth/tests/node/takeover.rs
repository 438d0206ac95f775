//! A node whose agent is replaced: containers of another agent, or of one whose files were lost,
//! keep running unchanged on their CPUs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use client::kind::NODES;
use cri::v1;
use objects::KubeletConfig;
use objects::kubelet_config::CpuManagerPolicy;
use placement::CpuSet;
use placement::state_file::CpuState;
use rig::Containerd;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::placement::{
    allowed, clean, container_id, event_messages, exclusive, machine, one_exclusive_cpu, process,
    running,
};
use crate::support::{Berth, SLEEP, phase, pod, until};

/// Watches the CPUs of two processes.
struct Watch {
    stop: Arc<AtomicBool>,
    /// Returns the first pair of CPUs that was not the expected one.
    watcher: std::thread::JoinHandle<Option<(CpuSet, CpuSet)>>,
}

impl Watch {
    fn start(pids: (u32, u32), expected: (CpuSet, CpuSet)) -> Watch {
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&stop);
        let watcher = std::thread::spawn(move || {
            while !stopping.load(Ordering::Relaxed) {
                let found = (allowed(pids.0), allowed(pids.1));
                if found != expected {
                    return Some(found);
                }
            }
            None
        });
        Watch { stop, watcher }
    }

    fn end(self) -> Option<(CpuSet, CpuSet)> {
        self.stop.store(true, Ordering::Relaxed);
        self.watcher.join().unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pinned_pod_keeps_its_cpus_without_a_state_file() {
    let (_, own, others) = machine();
    let mut berth = Berth::start(one_exclusive_cpu).await;
    berth.create(pod("shared", SLEEP)).await;
    let (_, shared) = running(&berth, "shared").await;
    berth.create(exclusive("own")).await;
    let (_, owner) = running(&berth, "own").await;
    let file = berth.settings.agent.root.join("cpu_manager_state");
    let before = std::fs::read_to_string(&file).unwrap();
    for broken in [None, Some("{\"policyName\":\"static\""), Some("")] {
        berth.end().await;
        match broken {
            None => std::fs::remove_file(&file).unwrap(),
            Some(text) => std::fs::write(&file, text).unwrap(),
        }
        let watch = Watch::start((owner, shared), (own.clone(), others.clone()));
        berth.restart().await;
        for (name, pid) in [("own", owner), ("shared", shared)] {
            assert_eq!(running(&berth, name).await.1, pid, "{broken:?}");
        }
        until("the pods are known", async || berth.agent.publications.known_pods.borrow().clone())
            .await;
        clean(&berth).await;
        assert_eq!(watch.end(), None, "{broken:?}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), before, "{broken:?}");
    }
    assert_eq!(event_messages(&berth, "own", "PlacementRepaired").await, [""; 0]);
    for name in ["shared", "own"] {
        berth.delete(name).await;
        berth.gone(name).await;
    }
    clean(&berth).await;
    berth.end().await;
}

/// Returns the time of the node's last heartbeat.
async fn heartbeat(berth: &Berth) -> String {
    let node: Value = berth.api.get(NODES, "", "node-1").await.unwrap();
    let conditions = node["status"]["conditions"].as_array().unwrap().clone();
    let ready = conditions.into_iter().find(|condition| condition["type"] == "Ready").unwrap();
    ready["lastHeartbeatTime"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn new_static_policy_pins_running_pods_before_the_heartbeat() {
    let (all, own, others) = machine();
    let mut berth = Berth::start(|config| {
        one_exclusive_cpu(config);
        config.cpu_manager_policy = CpuManagerPolicy::None;
    })
    .await;
    berth.create(pod("shared", SLEEP)).await;
    berth.create(exclusive("own")).await;
    let (_, shared) = running(&berth, "shared").await;
    let (_, owner) = running(&berth, "own").await;
    assert_eq!((allowed(owner), allowed(shared)), (all.clone(), all.clone()));
    assert_eq!(event_messages(&berth, "own", "Placed").await, [""; 0]);
    let before = heartbeat(&berth).await;
    berth.end().await;
    // Heartbeats have a resolution of one second.
    until("the next second", async || (now() > seconds(&before)).then_some(())).await;
    berth.settings.agent.config.cpu_manager_policy = CpuManagerPolicy::Static;
    berth.restart().await;
    until("a report of the node", async || (heartbeat(&berth).await != before).then_some(())).await;
    assert_eq!((allowed(owner), allowed(shared)), (own, others));
    let message =
        until("the event", async || event_messages(&berth, "own", "Placed").await.pop()).await;
    assert!(message.starts_with("container c has CPUs "), "{message}");
    assert_eq!(running(&berth, "own").await.1, owner);
    clean(&berth).await;
    for name in ["shared", "own"] {
        berth.delete(name).await;
        berth.gone(name).await;
    }
    berth.end().await;
}

fn seconds(time: &str) -> i64 {
    objects::timestamp::Timestamp::parse(time).unwrap().seconds()
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_secs()).unwrap()
}

/// Returns the hash of an older Berth for a container: 64-bit FNV-1a of its name and image.
fn older_hash(container: &str, image: &str) -> String {
    let bytes = [container.as_bytes(), &[0xff], image.as_bytes()].concat();
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:x}")
}

const HASH: &str = "io.kubernetes.container.hash";

#[tokio::test(flavor = "multi_thread")]
async fn containers_of_an_older_berth_keep_running() {
    let age = |message: &mut dyn std::any::Any| {
        if let Some(request) = message.downcast_mut::<v1::CreateContainerRequest>() {
            let annotations = &mut request.config.as_mut().unwrap().annotations;
            annotations.insert(HASH.to_owned(), older_hash("c", rig::BUSYBOX));
        }
        Ok(())
    };
    let (mut berth, _) = Berth::behind(age, |_| {}).await;
    berth.create(pod("old", SLEEP)).await;
    let (old, pid) = running(&berth, "old").await;
    berth.restart().await;
    // When a new pod runs, the old one has been inspected.
    berth.create(pod("new", SLEEP)).await;
    running(&berth, "new").await;
    let (again, same) = running(&berth, "old").await;
    assert_eq!((container_id(&again), same), (container_id(&old), pid));
    assert_eq!(again["status"]["containerStatuses"][0]["restartCount"], 0);
    for name in ["old", "new"] {
        berth.delete(name).await;
        berth.gone(name).await;
    }
    berth.end().await;
}

/// Starts a static pod with one exclusive CPU as a kubelet does, and writes the kubelet's state
/// file. Returns the container.
async fn start_as_a_kubelet(containerd: &Containerd, name: &str, uid: &str) -> String {
    let (_, own, others) = machine();
    let here = containerd.directory().join("berth");
    std::fs::create_dir_all(here.join("agent")).unwrap();
    let mut state = CpuState::empty("static");
    state.default_cpus = others;
    let entry = BTreeMap::from([("c".to_owned(), own.clone())]);
    state.entries.insert(uid.to_owned(), entry);
    std::fs::write(here.join("agent/cpu_manager_state"), state.render()).unwrap();

    let texts = |list: &[(&str, &str)]| -> BTreeMap<String, String> {
        list.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let identity = [
        ("io.kubernetes.pod.name", name),
        ("io.kubernetes.pod.namespace", "test"),
        ("io.kubernetes.pod.uid", uid),
    ];
    let options = v1::NamespaceOption {
        network: v1::NamespaceMode::Node as i32,
        pid: v1::NamespaceMode::Container as i32,
        ..Default::default()
    };
    let log_directory = here.join("logs").join(format!("test_{name}_{uid}"));
    std::fs::create_dir_all(log_directory.join("c")).unwrap();
    let sandbox = v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: name.to_owned(),
            uid: uid.to_owned(),
            namespace: "test".to_owned(),
            attempt: 0,
        }),
        log_directory: log_directory.display().to_string(),
        labels: texts(&identity),
        annotations: texts(&[
            ("kubernetes.io/config.hash", uid),
            ("kubernetes.io/config.seen", "2026-01-02T03:04:05.000000006Z"),
            ("kubernetes.io/config.source", "file"),
        ]),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: format!("{}/kubepods/pod{uid}", containerd.cgroup_parent()),
            security_context: Some(v1::LinuxSandboxSecurityContext {
                namespace_options: Some(options.clone()),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    };
    let runtime = cri::Client::new(cri::Endpoint::parse(&containerd.endpoint()).unwrap());
    let request =
        v1::RunPodSandboxRequest { config: Some(sandbox.clone()), runtime_handler: String::new() };
    let made = until("the sandbox", async || runtime.call(request.clone()).await.ok()).await;
    let container: lifecycle::spec::Container =
        serde_json::from_value(json!({"name": "c", "image": rig::BUSYBOX})).unwrap();
    let mut labels = texts(&identity);
    labels.insert("io.kubernetes.container.name".to_owned(), "c".to_owned());
    let config = v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: "c".to_owned(), attempt: 0 }),
        image: Some(v1::ImageSpec { image: rig::BUSYBOX.to_owned(), ..Default::default() }),
        command: SLEEP.iter().map(|&word| word.to_owned()).collect(),
        labels,
        annotations: texts(&[
            (HASH, &agent::runtime::lower::hash(&container)),
            ("io.kubernetes.container.restartCount", "0"),
            ("io.kubernetes.container.terminationMessagePath", "/dev/termination-log"),
            ("io.kubernetes.container.terminationMessagePolicy", "File"),
            ("io.kubernetes.pod.terminationGracePeriod", "5"),
        ]),
        log_path: "c/0.log".to_owned(),
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(v1::LinuxContainerResources {
                cpuset_cpus: own.to_string(),
                cpu_shares: 1024,
                ..Default::default()
            }),
            security_context: Some(v1::LinuxContainerSecurityContext {
                namespace_options: Some(options),
                ..Default::default()
            }),
        }),
        ..Default::default()
    };
    let request = v1::CreateContainerRequest {
        pod_sandbox_id: made.pod_sandbox_id,
        config: Some(config),
        sandbox_config: Some(sandbox),
    };
    let container_id = runtime.call(request).await.unwrap().container_id;
    let request = v1::StartContainerRequest { container_id: container_id.clone() };
    runtime.call(request).await.unwrap();
    container_id
}

/// Writes the manifest of a static pod with one exclusive CPU.
fn write_manifest(directory: &Path, name: &str, variable: Option<&str>) {
    let mut pod = exclusive(name);
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    pod["metadata"]["namespace"] = "test".into();
    if let Some(value) = variable {
        pod["spec"]["containers"][0]["env"] = json!([{"name": "A", "value": value}]);
    }
    std::fs::write(directory.join(".new"), pod.to_string()).unwrap();
    std::fs::rename(directory.join(".new"), directory.join("web.json")).unwrap();
}

fn with_manifests(directory: &Path) -> impl FnOnce(&mut KubeletConfig) {
    let path = directory.display().to_string();
    move |config| {
        one_exclusive_cpu(config);
        config.static_pod_path = Some(path);
        config.untyped.insert("fileCheckFrequency".to_owned(), "200ms".into());
    }
}

fn shows(pod: &Value) -> &str {
    pod["metadata"]["annotations"]["kubernetes.io/config.mirror"].as_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn static_pod_of_a_kubelet_keeps_uid_and_cpus() {
    let (_, own, _) = machine();
    let place = TempDir::new().unwrap();
    write_manifest(place.path(), "web", None);
    let containerd = Containerd::start().unwrap_or_else(|error| panic!("{error}"));
    let uid = "0123456789abcdef0123456789abcdef";
    let container = start_as_a_kubelet(&containerd, "web-node-1", uid).await;
    let file = containerd.directory().join("berth/agent/cpu_manager_state");
    let state = std::fs::read_to_string(&file).unwrap();

    let mut berth = Berth::on(containerd, with_manifests(place.path())).await;
    let shown = berth.until("web-node-1", |pod| phase(pod) == "Running").await;
    assert_eq!((shows(&shown), container_id(&shown)), (uid, container.clone()));
    let pid = process(&berth.agent, &shown).await;
    assert_eq!(allowed(pid), own);
    clean(&berth).await;
    // A kubelet that returns to the node finds its own state.
    assert_eq!(std::fs::read_to_string(&file).unwrap(), state);

    berth.restart().await;
    until("the pods are known", async || berth.agent.publications.known_pods.borrow().clone())
        .await;
    let again = berth.until("web-node-1", |pod| phase(pod) == "Running").await;
    assert_eq!((shows(&again), container_id(&again)), (uid, container.clone()));
    assert_eq!(process(&berth.agent, &again).await, pid);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), state);

    // A manifest changed while no agent runs is another pod.
    berth.end().await;
    write_manifest(place.path(), "web", Some("changed"));
    berth.restart().await;
    let other = |pod: &Value| phase(pod) == "Running" && shows(pod) != uid;
    let changed = berth.until("web-node-1", other).await;
    assert_ne!(container_id(&changed), container);
    std::fs::remove_file(place.path().join("web.json")).unwrap();
    berth.gone("web-node-1").await;
    clean(&berth).await;
    berth.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn static_pod_gets_the_cpus_of_a_removed_one() {
    let (_, own, _) = machine();
    let place = TempDir::new().unwrap();
    write_manifest(place.path(), "web", None);
    let containerd = Containerd::start().unwrap_or_else(|error| panic!("{error}"));
    let container =
        start_as_a_kubelet(&containerd, "gone-node-1", "fedcba9876543210fedcba9876543210").await;
    let mut berth = Berth::on(containerd, with_manifests(place.path())).await;
    let shown = berth.until("web-node-1", |pod| phase(pod) == "Running").await;
    assert_ne!(container_id(&shown), container);
    assert_eq!(allowed(process(&berth.agent, &shown).await), own);
    std::fs::remove_file(place.path().join("web.json")).unwrap();
    berth.gone("web-node-1").await;
    clean(&berth).await;
    berth.end().await;
}
