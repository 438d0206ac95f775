//! The phase of a pod: [`of`], from the statuses of its containers.
//!
//! ```text
//!   an init container failed for good        ──▶ Failed
//!   something has not begun yet              ──▶ Pending
//!   something runs                           ──▶ Running
//!   all ended, and some will start again     ──▶ Running
//!   all ended, well or not                   ──▶ Succeeded, Failed
//! ```

use super::containers::RESTARTING_ALL;
use super::model::{ContainerStatus, Phase, PodStatus, State, Terminated};
use crate::observed::RuntimePod;
use crate::spec::{Container, Pod};
use crate::sync_plan::{Verdict, after_exit};

/// `finished` is true if nothing of the pod runs or will run.
pub(super) fn of(pod: &Pod, status: &PodStatus, observed: &RuntimePod, finished: bool) -> Phase {
    let init = init_progress(pod, status);
    if init.failed {
        return Phase::Failed;
    }
    let mut counts = Counts::default();
    for container in pod.spec.init_containers.iter().filter(|c| c.is_sidecar()) {
        counts.sidecar(status.init_container_statuses.iter().find(|s| s.name == container.name));
    }
    for container in &pod.spec.containers {
        let found = status.container_statuses.iter().find(|s| s.name == container.name);
        counts.app(pod, container, found);
    }
    // Once the app containers exist, a sidecar that restarts does not make the pod Pending.
    let begun = pod.spec.containers.iter().any(|c| observed.container(&c.name).is_some());
    if init.pending || (counts.sidecars_pending && !begun) || counts.waiting > 0 {
        return Phase::Pending;
    }
    if counts.unknown > 0 {
        return Phase::Pending;
    }
    match (counts.running, counts.stopped) {
        (1.., _) => Phase::Running,
        (0, 1..) => ended(pod, &counts, finished),
        (0, 0) => Phase::Pending,
    }
}

/// Returns the phase of a pod whose containers have all exited.
fn ended(pod: &Pod, counts: &Counts, finished: bool) -> Phase {
    let all_well = counts.stopped == counts.succeeded;
    // Static pods have no terminal phase while their file exists.
    let last = finished && !is_static(pod);
    if !last && counts.stopped > counts.stopped_for_good {
        return Phase::Running;
    }
    if all_well { Phase::Succeeded } else { Phase::Failed }
}

/// Returns true if a pod comes from a file or URL instead of the API.
#[must_use]
pub fn is_static(pod: &Pod) -> bool {
    objects::pod::is_static(&pod.metadata.annotations)
}

struct InitProgress {
    pending: bool,
    failed: bool,
}

fn init_progress(pod: &Pod, status: &PodStatus) -> InitProgress {
    let mut progress = InitProgress { pending: false, failed: false };
    for container in pod.spec.init_containers.iter().filter(|c| !c.is_sidecar()) {
        let found = status.init_container_statuses.iter().find(|s| s.name == container.name);
        match found.and_then(|found| end(found)) {
            Some(end) if end.exit_code != 0 => {
                progress.failed |= !starts_again(pod, container, end);
            }
            Some(_) => {}
            None => progress.pending = true,
        }
    }
    progress
}

/// Returns how a container that does not run exited; `None` if it runs or never ran.
fn end(status: &ContainerStatus) -> Option<&Terminated> {
    match &status.state {
        State { terminated: Some(end), .. } => Some(end),
        State { waiting: Some(_), .. } => status.last_state.terminated.as_ref(),
        _ => None,
    }
}

fn starts_again(pod: &Pod, container: &Container, end: &Terminated) -> bool {
    end.reason == RESTARTING_ALL || after_exit(pod, container, end.exit_code) != Verdict::Stays
}

#[derive(Default)]
struct Counts {
    unknown: usize,
    running: usize,
    waiting: usize,
    stopped: usize,
    stopped_for_good: usize,
    succeeded: usize,
    sidecars_pending: bool,
}

impl Counts {
    /// Sidecars that have exited do not count.
    fn sidecar(&mut self, status: Option<&ContainerStatus>) {
        match status {
            None => self.unknown += 1,
            Some(status) if status.state.running.is_some() => {
                self.sidecars_pending |= status.started != Some(true);
                self.running += 1;
            }
            Some(status) if end(status).is_some() => {}
            Some(_) => {
                self.sidecars_pending = true;
                self.waiting += 1;
            }
        }
    }

    fn app(&mut self, pod: &Pod, container: &Container, status: Option<&ContainerStatus>) {
        let Some(status) = status else {
            self.unknown += 1;
            return;
        };
        if status.state.running.is_some() {
            self.running += 1;
            return;
        }
        let Some(end) = end(status) else {
            self.waiting += 1;
            return;
        };
        self.stopped += 1;
        self.stopped_for_good += usize::from(!starts_again(pod, container, end));
        // A container that waits for its restart has not succeeded, however it exited before.
        let ended = status.state.terminated.is_some();
        self.succeeded += usize::from(ended && end.exit_code == 0);
    }
}
