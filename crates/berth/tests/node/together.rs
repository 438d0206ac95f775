//! Pods that start at the same time: while a pinned container runs, no process of another container
//! may use its CPUs. Read from `/proc`.
//!
//! `BERTH_ROUNDS` sets the number of rounds; the test suite runs only a few.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use cri::v1;
use placement::CpuSet;

use crate::placement::{below, cpus_in, cpusets, exclusive, machine, one_exclusive_cpu};
use crate::support::{Berth, SLEEP, phase, pod, until};

/// The number of rounds without `BERTH_ROUNDS`.
const ROUNDS: usize = 10;

/// The pinned pod is created when the runtime receives this call for the shared one. During
/// `StartContainer` a runtime may store an update without applying it, so that step occurs most
/// often.
const STEPS: [&str; 5] =
    ["StartContainer", "CreateContainer", "StartContainer", "RunPodSandbox", "StartContainer"];

/// A process that may use CPUs of a pinned container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Overlap {
    /// The cgroup's last name, which is the id of a container or a sandbox.
    id: String,
    cpus: String,
}

/// The observations of another process while pods start.
#[derive(Debug, Default)]
struct Observation {
    stop: AtomicBool,
    /// Number of times the pinned container had a process.
    looks: AtomicUsize,
    overlaps: Mutex<BTreeSet<Overlap>>,
}

fn processes(directory: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Returns the CPUs of a process, or `None` if it has ended.
fn allowed(pid: u32) -> Option<CpuSet> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    CpuSet::parse(list.trim()).ok()
}

impl Observation {
    /// Watches all cgroups below `parent` until it is stopped.
    fn watch(&self, parent: &Path, own: &CpuSet) {
        while !self.stop.load(Ordering::Relaxed) {
            let all = below(parent);
            let is_owner = |cgroup: &&PathBuf| cpus_in(cgroup).as_ref() == Some(own);
            let owners: Vec<&PathBuf> = all.iter().filter(is_owner).collect();
            if owners.iter().all(|cgroup| processes(cgroup).is_empty()) {
                continue;
            }
            self.looks.fetch_add(1, Ordering::Relaxed);
            for directory in all.iter().filter(|cgroup| !owners.contains(cgroup)) {
                for cpus in processes(directory).into_iter().filter_map(allowed) {
                    if !cpus.is_disjoint(own) {
                        let id = directory.file_name().unwrap().to_string_lossy().into_owned();
                        let overlap = Overlap { id, cpus: cpus.to_string() };
                        self.overlaps.lock().unwrap().insert(overlap);
                    }
                }
            }
        }
    }
}

/// Returns the ids of all containers; sandboxes are not among them.
async fn containers(berth: &Berth) -> BTreeSet<String> {
    let listed = berth.agent.runtime.cri.call(v1::ListContainersRequest::default()).await.unwrap();
    listed.containers.into_iter().map(|container| container.id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_shared_pod_avoids_pinned_cpus() {
    let rounds = std::env::var("BERTH_ROUNDS").ok().and_then(|text| text.parse().ok());
    let (_, own, others) = machine();
    let (mut berth, passage) = Berth::behind(|_| Ok(()), one_exclusive_cpu).await;
    let parent = cpusets().join(berth.containerd.cgroup_parent().trim_start_matches('/'));
    let mut overlaps: Vec<(usize, Overlap)> = Vec::new();
    for round in 0..rounds.unwrap_or(ROUNDS) {
        let (shared, pinned) = (format!("shared-{round}"), format!("own-{round}"));
        let observation = Arc::new(Observation::default());
        let watcher = {
            let (parent, own, observation) =
                (parent.clone(), own.clone(), Arc::clone(&observation));
            std::thread::spawn(move || observation.watch(&parent, &own))
        };
        let step = STEPS[round % STEPS.len()];
        let before = passage.since(0).len();
        berth.create(pod(&shared, SLEEP)).await;
        until(step, async || {
            passage.since(before).iter().any(|passed| passed.method == step).then_some(())
        })
        .await;
        berth.create(exclusive(&pinned)).await;
        for name in [&pinned, &shared] {
            berth.until(name, |pod| phase(pod) == "Running").await;
        }
        until("a look at the pinned container", async || {
            (observation.looks.load(Ordering::Relaxed) > 0).then_some(())
        })
        .await;
        observation.stop.store(true, Ordering::Relaxed);
        watcher.join().unwrap();
        let containers = containers(&berth).await;
        let found = observation.overlaps.lock().unwrap().clone();
        let found = found.into_iter().filter(|overlap| containers.contains(&overlap.id));
        overlaps.extend(found.map(|overlap| (round, overlap)));
        assert_eq!(berth.agent.state.ledger().shared(), others);
        for name in [&pinned, &shared] {
            berth.delete(name).await;
            berth.gone(name).await;
        }
    }
    assert_eq!(overlaps, [], "a container could run on CPU {own} of a pinned one");
    berth.end().await;
}
