//! A node that is killed repeatedly while pods are created and deleted. After each kill the test
//! inspects every process, cgroup and file.
//!
//! `BERTH_KILLS` sets the number of kills; the test suite runs only a few.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use client::kind::{NAMESPACES, PODS};
use client::{Client, DeleteOptions, Kubeconfig, Remote, Scope, Timeouts};
use cri::v1;
use host::cgroups::Cgroups;
use placement::CpuSet;
use rig::Containerd;
use serde_json::{Value, json};

use crate::support::{SLEEP, phase, pod, until, until_or};

/// The default number of kills.
const KILLS: usize = 12;
/// After this many kills the node gets time to reconcile.
const SETTLED: usize = 6;
/// Maximum number of pods created before a kill.
const LONGEST_LIFE: u64 = 7;
/// Maximum number of pod lists requested after the last pod, a few milliseconds each.
const MOST_ANSWERS: u64 = 40;

pub(crate) struct Victim {
    process: Child,
    pub(crate) api: Client,
}

impl Victim {
    /// Kills the process at any point of its work.
    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // The process may have been killed already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts a node from the command line, and waits until its API responds.
async fn start(containerd: &Containerd) -> Victim {
    start_logging(containerd, &[], Stdio::null()).await
}

/// Starts a node with further flags; `log` gets its log.
pub(crate) async fn start_logging(containerd: &Containerd, flags: &[&str], log: Stdio) -> Victim {
    let here = containerd.directory();
    let data = here.join("data");
    #[allow(clippy::zombie_processes, reason = "a panic here fails the test")]
    let process = Command::new(env!("CARGO_BIN_EXE_berth"))
        .args(["up", "--https-listen-port", "0", "--agent-port", "0"])
        .args(["--hostname-override", "node-1"])
        .arg("--data-dir")
        .arg(&data)
        .arg("--config")
        .arg(here.join("kubelet.yaml"))
        .args(["--container-runtime-endpoint", &containerd.endpoint()])
        .args(flags)
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap();
    let api = until("the node is up", async || {
        let api = connect(&data.join("kubeconfig"))?;
        api.list_values(PODS, &Scope::default()).await.ok().map(|_| api)
    });
    Victim { process, api: api.await }
}

fn connect(kubeconfig: &Path) -> Option<Client> {
    let config = Kubeconfig::read(kubeconfig).ok()?;
    let remote = Remote::new(config, "test", Timeouts::default()).ok()?;
    Some(Client::new(Arc::new(remote), "test"))
}

/// A deterministic random number generator.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit.max(1)
    }
}

fn wanted(name: &str, exclusive: bool) -> Value {
    let mut pod = pod(name, SLEEP);
    pod["spec"]["nodeName"] = "node-1".into();
    pod["spec"]["terminationGracePeriodSeconds"] = 1.into();
    if exclusive {
        let amounts = json!({"cpu": "1", "memory": "32Mi"});
        pod["spec"]["containers"][0]["resources"] = json!({"requests": amounts, "limits": amounts});
    }
    pod
}

/// The created pods, and those that were not deleted.
#[derive(Default)]
struct Pods {
    made: u64,
    kept: BTreeSet<String>,
}

impl Pods {
    async fn make(&mut self, api: &Client, exclusive: bool) {
        let name = format!("p{}", self.made);
        api.create(PODS, "test", &wanted(&name, exclusive)).await.unwrap();
        self.kept.insert(name);
        self.made += 1;
    }
}

/// Waits until a remaining pod has exclusive CPUs. Creates one if needed.
async fn own(api: &Client, runtime: &cri::Client, containerd: &Containerd, all: &mut Pods) {
    until("a container has exclusive CPUs", async || {
        let running = running(runtime).await;
        if running
            .values()
            .any(|container| container.exclusive && all.kept.contains(&container.pod))
        {
            return Some(());
        }
        if ledger(containerd)["entries"].as_object().is_none_or(serde_json::Map::is_empty) {
            all.make(api, true).await;
        }
        None
    })
    .await;
}

/// Creates pods and deletes older ones at full speed: a deleted pod has been admitted or rejected.
async fn churn(api: &Client, chance: &mut Chance, all: &mut Pods, pods: u64) {
    for _ in 0..pods {
        all.make(api, chance.below(2) == 0).await;
        if let Some(old) = all.made.checked_sub(3 + chance.below(3)) {
            let name = format!("p{old}");
            until_or("a pod is decided about", async || {
                match api.get::<Value>(PODS, "test", &name).await {
                    Ok(pod)
                        if phase(&pod) == "Pending"
                            && pod["metadata"]["deletionTimestamp"].is_null() =>
                    {
                        Err(format!("{pod:#}"))
                    }
                    _ => Ok(()),
                }
            })
            .await;
            all.kept.remove(&name);
            // The pod may have been deleted already.
            let _ = api.delete(PODS, "test", &name, &DeleteOptions::default()).await;
        }
    }
    // Continue for a random number of requests, to kill at any point.
    for _ in 0..chance.below(MOST_ANSWERS) {
        api.list_values(PODS, &Scope::default()).await.unwrap();
    }
}

