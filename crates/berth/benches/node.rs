//! What a node costs, and how soon its pods run, beside the same calls to containerd made directly.
//!
//! `cargo bench -p berth --features rig --bench node [-- --pods 110]`, as root, with Debian's containerd,
//! runc and busybox-static. It starts a containerd and a `berth up` of its own and prints a table; figures
//! are in docs/measurements.md. Everything shares the machine's CPUs: load, API, agent and containerd.
//!
//! The figures that matter: one pod and many pods within a tenth of the direct calls; 60 MB and 0.6 CPU
//! seconds per minute with 110 idle pods, API server and agent together.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a bench")]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::kind::PODS;
use client::{Change, Client, DeleteOptions, Kubeconfig, Patience, Reflector, Remote, Scope};
use cri::v1;
use rig::Containerd;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

const COMMAND: &[&str] = &["sh", "-c", "trap 'exit 0' TERM; sleep 100000 & wait"];
/// As many starts of pods at a time as the direct calls were fastest with.
const AT_A_TIME: usize = 8;
/// How often one pod is started.
const ROUNDS: usize = 10;
/// How long the idle node is watched.
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
    let direct = Direct { runtime, containerd: &containerd };
    say("direct calls, one pod after the other");
    let mut ones = Vec::new();
    for number in 0..ROUNDS {
        let started = Instant::now();
        let sandbox = direct.start(number).await;
        ones.push(started.elapsed());
        direct.remove(sandbox).await;
    }
    let direct_one = median(&mut ones);
    say("direct calls, many pods");
    let (direct_half, direct_all) = direct.many(pods).await;

    let dir = tempfile::tempdir().unwrap();
    let mut node = Node::start(dir.path(), &containerd, pods).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let idle = node.resident();
    say("one pod after the other");
    let mut ones = Vec::new();
    for number in 0..ROUNDS {
        let name = format!("one-{number}");
        let started = Instant::now();
        node.create(&name).await;
        node.all_run(std::slice::from_ref(&name)).await;
        ones.push(started.elapsed());
        node.delete(&name).await;
        node.none_left().await;
    }
    let one = median(&mut ones);
    say("many pods");
    let names: Vec<String> = (0..pods).map(|number| format!("many-{number}")).collect();
    let started = Instant::now();
    let mut creating = JoinSet::new();
    for name in &names {
        let (api, name) = (node.api.clone(), name.clone());
        creating.spawn(async move { create(&api, &name).await });
    }
    creating.join_all().await;
    let created = started.elapsed();
    let times = node.all_run(&names).await;
    let mut after: Vec<Duration> = times.iter().map(|at| at.duration_since(started)).collect();
    after.sort();
    let (half, all) = (after[after.len() / 2], *after.last().unwrap());
    let first = after[0];
    say("many idle pods");
    tokio::time::sleep(Duration::from_secs(10)).await;
    let before = node.cpu_seconds();
    tokio::time::sleep(IDLE).await;
    let idle_cpu = (node.cpu_seconds() - before) * 60.0 / IDLE.as_secs_f64();
    let full = node.resident();
    say("and away with them");
    let started = Instant::now();
    for name in &names {
        node.delete(name).await;
    }
    node.none_left().await;
    let deleted = started.elapsed();
    node.process.kill().await.unwrap();

    println!("| | Berth | the same calls made directly |\n|---|--:|--:|");
    println!("| up after the start | {} | – |", seconds(node.up_after));
    println!("| resident, idle / {pods} pods | {idle} / {full} MB | – |");
    println!("| CPU seconds per minute, {pods} idle pods | {idle_cpu:.2} | – |");
    println!(
        "| one pod, created to Running, median of {ROUNDS} | {} | {} |",
        seconds(one),
        seconds(direct_one)
    );
    println!("| {pods} pods: created | {} | – |", seconds(created));
    println!("| {pods} pods: the first runs | {} | – |", seconds(first));
    println!("| {pods} pods: half run | {} | {} |", seconds(half), seconds(direct_half));
    println!("| {pods} pods: all run | {} | {} |", seconds(all), seconds(direct_all));
    println!("| {pods} pods: all gone | {} | – |", seconds(deleted));
}

