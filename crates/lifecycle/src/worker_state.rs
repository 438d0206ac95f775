//! The state of a pod's worker: [`PodWorkerState`], and its transitions.
//!
//! ```text
//!          observed               deleted, terminated,            resources
//!   New ─────────────▶ Syncing ───── completed ─────▶ Terminating ─ released ─▶ Terminated
//!    │                                                     ▲    │                  │
//!    └─────────────── deleted, terminated ─────────────────┘    │ resources        │ deleted
//!                                                               │ released,        ▼
//!   any state ── shutdown ──▶ ShuttingDown                      └─ deleted ───▶ Removing
//! ```
//!
//! No transition leads back: a pod that is deleted or terminated never runs again. Pure: the worker reports
//! events and executes the action that the state requires.

use crate::status::TerminationCause;

/// The termination of a pod by the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Termination {
    pub cause: TerminationCause,
    /// In seconds; the pod's own grace period if `None`.
    pub grace: Option<i64>,
}

/// The deletion of a pod in its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deletion {
    /// The pod has a deletion timestamp. It has its grace period, and its status is reported.
    Requested,
    /// The source no longer has the pod. It is removed at once.
    Complete,
}

/// The attempt to stop a terminating pod while the runtime does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopWithoutRuntime {
    Untried,
    Tried,
}

/// The state of a pod's worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodWorkerState {
    /// Nothing was done for the pod yet, and the runtime has nothing of it.
    New,
    /// The pod should run.
    Syncing,
    /// The pod's containers stop, and its resources are released. A pod that completed has neither a
    /// termination nor a deletion.
    Terminating {
        termination: Option<Termination>,
        deletion: Option<Deletion>,
        stop_without_runtime: StopWithoutRuntime,
    },
    /// None of the pod's containers runs, its resources are released, and its source still has it.
    Terminated,
    /// The pod's remaining traces are removed, then the pod itself in the API.
    Removing(Deletion),
    /// The agent stops, and the pod's containers with it. The next agent starts the pod again.
    ShuttingDown,
}

/// An event that can change the state of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerEvent {
    /// The runtime reported the state of the pod.
    Observed,
    /// The runtime did not answer, and the action for that case is about to run.
    Unobserved,
    Deleted(Deletion),
    Terminated(Termination),
    /// All containers have exited and none restarts.
    Completed,
    ResourcesReleased,
    Shutdown,
}

/// The action that a state requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerAction {
    /// Starts and restarts containers as the spec requires.
    SyncPod,
    /// Stops the containers and releases resources.
    Terminate,
    /// Waits for the next event.
    Wait,
    /// Removes the pod's remaining traces.
    Remove,
    /// Stops the containers without reporting it.
    StopForShutdown,
}

impl PodWorkerState {
    /// Returns the state of a new worker. `is_new` is true if the last relist had nothing of the pod,
    /// `completed` if the pod's phase is terminal.
    #[must_use]
    pub fn initial(is_new: bool, completed: bool, deletion: Option<Deletion>) -> PodWorkerState {
        let state = match (completed, is_new) {
            (true, _) => PodWorkerState::Syncing.next(WorkerEvent::Completed),
            (false, true) => PodWorkerState::New,
            (false, false) => PodWorkerState::Syncing,
        };
        match deletion {
            Some(deletion) => state.next(WorkerEvent::Deleted(deletion)),
            None => state,
        }
    }

    /// Returns the state after an event. Events that a state does not expect leave it unchanged.
    #[must_use]
    pub fn next(self, event: WorkerEvent) -> PodWorkerState {
        use PodWorkerState::{New, Removing, ShuttingDown, Syncing, Terminated, Terminating};
        let terminating = |termination, deletion| Terminating {
            termination,
            deletion,
            stop_without_runtime: StopWithoutRuntime::Untried,
        };
        match (self, event) {
            (_, WorkerEvent::Shutdown) | (ShuttingDown, _) => ShuttingDown,
            (New, WorkerEvent::Observed | WorkerEvent::Unobserved) => Syncing,
            (New | Syncing, WorkerEvent::Completed) => terminating(None, None),
            (New | Syncing, WorkerEvent::Terminated(by)) => terminating(Some(by), None),
            (New | Syncing, WorkerEvent::Deleted(deletion)) => terminating(None, Some(deletion)),
            (Terminating { termination, deletion, stop_without_runtime }, event) => match event {
                WorkerEvent::Observed => terminating(termination, deletion),
                WorkerEvent::Unobserved => {
                    let stop_without_runtime = StopWithoutRuntime::Tried;
                    Terminating { termination, deletion, stop_without_runtime }
                }
                // The first termination counts.
                WorkerEvent::Terminated(by) => {
                    let termination = Some(termination.unwrap_or(by));
                    Terminating { termination, deletion, stop_without_runtime }
                }
                WorkerEvent::Deleted(new) => {
                    let deletion = deletion.max(Some(new));
                    Terminating { termination, deletion, stop_without_runtime }
                }
                WorkerEvent::ResourcesReleased => deletion.map_or(Terminated, Removing),
                WorkerEvent::Completed | WorkerEvent::Shutdown => {
                    Terminating { termination, deletion, stop_without_runtime }
                }
            },
            (Terminated, WorkerEvent::Deleted(deletion)) => Removing(deletion),
            (Removing(deletion), WorkerEvent::Deleted(new)) => Removing(deletion.max(new)),
            (unchanged @ (New | Syncing | Terminated | Removing(_)), _) => unchanged,
        }
    }

