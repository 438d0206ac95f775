//! Init containers and sidecars: which is next.
//!
//! Walked from the last to the first: the last one the runtime knows of says how far the pod has come,
//! and all before it that are not sidecars are over.

use super::{
    Health, Kill, KillReason, Knowledge, Plan, Verdict, after_exit, init_role, kill, restart,
};
use crate::runtime::observed::{ContainerSeen, ContainerState, PodSeen};
use crate::spec::{Container, Pod, RestartPolicy};

/// How far a pod's init containers have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// App containers may start.
    Through,
    UnderWay,
    /// One failed and is not started again.
    Failed,
}

/// Whether any app container has been made, in whatever sandbox.
pub(super) fn has_begun(pod: &Pod, seen: &PodSeen) -> bool {
    pod.spec.containers.iter().any(|container| seen.container(&container.name).is_some())
}

/// Whether a container is of the sandbox that is in use. What ended with one before it tells nothing of
/// how far the pod has come in this one.
fn is_current(found: &ContainerSeen, seen: &PodSeen) -> bool {
    seen.newest_sandbox().is_some_and(|sandbox| sandbox.id == found.sandbox)
}

/// Whether any app container has been made in this sandbox, after which init containers are over for good.
fn is_through(pod: &Pod, seen: &PodSeen) -> bool {
    let found = pod.spec.containers.iter().filter_map(|c| seen.container(&c.name));
    found.into_iter().any(|found| is_current(found, seen))
}

pub(super) fn plan(pod: &Pod, seen: &PodSeen, known: &dyn Knowledge, plan: &mut Plan) -> Progress {
    let all = &pod.spec.init_containers;
    if all.is_empty() {
        return Progress::Through;
    }
    let mut walk = Walk {
        pod,
        all,
        known,
        through: is_through(pod, seen),
        start: Vec::new(),
        kill: Vec::new(),
    };
    // Whether a later one has been reached, which means that the one looked at has done its part.
    let mut passed = walk.through;
    for index in (0..all.len()).rev() {
        let Some(container) = all.get(index) else { continue };
        let found = seen.container(&container.name).filter(|found| is_current(found, seen));
        let Some(found) = found else {
            // Its record was removed. A sidecar must run all the same.
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
    known: &'a dyn Knowledge,
    through: bool,
    start: Vec<usize>,
    kill: Vec<Kill>,
}

/// An init container failed and is not started again.
struct Failed;

impl Walk<'_> {
    /// The one after `index` is next; after the last one come the app containers.
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
        found: &ContainerSeen,
        passed: bool,
    ) -> Result<(), Failed> {
        match (found.state, container.is_sidecar()) {
            // It is waited for.
            (ContainerState::Running, false) => Ok(()),
            // Made by an attempt that was cut short: a new one is made.
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
            // Without an exit code there is no rule to go by, only the policy.
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
        found: &ContainerSeen,
        passed: bool,
    ) {
        let name = &container.name;
        let startup = match &container.startup_probe {
            None => Health::Success,
            Some(_) => self.known.startup(&found.id),
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
        if !self.known.is_current(container, &found.hash) {
            let message = format!("Init container {name} definition changed");
            self.kill.push(kill(found, KillReason::Changed, message));
            self.start.push(index);
            return;
        }
        let alive =
            container.liveness_probe.is_none() || self.known.liveness(&found.id) != Health::Failure;
        if !alive {
            let message = format!("Init container {name} failed liveness probe");
            self.kill.push(kill(found, KillReason::Liveness, message));
            self.start.push(index);
        } else if self.known.must_restart(container) {
            let message = super::resize_message(name);
            self.kill.push(kill(found, KillReason::Resize, message));
            self.start.push(index);
        }
    }
}
