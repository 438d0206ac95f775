//! What to do next with a pod: [`plan`], from the pod as it is wanted and the pod as the runtime has it.
//!
//! ```text
//!   no sandbox, or a dead one        ──▶ kill what is left, make a sandbox, start the first init
//!   an exit whose rule restarts all  ──▶ kill and remove all containers; the sandbox stays
//!   init containers not through      ──▶ start the next one, or the failed one again
//!   sidecars that ended              ──▶ start them again, whatever else happens
//!   containers that ended            ──▶ start them again as the restart policy says
//!   containers that fail their probe ──▶ kill, and start again as the restart policy says
//!   nothing runs and nothing will    ──▶ kill the pod: its sandbox goes
//! ```
//!
//! Decides as upstream does. Carries nothing out, knows of no back-off (a container that is to start
//! may have to wait) and of no deletion: a pod that is to end is not planned for but killed.

use crate::runtime::observed::{ContainerSeen, ContainerState, PodSeen, RuntimeId};
use crate::spec::{Container, Pod, RestartPolicy, Role};

mod init;
mod restart;

pub use restart::{Verdict, after_exit};

/// What a probe last said of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// No probe has had an answer yet.
    Unknown,
    Success,
    Failure,
}

/// What the worker knows beside the runtime's lists.
pub trait Knowledge {
    fn liveness(&self, container: &RuntimeId) -> Health;
    fn startup(&self, container: &RuntimeId) -> Health;
    /// Returns whether a container that was made with the hash `found` is of this definition.
    fn is_current(&self, container: &Container, found: &str) -> bool;
    /// Whether a container that runs has to start again to have what it was allocated.
    fn must_restart(&self, _container: &Container) -> bool {
        false
    }
}

/// Why a container is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillReason {
    Liveness,
    Startup,
    /// Its definition changed.
    Changed,
    /// The runtime does not know its state.
    Unknown,
    /// It is to have other resources, which its policy does not allow while it runs.
    Resize,
    /// All containers start again.
    RestartAll,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kill {
    pub id: RuntimeId,
    pub container: String,
    pub reason: KillReason,
    /// For people, in upstream's words.
    pub message: String,
}

/// What to do next, in this order: kill the pod or the containers, make the sandbox, start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// Kill everything the pod has.
    pub kill_pod: bool,
    pub kill: Vec<Kill>,
    /// Make a sandbox, as this attempt.
    pub create_sandbox: Option<u32>,
    /// Start these, by role and name, one after the other.
    pub start: Vec<(Role, String)>,
    /// Remove these, in this order, so that all start again. Nothing else is planned before they are gone.
    pub remove: Vec<RuntimeId>,
}

impl Plan {
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Plan::default()
    }
}

/// What to do next with a pod that is to run.
#[must_use]
pub fn plan(pod: &Pod, seen: &PodSeen, known: &dyn Knowledge) -> Plan {
    match sandbox_needed(pod, seen) {
        Some(attempt) => begin(pod, seen, attempt),
        None => go_on(pod, seen, known),
    }
}

/// The attempt of the sandbox to make, if the pod has none that can be used.
pub(crate) fn sandbox_needed(pod: &Pod, seen: &PodSeen) -> Option<u32> {
    let Some(newest) = seen.newest_sandbox() else { return Some(0) };
    let usable = newest.ready
        && newest.host_network == pod.spec.host_network
        && (newest.host_network || !newest.ips.is_empty());
    (!usable).then_some(newest.attempt + 1)
}

