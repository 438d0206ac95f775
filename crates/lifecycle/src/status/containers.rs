//! The statuses of a pod's containers: [`of`], from the runtime, the last status, and failed starts.
//!
//! The status of a container is that of the newest one of its name, with the one before it as its last state. If the
//! runtime has none, the last status is used: a container that had exited stays exited, one that ran is lost. Does not
//! compute the status of the pod as a whole.

use super::StatusInputs;
use super::model::{
    ContainerStatus, MountStatus, PodStatus, Resources, Running, State, Terminated, time_text,
};
use crate::observed::{ContainerState, RuntimeContainer, RuntimeId, RuntimePod};
use crate::spec::{Container, Pod, Role, VolumeMount};
use crate::sync_plan::{Verdict, after_exit};

/// The reason of a container that ran and is gone.
pub(super) const LOST: &str = "ContainerStatusUnknown";
const LOST_WHILE_RUNNING: &str = "The container could not be located when the pod was deleted.  \
                                  The container used to be Running";
pub(super) const LOST_AT_THE_END: &str =
    "The container could not be located when the pod was terminated";
/// The reason of a container that was removed for a restart of all.
pub(super) const RESTARTING_ALL: &str = "RestartingAllContainers";
const REMOVED: &str = "The container is removed because RestartAllContainers in place";
/// As if killed, because the exit code is unknown.
const LOST_EXIT_CODE: i32 = 137;

/// Returns the terminated state for an exit that was not observed.
pub(super) fn unseen_end(reason: &str, message: &str) -> Terminated {
    Terminated {
        exit_code: LOST_EXIT_CODE,
        reason: reason.to_owned(),
        message: message.to_owned(),
        ..Terminated::default()
    }
}

pub(super) fn lost(message: &str) -> Terminated {
    unseen_end(LOST, message)
}

/// Sets all three lists of container statuses.
pub(super) fn of(
    pod: &Pod,
    old: &PodStatus,
    observed: &RuntimePod,
    inputs: &StatusInputs,
    new: &mut PodStatus,
) {
    let view = View { pod, observed, inputs };
    let init = pod.spec.init_containers.iter();
    new.init_container_statuses = init
        .map(|container| {
            view.status(container, true, find(&old.init_container_statuses, container))
        })
        .collect();
    new.container_statuses = view.sorted(&pod.spec.containers, &old.container_statuses);
    new.ephemeral_container_statuses =
        view.sorted(&pod.spec.ephemeral_containers, &old.ephemeral_container_statuses);
    for status in &mut new.ephemeral_container_statuses {
        // They have no probes.
        (status.started, status.ready) = (None, false);
    }
}

fn find<'a>(statuses: &'a [ContainerStatus], container: &Container) -> Option<&'a ContainerStatus> {
    statuses.iter().find(|status| status.name == container.name)
}

struct View<'a> {
    pod: &'a Pod,
    observed: &'a RuntimePod,
    inputs: &'a StatusInputs,
}