fn say(what: &str) {
    eprintln!("node: {what}");
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn seconds(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}

/// The runtime, spoken to by nobody else.
struct Direct<'a> {
    runtime: cri::Client,
    containerd: &'a Containerd,
}

impl Direct<'_> {
    async fn start(&self, number: usize) -> String {
        let (directory, parent) = (self.containerd.directory(), self.containerd.cgroup_parent());
        start(&self.runtime, directory.join("direct"), parent, number).await
    }

    async fn remove(&self, id: String) {
        let stop = v1::StopPodSandboxRequest { pod_sandbox_id: id.clone() };
        self.runtime.call(stop).await.unwrap();
        self.runtime.call(v1::RemovePodSandboxRequest { pod_sandbox_id: id }).await.unwrap();
    }

    /// When half and all of so many pods run.
    async fn many(&self, pods: usize) -> (Duration, Duration) {
        let permits = Arc::new(Semaphore::new(AT_A_TIME));
        let started = Instant::now();
        let mut starting = JoinSet::new();
        for number in 0..pods {
            let (runtime, permits) = (self.runtime.clone(), Arc::clone(&permits));
            let (directory, parent) =
                (self.containerd.directory().join("direct"), self.containerd.cgroup_parent());
            starting.spawn(async move {
                let _permit = permits.acquire().await.unwrap();
                let id = start(&runtime, directory, parent, number).await;
                (id, Instant::now())
            });
        }
        let done = starting.join_all().await;
        let mut times: Vec<Duration> =
            done.iter().map(|(_, at)| at.duration_since(started)).collect();
        times.sort();
        for (id, _) in done {
            self.remove(id).await;
        }
        (times[pods / 2], *times.last().unwrap())
    }
}

