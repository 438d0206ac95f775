//! Probes of containers: [`Probes`], one for the agent, probes the pods that workers register and reports
//! changed results ([`ProbeReport`]).
//!
//! ```text
//!   worker ──follow──▶ table of cycles ──due──▶ probe (exec, HTTP, TCP, gRPC) ──outcome──▶ report ──▶ worker
//! ```
//!
//! One task has one timer for all probes; only running probes have their own tasks. Before the first report,
//! a container is alive and not ready; its startup is unknown if it has a startup probe. Restarting
//! containers is left to the workers.

use std::sync::Arc;
use std::time::Duration;

use client::clock::{Clock as _, SystemClock};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::error;

use crate::observability::events::{AgentEvent, ProbeKind};
use crate::supervisor::caught;
use lifecycle::observed::RuntimeId;
use lifecycle::spec::{Container, Pod, Probe};
use metrics::{Counter, Registry};

mod cycle;
mod execute;
mod grpc;
mod table;

use cycle::Millis;
use execute::{ProbeInput, ProbeOutcome};
use table::{ProbeRequest, ProbeTime, Table};

/// A running container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeTarget {
    pub name: String,
    pub id: RuntimeId,
    /// Nanoseconds since 1970.
    pub started_at: i64,
}

/// A changed result or an event of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeReport {
    /// The pod's UID.
    pub pod: String,
    pub container: String,
    pub id: RuntimeId,
    pub kind: ProbeKind,
    /// The probe's result, if it has changed.
    pub healthy: Option<bool>,
    pub event: Option<AgentEvent>,
}

/// All probes of the agent. They end with it.
#[derive(Debug, Clone)]
pub struct Probes {
    commands: mpsc::UnboundedSender<ProbeCommand>,
}

#[derive(Debug)]
enum ProbeCommand {
    Follow { pod: Arc<Pod>, pod_ip: String, running: Vec<ProbeTarget> },
    Forget(String),
}

impl Probes {
    /// Nothing is probed unless the loop runs. It counts the results.
    #[must_use]
    pub fn new(
        runtime: cri::Client,
        reports: mpsc::UnboundedSender<ProbeReport>,
        counter: Counter,
    ) -> (Probes, ProbeLoop) {
        let (commands, taken) = mpsc::unbounded_channel();
        (Probes { commands }, ProbeLoop { runtime, reports, counter, commands: taken })
    }

    /// Sets the running containers of this pod, and starts and stops probes accordingly.
    ///
    /// Call it as soon as the agent starts the pod, with no running containers: ticks count from the first
    /// call, so a container that has just started has time before its liveness is probed. Only the readiness
    /// of terminating pods is probed.
    pub fn follow(&self, pod: &Arc<Pod>, pod_ips: &[String], running: &[ProbeTarget]) {
        let pod_ip = pod_ips.first().cloned().unwrap_or_default();
        let (pod, running) = (Arc::clone(pod), running.to_vec());
        // The loop ends with the agent.
        let _ = self.commands.send(ProbeCommand::Follow { pod, pod_ip, running });
    }

    pub fn forget(&self, pod_uid: &str) {
        let _ = self.commands.send(ProbeCommand::Forget(pod_uid.to_owned()));
    }
}

/// Returns a probe of a container.
pub(crate) fn probe_of(container: &Container, kind: ProbeKind) -> Option<&Probe> {
    match kind {
        ProbeKind::Liveness => container.liveness_probe.as_ref(),
        ProbeKind::Readiness => container.readiness_probe.as_ref(),
        ProbeKind::Startup => container.startup_probe.as_ref(),
    }
}

/// The loop that probes.
#[derive(Debug)]
pub struct ProbeLoop {
    runtime: cri::Client,
    reports: mpsc::UnboundedSender<ProbeReport>,
    counter: Counter,
    commands: mpsc::UnboundedReceiver<ProbeCommand>,
}

