//! All pods of the node: [`Pods`], which lets them in, gives each a worker and tells it what happens.
//!
//! ```text
//!   API, files ──▶ new? ──▶ admit ──▶ book ──▶ worker        orders: changed, gone, look, probed, end
//!                             └──▶ refused: told, and kept until it is deleted
//! ```
//!
//! One at a time, in the order in which pods were made, so that no two are let in for the same place.
//! What the runtime has and nobody wants is ended. Does not look at the runtime itself.

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
use crate::context::{Hands, Report};
use crate::ledger::file::{BookError, Planned};
use crate::observability::events::Told;
use crate::pods::static_pods::CONFIG_HASH;
use crate::pods::static_pods::mirror::Mirror;
use crate::pods::worker::{Ending, Order, Worker};
use crate::runtime::lower::{Origin, Source};
use crate::runtime::probes::ProbeReport;
use crate::runtime::relist::Brief;
use crate::spec::demand::placement_demand;
use crate::spec::{Metadata, Pod};
use crate::status::writer::Teller;
use crate::status::{self, End, PodStatus, ResizeSaid};

mod resize;
mod running_logs;
mod static_pods;

use static_pods::Files;

/// A pod as it came, beside the text of it.
#[derive(Debug, Clone)]
pub struct Read {
    pub pod: Arc<Pod>,
    pub text: Arc<str>,
}

impl Read {
    /// Returns the static pod under another UID.
    #[must_use]
    pub fn with_static_uid(&self, uid: &str) -> Read {
        let mut pod = Pod::clone(&self.pod);
        pod.metadata.uid = uid.to_owned();
        pod.metadata.annotations.insert(CONFIG_HASH.to_owned(), uid.to_owned());
        // The text of a manifest that was read is JSON.
        let mut text: Value = serde_json::from_str(&self.text).unwrap_or_default();
        text["metadata"]["uid"] = uid.into();
        text["metadata"]["annotations"][CONFIG_HASH] = uid.into();
        Read { pod: Arc::new(pod), text: text.to_string().into() }
    }
}

/// Reads a pod of the API.
pub fn read(raw: &RawValue) -> Result<Read, serde_json::Error> {
    let pod = serde_json::from_str(raw.get())?;
    Ok(Read { pod: Arc::new(pod), text: raw.get().into() })
}

#[derive(Debug)]
struct Entry {
    read: Read,
    /// The pod with what it was allocated, which is not what it asks for while a change has to wait.
    given: Arc<Pod>,
    /// Why a change has to wait.
    pending: Option<ResizeSaid>,
    origin: Origin,
    state: State,
    /// It has given back what it had.
    settled: bool,
    /// The API does not have it any more, or never had it.
    gone: bool,
}

#[derive(Debug)]
enum State {
    /// It waits for others to make room.
    Waiting,
    Working(mpsc::UnboundedSender<Order>, JoinHandle<()>),
    /// Kept for what it writes.
    Refused {
        _teller: Teller,
    },
}

/// All pods of the node.
#[derive(Debug)]
pub struct Pods {
    hands: Arc<Hands>,
    /// What there is of the node to decide by.
    node: Arc<RwLock<admission::Node>>,
    /// By uid.
    entries: BTreeMap<String, Entry>,
    /// The last look at the runtime.
    briefs: BTreeMap<String, Brief>,
    /// Changes from the API that arrived before the manifests of static pods were read.
    held: Vec<Change<Read>>,
    /// True if pods of the API and of files are known, so that decisions are made.
    complete: bool,
    files: Files,
}

impl Pods {
    #[must_use]
    pub fn new(
        hands: Arc<Hands>,
        node: Arc<RwLock<admission::Node>>,
        briefs: BTreeMap<String, Brief>,
    ) -> Pods {
        let files = Files::open(hands.volumes.root());
        let (entries, held) = (BTreeMap::new(), Vec::new());
        Pods { hands, node, entries, briefs, held, complete: false, files }
    }

