//! Compares and repairs every tracked container: [`CpusetReconciler`].
//!
//! While one container is compared, no other task moves containers. The allocation is read after the
//! container was seen running, because a container gets its cpuset before it starts. So a change that the
//! agent itself is making is never taken for a difference.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cri::v1;
use host::cgroups::{CgroupError, Cgroups, EffectiveLimits};
use placement::CpuSet;
use placement::demand::{ContainerName, PodUid};
use placement::restore::CpusInUse;
use serde::Deserialize;
use tracing::{info, warn};

use super::contention::{self, Contender};
use super::{Finding, ReconcileHistory, findings, reported_findings};
use crate::cpusets::tracker::TrackedContainer;
use crate::node_state::NodeState;
use crate::observability::events::AgentEvent;
use crate::observability::metrics::AgentMetrics;
use crate::observability::recorder::Recorder;
use crate::publications::Publications;
use crate::runtime::Runtime;
use crate::runtime::lower::ContainerAffinity;
use lifecycle::observed::RuntimeId;

/// The shortest period, whatever is configured.
const LEAST_PERIOD: Duration = Duration::from_millis(100);

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PassSummary {
    /// Number of checked containers.
    pub checked: usize,
    pub repaired: usize,
    /// Containers that had not followed the shared pool yet.
    pub moved: usize,
    /// Containers that the runtime no longer has.
    pub gone: usize,
    /// Containers outside their allocation that could not be repaired.
    pub wrong: usize,
    /// Containers that could not be read.
    pub blind: usize,
}

/// Compares the cpusets of containers with the ledger and repairs them.
#[derive(Debug)]
pub struct CpusetReconciler {
    pub(super) runtime: Arc<Runtime>,
    pub(super) state: Arc<NodeState>,
    publications: Arc<Publications>,
    recorder: Recorder,
    metrics: Arc<AgentMetrics>,
    /// Results of earlier checks.
    history: tokio::sync::Mutex<ReconcileHistory>,
}

impl CpusetReconciler {
    #[must_use]
    pub fn new(
        runtime: Arc<Runtime>,
        state: Arc<NodeState>,
        publications: Arc<Publications>,
        recorder: Recorder,
        metrics: Arc<AgentMetrics>,
    ) -> CpusetReconciler {
        let history = tokio::sync::Mutex::default();
        CpusetReconciler { runtime, state, publications, recorder, metrics, history }
    }