    /// Returns the action of a sync in which the runtime reported the state of the pod.
    #[must_use]
    pub fn action(&self) -> WorkerAction {
        match self {
            PodWorkerState::New | PodWorkerState::Syncing => WorkerAction::SyncPod,
            PodWorkerState::Terminating { .. } => WorkerAction::Terminate,
            PodWorkerState::Terminated => WorkerAction::Wait,
            PodWorkerState::Removing(_) => WorkerAction::Remove,
            PodWorkerState::ShuttingDown => WorkerAction::StopForShutdown,
        }
    }

    /// Returns the action of a sync in which the runtime did not answer. A new pod is started, and a
    /// terminating pod that was `alive` when last seen is stopped once: this either succeeds or reports the
    /// reason.
    #[must_use]
    pub fn action_without_runtime(&self, alive: bool) -> WorkerAction {
        match self {
            PodWorkerState::New => WorkerAction::SyncPod,
            PodWorkerState::Terminating {
                termination,
                deletion,
                stop_without_runtime: StopWithoutRuntime::Untried,
            } if alive && (termination.is_some() || deletion.is_some()) => WorkerAction::Terminate,
            _ => WorkerAction::Wait,
        }
    }

    /// Returns true if the pod should run.
    #[must_use]
    pub fn is_syncing(&self) -> bool {
        matches!(self, PodWorkerState::New | PodWorkerState::Syncing)
    }

    #[must_use]
    pub fn deletion(&self) -> Option<Deletion> {
        match self {
            PodWorkerState::Terminating { deletion, .. } => *deletion,
            PodWorkerState::Removing(deletion) => Some(*deletion),
            PodWorkerState::New
            | PodWorkerState::Syncing
            | PodWorkerState::Terminated
            | PodWorkerState::ShuttingDown => None,
        }
    }

    /// Returns the termination by the agent, while it is carried out.
    #[must_use]
    pub fn termination(&self) -> Option<&Termination> {
        match self {
            PodWorkerState::Terminating { termination, .. } => termination.as_ref(),
            _ => None,
        }
    }

