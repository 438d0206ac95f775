//! One pod's life: [`Worker`], a loop that looks, decides and acts until the pod is gone.
//!
//! ```text
//!   orders ──▶ look ──▶ plan ──▶ tell ──▶ act ──┐        an order: the pod changed, something happened
//!                ▲                              │        in the runtime, a probe has a result, end
//!                └──────────────────────────────┘
//! ```
//!
//! What is decided is decided by `steps` and `status`; here it is carried out. A failure half-way is only
//! another state to plan from. Only pods that were admitted get here.

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
use crate::context::{Hands, Report};
use crate::ledger::allocations::{Given, PodGiven};
use crate::observability::events::{ProbeKind, Told};
use crate::observability::metrics::Round;
use crate::pods::backoff::Backoff;
use crate::pods::sync_plan::{self, Health, Knowledge, Plan};
use crate::runtime::lower::{Mounted, Source};
use crate::runtime::observed::{ContainerState, PodSeen, RuntimeId};
use crate::runtime::probes::{ProbeReport, ProbeTarget};
use crate::runtime::relist;
use crate::spec::{Container, Pod};
use crate::status::writer::Teller;
use crate::status::{self, End, Known, PodStatus, ResizeSaid};

mod prepare;
mod resize;
mod retry_holds;
mod start;
mod stop;

use retry_holds::Holds;

/// What a worker is told.
#[derive(Debug)]
pub enum Order {
    /// The pod as it is to be now, with what it was allocated.
    Pod(Arc<Pod>),
    /// Why it does not have other resources that are wanted for it, or that it has.
    Resize(Option<ResizeSaid>),
    /// The API does not have it any more: it is to go at once.
    Gone,
    /// Something happened to it in the runtime.
    Look,
    Probe(ProbeReport),
    /// The agent ends it.
    End(Ending),
    /// The agent ends, and what runs of the pod stops with it. The pod is started anew by the next one.
    Halt,
}

/// That and how the agent ends a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    pub end: End,
    /// Seconds; the pod's own if none are given.
    pub grace: Option<i64>,
}

/// When to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// At once: something was done.
    Now,
    /// When there is an order, or after this time.
    After(Duration),
    Over,
}

/// After a failure that has no back-off of its own. Upstream's figure.
const RETRY: Duration = Duration::from_secs(10);
/// When nothing happens. Upstream's `syncFrequency`.
const RESYNC: Duration = Duration::from_secs(60);
/// When the runtime does not answer.
const RUNTIME_RETRY: Duration = Duration::from_secs(1);
/// After so many failures to remove what is dead the pod goes without it.
const MOST_REMOVALS: u32 = 5;
/// The longest wait between two restarts of a container. Upstream's figure.
const LONGEST_BACKOFF: Duration = Duration::from_secs(300);

/// The loop of one pod.
#[derive(Debug)]
pub struct Worker {
    hands: Arc<Hands>,
    pod: Arc<Pod>,
    source: Source,
    orders: mpsc::UnboundedReceiver<Order>,
    teller: Teller,
    /// What was last told.
    told: Option<PodStatus>,
    seen: PodSeen,
    known: Known,
    liveness: BTreeMap<RuntimeId, Health>,
    backoff: Backoff,
    holds: Holds,
    mounted: Option<Mounted>,
    /// What its cgroup was last limited to.
    limits: Option<Limits>,
    /// What is in force of its resources, if that is not what was allocated.
    actuated: Option<PodGiven>,
    /// The allocation of the pod as a whole when each of its containers was last started.
    started_with: BTreeMap<String, Option<Given>>,
    /// Why other resources wait to be allocated.
    pending: Option<ResizeSaid>,
    /// Why they could not be put in force.
    resize_error: Option<String>,
    /// How often volumes could not be mounted in a row.
    mount_failures: u32,
    /// How often a sandbox could not be made in a row.
    sandbox_failures: u32,
    /// How often what is left of it could not be removed in a row.
    removal_failures: u32,
    /// The runtime did not answer when the pod was to end.
    unseen: bool,
    /// Nothing was done for the pod yet, and the runtime has nothing of it.
    untried: bool,
    gone: bool,
    ending: Option<Ending>,
    /// All containers have ended and none starts again.
    completed: bool,
    /// Nothing of it runs, and it has given back what it had.
    settled: bool,
    halted: bool,
    /// What the next round is about.
    next_round: Round,
}

