//! All pods of the node: [`PodSet`] admits them, starts a worker for each and forwards events to it.
//!
//! ```text
//!   API, files ──▶ new? ──▶ admit ──▶ ledger ──▶ worker    messages: pod or runtime changed, terminate, …
//!                             └──▶ rejected: reported, and kept until it is deleted
//! ```
//!
//! Pods are admitted one at a time, in order of creation, so that no two get the same resources. Pods in the
//! runtime that have no source are terminated. This module does not query the runtime.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use client::{Backoff, Change, Key, WithText};
use placement::demand::{Demand, PodUid};
use placement::{Placement, Refusal};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing::{debug, error, info, warn};

use crate::ledger::file::{LedgerError, PlannedPlacement};
use crate::observability::events::AgentEvent;
use crate::pods::static_pods::CONFIG_HASH;
use crate::pods::static_pods::mirror::Mirror;
use crate::pods::worker::{Termination, Worker, WorkerContext, WorkerMessage};
use crate::publications::WorkerReport;
use crate::runtime::lower::{ConfigSource, PodSource};
use crate::runtime::probes::ProbeReport;
use crate::runtime::relist::PodSummary;
use crate::status::writer::StatusWriter;
use crate::supervisor::{RestartBackoff, caught, millis};
use client::ErrorLog;
use lifecycle::admission::{self, Admission, Rejection, admit};
use lifecycle::placement_demand;
use lifecycle::spec::{Metadata, Pod};
use lifecycle::status::{self, PodStatus, ResizeOutcome, TerminationCause};

mod resize;
mod running_logs;
mod static_pods;

use static_pods::StaticPods;

/// The wait before a worker that panicked is replaced. The longest is that of upstream's containers that
/// crash.
const WORKER_RESTART: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));

/// A pod and its JSON text.
#[derive(Debug, Clone)]
pub struct PodWithManifest {
    pub pod: Arc<Pod>,
    pub text: Arc<str>,
}

impl PodWithManifest {
    /// Returns the static pod under another UID.
    #[must_use]
    pub fn with_static_uid(&self, uid: &str) -> PodWithManifest {
        let mut pod = Pod::clone(&self.pod);
        pod.metadata.uid = uid.to_owned();
        pod.metadata.annotations.insert(CONFIG_HASH.to_owned(), uid.to_owned());
        // The text of a parsed manifest is JSON.
        let mut text: Value = serde_json::from_str(&self.text).unwrap_or_default();
        text["metadata"]["uid"] = uid.into();
        text["metadata"]["annotations"][CONFIG_HASH] = uid.into();
        PodWithManifest { pod: Arc::new(pod), text: text.to_string().into() }
    }
}

/// Returns a pod of the API.
#[must_use]
pub fn read(pod: WithText<Pod>) -> PodWithManifest {
    PodWithManifest { pod: Arc::new(pod.object), text: pod.text }
}

#[derive(Debug)]
struct Entry {
    parsed: PodWithManifest,
    /// The pod with its allocated resources, which differ from its spec while a resize is pending.
    allocated: Arc<Pod>,
    /// The reason why a resize is pending.
    pending: Option<ResizeOutcome>,
    origin: ConfigSource,
    state: State,
    /// Its resources were released.
    resources_released: bool,
    /// The API no longer has it, or never had it.
    deleted: bool,
    /// The termination that its worker was sent, for a worker that replaces it.
    termination: Option<Termination>,
    worker_backoff: RestartBackoff,
    admission_errors: ErrorLog,
}

impl Entry {
    fn new(parsed: PodWithManifest, allocated: Arc<Pod>, origin: ConfigSource) -> Entry {
        Entry {
            parsed,
            allocated,
            pending: None,
            origin,
            state: State::Waiting,
            resources_released: false,
            deleted: false,
            termination: None,
            worker_backoff: RestartBackoff::new(WORKER_RESTART),
            admission_errors: ErrorLog::default(),
        }
    }
}

#[derive(Debug)]
enum State {
    /// It waits for other pods to release resources.
    Waiting,
    Working(mpsc::UnboundedSender<WorkerMessage>, JoinHandle<()>),
    /// Kept because of its status writer.
    Rejected {
        _status_writer: StatusWriter,
    },
}

