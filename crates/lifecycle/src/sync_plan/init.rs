//! The next init container or sidecar.
//!
//! Containers are visited from the last to the first: the last one that the runtime has gives the progress of
//! the pod, and all before it that are not sidecars have completed.

use super::{
    Health, Kill, KillReason, Plan, ProbeResults, Verdict, after_exit, init_role, kill, restart,
};
use crate::observed::{ContainerState, RuntimeContainer, RuntimePod};
use crate::spec::{Container, Pod, RestartPolicy};

/// The progress of a pod's init containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// App containers may start.
    Through,
    UnderWay,
    /// One failed and does not restart.
    Failed,
}

/// Returns true if any app container was created, in any sandbox.
pub(super) fn has_begun(pod: &Pod, observed: &RuntimePod) -> bool {
    pod.spec.containers.iter().any(|container| observed.container(&container.name).is_some())
}

/// Returns true if a container belongs to the current sandbox. Containers of previous sandboxes do not count
/// for the progress in this one.
fn is_current(found: &RuntimeContainer, observed: &RuntimePod) -> bool {
    observed.newest_sandbox().is_some_and(|sandbox| sandbox.id == found.sandbox)
}

/// Returns true if any app container was created in this sandbox, after which no init container runs again.
fn is_through(pod: &Pod, observed: &RuntimePod) -> bool {
    let found = pod.spec.containers.iter().filter_map(|c| observed.container(&c.name));
    found.into_iter().any(|found| is_current(found, observed))
}

pub(super) fn plan(
    pod: &Pod,
    observed: &RuntimePod,
    inputs: &dyn ProbeResults,
    plan: &mut Plan,
) -> Progress {
    let all = &pod.spec.init_containers;
    if all.is_empty() {
        return Progress::Through;
    }
    let mut walk = Walk {
        pod,
        all,
        inputs,
        through: is_through(pod, observed),
        start: Vec::new(),
        kill: Vec::new(),
    };
    // True if a later container was reached, which means that this one has completed.
    let mut passed = walk.through;
    for index in (0..all.len()).rev() {
        let Some(container) = all.get(index) else { continue };
        let found = observed.container(&container.name).filter(|found| is_current(found, observed));
        let Some(found) = found else {
            // Its record was removed. A sidecar must still run.
            if passed && container.is_sidecar() {
                walk.start.push(index);
            }
            continue;
        };
        if passed && !container.is_sidecar() {
            continue;
        }
        if walk.one(index, container, found, passed).is_err() {
            return Progress::Failed;
        }
        passed = true;
    }
    if !passed {
        walk.start.push(0);
    }
    walk.start.sort_unstable();
    walk.start.dedup();
    let started = walk.start.iter().filter_map(|index| all.get(*index));
    plan.start.extend(started.map(|container| (init_role(container), container.name.clone())));
    plan.kill.append(&mut walk.kill);
    if walk.through { Progress::Through } else { Progress::UnderWay }
}

struct Walk<'a> {
    pod: &'a Pod,
    all: &'a [Container],
    inputs: &'a dyn ProbeResults,
    through: bool,
    start: Vec<usize>,
    kill: Vec<Kill>,
}

/// An init container failed and does not restart.
struct Failed;

impl Walk<'_> {
    /// Makes the container after `index` the next; after the last one, app containers start.
    fn next_after(&mut self, index: usize) {
        if index + 1 == self.all.len() {
            self.through = true;
        } else {
            self.start.push(index + 1);
        }
    }

    fn one(
        &mut self,
        index: usize,
        container: &Container,
        found: &RuntimeContainer,
        passed: bool,
    ) -> Result<(), Failed> {
        match (found.state, container.is_sidecar()) {
            // Wait for it.
            (ContainerState::Running, false) => Ok(()),
            // Its creation was interrupted: a new one is created.
            (ContainerState::Created, _) => {
                self.start.push(index);
                Ok(())
            }
            (ContainerState::Running, true) => {
                self.running_sidecar(index, container, found, passed);
                Ok(())
            }
            (ContainerState::Exited, true) => {
                self.start.push(index);
                Ok(())
            }
            (ContainerState::Exited, false) if found.has_succeeded() => {
                self.next_after(index);
                Ok(())
            }
            (ContainerState::Exited, false)
                if after_exit(self.pod, container, found.exit_code) != Verdict::Stays =>
            {
                self.start.push(index);
                Ok(())
            }
            // Without an exit code no rule matches, so the policy decides.
            (ContainerState::Unknown, _)
                if restart::policy(self.pod, container) != RestartPolicy::Never =>
            {
                let message =
                    "Init container is in \"unknown\" state, try killing it before restart";
                self.kill.push(kill(found, KillReason::Unknown, message.to_owned()));
                self.start.push(index);
                Ok(())
            }
            (ContainerState::Exited | ContainerState::Unknown, _) => Err(Failed),
        }
    }

    fn running_sidecar(
        &mut self,
        index: usize,
        container: &Container,
        found: &RuntimeContainer,
        passed: bool,
    ) {
        let name = &container.name;
        let startup = match &container.startup_probe {
            None => Health::Success,
            Some(_) => self.inputs.startup(&found.id),
        };
        match startup {
            Health::Unknown => return,
            Health::Failure => {
                let message = format!("Init container {name} failed startup probe");
                self.kill.push(kill(found, KillReason::Startup, message));
                self.start.push(index);
                return;
            }
            Health::Success => {}
        }
        if !passed {
            self.next_after(index);
        }
        if !self.inputs.is_current(container, &found.hash) {
            let message = format!("Init container {name} definition changed");
            self.kill.push(kill(found, KillReason::Changed, message));
            self.start.push(index);
            return;
        }
        let alive = container.liveness_probe.is_none()
            || self.inputs.liveness(&found.id) != Health::Failure;
        if !alive {
            let message = format!("Init container {name} failed liveness probe");
            self.kill.push(kill(found, KillReason::Liveness, message));
            self.start.push(index);
        } else if self.inputs.must_restart(container) {
            let message = super::resize_message(name);
            self.kill.push(kill(found, KillReason::Resize, message));
            self.start.push(index);
        }
    }
}
