//! Compares and repairs every tracked container: [`check`] once, [`keep`] every period.
//!
//! While one container is compared, no other task moves containers. The allocation is read after the
//! container was seen running, because a container gets its cpuset before it starts. So a change that the
//! agent itself is making is never taken for a difference.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cri::v1;
use host::cgroups::{CgroupError, Cgroups, InForce};
use placement::CpuSet;
use placement::demand::{ContainerName, PodUid};
use placement::takeover::CpusInUse;
use serde::Deserialize;
use tracing::{info, warn};

use super::contention::{self, Contender};
use super::{Finding, ReconcileHistory, findings, said};
use crate::context::AgentContext;
use crate::cpusets::tracker::TrackedContainer;
use crate::observability::events::AgentEvent;
use crate::runtime::lower::ContainerAffinity;
use crate::runtime::observed::RuntimeId;

/// The shortest period, whatever is configured.
const LEAST_PERIOD: Duration = Duration::from_millis(100);

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PassSummary {
    /// Number of checked containers.
    pub looked: usize,
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

/// Checks every period as long as it is polled. The first check is after one period.
pub async fn keep(context: Arc<AgentContext>, period: Duration) {
    let period = period.max(LEAST_PERIOD);
    let mut timer = tokio::time::interval_at(tokio::time::Instant::now() + period, period);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        timer.tick().await;
        check(&context).await;
    }
}

/// Checks all containers now.
pub async fn check(context: &AgentContext) -> PassSummary {
    let mut history = context.truth.lock().await;
    let entries = context.pool.all();
    history.begin(entries.keys());
    let root = context.volumes.root().to_owned();
    let (online, stamps) = blocking(move || (contention::online(), contention::stamps(&root)))
        .await
        .unwrap_or_default();
    let before = history.files.get_or_insert_with(|| stamps.clone());
    let mut files: Vec<PathBuf> =
        stamps.iter().filter(|(path, at)| before.get(*path) != Some(*at)).map(first).collect();
    files.extend(restore_files(context));
    let mut round = ReconcilePass {
        context,
        history: &mut history,
        online,
        files,
        checked: PassSummary::default(),
    };
    for id in entries.keys() {
        round.look_at(id).await;
    }
    let ReconcilePass { checked, .. } = round;
    if checked.blind > 0 && !history.said_blind {
        history.said_blind = true;
        let containers = checked.blind;
        warn!(containers, "cannot read effective cpusets from the kernel or the runtime");
    }
    checked
}

/// Returns all running containers with their differences. Changes nothing.
pub(super) async fn survey(context: &AgentContext) -> Vec<(TrackedContainer, Vec<Finding>)> {
    let mut history = context.truth.lock().await;
    let online = blocking(contention::online).await.flatten();
    let checked = PassSummary::default();
    let mut round =
        ReconcilePass { context, history: &mut history, online, files: Vec::new(), checked };
    let mut found = Vec::new();
    for id in context.pool.all().keys() {
        let _still = context.pool.stand_still().await;
        let view = round.view(id).await;
        let Some(entry) = context.pool.entry(id) else { continue };
        if !matches!(view, View::Gone | View::Still) {
            let findings = round.findings(&context.place(&entry), &view);
            found.push((entry, findings));
        }
    }
    found
}

