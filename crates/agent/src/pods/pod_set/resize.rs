//! What pods are allocated while they run: another amount is admitted as a new pod would be, and until
//! then a pod goes on with what it has.
//!
//! What was allocated is on disk, and CPUs in the book, before a worker hears of it. Applying it is the
//! worker's.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use placement::Refusal;
use placement::cpu::CpuRefusal;
use placement::node::{CpuPolicy, MemoryPolicy};
use placement::plan::Surplus;
use tracing::warn;

use super::{Entry, Pods, State};
use crate::admission::{Neighbour, Rejection};
use crate::context::Hands;
use crate::ledger::allocations::PodGiven;
use crate::observability::events::{ResizeStep, Told};
use crate::pods::resize::{self, Infeasible, Refused, Rules};
use crate::pods::worker::Order;
use crate::spec::Pod;
use crate::spec::demand::placement_demand;
use crate::status::{PodStatus, ResizeSaid};

/// Reasons of the condition `PodResizePending`.
const DEFERRED: &str = "Deferred";
const INFEASIBLE: &str = "Infeasible";

impl Pods {
    /// The pod with what it was allocated before the agent was started, if it was.
    pub(super) fn as_allocated(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        match self.hands.allocations().allocated(&pod.metadata.uid) {
            Some(given) if !given.agrees(&PodGiven::of(pod)) => Arc::new(given.put(pod)),
            _ => Arc::clone(pod),
        }
    }

    /// Writes down what a pod that was let in has.
    pub(super) fn note_allocated(&self, pod: &Pod) {
        let noted = self.hands.allocations().allocate(&pod.metadata.uid, PodGiven::of(pod));
        if let Err(error) = noted {
            // Only a change that the API takes while no agent runs would be missed.
            warn!(%error, pod = pod.full_name(), "what the pod has is not written down");
        }
    }

    /// What was written down of pods that are gone is of no use.
    pub(super) fn forget_allocations(&self) {
        let entries = &self.entries;
        if let Err(error) = self.hands.allocations().keep(|uid| entries.contains_key(uid)) {
            warn!(%error, "pods that are gone are still written down");
        }
    }

    /// A pod with a worker is wanted in another way, or room was made: the worker is told what holds.
    /// Whether the pod was given something else.
    pub(super) fn tell_worker(&mut self, uid: &str) -> bool {
        let Some(entry) = self.entries.get(uid) else { return false };
        let wanted = Arc::clone(&entry.read.pod);
        let over = entry.settled || PodStatus::read(&wanted.status).phase.is_terminal();
        let given = self.as_allocated(&wanted);
        let asks = !Arc::ptr_eq(&wanted, &given);
        let mut allocated = false;
        let (given, pending) = match asks && !over && !wanted.is_terminating() {
            false => (given, None),
            true => match self.allocate(&wanted, &given) {
                Ok(()) => {
                    allocated = true;
                    (wanted, None)
                }
                Err(refused) => {
                    let said = said(&refused, wanted.metadata.generation);
                    self.tell_refused(&wanted, &refused, &said);
                    (given, Some(said))
                }
            },
        };
        let Some(entry) = self.entries.get_mut(uid) else { return false };
        let State::Working(orders, _) = &entry.state else { return false };
        if entry.pending != pending {
            let _ = orders.send(Order::Resize(pending.clone()));
        }
        let _ = orders.send(Order::Pod(Arc::clone(&given)));
        (entry.given, entry.pending) = (given, pending);
        if allocated {
            self.publish();
        }
        allocated
    }

    /// The same; and if the pod was given something else, others may be given what it had.
    pub(super) fn tell_worker_and_others(&mut self, uid: &str) {
        if self.tell_worker(uid) {
            self.retry_resizes();
        }
    }

    /// Gives a pod what it asks for, or says why not.
    fn allocate(&mut self, wanted: &Arc<Pod>, given: &Arc<Pod>) -> Result<(), Refused> {
        let uid = &wanted.metadata.uid;
        self.judge(wanted, given)?;
        let hands = &self.hands;
        let demand = placement_demand(wanted);
        let mut book = hands.book();
        let replanned = book.replan(&demand, Surplus::Kept);
        // Where CPUs are handed out, what is not free today may be tomorrow.
        let planned = replanned.map_err(|no| match no {
            Refusal::WholeCores { refusal: CpuRefusal::NotWholeCores { .. }, .. } => {
                Refused::Infeasible(Infeasible::Never(Rejection::Placement(no)))
            }
            no => Refused::Deferred(Rejection::Placement(no)),
        })?;
        let failed = |error: String| {
            let no = Rejection::Device { error };
            Refused::Deferred(no)
        };
        book.commit(planned).map_err(|error| failed(error.to_string()))?;
        drop(book);
        hands.note_booked();
        let noted = hands.allocations().allocate(uid, PodGiven::of(wanted));
        noted.map_err(|error| failed(error.to_string()))?;
        let pod = resize::describe(wanted, None);
        hands.recorder.pod(wanted, Told::Resize { step: ResizeStep::Started, pod });
        Ok(())
    }