impl ProbeLoop {
    /// Probes until all [`Probes`] or the receiver of the reports are gone.
    pub async fn run(self) {
        let ProbeLoop { runtime, reports, counter, mut commands } = self;
        let clock = Clock::start();
        let (answers, mut answered) = mpsc::unbounded_channel::<(ProbeRequest, ProbeOutcome)>();
        let mut table = Table::new(clock.now().wall_nanos);
        loop {
            let due = table.due().map(|at| clock.at(at));
            let changes = tokio::select! {
                command = commands.recv() => match command {
                    Some(ProbeCommand::Follow { pod, pod_ip, running }) => {
                        table.follow(&pod, &pod_ip, &running, clock.now(), random_share)
                    }
                    Some(ProbeCommand::Forget(uid)) => {
                        table.forget(&uid);
                        counter.forget(|labels| labels.get(POD_UID_LABEL) == Some(&uid));
                        Vec::new()
                    }
                    None => return,
                },
                // The table's own sender keeps this channel open.
                Some((request, answer)) = answered.recv() => {
                    count(&counter, &request, answer.good());
                    table.answer(&request, answer, clock.now().millis)
                }
                () = until(due) => {
                    for request in table.take_due(clock.now().millis) {
                        tokio::spawn(put(runtime.clone(), request, answers.clone()));
                    }
                    Vec::new()
                }
            };
            for report in changes {
                if reports.send(report).is_err() {
                    return;
                }
            }
        }
    }
}

/// The position of the pod UID among the labels of [`result_counter`].
const POD_UID_LABEL: usize = 3;

/// Returns the counter of probe results, with upstream's name.
#[must_use]
pub fn result_counter(registry: &Registry) -> Counter {
    registry.counter(
        "prober_probe_total",
        "[BETA] Cumulative number of a liveness, readiness or startup probe for a container by \
         result.",
        &["container", "namespace", "pod", "pod_uid", "probe_type", "result"],
    )
}

fn count(counter: &Counter, request: &ProbeRequest, good: Option<bool>) {
    let metadata = &request.pod.metadata;
    let kind = match request.kind {
        ProbeKind::Liveness => "Liveness",
        ProbeKind::Readiness => "Readiness",
        ProbeKind::Startup => "Startup",
    };
    let result = match good {
        Some(true) => "successful",
        Some(false) => "failed",
        None => "unknown",
    };
    counter.increment(&[
        &request.container,
        &metadata.namespace,
        &metadata.name,
        &metadata.uid,
        kind,
        result,
    ]);
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Executes one probe.
async fn put(
    runtime: cri::Client,
    request: ProbeRequest,
    answers: mpsc::UnboundedSender<(ProbeRequest, ProbeOutcome)>,
) {
    let pod = Arc::clone(&request.pod);
    let found = pod.container(&request.container).map(|(_, container)| container);
    let Some((container, probe)) = found.and_then(|c| Some((c, probe_of(c, request.kind)?))) else {
        return;
    };
    let question = ProbeInput {
        pod: &pod,
        container,
        id: &request.id,
        pod_ip: &request.pod_ip,
        handler: &probe.handler,
        timeout_seconds: request.timeout_seconds,
    };
    let answer = caught(execute::probe(&runtime, &question)).await.unwrap_or_else(|panicked| {
        let (pod, uid, container) = (pod.full_name(), &pod.metadata.uid, &container.name);
        error!(pod, uid, container, probe = ?request.kind, cause = %panicked, "a probe panicked");
        ProbeOutcome::Error(panicked.to_string())
    });
    let _ = answers.send((request, answer));
}

/// The clock of the table.
#[derive(Debug, Clone, Copy)]
struct Clock {
    started: Instant,
}

impl Clock {
    fn start() -> Clock {
        Clock { started: Instant::now() }
    }

    fn now(&self) -> ProbeTime {
        ProbeTime {
            millis: Millis::try_from(self.started.elapsed().as_millis()).unwrap_or(Millis::MAX),
            wall_nanos: SystemClock.now().unix_nanos(),
        }
    }

    fn at(&self, millis: Millis) -> Instant {
        self.started + Duration::from_millis(u64::try_from(millis).unwrap_or(0))
    }
}

/// Returns a random number between 0 and 1. Without it, all probes of a restarted agent would run at once.
fn random_share() -> f64 {
    let mut bytes = [0; 4];
    let _ = getrandom::fill(&mut bytes);
    f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod recorded;
#[cfg(test)]
mod tests;