/// All pods of the node.
#[derive(Debug)]
pub struct PodSet {
    context: Arc<WorkerContext>,
    /// The node's state for admission.
    node: Arc<RwLock<admission::Node>>,
    /// By uid.
    entries: BTreeMap<String, Entry>,
    /// The last relist of the runtime.
    summaries: BTreeMap<String, PodSummary>,
    /// Changes from the API that arrived before the manifests of static pods were read.
    held: Vec<Change<PodWithManifest>>,
    /// True if the pods of the API and of manifests are known, so that decisions are made.
    complete: bool,
    files: StaticPods,
}

impl PodSet {
    #[must_use]
    pub fn new(
        context: Arc<WorkerContext>,
        node: Arc<RwLock<admission::Node>>,
        summaries: BTreeMap<String, PodSummary>,
    ) -> PodSet {
        let files = StaticPods::open(context.runtime.volumes.root());
        let (entries, held) = (BTreeMap::new(), Vec::new());
        PodSet { context, node, entries, summaries, held, complete: false, files }
    }

    /// Returns the pods as the API has them.
    #[must_use]
    pub fn all(&self) -> Vec<PodWithManifest> {
        self.entries.values().map(|entry| entry.parsed.clone()).collect()
    }

    /// Returns true if the pods of all sources are known and the running ones among them were placed.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Handles a change from the API.
    pub fn handle_change(&mut self, change: Change<PodWithManifest>) {
        self.files.note(&change);
        if !self.complete {
            self.held.push(change);
            self.add_all();
            return;
        }
        match change {
            Change::Replaced { all, .. } => {
                let mut news: Vec<PodWithManifest> =
                    all.into_iter().map(|(_, _, parsed)| parsed).collect();
                self.delete_all_but(&news);
                news.sort_by_key(|parsed| self.rank(&parsed.pod));
                for parsed in news {
                    self.upsert(parsed, ConfigSource::Api);
                }
                self.forget_allocations();
                self.terminate_orphans();
            }
            Change::Applied { object, .. } => self.upsert(object, ConfigSource::Api),
            Change::Removed { key, .. } => self.deleted(&key),
            Change::Bookmark { .. } => return,
        }
        self.publish_mirrors();
        self.publish_known_pods();
    }

    /// Decides about the pods of the first list, once the API and the manifests have been read. Only then it
    /// is known which pods were deleted, and their resources are released before any pod is admitted.
    fn add_all(&mut self) {
        let is_list = |change: &Change<PodWithManifest>| matches!(change, Change::Replaced { .. });
        if self.complete || !self.held.iter().any(is_list) || !self.files.are_read() {
            return;
        }
        let mut held =
            std::mem::take(&mut self.held).into_iter().skip_while(|change| !is_list(change));
        let Some(Change::Replaced { all, .. }) = held.next() else { return };
        let of_api = all.into_iter().map(|(_, _, parsed)| (parsed, ConfigSource::Api));
        let of_files = self.files.wanted().into_iter().map(|parsed| (parsed, ConfigSource::File));
        let mut news: Vec<(PodWithManifest, ConfigSource)> = of_api.chain(of_files).collect();
        let known: BTreeSet<&str> =
            news.iter().map(|(parsed, _)| parsed.pod.metadata.uid.as_str()).collect();
        self.release_forgotten(&known);
        let known: BTreeSet<String> = known.into_iter().map(str::to_owned).collect();
        self.terminate_unknown(&known);
        news.sort_by_key(|(parsed, _)| self.rank(&parsed.pod));
        for (parsed, origin) in news {
            match origin {
                ConfigSource::File => self.add_static(parsed),
                ConfigSource::Api | ConfigSource::Http => self.upsert(parsed, origin),
            }
        }
        self.complete = true;
        self.forget_allocations();
        self.publish();
        self.publish_known_pods();
        for change in held {
            self.handle_change(change);
        }
    }