impl Worker {
    /// `is_new` says that the runtime had nothing of the pod when it was last looked at.
    #[must_use]
    pub fn new(
        hands: Arc<Hands>,
        pod: Arc<Pod>,
        source: Source,
        is_new: bool,
        orders: mpsc::UnboundedReceiver<Order>,
    ) -> Worker {
        let subject = hands.subject(&pod);
        let teller = Teller::start(hands.api.clone(), subject, pod.status.clone());
        let completed = PodStatus::read(&pod.status).phase.is_terminal();
        Worker {
            known: hands.known(),
            backoff: Backoff::new(LONGEST_BACKOFF),
            holds: Holds::default(),
            hands,
            pod,
            source,
            orders,
            teller,
            told: None,
            seen: PodSeen::default(),
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
            next_round: Round::Create,
        }
    }

    /// Runs until nothing is left of the pod.
    pub async fn run(mut self) {
        let hands = Arc::clone(&self.hands);
        if let Some(known) = self.hands.board.known_for(&self.pod.metadata.uid) {
            hands.counters.work.worker_starts(known);
        }
        loop {
            while let Ok(order) = self.orders.try_recv() {
                self.take(order);
            }
            let (begun, round) = (Instant::now(), self.next_round);
            self.next_round = Round::Sync;
            let next = self.step().await;
            hands.counters.work.round(round, begun.elapsed());
            match next {
                Next::Now => {}
                Next::Over => return,
                Next::After(time) => {
                    if let Ok(order) = tokio::time::timeout(time, self.orders.recv()).await {
                        match order {
                            Some(order) => self.take(order),
                            // The agent ends; the pod goes on.
                            None => return,
                        }
                    }
                }
            }
        }
    }

