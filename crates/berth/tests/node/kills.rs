//! A node that is killed again and again while pods come and go. Every process, cgroup and file is looked at
//! after each kill, by somebody who is not killed.
//!
//! `BERTH_KILLS` says how often; the test suite has no time for more than a few.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use client::kind::{NAMESPACES, PODS};
use client::{Client, DeleteOptions, Kubeconfig, Patience, Remote, Scope};
use cri::v1;
use host::cgroups::Cgroups;
use placement::CpuSet;
use rig::Containerd;
use serde_json::{Value, json};

use crate::support::{SLEEP, phase, pod, until, until_or};

/// How often, if nobody says otherwise.
const KILLS: usize = 12;
/// How many pods are made at most before a node is killed.
const LONGEST_LIFE: u64 = 7;
/// How many lists of pods are asked for at most after the last of them: of a few milliseconds each.
const MOST_ANSWERS: u64 = 40;

struct Victim {
    process: Child,
    api: Client,
}

impl Victim {
    /// Ends it in the middle of whatever it does.
    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // One that was killed already cannot be killed again.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts a node as a user would, and waits until its API answers.
async fn start(containerd: &Containerd) -> Victim {
    let here = containerd.directory();
    let data = here.join("data");
    #[allow(clippy::zombie_processes, reason = "whoever gives up here fails the test")]
    let process = Command::new(env!("CARGO_BIN_EXE_berth"))
        .args(["up", "--https-listen-port", "0", "--agent-port", "0"])
        .args(["--hostname-override", "node-1"])
        .arg("--data-dir")
        .arg(&data)
        .arg("--config")
        .arg(here.join("kubelet.yaml"))
        .args(["--container-runtime-endpoint", &containerd.endpoint()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
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
    let remote = Remote::new(config, "test", Patience::default()).ok()?;
    Some(Client::new(Arc::new(remote), "test"))
}

/// A small generator of chances that gives the same every time.
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

/// Makes so many pods and deletes older ones, as fast as the machine is: a pod that is deleted has been
/// decided about.
async fn churn(api: &Client, chance: &mut Chance, made: &mut u64, pods: u64) {
    for _ in 0..pods {
        let exclusive = chance.below(2) == 0;
        api.create(PODS, "test", &wanted(&format!("p{made}"), exclusive)).await.unwrap();
        *made += 1;
        if let Some(old) = made.checked_sub(3 + chance.below(3)) {
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
            // It may be gone already.
            let _ = api.delete(PODS, "test", &name, &DeleteOptions::default()).await;
        }
    }
    // In the middle of whatever comes next: so many answers later.
    for _ in 0..chance.below(MOST_ANSWERS) {
        api.list_values(PODS, &Scope::default()).await.unwrap();
    }
}

/// What every running container may run on, by its id; those with CPUs of their own apart.
async fn running(runtime: &cri::Client) -> BTreeMap<String, (bool, CpuSet)> {
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
        // It may be ending while it is looked at, and then runs nowhere.
        let Ok(force) = cgroups.in_force(pid) else { continue };
        // Only those have a limit here.
        let limit = &info["config"]["linux"]["resources"]["memory_limit_in_bytes"];
        found.insert(id, (limit.as_i64().is_some_and(|bytes| bytes > 0), force.cpus));
    }
    found
}

/// No CPU that is somebody's own is anybody else's.
fn check(running: &BTreeMap<String, (bool, CpuSet)>, after: usize) {
    for (id, (exclusive, cpus)) in running {
        for (other, (_, theirs)) in running.iter().filter(|(other, _)| *other != id) {
            assert!(
                !exclusive || cpus.is_disjoint(theirs),
                "after kill {after}: {id} has {cpus} to itself, and {other} runs on {theirs}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_killed_at_any_instant_gives_no_cpu_twice_and_loses_nothing() {
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
    let (mut made, mut seen, mut owners) = (0, 0, 0);
    let mut victim = start(&containerd).await;
    let namespace = json!({"metadata": {"name": "test"}});
    victim.api.create(NAMESPACES, "", &namespace).await.unwrap();
    for kill in 1..=kills {
        let pods = chance.below(LONGEST_LIFE);
        churn(&victim.api, &mut chance, &mut made, pods).await;
        victim.kill();
        let running = running(&runtime).await;
        check(&running, kill);
        seen += running.len();
        owners += running.values().filter(|(exclusive, _)| *exclusive).count();
        victim = start(&containerd).await;
    }

    println!(
        "{kills} kills, {made} pods; running containers looked at: {seen}, exclusive: {owners}"
    );
    assert!(seen > owners && owners > 0, "there was nothing to look at");

    // What is wanted runs or was refused, and everything goes when it is deleted.
    until_or("what is wanted runs", async || {
        let pods = victim.api.list_values(PODS, &Scope::default()).await.unwrap();
        let waits = |pod: &&Value| {
            phase(pod) == "Pending" || !pod["metadata"]["deletionTimestamp"].is_null()
        };
        pods.iter().find(waits).map_or(Ok(()), |pod| Err(format!("{pod:#}")))
    })
    .await;
    check(&running(&runtime).await, kills);
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
    let data = containerd.directory().join("data/agent");
    let state = std::fs::read_to_string(data.join("cpu_manager_state")).unwrap();
    let left = std::fs::read_dir(data.join("pods")).unwrap().count();
    assert!(!state.contains("entries"), "{state}");
    assert_eq!(left, 0, "directories of pods are left");
    victim.kill();
}
