//! The next actions for a pod: [`plan`] computes them from its spec and its state in the runtime.
//!
//! ```text
//!   no sandbox, or a dead one        ──▶ kill the rest, create a sandbox, start the first init
//!   an exit whose rule restarts all  ──▶ kill and remove all containers; the sandbox stays
//!   init containers not completed    ──▶ start the next one, or restart the failed one
//!   sidecars that exited             ──▶ restart them in any case
//!   containers that exited           ──▶ restart them according to the restart policy
//!   containers that fail their probe ──▶ kill, then restart according to the restart policy
//!   nothing runs or will run         ──▶ kill the pod with its sandbox
//! ```
//!
//! Decides as upstream does. It executes nothing, ignores back-off (a container to start may have to wait),
//! and does not handle deletion: a terminating pod is killed without a plan.

use crate::observed::{ContainerState, RuntimeContainer, RuntimeId, RuntimePod};
use crate::spec::{Container, Pod, RestartPolicy, Role};

mod init;
mod restart;

pub use restart::{Verdict, after_exit};

/// The last result of a probe of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// No probe has completed yet.
    Unknown,
    Success,
    Failure,
}

/// The worker's state that is not in the runtime's lists.
pub trait ProbeResults {
    fn liveness(&self, container: &RuntimeId) -> Health;
    fn startup(&self, container: &RuntimeId) -> Health;
    /// Returns true if a container that was created with the hash `found` has this definition.
    fn is_current(&self, container: &Container, found: &str) -> bool;
    /// Returns true if a running container must restart to get its allocated resources.
    fn must_restart(&self, _container: &Container) -> bool {
        false
    }
}

/// The reason for killing a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillReason {
    Liveness,
    Startup,
    /// Its definition changed.
    Changed,
    /// The runtime does not know its state.
    Unknown,
    /// It gets other resources, and its resize policy requires a restart.
    Resize,
    /// All containers restart.
    RestartAll,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kill {
    pub id: RuntimeId,
    pub container: String,
    pub reason: KillReason,
    /// The message of the event, with upstream's text.
    pub message: String,
}

/// The next actions, in this order: kill the pod or the containers, create the sandbox, start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// Kill the pod with all its containers.
    pub kill_pod: bool,
    pub kill: Vec<Kill>,
    /// Create a sandbox with this attempt number.
    pub create_sandbox: Option<u32>,
    /// Start these, by role and name, in this order.
    pub start: Vec<(Role, String)>,
    /// Remove these, in this order, so that all containers restart. Nothing else is planned before they are
    /// gone.
    pub remove: Vec<RuntimeId>,
}

impl Plan {
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Plan::default()
    }
}

/// Plans the next actions for a pod that should run.
#[must_use]
pub fn plan(pod: &Pod, observed: &RuntimePod, inputs: &dyn ProbeResults) -> Plan {
    match sandbox_needed(pod, observed) {
        Some(attempt) => begin(pod, observed, attempt),
        None => go_on(pod, observed, inputs),
    }
}

/// Returns the attempt number of the sandbox to create, if the pod has no usable one.
pub fn sandbox_needed(pod: &Pod, observed: &RuntimePod) -> Option<u32> {
    let Some(newest) = observed.newest_sandbox() else { return Some(0) };
    let usable = newest.ready
        && newest.host_network == pod.spec.host_network
        && (newest.host_network || !newest.ips.is_empty());
    (!usable).then_some(newest.attempt + 1)
}

/// Plans for a pod without a usable sandbox.
fn begin(pod: &Pod, observed: &RuntimePod, attempt: u32) -> Plan {
    let kill_pod = !observed.sandboxes.is_empty() || !observed.containers.is_empty();
    let only_kill = Plan { kill_pod, ..Plan::default() };
    let restarts = pod.spec.restart_policy != RestartPolicy::Never;
    // A pod that never restarts and has run before is finished when its sandbox is gone.
    if !restarts && attempt != 0 && !observed.containers.is_empty() {
        return only_kill;
    }
    let wanted = |container: &&Container| {
        let done = observed.container(&container.name).is_some_and(RuntimeContainer::has_succeeded);
        !(done && pod.spec.restart_policy == RestartPolicy::OnFailure)
    };
    let apps: Vec<&Container> = pod.spec.containers.iter().filter(wanted).collect();
    if apps.is_empty() && init::has_begun(pod, observed) {
        return only_kill;
    }
    let start = match pod.spec.init_containers.first() {
        Some(first) => vec![(init_role(first), first.name.clone())],
        None => apps.iter().map(|container| (Role::App, container.name.clone())).collect(),
    };
    Plan { kill_pod, create_sandbox: Some(attempt), start, ..Plan::default() }
}

pub fn init_role(container: &Container) -> Role {
    if container.is_sidecar() { Role::Sidecar } else { Role::Init }
}

/// Plans for a pod with a usable sandbox.
fn go_on(pod: &Pod, observed: &RuntimePod, inputs: &dyn ProbeResults) -> Plan {
    if let Some(plan) = restart::all(pod, observed) {
        return plan;
    }
    let mut plan = Plan::default();
    for container in &pod.spec.ephemeral_containers {
        if observed.container(&container.name).is_none() {
            plan.start.push((Role::Ephemeral, container.name.clone()));
        }
    }
    match init::plan(pod, observed, inputs, &mut plan) {
        init::Progress::Through => {}
        init::Progress::UnderWay => return plan,
        init::Progress::Failed => {
            return Plan { kill_pod: true, ..Plan::default() };
        }
    }
    let mut kept = 0;
    let before = plan.start.len();
    for container in &pod.spec.containers {
        kept += usize::from(app(pod, container, observed, inputs, &mut plan));
    }
    if kept == 0 && plan.start.len() == before {
        // Sidecars do not keep a pod alive after its containers have completed.
        return Plan { kill_pod: true, ..Plan::default() };
    }
    plan
}

/// Plans for one app container. Returns true if it is left running.
fn app(
    pod: &Pod,
    container: &Container,
    observed: &RuntimePod,
    inputs: &dyn ProbeResults,
    plan: &mut Plan,
) -> bool {
    let name = &container.name;
    let found = match observed.container(name) {
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
    let (reason, mut message) = if !inputs.is_current(container, &found.hash) {
        restarts = true;
        (KillReason::Changed, format!("Container {name} definition changed"))
    } else if inputs.liveness(&found.id) == Health::Failure {
        (KillReason::Liveness, format!("Container {name} failed liveness probe"))
    } else if inputs.startup(&found.id) == Health::Failure {
        (KillReason::Startup, format!("Container {name} failed startup probe"))
    } else if inputs.must_restart(container) {
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

pub fn kill(found: &RuntimeContainer, reason: KillReason, message: String) -> Kill {
    Kill { id: found.id.clone(), container: found.name.clone(), reason, message }
}

#[cfg(test)]
mod tests;
