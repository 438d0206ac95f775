//! Whether a container that has ended is started again.

use super::{KillReason, Plan};
use crate::runtime::observed::{ContainerSeen, ContainerState, PodSeen};
use crate::spec::{Container, Pod, RestartPolicy};

/// What follows from a container's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It stays as it is.
    Stays,
    Restarts,
    /// All containers of the pod start again, init containers first.
    RestartsAll,
}

/// A container's own policy, or its pod's.
pub(crate) fn policy(pod: &Pod, container: &Container) -> RestartPolicy {
    container.restart_policy.unwrap_or(pod.spec.restart_policy)
}

/// What follows from an exit. The first rule that fits decides; else the policy does.
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

/// The plan by which all containers start again, if an exit is to lead to that.
pub(super) fn all(pod: &Pod, seen: &PodSeen) -> Option<Plan> {
    let is_cause = |found: &ContainerSeen| {
        let newest = seen.container(&found.name).is_some_and(|newest| newest.id == found.id);
        let verdict = |container| after_exit(pod, container, found.exit_code);
        newest
            && found.state == ContainerState::Exited
            && pod.container(&found.name).map(|(_, container)| verdict(container))
                == Some(Verdict::RestartsAll)
    };
    if !seen.containers.iter().any(is_cause) {
        return None;
    }
    let may_run = |found: &&ContainerSeen| {
        matches!(found.state, ContainerState::Running | ContainerState::Unknown)
    };
    let kill = |found| super::kill(found, KillReason::RestartAll, "killing".to_owned());
    let mut remove: Vec<&ContainerSeen> = seen.containers.iter().collect();
    // The cause goes last: until then, whoever looks again comes to the same plan.
    let place = |name: &str| pod.containers().position(|(_, container)| container.name == name);
    remove.sort_by_key(|found| (is_cause(found), !may_run(found), place(&found.name)));
    Some(Plan {
        kill: seen.containers.iter().filter(may_run).map(kill).collect(),
        remove: remove.into_iter().map(|found| found.id.clone()).collect(),
        ..Plan::default()
    })
}

/// Whether an app container that does not run is to be started.
pub(crate) fn wanted(pod: &Pod, container: &Container, found: Option<&ContainerSeen>) -> bool {
    match found {
        None => true,
        Some(found) => match found.state {
            ContainerState::Running => false,
            // Made by an attempt that was cut short, or lost: a new one is made.
            ContainerState::Created | ContainerState::Unknown => true,
            ContainerState::Exited => after_exit(pod, container, found.exit_code) != Verdict::Stays,
        },
    }
}
