//! Attacks on the CPUs of a pinned pod: another pod that starts at the same time, and a state file
//! that is lost. While the pinned container runs, no process of another container may use its CPU.
//! All is read from `/proc` and cgroup files.
//!
//! `BERTH_ROUNDS` sets the number of rounds; the test suite runs only a few. Needs root and a
//! containerd (feature `rig`).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use client::kind::PODS;
use client::{Client, DeleteOptions, Kubeconfig, Remote, Timeouts};
use cri::v1;
use placement::CpuSet;
use rig::Containerd;
use serde_json::{Value, json};

use crate::server::{await_line, limited};

/// The number of rounds without `BERTH_ROUNDS`.
const ROUNDS: usize = 10;

const TIMEOUT: Duration = Duration::from_secs(90);

/// The pinned pod is created when the runtime receives this call for the shared one. During
/// `StartContainer` a runtime may store an update without applying it, so that step occurs most
/// often.
const STEPS: [&str; 5] =
    ["StartContainer", "CreateContainer", "StartContainer", "RunPodSandbox", "StartContainer"];

/// Polls until `look` returns something.
async fn until<T>(what: &str, look: impl AsyncFn() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(begun.elapsed() < TIMEOUT, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A `berth up` process with limited memory, and a proxy between it and containerd.
struct Node {
    /// Killed before the containerd is removed.
    process: Child,
    calls: cri::CallLog,
    runtime: cri::Client,
    containerd: Containerd,
    /// The CPU that pods may have to themselves.
    own: CpuSet,
}

impl Node {
    async fn start() -> Node {
        let containerd = Containerd::start().unwrap_or_else(|error| panic!("{error}"));
        let runtime = cri::Client::new(cri::Endpoint::parse(&containerd.endpoint()).unwrap());
        let proxy = cri::RecordingProxy::new(runtime.clone(), |_| true);
        let calls = proxy.calls();
        let endpoint = cri::Endpoint::parse(&proxy_endpoint(containerd.directory())).unwrap();
        let listener = cri::Listener::bind(&endpoint).await.unwrap();
        let images = proxy.clone();
        tokio::spawn(cri::serve(listener, proxy, images, std::future::pending(), Duration::ZERO));
        // All CPUs but the last are reserved, so that exactly one can be allocated.
        let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
        let all = CpuSet::parse(online.trim()).unwrap();
        let own: CpuSet = all.last().into_iter().collect();
        let config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "cgroupRoot": containerd.cgroup_parent(), "cpuManagerPolicy": "static",
            "reservedSystemCPUs": (&all - &own).to_string(),
            // Slower than a round, so that the audit does not hide an overlap.
            "cpuManagerReconcilePeriod": "1h",
            "evictionHard": {"memory.available": "1Mi"},
        });
        fs::write(containerd.directory().join("kubelet.yaml"), config.to_string()).unwrap();
        let process = up(containerd.directory());
        Node { process, calls, runtime, containerd, own }
    }

    fn data_dir(&self) -> PathBuf {
        self.containerd.directory().join("data")
    }

    fn api(&self) -> Client {
        let config = Kubeconfig::read(&self.data_dir().join("kubeconfig")).unwrap();
        let remote = Remote::new(config, "berth-test", Timeouts::default()).unwrap();
        Client::new(Arc::new(remote), "test")
    }

    async fn create(&self, name: &str, resources: Value) {
        let pod = json!({
            "metadata": {"name": name},
            "spec": {
                "hostNetwork": true, "terminationGracePeriodSeconds": 5, "nodeName": "node-1",
                "automountServiceAccountToken": false,
                "containers": [{
                    "name": "c", "image": rig::BUSYBOX, "imagePullPolicy": "Never",
                    "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 600 & wait"],
                    "resources": resources,
                }],
            },
        });
        let api = self.api();
        // Pods are rejected until the namespace's account is created.
        until("the pod is created", async || api.create(PODS, "default", &pod).await.ok()).await;
    }

    async fn create_pinned(&self, name: &str) {
        let amounts = json!({"cpu": "1", "memory": "32Mi"});
        self.create(name, json!({"requests": amounts, "limits": amounts})).await;
    }

    /// Waits until a pod runs, and returns its container's id.
    async fn running(&self, name: &str) -> String {
        let api = self.api();
        until(name, async || {
            let pod: Value = api.get(PODS, "default", name).await.ok()?;
            let id = pod["status"]["containerStatuses"][0]["containerID"].as_str()?;
            (pod["status"]["phase"] == "Running").then(|| id.rsplit('/').next().unwrap().to_owned())
        })
        .await
    }

    async fn remove(&self, names: &[&str]) {
        let api = self.api();
        for name in names {
            api.delete(PODS, "default", name, &DeleteOptions::default()).await.unwrap();
        }
        for name in names {
            until("the pod is gone", async || {
                api.get::<Value>(PODS, "default", name).await.is_err().then_some(())
            })
            .await;
        }
    }

    /// Returns the ids of all containers; sandboxes are not among them.
    async fn containers(&self) -> BTreeSet<String> {
        let listed = self.runtime.call(v1::ListContainersRequest::default()).await.unwrap();
        listed.containers.into_iter().map(|container| container.id).collect()
    }

    /// Returns the directory of all pods' cpusets.
    fn cpusets(&self) -> PathBuf {
        let first = Path::new("/sys/fs/cgroup/cpuset");
        let mount = if first.exists() { first } else { Path::new("/sys/fs/cgroup") };
        mount.join(self.containerd.cgroup_parent().trim_start_matches('/'))
    }

    /// Kills the node with SIGKILL, runs `change`, and starts it again.
    fn restart(&mut self, change: impl FnOnce(&Path)) {
        self.kill();
        change(&self.data_dir());
        self.process = up(self.containerd.directory());
    }

    fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