    /// Returns the grace period of the termination in seconds; `of_pod` is the pod's own.
    #[must_use]
    pub fn grace_seconds(&self, of_pod: i64) -> i64 {
        match self.deletion() {
            Some(Deletion::Complete) => 0,
            _ => self.termination().and_then(|by| by.grace).unwrap_or(of_pod),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use PodWorkerState::{New, Removing, ShuttingDown, Syncing, Terminated};
    use WorkerEvent as Event;

    fn termination(reason: &str, grace: Option<i64>) -> Termination {
        let cause = TerminationCause {
            reason: reason.to_owned(),
            message: String::new(),
            disruption: None,
        };
        Termination { cause, grace }
    }

    fn terminating(by: Option<Termination>, deletion: Option<Deletion>) -> PodWorkerState {
        PodWorkerState::Terminating {
            termination: by,
            deletion,
            stop_without_runtime: StopWithoutRuntime::Untried,
        }
    }

    fn stopped_once(state: PodWorkerState) -> PodWorkerState {
        match state {
            PodWorkerState::Terminating { termination, deletion, .. } => {
                let stop_without_runtime = StopWithoutRuntime::Tried;
                PodWorkerState::Terminating { termination, deletion, stop_without_runtime }
            }
            other => other,
        }
    }

    #[test]
    fn each_event_leads_to_one_state() {
        let evicted = || Some(termination("Evicted", Some(0)));
        let (requested, complete) = (Some(Deletion::Requested), Some(Deletion::Complete));
        let by_agent = || Event::Terminated(termination("Evicted", Some(0)));
        let later = || Event::Terminated(termination("Preempting", None));
        let (asked, gone) =
            (|| Event::Deleted(Deletion::Requested), || Event::Deleted(Deletion::Complete));
        let table = [
            (New, Event::Observed, Syncing),
            (New, Event::Unobserved, Syncing),
            (New, by_agent(), terminating(evicted(), None)),
            (New, asked(), terminating(None, requested)),
            (Syncing, Event::Observed, Syncing),
            (Syncing, Event::Unobserved, Syncing),
            (Syncing, Event::Completed, terminating(None, None)),
            (Syncing, by_agent(), terminating(evicted(), None)),
            (Syncing, gone(), terminating(None, complete)),
            (Syncing, Event::ResourcesReleased, Syncing),
            (terminating(None, None), by_agent(), terminating(evicted(), None)),
            (terminating(evicted(), None), later(), terminating(evicted(), None)),
            (terminating(evicted(), None), asked(), terminating(evicted(), requested)),
            (terminating(None, requested), gone(), terminating(None, complete)),
            (terminating(None, complete), asked(), terminating(None, complete)),
            (
                terminating(None, requested),
                Event::Unobserved,
                stopped_once(terminating(None, requested)),
            ),
            (
                stopped_once(terminating(None, requested)),
                Event::Observed,
                terminating(None, requested),
            ),
            (terminating(evicted(), None), Event::ResourcesReleased, Terminated),
            (terminating(None, requested), Event::ResourcesReleased, Removing(Deletion::Requested)),
            (terminating(None, complete), Event::ResourcesReleased, Removing(Deletion::Complete)),
            (Terminated, Event::Observed, Terminated),
            (Terminated, by_agent(), Terminated),
            (Terminated, asked(), Removing(Deletion::Requested)),
            (Removing(Deletion::Requested), gone(), Removing(Deletion::Complete)),
            (Removing(Deletion::Complete), asked(), Removing(Deletion::Complete)),
            (Removing(Deletion::Complete), Event::Shutdown, ShuttingDown),
            (Syncing, Event::Shutdown, ShuttingDown),
            (ShuttingDown, gone(), ShuttingDown),
            (ShuttingDown, Event::Observed, ShuttingDown),
        ];
        for (state, event, expected) in table {
            let name = format!("{state:?} + {event:?}");
            assert_eq!(state.next(event), expected, "{name}");
        }
    }

    #[test]
    fn a_new_worker_continues_where_the_last_one_ended() {
        let requested = Some(Deletion::Requested);
        let table = [
            ((true, false, None), New),
            ((false, false, None), Syncing),
            ((true, true, None), terminating(None, None)),
            ((true, false, requested), terminating(None, requested)),
            ((false, true, requested), terminating(None, requested)),
        ];
        for ((is_new, completed, deletion), expected) in table {
            assert_eq!(PodWorkerState::initial(is_new, completed, deletion), expected);
        }
    }

    #[test]
    fn each_state_requires_one_action() {
        use WorkerAction::{Remove, StopForShutdown, SyncPod, Terminate, Wait};
        let deleted = || terminating(None, Some(Deletion::Requested));
        // With the runtime, without it, and without it if the pod was not alive.
        let table = [
            (New, [SyncPod, SyncPod, SyncPod]),
            (Syncing, [SyncPod, Wait, Wait]),
            (terminating(None, None), [Terminate, Wait, Wait]),
            (deleted(), [Terminate, Terminate, Wait]),
            (stopped_once(deleted()), [Terminate, Wait, Wait]),
            (Terminated, [Wait, Wait, Wait]),
            (Removing(Deletion::Complete), [Remove, Wait, Wait]),
            (ShuttingDown, [StopForShutdown, Wait, Wait]),
        ];
        for (state, expected) in table {
            let found = [
                state.action(),
                state.action_without_runtime(true),
                state.action_without_runtime(false),
            ];
            assert_eq!(found, expected, "{state:?}");
        }
    }

    #[test]
    fn a_pod_that_its_source_forgot_has_no_grace_period() {
        let evicted = || Some(termination("Evicted", Some(5)));
        let preempted = || Some(termination("Preempting", None));
        let table = [
            (terminating(None, Some(Deletion::Requested)), 30),
            (terminating(evicted(), None), 5),
            (terminating(preempted(), None), 30),
            (terminating(evicted(), Some(Deletion::Complete)), 0),
            (Removing(Deletion::Complete), 0),
        ];
        for (state, expected) in table {
            assert_eq!(state.grace_seconds(30), expected, "{state:?}");
        }
    }
}
