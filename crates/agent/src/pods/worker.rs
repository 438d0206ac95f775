//! The worker of one pod: [`Worker`], a loop that observes, plans and acts until the pod is gone.
//!
//! ```text
//!   messages ─▶ observe ─▶ plan ─▶ report ─▶ act ─┐     a message: the pod changed, its state in the
//!                 ▲                               │     runtime changed, a probe has a result, terminate
//!                 └───────────────────────────────┘
//! ```
//!
//! [`PodWorkerState`] is the state of the worker: its pod is synced, terminated or removed. `sync_plan` and
//! `status` decide; the worker executes. After a partial failure it plans again from the
//! state that it observes. Only admitted pods have a worker.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::kind::PODS;
use client::{DeleteOptions, ignore_not_found};
use host::cgroups::Limits;
use objects::timestamp::Timestamp;
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::ledger::allocations::{AllocatedResources, PodAllocation};
use crate::observability::events::{AgentEvent, ProbeKind};
use crate::observability::metrics::SyncType;
use crate::pods::backoff::Backoff;
use crate::publications::WorkerReport;
use crate::runtime::lower::{MountedVolumes, PodSource};
use crate::runtime::probes::{ProbeReport, ProbeTarget};
use crate::runtime::relist;
use crate::status::writer::StatusWriter;
use lifecycle::observed::{ContainerState, RuntimeContainer, RuntimeId, RuntimePod};
use lifecycle::spec::{Container, Pod};
use lifecycle::status::{self, PodStatus, ResizeOutcome, StatusInputs, TerminationCause};
use lifecycle::sync_plan::{self, Health, Plan, ProbeResults};
use lifecycle::worker_state::{Deletion, PodWorkerState, WorkerAction, WorkerEvent};

mod context;
mod pod_context;
mod prepare;
mod resize;
mod retry_holds;
mod start;
mod stop;
mod sync_errors;

pub use context::WorkerContext;
pub use lifecycle::worker_state::Termination;
use pod_context::PodContext;
use retry_holds::RetryHolds;
use sync_errors::SyncErrors;

/// A message to a worker.
#[derive(Debug)]
pub enum WorkerMessage {
    /// The current pod, with its allocated resources.
    PodChanged(Arc<Pod>),
    /// The reason why a resize is pending, if one is.
    Resize(Option<ResizeOutcome>),
    /// The API no longer has it: it is removed at once.
    Deleted,
    /// Its state in the runtime changed.
    RuntimeChanged,
    ProbeReported(ProbeReport),
    /// The agent terminates it.
    Terminate(Termination),
    /// The agent stops, and the pod's containers with it. The next agent starts the pod again.
    Shutdown,
}

/// The time of the next sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Immediately: something was done.
    Now,
    /// On the next message, or after this time.
    After(Duration),
    Done,
}

/// The wait after a failure without its own back-off. Upstream's value.
const RETRY: Duration = Duration::from_secs(10);
/// The wait between syncs without a message. Upstream's `syncFrequency`.
const RESYNC: Duration = Duration::from_secs(60);
/// The wait while the runtime does not answer.
const RUNTIME_RETRY: Duration = Duration::from_secs(1);
/// After this many failures to remove dead containers, the pod is deleted without waiting for them.
const MOST_REMOVALS: u32 = 5;
/// The longest wait between two restarts of a container. Upstream's value.
const LONGEST_BACKOFF: Duration = Duration::from_secs(300);

/// The loop of one pod.
#[derive(Debug)]
pub struct Worker {
    context: Arc<WorkerContext>,
    pod: Arc<Pod>,
    source: PodSource,
    messages: mpsc::UnboundedReceiver<WorkerMessage>,
    status_writer: StatusWriter,
    /// The last status that was reported.
    last_status: Option<PodStatus>,
    observed: RuntimePod,
    status_inputs: StatusInputs,
    liveness: BTreeMap<RuntimeId, Health>,
    backoff: Backoff,
    holds: RetryHolds,
    mounted: Option<MountedVolumes>,
    /// The current limits of its cgroup.
    limits: Option<Limits>,
    /// Its actuated resources, if they differ from the allocated ones.
    actuated: Option<PodAllocation>,
    /// The pod-level allocation when each of its containers was last started.
    started_with: BTreeMap<String, Option<AllocatedResources>>,
    /// The reason why a resize is not allocated yet.
    pending: Option<ResizeOutcome>,
    /// The error of the last actuation.
    resize_error: Option<String>,
    /// The number of consecutive failures to mount volumes.
    mount_failures: u32,
    /// The number of consecutive failures to create a sandbox.
    sandbox_failures: u32,
    /// The number of consecutive failures to remove dead containers.
    removal_failures: u32,
    state: PodWorkerState,
    /// The type of the next sync, for the metrics.
    next_sync_type: SyncType,
    sync_errors: SyncErrors,
}

