//! The worker of one pod: [`Worker`], a loop that observes, plans and acts until the pod is gone.
//!
//! ```text
//!   messages ─▶ look ──▶ plan ──▶ report ─▶ act ─┐       a message: the pod changed, its state in the
//!                ▲                               │       runtime changed, a probe has a result, end
//!                └───────────────────────────────┘
//! ```
//!
//! `sync_plan` and `status` decide; the worker executes. After a partial failure it plans again from the
//! state that it observes. Only admitted pods have a worker.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::kind::PODS;
use client::{DeleteOptions, gone_is_fine};
use host::cgroups::Limits;
use objects::timestamp::Timestamp;
use tokio::sync::mpsc;
use tracing::warn;

use crate::clock::nanos;
use crate::context::{AgentContext, WorkerReport};
use crate::ledger::allocations::{AllocatedResources, PodAllocation};
use crate::observability::events::{AgentEvent, ProbeKind};
use crate::observability::metrics::SyncType;
use crate::pods::backoff::Backoff;
use crate::pods::sync_plan::{self, Health, Plan, ProbeResults};
use crate::runtime::lower::{MountedVolumes, PodSource};
use crate::runtime::observed::{ContainerState, RuntimeId, RuntimePod};
use crate::runtime::probes::{ProbeReport, ProbeTarget};
use crate::runtime::relist;
use crate::spec::{Container, Pod};
use crate::status::writer::StatusWriter;
use crate::status::{self, PodStatus, ResizeOutcome, StatusInputs, TerminationCause};

mod prepare;
mod resize;
mod retry_holds;
mod start;
mod stop;

use retry_holds::RetryHolds;

/// A message to a worker.
#[derive(Debug)]
pub enum WorkerMessage {
    /// The current pod, with its allocated resources.
    Pod(Arc<Pod>),
    /// The reason why a resize is pending, if one is.
    Resize(Option<ResizeOutcome>),
    /// The API no longer has it: it is removed at once.
    Gone,
    /// Its state in the runtime changed.
    Look,
    Probe(ProbeReport),
    /// The agent terminates it.
    Terminate(Termination),
    /// The agent stops, and the pod's containers with it. The next agent starts the pod again.
    Halt,
}

/// The termination of a pod by the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Termination {
    pub end: TerminationCause,
    /// In seconds; the pod's own grace period if `None`.
    pub grace: Option<i64>,
}

/// The time of the next round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Immediately: something was done.
    Now,
    /// On the next message, or after this time.
    After(Duration),
    Over,
}

/// The wait after a failure without its own back-off. Upstream's value.
const RETRY: Duration = Duration::from_secs(10);
/// The wait between rounds without a message. Upstream's `syncFrequency`.
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
    context: Arc<AgentContext>,
    pod: Arc<Pod>,
    source: PodSource,
    orders: mpsc::UnboundedReceiver<WorkerMessage>,
    teller: StatusWriter,
    /// The last status that was reported.
    told: Option<PodStatus>,
    seen: RuntimePod,
    known: StatusInputs,
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
    /// The runtime did not answer when the pod was terminating.
    unseen: bool,
    /// Nothing was done for the pod yet, and the runtime has nothing of it.
    untried: bool,
    gone: bool,
    ending: Option<Termination>,
    /// All containers have exited and none restarts.
    completed: bool,
    /// None of its containers runs, and its resources were released.
    settled: bool,
    halted: bool,
    /// The kind of the next round, for the metrics.
    next_round: SyncType,
}

impl Worker {
    /// `is_new` is true if the last relist had nothing of the pod.
    #[must_use]
    pub fn new(
        context: Arc<AgentContext>,
        pod: Arc<Pod>,
        source: PodSource,
        is_new: bool,
        orders: mpsc::UnboundedReceiver<WorkerMessage>,
    ) -> Worker {
        let subject = context.subject(&pod);
        let teller = StatusWriter::start(context.api.clone(), subject, pod.status.clone());
        let completed = PodStatus::read(&pod.status).phase.is_terminal();
        Worker {
            known: context.known(),
            backoff: Backoff::new(LONGEST_BACKOFF),
            holds: RetryHolds::default(),
            context,
            pod,
            source,
            orders,
            teller,
            told: None,
            seen: RuntimePod::default(),
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
            unseen: false,
            untried: is_new && !completed,
            gone: false,
            ending: None,
            completed,
            settled: false,
            halted: false,
            next_round: SyncType::Create,
        }
    }