impl View<'_> {
    /// Returns the statuses of app and ephemeral containers, sorted by name.
    fn sorted(&self, containers: &[Container], old: &[ContainerStatus]) -> Vec<ContainerStatus> {
        let mut statuses: Vec<ContainerStatus> = containers
            .iter()
            .map(|container| self.status(container, false, find(old, container)))
            .collect();
        statuses.sort_by(|a, b| a.name.cmp(&b.name));
        statuses
    }

    fn status(
        &self,
        container: &Container,
        init: bool,
        old: Option<&ContainerStatus>,
    ) -> ContainerStatus {
        let mut status = match self.observed.container(&container.name) {
            Some(found) => self.found(container, found, old),
            None => self.absent(container, old),
        };
        self.explain_waiting(container, init, &mut status);
        self.probed(container, init, &mut status);
        status
    }

    /// Returns the status of a container in the runtime.
    fn found(
        &self,
        container: &Container,
        found: &RuntimeContainer,
        old: Option<&ContainerStatus>,
    ) -> ContainerStatus {
        let mut restarts = found.attempt;
        let state = match found.state {
            ContainerState::Unknown => match old.filter(|old| old.state.running.is_some()) {
                Some(old) => {
                    restarts = old.restart_count + 1;
                    State::terminated(lost(LOST_AT_THE_END))
                }
                None => State::waiting("", ""),
            },
            _ => self.state(found),
        };
        let last_state = match self.observed.previous(&container.name) {
            Some(previous) => self.state(previous),
            None => self.last_known(found, old),
        };
        // An exited container has no resources, so the requested ones are reported.
        let has = found.state != ContainerState::Exited;
        let resources = self.inputs.actual.get(&found.id).filter(|_| has).cloned();
        ContainerStatus {
            state,
            last_state,
            restart_count: restarts,
            image: found.image.clone(),
            image_id: found.image_id.clone(),
            container_id: self.full_id(&found.id),
            allocated_resources: self.allocated(container).requests,
            resources: resources.or_else(|| Some(self.allocated(container))),
            ..self.blank(container)
        }
    }

    /// Returns the last state of a container whose predecessor is gone from the runtime.
    fn last_known(&self, found: &RuntimeContainer, old: Option<&ContainerStatus>) -> State {
        let Some(old) = old else { return State::default() };
        // Keep what was reported of the same container: also its own exit, if that was reported as the
        // last state while the container waited for its restart.
        let same = old.container_id == self.full_id(&found.id);
        match &old.state {
            State { terminated: Some(ended), .. } if !same => State::terminated(ended.clone()),
            _ => old.last_state.clone(),
        }
    }

    /// Returns the status of a container that the runtime does not have.
    fn absent(&self, container: &Container, old: Option<&ContainerStatus>) -> ContainerStatus {
        let mut status = self.blank(container);
        let Some(old) = old else { return status };
        let restarting = self.inputs.restarting_all.is_under_way() && old.state.waiting.is_none();
        if old.state.terminated.is_some() {
            status = old.clone();
        } else {
            status.restart_count = old.restart_count;
            status.last_state = old.last_state.clone();
        }
        if restarting {
            status.state = State::waiting(RESTARTING_ALL, REMOVED);
            status.last_state = State::terminated(unseen_end(RESTARTING_ALL, REMOVED));
            status.restart_count = old.restart_count + 1;
        } else if old.state.running.is_some() && status.last_state.terminated.is_none() {
            // Otherwise the pod would look as if it had never run.
            status.last_state = State::terminated(lost(LOST_WHILE_RUNNING));
            if !self.pod.is_terminating() {
                status.restart_count += 1;
            }
        }
        status
    }

    /// Returns the status of a container that was never started.
    fn blank(&self, container: &Container) -> ContainerStatus {
        let reason = match self.pod.spec.init_containers.is_empty() {
            true => "ContainerCreating",
            false => "PodInitializing",
        };
        let mut other = std::collections::BTreeMap::new();
        if let Some(devices) = self.inputs.devices.get(&container.name) {
            other.insert("allocatedResourcesStatus".to_owned(), devices.clone());
        }
        if let Some(classes) = self.inputs.classes.get(&container.name) {
            other.extend(super::class_field(classes));
        }
        ContainerStatus {
            name: container.name.clone(),
            state: State::waiting(reason, ""),
            image: container.image.clone(),
            volume_mounts: container.volume_mounts.iter().map(|mount| self.mount(mount)).collect(),
            other,
            ..ContainerStatus::default()
        }
    }

    fn state(&self, found: &RuntimeContainer) -> State {
        match found.state {
            ContainerState::Running => {
                let running = Running { started_at: Some(time_text(found.started_at)) };
                State { running: Some(running), ..State::default() }
            }
            ContainerState::Exited => State::terminated(Terminated {
                exit_code: found.exit_code,
                signal: 0,
                reason: found.reason.clone(),
                message: found.message.clone(),
                started_at: Some(time_text(found.started_at)),
                finished_at: Some(time_text(found.finished_at)),
                container_id: self.full_id(&found.id),
            }),
            ContainerState::Created | ContainerState::Unknown => State::waiting("", ""),
        }
    }

    /// Sets the reason of a container whose start failed.
    fn explain_waiting(&self, container: &Container, init: bool, status: &mut ContainerStatus) {
        // Upstream does not report why ephemeral containers do not start.
        if self.pod.spec.ephemeral_containers.iter().any(|added| added.name == container.name) {
            return;
        }
        let found = self.observed.container(&container.name);
        let done = init && found.is_some_and(RuntimeContainer::has_succeeded);
        if done || !self.is_to_start(container, found) {
            return;
        }
        let Some(why) = self.inputs.waiting.get(&container.name) else { return };
        let ended = std::mem::replace(&mut status.state, State::waiting(&why.reason, &why.message));
        if ended.terminated.is_some() {
            status.last_state = ended;
        }
    }

    fn is_to_start(&self, container: &Container, found: Option<&RuntimeContainer>) -> bool {
        if self.pod.is_terminating() {
            return false;
        }
        found.is_none_or(|found| match found.state {
            ContainerState::Running => false,
            ContainerState::Created | ContainerState::Unknown => true,
            ContainerState::Exited => {
                after_exit(self.pod, container, found.exit_code) != Verdict::Stays
            }
        })
    }

    /// Sets the results of probes. A container without a probe is ready while it runs.
    fn probed(&self, container: &Container, init: bool, status: &mut ContainerStatus) {
        let running = status.state.running.is_some();
        let id = self.observed.container(&container.name).map(|found| &found.id);
        let probed_result = |answers: &std::collections::BTreeMap<RuntimeId, bool>,
                             has_probe: bool| {
            id.and_then(|id| answers.get(id)).copied().unwrap_or(!has_probe)
        };
        let started =
            running && probed_result(&self.inputs.startup, container.startup_probe.is_some());
        status.started = Some(started);
        if init && !container.is_sidecar() {
            let ended_well = status.state.terminated.as_ref().is_some_and(|t| t.exit_code == 0);
            // A ready container stays ready while it is removed for a restart of all.
            let removed = status.state.waiting.as_ref().is_some_and(|w| w.reason == RESTARTING_ALL);
            status.ready = ended_well || (removed && status.ready);
        } else {
            status.ready = started
                && probed_result(&self.inputs.readiness, container.readiness_probe.is_some());
        }
    }

    fn allocated(&self, container: &Container) -> Resources {
        self.inputs.allocated.get(&container.name).cloned().unwrap_or_else(|| Resources {
            limits: container.resources.limits.clone(),
            requests: container.resources.requests.clone(),
        })
    }

    fn mount(&self, mount: &VolumeMount) -> MountStatus {
        // Read-only mounts report whether they are recursive.
        let recursive = match mount.recursive_read_only.as_deref() {
            Some("Enabled") => "Enabled",
            Some("IfPossible") if self.inputs.recursive_read_only => "Enabled",
            _ => "Disabled",
        };
        MountStatus {
            name: mount.name.clone(),
            mount_path: mount.mount_path.clone(),
            read_only: mount.read_only,
            recursive_read_only: mount.read_only.then(|| recursive.to_owned()),
        }
    }

    /// Returns `containerd://` and the id.
    fn full_id(&self, id: &str) -> String {
        format!("{}://{id}", self.inputs.runtime)
    }
}

/// Returns true for the roles that count for the pod's readiness.
pub(super) fn counts_for_ready(role: Role) -> bool {
    matches!(role, Role::App | Role::Sidecar)
}