    /// Releases the ledger's resources of pods that are unknown and not running.
    fn release_forgotten(&self, known: &BTreeSet<&str>) {
        let mut ledger = self.context.state.ledger();
        let held_by: Vec<PodUid> = ledger.contents().pods().cloned().collect();
        for uid in held_by {
            let runs = self.summaries.get(uid.as_str()).is_some_and(PodSummary::is_alive);
            if known.contains(uid.as_str()) || runs {
                continue;
            }
            match ledger.release(&uid) {
                Ok(_) => info!(%uid, "released CPUs and memory of a deleted pod"),
                // It is retried when other leftovers are removed.
                Err(error) => {
                    warn!(%uid, %error, "failed to release CPUs and memory of a deleted pod")
                }
            }
        }
        drop(ledger);
        self.context.state.note_ledger_change();
    }

    /// Orders running pods first, then by creation time.
    fn rank(&self, pod: &Pod) -> (bool, Option<String>, String) {
        let metadata = &pod.metadata;
        (
            !self.is_running(&metadata.uid),
            metadata.creation_timestamp.clone(),
            metadata.name.clone(),
        )
    }

    /// Returns true if the pod was admitted before the agent started.
    fn is_running(&self, uid: &str) -> bool {
        self.summaries.contains_key(uid) || self.context.state.ledger().holds(&PodUid::new(uid))
    }

    /// Marks the API's pods that are not in this list as deleted.
    fn delete_all_but(&mut self, news: &[PodWithManifest]) {
        let there: Vec<&str> = news.iter().map(|parsed| parsed.pod.metadata.uid.as_str()).collect();
        let deleted: Vec<String> = self
            .entries
            .iter()
            .filter(|(uid, entry)| {
                entry.origin == ConfigSource::Api && !there.contains(&uid.as_str())
            })
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in deleted {
            self.terminate_deleted(&uid);
        }
    }

    fn deleted(&mut self, key: &Key) {
        let found = self.entries.iter().find(|(_, entry)| {
            let metadata = &entry.parsed.pod.metadata;
            entry.origin == ConfigSource::Api
                && metadata.name == key.name()
                && metadata.namespace == key.namespace()
        });
        if let Some(uid) = found.map(|(uid, _)| uid.clone()) {
            self.terminate_deleted(&uid);
        }
    }

    fn terminate_deleted(&mut self, uid: &str) {
        let Some(entry) = self.entries.get_mut(uid) else { return };
        entry.deleted = true;
        match &entry.state {
            State::Working(messages, _) => {
                let _ = messages.send(WorkerMessage::Deleted);
            }
            State::Waiting | State::Rejected { .. } => {
                self.context.publications.pod_cache.forget(uid);
                self.entries.remove(uid);
            }
        }
    }

    /// Handles a pod that is new or has changed.
    pub fn upsert(&mut self, mut parsed: PodWithManifest, origin: ConfigSource) {
        if !self.context.state.node_env().qos_classes {
            Arc::make_mut(&mut parsed.pod).forget_classes();
        }
        let pod = Arc::clone(&parsed.pod);
        if origin == ConfigSource::Api && is_mirror(&pod) {
            return;
        }
        let uid = &pod.metadata.uid;
        // A pod replaces the previous one of the same name.
        let namesake = self.entries.iter().find(|(other, entry)| {
            let metadata = &entry.parsed.pod.metadata;
            *other != uid
                && entry.origin == origin
                && (&metadata.name, &metadata.namespace)
                    == (&pod.metadata.name, &pod.metadata.namespace)
        });
        if let Some(other) = namesake.map(|(other, _)| other.clone()) {
            self.terminate_deleted(&other);
        }
        self.context.publications.pod_cache.insert(&pod.metadata, Arc::clone(&parsed.text));
        let Some(entry) = self.entries.get_mut(uid) else {
            self.add(parsed, origin);
            return;
        };
        entry.parsed = parsed;
        match &entry.state {
            State::Working(..) => self.notify_worker_and_retry(uid),
            // It is removed like any other pod.
            State::Rejected { .. } | State::Waiting if pod.is_terminating() => {
                self.start_worker(&pod)
            }
            State::Waiting => entry.allocated = pod,
            State::Rejected { .. } => {}
        }
    }

