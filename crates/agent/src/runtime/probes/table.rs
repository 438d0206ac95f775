//! The probes of all pods: [`Table`] selects the next probe and turns outcomes into reports.
//!
//! It executes nothing, and time is an argument.

use std::collections::HashMap;
use std::sync::Arc;

use super::cycle::{Cycle, Millis, RunningContainer, Timing};
use super::execute::ProbeOutcome;
use super::{ProbeReport, ProbeTarget, probe_of};
use crate::observability::events::ProbeKind;
use lifecycle::observed::RuntimeId;
use lifecycle::spec::{Pod, Role};

const NANOS: i64 = 1_000_000;

/// Startup comes first: its result enables the others.
const KINDS: [ProbeKind; 3] = [ProbeKind::Startup, ProbeKind::Readiness, ProbeKind::Liveness];

#[derive(Debug, Clone, Copy)]
pub(super) struct ProbeTime {
    /// Since the table was created.
    pub millis: Millis,
    /// Since 1970.
    pub wall_nanos: i64,
}

#[derive(Debug)]
pub(super) struct Table {
    /// The time of its creation. Containers that started before may have been probed by a previous agent.
    made: i64,
    /// By UID.
    pods: HashMap<String, ProbedPod>,
}

#[derive(Debug)]
struct ProbedPod {
    pod: Arc<Pod>,
    pod_ip: String,
    probes: Vec<ContainerProbe>,
}

#[derive(Debug)]
struct ContainerProbe {
    container: String,
    cycle: Cycle,
}

/// A probe to execute now.
#[derive(Debug)]
pub(super) struct ProbeRequest {
    pub pod: Arc<Pod>,
    pub pod_ip: String,
    pub container: String,
    pub kind: ProbeKind,
    pub id: RuntimeId,
    pub timeout_seconds: i32,
}

impl Table {
    pub(super) fn new(wall_nanos: i64) -> Table {
        Table { made: wall_nanos, pods: HashMap::new() }
    }

    /// Sets the running containers of a pod. `share` returns a random number between 0 and 1.
    pub(super) fn follow(
        &mut self,
        pod: &Arc<Pod>,
        pod_ip: &str,
        running: &[ProbeTarget],
        now: ProbeTime,
        mut share: impl FnMut() -> f64,
    ) -> Vec<ProbeReport> {
        let uid = pod.metadata.uid.clone();
        let wanted = wanted(pod);
        if wanted.is_empty() {
            self.pods.remove(&uid);
            return Vec::new();
        }
        let followed = self.pods.entry(uid.clone()).or_insert_with(|| ProbedPod {
            pod: Arc::clone(pod),
            pod_ip: String::new(),
            probes: Vec::new(),
        });
        followed.pod = Arc::clone(pod);
        pod_ip.clone_into(&mut followed.pod_ip);
        followed
            .probes
            .retain(|watched| wanted.iter().any(|(name, kind, _)| watched.is(name, *kind)));
        for (name, kind, timing) in wanted {
            if !followed.probes.iter().any(|watched| watched.is(name, kind)) {
                // Many pods are registered right after the agent's start.
                let early = now.millis < timing.period;
                let wait = if early { timing.period as f64 * share() } else { 0.0 };
                let cycle = Cycle::new(kind, timing, now.millis + wait as Millis);
                followed.probes.push(ContainerProbe { container: name.to_owned(), cycle });
            }
        }
        let mut reports = Vec::new();
        for target in running {
            for kind in KINDS {
                let started = match pod.is_terminating() {
                    false => followed.started(&target.name),
                    // Its startup is no longer probed.
                    true => has_started(pod, target),
                };
                let Some(watched) = followed.probes.iter_mut().find(|w| w.is(&target.name, kind))
                else {
                    continue;
                };
                let known =
                    if target.started_at < self.made { known(pod, target, kind) } else { None };
                let age = (now.wall_nanos - target.started_at).max(0) / NANOS;
                let seen = RunningContainer { id: &target.id, age, started, known };
                if watched.cycle.see(Some(seen), now.millis) && known.is_some() {
                    reports.push(report(&uid, &target.name, &target.id, kind, known));
                }
            }
        }
        for watched in &mut followed.probes {
            if !running.iter().any(|target| target.name == watched.container) {
                watched.cycle.see(None, now.millis);
            }
        }
        reports
    }

    pub(super) fn forget(&mut self, uid: &str) {
        self.pods.remove(uid);
    }

    /// Returns the time of the next probe.
    pub(super) fn due(&self) -> Option<Millis> {
        let all = self.pods.values().flat_map(|followed| &followed.probes);
        all.filter_map(|watched| watched.cycle.due()).min()
    }