    fn take(&mut self, order: Order) {
        match order {
            Order::Pod(pod) => {
                if self.next_round == Round::Sync {
                    self.next_round = Round::Update;
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
            Order::Resize(pending) => self.pending = pending,
            Order::Gone => self.gone = true,
            Order::Look => {}
            Order::Probe(report) => self.take_report(report),
            Order::End(ending) => {
                let _ = self.ending.get_or_insert(ending);
            }
            Order::Halt => self.halted = true,
        }
    }

    fn take_report(&mut self, report: ProbeReport) {
        if let Some(told) = report.told
            && let Some((role, _)) = self.pod.container(&report.container)
        {
            self.hands.recorder.container(&self.pod, role, &report.container, told);
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
        self.hands.clock.now()
    }

    /// The pod with the status that was last told, whatever the API has by now.
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
        // Of a worker that waits, which most do most of the time, as little as possible is kept.
        let next = Box::pin(self.round()).await;
        let left = self.deadline_in().filter(|left| !left.is_zero() && self.ending.is_none());
        match (next, left) {
            // Whatever is waited for, the deadline is not missed.
            (Next::After(wait), Some(left)) => Next::After(wait.min(left)),
            (next, _) => next,
        }
    }

    async fn round(&mut self) -> Next {
        match relist::closely(&self.hands.runtime, &self.pod.metadata.uid).await {
            Ok(seen) => (self.seen, self.unseen, self.untried) = (seen, false, false),
            Err(_) => return self.go_blind().await,
        }
        if self.halted {
            self.hands.probes.forget(&self.pod.metadata.uid);
            let pod = self.pod_as_told();
            self.kill_all(&pod, pod.grace_seconds()).await;
            return Next::Over;
        }
        self.forget_the_dead();
        if self.ending.is_none() && self.is_past_deadline() {
            self.hands.recorder.pod(&self.pod, Told::DeadlineExceeded);
            let end = End {
                reason: "DeadlineExceeded".to_owned(),
                message: Told::DeadlineExceeded.to_string(),
                disruption: None,
            };
            self.ending = Some(Ending { end, grace: None });
        }
        if self.settled {
            return if self.is_to_go() { self.leave().await } else { Next::After(RESYNC) };
        }
        if self.is_to_go() || self.ending.is_some() || self.completed {
            return self.finish().await;
        }
        self.go_on().await
    }

    /// A round without the runtime. What is to end and ran when it was last seen is stopped once all the
    /// same, and what is new is started: either that is possible, or people learn what keeps it.
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

    /// One round of a pod that is to run.
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

    /// Nothing to be done but what is done from time to time.
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
                self.hands.recorder.pod(pod, Told::SandboxChanged);
            }
            self.kill_all(pod, pod.grace_seconds()).await;
            if plan.create_sandbox.is_some() {
                self.remove_init_containers(pod).await;
            }
        }
        for kill in &plan.kill {
            self.kill_one(pod, kill).await;
        }
        // Of a pod that was killed, nothing is left that could have something else.
        let resized = if plan.kill_pod { Ok(()) } else { self.resize(pod).await };
        if plan.is_nothing() {
            // What could not be done without a restart waits for it.
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

    /// Waits before sandbox and volumes are tried again, whatever happens meanwhile.
    fn hold(&mut self, wait: Duration) -> Next {
        self.holds.hold_pod(wait.min(RETRY));
        Next::After(wait)
    }

    /// Says how the pod is, as it was last seen.
    fn tell(&mut self, pod: &Pod, may_run: bool) -> PodStatus {
        let Known { runtime, recursive_read_only, host_ips, .. } = self.hands.known();
        self.known =
            Known { runtime, recursive_read_only, host_ips, ..std::mem::take(&mut self.known) };
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
                self.hands.board.show_status(&pod.metadata.uid, status.clone(), sandbox);
                self.teller.tell(status);
                self.told = Some(merged.clone());
                // Held back while something runs, but decided.
                PodStatus { phase, ..merged }
            }
            // What was said before stands.
            Err(_) => self.told.clone().unwrap_or_default(),
        }
    }

    /// Ends a pod, and gives back what it had.
    async fn finish(&mut self) -> Next {
        let pod = self.pod_as_told();
        if self.seen.is_alive() && pod.is_terminating() && !self.gone {
            // Whether it can still serve is asked for as long as it runs.
            self.probe();
        } else {
            self.hands.probes.forget(&pod.metadata.uid);
        }
        if self.seen.is_alive() {
            self.tell(&pod, true);
            let grace = self.grace(&pod);
            self.stop(&pod, grace).await;
            self.hands.probes.forget(&pod.metadata.uid);
            return match relist::closely(&self.hands.runtime, &pod.metadata.uid).await {
                Ok(seen) if !seen.is_alive() => Next::Now,
                Ok(_) | Err(_) => Next::After(RUNTIME_RETRY),
            };
        }
        if let Err(error) = self.clean_up(&pod).await {
            self.hands.recorder.pod(&pod, Told::KillFailed { error });
            return Next::After(RETRY);
        }
        // The mirror of a static pod goes as it was last seen; of others that are gone nobody is told.
        let unseen = self.gone || (status::is_static(&pod) && pod.is_terminating());
        if !unseen && !self.is_only_kept() {
            self.tell(&pod, false);
        }
        self.settled = true;
        Next::Now
    }

    /// Returns whether an agent is done with the pod and only finalizers keep it in the API: then its last
    /// status stands, which could not be made again from a runtime that has nothing of it.
    fn is_only_kept(&self) -> bool {
        let of = &self.pod.metadata;
        self.told.is_none()
            && self.pod.is_terminating()
            && of.deletion_grace_period_seconds == Some(0)
            && PodStatus::read(&self.pod.status).phase.is_terminal()
            && self.seen == PodSeen::default()
    }

    /// Seconds the pod has to end.
    fn grace(&self, pod: &Pod) -> i64 {
        let asked = self.ending.as_ref().and_then(|ending| ending.grace);
        match (self.gone, asked) {
            (true, _) => 0,
            (false, Some(asked)) => asked,
            (false, None) => pod.grace_seconds(),
        }
    }

    /// Takes the last traces of a pod away, and tells the API that it is gone.
    async fn leave(&mut self) -> Next {
        // The mirror of a static pod may not be there, and goes with it; of a pod that the API does not
        // have there is nothing to be told.
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
            // Nothing of the pod runs or holds anything: people need not wait for a runtime that does not
            // let go of what is dead. What it has of pods that are gone is removed as soon as it can be.
            warn!(pod = %self.pod.metadata.name, %error, "the runtime keeps what is left of a pod");
        }
        if self.hands.remove_files(&self.pod).await.is_err() {
            return Next::After(RUNTIME_RETRY);
        }
        let of = &self.pod.metadata;
        if !self.gone && !status::is_static(&self.pod) {
            let options =
                DeleteOptions { grace_seconds: Some(0), ..DeleteOptions::of_uid(&of.uid) };
            let done = self.hands.api.delete(PODS, &of.namespace, &of.name, &options).await;
            if gone_is_fine(done).is_err() {
                return Next::After(RUNTIME_RETRY);
            }
        }
        let _ = self.hands.reports.send(Report::Over(of.uid.clone()));
        Next::Over
    }

    /// Has the containers that run probed, and no others.
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
            _ => self.hands.facts().ips.clone(),
        };
        self.hands.probes.follow(&self.pod, &ips, &running);
    }

    /// What is known of containers that are not there any more is of no use.
    fn forget_the_dead(&mut self) {
        let alive: BTreeSet<&RuntimeId> = self.seen.containers.iter().map(|c| &c.id).collect();
        self.liveness.retain(|id, _| alive.contains(id));
        self.known.readiness.retain(|id, _| alive.contains(id));
        self.known.startup.retain(|id, _| alive.contains(id));
        for ended in self.seen.containers.iter().filter(|c| c.state == ContainerState::Exited) {
            self.hands.pool.leave(&ended.id);
        }
    }

    /// How long the pod may still be active.
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

impl Knowledge for Worker {
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
