//! The effective CPUs of containers, read from `/proc` and cgroup files: exclusive CPUs, the shared
//! pool, and interference by agent, runtime or other processes.
//!
//! All CPUs of the machine but the last are reserved, so that exactly one can be allocated on any
//! machine.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use agent::agent::AgentParts;
use berth::machine_source::load_machine;
use client::Scope;
use client::kind::EVENTS;
use lifecycle::placement_demand;
use objects::KubeletConfig;
use objects::kubelet_config::CpuManagerPolicy;
use placement::CpuSet;
use serde_json::{Value, json};

use crate::support::{Berth, SLEEP, phase, pod, until};

/// The periodic audit does not run in a test that does not wait for it.
const NEVER: Duration = Duration::from_secs(3600);

/// Returns the CPUs of this machine: all, the allocatable one, and the others.
pub(crate) fn machine() -> (CpuSet, CpuSet, CpuSet) {
    let all = load_machine(None).unwrap().topology.all_cpus().clone();
    let last: CpuSet = all.last().into_iter().collect();
    let others = &all - &last;
    (all, last, others)
}

pub(crate) fn one_exclusive_cpu(config: &mut KubeletConfig) {
    let (_, _, reserved) = machine();
    config.cpu_manager_policy = CpuManagerPolicy::Static;
    config.reserved_system_cpus = Some(reserved.to_string());
    config.cpu_manager_reconcile_period = NEVER;
}

/// Returns a pod with an exclusive CPU.
pub(crate) fn exclusive(name: &str) -> Value {
    let mut pod = pod(name, SLEEP);
    let amounts = json!({"cpu": "1", "memory": "32Mi"});
    pod["spec"]["containers"][0]["resources"] = json!({"requests": amounts, "limits": amounts});
    pod
}

pub(crate) fn container_id(pod: &Value) -> String {
    let id = pod["status"]["containerStatuses"][0]["containerID"].as_str().unwrap();
    id.strip_prefix("containerd://").unwrap().to_owned()
}

/// Returns the first process of a pod's container.
pub(crate) async fn process(agent: &AgentParts, pod: &Value) -> u32 {
    let request =
        cri::v1::ContainerStatusRequest { container_id: container_id(pod), verbose: true };
    let answer = agent.runtime.cri.call(request).await.unwrap();
    let info: Value = serde_json::from_str(&answer.info["info"]).unwrap();
    u32::try_from(info["pid"].as_u64().unwrap()).unwrap()
}

/// Returns the CPUs of a process.
pub(crate) fn allowed(pid: u32) -> CpuSet {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    CpuSet::parse(list.trim()).unwrap()
}

/// Returns the mount point of the cpuset hierarchy.
pub(crate) fn cpusets() -> PathBuf {
    let first = Path::new("/sys/fs/cgroup/cpuset");
    if first.exists() { first.to_owned() } else { PathBuf::from("/sys/fs/cgroup") }
}

/// Returns the cpuset directory of a process.
fn cpuset_of(pid: u32) -> PathBuf {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let line_after = |start: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(':')).map(|(_, of)| of);
        lines.find_map(|line| line.strip_prefix(start)).map(str::to_owned)
    };
    let path = line_after("cpuset:").or_else(|| line_after(":")).unwrap();
    cpusets().join(path.trim_start_matches('/'))
}

pub(crate) fn cpus_in(directory: &Path) -> Option<CpuSet> {
    let text = std::fs::read_to_string(directory.join("cpuset.cpus")).ok()?;
    CpuSet::parse(text.trim()).ok()
}

/// Returns every directory below one.
pub(crate) fn below(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let directories = entries.map(|entry| entry.path()).filter(|path| path.is_dir());
    directories.flat_map(|path| [vec![path.clone()], below(&path)].concat()).collect()
}

pub(crate) async fn running(berth: &Berth, name: &str) -> (Value, u32) {
    let pod = berth.until(name, |pod| phase(pod) == "Running").await;
    let pid = process(&berth.agent, &pod).await;
    (pod, pid)
}