/// Returns the CPUs that the tracked containers may use, where they can be read. Containers that may use
/// any CPU are left out.
pub async fn cpus_in_use(context: &AgentContext) -> CpusInUse {
    let mut history = context.truth.lock().await;
    let checked = PassSummary::default();
    let mut round =
        ReconcilePass { context, history: &mut history, online: None, files: Vec::new(), checked };
    let mut in_use = CpusInUse::new();
    for (id, entry) in context.pool.all() {
        let cpus = match round.view(&id).await {
            View::InForce(found) => found.cpus,
            View::Said(says) => {
                let linux = says.linux.unwrap_or_default();
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

fn first<T: Clone, U>((one, _): (&T, U)) -> T {
    one.clone()
}

/// Rewrites state files that another program changed. Returns their paths.
fn restore_files(context: &AgentContext) -> Vec<PathBuf> {
    let mut book = context.book();
    let altered = book.altered();
    for path in &altered {
        warn!(path = %path.display(), "another program wrote the state file; rewriting it");
        context.metrics.repaired.increment(&["state"]);
    }
    if !altered.is_empty()
        && let Err(error) = book.rewrite()
    {
        warn!(%error, "failed to rewrite the state file");
    }
    altered
}

/// The observable state of a container.
enum View {
    /// The runtime no longer knows it.
    Gone,
    /// It does not run.
    Still,
    Blind,
    Said(Box<v1::ContainerResources>),
    InForce(Box<InForce>),
}

/// One check of all containers.
struct ReconcilePass<'a> {
    context: &'a AgentContext,
    history: &'a mut ReconcileHistory,
    online: Option<CpuSet>,
    /// State files that another program writes.
    files: Vec<PathBuf>,
    checked: PassSummary,
}

impl ReconcilePass<'_> {
    async fn look_at(&mut self, id: &RuntimeId) {
        let context = self.context;
        let _still = context.pool.stand_still().await;
        let Some(entry) = context.pool.entry(id) else { return };
        if is_anywhere(&context.place(&entry)) && is_anywhere(&entry.placed) {
            return;
        }
        let view = self.view(id).await;
        // Read the allocation only now: it may have changed before the container started.
        let Some(entry) = context.pool.entry(id) else { return };
        let want = context.place(&entry);
        match &view {
            View::Still => return,
            View::Blind => {
                self.checked.blind += 1;
                if entry.placed != want {
                    self.follow(id, want).await;
                }
                return;
            }
            View::Gone => {
                context.pool.leave(id);
                context.metrics.repaired.increment(&["gone"]);
                self.checked.gone += 1;
                info!(id, container = entry.container, "another program removed a container");
                return;
            }
            View::Said(_) | View::InForce(_) => {}
        }
        self.checked.looked += 1;
        let wrong = self.findings(&want, &view);
        if wrong.is_empty() {
            self.history.right(id);
            context.pool.found(id, want);
            return;
        }
        if entry.placed != want && self.findings(&entry.placed, &view).is_empty() {
            self.follow(id, want).await;
            return;
        }
        self.repair(id, &entry, want, &wrong, &view).await;
    }

    fn findings(&self, told: &ContainerAffinity, view: &View) -> Vec<Finding> {
        match view {
            View::InForce(found) => findings(told, found, self.online.as_ref()),
            View::Said(says) => said(self.context.facts().os, told, says),
            View::Gone | View::Still | View::Blind => Vec::new(),
        }
    }

    /// Moves a container that is not where it should be although nothing interfered: the shared pool
    /// changed, or the agent was not running.
    async fn follow(&mut self, id: &RuntimeId, want: ContainerAffinity) {
        let (pool, os) = (&self.context.pool, self.context.facts().os);
        match pool.put(&self.context.runtime, os, id.clone(), want).await {
            Ok(()) => {
                self.checked.moved += 1;
                self.context.metrics.moved.increment(&[]);
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
        let context = self.context;
        let suspects = self.suspects(&want, view).await;
        let found = worded(wrong);
        let container = entry.container.clone();
        let os = context.facts().os;
        let put = context.pool.put(&context.runtime, os, id.clone(), want.clone()).await;
        if context.pool.entry(id).is_none() {
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
                context.metrics.repaired.increment(&[finding.label()]);
            }
            self.checked.repaired += 1;
            let fight = self.history.repaired(id);
            info!(id, container, found, ?fight, "moved a container back to its CPUs");
            self.tell(entry, AgentEvent::PlacementRepaired { container, found, fight, suspects });
            return;
        };
        self.checked.wrong += 1;
        let ignored = why.is_empty() && !self.history.was_right(id) && suspects.is_empty();
        let told = AgentEvent::PlacementNotInForce { container, found, why, ignored, suspects };
        if self.history.stays(id, &told.to_string()) {
            warn!(id, "{told}");
            self.tell(entry, told);
        }
    }

    fn tell(&self, entry: &TrackedContainer, told: AgentEvent) {
        let active = Arc::clone(&self.context.active.borrow());
        let pod = active.iter().find(|pod| pod.metadata.uid == entry.pod_uid);
        if let Some(pod) = pod
            && let Some((role, container)) = pod.container(&entry.container)
        {
            self.context.recorder.container(pod, role, &container.name, told);
        }
    }

    /// Returns the possible causes.
    async fn suspects(&self, told: &ContainerAffinity, view: &View) -> Vec<String> {
        let above = match (view, &self.context.cgroups) {
            (View::InForce(found), Some(cgroups)) => cgroups.host().cpus_above(found),
            _ => Vec::new(),
        };
        let files = self.files.clone();
        let around = blocking(move || contention::observe(above, files)).await;
        let found =
            around.map(|around| contention::contenders(&told.cpus, &around)).unwrap_or_default();
        found.iter().map(Contender::to_string).collect()
    }

    async fn view(&mut self, id: &RuntimeId) -> View {
        let Some(cgroups) = self.context.cgroups.as_ref().map(|of| of.host().clone()) else {
            return match self.ask(id, false).await {
                RuntimeAnswer::Running { resources: Some(says), .. } => View::Said(Box::new(says)),
                RuntimeAnswer::Running { .. } => View::Blind,
                RuntimeAnswer::Other(view) => view,
            };
        };
        if let Some(pid) = self.history.pid(id)
            && let Ok(found) = in_force(&cgroups, pid).await
            // The PID may have been reused.
            && found.cgroups.values().any(|path| path.contains(id.as_str()))
        {
            return View::InForce(Box::new(found));
        }
        let (pid, resources) = match self.ask(id, true).await {
            RuntimeAnswer::Running { pid, resources } => (pid, resources),
            RuntimeAnswer::Other(view) => return view,
        };
        self.history.set_pid(id, pid);
        if let Some(pid) = pid {
            match in_force(&cgroups, pid).await {
                Ok(found) => return View::InForce(Box::new(found)),
                // It has just exited.
                Err(CgroupError::NoProcess(_)) => return View::Still,
                Err(error) => {
                    warn!(%error, id, "failed to read the effective cpuset of a container")
                }
            }
        }
        resources.map_or(View::Blind, |says| View::Said(Box::new(says)))
    }

    async fn ask(&self, id: &RuntimeId, verbose: bool) -> RuntimeAnswer {
        let request = v1::ContainerStatusRequest { container_id: id.clone(), verbose };
        let answer = match self.context.runtime.call(request).await {
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

fn is_anywhere(placed: &ContainerAffinity) -> bool {
    placed.cpus.is_empty() && placed.mems.is_empty() && placed.groups.is_empty()
}

pub(super) fn worded(findings: &[Finding]) -> String {
    findings.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}

/// Returns the PID of a container's first process from the verbose status of containerd or CRI-O.
pub(super) fn pid(info: &BTreeMap<String, String>) -> Option<u32> {
    #[derive(Deserialize)]
    struct VerboseInfo {
        pid: u32,
    }
    let text = info.get("info")?;
    serde_json::from_str::<VerboseInfo>(text).ok().map(|told| told.pid).filter(|pid| *pid != 0)
}

pub(super) async fn in_force(cgroups: &Cgroups, pid: u32) -> Result<InForce, CgroupError> {
    let cgroups = cgroups.clone();
    // A task that cannot be joined was cancelled with the agent.
    blocking(move || cgroups.in_force(pid)).await.unwrap_or(Err(CgroupError::NoProcess(pid)))
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}
