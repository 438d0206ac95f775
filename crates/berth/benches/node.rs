//! Measures the cost of a node and the start time of its pods, compared with the same calls made to
//! containerd directly.
//!
//! `cargo bench -p berth --features rig --bench node [-- --pods 110]`, as root, with Debian's
//! containerd, runc and busybox-static. It starts its own containerd and `berth up` (the binary
//! `BERTH_BINARY`, if set) and prints a table; results are in docs/measurements.md. Load, API, agent and containerd share the machine's
//! CPUs. Berth and the direct calls alternate, because the speed of a machine varies over time.
//!
//! Targets: one pod and many pods within a tenth of the direct calls; 60 MB and 0.6 CPU seconds per
//! minute with 110 idle pods, API server and agent together.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a bench")]

use std::collections::HashMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use client::kind::PODS;
use client::{Change, Client, DeleteOptions, Kubeconfig, Reflector, Remote, Scope, Timeouts};
use cri::v1;
use prost_reflect::prost::Message as _;
use rig::Containerd;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

const COMMAND: &[&str] = &["sh", "-c", "trap 'exit 0' TERM; sleep 100000 & wait"];
/// Pods started concurrently: the number with which the direct calls were fastest.
const AT_A_TIME: usize = 8;
/// Number of times one pod is started.
const ROUNDS: usize = 15;
const ROUNDS_OF_MANY: usize = 3;
/// Number of pods started directly. The runtime keeps a name reserved for a while.
static STARTED: AtomicUsize = AtomicUsize::new(0);
/// Measurement time of the idle node.
const IDLE: Duration = Duration::from_secs(60);

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let given = arguments.iter().position(|word| word == "--pods");
    let pods = given.map_or(110, |at| arguments[at + 1].parse().expect("--pods takes a number"));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(measure(pods));
}

async fn measure(pods: usize) {
    let containerd = Containerd::start().unwrap_or_else(|error| panic!("{error}"));
    let runtime = cri::Client::new(cri::Endpoint::parse(&containerd.endpoint()).unwrap());
    runtime.connected(Duration::from_secs(30)).await.unwrap();
    print_section("what one pod is to the runtime");
    let calls = Calls::of_one_pod(&containerd, &runtime).await;
    let direct = Direct { runtime, calls };
    let dir = tempfile::tempdir().unwrap();
    let mut node = Node::start(dir.path(), &containerd, &containerd.endpoint(), pods).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let idle = node.resident();

    print_section("one pod, in turn");
    let (mut ones, mut direct_ones) = (Vec::new(), Vec::new());
    for number in 0..ROUNDS {
        direct_ones.push(direct.one().await);
        ones.push(node.one(number).await);
    }
    let (mut many, mut direct_many) = (Vec::new(), Vec::new());
    let (mut idle_cpu, mut full) = (0.0, 0);
    for round in 0..ROUNDS_OF_MANY {
        print_section(&format!("many pods, in turn: {} of {ROUNDS_OF_MANY}", round + 1));
        direct_many.push(direct.many(pods).await);
        let names: Vec<String> = (0..pods).map(|number| format!("many-{round}-{number}")).collect();
        many.push(node.many(&names).await);
        if round == 0 {
            print_section("many idle pods");
            tokio::time::sleep(Duration::from_secs(10)).await;
            let before = node.cpu_seconds();
            tokio::time::sleep(IDLE).await;
            idle_cpu = (node.cpu_seconds() - before) * 60.0 / IDLE.as_secs_f64();
            full = node.resident();
        }
        node.away(&names).await;
    }
    node.process.kill().await.unwrap();

    println!("| | Berth | the same calls made directly |\n|---|--:|--:|");
    println!("| up after the start | {} | – |", seconds(node.up_after));
    println!("| resident, idle / {pods} pods | {idle} / {full} MB | – |");
    println!("| CPU seconds per minute, {pods} idle pods | {idle_cpu:.2} | – |");
    println!("| one pod, median of {ROUNDS} | {} | {} |", median(ones), median(direct_ones));
    let row = |what: &str, time: fn(&Many) -> Duration| {
        let all = |runs: &[Many]| runs.iter().map(time).map(seconds).collect::<Vec<_>>().join(", ");
        println!("| {pods} pods: {what} | {} | {} |", all(&many), all(&direct_many));
    };
    row("the first runs", |many| many.first);
    row("half run", |many| many.half);
    row("all run", |many| many.all);
}

/// The times at which the pods of one round ran.
struct Many {
    first: Duration,
    half: Duration,
    all: Duration,
}

impl Many {
    fn new(mut times: Vec<Duration>) -> Many {
        times.sort();
        let (first, half, all) = (times[0], times[times.len() / 2], times[times.len() - 1]);
        Many { first, half, all }
    }
}

fn print_section(what: &str) {
    eprintln!("node: {what}");
}

fn median(mut times: Vec<Duration>) -> String {
    times.sort();
    seconds(times[times.len() / 2])
}

fn seconds(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}