impl Worker {
    /// `is_new` is true if the last relist had nothing of the pod.
    #[must_use]
    pub fn new(
        context: Arc<WorkerContext>,
        pod: Arc<Pod>,
        source: PodSource,
        is_new: bool,
        messages: mpsc::UnboundedReceiver<WorkerMessage>,
    ) -> Worker {
        let subject = context.subject(&pod);
        let status_writer = StatusWriter::start(context.api.clone(), subject, pod.status.clone());
        let completed = PodStatus::read(&pod.status).phase.is_terminal();
        let deletion = pod.is_terminating().then_some(Deletion::Requested);
        Worker {
            status_inputs: context.status_inputs(),
            backoff: Backoff::new(LONGEST_BACKOFF),
            holds: RetryHolds::default(),
            context,
            pod,
            source,
            messages,
            status_writer,
            last_status: None,
            observed: RuntimePod::default(),
            liveness: BTreeMap::new(),
            mounted: None,
            limits: None,
            actuated: None,
            started_with: BTreeMap::new(),
            pending: None,
            resize_error: None,
            mount_failures: 0,
            sandbox_failures: 0,
            removal_failures: 0,
            state: PodWorkerState::initial(is_new, completed, deletion),
            next_sync_type: SyncType::Create,
            sync_errors: SyncErrors::default(),
        }
    }

    /// Runs until the pod is removed.
    pub async fn run(mut self) {
        let context = Arc::clone(&self.context);
        if let Some(known) = self.context.publications.pod_cache.age(&self.pod.metadata.uid) {
            context.metrics.sync.worker_starts(known);
        }
        loop {
            while let Ok(message) = self.messages.try_recv() {
                self.handle(message);
            }
            let (begun, sync) = (Instant::now(), self.next_sync_type);
            self.next_sync_type = SyncType::Sync;
            let next = self.step().await;
            context.metrics.sync.synced(sync, begun.elapsed());
            match next {
                Next::Now => {}
                Next::Done => return,
                Next::After(time) => {
                    if let Ok(message) = tokio::time::timeout(time, self.messages.recv()).await {
                        match message {
                            Some(message) => self.handle(message),
                            // The agent stops; the pod keeps running.
                            None => return,
                        }
                    }
                }
            }
        }
    }

    fn handle(&mut self, message: WorkerMessage) {
        match message {
            WorkerMessage::PodChanged(pod) => {
                if self.next_sync_type == SyncType::Sync {
                    self.next_sync_type = SyncType::Update;
                }
                if pod.metadata.generation != self.pod.metadata.generation {
                    self.holds.release();
                }
                self.pod = pod;
                if self.pod.is_terminating() {
                    self.transition(WorkerEvent::Deleted(Deletion::Requested));
                }
                let differs = |status: &PodStatus| status::is_overwritten(&self.pod.status, status);
                if self.last_status.as_ref().is_some_and(differs) {
                    self.status_writer.overwritten_by_other(self.pod.status.clone());
                }
            }
            WorkerMessage::Resize(pending) => self.pending = pending,
            WorkerMessage::Deleted => self.transition(WorkerEvent::Deleted(Deletion::Complete)),
            WorkerMessage::RuntimeChanged => {}
            WorkerMessage::ProbeReported(report) => self.handle_probe_report(report),
            WorkerMessage::Terminate(termination) => {
                self.transition(WorkerEvent::Terminated(termination));
            }
            WorkerMessage::Shutdown => self.transition(WorkerEvent::Shutdown),
        }
    }