    /// Adds a new pod and decides on its admission.
    fn add(&mut self, parsed: PodWithManifest, origin: ConfigSource) {
        let pod = self.as_allocated(&parsed.pod);
        let over = PodStatus::read(&pod.status).phase.is_terminal();
        let allocated = Arc::clone(&pod);
        let entry = Entry { resources_released: over, ..Entry::new(parsed, allocated, origin) };
        self.entries.insert(pod.metadata.uid.clone(), entry);
        // A pod that ends needs no admission.
        if over || pod.is_terminating() {
            self.start_worker(&pod);
        } else {
            self.try_admit(&pod);
        }
    }

    fn try_admit(&mut self, pod: &Arc<Pod>) {
        if self.waits_for_namesake(pod) {
            return;
        }
        let uid = pod.metadata.uid.clone();
        let demand = placement_demand(pod);
        let confirmed = self.context.state.ledger().confirm(&demand);
        if let Err(error) = confirmed {
            // Nothing was decided.
            self.admission_failed(pod, &error);
            return;
        }
        let mut planned: Option<PlannedPlacement> = None;
        let mut allocate = || -> Result<(), Rejection> {
            planned = Some(plan(&self.context, &demand).map_err(Rejection::Placement)?);
            Ok(())
        };
        let admission = if self.is_running(&uid) {
            // It was admitted before, so only its placement is planned.
            match allocate() {
                Ok(()) => Admission::Admitted,
                Err(rejection) => Admission::Rejected(rejection),
            }
        } else {
            let others = self.admitted_pods(&uid);
            let node = self.node.read().unwrap_or_else(PoisonError::into_inner);
            admit(pod, &node, &others, allocate)
        };
        match admission {
            Admission::Admitted => self.accept(pod, planned),
            Admission::AfterPreempting(victims) => {
                for victim in victims {
                    self.preempt(&victim);
                }
            }
            // It waits until the resources are released.
            Admission::Rejected(Rejection::Placement(refusal)) if self.awaits_release() => {
                let (pod, reason) = (pod.full_name(), refusal.to_string());
                debug!(pod, uid, reason, "the pod waits for resources of a deleted pod");
            }
            Admission::Rejected(rejection) => self.reject(pod, &rejection),
        }
    }

    /// Records that the state files could not be written. Admission is retried on the next change.
    fn admission_failed(&mut self, pod: &Pod, error: &LedgerError) {
        let uid = &pod.metadata.uid;
        if let Some(entry) = self.entries.get_mut(uid)
            && entry.admission_errors.failed(error)
        {
            warn!(pod = pod.full_name(), uid, %error, "failed to admit the pod; retrying on the next change");
        }
        self.context.recorder.pod(pod, AgentEvent::SyncFailed { error: error.to_string() });
    }

    /// Returns true if a deleted pod still has resources in the ledger.
    fn awaits_release(&self) -> bool {
        let ledger = self.context.state.ledger();
        let mut leaving =
            self.entries.iter().filter(|(_, entry)| entry.deleted && !entry.resources_released);
        leaving.any(|(uid, _)| ledger.holds(&PodUid::new(uid)))
    }

    fn accept(&mut self, pod: &Arc<Pod>, planned: Option<PlannedPlacement>) {
        let Some(planned) = planned else { return };
        let is_new = !self.is_running(&pod.metadata.uid);
        // A pod that runs without its placement, as after a change of policy, is reported like a new one.
        let had = !is_new && self.context.state.ledger().has(&planned.placement);
        let events = if had { Vec::new() } else { self.placement_events(&planned.placement) };
        let committed = self.context.state.ledger().commit(planned);
        match committed {
            Ok(()) => {}
            // A worker released resources in the meantime; this cannot go on forever.
            Err(LedgerError::Stale) => return self.try_admit(pod),
            Err(error) => {
                // Nothing was assigned.
                self.admission_failed(pod, &error);
                return;
            }
        }
        self.context.state.note_ledger_change();
        if is_new {
            self.context.metrics.sync.admitted_pod(pod);
            info!(pod = pod.full_name(), uid = pod.metadata.uid, "the pod is admitted");
        } else {
            info!(pod = pod.full_name(), uid = pod.metadata.uid, "the running pod is adopted");
        }
        for event in events {
            self.context.recorder.pod(pod, event);
        }
        self.note_allocated(pod);
        self.start_worker(pod);
        // Apply the current spec, if it changed while the agent was down.
        self.notify_worker(&pod.metadata.uid);
    }