/// A running container.
#[derive(Debug)]
struct Running {
    pod: String,
    uid: String,
    /// True if it has exclusive CPUs.
    exclusive: bool,
    /// The effective CPUs of its processes.
    cpus: CpuSet,
}

/// Returns every running container by its id.
async fn running(runtime: &cri::Client) -> BTreeMap<String, Running> {
    let cgroups = Cgroups::observe().unwrap();
    let mut found = BTreeMap::new();
    let request = v1::ListContainersRequest::default();
    for container in runtime.call(request).await.unwrap().containers {
        let id = container.id;
        let request = v1::ContainerStatusRequest { container_id: id.clone(), verbose: true };
        let Ok(answer) = runtime.call(request).await else { continue };
        let info: Value = answer
            .info
            .get("info")
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        let Some(pid) = info["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()) else {
            continue;
        };
        let status = answer.status.unwrap_or_default();
        if status.state() != v1::ContainerState::ContainerRunning || pid == 0 {
            continue;
        }
        // A container may end while it is inspected; it has no CPUs then.
        let Ok(force) = cgroups.effective_limits(pid) else { continue };
        // Only exclusive containers have a limit here.
        let limit = &info["config"]["linux"]["resources"]["memory_limit_in_bytes"];
        let label = |name: &str| container.labels.get(name).cloned().unwrap_or_default();
        let running = Running {
            pod: label("io.kubernetes.pod.name"),
            uid: label("io.kubernetes.pod.uid"),
            exclusive: limit.as_i64().is_some_and(|bytes| bytes > 0),
            cpus: force.cpus,
        };
        found.insert(id, running);
    }
    found
}

/// Asserts that exclusive CPUs are not shared, and that the killed node's ledger agrees.
fn check(running: &BTreeMap<String, Running>, ledger: &Value, after: usize) {
    for (id, of) in running.iter().filter(|(_, of)| of.exclusive) {
        for (other, theirs) in running.iter().filter(|(other, _)| *other != id) {
            let (pod, cpus) = (&of.pod, &of.cpus);
            assert!(
                cpus.is_disjoint(&theirs.cpus),
                "after kill {after}: {pod} has {cpus} to itself, and {other} is {theirs:?}"
            );
        }
        let booked = ledger["entries"][&of.uid]["c"].as_str().map(CpuSet::parse);
        let same = booked.is_some_and(|booked| booked.is_ok_and(|booked| booked == of.cpus));
        assert!(same, "after kill {after}: {of:?} is not in the ledger, {ledger}");
    }
}

/// Asserts that containers of pods that were not deleted keep running.
async fn check_lives(
    runtime: &cri::Client,
    before: &BTreeMap<String, Running>,
    now: &BTreeMap<String, Running>,
    kept: &BTreeSet<String>,
    after: usize,
) {
    for (id, of) in before.iter().filter(|(_, of)| kept.contains(&of.pod)) {
        if !now.contains_key(id) {
            let request = v1::ContainerStatusRequest { container_id: id.clone(), verbose: false };
            let found = runtime.call(request).await;
            panic!("after kill {after}: {of:?} does not run any more: {found:#?}");
        }
    }
}

/// Returns the uids of pods with remains on the machine: cgroups, directories, and CPUs in the
/// ledger.
fn traces(containerd: &Containerd) -> BTreeSet<String> {
    let here = containerd.directory().join("data/agent");
    let ledger = ledger(containerd);
    let mut found: BTreeSet<String> =
        ledger["entries"].as_object().into_iter().flatten().map(|(uid, _)| uid.clone()).collect();
    found.extend(names(&here.join("pods")));
    let tree = Path::new("/sys/fs/cgroup");
    let hierarchies = names(tree).into_iter().map(|name| tree.join(name));
    let parent = containerd.cgroup_parent();
    for top in hierarchies.chain([tree.to_owned()]) {
        let pods = top.join(parent.trim_start_matches('/')).join("kubepods");
        for class in ["", "burstable", "besteffort"] {
            let all = names(&pods.join(class)).into_iter();
            found.extend(all.filter_map(|name| name.strip_prefix("pod").map(str::to_owned)));
        }
    }
    found
}

