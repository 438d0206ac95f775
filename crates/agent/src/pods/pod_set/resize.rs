//! Resizes of running pods: new amounts are admitted like those of a new pod, and until then the pod keeps
//! its allocated resources.
//!
//! The allocation is on disk, and CPUs are in the ledger, before a worker learns of it. The worker actuates
//! it.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use placement::Refusal;
use placement::cpu::CpuRefusal;
use placement::node::{CpuPolicy, MemoryPolicy};
use placement::plan::Surplus;
use tracing::warn;

use super::{Entry, PodSet, State};
use crate::ledger::allocations::PodAllocation;
use crate::observability::events::{AgentEvent, ResizeStep};
use crate::pods::resize::{self, Infeasible, ResizeRefusal, ResizeRules};
use crate::pods::worker::{WorkerContext, WorkerMessage};
use lifecycle::admission::{AdmittedPod, Rejection};
use lifecycle::placement_demand;
use lifecycle::spec::Pod;
use lifecycle::status::{PodStatus, ResizeOutcome};

/// Reasons of the condition `PodResizePending`.
const DEFERRED: &str = "Deferred";
const INFEASIBLE: &str = "Infeasible";

impl PodSet {
    /// Returns the pod with the resources that it was allocated before the agent started, if any.
    pub(super) fn as_allocated(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        match self.context.state.allocations().allocated(&pod.metadata.uid) {
            Some(allocated) if !allocated.agrees(&PodAllocation::of(pod)) => {
                Arc::new(allocated.put(pod))
            }
            _ => Arc::clone(pod),
        }
    }

    /// Saves the allocated resources of an admitted pod.
    pub(super) fn note_allocated(&self, pod: &Pod) {
        let noted =
            self.context.state.allocations().allocate(&pod.metadata.uid, PodAllocation::of(pod));
        if let Err(error) = noted {
            // The only effect is to miss a resize that is requested while no agent runs.
            warn!(%error, pod = pod.full_name(), "failed to save the allocated resources");
        }
    }

    /// Removes the saved allocations of deleted pods.
    pub(super) fn forget_allocations(&self) {
        let entries = &self.entries;
        if let Err(error) = self.context.state.allocations().keep(|uid| entries.contains_key(uid)) {
            warn!(%error, "failed to remove allocations of deleted pods");
        }
    }

    /// Sends the current pod to its worker, after its spec changed or resources were released. Returns true
    /// if the pod's allocation changed.
    pub(super) fn notify_worker(&mut self, uid: &str) -> bool {
        let Some(entry) = self.entries.get(uid) else { return false };
        let wanted = Arc::clone(&entry.parsed.pod);
        let over = entry.resources_released || PodStatus::read(&wanted.status).phase.is_terminal();
        let allocated = self.as_allocated(&wanted);
        let asks = !Arc::ptr_eq(&wanted, &allocated);
        let mut changed = false;
        let (allocated, pending) = match asks && !over && !wanted.is_terminating() {
            false => (allocated, None),
            true => match self.allocate(&wanted, &allocated) {
                Ok(()) => {
                    changed = true;
                    (wanted, None)
                }
                Err(refused) => {
                    let outcome = refusal_outcome(&refused, wanted.metadata.generation);
                    self.report_refusal(&wanted, &refused, &outcome);
                    (allocated, Some(outcome))
                }
            },
        };
        let Some(entry) = self.entries.get_mut(uid) else { return false };
        let State::Working(messages, _) = &entry.state else { return false };
        if entry.pending != pending {
            let _ = messages.send(WorkerMessage::Resize(pending.clone()));
        }
        let _ = messages.send(WorkerMessage::PodChanged(Arc::clone(&allocated)));
        (entry.allocated, entry.pending) = (allocated, pending);
        if changed {
            self.publish();
        }
        changed
    }

    /// Sends the current pod to its worker. If its allocation changed, retries other resizes, because it may
    /// have released resources.
    pub(super) fn notify_worker_and_retry(&mut self, uid: &str) {
        if self.notify_worker(uid) {
            self.retry_resizes();
        }
    }

    /// Allocates the resources of the spec, or returns why not.
    fn allocate(&mut self, wanted: &Arc<Pod>, allocated: &Arc<Pod>) -> Result<(), ResizeRefusal> {
        let uid = &wanted.metadata.uid;
        self.judge(wanted, allocated)?;
        let context = &self.context;
        let demand = placement_demand(wanted);
        let mut ledger = context.state.ledger();
        let replanned = ledger.replan(&demand, Surplus::Kept);
        // CPUs that are not free now may be free later.
        let planned = replanned.map_err(|no| match no {
            Refusal::WholeCores { refusal: CpuRefusal::NotWholeCores { .. }, .. } => {
                ResizeRefusal::Infeasible(Infeasible::Never(Rejection::Placement(no)))
            }
            no => ResizeRefusal::Deferred(Rejection::Placement(no)),
        })?;
        let failed = |error: String| {
            let no = Rejection::Device { error };
            ResizeRefusal::Deferred(no)
        };
        ledger.commit(planned).map_err(|error| failed(error.to_string()))?;
        drop(ledger);
        context.state.note_ledger_change();
        let noted = context.state.allocations().allocate(uid, PodAllocation::of(wanted));
        noted.map_err(|error| failed(error.to_string()))?;
        let pod = resize::describe(wanted, None);
        context.recorder.pod(wanted, AgentEvent::Resize { step: ResizeStep::Started, pod });
        Ok(())
    }