/// From the start, because there is no sandbox.
fn begin(pod: &Pod, seen: &PodSeen, attempt: u32) -> Plan {
    let kill_pod = !seen.sandboxes.is_empty() || !seen.containers.is_empty();
    let only_kill = Plan { kill_pod, ..Plan::default() };
    let restarts = pod.spec.restart_policy != RestartPolicy::Never;
    // A pod that never restarts and has run before is over when its sandbox is gone.
    if !restarts && attempt != 0 && !seen.containers.is_empty() {
        return only_kill;
    }
    let wanted = |container: &&Container| {
        let done = seen.container(&container.name).is_some_and(ContainerSeen::has_succeeded);
        !(done && pod.spec.restart_policy == RestartPolicy::OnFailure)
    };
    let apps: Vec<&Container> = pod.spec.containers.iter().filter(wanted).collect();
    if apps.is_empty() && init::has_begun(pod, seen) {
        return only_kill;
    }
    let start = match pod.spec.init_containers.first() {
        Some(first) => vec![(init_role(first), first.name.clone())],
        None => apps.iter().map(|container| (Role::App, container.name.clone())).collect(),
    };
    Plan { kill_pod, create_sandbox: Some(attempt), start, ..Plan::default() }
}

pub(crate) fn init_role(container: &Container) -> Role {
    if container.is_sidecar() { Role::Sidecar } else { Role::Init }
}

/// With a sandbox that is as it should be.
fn go_on(pod: &Pod, seen: &PodSeen, known: &dyn Knowledge) -> Plan {
    if let Some(plan) = restart::all(pod, seen) {
        return plan;
    }
    let mut plan = Plan::default();
    for container in &pod.spec.ephemeral_containers {
        if seen.container(&container.name).is_none() {
            plan.start.push((Role::Ephemeral, container.name.clone()));
        }
    }
    match init::plan(pod, seen, known, &mut plan) {
        init::Progress::Through => {}
        init::Progress::UnderWay => return plan,
        init::Progress::Failed => {
            return Plan { kill_pod: true, ..Plan::default() };
        }
    }
    let mut kept = 0;
    let before = plan.start.len();
    for container in &pod.spec.containers {
        kept += usize::from(app(pod, container, seen, known, &mut plan));
    }
    if kept == 0 && plan.start.len() == before {
        // Sidecars do not keep a pod alive whose work is done.
        return Plan { kill_pod: true, ..Plan::default() };
    }
    plan
}

/// Plans for one app container; whether it stays as it is.
fn app(
    pod: &Pod,
    container: &Container,
    seen: &PodSeen,
    known: &dyn Knowledge,
    plan: &mut Plan,
) -> bool {
    let name = &container.name;
    let found = match seen.container(name) {
        Some(found) if found.state == ContainerState::Running => found,
        other => {
            if restart::wanted(pod, container, other) {
                if let Some(unknown) = other.filter(|c| c.state == ContainerState::Unknown) {
                    let message =
                        "Container is in \"unknown\" state, try killing it before restart"
                            .to_owned();
                    plan.kill.push(kill(unknown, KillReason::Unknown, message));
                }
                plan.start.push((Role::App, name.clone()));
            }
            return false;
        }
    };
    let mut restarts = restart::policy(pod, container) != RestartPolicy::Never;
    let (reason, mut message) = if !known.is_current(container, &found.hash) {
        restarts = true;
        (KillReason::Changed, format!("Container {name} definition changed"))
    } else if known.liveness(&found.id) == Health::Failure {
        (KillReason::Liveness, format!("Container {name} failed liveness probe"))
    } else if known.startup(&found.id) == Health::Failure {
        (KillReason::Startup, format!("Container {name} failed startup probe"))
    } else if known.must_restart(container) {
        plan.start.push((Role::App, name.clone()));
        plan.kill.push(kill(found, KillReason::Resize, resize_message(name)));
        return false;
    } else {
        return true;
    };
    if restarts {
        message.push_str(", will be restarted");
        plan.start.push((Role::App, name.clone()));
    }
    plan.kill.push(kill(found, reason, message));
    false
}

fn resize_message(name: &str) -> String {
    format!("Container {name} resize requires restart")
}

pub(crate) fn kill(found: &ContainerSeen, reason: KillReason, message: String) -> Kill {
    Kill { id: found.id.clone(), container: found.name.clone(), reason, message }
}

#[cfg(test)]
mod tests;