/// Makes a sandbox on the host's network and starts a container in it.
async fn start(runtime: &cri::Client, logs: PathBuf, parent: String, number: usize) -> String {
    let namespaces = v1::NamespaceOption {
        network: v1::NamespaceMode::Node.into(),
        pid: v1::NamespaceMode::Container.into(),
        ..Default::default()
    };
    let sandbox = v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: format!("direct-{number}"),
            uid: format!("direct-{number}"),
            namespace: "default".to_owned(),
            attempt: 0,
        }),
        log_directory: logs.display().to_string(),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: format!("{parent}/direct-{number}"),
            security_context: Some(v1::LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces.clone()),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    };
    let request =
        v1::RunPodSandboxRequest { config: Some(sandbox.clone()), runtime_handler: String::new() };
    let id = runtime.call(request).await.unwrap().pod_sandbox_id;
    let config = v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: "c".to_owned(), attempt: 0 }),
        image: Some(v1::ImageSpec { image: rig::BUSYBOX.to_owned(), ..Default::default() }),
        command: COMMAND.iter().map(|&word| word.to_owned()).collect(),
        log_path: format!("{number}.log"),
        linux: Some(v1::LinuxContainerConfig {
            security_context: Some(v1::LinuxContainerSecurityContext {
                namespace_options: Some(namespaces),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    };
    let request = v1::CreateContainerRequest {
        pod_sandbox_id: id.clone(),
        config: Some(config),
        sandbox_config: Some(sandbox),
    };
    let container_id = runtime.call(request).await.unwrap().container_id;
    runtime.call(v1::StartContainerRequest { container_id }).await.unwrap();
    id
}

/// When each pod was first seen to run, by name; pods that are gone are not in it.
type Seen = HashMap<String, Option<Instant>>;

/// A `berth up`, watched.
struct Node {
    process: Child,
    up_after: Duration,
    api: Client,
    seen: watch::Receiver<Seen>,
}

impl Node {
    async fn start(dir: &Path, containerd: &Containerd, pods: usize) -> Node {
        let config = dir.join("kubelet.yaml");
        let text = format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
             cgroupRoot: {}\nmaxPods: {}\nevictionHard: {{memory.available: 1Mi}}\n",
            containerd.cgroup_parent(),
            pods + 10,
        );
        std::fs::write(&config, text).unwrap();
        let started = Instant::now();
        let mut process = Command::new(env!("CARGO_BIN_EXE_berth"))
            .args(["up", "--https-listen-port", "0", "--agent-port", "0"])
            .args(["--hostname-override", "node-1"])
            .arg("--data-dir")
            .arg(dir.join("data"))
            .arg("--config")
            .arg(config)
            .args(["--container-runtime-endpoint", &containerd.endpoint()])
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
        let remote = Remote::new(kubeconfig, "bench", Patience::default()).unwrap();
        let api = Client::new(Arc::new(remote), "bench");
        let (tell, seen) = watch::channel(Seen::new());
        let read = |raw: &serde_json::value::RawValue| serde_json::from_str::<Value>(raw.get());
        let reflector = Reflector::new(api.clone(), PODS, Scope::default(), read);
        tokio::spawn(reflector.run(move |change| {
            tell.send_modify(|seen| take(seen, change));
            true
        }));
        Node { process, up_after, api, seen }
    }

    async fn create(&self, name: &str) {
        create(&self.api, name).await;
    }

    async fn delete(&self, name: &str) {
        self.api.delete(PODS, "default", name, &DeleteOptions::default()).await.unwrap();
    }

    /// Waits until all of them run, and says since when.
    async fn all_run(&mut self, names: &[String]) -> Vec<Instant> {
        let times = |seen: &Seen| -> Option<Vec<Instant>> {
            names.iter().map(|name| seen.get(name).copied().flatten()).collect()
        };
        let seen = self.seen.wait_for(|seen| times(seen).is_some()).await.unwrap();
        times(&seen).unwrap()
    }

    async fn none_left(&mut self) {
        self.seen.wait_for(Seen::is_empty).await.unwrap();
    }

    fn proc(&self, file: &str) -> String {
        let id = self.process.id().unwrap();
        std::fs::read_to_string(format!("/proc/{id}/{file}")).unwrap()
    }

    /// Megabytes.
    fn resident(&self) -> u64 {
        let status = self.proc("status");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1000
    }

    /// Ticks are hundredths of a second on every Linux there is.
    fn cpu_seconds(&self) -> f64 {
        let stat = self.proc("stat");
        let fields: Vec<&str> = stat[stat.rfind(')').unwrap() + 2..].split(' ').collect();
        let ticks: u64 = [11, 12].iter().map(|&at| fields[at].parse::<u64>().unwrap()).sum();
        ticks as f64 / 100.0
    }
}

fn take(seen: &mut Seen, change: Change<Value>) {
    let name = |pod: &Value| pod["metadata"]["name"].as_str().unwrap().to_owned();
    let mut note = |pod: &Value| {
        let entry = seen.entry(name(pod)).or_default();
        if entry.is_none() && pod["status"]["phase"] == "Running" {
            *entry = Some(Instant::now());
        }
    };
    match change {
        Change::Replaced { all, .. } => all.iter().for_each(|(_, _, pod)| note(pod)),
        Change::Applied { object, .. } => note(&object),
        Change::Removed { key, .. } => {
            seen.remove(key.name());
        }
        Change::UpTo { .. } => {}
    }
}

async fn create(api: &Client, name: &str) {
    let pod = json!({
        "metadata": {"name": name},
        "spec": {
            "nodeName": "node-1", "hostNetwork": true, "terminationGracePeriodSeconds": 5,
            "containers": [{
                "name": "c", "image": rig::BUSYBOX, "imagePullPolicy": "Never", "command": COMMAND,
            }],
        },
    });
    api.create(PODS, "default", &pod).await.unwrap();
}
