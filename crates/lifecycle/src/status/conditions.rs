//! The conditions of a pod that the agent sets, in upstream's order and words.
//!
//! Returns conditions without times; [`super::merge`] sets them.

use super::containers::counts_for_ready;
use super::model::{Condition, ContainerStatus, Phase, PodStatus};
use super::{Resize, RestartingAll, StatusInputs};
use crate::observed::RuntimePod;
use crate::spec::{Pod, Role};

pub(super) const DISRUPTION_TARGET: &str = "DisruptionTarget";
pub(super) const READY: &str = "Ready";
pub(super) const CONTAINERS_READY: &str = "ContainersReady";
const ALL_RESTARTING: &str = "AllContainersRestarting";

/// Returns true if only the agent sets this condition.
pub(super) fn is_ours(kind: &str) -> bool {
    matches!(
        kind,
        "PodScheduled"
            | "Ready"
            | "Initialized"
            | "ContainersReady"
            | "PodReadyToStartContainers"
            | "PodResizePending"
            | "PodResizeInProgress"
            | "AllContainersRestarting"
    )
}

/// Returns all conditions that the agent sets.
pub(super) fn of(
    pod: &Pod,
    old: &PodStatus,
    observed: &RuntimePod,
    inputs: &StatusInputs,
    new: &PodStatus,
) -> Vec<Condition> {
    let generation = pod.metadata.generation;
    let mut all: Vec<Condition> =
        old.conditions.iter().filter(|c| !is_ours(&c.kind)).cloned().collect();
    if let Some(why) = inputs.termination.as_ref().and_then(|cause| cause.disruption.as_ref()) {
        let target = condition(DISRUPTION_TARGET, true, "TerminationByKubelet", why.clone());
        match all.iter_mut().find(|c| c.kind == DISRUPTION_TARGET) {
            Some(found) => *found = target,
            None => all.push(target),
        }
    }
    let given = all.len();
    // A finished pod is not resized.
    all.extend(resize(&inputs.resize).filter(|_| !new.phase.is_terminal()));
    all.push(sandbox(pod, observed));
    all.push(initialized(pod, new));
    let containers = containers_ready(pod, new);
    all.push(ready(pod, &all[..given], &containers));
    all.push(containers);
    all.push(condition("PodScheduled", true, "", String::new()));
    for condition in all[given..].iter_mut().filter(|c| c.observed_generation == 0) {
        condition.observed_generation = generation;
    }
    if let Some(target) = all.iter_mut().find(|c| c.kind == DISRUPTION_TARGET) {
        target.observed_generation = generation;
    }
    all.extend(restarting_all(pod, inputs, new.phase));
    all
}

fn condition(kind: &str, status: bool, reason: &str, message: String) -> Condition {
    Condition {
        kind: kind.to_owned(),
        status: if status { "True" } else { "False" }.to_owned(),
        reason: reason.to_owned(),
        message,
        ..Condition::default()
    }
}

fn resize(resize: &Resize) -> impl Iterator<Item = Condition> {
    let kinds =
        [("PodResizePending", &resize.pending), ("PodResizeInProgress", &resize.in_progress)];
    kinds.into_iter().filter_map(|(kind, outcome)| {
        let outcome = outcome.as_ref()?;
        let condition = condition(kind, true, &outcome.reason, outcome.message.clone());
        Some(Condition { observed_generation: outcome.generation, ..condition })
    })
}

fn sandbox(pod: &Pod, observed: &RuntimePod) -> Condition {
    const KIND: &str = "PodReadyToStartContainers";
    let no = |message: &str| condition(KIND, false, "PodSandboxNotReady", message.to_owned());
    match (observed.sandboxes.is_empty(), crate::sync_plan::sandbox_needed(pod, observed)) {
        (true, _) => no("no pod sandbox exists"),
        (false, Some(_)) => no("pod sandbox is not ready"),
        (false, None) => condition(KIND, true, "", String::new()),
    }
}