    fn judge(&self, wanted: &Pod, given: &Pod) -> Result<(), Refused> {
        let others = self.neighbours(&wanted.metadata.uid);
        let node = self.node.read().unwrap_or_else(PoisonError::into_inner);
        with_rules(&self.hands, |rules| resize::judge(wanted, given, &node, &others, rules))
    }

    /// Tells of a refusal that has not been told of.
    fn tell_refused(&self, pod: &Pod, refused: &Refused, said: &ResizeSaid) {
        let before = self.entries.get(&pod.metadata.uid).and_then(|entry| entry.pending.as_ref());
        if before == Some(said) || is_in_status(pod, said) {
            return;
        }
        let step = match refused {
            Refused::Deferred(rejection) => ResizeStep::Deferred(rejection.reason()),
            Refused::Infeasible(why) => {
                self.hands.counters.infeasible_resizes.increment(&[why.detail()]);
                ResizeStep::Infeasible
            }
        };
        let text = resize::describe(pod, Some(&said.message));
        self.hands.recorder.pod(pod, Told::Resize { step, pod: text });
    }

    /// Tries again what had to wait: the most important pod first, then the one that waits longest.
    pub(super) fn retry_resizes(&mut self) {
        let waits = |said: &ResizeSaid| said.reason == DEFERRED;
        let mut waiting: Vec<(i32, Option<String>, String)> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.pending.as_ref().is_some_and(waits))
            .map(|(uid, entry)| {
                let pod = &entry.read.pod;
                let since = PodStatus::read(&pod.status);
                let since = since.condition("PodResizePending");
                let since = since.and_then(|of| of.last_transition_time.clone());
                (pod.spec.priority.unwrap_or(0).saturating_neg(), since, uid.clone())
            })
            .collect();
        waiting.sort();
        for (_, _, uid) in waiting {
            self.tell_worker(&uid);
        }
    }

    /// The pods that have something of the node, as they have it.
    pub(super) fn neighbours(&self, but: &str) -> Vec<Neighbour<'_>> {
        neighbours(&self.entries, but)
    }
}

/// What only the runtime has is nobody's neighbour, as upstream: whoever deletes a pod at once wants its
/// place at once.
fn neighbours<'a>(entries: &'a BTreeMap<String, Entry>, but: &str) -> Vec<Neighbour<'a>> {
    entries
        .iter()
        .filter(|(uid, entry)| *uid != but && !entry.settled && !entry.gone)
        .filter(|(_, entry)| matches!(entry.state, State::Working(..)))
        .map(|(_, entry)| Neighbour::new(&entry.given))
        .collect()
}

fn with_rules<T>(hands: &Hands, decide: impl FnOnce(&Rules<'_>) -> T) -> T {
    let (facts, classes) = (hands.facts(), hands.classes());
    let (static_cpus, static_memory) = {
        let book = hands.book();
        let node = book.node();
        (matches!(node.cpu, CpuPolicy::Static(_)), matches!(node.memory, MemoryPolicy::Static(_)))
    };
    decide(&Rules {
        facts: &facts,
        static_cpus,
        change_static_cpus: hands.change_static_cpus,
        static_memory,
        classes: &classes,
    })
}

fn said(refused: &Refused, generation: i64) -> ResizeSaid {
    let reason = match refused {
        Refused::Deferred(_) => DEFERRED,
        Refused::Infeasible(_) => INFEASIBLE,
    };
    ResizeSaid { reason: reason.to_owned(), message: refused.to_string(), generation }
}

/// Whether the API has it already, from before the agent was started.
fn is_in_status(pod: &Pod, said: &ResizeSaid) -> bool {
    PodStatus::read(&pod.status).condition("PodResizePending").is_some_and(|found| {
        (&found.reason, &found.message) == (&said.reason, &said.message)
            && found.observed_generation == said.generation
    })
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::pods::pod_set::Read;
    use crate::runtime::lower::Origin;
    use crate::spec::Metadata;

    #[tokio::test]
    async fn a_neighbour_works_and_is_there_and_has_something() {
        let entry = |name: &str, settled, gone| {
            let metadata = Metadata { name: name.to_owned(), ..Metadata::default() };
            let pod = Arc::new(Pod { metadata, ..Pod::default() });
            let read = Read { pod: Arc::clone(&pod), text: "".into() };
            let (orders, _) = mpsc::unbounded_channel();
            let state = State::Working(orders, tokio::spawn(async {}));
            let origin = Origin::Api;
            let entry = Entry { read, given: pod, pending: None, origin, state, settled, gone };
            (name.to_owned(), entry)
        };
        let waiting = entry("waiting", false, false);
        let waiting = (waiting.0, Entry { state: State::Waiting, ..waiting.1 });
        let entries = BTreeMap::from([
            entry("running", false, false),
            entry("asking", false, false),
            entry("over", true, false),
            entry("only in the runtime", false, true),
            waiting,
        ]);
        let found = neighbours(&entries, "asking");
        let names: Vec<_> = found.iter().map(|of| of.pod.metadata.name.as_str()).collect();
        assert_eq!(names, ["running"]);
    }
}