    fn transition(&mut self, event: WorkerEvent) {
        let state = std::mem::replace(&mut self.state, PodWorkerState::ShuttingDown);
        self.state = state.next(event);
    }

    fn handle_probe_report(&mut self, report: ProbeReport) {
        if let Some(event) = report.event
            && let Some((role, _)) = self.pod.container(&report.container)
        {
            self.context.recorder.container(&self.pod, role, &report.container, event);
        }
        let Some(healthy) = report.healthy else { return };
        match report.kind {
            ProbeKind::Readiness => {
                self.status_inputs.readiness.insert(report.id, healthy);
            }
            ProbeKind::Startup => {
                self.status_inputs.startup.insert(report.id, healthy);
            }
            ProbeKind::Liveness => {
                let health = if healthy { Health::Success } else { Health::Failure };
                self.liveness.insert(report.id, health);
            }
        }
    }

    fn now(&self) -> Timestamp {
        self.context.clock.now()
    }

    /// Returns the pod with the last reported status, whatever the API has.
    fn pod_with_last_status(&self) -> Pod {
        let mut pod = Pod::clone(&self.pod);
        if let Some(status) = &self.last_status {
            pod.status = status::carry(&pod.status, status);
        }
        pod
    }

    async fn step(&mut self) -> Next {
        // Boxed, so that a waiting worker, which most are, needs little memory.
        let next = Box::pin(self.sync()).await;
        let left = self.deadline_in().filter(|left| !left.is_zero() && self.state.is_syncing());
        let next = match (next, left) {
            // No wait exceeds the deadline.
            (Next::After(wait), Some(left)) => Next::After(wait.min(left)),
            (next, _) => next,
        };
        self.sync_errors.finish(&self.pod, next);
        next
    }

    async fn sync(&mut self) -> Next {
        match relist::inspect(&self.context.runtime.cri, &self.pod.metadata.uid).await {
            Ok(observed) => {
                self.observe(observed);
                self.transition(WorkerEvent::Observed);
            }
            Err(error) => {
                self.sync_errors.add("read the pod from the runtime", error);
                return self.sync_without_runtime().await;
            }
        }
        self.forget_dead_containers();
        if self.state.is_syncing() && self.deadline_in() == Some(Duration::ZERO) {
            self.context.recorder.pod(&self.pod, AgentEvent::DeadlineExceeded);
            let cause = TerminationCause {
                reason: "DeadlineExceeded".to_owned(),
                message: AgentEvent::DeadlineExceeded.to_string(),
                disruption: None,
            };
            self.transition(WorkerEvent::Terminated(Termination { cause, grace: None }));
        }
        match self.state.action() {
            WorkerAction::SyncPod => self.sync_pod().await,
            WorkerAction::Terminate => self.terminate().await,
            WorkerAction::Wait => Next::After(RESYNC),
            WorkerAction::Remove => self.remove_pod().await,
            WorkerAction::StopForShutdown => self.stop_for_shutdown().await,
        }
    }

    /// Stops the containers of a pod that the next agent starts again.
    async fn stop_for_shutdown(&mut self) -> Next {
        self.context.runtime.probes.forget(&self.pod.metadata.uid);
        let pod = self.pod_with_last_status();
        self.kill_all(&pod, pod.grace_seconds()).await;
        Next::Done
    }

    /// Replaces the observed state and logs the containers that exited since the last one.
    fn observe(&mut self, observed: RuntimePod) {
        let before = std::mem::replace(&mut self.observed, observed);
        // Containers that exited before the agent was started are not news.
        if self.last_status.is_none() {
            return;
        }
        let is_exited = |container: &&RuntimeContainer| container.state == ContainerState::Exited;
        for exited in self.observed.containers.iter().filter(is_exited) {
            if before.containers.iter().filter(is_exited).any(|known| known.id == exited.id) {
                continue;
            }
            let (pod, uid) = (self.pod.full_name(), &self.pod.metadata.uid);
            let RuntimeContainer { name, id, exit_code, reason, .. } = exited;
            info!(pod, uid, container = name, id, exit_code, reason, "a container exited");
        }
    }