    /// Runs until the pod is removed.
    pub async fn run(mut self) {
        let context = Arc::clone(&self.context);
        if let Some(known) = self.context.board.known_for(&self.pod.metadata.uid) {
            context.metrics.work.worker_starts(known);
        }
        loop {
            while let Ok(order) = self.orders.try_recv() {
                self.take(order);
            }
            let (begun, round) = (Instant::now(), self.next_round);
            self.next_round = SyncType::Sync;
            let next = self.step().await;
            context.metrics.work.round(round, begun.elapsed());
            match next {
                Next::Now => {}
                Next::Over => return,
                Next::After(time) => {
                    if let Ok(order) = tokio::time::timeout(time, self.orders.recv()).await {
                        match order {
                            Some(order) => self.take(order),
                            // The agent stops; the pod keeps running.
                            None => return,
                        }
                    }
                }
            }
        }
    }

    fn take(&mut self, order: WorkerMessage) {
        match order {
            WorkerMessage::Pod(pod) => {
                if self.next_round == SyncType::Sync {
                    self.next_round = SyncType::Update;
                }
                if pod.metadata.generation != self.pod.metadata.generation {
                    self.holds.release();
                }
                self.pod = pod;
                let differs = |told: &PodStatus| status::is_overwritten(&self.pod.status, told);
                if self.told.as_ref().is_some_and(differs) {
                    self.teller.found(self.pod.status.clone());
                }
            }
            WorkerMessage::Resize(pending) => self.pending = pending,
            WorkerMessage::Gone => self.gone = true,
            WorkerMessage::Look => {}
            WorkerMessage::Probe(report) => self.take_report(report),
            WorkerMessage::Terminate(ending) => {
                let _ = self.ending.get_or_insert(ending);
            }
            WorkerMessage::Halt => self.halted = true,
        }
    }