/// The calls that Berth makes to the runtime for a pod.
#[derive(Clone)]
struct Calls {
    sandbox: v1::RunPodSandboxRequest,
    container: v1::CreateContainerRequest,
    /// The mounted files.
    _files: Arc<tempfile::TempDir>,
}

impl Calls {
    /// Records the calls while a node starts a pod.
    async fn of_one_pod(containerd: &Containerd, runtime: &cri::Client) -> Calls {
        let dir = tempfile::tempdir().unwrap();
        let place = format!("unix://{}", dir.path().join("cri.sock").display());
        let relay = cri::RecordingProxy::new(runtime.clone(), |_| true);
        let listener = cri::Listener::bind(&cri::Endpoint::parse(&place).unwrap()).await.unwrap();
        let (a, b) = (relay.clone(), relay.clone());
        let for_ever = std::future::pending();
        let serving = tokio::spawn(cri::serve(listener, a, b, for_ever, Duration::ZERO));
        let mut node = Node::start(dir.path(), containerd, &place, 1).await;
        let names = ["model".to_owned()];
        node.many(&names).await;
        let passed = relay.calls().since(0);
        let request = |method: &str| {
            let mut passed = passed.iter().filter(|passed| passed.method == method);
            passed.next().unwrap().request.clone()
        };
        let mut sandbox = v1::RunPodSandboxRequest::decode(&*request("RunPodSandbox")).unwrap();
        let mut container =
            v1::CreateContainerRequest::decode(&*request("CreateContainer")).unwrap();
        let files = tempfile::tempdir().unwrap();
        let config = container.config.as_mut().unwrap();
        for (number, mount) in config.mounts.iter_mut().enumerate() {
            let copy = files.path().join(number.to_string());
            std::fs::copy(&mount.host_path, &copy).unwrap();
            mount.host_path = copy.display().to_string();
        }
        // Without labels the agent does not adopt it as a pod of the node.
        config.labels.clear();
        let sandbox_config = sandbox.config.as_mut().unwrap();
        sandbox_config.labels.clear();
        sandbox_config.log_directory = files.path().display().to_string();
        container.sandbox_config = Some(sandbox_config.clone());
        node.away(&names).await;
        node.process.kill().await.unwrap();
        serving.abort();
        Calls { sandbox, container, _files: Arc::new(files) }
    }

    /// Repeats the calls for another pod, with a new name and cgroup.
    async fn start(mut self, runtime: &cri::Client) -> String {
        let name = format!("direct-{}", STARTED.fetch_add(1, Ordering::Relaxed));
        let config = self.sandbox.config.as_mut().unwrap();
        let metadata = config.metadata.as_mut().unwrap();
        (metadata.name, metadata.uid) = (name.clone(), name.clone());
        let of_linux = config.linux.as_mut().unwrap();
        let (above, _) = of_linux.cgroup_parent.rsplit_once('/').unwrap();
        of_linux.cgroup_parent = format!("{above}/{name}");
        self.container.sandbox_config = Some(config.clone());
        self.container.config.as_mut().unwrap().log_path = format!("{name}.log");
        let id = runtime.call(self.sandbox).await.unwrap().pod_sandbox_id;
        self.container.pod_sandbox_id = id.clone();
        let container_id = runtime.call(self.container).await.unwrap().container_id;
        runtime.call(v1::StartContainerRequest { container_id }).await.unwrap();
        id
    }
}

/// The runtime without a node.
struct Direct {
    runtime: cri::Client,
    calls: Calls,
}

impl Direct {
    /// Returns the start time of one pod.
    async fn one(&self) -> Duration {
        let started = Instant::now();
        let sandbox = self.calls.clone().start(&self.runtime).await;
        let took = started.elapsed();
        remove(&self.runtime, sandbox).await;
        took
    }

    async fn many(&self, pods: usize) -> Many {
        let permits = Arc::new(Semaphore::new(AT_A_TIME));
        let started = Instant::now();
        let mut starting = JoinSet::new();
        for _ in 0..pods {
            let (runtime, permits) = (self.runtime.clone(), Arc::clone(&permits));
            let calls = self.calls.clone();
            starting.spawn(async move {
                let _permit = permits.acquire().await.unwrap();
                let id = calls.start(&runtime).await;
                (id, started.elapsed())
            });
        }
        let (ids, times): (Vec<_>, _) = starting.join_all().await.into_iter().unzip();
        let mut removing = JoinSet::new();
        for id in ids {
            let (runtime, permits) = (self.runtime.clone(), Arc::clone(&permits));
            removing.spawn(async move {
                let _permit = permits.acquire().await.unwrap();
                remove(&runtime, id).await;
            });
        }
        removing.join_all().await;
        Many::new(times)
    }
}

async fn remove(runtime: &cri::Client, id: String) {
    runtime.call(v1::StopPodSandboxRequest { pod_sandbox_id: id.clone() }).await.unwrap();
    runtime.call(v1::RemovePodSandboxRequest { pod_sandbox_id: id }).await.unwrap();
}

/// The time at which each pod first ran, by name. Deleted pods are removed.
type StartTimes = HashMap<String, Option<Instant>>;