    /// Checks every period as long as it is polled. The first check is after one period.
    pub async fn run(&self, period: Duration) {
        let period = period.max(LEAST_PERIOD);
        let mut timer = tokio::time::interval_at(tokio::time::Instant::now() + period, period);
        timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            timer.tick().await;
            self.reconcile_all().await;
        }
    }

    /// Checks all containers now.
    pub async fn reconcile_all(&self) -> PassSummary {
        let mut history = self.history.lock().await;
        let entries = self.state.cpuset_tracker.all();
        history.begin(entries.keys());
        let root = self.runtime.volumes.root().to_owned();
        let (online, stamps) = blocking(move || (contention::online(), contention::stamps(&root)))
            .await
            .unwrap_or_default();
        let before = history.files.get_or_insert_with(|| stamps.clone());
        let mut files: Vec<PathBuf> =
            stamps.iter().filter(|(path, at)| before.get(*path) != Some(*at)).map(first).collect();
        files.extend(self.restore_files());
        let mut pass = self.pass(&mut history, online, files);
        for id in entries.keys() {
            pass.look_at(id).await;
        }
        let ReconcilePass { checked, .. } = pass;
        if checked.blind > 0 && !history.reported_blind {
            history.reported_blind = true;
            let containers = checked.blind;
            warn!(containers, "cannot read effective cpusets from the kernel or the runtime");
        }
        checked
    }

    fn pass<'a>(
        &'a self,
        history: &'a mut ReconcileHistory,
        online: Option<CpuSet>,
        files: Vec<PathBuf>,
    ) -> ReconcilePass<'a> {
        ReconcilePass { reconciler: self, history, online, files, checked: PassSummary::default() }
    }

    /// Returns all running containers with their differences. Changes nothing.
    pub(super) async fn survey(&self) -> Vec<(TrackedContainer, Vec<Finding>)> {
        let mut history = self.history.lock().await;
        let online = blocking(contention::online).await.flatten();
        let mut pass = self.pass(&mut history, online, Vec::new());
        let mut found = Vec::new();
        for id in self.state.cpuset_tracker.all().keys() {
            let _still = self.state.cpuset_tracker.lock().await;
            let view = pass.view(id).await;
            let Some(entry) = self.state.cpuset_tracker.entry(id) else { continue };
            if !matches!(view, View::Gone | View::Still) {
                let findings = pass.findings(&self.state.affinity(&entry), &view);
                found.push((entry, findings));
            }
        }
        found
    }

    /// Returns the CPUs that the tracked containers may use, where they can be read. Containers that may use
    /// any CPU are left out.
    pub async fn cpus_in_use(&self) -> CpusInUse {
        let mut history = self.history.lock().await;
        let mut pass = self.pass(&mut history, None, Vec::new());
        let mut in_use = CpusInUse::new();
        for (id, entry) in self.state.cpuset_tracker.all() {
            let cpus = match pass.view(&id).await {
                View::EffectiveLimits(found) => found.cpus,
                View::Reported(resources) => {
                    let linux = resources.linux.unwrap_or_default();
                    CpuSet::parse(&linux.cpuset_cpus).unwrap_or_default()
                }
                View::Gone | View::Still | View::Blind => continue,
            };
            if !cpus.is_empty() {
                let of_pod = in_use.entry(PodUid::new(&entry.pod_uid)).or_default();
                of_pod.insert(ContainerName::new(&entry.container), cpus);
            }
        }
        in_use
    }

    /// Rewrites state files that another program changed. Returns their paths.
    fn restore_files(&self) -> Vec<PathBuf> {
        let mut ledger = self.state.ledger();
        let altered = ledger.altered();
        for path in &altered {
            warn!(path = %path.display(), "another program wrote the state file; rewriting it");
            self.metrics.repaired.increment(&["state"]);
        }
        if !altered.is_empty()
            && let Err(error) = ledger.rewrite()
        {
            warn!(%error, "failed to rewrite the state file");
        }
        altered
    }
}

fn first<T: Clone, U>((one, _): (&T, U)) -> T {
    one.clone()
}

/// The observable state of a container.
enum View {
    /// The runtime no longer knows it.
    Gone,
    /// It does not run.
    Still,
    Blind,
    Reported(Box<v1::ContainerResources>),
    EffectiveLimits(Box<EffectiveLimits>),
}

/// One check of all containers.
struct ReconcilePass<'a> {
    reconciler: &'a CpusetReconciler,
    history: &'a mut ReconcileHistory,
    online: Option<CpuSet>,
    /// State files that another program writes.
    files: Vec<PathBuf>,
    checked: PassSummary,
}