pub(crate) async fn clean(berth: &Berth) {
    until("a clean audit", async || {
        let report = berth.agent.reconciler.audit(&berth.agent.housekeeping).await;
        report.is_clean().then_some(())
    })
    .await;
}

/// Observations of a concurrent watcher.
#[derive(Debug, Default)]
struct Watched {
    stop: AtomicBool,
    /// Number of times a container with the exclusive CPU had a process.
    seen: AtomicUsize,
    /// Number of times another container could use that CPU.
    both: AtomicUsize,
}

impl Watched {
    /// Watches the containers below `parent`, and `shared`, until it is stopped.
    fn watch(&self, parent: &Path, own: &CpuSet, shared: u32) {
        let has_process = |directory: &PathBuf| {
            let processes = std::fs::read_to_string(directory.join("cgroup.procs"));
            processes.is_ok_and(|text| !text.trim().is_empty())
        };
        while !self.stop.load(Ordering::Relaxed) {
            let mut owners =
                below(parent).into_iter().filter(|cgroup| cpus_in(cgroup).as_ref() == Some(own));
            if owners.any(|cgroup| has_process(&cgroup)) {
                let both = usize::from(!allowed(shared).is_disjoint(own));
                self.both.fetch_add(both, Ordering::Relaxed);
                self.seen.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_containers_leave_an_exclusive_cpu_before_its_owner_starts() {
    let (all, own, others) = machine();
    let mut berth = Berth::start(one_exclusive_cpu).await;
    berth.create(pod("shared", SLEEP)).await;
    let (_, shared) = running(&berth, "shared").await;
    assert_eq!(allowed(shared), all);

    let watched = Arc::new(Watched::default());
    let parent = cpusets().join(berth.containerd.cgroup_parent().trim_start_matches('/'));
    let watcher = {
        let (own, watched) = (own.clone(), Arc::clone(&watched));
        std::thread::spawn(move || watched.watch(&parent, &own, shared))
    };
    berth.create(exclusive("own")).await;
    let (pod_with_own, owner) = running(&berth, "own").await;
    until("a look at the owner", async || (watched.seen.load(Ordering::Relaxed) > 0).then_some(()))
        .await;
    watched.stop.store(true, Ordering::Relaxed);
    watcher.join().unwrap();
    assert_eq!(watched.both.load(Ordering::Relaxed), 0, "{watched:?}");
    assert_eq!(allowed(owner), own);
    assert_eq!(cpus_in(&cpuset_of(owner)), Some(own.clone()));
    assert_eq!(
        (allowed(shared), cpus_in(&cpuset_of(shared))),
        (others.clone(), Some(others.clone()))
    );

    berth.create(exclusive("second")).await;
    let refused = berth.until("second", |pod| phase(pod) == "Failed").await;
    assert_eq!(refused["status"]["reason"], "UnexpectedAdmissionError", "{refused:#}");
    assert_eq!((allowed(owner), allowed(shared)), (own.clone(), others.clone()));
    berth.delete("second").await;
    berth.gone("second").await;
    clean(&berth).await;

    // A restarted agent finds everything unchanged, also with a restarted runtime.
    berth.restart().await;
    let (again, pid) = running(&berth, "own").await;
    assert_eq!((container_id(&again), pid), (container_id(&pod_with_own), owner));
    clean(&berth).await;
    berth.containerd.restart().unwrap();
    clean(&berth).await;
    assert_eq!((allowed(owner), allowed(shared)), (own.clone(), others.clone()));
    berth.create(pod("late", SLEEP)).await;
    let (_, late) = running(&berth, "late").await;
    assert_eq!(allowed(late), others);

    berth.delete("own").await;
    berth.gone("own").await;
    for pid in [shared, late] {
        until("the larger pool", async || (allowed(pid) == all).then_some(())).await;
    }
    for name in ["shared", "late"] {
        berth.delete(name).await;
        berth.gone(name).await;
    }
    clean(&berth).await;
    assert_eq!(berth.agent.runtime.cgroups.as_ref().unwrap().pods().unwrap().len(), 0);
    berth.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_pool_is_reconciled_when_the_agent_returns() {
    let (all, own, others) = machine();
    let mut berth = Berth::start(one_exclusive_cpu).await;
    berth.create(pod("shared", SLEEP)).await;
    let (_, shared) = running(&berth, "shared").await;
    berth.create(exclusive("own")).await;
    let (_, owner) = running(&berth, "own").await;
    berth.end().await;
    // As if the agent had been killed between writing the ledger and moving other containers.
    std::fs::write(cpuset_of(shared).join("cpuset.cpus"), all.to_string()).unwrap();
    assert_eq!(allowed(shared), all);
    berth.restart().await;
    until("the pool", async || (allowed(shared) == others).then_some(())).await;
    assert_eq!(allowed(owner), own);
    clean(&berth).await;
    for name in ["shared", "own"] {
        berth.delete(name).await;
        berth.gone(name).await;
    }
    berth.end().await;
}

/// Returns the messages of a pod's events with this reason.
pub(crate) async fn event_messages(berth: &Berth, name: &str, reason: &str) -> Vec<String> {
    let scope = Scope { namespace: "test".to_owned(), ..Scope::default() };
    let events = berth.api.list_values(EVENTS, &scope).await.unwrap();
    let about = events
        .iter()
        .filter(|event| event["involvedObject"]["name"] == name && event["reason"] == reason);
    about.map(|event| event["message"].as_str().unwrap_or_default().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn moved_container_is_put_back_and_reported() {
    let (_, own, others) = machine();
    let mut berth = Berth::start(one_exclusive_cpu).await;
    berth.create(exclusive("own")).await;
    let (_, owner) = running(&berth, "own").await;
    assert_eq!(berth.agent.reconciler.reconcile_all().await.repaired, 0);

    let file = cpuset_of(owner).join("cpuset.cpus");
    for time in 1..=3 {
        std::fs::write(&file, others.to_string()).unwrap();
        assert_eq!(allowed(owner), others);
        let outside = berth.agent.reconciler.audit(&berth.agent.housekeeping).await.outside;
        assert_eq!(outside.len(), 1, "{outside:?}");
        let checked = berth.agent.reconciler.reconcile_all().await;
        assert_eq!((checked.repaired, checked.wrong), (1, 0), "{time}: {checked:?}");
        assert_eq!((allowed(owner), cpus_in(&cpuset_of(owner))), (own.clone(), Some(own.clone())));
    }
    let start = format!("Container c had CPUs {others} instead of {own} and was put back");
    until("the event of a fight", async || {
        let messages = event_messages(&berth, "own", "PlacementRepaired").await;
        assert!(messages.iter().all(|message| message.starts_with(&start)), "{messages:?}");
        messages.iter().any(|message| message.contains("3 times within 5 checks")).then_some(())
    })
    .await;
    let counted = berth.agent.metrics.registry.render();
    assert!(counted.contains("berth_repaired_containers_total{what=\"cpus\"} 3\n"), "{counted}");

    // The state files are owned by the agent as well.
    let state = berth.settings.agent.root.join("cpu_manager_state");
    let text = std::fs::read_to_string(&state).unwrap();
    std::fs::write(&state, "{}").unwrap();
    berth.agent.reconciler.reconcile_all().await;
    assert_eq!(std::fs::read_to_string(&state).unwrap(), text);
    clean(&berth).await;
    berth.delete("own").await;
    berth.gone("own").await;
    berth.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn container_may_restrict_its_own_threads() {
    let (all, _, others) = machine();
    let first: CpuSet = others.first().into_iter().collect();
    let command = format!("trap 'exit 0' TERM; taskset -c {first} sleep 600 & wait");
    let mut berth = Berth::start(one_exclusive_cpu).await;
    berth.create(pod("narrow", &["sh", "-c", &command])).await;
    let (_, shell) = running(&berth, "narrow").await;
    let narrowed = until("the narrowed process", async || {
        let children = std::fs::read_to_string(format!("/proc/{shell}/task/{shell}/children"));
        let child = children.ok()?.trim().parse().ok()?;
        (allowed(child) == first).then_some(child)
    })
    .await;
    let checked = berth.agent.reconciler.reconcile_all().await;
    assert_eq!((checked.checked, checked.repaired, checked.wrong), (1, 0, 0));
    assert_eq!((allowed(shell), allowed(narrowed)), (all, first));
    clean(&berth).await;
    berth.delete("narrow").await;
    berth.gone("narrow").await;
    berth.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_runs_periodically() {
    let (_, own, others) = machine();
    let mut berth = Berth::start(|config| {
        one_exclusive_cpu(config);
        config.cpu_manager_reconcile_period = Duration::from_millis(200);
    })
    .await;
    berth.create(exclusive("own")).await;
    let (_, owner) = running(&berth, "own").await;
    std::fs::write(cpuset_of(owner).join("cpuset.cpus"), others.to_string()).unwrap();
    until("the repair", async || (allowed(owner) == own).then_some(())).await;
    until("the event", async || event_messages(&berth, "own", "PlacementRepaired").await.pop())
        .await;
    berth.delete("own").await;
    berth.gone("own").await;
    berth.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_remains_of_deleted_pods_are_removed() {
    let (all, own, _) = machine();
    let mut berth = Berth::start(one_exclusive_cpu).await;
    let agent = berth.agent.clone();
    let uid = berth.create(pod("here", SLEEP)).await;
    let (here, pid) = running(&berth, "here").await;
    let ghost = |uid: &str| -> lifecycle::spec::Pod {
        let mut pod = exclusive("ghost");
        pod["metadata"]["uid"] = uid.into();
        serde_json::from_value(pod).unwrap()
    };
    let gone = ghost("11111111-2222-3333-4444-555555555555");
    {
        let mut book = agent.state.ledger();
        let placement = book.plan(&placement_demand(&gone)).unwrap();
        book.commit(placement).unwrap();
        assert!(!book.shared().contains(own.first().unwrap()));
    }
    let cgroups = agent.runtime.cgroups.clone().unwrap();
    let path = cgroups.path(&gone);
    cgroups.host().ensure(&path, &host::cgroups::Limits::default()).unwrap();
    agent.runtime.volumes.make_pod_directories(&gone.metadata.uid).unwrap();
    let logs = berth.settings.agent.logs.join(format!("test_ghost_{}", gone.metadata.uid));
    std::fs::create_dir_all(&logs).unwrap();
    // A cgroup with an unknown process is not removed.
    let foreign = ghost("99999999-2222-3333-4444-555555555555");
    let theirs = cgroups.path(&foreign);
    cgroups.host().ensure(&theirs, &host::cgroups::Limits::default()).unwrap();
    let mut sleeper = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let procs = cpusets().join(theirs.trim_start_matches('/')).join("cgroup.procs");
    std::fs::write(procs, sleeper.id().to_string()).unwrap();

    let report = agent.reconciler.audit(&agent.housekeeping).await;
    assert_eq!(report.unknown_holders, std::slice::from_ref(&gone.metadata.uid));
    let left: BTreeSet<String> = report.leftover_cgroups.into_iter().collect();
    assert_eq!(left, [path.clone(), theirs.clone()].into());
    assert_eq!(report.leftover_directories.len(), 2, "{:?}", report.leftover_directories);
    agent.housekeeping.sweep().await;
    let report = agent.reconciler.audit(&agent.housekeeping).await;
    assert_eq!(report.leftover_cgroups, std::slice::from_ref(&theirs));
    assert!(report.unknown_holders.is_empty() && report.leftover_directories.is_empty());
    assert!(!logs.exists() && !cgroups.host().exists(&path));
    assert_eq!(agent.state.ledger().shared(), all);
    assert!(sleeper.try_wait().unwrap().is_none(), "a foreign process was killed");

    assert_eq!((process(&agent, &here).await, allowed(pid)), (pid, all));
    assert!(agent.runtime.volumes.pods().unwrap().contains(&uid));
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    agent.housekeeping.sweep().await;
    clean(&berth).await;
    berth.delete("here").await;
    berth.gone("here").await;
    berth.end().await;
}
