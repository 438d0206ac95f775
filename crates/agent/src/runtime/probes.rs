//! Asks containers how they are: [`Probes`], one for the agent, follows the pods it is told of and
//! reports what changes ([`ProbeReport`]).
//!
//! ```text
//!   worker ──follow──▶ table of cycles ──due──▶ ask (exec, HTTP, TCP, gRPC) ──answer──▶ report ──▶ worker
//! ```
//!
//! One task keeps one timer for all probes; only questions under way are tasks of their own. Until the
//! first report a container is alive, not ready, and whether it has started is unknown unless it has no
//! startup probe. Restarts nothing: it says what probes said.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::observability::events::{ProbeKind, Told};
use crate::observability::prometheus::{Counter, Registry};
use crate::runtime::observed::RuntimeId;
use crate::spec::{Container, Pod, Probe};

mod cycle;
mod execute;
mod grpc;
mod table;

use cycle::Millis;
use execute::{Answer, Question};
use table::{Asked, Now, Table};

/// A container that runs now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeTarget {
    pub name: String,
    pub id: RuntimeId,
    /// Nanoseconds since 1970.
    pub started_at: i64,
}

/// Something a probe has to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeReport {
    /// The pod's UID.
    pub pod: String,
    pub container: String,
    pub id: RuntimeId,
    pub kind: ProbeKind,
    /// The probe's result, if it has changed.
    pub healthy: Option<bool>,
    pub told: Option<Told>,
}

/// All probes of the agent. They end with it.
#[derive(Debug, Clone)]
pub struct Probes {
    orders: mpsc::UnboundedSender<Order>,
}

#[derive(Debug)]
enum Order {
    Follow { pod: Arc<Pod>, pod_ip: String, running: Vec<ProbeTarget> },
    Forget(String),
}

impl Probes {
    /// Starts the task that probes; needs to be called on a tokio runtime.
    #[must_use]
    pub fn new(runtime: cri::Client, reports: mpsc::UnboundedSender<ProbeReport>) -> Probes {
        Probes::counted(runtime, reports, Counter::of_probes(&Registry::default()))
    }

    /// The same, and counts what they say.
    #[must_use]
    pub fn counted(
        runtime: cri::Client,
        reports: mpsc::UnboundedSender<ProbeReport>,
        counter: Counter,
    ) -> Probes {
        let (orders, taken) = mpsc::unbounded_channel();
        tokio::spawn(run(runtime, reports, counter, taken));
        Probes { orders }
    }

    /// The containers of this pod that run now; starts and stops probing to fit.
    ///
    /// Worth calling as soon as the agent takes the pod, with nothing running: ticks count from the
    /// first call, so a container that has just started is given time before its liveness is asked.
    /// Pods that are to end are only asked for their readiness.
    pub fn follow(&self, pod: &Arc<Pod>, pod_ips: &[String], running: &[ProbeTarget]) {
        let pod_ip = pod_ips.first().cloned().unwrap_or_default();
        let (pod, running) = (Arc::clone(pod), running.to_vec());
        // The task ends with the runtime it is on, and then nobody waits for reports.
        let _ = self.orders.send(Order::Follow { pod, pod_ip, running });
    }

    pub fn forget(&self, pod_uid: &str) {
        let _ = self.orders.send(Order::Forget(pod_uid.to_owned()));
    }
}

/// A probe of a container.
pub(crate) fn probe_of(container: &Container, kind: ProbeKind) -> Option<&Probe> {
    match kind {
        ProbeKind::Liveness => container.liveness_probe.as_ref(),
        ProbeKind::Readiness => container.readiness_probe.as_ref(),
        ProbeKind::Startup => container.startup_probe.as_ref(),
    }
}

async fn run(
    runtime: cri::Client,
    reports: mpsc::UnboundedSender<ProbeReport>,
    counter: Counter,
    mut orders: mpsc::UnboundedReceiver<Order>,
) {
    let clock = Clock::start();
    let (answers, mut answered) = mpsc::unbounded_channel::<(Asked, Answer)>();
    let mut table = Table::new(clock.now().wall_nanos);
    loop {
        let due = table.due().map(|at| clock.at(at));
        let told = tokio::select! {
            order = orders.recv() => match order {
                Some(Order::Follow { pod, pod_ip, running }) => {
                    table.follow(&pod, &pod_ip, &running, clock.now(), random_share)
                }
                Some(Order::Forget(uid)) => {
                    table.forget(&uid);
                    counter.forget(|labels| labels.get(POD_UID_LABEL) == Some(&uid));
                    Vec::new()
                }
                None => return,
            },
            // The table's own sender keeps this open.
            Some((asked, answer)) = answered.recv() => {
                count(&counter, &asked, answer.good());
                table.answer(&asked, answer, clock.now().millis)
            }
            () = until(due) => {
                for asked in table.ask(clock.now().millis) {
                    tokio::spawn(put(runtime.clone(), asked, answers.clone()));
                }
                Vec::new()
            }
        };
        for report in told {
            if reports.send(report).is_err() {
                return;
            }
        }
    }
}

/// Which of the labels of [`Counter::of_probes`] says whose probe it is.
const POD_UID_LABEL: usize = 3;

impl Counter {
    /// What probes said, by upstream's name.
    #[must_use]
    pub fn of_probes(registry: &Registry) -> Counter {
        registry.counter(
            "prober_probe_total",
            "[BETA] Cumulative number of a liveness, readiness or startup probe for a container by \
             result.",
            &["container", "namespace", "pod", "pod_uid", "probe_type", "result"],
        )
    }
}

fn count(counter: &Counter, asked: &Asked, good: Option<bool>) {
    let of = &asked.pod.metadata;
    let kind = match asked.kind {
        ProbeKind::Liveness => "Liveness",
        ProbeKind::Readiness => "Readiness",
        ProbeKind::Startup => "Startup",
    };
    let result = match good {
        Some(true) => "successful",
        Some(false) => "failed",
        None => "unknown",
    };
    counter.increment(&[&asked.container, &of.namespace, &of.name, &of.uid, kind, result]);
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Puts one question.
async fn put(runtime: cri::Client, asked: Asked, answers: mpsc::UnboundedSender<(Asked, Answer)>) {
    let pod = Arc::clone(&asked.pod);
    let found = pod.container(&asked.container).map(|(_, container)| container);
    let Some((container, probe)) = found.and_then(|c| Some((c, probe_of(c, asked.kind)?))) else {
        return;
    };
    let question = Question {
        pod: &pod,
        container,
        id: &asked.id,
        pod_ip: &asked.pod_ip,
        handler: &probe.handler,
        timeout_seconds: asked.timeout_seconds,
    };
    let answer = execute::ask(&runtime, &question).await;
    let _ = answers.send((asked, answer));
}

/// What time it is, for the table.
#[derive(Debug, Clone, Copy)]
struct Clock {
    started: Instant,
}

impl Clock {
    fn start() -> Clock {
        Clock { started: Instant::now() }
    }

    fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now {
            millis: Millis::try_from(self.started.elapsed().as_millis()).unwrap_or(Millis::MAX),
            wall_nanos: i64::try_from(wall.as_nanos()).unwrap_or(i64::MAX),
        }
    }

    fn at(&self, millis: Millis) -> Instant {
        self.started + Duration::from_millis(u64::try_from(millis).unwrap_or(0))
    }
}

/// A share of one, by chance. Without chance every probe of a restarted agent would ask at once.
fn random_share() -> f64 {
    let mut bytes = [0; 4];
    let _ = getrandom::fill(&mut bytes);
    f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod recorded;
#[cfg(test)]
mod tests;