impl ReconcilePass<'_> {
    async fn look_at(&mut self, id: &RuntimeId) {
        let reconciler = self.reconciler;
        let _still = reconciler.state.cpuset_tracker.lock().await;
        let Some(entry) = reconciler.state.cpuset_tracker.entry(id) else { return };
        if is_anywhere(&reconciler.state.affinity(&entry)) && is_anywhere(&entry.affinity) {
            return;
        }
        let view = self.view(id).await;
        // Read the allocation only now: it may have changed before the container started.
        let Some(entry) = reconciler.state.cpuset_tracker.entry(id) else { return };
        let want = reconciler.state.affinity(&entry);
        match &view {
            View::Still => return,
            View::Blind => {
                self.checked.blind += 1;
                if entry.affinity != want {
                    self.follow(id, want).await;
                }
                return;
            }
            View::Gone => {
                reconciler.state.cpuset_tracker.unregister(id);
                reconciler.metrics.repaired.increment(&["gone"]);
                self.checked.gone += 1;
                info!(id, container = entry.container, "another program removed a container");
                return;
            }
            View::Reported(_) | View::EffectiveLimits(_) => {}
        }
        self.checked.checked += 1;
        let wrong = self.findings(&want, &view);
        if wrong.is_empty() {
            self.history.right(id);
            reconciler.state.cpuset_tracker.note_cpuset(id, want);
            return;
        }
        if entry.affinity != want && self.findings(&entry.affinity, &view).is_empty() {
            self.follow(id, want).await;
            return;
        }
        self.repair(id, &entry, want, &wrong, &view).await;
    }

    fn findings(&self, allocated: &ContainerAffinity, view: &View) -> Vec<Finding> {
        match view {
            View::EffectiveLimits(found) => findings(allocated, found, self.online.as_ref()),
            View::Reported(resources) => {
                reported_findings(self.reconciler.state.node_env().os, allocated, resources)
            }
            View::Gone | View::Still | View::Blind => Vec::new(),
        }
    }

    /// Moves a container that is not where it should be although nothing interfered: the shared pool
    /// changed, or the agent was not running.
    async fn follow(&mut self, id: &RuntimeId, want: ContainerAffinity) {
        let (cpuset_tracker, os) =
            (&self.reconciler.state.cpuset_tracker, self.reconciler.state.node_env().os);
        match cpuset_tracker.set_cpuset(&self.reconciler.runtime.cri, os, id.clone(), want).await {
            Ok(()) => {
                self.checked.moved += 1;
                self.reconciler.metrics.moved.increment(&[]);
            }
            Err(error) => {
                self.checked.wrong += 1;
                warn!(%error, "failed to move a container to the shared pool");
            }
        }
    }

    async fn repair(
        &mut self,
        id: &RuntimeId,
        entry: &TrackedContainer,
        want: ContainerAffinity,
        wrong: &[Finding],
        view: &View,
    ) {
        let reconciler = self.reconciler;
        let suspects = self.suspects(&want, view).await;
        let found = describe(wrong);
        let container = entry.container.clone();
        let os = reconciler.state.node_env().os;
        let put = reconciler
            .state
            .cpuset_tracker
            .set_cpuset(&reconciler.runtime.cri, os, id.clone(), want.clone())
            .await;
        if reconciler.state.cpuset_tracker.entry(id).is_none() {
            // It has exited.
            return;
        }
        let why = match put {
            Err(error) => Some(error.cause.rpc_text()),
            Ok(()) => {
                let after = self.view(id).await;
                (!self.findings(&want, &after).is_empty()).then(String::new)
            }
        };
        let Some(why) = why else {
            for finding in wrong {
                reconciler.metrics.repaired.increment(&[finding.label()]);
            }
            self.checked.repaired += 1;
            let fight = self.history.repaired(id);
            info!(id, container, found, ?fight, "moved a container back to its CPUs");
            self.record(entry, AgentEvent::PlacementRepaired { container, found, fight, suspects });
            return;
        };
        self.checked.wrong += 1;
        let ignored = why.is_empty() && !self.history.was_right(id) && suspects.is_empty();
        let event = AgentEvent::PlacementNotInForce { container, found, why, ignored, suspects };
        if self.history.stays(id, &event.to_string()) {
            warn!(id, "{event}");
            self.record(entry, event);
        }
    }

    fn record(&self, entry: &TrackedContainer, event: AgentEvent) {
        let active = self.reconciler.publications.active();
        let pod = active.iter().find(|pod| pod.metadata.uid == entry.pod_uid);
        if let Some(pod) = pod
            && let Some((role, container)) = pod.container(&entry.container)
        {
            self.reconciler.recorder.container(pod, role, &container.name, event);
        }
    }

    /// Returns the possible causes.
    async fn suspects(&self, allocated: &ContainerAffinity, view: &View) -> Vec<String> {
        let above = match (view, &self.reconciler.runtime.cgroups) {
            (View::EffectiveLimits(found), Some(cgroups)) => cgroups.host().cpus_above(found),
            _ => Vec::new(),
        };
        let files = self.files.clone();
        let host = blocking(move || contention::observe(above, files)).await;
        let found =
            host.map(|host| contention::contenders(&allocated.cpus, &host)).unwrap_or_default();
        found.iter().map(Contender::to_string).collect()
    }

    async fn view(&mut self, id: &RuntimeId) -> View {
        let Some(cgroups) = self.reconciler.runtime.cgroups.as_ref().map(|of| of.host().clone())
        else {
            return match self.query_runtime(id, false).await {
                RuntimeAnswer::Running { resources: Some(resources), .. } => {
                    View::Reported(Box::new(resources))
                }
                RuntimeAnswer::Running { .. } => View::Blind,
                RuntimeAnswer::Other(view) => view,
            };
        };
        if let Some(pid) = self.history.pid(id)
            && let Ok(found) = in_force(&cgroups, pid).await
            // The PID may have been reused.
            && found.cgroups.values().any(|path| path.contains(id.as_str()))
        {
            return View::EffectiveLimits(Box::new(found));
        }
        let (pid, resources) = match self.query_runtime(id, true).await {
            RuntimeAnswer::Running { pid, resources } => (pid, resources),
            RuntimeAnswer::Other(view) => return view,
        };
        self.history.set_pid(id, pid);
        if let Some(pid) = pid {
            match in_force(&cgroups, pid).await {
                Ok(found) => return View::EffectiveLimits(Box::new(found)),
                // It has just exited.
                Err(CgroupError::NoProcess(_)) => return View::Still,
                Err(error) => {
                    warn!(%error, id, "failed to read the effective cpuset of a container")
                }
            }
        }
        resources.map_or(View::Blind, |resources| View::Reported(Box::new(resources)))
    }

    async fn query_runtime(&self, id: &RuntimeId, verbose: bool) -> RuntimeAnswer {
        let request = v1::ContainerStatusRequest { container_id: id.clone(), verbose };
        let answer = match self.reconciler.runtime.cri.call(request).await {
            Ok(answer) => answer,
            Err(error) if error.is_not_found() => return RuntimeAnswer::Other(View::Gone),
            // The node's conditions report that the runtime is unavailable.
            Err(_) => return RuntimeAnswer::Other(View::Still),
        };
        let Some(status) = answer.status else { return RuntimeAnswer::Other(View::Gone) };
        if status.state() != v1::ContainerState::ContainerRunning {
            return RuntimeAnswer::Other(View::Still);
        }
        RuntimeAnswer::Running { pid: pid(&answer.info), resources: status.resources }
    }
}

/// The answer of the runtime about a container.
enum RuntimeAnswer {
    Running { pid: Option<u32>, resources: Option<v1::ContainerResources> },
    Other(View),
}

fn is_anywhere(affinity: &ContainerAffinity) -> bool {
    affinity.cpus.is_empty() && affinity.mems.is_empty() && affinity.groups.is_empty()
}

pub(super) fn describe(findings: &[Finding]) -> String {
    findings.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}

/// Returns the PID of a container's first process from the verbose status of containerd or CRI-O.
pub(super) fn pid(info: &BTreeMap<String, String>) -> Option<u32> {
    #[derive(Deserialize)]
    struct VerboseInfo {
        pid: u32,
    }
    let text = info.get("info")?;
    serde_json::from_str::<VerboseInfo>(text).ok().map(|info| info.pid).filter(|pid| *pid != 0)
}

pub(super) async fn in_force(cgroups: &Cgroups, pid: u32) -> Result<EffectiveLimits, CgroupError> {
    let cgroups = cgroups.clone();
    // A task that cannot be joined was cancelled with the agent.
    blocking(move || cgroups.effective_limits(pid))
        .await
        .unwrap_or(Err(CgroupError::NoProcess(pid)))
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}