    /// Returns the events about a new pod's placement.
    fn placement_events(&self, placement: &Placement) -> Vec<AgentEvent> {
        let ledger = self.context.state.ledger();
        let mut events = Vec::new();
        if let Some(placement) = placement.summary(ledger.node()) {
            events.push(AgentEvent::Placed { placement });
        }
        for (container, warning) in ledger.memory_warnings(placement) {
            warn!(%container, %warning, "memory affinity is not guaranteed on Windows");
            events.push(AgentEvent::MemoryAffinityNotGuaranteed { container, warning });
        }
        events
    }

    /// Publishes the known pods, once they are complete. This happens before anything is created for a pod,
    /// so that it is not mistaken for leftovers of a deleted one.
    fn publish_known_pods(&self) {
        let known = self.complete.then(|| Arc::new(self.entries.keys().cloned().collect()));
        self.context.publications.known_pods.send_if_modified(|before| {
            let is_new = *before != known;
            *before = known;
            is_new
        });
    }

    /// Publishes the pods that have resources of the node.
    fn publish(&self) {
        let active = self.entries.values().filter(|entry| !entry.resources_released);
        let active = active.filter(|entry| matches!(entry.state, State::Working(..)));
        let active = active.map(|entry| Arc::clone(&entry.allocated)).collect();
        self.context.publications.active.send_replace(Arc::new(active));
        self.publish_mirrors();
    }

    fn start_worker(&mut self, pod: &Arc<Pod>) {
        self.publish_known_pods();
        let Some(entry) = self.entries.get_mut(&pod.metadata.uid) else { return };
        let seen = self.context.clock.now().to_micros_text();
        let source = PodSource { origin: entry.origin, seen };
        let (messages, taken) = mpsc::unbounded_channel();
        let is_new = !self.summaries.contains_key(&pod.metadata.uid);
        let (context, own) = (Arc::clone(&self.context), Arc::clone(pod));
        let worker = Worker::new(context, own, source, is_new, taken);
        let reports = self.context.publications.reports.clone();
        let run = run_worker(worker.run(), Arc::clone(pod), entry.worker_backoff.clone(), reports);
        entry.state = State::Working(messages, tokio::spawn(run));
        self.publish();
    }

    /// Starts a new worker for a pod whose worker panicked. The worker observes the pod again, and gets the
    /// messages that the last one had received.
    fn replace_worker(&mut self, uid: &str) {
        let Some(entry) = self.entries.get(uid) else { return };
        let pod = Arc::clone(&entry.allocated);
        let messages = [
            entry.pending.clone().map(|pending| WorkerMessage::Resize(Some(pending))),
            entry.termination.clone().map(WorkerMessage::Terminate),
            entry.deleted.then_some(WorkerMessage::Deleted),
        ];
        info!(pod = pod.full_name(), uid, "starting a new worker for the pod");
        self.start_worker(&pod);
        for message in messages.into_iter().flatten() {
            self.send(uid, message);
        }
    }