/// A `berth up` process with a watch on its pods.
struct Node {
    process: Child,
    up_after: Duration,
    api: Client,
    start_times: watch::Receiver<StartTimes>,
}

impl Node {
    async fn start(dir: &Path, containerd: &Containerd, endpoint: &str, pods: usize) -> Node {
        let config = dir.join("kubelet.yaml");
        let text = format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
             cgroupRoot: {}\nmaxPods: {}\nevictionHard: {{memory.available: 1Mi}}\n",
            containerd.cgroup_parent(),
            pods + 10,
        );
        std::fs::write(&config, text).unwrap();
        let started = Instant::now();
        let mut process = Command::new(rig::berth_binary(env!("CARGO_BIN_EXE_berth")))
            .args(["up", "--https-listen-port", "0", "--agent-port", "0"])
            .args(["--hostname-override", "node-1"])
            .arg("--data-dir")
            .arg(dir.join("data"))
            .arg("--config")
            .arg(config)
            .args(["--container-runtime-endpoint", endpoint])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let first = lines.next_line().await.unwrap().unwrap_or_default();
        assert!(first.starts_with("Berth is up"), "{first}");
        let up_after = started.elapsed();
        let kubeconfig = Kubeconfig::read(&dir.join("data/kubeconfig")).unwrap();
        let remote = Remote::new(kubeconfig, "bench", Timeouts::default()).unwrap();
        let api = Client::new(Arc::new(remote), "bench");
        let (sender, start_times) = watch::channel(StartTimes::new());
        let reflector = Reflector::new(api.clone(), PODS, Scope::default(), |pod: Value| pod);
        tokio::spawn(reflector.run(move |change| {
            sender.send_modify(|start_times| take(start_times, change));
            true
        }));
        Node { process, up_after, api, start_times }
    }

    /// Returns the time from creating one pod until it runs.
    async fn one(&mut self, number: usize) -> Duration {
        let names = [format!("one-{number}")];
        let took = self.many(&names).await.all;
        self.away(&names).await;
        took
    }

    async fn many(&mut self, names: &[String]) -> Many {
        let started = Instant::now();
        let mut creating = JoinSet::new();
        for name in names {
            let (api, name) = (self.api.clone(), name.clone());
            creating.spawn(async move { create(&api, &name).await });
        }
        creating.join_all().await;
        let ran = self.all_run(names).await;
        Many::new(ran.iter().map(|at| at.duration_since(started)).collect())
    }

    async fn away(&mut self, names: &[String]) {
        for name in names {
            self.api.delete(PODS, "default", name, &DeleteOptions::default()).await.unwrap();
        }
        self.start_times.wait_for(StartTimes::is_empty).await.unwrap();
    }

    /// Waits until all pods run, and returns the time at which each started.
    async fn all_run(&mut self, names: &[String]) -> Vec<Instant> {
        let times = |start_times: &StartTimes| -> Option<Vec<Instant>> {
            names.iter().map(|name| start_times.get(name).copied().flatten()).collect()
        };
        let start_times =
            self.start_times.wait_for(|start_times| times(start_times).is_some()).await.unwrap();
        times(&start_times).unwrap()
    }

    fn proc(&self, file: &str) -> String {
        let id = self.process.id().unwrap();
        std::fs::read_to_string(format!("/proc/{id}/{file}")).unwrap()
    }

    /// Returns the resident memory in megabytes.
    fn resident(&self) -> u64 {
        let status = self.proc("status");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1000
    }

    /// A tick is a hundredth of a second on every supported Linux.
    fn cpu_seconds(&self) -> f64 {
        let stat = self.proc("stat");
        let fields: Vec<&str> = stat[stat.rfind(')').unwrap() + 2..].split(' ').collect();
        let ticks: u64 = [11, 12].iter().map(|&at| fields[at].parse::<u64>().unwrap()).sum();
        ticks as f64 / 100.0
    }
}

fn take(start_times: &mut StartTimes, change: Change<Value>) {
    let name = |pod: &Value| pod["metadata"]["name"].as_str().unwrap().to_owned();
    let mut note = |pod: &Value| {
        let entry = start_times.entry(name(pod)).or_default();
        if entry.is_none() && pod["status"]["phase"] == "Running" {
            *entry = Some(Instant::now());
        }
    };
    match change {
        Change::Replaced { all, .. } => all.iter().for_each(|(_, _, pod)| note(pod)),
        Change::Applied { object, .. } => note(&object),
        Change::Removed { key, .. } => {
            start_times.remove(key.name());
        }
        Change::Bookmark { .. } => {}
    }
}

async fn create(api: &Client, name: &str) {
    let pod = json!({
        "metadata": {"name": name},
        "spec": {
            "nodeName": "node-1", "hostNetwork": true, "terminationGracePeriodSeconds": 5,
            // The kubelet was measured with the same setting.
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "c", "image": rig::BUSYBOX, "imagePullPolicy": "Never", "command": COMMAND,
            }],
        },
    });
    api.create(PODS, "default", &pod).await.unwrap();
}