    /// Runs a sync without the runtime.
    async fn sync_without_runtime(&mut self) -> Next {
        match self.state.action_without_runtime(self.observed.is_alive()) {
            WorkerAction::SyncPod => {
                self.transition(WorkerEvent::Unobserved);
                return self.sync_pod().await;
            }
            WorkerAction::Terminate => {
                self.transition(WorkerEvent::Unobserved);
                let pod = self.pod_with_last_status();
                self.update_status(&pod, true);
                let grace = self.state.grace_seconds(pod.grace_seconds());
                self.stop(&pod, grace).await;
            }
            WorkerAction::Wait | WorkerAction::Remove | WorkerAction::StopForShutdown => {}
        }
        Next::After(RUNTIME_RETRY)
    }

    /// Runs one sync of a pod that should run.
    async fn sync_pod(&mut self) -> Next {
        self.refresh_actuated();
        let pod = self.pod_with_last_status();
        let plan = sync_plan::plan(&pod, &self.observed, self);
        let status = self.update_status(&pod, true);
        let mut sync = PodContext::new(pod, self.source.clone(), &self.context.state);
        let over = plan.kill_pod && plan.create_sandbox.is_none();
        if over || status.phase.is_terminal() {
            self.transition(WorkerEvent::Completed);
            return Next::Now;
        }
        self.probe();
        if plan.is_nothing() && self.actuated.is_none() {
            return self.idle(&mut sync).await;
        }
        self.apply(&mut sync, plan).await
    }

    /// Does the periodic work of a pod that needs no action.
    async fn idle(&mut self, sync: &mut PodContext) -> Next {
        self.status_inputs.waiting.clear();
        self.remove_superseded().await;
        match self.refresh(sync).await {
            Ok(()) => Next::After(RESYNC),
            Err(()) => Next::After(RETRY),
        }
    }

    async fn apply(&mut self, sync: &mut PodContext, plan: Plan) -> Next {
        let pod = Arc::clone(&sync.pod);
        let pod = pod.as_ref();
        if !plan.remove.is_empty() {
            return self.remove_all(pod, &plan).await;
        }
        if plan.create_sandbox.is_some()
            && let Some(left) = self.holds.of_pod()
        {
            self.sync_errors.postpone();
            return Next::After(left);
        }
        if plan.kill_pod {
            if plan.create_sandbox.is_some() && !self.observed.sandboxes.is_empty() {
                self.context.recorder.pod(pod, AgentEvent::SandboxChanged);
            }
            self.kill_all(pod, pod.grace_seconds()).await;
            if plan.create_sandbox.is_some() {
                self.remove_init_containers(pod).await;
            }
        }
        for kill in &plan.kill {
            self.kill_one(pod, kill).await;
        }
        // A pod that was killed has no containers to resize.
        let resized = if plan.kill_pod { Ok(()) } else { self.resize(pod).await };
        if plan.is_nothing() {
            // Resizes that need a restart wait for it.
            self.refresh_actuated();
            let waits = self.actuated.is_some();
            return resized.err().unwrap_or(if waits { Next::After(RETRY) } else { Next::Now });
        }
        if plan.create_sandbox.is_some() || !plan.start.is_empty() {
            if let Some(left) = self.holds.of_pod() {
                self.sync_errors.postpone();
                return Next::After(left);
            }
            if let Err(wait) = self.prepare(sync).await {
                return self.hold(wait);
            }
        }
        let next = self.start(sync, &plan).await;
        self.remove_superseded().await;
        match resized {
            Err(later) if next == Next::Now => later,
            _ => next,
        }
    }

    /// Waits before sandbox and volumes are retried, whatever happens in the meantime.
    fn hold(&mut self, wait: Duration) -> Next {
        self.holds.hold_pod(wait.min(RETRY));
        Next::After(wait)
    }