    fn reject(&mut self, pod: &Arc<Pod>, rejection: &Rejection) {
        let (reason, message) = (rejection.reason(), rejection.to_string());
        let event = AgentEvent::Rejected { reason: reason.clone(), message: message.clone() };
        info!(
            pod = pod.full_name(),
            uid = pod.metadata.uid,
            reason,
            message,
            "the pod is rejected"
        );
        self.context.recorder.pod(pod, event);
        if let Rejection::Placement(refusal) = rejection {
            let evidence = refusal.evidence(&self.context.state.ledger().node().topology);
            if let Some(evidence) = evidence {
                let (pod_name, namespace) =
                    (pod.metadata.name.clone(), pod.metadata.namespace.clone());
                let event = AgentEvent::NotPlaced { evidence, pod: pod_name, namespace };
                self.context.recorder.pod(pod, event);
            }
        }
        if self.summaries.contains_key(&pod.metadata.uid) {
            // Its running containers must end.
            self.start_worker(pod);
            let cause = TerminationCause { reason, message, disruption: None };
            self.terminate(&pod.metadata.uid, Termination { cause, grace: None });
            return;
        }
        let refused = status::rejected(pod, &reason, &message);
        let subject = self.context.subject(pod);
        let status_writer =
            StatusWriter::start(self.context.api.clone(), subject, pod.status.clone());
        if let Ok(status) = status::merge(pod, refused, false, self.context.clock.now()) {
            let status = status.to_value();
            self.context.publications.pod_cache.set_status(&pod.metadata.uid, status.clone(), None);
            status_writer.set(status);
        }
        if let Some(entry) = self.entries.get_mut(&pod.metadata.uid) {
            entry.resources_released = true;
            entry.state = State::Rejected { _status_writer: status_writer };
        }
    }

    fn preempt(&mut self, uid: &str) {
        let Some(entry) = self.entries.get(uid) else { return };
        self.context.recorder.pod(&entry.parsed.pod, AgentEvent::Preempted);
        let message = "Preempted in order to admit critical pod".to_owned();
        let cause = TerminationCause {
            reason: "Preempting".to_owned(),
            disruption: Some(
                "Pod was preempted by Kubelet to accommodate a critical pod.".to_owned(),
            ),
            message,
        };
        self.terminate(uid, Termination { cause, grace: None });
    }

    /// Evicts a pod.
    pub fn evict(&mut self, uid: &str, termination: Termination) {
        if let Some(entry) = self.entries.get(uid) {
            let message = termination.cause.message.clone();
            self.context.recorder.pod(&entry.parsed.pod, AgentEvent::Evicted { message });
            self.terminate(uid, termination);
        }
    }

    /// Sends a termination to the pod's worker. The first one counts.
    fn terminate(&mut self, uid: &str, termination: Termination) {
        if let Some(entry) = self.entries.get_mut(uid) {
            entry.termination.get_or_insert_with(|| termination.clone());
            self.send(uid, WorkerMessage::Terminate(termination));
        }
    }

    fn send(&self, uid: &str, order: WorkerMessage) {
        if let Some(Entry { state: State::Working(messages, _), .. }) = self.entries.get(uid) {
            let _ = messages.send(order);
        }
    }

    /// Stops all pods. They are still wanted, so the next agent starts them again.
    pub async fn shutdown(mut self) {
        let is_lost = |entry: &Entry| matches!(&entry.state, State::Working(messages, _) if messages.is_closed());
        let lost = self.entries.iter().filter(|(_, entry)| is_lost(entry));
        let lost: Vec<String> = lost.map(|(uid, _)| uid.clone()).collect();
        for uid in lost {
            self.replace_worker(&uid);
        }
        let mut termination = Vec::new();
        for entry in self.entries.into_values() {
            if let State::Working(messages, worker) = entry.state {
                let _ = messages.send(WorkerMessage::Shutdown);
                termination.push((messages, worker));
            }
        }
        for (_orders, worker) in termination {
            // A worker that panics now is logged, and its containers keep running.
            let _ = worker.await;
        }
    }

    pub fn handle_probe_report(&self, report: ProbeReport) {
        let uid = report.pod.clone();
        self.send(&uid, WorkerMessage::ProbeReported(report));
    }

    /// Handles a relist of the runtime and notifies the workers of changed pods.
    pub fn handle_relist(&mut self, summaries: BTreeMap<String, PodSummary>) {
        for (uid, summary) in &summaries {
            if self.summaries.get(uid) != Some(summary) {
                self.send(uid, WorkerMessage::RuntimeChanged);
            }
        }
        for uid in self.summaries.keys().filter(|uid| !summaries.contains_key(*uid)) {
            self.send(uid, WorkerMessage::RuntimeChanged);
        }
        self.summaries = summaries;
        self.terminate_orphans();
    }