    /// The pods, as the API has them.
    #[must_use]
    pub fn all(&self) -> Vec<Read> {
        self.entries.values().map(|entry| entry.read.clone()).collect()
    }

    /// Returns whether the pods of all sources are known and the running ones among them were placed.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Takes a change from the API.
    pub fn take_change(&mut self, change: Change<Read>) {
        self.files.note(&change);
        if !self.complete {
            self.held.push(change);
            self.begin_all();
            return;
        }
        match change {
            Change::Replaced { all, .. } => {
                let mut news: Vec<Read> = all.into_iter().map(|(_, _, read)| read).collect();
                self.gone_but(&news);
                news.sort_by_key(|read| self.rank(&read.pod));
                for read in news {
                    self.upsert(read, Origin::Api);
                }
                self.forget_allocations();
                self.end_unwanted();
            }
            Change::Applied { object, .. } => self.upsert(object, Origin::Api),
            Change::Removed { key, .. } => self.gone(&key),
            Change::UpTo { .. } => return,
        }
        self.publish_mirrors();
        self.publish_known();
    }

    /// Decides about all pods of the first look, once the API and the manifests have been read. Only then is
    /// it known which pods are gone, and what they had is free before any pod is admitted.
    fn begin_all(&mut self) {
        let is_list = |change: &Change<Read>| matches!(change, Change::Replaced { .. });
        if self.complete || !self.held.iter().any(is_list) || !self.files.are_read() {
            return;
        }
        let mut held = std::mem::take(&mut self.held).into_iter().skip_while(|of| !is_list(of));
        let Some(Change::Replaced { all, .. }) = held.next() else { return };
        let of_api = all.into_iter().map(|(_, _, read)| (read, Origin::Api));
        let of_files = self.files.wanted().into_iter().map(|read| (read, Origin::File));
        let mut news: Vec<(Read, Origin)> = of_api.chain(of_files).collect();
        let known: BTreeSet<&str> =
            news.iter().map(|(read, _)| read.pod.metadata.uid.as_str()).collect();
        self.release_forgotten(&known);
        let known: BTreeSet<String> = known.into_iter().map(str::to_owned).collect();
        self.end_all_but(&known);
        news.sort_by_key(|(read, _)| self.rank(&read.pod));
        for (read, origin) in news {
            match origin {
                Origin::File => self.begin_static(read),
                Origin::Api | Origin::Http => self.upsert(read, origin),
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

    /// Releases what the book has for pods that are not known and do not run.
    fn release_forgotten(&self, known: &BTreeSet<&str>) {
        let mut book = self.hands.book();
        let booked: Vec<PodUid> = book.ledger().pods().cloned().collect();
        for uid in booked {
            let runs = self.briefs.get(uid.as_str()).is_some_and(Brief::is_alive);
            if known.contains(uid.as_str()) || runs {
                continue;
            }
            match book.release(&uid) {
                Ok(_) => info!(%uid, "released what the book had for a pod that is gone"),
                // It is tried again with whatever else was left behind.
                Err(error) => warn!(%uid, %error, "the book"),
            }
        }
        drop(book);
        self.hands.note_booked();
    }

    /// Who runs already comes first, then who was made first.
    fn rank(&self, pod: &Pod) -> (bool, Option<String>, String) {
        let of = &pod.metadata;
        (!self.is_running(&of.uid), of.creation_timestamp.clone(), of.name.clone())
    }

    /// Whether it was let in before the agent was started.
    fn is_running(&self, uid: &str) -> bool {
        self.briefs.contains_key(uid) || self.hands.book().holds(&PodUid::new(uid))
    }

    /// Those of the API that are not in this list are gone.
    fn gone_but(&mut self, news: &[Read]) {
        let there: Vec<&str> = news.iter().map(|read| read.pod.metadata.uid.as_str()).collect();
        let gone: Vec<String> = self
            .entries
            .iter()
            .filter(|(uid, entry)| entry.origin == Origin::Api && !there.contains(&uid.as_str()))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in gone {
            self.end_gone(&uid);
        }
    }

    fn gone(&mut self, key: &Key) {
        let found = self.entries.iter().find(|(_, entry)| {
            let of = &entry.read.pod.metadata;
            entry.origin == Origin::Api && of.name == key.name() && of.namespace == key.namespace()
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
                let _ = orders.send(Order::Gone);
            }
            State::Waiting | State::Refused { .. } => {
                self.hands.board.forget(uid);
                self.entries.remove(uid);
            }
        }
    }

    /// Takes a pod that is new or has changed.
    pub fn upsert(&mut self, mut read: Read, origin: Origin) {
        if !self.hands.facts().qos_classes {
            Arc::make_mut(&mut read.pod).forget_classes();
        }
        let pod = Arc::clone(&read.pod);
        if origin == Origin::Api && is_mirror(&pod) {
            return;
        }
        let uid = &pod.metadata.uid;
        // Another one of the same name takes the place of the one that was there.
        let namesake = self.entries.iter().find(|(other, entry)| {
            let of = &entry.read.pod.metadata;
            *other != uid
                && entry.origin == origin
                && (&of.name, &of.namespace) == (&pod.metadata.name, &pod.metadata.namespace)
        });
        if let Some(other) = namesake.map(|(other, _)| other.clone()) {
            self.end_gone(&other);
        }
        self.hands.board.show(uid, Arc::clone(&read.text));
        let Some(entry) = self.entries.get_mut(uid) else {
            self.begin(read, origin);
            return;
        };
        entry.read = read;
        match &entry.state {
            State::Working(..) => self.tell_worker_and_others(uid),
            // It is taken away as any other.
            State::Refused { .. } | State::Waiting if pod.is_terminating() => self.work(&pod),
            State::Waiting => entry.given = pod,
            State::Refused { .. } => {}
        }
    }

    /// Lets a new pod in, or not.
    fn begin(&mut self, read: Read, origin: Origin) {
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
        // Nobody has to be let in to go.
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
        if let Err(error) = self.hands.book().confirm(&demand) {
            // Nothing was decided; it is tried again when something changes.
            self.hands.recorder.pod(pod, Told::SyncFailed { error: error.to_string() });
            return;
        }
        let mut planned: Option<Planned> = None;
        let mut allocate = || -> Result<(), Rejection> {
            planned = Some(plan(&self.hands, &demand).map_err(Rejection::Placement)?);
            Ok(())
        };
        let admission = if self.is_running(&uid) {
            // What it was let in for before it has still; only its place is looked up.
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
            // It stays waiting until the place is free.
            Admission::Rejected(Rejection::Placement(_)) if self.is_place_being_freed() => {}
            Admission::Rejected(rejection) => self.refuse(pod, &rejection),
        }
    }

    /// Returns whether a pod that is no longer wanted still has something in the book.
    fn is_place_being_freed(&self) -> bool {
        let book = self.hands.book();
        let mut leaving = self.entries.iter().filter(|(_, entry)| entry.gone && !entry.settled);
        leaving.any(|(uid, _)| book.holds(&PodUid::new(uid)))
    }

    fn let_in(&mut self, pod: &Arc<Pod>, planned: Option<Planned>) {
        let Some(planned) = planned else { return };
        let is_new = !self.is_running(&pod.metadata.uid);
        // A pod that runs without its place, as after a change of policy, is reported like a new one.
        let had = !is_new && self.hands.book().has(&planned.placement);
        let told = if had { Vec::new() } else { self.told_of(&planned.placement) };
        let committed = self.hands.book().commit(planned);
        match committed {
            Ok(()) => {}
            // A worker gave something back meanwhile, and will not for ever.
            Err(BookError::Stale) => return self.decide(pod),
            Err(error) => {
                // Nothing was handed out; it is tried again when something changes.
                self.hands.recorder.pod(pod, Told::SyncFailed { error: error.to_string() });
                return;
            }
        }
        self.hands.note_booked();
        if is_new {
            self.hands.counters.work.let_in(pod);
        }
        for told in told {
            self.hands.recorder.pod(pod, told);
        }
        self.note_allocated(pod);
        self.work(pod);
        // What it asks for by now, if the agent was not there when it was asked.
        self.tell_worker(&pod.metadata.uid);
    }

    /// What there is to say of a new pod's place.
    fn told_of(&self, placement: &Placement) -> Vec<Told> {
        let book = self.hands.book();
        let mut told = Vec::new();
        if let Some(placement) = placement.summary(book.node()) {
            told.push(Told::Placed { placement });
        }
        for (container, warning) in book.memory_warnings(placement) {
            warn!(%container, %warning, "memory affinity is not guaranteed on Windows");
            told.push(Told::MemoryAffinityNotGuaranteed { container, warning });
        }
        told
    }

    /// Tells which pods there are, once that is known. Done before anything is made for a pod, so that it
    /// is not taken for what one that is gone left behind.
    fn publish_known(&self) {
        let known = self.complete.then(|| Arc::new(self.entries.keys().cloned().collect()));
        self.hands.known_pods.send_if_modified(|before| {
            let is_news = *before != known;
            *before = known;
            is_news
        });
    }

    /// Tells who has something of the node.
    fn publish(&self) {
        let active = self.entries.values().filter(|entry| !entry.settled);
        let active = active.filter(|entry| matches!(entry.state, State::Working(..)));
        let active = active.map(|entry| Arc::clone(&entry.given)).collect();
        self.hands.active.send_replace(Arc::new(active));
        self.publish_mirrors();
    }

    fn work(&mut self, pod: &Arc<Pod>) {
        self.publish_known();
        let Some(entry) = self.entries.get_mut(&pod.metadata.uid) else { return };
        let seen = self.hands.clock.now().to_micros_text();
        let source = Source { origin: entry.origin, seen };
        let (orders, taken) = mpsc::unbounded_channel();
        let is_new = !self.briefs.contains_key(&pod.metadata.uid);
        let (hands, own) = (Arc::clone(&self.hands), Arc::clone(pod));
        let worker = Worker::new(hands, own, source, is_new, taken);
        entry.state = State::Working(orders, tokio::spawn(worker.run()));
        self.publish();
    }

    fn refuse(&mut self, pod: &Arc<Pod>, rejection: &Rejection) {
        let (reason, message) = (rejection.reason(), rejection.to_string());
        let told = Told::Rejected { reason: reason.clone(), message: message.clone() };
        self.hands.recorder.pod(pod, told);
        if let Rejection::Placement(refusal) = rejection {
            let evidence = refusal.evidence(&self.hands.book().node().topology);
            if let Some(evidence) = evidence {
                let (pod_name, namespace) =
                    (pod.metadata.name.clone(), pod.metadata.namespace.clone());
                let told = Told::NotPlaced { evidence, pod: pod_name, namespace };
                self.hands.recorder.pod(pod, told);
            }
        }
        if self.briefs.contains_key(&pod.metadata.uid) {
            // What runs of it has to end.
            self.work(pod);
            let end = End { reason, message, disruption: None };
            self.send(&pod.metadata.uid, Order::End(Ending { end, grace: None }));
            return;
        }
        let refused = status::rejected(pod, &reason, &message);
        let subject = self.hands.subject(pod);
        let teller = Teller::start(self.hands.api.clone(), subject, pod.status.clone());
        if let Ok(status) = status::merge(pod, refused, false, self.hands.clock.now()) {
            let status = status.to_value();
            self.hands.board.show_status(&pod.metadata.uid, status.clone(), None);
            teller.tell(status);
        }
        if let Some(entry) = self.entries.get_mut(&pod.metadata.uid) {
            entry.settled = true;
            entry.state = State::Refused { _teller: teller };
        }
    }

    fn preempt(&self, uid: &str) {
        let Some(entry) = self.entries.get(uid) else { return };
        self.hands.recorder.pod(&entry.read.pod, Told::Preempted);
        let message = "Preempted in order to admit critical pod".to_owned();
        let end = End {
            reason: "Preempting".to_owned(),
            disruption: Some(
                "Pod was preempted by Kubelet to accommodate a critical pod.".to_owned(),
            ),
            message,
        };
        self.send(uid, Order::End(Ending { end, grace: None }));
    }

    /// Ends a pod for a reason of the node's.
    pub fn evict(&self, uid: &str, ending: Ending) {
        if let Some(entry) = self.entries.get(uid) {
            let message = ending.end.message.clone();
            self.hands.recorder.pod(&entry.read.pod, Told::Evicted { message });
            self.send(uid, Order::End(ending));
        }
    }

    fn send(&self, uid: &str, order: Order) {
        if let Some(Entry { state: State::Working(orders, _), .. }) = self.entries.get(uid) {
            let _ = orders.send(order);
        }
    }

    /// Stops everything that runs. What is wanted stays wanted: the next agent starts it anew.
    pub async fn halt(self) {
        let mut ending = Vec::new();
        for entry in self.entries.into_values() {
            if let State::Working(orders, worker) = entry.state {
                let _ = orders.send(Order::Halt);
                ending.push((orders, worker));
            }
        }
        for (_orders, worker) in ending {
            // One that failed stops nothing any more.
            let _ = worker.await;
        }
    }

    pub fn take_probe(&self, report: ProbeReport) {
        let uid = report.pod.clone();
        self.send(&uid, Order::Probe(report));
    }

    /// Takes another look at the runtime: whoever changed is told.
    pub fn take_look(&mut self, briefs: BTreeMap<String, Brief>) {
        for (uid, brief) in &briefs {
            if self.briefs.get(uid) != Some(brief) {
                self.send(uid, Order::Look);
            }
        }
        for uid in self.briefs.keys().filter(|uid| !briefs.contains_key(*uid)) {
            self.send(uid, Order::Look);
        }
        self.briefs = briefs;
        self.end_unwanted();
    }

    /// Ends what the runtime has of pods that nobody knows.
    fn end_unwanted(&mut self) {
        if self.complete {
            self.end_all_but(&BTreeSet::new());
        }
    }

    /// Ends what the runtime has of pods that have no entry and are not among those of `known`.
    fn end_all_but(&mut self, known: &BTreeSet<String>) {
        let unwanted: Vec<(String, Brief)> = self
            .briefs
            .iter()
            .filter(|(uid, _)| !self.entries.contains_key(*uid) && !known.contains(*uid))
            .map(|(uid, brief)| (uid.clone(), brief.clone()))
            .collect();
        for (uid, brief) in unwanted {
            self.hands.counters.work.orphan();
            let metadata = Metadata {
                name: brief.name,
                namespace: brief.namespace,
                uid: uid.clone(),
                ..Metadata::default()
            };
            let pod = Arc::new(Pod { metadata, ..Pod::default() });
            let read = Read { pod: Arc::clone(&pod), text: "".into() };
            let entry = Entry {
                read,
                given: Arc::clone(&pod),
                pending: None,
                origin: Origin::Api,
                state: State::Waiting,
                settled: false,
                gone: true,
            };
            self.entries.insert(uid.clone(), entry);
            self.work(&pod);
            self.send(&uid, Order::Gone);
        }
    }

    /// Takes what workers report; whoever waited for room is looked at again.
    pub fn take_report(&mut self, report: Report) {
        match report {
            Report::Settled(uid) => {
                if let Some(entry) = self.entries.get_mut(&uid) {
                    entry.settled = true;
                }
            }
            Report::Over(uid) => {
                self.hands.board.forget(&uid);
                self.entries.remove(&uid);
                self.briefs.remove(&uid);
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

/// Where a pod would go; what there is to count is counted.
fn plan(hands: &Hands, demand: &Demand) -> Result<Planned, Refusal> {
    let book = hands.book();
    let begun = Instant::now();
    let planned = book.plan(demand);
    let told = planned.as_ref().map(|planned| &planned.placement);
    hands.counters.placements.tell(book.node(), told, begun.elapsed());
    planned
}

/// Whether it only shows a static pod.
fn is_mirror(pod: &Pod) -> bool {
    Mirror::of(pod).is_some()
}