/// Lists the names in a directory; empty if it does not exist.
fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Reads the CPU allocations from disk.
fn ledger(containerd: &Containerd) -> Value {
    let path = containerd.directory().join("data/agent/cpu_manager_state");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Waits until pods that the API does not have leave no remains.
async fn settled(api: &Client, containerd: &Containerd) {
    until_or("nothing is left of pods that are gone", async || {
        // Read the remains first: a pod with remains existed before.
        let traces = traces(containerd);
        let pods = api.list_values(PODS, &Scope::default()).await.unwrap();
        let known = |uid: &&String| pods.iter().any(|pod| pod["metadata"]["uid"] == uid.as_str());
        let left: Vec<&String> = traces.iter().filter(|uid| !known(uid)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_node_allocates_no_cpu_twice_and_loses_no_pod() {
    let kills = std::env::var("BERTH_KILLS").ok().and_then(|text| text.parse().ok());
    let kills = kills.unwrap_or(KILLS);
    let containerd = Containerd::start().unwrap_or_else(|error| panic!("{error}"));
    let runtime = cri::Client::new(cri::Endpoint::parse(&containerd.endpoint()).unwrap());
    let all = berth::machine_source::load_machine(None).unwrap().topology.all_cpus().clone();
    let last: CpuSet = all.last().into_iter().collect();
    let configuration = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
         cgroupRoot: {}\ncpuManagerPolicy: static\nreservedSystemCPUs: \"{}\"\n\
         evictionHard: {{memory.available: 1Mi}}\n",
        containerd.cgroup_parent(),
        &all - &last,
    );
    std::fs::write(containerd.directory().join("kubelet.yaml"), configuration).unwrap();

    let mut chance = Chance(0x9e37_79b9_7f4a_7c15);
    let (mut seen, mut owners) = (0, 0);
    let (mut all, mut before) = (Pods::default(), BTreeMap::new());
    let mut victim = start(&containerd).await;
    let namespace = json!({"metadata": {"name": "test"}});
    victim.api.create(NAMESPACES, "", &namespace).await.unwrap();
    for kill in 1..=kills {
        let pods = chance.below(LONGEST_LIFE);
        churn(&victim.api, &mut chance, &mut all, pods).await;
        if kill % SETTLED == 0 {
            // A fast machine would kill the node before any pod has exclusive CPUs.
            own(&victim.api, &runtime, &containerd, &mut all).await;
        }
        victim.kill();
        let running = running(&runtime).await;
        check(&running, &ledger(&containerd), kill);
        check_lives(&runtime, &before, &running, &all.kept, kill).await;
        seen += running.len();
        owners += running.values().filter(|container| container.exclusive).count();
        before = running;
        victim = start(&containerd).await;
        let pods = victim.api.list_values(PODS, &Scope::default()).await.unwrap();
        let is_there =
            |name: &&String| pods.iter().any(|pod| pod["metadata"]["name"] == name.as_str());
        let lost: Vec<&String> = all.kept.iter().filter(|name| !is_there(name)).collect();
        assert!(lost.is_empty(), "after kill {kill}: lost {lost:?}");
        if kill % SETTLED == 0 {
            settled(&victim.api, &containerd).await;
        }
    }

    println!(
        "{kills} kills, {} pods; running containers looked at: {seen}, exclusive: {owners}",
        all.made
    );
    assert!(seen > owners && owners > 0, "there was nothing to look at");

    // Remaining pods run or were rejected, and everything is removed when they are deleted.
    until_or("what is wanted runs", async || {
        let pods = victim.api.list_values(PODS, &Scope::default()).await.unwrap();
        let waits = |pod: &&Value| {
            phase(pod) == "Pending" || !pod["metadata"]["deletionTimestamp"].is_null()
        };
        pods.iter().find(waits).map_or(Ok(()), |pod| Err(format!("{pod:#}")))
    })
    .await;
    check(&running(&runtime).await, &ledger(&containerd), kills);
    for pod in victim.api.list_values(PODS, &Scope::default()).await.unwrap() {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let _ = victim.api.delete(PODS, "test", name, &DeleteOptions::default()).await;
    }
    until_or("all pods are gone", async || {
        let left = victim.api.list_values(PODS, &Scope::default()).await.unwrap();
        let running = running(&runtime).await;
        let is_gone = left.is_empty() && running.is_empty();
        if is_gone { Ok(()) } else { Err(format!("{left:#?}\n{running:?}")) }
    })
    .await;
    settled(&victim.api, &containerd).await;
    victim.kill();
}