    fn take_report(&mut self, report: ProbeReport) {
        if let Some(told) = report.told
            && let Some((role, _)) = self.pod.container(&report.container)
        {
            self.context.recorder.container(&self.pod, role, &report.container, told);
        }
        let Some(healthy) = report.healthy else { return };
        match report.kind {
            ProbeKind::Readiness => {
                self.known.readiness.insert(report.id, healthy);
            }
            ProbeKind::Startup => {
                self.known.startup.insert(report.id, healthy);
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
    fn pod_as_told(&self) -> Pod {
        let mut pod = Pod::clone(&self.pod);
        if let Some(told) = &self.told {
            pod.status = status::carry(&pod.status, told);
        }
        pod
    }

    fn is_to_go(&self) -> bool {
        self.gone || self.pod.is_terminating()
    }

    async fn step(&mut self) -> Next {
        // Boxed, so that a waiting worker, which most are, needs little memory.
        let next = Box::pin(self.round()).await;
        let left = self.deadline_in().filter(|left| !left.is_zero() && self.ending.is_none());
        match (next, left) {
            // No wait exceeds the deadline.
            (Next::After(wait), Some(left)) => Next::After(wait.min(left)),
            (next, _) => next,
        }
    }

    async fn round(&mut self) -> Next {
        match relist::inspect(&self.context.runtime, &self.pod.metadata.uid).await {
            Ok(seen) => (self.seen, self.unseen, self.untried) = (seen, false, false),
            Err(_) => return self.go_blind().await,
        }
        if self.halted {
            self.context.probes.forget(&self.pod.metadata.uid);
            let pod = self.pod_as_told();
            self.kill_all(&pod, pod.grace_seconds()).await;
            return Next::Over;
        }
        self.forget_the_dead();
        if self.ending.is_none() && self.is_past_deadline() {
            self.context.recorder.pod(&self.pod, AgentEvent::DeadlineExceeded);
            let end = TerminationCause {
                reason: "DeadlineExceeded".to_owned(),
                message: AgentEvent::DeadlineExceeded.to_string(),
                disruption: None,
            };
            self.ending = Some(Termination { end, grace: None });
        }
        if self.settled {
            return if self.is_to_go() { self.leave().await } else { Next::After(RESYNC) };
        }
        if self.is_to_go() || self.ending.is_some() || self.completed {
            return self.finish().await;
        }
        self.go_on().await
    }

    /// Runs a round without the runtime. A terminating pod that was running when last seen is stopped once,
    /// and a new pod is started: this either succeeds or reports the reason.
    async fn go_blind(&mut self) -> Next {
        let ends = (self.is_to_go() || self.ending.is_some()) && !self.halted;
        if std::mem::take(&mut self.untried) && !ends && !self.halted {
            return self.go_on().await;
        }
        if ends && self.seen.is_alive() && !std::mem::replace(&mut self.unseen, true) {
            let pod = self.pod_as_told();
            self.tell(&pod, true);
            let grace = self.grace(&pod);
            self.stop(&pod, grace).await;
        }
        Next::After(RUNTIME_RETRY)
    }

    /// Runs one round of a pod that should run.
    async fn go_on(&mut self) -> Next {
        self.refresh_actuated();
        let pod = self.pod_as_told();
        let plan = sync_plan::plan(&pod, &self.seen, self);
        let status = self.tell(&pod, true);
        let over = plan.kill_pod && plan.create_sandbox.is_none();
        if over || status.phase.is_terminal() {
            self.completed = true;
            return Next::Now;
        }
        self.probe();
        if plan.is_nothing() && self.actuated.is_none() {
            return self.rest(&pod).await;
        }
        self.act(&pod, plan).await
    }

    /// Does the periodic work of a pod that needs no action.
    async fn rest(&mut self, pod: &Pod) -> Next {
        self.known.waiting.clear();
        self.remove_superseded().await;
        match self.refresh(pod).await {
            Ok(()) => Next::After(RESYNC),
            Err(_) => Next::After(RETRY),
        }
    }

    async fn act(&mut self, pod: &Pod, plan: Plan) -> Next {
        if !plan.remove.is_empty() {
            return self.remove_all(pod, &plan).await;
        }
        if plan.create_sandbox.is_some()
            && let Some(left) = self.holds.of_pod()
        {
            return Next::After(left);
        }
        if plan.kill_pod {
            if plan.create_sandbox.is_some() && !self.seen.sandboxes.is_empty() {
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
                return Next::After(left);
            }
            if let Err(wait) = self.prepare(pod).await {
                return self.hold(wait);
            }
        }
        let next = self.start(pod, &plan).await;
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
    fn tell(&mut self, pod: &Pod, may_run: bool) -> PodStatus {
        let StatusInputs { runtime, recursive_read_only, host_ips, .. } = self.context.known();
        self.known = StatusInputs {
            runtime,
            recursive_read_only,
            host_ips,
            ..std::mem::take(&mut self.known)
        };
        self.known.end = self.ending.as_ref().map(|ending| ending.end.clone());
        self.known.finished = !may_run;
        self.tell_resize(pod);
        let mut status = status::generate(pod, &self.seen, &self.known);
        if !may_run {
            status = status::terminate(pod, status);
        }
        let phase = status.phase;
        match status::merge(pod, status, may_run, self.now()) {
            Ok(merged) => {
                let sandbox = self.seen.newest_sandbox().filter(|sandbox| sandbox.ready);
                let (status, sandbox) = (merged.to_value(), sandbox.map(|of| of.id.clone()));
                self.context.board.show_status(&pod.metadata.uid, status.clone(), sandbox);
                self.teller.tell(status);
                self.told = Some(merged.clone());
                // The terminal phase is held back while containers run, but decided.
                PodStatus { phase, ..merged }
            }
            // Keep the previous status.
            Err(_) => self.told.clone().unwrap_or_default(),
        }
    }

    /// Terminates a pod and releases its resources.
    async fn finish(&mut self) -> Next {
        let pod = self.pod_as_told();
        if self.seen.is_alive() && pod.is_terminating() && !self.gone {
            // Readiness is probed as long as it runs.
            self.probe();
        } else {
            self.context.probes.forget(&pod.metadata.uid);
        }
        if self.seen.is_alive() {
            self.tell(&pod, true);
            let grace = self.grace(&pod);
            self.stop(&pod, grace).await;
            self.context.probes.forget(&pod.metadata.uid);
            return match relist::inspect(&self.context.runtime, &pod.metadata.uid).await {
                Ok(seen) if !seen.is_alive() => Next::Now,
                Ok(_) | Err(_) => Next::After(RUNTIME_RETRY),
            };
        }
        if let Err(error) = self.clean_up(&pod).await {
            self.context.recorder.pod(&pod, AgentEvent::KillFailed { error });
            return Next::After(RETRY);
        }
        // The mirror of a static pod is deleted with its last status; pods that are gone get no status.
        let unseen = self.gone || (status::is_static(&pod) && pod.is_terminating());
        if !unseen && !self.is_only_kept() {
            self.tell(&pod, false);
        }
        self.settled = true;
        Next::Now
    }

    /// Returns true if an agent is done with the pod and only finalizers keep it in the API. Its last status
    /// then stays, because it cannot be generated again from a runtime that has nothing of the pod.
    fn is_only_kept(&self) -> bool {
        let of = &self.pod.metadata;
        self.told.is_none()
            && self.pod.is_terminating()
            && of.deletion_grace_period_seconds == Some(0)
            && PodStatus::read(&self.pod.status).phase.is_terminal()
            && self.seen == RuntimePod::default()
    }

    /// Returns the grace period in seconds.
    fn grace(&self, pod: &Pod) -> i64 {
        let asked = self.ending.as_ref().and_then(|ending| ending.grace);
        match (self.gone, asked) {
            (true, _) => 0,
            (false, Some(asked)) => asked,
            (false, None) => pod.grace_seconds(),
        }
    }

    /// Removes the last traces of a pod and deletes it in the API.
    async fn leave(&mut self) -> Next {
        // The mirror of a static pod may be missing, and is deleted with it. A pod that is gone from the API
        // has no status to write.
        if !self.gone && !status::is_static(&self.pod) {
            self.teller.written().await;
        }
        if let Err(error) = self.remove_everything().await {
            self.removal_failures += 1;
            if self.gone || self.removal_failures < MOST_REMOVALS {
                let wait =
                    if self.removal_failures < MOST_REMOVALS { RUNTIME_RETRY } else { RETRY };
                return Next::After(wait);
            }
            // None of the pod's containers runs or holds resources, so its deletion does not wait for a
            // runtime that fails to remove dead containers. Leftovers of deleted pods are removed as soon as
            // the runtime allows it.
            warn!(pod = %self.pod.metadata.name, %error, "failed to remove dead containers; deleting the pod anyway");
        }
        if self.context.remove_files(&self.pod).await.is_err() {
            return Next::After(RUNTIME_RETRY);
        }
        let of = &self.pod.metadata;
        if !self.gone && !status::is_static(&self.pod) {
            let options =
                DeleteOptions { grace_seconds: Some(0), ..DeleteOptions::of_uid(&of.uid) };
            let done = self.context.api.delete(PODS, &of.namespace, &of.name, &options).await;
            if gone_is_fine(done).is_err() {
                return Next::After(RUNTIME_RETRY);
            }
        }
        let _ = self.context.reports.send(WorkerReport::Over(of.uid.clone()));
        Next::Over
    }

    /// Probes the running containers, and no others.
    fn probe(&mut self) {
        let running: Vec<ProbeTarget> = self
            .pod
            .containers()
            .filter_map(|(_, container)| self.seen.container(&container.name))
            .filter(|found| found.is_running())
            .map(|found| ProbeTarget {
                name: found.name.clone(),
                id: found.id.clone(),
                started_at: found.started_at,
            })
            .collect();
        let ips = match self.seen.newest_sandbox() {
            Some(sandbox) if !sandbox.ips.is_empty() => sandbox.ips.clone(),
            _ => self.context.facts().ips.clone(),
        };
        self.context.probes.follow(&self.pod, &ips, &running);
    }

    /// Drops the state of containers that no longer exist.
    fn forget_the_dead(&mut self) {
        let alive: BTreeSet<&RuntimeId> = self.seen.containers.iter().map(|c| &c.id).collect();
        self.liveness.retain(|id, _| alive.contains(id));
        self.known.readiness.retain(|id, _| alive.contains(id));
        self.known.startup.retain(|id, _| alive.contains(id));
        for ended in self.seen.containers.iter().filter(|c| c.state == ContainerState::Exited) {
            self.context.pool.leave(&ended.id);
        }
    }

    /// Returns the time left until the active deadline.
    fn deadline_in(&self) -> Option<Duration> {
        let seconds = self.pod.spec.active_deadline_seconds?;
        let told = self.told.as_ref().and_then(|told| told.start_time.clone());
        let started = told.or_else(|| PodStatus::read(&self.pod.status).start_time)?;
        let started = Timestamp::parse(&started).ok()?;
        let left = nanos(started.plus_seconds(seconds)).saturating_sub(nanos(self.now()));
        Some(Duration::from_nanos(u64::try_from(left).unwrap_or(0)))
    }

    fn is_past_deadline(&self) -> bool {
        let over = self.settled || self.completed || self.is_to_go();
        !over && self.deadline_in() == Some(Duration::ZERO)
    }
}

impl ProbeResults for Worker {
    fn liveness(&self, container: &RuntimeId) -> Health {
        self.liveness.get(container).copied().unwrap_or(Health::Unknown)
    }

    fn startup(&self, container: &RuntimeId) -> Health {
        match self.known.startup.get(container) {
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
