//! Combines a generated status with the one in the API: [`merge`] keeps the fields of other writers, reverts
//! no terminal state, and sets the times.
//!
//! ```text
//!   generated ──▶ merge ──▶ written          a terminal phase waits until nothing runs any more
//!   rejected  ──▶ rejected ──▶ merge         a rejected pod gets the reason
//!   finished  ──▶ terminate ──▶ merge        every container gets a terminated state
//! ```

use objects::timestamp::Timestamp;
use serde_json::Value;
use thiserror::Error;

use super::conditions::{self, CONTAINERS_READY, DISRUPTION_TARGET, READY};
use super::containers::{LOST_AT_THE_END, RESTARTING_ALL, lost};
use super::message;
use super::model::{Condition, ContainerStatus, Phase, PodStatus, State};
use crate::spec::{Container, Pod, RestartPolicy};
use crate::sync_plan::{Verdict, after_exit};

/// A status that would revert the exit of a container.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("terminated container {container} attempted illegal transition to non-terminated state")]
pub struct IllegalRestart {
    pub container: String,
}

/// Returns the status to write in place of `pod.status`. `may_run` is true if anything of the pod may
/// still run: a terminal phase is held back until nothing does, because other components then use the
/// pod's resources.
pub fn merge(
    pod: &Pod,
    mut new: PodStatus,
    may_run: bool,
    now: Timestamp,
) -> Result<PodStatus, IllegalRestart> {
    let old = PodStatus::read(&pod.status);
    check_restarts(pod, &old, &new)?;
    let ending = !old.phase.is_terminal() && new.phase.is_terminal();
    let generated = std::mem::take(&mut new.conditions);
    new.conditions =
        old.conditions.iter().filter(|c| !conditions::is_ours(&c.kind)).cloned().collect();
    for condition in generated {
        let is_disruption = condition.kind == DISRUPTION_TARGET && ending && !may_run;
        if is_disruption || conditions::is_ours(&condition.kind) {
            new.set_condition(condition);
        }
    }
    if ending && may_run {
        new.phase = old.phase;
        new.reason.clone_from(&old.reason);
        new.message.clone_from(&old.message);
    }
    if new.phase.is_terminal() {
        unready(&mut new);
    }
    let now = now.to_seconds_text();
    for condition in &mut new.conditions {
        let before = old.condition(&condition.kind);
        condition.last_transition_time = match before {
            Some(before) if before.status == condition.status => {
                before.last_transition_time.clone()
            }
            _ => Some(now.clone()),
        };
        if condition.kind.starts_with("PodResize") {
            // Time of the last attempt with this result.
            let same = |before: &&Condition| {
                before.reason == condition.reason && before.message == condition.message
            };
            let tried = before.filter(same).and_then(|before| before.last_probe_time.clone());
            condition.last_probe_time = tried.or_else(|| Some(now.clone()));
        }
    }
    new.start_time = old.start_time.clone().or(Some(now));
    let other = std::mem::replace(&mut new.other, old.other);
    new.other.extend(other);
    fit_messages(pod, &mut new);
    Ok(new)
}

/// Returns the last reported status, with the fields of other writers from the API.
#[must_use]
pub fn carry(api: &Value, status: &PodStatus) -> Value {
    let api = PodStatus::read(api);
    let mut carried = status.clone();
    carried.conditions.retain(|condition| conditions::is_ours(&condition.kind));
    let of_others = api.conditions.into_iter().filter(|c| !conditions::is_ours(&c.kind));
    // Conditions of other writers come first, as in the written status.
    carried.conditions.splice(0..0, of_others);
    carried.to_value()
}

/// Returns true if the API differs from the last reported status in the fields that only the agent
/// writes.
#[must_use]
pub fn is_overwritten(api: &Value, status: &PodStatus) -> bool {
    let api = PodStatus::read(api);
    let ours = |status: &PodStatus| -> Vec<Condition> {
        let mut ours: Vec<Condition> =
            status.conditions.iter().filter(|c| conditions::is_ours(&c.kind)).cloned().collect();
        ours.sort_by(|a, b| a.kind.cmp(&b.kind));
        ours
    };
    api.phase != status.phase
        || ours(&api) != ours(status)
        || api.container_statuses != status.container_statuses
        || api.init_container_statuses != status.init_container_statuses
}