    /// Reports the pod's status as last observed.
    fn update_status(&mut self, pod: &Pod, may_run: bool) -> PodStatus {
        let StatusInputs { runtime, recursive_read_only, host_ips, .. } =
            self.context.status_inputs();
        self.status_inputs = StatusInputs {
            runtime,
            recursive_read_only,
            host_ips,
            ..std::mem::take(&mut self.status_inputs)
        };
        self.status_inputs.termination =
            self.state.termination().map(|termination| termination.cause.clone());
        self.status_inputs.finished = !may_run;
        self.update_resize_conditions(pod);
        let mut status = status::generate(pod, &self.observed, &self.status_inputs);
        if !may_run {
            status = status::terminate(pod, status);
        }
        let phase = status.phase;
        match status::merge(pod, status, may_run, self.now()) {
            Ok(merged) => {
                let sandbox = self.observed.newest_sandbox().filter(|sandbox| sandbox.ready);
                let (status, sandbox) =
                    (merged.to_value(), sandbox.map(|sandbox| sandbox.id.clone()));
                self.context.publications.pod_cache.set_status(
                    &pod.metadata.uid,
                    status.clone(),
                    sandbox,
                );
                self.status_writer.set(status);
                self.last_status = Some(merged.clone());
                // The terminal phase is held back while containers run, but decided.
                PodStatus { phase, ..merged }
            }
            // Keep the previous status.
            Err(error) => {
                self.sync_errors.add("update the status", error);
                self.last_status.clone().unwrap_or_default()
            }
        }
    }

    /// Terminates a pod and releases its resources.
    async fn terminate(&mut self) -> Next {
        let pod = self.pod_with_last_status();
        if self.observed.is_alive() && self.state.deletion() == Some(Deletion::Requested) {
            // Readiness is probed as long as it runs.
            self.probe();
        } else {
            self.context.runtime.probes.forget(&pod.metadata.uid);
        }
        if self.observed.is_alive() {
            self.update_status(&pod, true);
            let grace = self.state.grace_seconds(pod.grace_seconds());
            self.stop(&pod, grace).await;
            self.context.runtime.probes.forget(&pod.metadata.uid);
            return match relist::inspect(&self.context.runtime.cri, &pod.metadata.uid).await {
                Ok(observed) if !observed.is_alive() => Next::Now,
                Ok(_) => Next::After(RUNTIME_RETRY),
                Err(error) => {
                    self.sync_errors.add("read the pod from the runtime", error);
                    Next::After(RUNTIME_RETRY)
                }
            };
        }
        if let Err(error) = self.clean_up(&pod).await {
            self.sync_errors.add("release the pod's resources", &error);
            let error = error.to_string();
            self.context.recorder.pod(&pod, AgentEvent::KillFailed { error });
            return Next::After(RETRY);
        }
        // The mirror of a static pod is deleted with its last status; deleted pods get no status.
        let has_no_status = match self.state.deletion() {
            Some(Deletion::Complete) => true,
            Some(Deletion::Requested) => status::is_static(&pod),
            None => false,
        };
        if !has_no_status && !self.is_only_kept() {
            self.update_status(&pod, false);
        }
        let reason = self.state.termination().map_or("", |by| by.cause.reason.as_str());
        info!(pod = pod.full_name(), uid = pod.metadata.uid, reason, "the pod terminated");
        self.transition(WorkerEvent::ResourcesReleased);
        Next::Now
    }

    /// Returns true if an agent is done with the pod and only finalizers keep it in the API. Its last status
    /// then stays, because it cannot be generated again from a runtime that has nothing of the pod.
    fn is_only_kept(&self) -> bool {
        let metadata = &self.pod.metadata;
        self.last_status.is_none()
            && self.pod.is_terminating()
            && metadata.deletion_grace_period_seconds == Some(0)
            && PodStatus::read(&self.pod.status).phase.is_terminal()
            && self.observed == RuntimePod::default()
    }