    fn judge(&self, wanted: &Pod, allocated: &Pod) -> Result<(), ResizeRefusal> {
        let others = self.admitted_pods(&wanted.metadata.uid);
        let node = self.node.read().unwrap_or_else(PoisonError::into_inner);
        with_rules(&self.context, |rules| resize::judge(wanted, allocated, &node, &others, rules))
    }

    /// Reports a refusal unless it was already reported.
    fn report_refusal(&self, pod: &Pod, refused: &ResizeRefusal, outcome: &ResizeOutcome) {
        let before = self.entries.get(&pod.metadata.uid).and_then(|entry| entry.pending.as_ref());
        if before == Some(outcome) || is_in_status(pod, outcome) {
            return;
        }
        let step = match refused {
            ResizeRefusal::Deferred(rejection) => ResizeStep::Deferred(rejection.reason()),
            ResizeRefusal::Infeasible(why) => {
                self.context.metrics.infeasible_resizes.increment(&[why.detail()]);
                ResizeStep::Infeasible
            }
        };
        let text = resize::describe(pod, Some(&outcome.message));
        self.context.recorder.pod(pod, AgentEvent::Resize { step, pod: text });
    }

    /// Retries deferred resizes, by priority and then by waiting time.
    pub(super) fn retry_resizes(&mut self) {
        let waits = |outcome: &ResizeOutcome| outcome.reason == DEFERRED;
        let mut waiting: Vec<(i32, Option<String>, String)> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.pending.as_ref().is_some_and(waits))
            .map(|(uid, entry)| {
                let pod = &entry.parsed.pod;
                let since = PodStatus::read(&pod.status);
                let since = since.condition("PodResizePending");
                let since = since.and_then(|of| of.last_transition_time.clone());
                (pod.spec.priority.unwrap_or(0).saturating_neg(), since, uid.clone())
            })
            .collect();
        waiting.sort();
        for (_, _, uid) in waiting {
            self.notify_worker(&uid);
        }
    }

    /// Returns the pods that use resources of the node, with their allocations.
    pub(super) fn admitted_pods(&self, but: &str) -> Vec<AdmittedPod<'_>> {
        admitted_pods(&self.entries, but)
    }
}

/// Returns the pods that use resources of the node. As upstream, pods that only the runtime has do not
/// count: force-deleting a pod frees its resources at once.
fn admitted_pods<'a>(entries: &'a BTreeMap<String, Entry>, but: &str) -> Vec<AdmittedPod<'a>> {
    entries
        .iter()
        .filter(|(uid, entry)| *uid != but && !entry.resources_released && !entry.deleted)
        .filter(|(_, entry)| matches!(entry.state, State::Working(..)))
        .map(|(_, entry)| AdmittedPod::new(&entry.allocated))
        .collect()
}

fn with_rules<T>(context: &WorkerContext, judge: impl FnOnce(&ResizeRules<'_>) -> T) -> T {
    let (node_env, classes) = (context.state.node_env(), context.runtime.classes());
    let (static_cpus, static_memory) = {
        let ledger = context.state.ledger();
        let node = ledger.node();
        (matches!(node.cpu, CpuPolicy::Static(_)), matches!(node.memory, MemoryPolicy::Static(_)))
    };
    judge(&ResizeRules {
        node_env: &node_env,
        static_cpus,
        change_static_cpus: context.state.change_static_cpus,
        static_memory,
        classes: &classes,
    })
}

fn refusal_outcome(refused: &ResizeRefusal, generation: i64) -> ResizeOutcome {
    let reason = match refused {
        ResizeRefusal::Deferred(_) => DEFERRED,
        ResizeRefusal::Infeasible(_) => INFEASIBLE,
    };
    ResizeOutcome { reason: reason.to_owned(), message: refused.to_string(), generation }
}

/// Returns true if the API already has it, from before the agent started.
fn is_in_status(pod: &Pod, outcome: &ResizeOutcome) -> bool {
    PodStatus::read(&pod.status).condition("PodResizePending").is_some_and(|found| {
        (&found.reason, &found.message) == (&outcome.reason, &outcome.message)
            && found.observed_generation == outcome.generation
    })
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::pods::pod_set::PodWithManifest;
    use crate::runtime::lower::ConfigSource;
    use lifecycle::spec::Metadata;

    #[tokio::test]
    async fn only_running_pods_with_resources_are_neighbours() {
        let entry = |name: &str, resources_released, deleted| {
            let metadata = Metadata { name: name.to_owned(), ..Metadata::default() };
            let pod = Arc::new(Pod { metadata, ..Pod::default() });
            let parsed = PodWithManifest { pod: Arc::clone(&pod), text: "".into() };
            let (messages, _) = mpsc::unbounded_channel();
            let state = State::Working(messages, tokio::spawn(async {}));
            let origin = ConfigSource::Api;
            let entry = Entry::new(parsed, pod, origin);
            let entry = Entry { state, resources_released, deleted, ..entry };
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
        let found = admitted_pods(&entries, "asking");
        let names: Vec<_> = found.iter().map(|of| of.pod.metadata.name.as_str()).collect();
        assert_eq!(names, ["running"]);
    }
}