    /// Returns the probes to execute now.
    pub(super) fn take_due(&mut self, now: Millis) -> Vec<ProbeRequest> {
        let mut requests = Vec::new();
        for ProbedPod { pod, pod_ip, probes } in self.pods.values_mut() {
            for ContainerProbe { container, cycle } in probes {
                if cycle.due().is_none_or(|due| due > now) {
                    continue;
                }
                let (kind, timeout_seconds) = (cycle.kind, cycle.timing.timeout_seconds);
                let Some(id) = cycle.ask(now) else { continue };
                requests.push(ProbeRequest {
                    pod: Arc::clone(pod),
                    pod_ip: pod_ip.clone(),
                    container: container.clone(),
                    kind,
                    id: id.to_owned(),
                    timeout_seconds,
                });
            }
        }
        requests
    }

    /// Records the outcome of a probe.
    pub(super) fn answer(
        &mut self,
        request: &ProbeRequest,
        answer: ProbeOutcome,
        now: Millis,
    ) -> Vec<ProbeReport> {
        let uid = &request.pod.metadata.uid;
        let Some(followed) = self.pods.get_mut(uid) else { return Vec::new() };
        let probes = &mut followed.probes;
        let Some(watched) = probes.iter_mut().find(|w| w.is(&request.container, request.kind))
        else {
            return Vec::new();
        };
        if watched.cycle.container() != Some(&request.id) {
            return Vec::new();
        }
        let healthy = watched.cycle.answer(&request.id, answer.good(), now);
        let event = answer.event(request.kind);
        if request.kind == ProbeKind::Startup && healthy == Some(true) {
            for watched in probes.iter_mut().filter(|w| w.container == request.container) {
                watched.cycle.open(now);
            }
        }
        if healthy.is_none() && event.is_none() {
            return Vec::new();
        }
        let report = report(uid, &request.container, &request.id, request.kind, healthy);
        vec![ProbeReport { event, ..report }]
    }
}

impl ProbedPod {
    /// Returns true if the other probes of a container may run.
    fn started(&self, container: &str) -> bool {
        let startup = self.probes.iter().find(|w| w.is(container, ProbeKind::Startup));
        startup.is_none_or(|watched| watched.cycle.result() == Some(true))
    }
}

impl ContainerProbe {
    fn is(&self, container: &str, kind: ProbeKind) -> bool {
        self.container == container && self.cycle.kind == kind
    }
}

fn report(
    uid: &str,
    container: &str,
    id: &str,
    kind: ProbeKind,
    healthy: Option<bool>,
) -> ProbeReport {
    ProbeReport {
        pod: uid.to_owned(),
        container: container.to_owned(),
        id: id.to_owned(),
        kind,
        healthy,
        event: None,
    }
}

/// Returns the probes of a pod.
fn wanted(pod: &Pod) -> Vec<(&str, ProbeKind, Timing)> {
    let mut wanted = Vec::new();
    for (role, container) in pod.containers() {
        if !matches!(role, Role::App | Role::Sidecar) {
            continue;
        }
        for kind in KINDS {
            // A terminating pod is not restarted, but may still be in use.
            if pod.is_terminating() && kind != ProbeKind::Readiness {
                continue;
            }
            if let Some(probe) = probe_of(container, kind) {
                wanted.push((container.name.as_str(), kind, Timing::of(probe)));
            }
        }
    }
    wanted
}

/// Returns true if a container of a terminating pod has started, so that its readiness may be probed.
fn has_started(pod: &Pod, target: &ProbeTarget) -> bool {
    let probed = pod.container(&target.name).is_some_and(|(_, c)| c.startup_probe.is_some());
    !probed || known(pod, target, ProbeKind::Startup) == Some(true)
}

/// Returns the result in the pod's status of a container that a previous agent probed. Upstream keeps it, so
/// that a restart of the agent takes no pod out of service.
fn known(pod: &Pod, target: &ProbeTarget, kind: ProbeKind) -> Option<bool> {
    let field = match kind {
        ProbeKind::Readiness => "ready",
        ProbeKind::Startup => "started",
        ProbeKind::Liveness => return None,
    };
    let lists = ["containerStatuses", "initContainerStatuses"];
    let statuses = lists.iter().filter_map(|list| pod.status[*list].as_array()).flatten();
    let mut of_it = statuses.filter(|status| {
        let id = status["containerID"].as_str().unwrap_or("");
        id.split_once("://").is_some_and(|(_, id)| id == target.id)
    });
    (of_it.next()?[field].as_bool() == Some(true)).then_some(true)
}