/// A finished pod is not ready, whatever the states of its containers.
fn unready(new: &mut PodStatus) {
    let is_true = |new: &PodStatus, kind| new.condition(kind).is_some_and(|c| c.is_true());
    if !is_true(new, READY) && !is_true(new, CONTAINERS_READY) {
        return;
    }
    for kind in [CONTAINERS_READY, READY] {
        if let Some(mut over) = conditions::at_the_end(kind, new.phase) {
            over.observed_generation =
                new.condition(kind).map_or(0, |condition| condition.observed_generation);
            new.set_condition(over);
        }
    }
}

fn fit_messages(pod: &Pod, new: &mut PodStatus) {
    let containers = pod.containers().count();
    let lists = [
        &mut new.init_container_statuses,
        &mut new.container_statuses,
        &mut new.ephemeral_container_statuses,
    ];
    for status in lists.into_iter().flatten() {
        for state in [&mut status.state, &mut status.last_state] {
            if let Some(ended) = &mut state.terminated {
                message::fit(&mut ended.message, containers);
            }
        }
    }
}

fn check_restarts(pod: &Pod, old: &PodStatus, new: &PodStatus) -> Result<(), IllegalRestart> {
    let lists = [
        (&pod.spec.containers, &old.container_statuses, &new.container_statuses),
        (&pod.spec.init_containers, &old.init_container_statuses, &new.init_container_statuses),
    ];
    for (containers, old, new) in lists {
        for before in old {
            let container = containers.iter().find(|c| c.name == before.name);
            let after = new.iter().find(|status| status.name == before.name);
            if let (Some(container), Some(after)) = (container, after)
                && is_illegal(pod, container, before, after)
            {
                return Err(IllegalRestart { container: before.name.clone() });
            }
        }
    }
    Ok(())
}

fn is_illegal(
    pod: &Pod,
    container: &Container,
    before: &ContainerStatus,
    after: &ContainerStatus,
) -> bool {
    let Some(end) = &before.state.terminated else { return false };
    if after.state.terminated.is_some() || pod.spec.restart_policy == RestartPolicy::Always {
        return false;
    }
    let for_all = after.last_state.terminated.as_ref().is_some_and(|t| t.reason == RESTARTING_ALL);
    !for_all && after_exit(pod, container, end.exit_code) == Verdict::Stays
}

/// Returns the status of a rejected pod. `message` is that of the event.
#[must_use]
pub fn rejected(pod: &Pod, reason: &str, message: &str) -> PodStatus {
    PodStatus {
        observed_generation: pod.metadata.generation,
        phase: Phase::Failed,
        reason: reason.to_owned(),
        message: format!("Pod was rejected: {message}"),
        qos_class: crate::qos_class(pod).to_string(),
        ..PodStatus::default()
    }
}

/// Returns the last status of a pod that is gone: every container gets a terminated state, and the phase
/// is terminal. `pod.status` is the status before the termination, `status` the current one.
#[must_use]
pub fn terminate(pod: &Pod, mut status: PodStatus) -> PodStatus {
    let before = PodStatus::read(&pod.status);
    let end = |status: &mut ContainerStatus| {
        if status.state.terminated.is_none() {
            status.state = State::terminated(lost(LOST_AT_THE_END));
        }
    };
    if was_initialized(pod, &before) {
        status.container_statuses.iter_mut().for_each(end);
    }
    let begun = begun_inits(&status.init_container_statuses);
    status.init_container_statuses.iter_mut().take(begun).for_each(end);
    if !status.phase.is_terminal() && !super::is_static(pod) {
        status.phase = Phase::Failed;
    }
    status
}

/// Returns true if the app containers of a pod were ever started.
fn was_initialized(pod: &Pod, status: &PodStatus) -> bool {
    let Some(last) = pod.spec.init_containers.last() else { return true };
    let begun = |status: &ContainerStatus| {
        let State { running, terminated, .. } = &status.state;
        status.last_state.terminated.is_some() || running.is_some() || terminated.is_some()
    };
    if status.container_statuses.iter().any(begun) {
        return true;
    }
    let Some(last_status) = status.init_container_statuses.last() else { return false };
    if last.is_sidecar() {
        return last_status.state.running.is_some() && last_status.started == Some(true);
    }
    let well = |state: &State| state.terminated.as_ref().is_some_and(|end| end.exit_code == 0);
    well(&last_status.state) || well(&last_status.last_state)
}

/// Returns how many init containers were started. At least one, because a finished pod without app
/// containers failed at one.
fn begun_inits(statuses: &[ContainerStatus]) -> usize {
    let begun = |status: &ContainerStatus| {
        status.state.waiting.is_none() || status.last_state.terminated.is_some()
    };
    statuses.iter().rposition(begun).map_or(statuses.len().min(1), |at| at + 1)
}