    /// Removes the last traces of a pod and deletes it in the API.
    async fn remove_pod(&mut self) -> Next {
        let is_deleted = self.state.deletion() == Some(Deletion::Complete);
        // The mirror of a static pod may be missing, and is deleted with it. A pod that was deleted in the API
        // has no status to write.
        if !is_deleted && !status::is_static(&self.pod) {
            self.status_writer.written().await;
        }
        if let Err(error) = self.remove_everything().await {
            self.removal_failures += 1;
            if is_deleted || self.removal_failures < MOST_REMOVALS {
                let wait =
                    if self.removal_failures < MOST_REMOVALS { RUNTIME_RETRY } else { RETRY };
                self.sync_errors.add("remove dead containers", error);
                return Next::After(wait);
            }
            // None of the pod's containers runs or holds resources, so its deletion does not wait for a
            // runtime that fails to remove dead containers. Leftovers of deleted pods are removed as soon as
            // the runtime allows it.
            let (pod, uid) = (self.pod.full_name(), &self.pod.metadata.uid);
            warn!(pod, uid, %error, "failed to remove dead containers; deleting the pod anyway");
        }
        if let Err(error) = self
            .context
            .runtime
            .remove_files(&self.context.state.node_env(), &self.pod.metadata)
            .await
        {
            self.sync_errors.add("remove the pod's files", error);
            return Next::After(RUNTIME_RETRY);
        }
        let metadata = &self.pod.metadata;
        if !is_deleted && !status::is_static(&self.pod) {
            let options =
                DeleteOptions { grace_seconds: Some(0), ..DeleteOptions::of_uid(&metadata.uid) };
            let done =
                self.context.api.delete(PODS, &metadata.namespace, &metadata.name, &options).await;
            if let Err(error) = ignore_not_found(done) {
                self.sync_errors.add("delete the pod in the API", error);
                return Next::After(RUNTIME_RETRY);
            }
        }
        info!(pod = self.pod.full_name(), uid = metadata.uid, "the pod is removed");
        let _ = self.context.publications.reports.send(WorkerReport::Removed(metadata.uid.clone()));
        Next::Done
    }

    /// Probes the running containers, and no others.
    fn probe(&mut self) {
        let running: Vec<ProbeTarget> = self
            .pod
            .containers()
            .filter_map(|(_, container)| self.observed.container(&container.name))
            .filter(|found| found.is_running())
            .map(|found| ProbeTarget {
                name: found.name.clone(),
                id: found.id.clone(),
                started_at: found.started_at,
            })
            .collect();
        let ips = match self.observed.newest_sandbox() {
            Some(sandbox) if !sandbox.ips.is_empty() => sandbox.ips.clone(),
            _ => self.context.state.node_env().ips.clone(),
        };
        self.context.runtime.probes.follow(&self.pod, &ips, &running);
    }

    /// Drops the state of containers that no longer exist.
    fn forget_dead_containers(&mut self) {
        let alive: BTreeSet<&RuntimeId> = self.observed.containers.iter().map(|c| &c.id).collect();
        self.liveness.retain(|id, _| alive.contains(id));
        self.status_inputs.readiness.retain(|id, _| alive.contains(id));
        self.status_inputs.startup.retain(|id, _| alive.contains(id));
        for ended in self.observed.containers.iter().filter(|c| c.state == ContainerState::Exited) {
            self.context.state.cpuset_tracker.unregister(&ended.id);
        }
    }

    /// Returns the time left until the active deadline.
    fn deadline_in(&self) -> Option<Duration> {
        let seconds = self.pod.spec.active_deadline_seconds?;
        let reported = self.last_status.as_ref().and_then(|status| status.start_time.clone());
        let started = reported.or_else(|| PodStatus::read(&self.pod.status).start_time)?;
        let started = Timestamp::parse(&started).ok()?;
        let left =
            started.plus_seconds(seconds).unix_nanos().saturating_sub(self.now().unix_nanos());
        Some(Duration::from_nanos(u64::try_from(left).unwrap_or(0)))
    }
}

impl ProbeResults for Worker {
    fn liveness(&self, container: &RuntimeId) -> Health {
        self.liveness.get(container).copied().unwrap_or(Health::Unknown)
    }

    fn startup(&self, container: &RuntimeId) -> Health {
        match self.status_inputs.startup.get(container) {
            None => Health::Unknown,
            Some(true) => Health::Success,
            Some(false) => Health::Failure,
        }
    }

    fn is_current(&self, container: &Container, found: &str) -> bool {
        crate::runtime::lower::hash::is_of(container, found)
    }

    fn must_restart(&self, container: &Container) -> bool {
        self.must_restart_for_resize(container)
    }
}