fn proxy_endpoint(directory: &Path) -> String {
    format!("unix://{}/proxy.sock", directory.display())
}

fn up(directory: &Path) -> Child {
    let mut command = limited(None);
    command.args(["up", "--https-listen-port", "0", "--agent-port", "0"]);
    command.args(["--hostname-override", "node-1", "--data-dir"]).arg(directory.join("data"));
    command.arg("--config").arg(directory.join("kubelet.yaml"));
    command.args(["--container-runtime-endpoint", &proxy_endpoint(directory)]);
    await_line(command, "kubectl --kubeconfig").unwrap().0
}

/// Returns every directory below one.
fn below(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let directories = entries.map(|entry| entry.path()).filter(|path| path.is_dir());
    directories.flat_map(|path| [vec![path.clone()], below(&path)].concat()).collect()
}

/// Returns the CPUs of a process, or `None` if it has ended.
fn allowed(process: &str) -> Option<CpuSet> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    CpuSet::parse(list.trim()).ok()
}

/// Returns the cgroup's last name, which is the id of a container or a sandbox, and the CPUs of
/// each process below a cgroup.
fn processes(parent: &Path) -> Vec<(String, CpuSet)> {
    let mut found = Vec::new();
    for cgroup in below(parent) {
        let id = cgroup.file_name().unwrap().to_string_lossy().into_owned();
        let list = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
        found.extend(list.lines().filter_map(|process| Some((id.clone(), allowed(process)?))));
    }
    found
}

/// The observations of a thread while pods start.
#[derive(Debug, Default)]
struct Observation {
    stop: AtomicBool,
    /// Number of times a process had the CPU and no other.
    looks: AtomicUsize,
    /// Other processes that could use the CPU at such a time.
    overlaps: Mutex<BTreeSet<(String, String)>>,
}

impl Observation {
    fn watch(&self, parent: &Path, own: &CpuSet) {
        while !self.stop.load(Ordering::Relaxed) {
            let all = processes(parent);
            if all.iter().all(|(_, cpus)| cpus != own) {
                continue;
            }
            self.looks.fetch_add(1, Ordering::Relaxed);
            let others = all.into_iter().filter(|(_, cpus)| cpus != own && !cpus.is_disjoint(own));
            let others = others.map(|(id, cpus)| (id, cpus.to_string()));
            self.overlaps.lock().unwrap().extend(others);
        }
    }
}

