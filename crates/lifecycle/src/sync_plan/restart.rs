//! Restart decisions for containers that have exited.

use super::{KillReason, Plan};
use crate::observed::{ContainerState, RuntimeContainer, RuntimePod};
use crate::spec::{Container, Pod, RestartPolicy};

/// The consequence of a container's exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It stays exited.
    Stays,
    Restarts,
    /// All containers of the pod restart, init containers first.
    RestartsAll,
}

/// Returns a container's own restart policy, or its pod's.
pub(crate) fn policy(pod: &Pod, container: &Container) -> RestartPolicy {
    container.restart_policy.unwrap_or(pod.spec.restart_policy)
}

/// Decides the consequence of an exit. The first rule that matches decides, otherwise the policy.
#[must_use]
pub fn after_exit(pod: &Pod, container: &Container, exit_code: i32) -> Verdict {
    for rule in &container.restart_policy_rules {
        let Some(codes) = &rule.exit_codes else { continue };
        let listed = codes.values.contains(&exit_code);
        let fits = if codes.operator == "NotIn" { !listed } else { listed };
        if fits {
            return match rule.action.as_str() {
                "RestartAllContainers" => Verdict::RestartsAll,
                _ => Verdict::Restarts,
            };
        }
    }
    match policy(pod, container) {
        RestartPolicy::Always => Verdict::Restarts,
        RestartPolicy::OnFailure if exit_code != 0 => Verdict::Restarts,
        RestartPolicy::OnFailure | RestartPolicy::Never => Verdict::Stays,
    }
}

/// Returns the plan that restarts all containers, if an exit requires it.
pub(super) fn all(pod: &Pod, observed: &RuntimePod) -> Option<Plan> {
    let is_cause = |found: &RuntimeContainer| {
        let newest = observed.container(&found.name).is_some_and(|newest| newest.id == found.id);
        let verdict = |container| after_exit(pod, container, found.exit_code);
        newest
            && found.state == ContainerState::Exited
            && pod.container(&found.name).map(|(_, container)| verdict(container))
                == Some(Verdict::RestartsAll)
    };
    if !observed.containers.iter().any(is_cause) {
        return None;
    }
    let may_run = |found: &&RuntimeContainer| {
        matches!(found.state, ContainerState::Running | ContainerState::Unknown)
    };
    let kill = |found| super::kill(found, KillReason::RestartAll, "killing".to_owned());
    let mut remove: Vec<&RuntimeContainer> = observed.containers.iter().collect();
    // The cause is removed last: until then, every sync computes the same plan.
    let place = |name: &str| pod.containers().position(|(_, container)| container.name == name);
    remove.sort_by_key(|found| (is_cause(found), !may_run(found), place(&found.name)));
    Some(Plan {
        kill: observed.containers.iter().filter(may_run).map(kill).collect(),
        remove: remove.into_iter().map(|found| found.id.clone()).collect(),
        ..Plan::default()
    })
}

/// Returns true if an app container that does not run should start.
pub(crate) fn wanted(pod: &Pod, container: &Container, found: Option<&RuntimeContainer>) -> bool {
    match found {
        None => true,
        Some(found) => match found.state {
            ContainerState::Running => false,
            // Its creation was interrupted, or it was lost: a new one is created.
            ContainerState::Created | ContainerState::Unknown => true,
            ContainerState::Exited => after_exit(pod, container, found.exit_code) != Verdict::Stays,
        },
    }
}
