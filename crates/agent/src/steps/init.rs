//! Init containers and sidecars: which is next.
//!
//! Walked from the last to the first: the last one the runtime knows of says how far the pod has come,
//! and all before it that are not sidecars are over.

use super::{Health, Kill, KillReason, Knowledge, Plan, init_role, kill};
use crate::observed::{ContainerSeen, ContainerState, PodSeen};
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

/// Whether any app container has been made, after which init containers are over for good.
pub(super) fn has_begun(pod: &Pod, seen: &PodSeen) -> bool {
    pod.spec.containers.iter().any(|container| seen.container(&container.name).is_some())
}

pub(super) fn plan(pod: &Pod, seen: &PodSeen, known: &dyn Knowledge, plan: &mut Plan) -> Progress {
    let all = &pod.spec.init_containers;
    if all.is_empty() {
        return Progress::Through;
    }
    let mut walk = Walk {
        all,
        known,
        restarts: pod.spec.restart_policy != RestartPolicy::Never,
        through: has_begun(pod, seen),
        start: Vec::new(),
        kill: Vec::new(),
    };
    // Whether a later one has been reached, which means that the one looked at has done its part.
    let mut passed = walk.through;
    for index in (0..all.len()).rev() {
        let Some(container) = all.get(index) else { continue };
        let Some(found) = seen.container(&container.name) else {
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
    all: &'a [Container],
    known: &'a dyn Knowledge,
    restarts: bool,
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
            (ContainerState::Exited, false) if self.restarts => {
                self.start.push(index);
                Ok(())
            }
            (ContainerState::Unknown, sidecar) if sidecar || self.restarts => {
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
