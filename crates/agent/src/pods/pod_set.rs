//! All pods of the node: [`PodSet`] admits them, starts a worker for each and forwards events to it.
//!
//! ```text
//!   API, files ──▶ new? ──▶ admit ──▶ ledger ──▶ worker    messages: changed, gone, look, probed, end
//!                             └──▶ rejected: reported, and kept until it is deleted
//! ```
//!
//! Pods are admitted one at a time, in order of creation, so that no two get the same resources. Pods in the
//! runtime that have no source are terminated. This module does not query the runtime.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use client::{Change, Key};
use placement::demand::{Demand, PodUid};
use placement::{Placement, Refusal};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::admission::{self, Admission, Rejection, admit};
use crate::context::{AgentContext, WorkerReport};
use crate::ledger::file::{LedgerError, PlannedPlacement};
use crate::observability::events::AgentEvent;
use crate::pods::static_pods::CONFIG_HASH;
use crate::pods::static_pods::mirror::Mirror;
use crate::pods::worker::{Termination, Worker, WorkerMessage};
use crate::runtime::lower::{ConfigSource, PodSource};
use crate::runtime::probes::ProbeReport;
use crate::runtime::relist::PodSummary;
use crate::spec::demand::placement_demand;
use crate::spec::{Metadata, Pod};
use crate::status::writer::StatusWriter;
use crate::status::{self, PodStatus, ResizeOutcome, TerminationCause};

mod resize;
mod running_logs;
mod static_pods;

use static_pods::StaticPods;

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

/// Parses a pod of the API.
pub fn read(raw: &RawValue) -> Result<PodWithManifest, serde_json::Error> {
    let pod = serde_json::from_str(raw.get())?;
    Ok(PodWithManifest { pod: Arc::new(pod), text: raw.get().into() })
}

#[derive(Debug)]
struct Entry {
    read: PodWithManifest,
    /// The pod with its allocated resources, which differ from its spec while a resize is pending.
    given: Arc<Pod>,
    /// The reason why a resize is pending.
    pending: Option<ResizeOutcome>,
    origin: ConfigSource,
    state: State,
    /// Its resources were released.
    settled: bool,
    /// The API no longer has it, or never had it.
    gone: bool,
}

#[derive(Debug)]
enum State {
    /// It waits for other pods to release resources.
    Waiting,
    Working(mpsc::UnboundedSender<WorkerMessage>, JoinHandle<()>),
    /// Kept because of its status writer.
    Refused {
        _teller: StatusWriter,
    },
}