    /// Terminates pods in the runtime that no source has.
    fn terminate_orphans(&mut self) {
        if self.complete {
            self.terminate_unknown(&BTreeSet::new());
        }
    }

    /// Terminates pods in the runtime that have no entry and are not in `known`.
    fn terminate_unknown(&mut self, known: &BTreeSet<String>) {
        let unwanted: Vec<(String, PodSummary)> = self
            .summaries
            .iter()
            .filter(|(uid, _)| !self.entries.contains_key(*uid) && !known.contains(*uid))
            .map(|(uid, summary)| (uid.clone(), summary.clone()))
            .collect();
        for (uid, summary) in unwanted {
            self.context.metrics.sync.orphan();
            let metadata = Metadata {
                name: summary.name,
                namespace: summary.namespace,
                uid: uid.clone(),
                ..Metadata::default()
            };
            let pod = Arc::new(Pod { metadata, ..Pod::default() });
            let parsed = PodWithManifest { pod: Arc::clone(&pod), text: "".into() };
            let entry = Entry::new(parsed, Arc::clone(&pod), ConfigSource::Api);
            let entry = Entry { deleted: true, ..entry };
            info!(
                pod = pod.full_name(),
                uid, "terminating a pod of the runtime that no source has"
            );
            self.entries.insert(uid.clone(), entry);
            self.start_worker(&pod);
            self.send(&uid, WorkerMessage::Deleted);
        }
    }

    /// Handles reports of workers, then retries the pods that wait for resources.
    pub fn handle_worker_report(&mut self, report: WorkerReport) {
        match report {
            WorkerReport::ResourcesReleased(uid) => {
                if let Some(entry) = self.entries.get_mut(&uid) {
                    entry.resources_released = true;
                }
            }
            WorkerReport::Removed(uid) => {
                self.context.publications.pod_cache.forget(&uid);
                self.entries.remove(&uid);
                self.summaries.remove(&uid);
                self.static_pod_removed(&uid);
                self.forget_allocations();
            }
            WorkerReport::Panicked(uid, backoff) => {
                if let Some(entry) = self.entries.get_mut(&uid) {
                    entry.worker_backoff = backoff;
                }
                self.replace_worker(&uid);
            }
        }
        self.publish();
        self.publish_known_pods();
        self.retry_resizes();
        let waiting: Vec<Arc<Pod>> = self
            .entries
            .values()
            .filter(|entry| matches!(entry.state, State::Waiting))
            .map(|entry| Arc::clone(&entry.allocated))
            .collect();
        for pod in waiting {
            self.try_admit(&pod);
        }
    }
}

/// Runs a worker. After a panic, waits for the back-off and reports it, so that the pod gets a new worker.
async fn run_worker(
    worker: impl Future<Output = ()>,
    pod: Arc<Pod>,
    mut backoff: RestartBackoff,
    reports: mpsc::UnboundedSender<WorkerReport>,
) {
    let begun = Instant::now();
    let Err(cause) = caught(worker).await else { return };
    let uid = pod.metadata.uid.clone();
    let wait = backoff.failed(&uid, begun.elapsed());
    let (pod, retry_in_ms) = (pod.full_name(), millis(wait));
    error!(pod, uid, %cause, retry_in_ms, "a pod worker panicked; the pod gets a new one");
    tokio::time::sleep(wait).await;
    let _ = reports.send(WorkerReport::Panicked(uid, backoff));
}

/// Plans a placement and counts the result.
fn plan(context: &WorkerContext, demand: &Demand) -> Result<PlannedPlacement, Refusal> {
    let ledger = context.state.ledger();
    let begun = Instant::now();
    let planned = ledger.plan(demand);
    let placement = planned.as_ref().map(|planned| &planned.placement);
    context.metrics.placement.observe(ledger.node(), placement, begun.elapsed());
    planned
}

/// Returns true if it is a mirror of a static pod.
fn is_mirror(pod: &Pod) -> bool {
    Mirror::of(pod).is_some()
}

#[cfg(test)]
mod tests;
