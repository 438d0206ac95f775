//! The scheduler loop: informers in, bindings out.
//!
//! [`brain`] decides; here are its eyes and hands. Decisions are made one after the other, each
//! knowing those before it, while many bindings are on their way to the API at once.

use std::sync::Arc;
use std::time::Duration;

use client::kind::{BUDGETS, NAMESPACES, NODES, PODS, REPLICA_SETS, SERVICES};
use client::{Client, DeleteOptions, Error, PatchKind, Reflector, Scope, ignore_not_found};
use scheduling::Settings;
use scheduling::queue::Patience;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::clock::Clock;
use crate::counters::{Counters, count};
use crate::observe;
use crate::record::{Occurrence, Recorder, Subject};
use crate::supervise::caught;
use crate::work::sleep_until;

mod brain;
mod observed;

use brain::{Action, Brain, Complaint, Observed, Other, Refusal, Who};

/// The name of the loop in logs and counters.
pub(crate) const NAME: &str = "scheduler";
/// How many bindings may be on their way.
const BINDINGS: usize = 256;
/// How many changes may wait to be taken in; informers wait when it is full.
const CHANGES: usize = 4_096;
/// How many decisions are made before other tasks of the thread get a turn.
const DECISIONS: usize = 32;
/// How long a binding may take before its node is given back.
const BINDING_TIME: Duration = Duration::from_secs(30);

/// What happened to a pod that was given a node.
type Bound = (Who, String, Result<(), Error>);

/// Everything the loop needs from outside.
#[derive(Clone)]
pub(crate) struct Setting {
    pub(crate) client: Client,
    pub(crate) recorder: Recorder,
    pub(crate) counters: Arc<Counters>,
    pub(crate) clock: Clock,
    pub(crate) settings: Settings,
    pub(crate) patience: Patience,
}

pub(crate) async fn run(setting: Setting, mut stop: watch::Receiver<bool>) {
    let Setting { client, recorder, counters, clock, settings, patience } = setting;
    let recorder = recorder.named("default-scheduler");
    // A configuration that cannot be used has been refused before loops are started.
    let Ok(mut brain) = Brain::new(&settings, patience) else { return };
    let (sender, mut changes) = mpsc::channel(CHANGES);
    let mut eyes = JoinSet::new();
    look(&mut eyes, &client, &sender);
    drop(sender);
    let mut binding: JoinSet<Bound> = JoinSet::new();
    let mut errands = JoinSet::new();
    loop {
        let mut made = 0;
        while brain.is_ready() && binding.len() < BINDINGS && made < DECISIONS {
            while let Ok(change) = changes.try_recv() {
                brain.observe(change, clock.millis());
            }
            while let Some(done) = binding.try_join_next() {
                settle(&mut brain, done, &counters, &recorder, clock);
            }
            let Some(action) = brain.decide(clock.millis()) else { break };
            made += 1;
            match action {
                Action::Failed { pod, panicked } => {
                    count(&counters.errors);
                    counters.panicked(NAME, &pod.key, &panicked);
                }
                Action::Bind { pod, node } => {
                    let client = client.clone();
                    binding.spawn(async move {
                        // A panic is settled like a binding of which nothing is known.
                        let done = caught(bind(&client, &pod, &node)).await;
                        (pod, node, done.unwrap_or(Err(Error::Behind)))
                    });
                }
                Action::Refuse(refusal) => {
                    count(&counters.unschedulable);
                    let (client, recorder) = (client.clone(), recorder.clone());
                    let counters = counters.clone();
                    errands.spawn(async move {
                        if refuse(&client, &recorder, &counters, &refusal, clock).await.is_err() {
                            count(&counters.errors);
                        }
                    });
                }
            }
        }
        while errands.try_join_next().is_some() {}
        for complaint in brain.take_complaints() {
            count(&counters.invalid_reports);
            complain(&recorder, complaint);
        }
        counters.set_pending(brain.pending());
        if made == DECISIONS {
            tokio::task::yield_now().await;
            if *stop.borrow() {
                break;
            }
            continue;
        }
        let due = brain.next_due().map(|at| clock.at(at));
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => break,
            change = changes.recv() => match change {
                Some(change) => brain.observe(change, clock.millis()),
                None => break,
            },
            Some(done) = binding.join_next() => {
                settle(&mut brain, done, &counters, &recorder, clock);
            }
            () = sleep_until(due), if due.is_some() && binding.len() < BINDINGS => {}
        }
    }
    // What is on its way arrives.
    while binding.join_next().await.is_some() {}
    while errands.join_next().await.is_some() {}
}

/// Follows everything decisions depend on.
fn look(eyes: &mut JoinSet<()>, client: &Client, sender: &mpsc::Sender<Observed>) {
    // Pods that have ended are of no account, and there may be many of them.
    let scope = Scope {
        field_selector: "status.phase!=Succeeded,status.phase!=Failed".to_owned(),
        ..Scope::default()
    };
    let pods = Reflector::new(client.clone(), PODS, scope, observed::pod);
    follow(eyes, pods, sender.clone(), Observed::Pods);
    let nodes = Reflector::new(client.clone(), NODES, Scope::default(), observed::node);
    follow(eyes, nodes, sender.clone(), Observed::Nodes);
    for other in Other::ALL {
        let kind = match other {
            Other::Namespace => NAMESPACES,
            Other::Service => SERVICES,
            Other::Budget => BUDGETS,
            Other::ReplicaSet => REPLICA_SETS,
        };
        let objects = Reflector::new(client.clone(), kind, Scope::default(), observe::tree);
        let sender = sender.clone();
        follow(eyes, objects, sender, move |change| Observed::Others(other, change));
    }
}