fn initialized(pod: &Pod, new: &PodStatus) -> Condition {
    const KIND: &str = "Initialized";
    let mut lists = Lists::default();
    for container in &pod.spec.init_containers {
        let status = new.init_container_statuses.iter().find(|s| s.name == container.name);
        let complete = |status: &ContainerStatus| match container.is_sidecar() {
            true => status.started == Some(true),
            false => status.ready,
        };
        lists.sort_in(&container.name, status.map(complete));
    }
    if new.phase == Phase::Succeeded && lists.unknown.is_empty() {
        return condition(KIND, true, "PodCompleted", String::new());
    }
    let begun = |status: &ContainerStatus| {
        status.state.waiting.is_none() || status.last_state.terminated.is_some()
    };
    // An initialized pod stays initialized while init containers run again.
    if new.container_statuses.iter().any(begun) {
        return condition(KIND, true, "", String::new());
    }
    match lists.render("incomplete") {
        Some(message) => condition(KIND, false, "ContainersNotInitialized", message),
        None => condition(KIND, true, "", String::new()),
    }
}

fn containers_ready(pod: &Pod, new: &PodStatus) -> Condition {
    let mut lists = Lists::default();
    for (role, container) in pod.containers().filter(|(role, _)| counts_for_ready(*role)) {
        let statuses = match role {
            Role::Sidecar => &new.init_container_statuses,
            _ => &new.container_statuses,
        };
        let status = statuses.iter().find(|s| s.name == container.name);
        lists.sort_in(&container.name, status.map(|status| status.ready));
    }
    if let Some(over) = at_the_end(CONTAINERS_READY, new.phase)
        && (new.phase == Phase::Failed || lists.unknown.is_empty())
    {
        return over;
    }
    match lists.render("unready") {
        Some(message) => condition(CONTAINERS_READY, false, "ContainersNotReady", message),
        None => condition(CONTAINERS_READY, true, "", String::new()),
    }
}

/// Returns the readiness conditions of a terminal phase.
pub(super) fn at_the_end(kind: &str, phase: Phase) -> Option<Condition> {
    let reason = match phase {
        Phase::Succeeded => "PodCompleted",
        Phase::Failed => "PodFailed",
        Phase::Pending | Phase::Running | Phase::Unknown => return None,
    };
    Some(condition(kind, false, reason, String::new()))
}

/// A pod is ready if its containers are and its readiness gates are true.
fn ready(pod: &Pod, given: &[Condition], containers: &Condition) -> Condition {
    if !containers.is_true() {
        return Condition { kind: READY.to_owned(), ..containers.clone() };
    }
    let problems: Vec<String> = pod
        .spec
        .readiness_gates
        .iter()
        .filter_map(|gate| {
            let name = &gate.condition_type;
            match given.iter().find(|condition| condition.kind == *name) {
                None => Some(format!(
                    "corresponding condition of pod readiness gate \"{name}\" does not exist."
                )),
                Some(condition) if !condition.is_true() => Some(format!(
                    "the status of pod readiness gate \"{name}\" is not \"True\", but {}",
                    condition.status
                )),
                Some(_) => None,
            }
        })
        .collect();
    match problems.is_empty() {
        true => condition(READY, true, "", String::new()),
        false => condition(READY, false, "ReadinessGatesNotReady", problems.join(", ")),
    }
}

/// Set only for pods in which an exit can restart all containers.
fn restarting_all(pod: &Pod, inputs: &StatusInputs, phase: Phase) -> Option<Condition> {
    let can = pod.containers().any(|(_, container)| {
        container.restart_policy_rules.iter().any(|rule| rule.action == "RestartAllContainers")
    });
    if !can {
        return None;
    }
    let over = at_the_end(ALL_RESTARTING, phase);
    Some(over.unwrap_or_else(|| match inputs.restarting_all {
        RestartingAll::Stopping => {
            let message = "container exited with restart policy rule".to_owned();
            condition(ALL_RESTARTING, true, "RestartAllContainersStarted", message)
        }
        RestartingAll::No | RestartingAll::Removed => {
            condition(ALL_RESTARTING, false, "", String::new())
        }
    }))
}

/// Names of containers in an unexpected state.
#[derive(Default)]
struct Lists {
    unknown: Vec<String>,
    lacking: Vec<String>,
}

impl Lists {
    fn sort_in(&mut self, name: &str, fine: Option<bool>) {
        match fine {
            None => self.unknown.push(name.to_owned()),
            Some(false) => self.lacking.push(name.to_owned()),
            Some(true) => {}
        }
    }

    fn render(&self, lacking: &str) -> Option<String> {
        let parts = [("unknown", &self.unknown), (lacking, &self.lacking)];
        let texts: Vec<String> = parts
            .iter()
            .filter(|(_, names)| !names.is_empty())
            .map(|(what, names)| format!("containers with {what} status: [{}]", names.join(" ")))
            .collect();
        (!texts.is_empty()).then(|| texts.join(", "))
    }
}