/// An [`Observation`] that runs on a thread.
struct Observer {
    observation: Arc<Observation>,
    thread: std::thread::JoinHandle<()>,
}

impl Observer {
    fn start(node: &Node) -> Observer {
        let observation = Arc::new(Observation::default());
        let (shared, parent, own) = (Arc::clone(&observation), node.cpusets(), node.own.clone());
        let thread = std::thread::spawn(move || shared.watch(&parent, &own));
        Observer { observation, thread }
    }

    /// Waits for a look at the pinned container, stops, and returns other containers that could
    /// use its CPU.
    async fn end(self, node: &Node) -> Vec<(String, String)> {
        until("a look at the pinned container", async || {
            (self.observation.looks.load(Ordering::Relaxed) > 0).then_some(())
        })
        .await;
        self.observation.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        let containers = node.containers().await;
        let found = self.observation.overlaps.lock().unwrap().clone();
        found.into_iter().filter(|(id, _)| containers.contains(id)).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_shared_pod_avoids_pinned_cpus() {
    let rounds = std::env::var("BERTH_ROUNDS").ok().and_then(|text| text.parse().ok());
    let rounds = rounds.unwrap_or(ROUNDS);
    let node = Node::start().await;
    let mut overlaps: Vec<(usize, &str, String)> = Vec::new();
    let mut looks = 0;
    for round in 0..rounds {
        let (shared, pinned) = (format!("shared-{round}"), format!("own-{round}"));
        let observer = Observer::start(&node);
        let observation = Arc::clone(&observer.observation);
        let step = STEPS[round % STEPS.len()];
        let before = node.calls.since(0).len();
        node.create(&shared, json!({})).await;
        until(step, async || {
            node.calls.since(before).iter().any(|call| call.method == step).then_some(())
        })
        .await;
        node.create_pinned(&pinned).await;
        node.running(&pinned).await;
        node.running(&shared).await;
        let found = observer.end(&node).await;
        overlaps.extend(found.into_iter().map(|(_, cpus)| (round, step, cpus)));
        looks += observation.looks.load(Ordering::Relaxed);
        node.remove(&[&pinned, &shared]).await;
    }
    println!("{rounds} rounds, {looks} looks at a pinned container, {} overlaps", overlaps.len());
    assert_eq!(overlaps, [], "a container could run on CPU {} of a pinned one", node.own);
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_state_file_shares_no_pinned_cpu() {
    let mut node = Node::start().await;
    node.create("shared", json!({})).await;
    node.running("shared").await;
    node.create_pinned("own").await;
    let container = node.running("own").await;
    let own = |node: &Node| {
        let mut all = processes(&node.cpusets()).into_iter();
        all.find(|(id, _)| *id == container).map(|(_, cpus)| cpus)
    };
    until("the pod is pinned", async || (own(&node).as_ref() == Some(&node.own)).then_some(()))
        .await;
    for broken in [None, Some(""), Some("{\"policyName\":\"static\"")] {
        let observer = Observer::start(&node);
        let calls = node.calls.since(0).len();
        node.restart(|data| {
            let file = state_file(data);
            match broken {
                None => fs::remove_file(file).unwrap(),
                Some(text) => fs::write(file, text).unwrap(),
            }
        });
        // A pod that starts now gets CPUs after the state was read.
        node.create("later", json!({})).await;
        node.running("later").await;
        assert!(node.calls.since(calls).iter().any(|call| call.method == "StartContainer"));
        assert_eq!(observer.end(&node).await, [], "{broken:?}");
        assert_eq!(own(&node).as_ref(), Some(&node.own), "{broken:?}");
        assert_eq!(node.running("own").await, container, "{broken:?}");
        node.remove(&["later"]).await;
    }
}

/// Returns the CPU manager's state file below a data directory.
fn state_file(data: &Path) -> PathBuf {
    let all = [vec![data.to_owned()], below(data)].concat();
    let mut files = all.into_iter().map(|directory| directory.join("cpu_manager_state"));
    files.find(|file| file.exists()).unwrap()
}