fn follow<T: Send + 'static>(
    eyes: &mut JoinSet<()>,
    mut reflector: Reflector<T>,
    sender: mpsc::Sender<Observed>,
    wrap: impl Fn(client::Change<T>) -> Observed + Send + 'static,
) {
    eyes.spawn(async move {
        let mut failures = 0;
        loop {
            match reflector.step().await {
                Ok(changes) => {
                    failures = 0;
                    for change in changes {
                        if sender.send(wrap(change)).await.is_err() {
                            return;
                        }
                    }
                }
                Err(_) => {
                    failures += 1;
                    let wait = client::backoff("scheduler", failures, 100, 10_000);
                    tokio::time::sleep(Duration::from_millis(wait.unsigned_abs())).await;
                }
            }
        }
    });
}

/// Tells a node that its report cannot be used.
fn complain(recorder: &Recorder, complaint: Complaint) {
    let Complaint { node, message } = complaint;
    let subject = Subject {
        kind: NODES,
        namespace: String::new(),
        name: node.key.name().to_owned(),
        uid: node.uid,
    };
    let message = scheduling::event_text(&message);
    let event = Occurrence::warning(&subject, "InvalidNodeReport", message);
    recorder.record(Occurrence { action: "Scheduling", ..event });
}

fn subject(pod: &Who) -> Subject {
    Subject {
        kind: PODS,
        namespace: pod.key.namespace().to_owned(),
        name: pod.key.name().to_owned(),
        uid: pod.uid.clone(),
    }
}

fn settle(
    brain: &mut Brain,
    done: Result<Bound, tokio::task::JoinError>,
    counters: &Counters,
    recorder: &Recorder,
    clock: Clock,
) {
    let Ok((pod, node, done)) = done else { return };
    match done {
        Ok(()) => {
            count(&counters.scheduled);
            brain.bound(&pod.key);
            let message = format!("Successfully assigned {} to {node}", pod.key);
            let event = Occurrence::normal(&subject(&pod), "Scheduled", message);
            recorder.record(Occurrence { action: "Binding", ..event });
        }
        Err(error) => {
            count(&counters.errors);
            // A pod that is gone, or has a node by now, will be told of by the API.
            if !error.is_not_found() {
                let message = format!("binding rejected: {error}");
                let event = Occurrence::warning(&subject(&pod), "FailedScheduling", message);
                recorder.record(Occurrence { action: "Scheduling", ..event });
            }
            brain.not_bound(&pod, clock.millis());
        }
    }
}

async fn bind(client: &Client, pod: &Who, node: &str) -> Result<(), Error> {
    let (namespace, name) = (pod.key.namespace(), pod.key.name());
    let binding = json!({
        "kind": "Binding", "apiVersion": "v1",
        "metadata": {"name": name, "namespace": namespace, "uid": pod.uid},
        "target": {"kind": "Node", "name": node},
    });
    let sent = client.create_subresource(PODS, namespace, name, "binding", &binding);
    tokio::time::timeout(BINDING_TIME, sent).await.unwrap_or(Err(Error::Behind))
}

/// Says why a pod has no node, and makes room for it where that was decided.
async fn refuse(
    client: &Client,
    recorder: &Recorder,
    counters: &Counters,
    refusal: &Refusal,
    clock: Clock,
) -> Result<(), Error> {
    let event = Occurrence::warning(
        &subject(&refusal.pod),
        "FailedScheduling",
        refusal.event_message.clone(),
    );
    recorder.record(Occurrence { action: "Scheduling", ..event });
    let now = clock.now().to_seconds_text();
    if !refusal.victims.is_empty() {
        count(&counters.preemptions);
    }
    for victim in &refusal.victims {
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
            "message": "default-scheduler: preempting to accommodate a higher priority pod",
            "lastProbeTime": null, "lastTransitionTime": now,
        });
        let patch = json!({"metadata": {"uid": victim.uid}, "status": {"conditions": [condition]}});
        match patch_status(client, victim, &patch).await {
            Err(error) if error.is_not_found() || error.is_conflict() => continue,
            other => other?,
        }
        let options = DeleteOptions::of_uid(&victim.uid);
        let (namespace, name) = (victim.key.namespace(), victim.key.name());
        ignore_not_found(client.delete(PODS, namespace, name, &options).await)?;
        let message =
            format!("Preempted by pod {} on node {}", refusal.pod.uid, refusal.victims_on);
        let event = Occurrence::normal(&subject(victim), "Preempted", message);
        recorder.record(Occurrence { action: "Preempting", ..event });
    }
    for pod in &refusal.displaced {
        let patch = json!({"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": null}});
        ignore_not_found(patch_status(client, pod, &patch).await)?;
    }
    if !refusal.is_news {
        return Ok(());
    }
    let condition = json!({
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": refusal.message, "lastProbeTime": null, "lastTransitionTime": now,
        "observedGeneration": refusal.generation,
    });
    let mut patch =
        json!({"metadata": {"uid": refusal.pod.uid}, "status": {"conditions": [condition]}});
    if let Some(node) = &refusal.nominated {
        let node = if node.is_empty() { Value::Null } else { node.as_str().into() };
        patch["status"]["nominatedNodeName"] = node;
    }
    ignore_not_found(patch_status(client, &refusal.pod, &patch).await)
}

async fn patch_status(client: &Client, pod: &Who, patch: &Value) -> Result<(), Error> {
    let (namespace, name) = (pod.key.namespace(), pod.key.name());
    let kind = PatchKind::StrategicMerge;
    client.patch_subresource(PODS, namespace, name, "status", kind, patch).await.map(|_| ())
}