/// All pods of the node.
#[derive(Debug)]
pub struct PodSet {
    context: Arc<AgentContext>,
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
        context: Arc<AgentContext>,
        node: Arc<RwLock<admission::Node>>,
        summaries: BTreeMap<String, PodSummary>,
    ) -> PodSet {
        let files = StaticPods::open(context.volumes.root());
        let (entries, held) = (BTreeMap::new(), Vec::new());
        PodSet { context, node, entries, summaries, held, complete: false, files }
    }

    /// Returns the pods as the API has them.
    #[must_use]
    pub fn all(&self) -> Vec<PodWithManifest> {
        self.entries.values().map(|entry| entry.read.clone()).collect()
    }

    /// Returns true if the pods of all sources are known and the running ones among them were placed.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Handles a change from the API.
    pub fn take_change(&mut self, change: Change<PodWithManifest>) {
        self.files.note(&change);
        if !self.complete {
            self.held.push(change);
            self.begin_all();
            return;
        }
        match change {
            Change::Replaced { all, .. } => {
                let mut news: Vec<PodWithManifest> =
                    all.into_iter().map(|(_, _, read)| read).collect();
                self.gone_but(&news);
                news.sort_by_key(|read| self.rank(&read.pod));
                for read in news {
                    self.upsert(read, ConfigSource::Api);
                }
                self.forget_allocations();
                self.end_unwanted();
            }
            Change::Applied { object, .. } => self.upsert(object, ConfigSource::Api),
            Change::Removed { key, .. } => self.gone(&key),
            Change::UpTo { .. } => return,
        }
        self.publish_mirrors();
        self.publish_known();
    }

    /// Decides about the pods of the first list, once the API and the manifests have been read. Only then it
    /// is known which pods are gone, and their resources are released before any pod is admitted.
    fn begin_all(&mut self) {
        let is_list = |change: &Change<PodWithManifest>| matches!(change, Change::Replaced { .. });
        if self.complete || !self.held.iter().any(is_list) || !self.files.are_read() {
            return;
        }
        let mut held = std::mem::take(&mut self.held).into_iter().skip_while(|of| !is_list(of));
        let Some(Change::Replaced { all, .. }) = held.next() else { return };
        let of_api = all.into_iter().map(|(_, _, read)| (read, ConfigSource::Api));
        let of_files = self.files.wanted().into_iter().map(|read| (read, ConfigSource::File));
        let mut news: Vec<(PodWithManifest, ConfigSource)> = of_api.chain(of_files).collect();
        let known: BTreeSet<&str> =
            news.iter().map(|(read, _)| read.pod.metadata.uid.as_str()).collect();
        self.release_forgotten(&known);
        let known: BTreeSet<String> = known.into_iter().map(str::to_owned).collect();
        self.end_all_but(&known);
        news.sort_by_key(|(read, _)| self.rank(&read.pod));
        for (read, origin) in news {
            match origin {
                ConfigSource::File => self.begin_static(read),
                ConfigSource::Api | ConfigSource::Http => self.upsert(read, origin),
            }
        }
        self.complete = true;
        self.forget_allocations();
        self.publish();
        self.publish_known();
        for change in held {
            self.take_change(change);
        }
    }

    /// Releases the ledger's resources of pods that are unknown and not running.
    fn release_forgotten(&self, known: &BTreeSet<&str>) {
        let mut book = self.context.book();
        let booked: Vec<PodUid> = book.ledger().pods().cloned().collect();
        for uid in booked {
            let runs = self.summaries.get(uid.as_str()).is_some_and(PodSummary::is_alive);
            if known.contains(uid.as_str()) || runs {
                continue;
            }
            match book.release(&uid) {
                Ok(_) => info!(%uid, "released CPUs and memory of a deleted pod"),
                // It is retried with other leftovers.
                Err(error) => {
                    warn!(%uid, %error, "failed to release CPUs and memory of a deleted pod")
                }
            }
        }
        drop(book);
        self.context.note_booked();
    }

    /// Orders running pods first, then by creation time.
    fn rank(&self, pod: &Pod) -> (bool, Option<String>, String) {
        let of = &pod.metadata;
        (!self.is_running(&of.uid), of.creation_timestamp.clone(), of.name.clone())
    }

    /// Returns true if the pod was admitted before the agent started.
    fn is_running(&self, uid: &str) -> bool {
        self.summaries.contains_key(uid) || self.context.book().holds(&PodUid::new(uid))
    }

    /// Marks the API's pods that are not in this list as gone.
    fn gone_but(&mut self, news: &[PodWithManifest]) {
        let there: Vec<&str> = news.iter().map(|read| read.pod.metadata.uid.as_str()).collect();
        let gone: Vec<String> = self
            .entries
            .iter()
            .filter(|(uid, entry)| {
                entry.origin == ConfigSource::Api && !there.contains(&uid.as_str())
            })
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in gone {
            self.end_gone(&uid);
        }
    }

    fn gone(&mut self, key: &Key) {
        let found = self.entries.iter().find(|(_, entry)| {
            let of = &entry.read.pod.metadata;
            entry.origin == ConfigSource::Api
                && of.name == key.name()
                && of.namespace == key.namespace()
        });
        if let Some(uid) = found.map(|(uid, _)| uid.clone()) {
            self.end_gone(&uid);
        }
    }

    fn end_gone(&mut self, uid: &str) {
        let Some(entry) = self.entries.get_mut(uid) else { return };
        entry.gone = true;
        match &entry.state {
            State::Working(orders, _) => {
                let _ = orders.send(WorkerMessage::Gone);
            }
            State::Waiting | State::Refused { .. } => {
                self.context.board.forget(uid);
                self.entries.remove(uid);
            }
        }
    }

    /// Handles a pod that is new or has changed.
    pub fn upsert(&mut self, mut read: PodWithManifest, origin: ConfigSource) {
        if !self.context.facts().qos_classes {
            Arc::make_mut(&mut read.pod).forget_classes();
        }
        let pod = Arc::clone(&read.pod);
        if origin == ConfigSource::Api && is_mirror(&pod) {
            return;
        }
        let uid = &pod.metadata.uid;
        // A pod replaces the previous one of the same name.
        let namesake = self.entries.iter().find(|(other, entry)| {
            let of = &entry.read.pod.metadata;
            *other != uid
                && entry.origin == origin
                && (&of.name, &of.namespace) == (&pod.metadata.name, &pod.metadata.namespace)
        });
        if let Some(other) = namesake.map(|(other, _)| other.clone()) {
            self.end_gone(&other);
        }
        self.context.board.show(uid, Arc::clone(&read.text));
        let Some(entry) = self.entries.get_mut(uid) else {
            self.begin(read, origin);
            return;
        };
        entry.read = read;
        match &entry.state {
            State::Working(..) => self.tell_worker_and_others(uid),
            // It is removed like any other pod.
            State::Refused { .. } | State::Waiting if pod.is_terminating() => self.work(&pod),
            State::Waiting => entry.given = pod,
            State::Refused { .. } => {}
        }
    }

    /// Adds a new pod and decides on its admission.
    fn begin(&mut self, read: PodWithManifest, origin: ConfigSource) {
        let pod = self.as_allocated(&read.pod);
        let over = PodStatus::read(&pod.status).phase.is_terminal();
        let given = Arc::clone(&pod);
        let entry = Entry {
            read,
            given,
            pending: None,
            origin,
            state: State::Waiting,
            settled: over,
            gone: false,
        };
        self.entries.insert(pod.metadata.uid.clone(), entry);
        // A pod that ends needs no admission.
        if over || pod.is_terminating() {
            self.work(&pod);
        } else {
            self.decide(&pod);
        }
    }

    fn decide(&mut self, pod: &Arc<Pod>) {
        if self.waits_for_namesake(pod) {
            return;
        }
        let uid = pod.metadata.uid.clone();
        let demand = placement_demand(pod);
        if let Err(error) = self.context.book().confirm(&demand) {
            // Nothing was decided; retried on the next change.
            self.context.recorder.pod(pod, AgentEvent::SyncFailed { error: error.to_string() });
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
            let others = self.neighbours(&uid);
            let node = self.node.read().unwrap_or_else(PoisonError::into_inner);
            admit(pod, &node, &others, allocate)
        };
        match admission {
            Admission::Admitted => self.let_in(pod, planned),
            Admission::AfterPreempting(victims) => {
                for victim in victims {
                    self.preempt(&victim);
                }
            }
            // It waits until the resources are released.
            Admission::Rejected(Rejection::Placement(_)) if self.is_place_being_freed() => {}
            Admission::Rejected(rejection) => self.refuse(pod, &rejection),
        }
    }

    /// Returns true if a pod that is gone still has resources in the ledger.
    fn is_place_being_freed(&self) -> bool {
        let book = self.context.book();
        let mut leaving = self.entries.iter().filter(|(_, entry)| entry.gone && !entry.settled);
        leaving.any(|(uid, _)| book.holds(&PodUid::new(uid)))
    }

    fn let_in(&mut self, pod: &Arc<Pod>, planned: Option<PlannedPlacement>) {
        let Some(planned) = planned else { return };
        let is_new = !self.is_running(&pod.metadata.uid);
        // A pod that runs without its placement, as after a change of policy, is reported like a new one.
        let had = !is_new && self.context.book().has(&planned.placement);
        let told = if had { Vec::new() } else { self.told_of(&planned.placement) };
        let committed = self.context.book().commit(planned);
        match committed {
            Ok(()) => {}
            // A worker released resources in the meantime; this cannot go on forever.
            Err(LedgerError::Stale) => return self.decide(pod),
            Err(error) => {
                // Nothing was assigned; retried on the next change.
                self.context.recorder.pod(pod, AgentEvent::SyncFailed { error: error.to_string() });
                return;
            }
        }
        self.context.note_booked();
        if is_new {
            self.context.metrics.work.let_in(pod);
        }
        for told in told {
            self.context.recorder.pod(pod, told);
        }
        self.note_allocated(pod);
        self.work(pod);
        // Apply the current spec, if it changed while the agent was down.
        self.tell_worker(&pod.metadata.uid);
    }

    /// Returns the events about a new pod's placement.
    fn told_of(&self, placement: &Placement) -> Vec<AgentEvent> {
        let book = self.context.book();
        let mut told = Vec::new();
        if let Some(placement) = placement.summary(book.node()) {
            told.push(AgentEvent::Placed { placement });
        }
        for (container, warning) in book.memory_warnings(placement) {
            warn!(%container, %warning, "memory affinity is not guaranteed on Windows");
            told.push(AgentEvent::MemoryAffinityNotGuaranteed { container, warning });
        }
        told
    }

    /// Publishes the known pods, once they are complete. This happens before anything is created for a pod,
    /// so that it is not mistaken for leftovers of a deleted one.
    fn publish_known(&self) {
        let known = self.complete.then(|| Arc::new(self.entries.keys().cloned().collect()));
        self.context.known_pods.send_if_modified(|before| {
            let is_news = *before != known;
            *before = known;
            is_news
        });
    }

    /// Publishes the pods that have resources of the node.
    fn publish(&self) {
        let active = self.entries.values().filter(|entry| !entry.settled);
        let active = active.filter(|entry| matches!(entry.state, State::Working(..)));
        let active = active.map(|entry| Arc::clone(&entry.given)).collect();
        self.context.active.send_replace(Arc::new(active));
        self.publish_mirrors();
    }

    fn work(&mut self, pod: &Arc<Pod>) {
        self.publish_known();
        let Some(entry) = self.entries.get_mut(&pod.metadata.uid) else { return };
        let seen = self.context.clock.now().to_micros_text();
        let source = PodSource { origin: entry.origin, seen };
        let (orders, taken) = mpsc::unbounded_channel();
        let is_new = !self.summaries.contains_key(&pod.metadata.uid);
        let (context, own) = (Arc::clone(&self.context), Arc::clone(pod));
        let worker = Worker::new(context, own, source, is_new, taken);
        entry.state = State::Working(orders, tokio::spawn(worker.run()));
        self.publish();
    }

    fn refuse(&mut self, pod: &Arc<Pod>, rejection: &Rejection) {
        let (reason, message) = (rejection.reason(), rejection.to_string());
        let told = AgentEvent::Rejected { reason: reason.clone(), message: message.clone() };
        self.context.recorder.pod(pod, told);
        if let Rejection::Placement(refusal) = rejection {
            let evidence = refusal.evidence(&self.context.book().node().topology);
            if let Some(evidence) = evidence {
                let (pod_name, namespace) =
                    (pod.metadata.name.clone(), pod.metadata.namespace.clone());
                let told = AgentEvent::NotPlaced { evidence, pod: pod_name, namespace };
                self.context.recorder.pod(pod, told);
            }
        }
        if self.summaries.contains_key(&pod.metadata.uid) {
            // Its running containers must end.
            self.work(pod);
            let end = TerminationCause { reason, message, disruption: None };
            self.send(
                &pod.metadata.uid,
                WorkerMessage::Terminate(Termination { end, grace: None }),
            );
            return;
        }
        let refused = status::rejected(pod, &reason, &message);
        let subject = self.context.subject(pod);
        let teller = StatusWriter::start(self.context.api.clone(), subject, pod.status.clone());
        if let Ok(status) = status::merge(pod, refused, false, self.context.clock.now()) {
            let status = status.to_value();
            self.context.board.show_status(&pod.metadata.uid, status.clone(), None);
            teller.tell(status);
        }
        if let Some(entry) = self.entries.get_mut(&pod.metadata.uid) {
            entry.settled = true;
            entry.state = State::Refused { _teller: teller };
        }
    }

    fn preempt(&self, uid: &str) {
        let Some(entry) = self.entries.get(uid) else { return };
        self.context.recorder.pod(&entry.read.pod, AgentEvent::Preempted);
        let message = "Preempted in order to admit critical pod".to_owned();
        let end = TerminationCause {
            reason: "Preempting".to_owned(),
            disruption: Some(
                "Pod was preempted by Kubelet to accommodate a critical pod.".to_owned(),
            ),
            message,
        };
        self.send(uid, WorkerMessage::Terminate(Termination { end, grace: None }));
    }

    /// Terminates a pod because of node pressure.
    pub fn evict(&self, uid: &str, ending: Termination) {
        if let Some(entry) = self.entries.get(uid) {
            let message = ending.end.message.clone();
            self.context.recorder.pod(&entry.read.pod, AgentEvent::Evicted { message });
            self.send(uid, WorkerMessage::Terminate(ending));
        }
    }

    fn send(&self, uid: &str, order: WorkerMessage) {
        if let Some(Entry { state: State::Working(orders, _), .. }) = self.entries.get(uid) {
            let _ = orders.send(order);
        }
    }

    /// Stops all pods. They stay bound to the node: the next agent starts them again.
    pub async fn halt(self) {
        let mut ending = Vec::new();
        for entry in self.entries.into_values() {
            if let State::Working(orders, worker) = entry.state {
                let _ = orders.send(WorkerMessage::Halt);
                ending.push((orders, worker));
            }
        }
        for (_orders, worker) in ending {
            // A worker that panicked stops nothing more.
            let _ = worker.await;
        }
    }

    pub fn take_probe(&self, report: ProbeReport) {
        let uid = report.pod.clone();
        self.send(&uid, WorkerMessage::Probe(report));
    }

    /// Handles a relist of the runtime and notifies the workers of changed pods.
    pub fn take_look(&mut self, summaries: BTreeMap<String, PodSummary>) {
        for (uid, summary) in &summaries {
            if self.summaries.get(uid) != Some(summary) {
                self.send(uid, WorkerMessage::Look);
            }
        }
        for uid in self.summaries.keys().filter(|uid| !summaries.contains_key(*uid)) {
            self.send(uid, WorkerMessage::Look);
        }
        self.summaries = summaries;
        self.end_unwanted();
    }

    /// Terminates pods in the runtime that no source has.
    fn end_unwanted(&mut self) {
        if self.complete {
            self.end_all_but(&BTreeSet::new());
        }
    }

    /// Terminates pods in the runtime that have no entry and are not in `known`.
    fn end_all_but(&mut self, known: &BTreeSet<String>) {
        let unwanted: Vec<(String, PodSummary)> = self
            .summaries
            .iter()
            .filter(|(uid, _)| !self.entries.contains_key(*uid) && !known.contains(*uid))
            .map(|(uid, summary)| (uid.clone(), summary.clone()))
            .collect();
        for (uid, summary) in unwanted {
            self.context.metrics.work.orphan();
            let metadata = Metadata {
                name: summary.name,
                namespace: summary.namespace,
                uid: uid.clone(),
                ..Metadata::default()
            };
            let pod = Arc::new(Pod { metadata, ..Pod::default() });
            let read = PodWithManifest { pod: Arc::clone(&pod), text: "".into() };
            let entry = Entry {
                read,
                given: Arc::clone(&pod),
                pending: None,
                origin: ConfigSource::Api,
                state: State::Waiting,
                settled: false,
                gone: true,
            };
            self.entries.insert(uid.clone(), entry);
            self.work(&pod);
            self.send(&uid, WorkerMessage::Gone);
        }
    }

    /// Handles reports of workers, then retries the pods that wait for resources.
    pub fn take_report(&mut self, report: WorkerReport) {
        match report {
            WorkerReport::Settled(uid) => {
                if let Some(entry) = self.entries.get_mut(&uid) {
                    entry.settled = true;
                }
            }
            WorkerReport::Over(uid) => {
                self.context.board.forget(&uid);
                self.entries.remove(&uid);
                self.summaries.remove(&uid);
                self.static_is_over(&uid);
                self.forget_allocations();
            }
        }
        self.publish();
        self.publish_known();
        self.retry_resizes();
        let waiting: Vec<Arc<Pod>> = self
            .entries
            .values()
            .filter(|entry| matches!(entry.state, State::Waiting))
            .map(|entry| Arc::clone(&entry.given))
            .collect();
        for pod in waiting {
            self.decide(&pod);
        }
    }
}

/// Plans a placement and counts the result.
fn plan(context: &AgentContext, demand: &Demand) -> Result<PlannedPlacement, Refusal> {
    let book = context.book();
    let begun = Instant::now();
    let planned = book.plan(demand);
    let told = planned.as_ref().map(|planned| &planned.placement);
    context.metrics.placements.tell(book.node(), told, begun.elapsed());
    planned
}

/// Returns true if it is a mirror of a static pod.
fn is_mirror(pod: &Pod) -> bool {
    Mirror::of(pod).is_some()
}
