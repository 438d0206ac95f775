//! The scheduler: reads informers and writes bindings.
//!
//! [`state`] decides; this file runs its informers and executes its actions. Decisions are made one
//! at a time, each with the effect of the previous ones, while many bindings are sent to the API
//! concurrently.

use std::sync::Arc;
use std::time::Duration;

use client::events::{Event, InvolvedObject};
use client::kind::{BUDGETS, NAMESPACES, NODES, PODS, REPLICA_SETS, SERVICES};
use client::{
    Backoff, Client, DeleteOptions, Error, PatchKind, Reflector, Scope, ignore_not_found,
};
use scheduling::Settings;
use scheduling::queue::BackoffConfig;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tracing::{debug, error, info, warn};

use crate::clock::Clock;
use crate::counters::{Counters, count};
use crate::observe;
use crate::record::Recorder;
use crate::supervise::{PanicMessage, catch_panic};
use crate::workqueue::sleep_until;
use client::{ErrorLog, error_chain};

mod projection;
mod state;

use state::{
    Action, GroupingKind, InformerEvent, InvalidReport, ObjectRef, Refusal, SchedulerState,
};

/// The name of the controller in logs and counters.
pub(crate) const NAME: &str = "scheduler";
/// The most concurrent bindings.
const BINDINGS: usize = 256;
/// The most queued changes; informers wait while the queue is full.
const CHANGES: usize = 4_096;
/// The number of decisions before the task yields.
const DECISIONS: usize = 32;
/// The time after which a binding counts as failed and its node is released.
const BINDING_TIME: Duration = Duration::from_secs(30);
/// The wait after a failed list or watch.
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));

/// The result of a binding.
type Bound = (ObjectRef, String, Result<(), Error>);

/// The dependencies of the scheduler.
#[derive(Clone)]
pub(crate) struct SchedulerContext {
    pub(crate) client: Client,
    pub(crate) recorder: Recorder,
    pub(crate) counters: Arc<Counters>,
    pub(crate) clock: Clock,
    pub(crate) settings: Settings,
    pub(crate) backoff: BackoffConfig,
}

pub(crate) async fn run(context: SchedulerContext, mut stop: watch::Receiver<bool>) {
    let SchedulerContext { client, recorder, counters, clock, settings, backoff } = context;
    let recorder = recorder.named("default-scheduler");
    // An invalid configuration was rejected by `run`.
    let Ok(mut state) = SchedulerState::new(&settings, backoff) else { return };
    let (sender, mut changes) = mpsc::channel(CHANGES);
    let mut informers = JoinSet::new();
    start_informers(&mut informers, &client, &sender);
    drop(sender);
    let mut binding: JoinSet<Bound> = JoinSet::new();
    let mut status_patches = JoinSet::new();
    loop {
        let mut made = 0;
        while state.is_ready() && binding.len() < BINDINGS && made < DECISIONS {
            while let Ok(change) = changes.try_recv() {
                state.observe(change, clock.millis());
            }
            while let Some(done) = binding.try_join_next() {
                finish_binding(&mut state, done, &counters, &recorder, clock);
            }
            let Some(action) = state.decide(clock.millis()) else { break };
            made += 1;
            match action {
                Action::Failed { pod, panicked } => {
                    count(&counters.errors);
                    counters.panicked(NAME, &pod.key, &panicked);
                }
                Action::Bind { pod, node } => {
                    debug!(pod = %pod.key, node, "selected a node for the pod");
                    let (client, counters) = (client.clone(), counters.clone());
                    binding.spawn(async move {
                        // A panic is handled like a binding with an unknown result.
                        let done = catch_panic(bind(&client, &pod, &node)).await;
                        let done = done.unwrap_or_else(|panicked| {
                            counters.panicked(NAME, &pod.key, &panicked);
                            Err(Error::Behind)
                        });
                        (pod, node, done)
                    });
                }
                Action::Refuse(refusal) => {
                    debug!(pod = %refusal.pod.key, reason = refusal.message, "no node fits the pod");
                    count(&counters.unschedulable);
                    let (client, recorder) = (client.clone(), recorder.clone());
                    let counters = counters.clone();
                    status_patches.spawn(async move {
                        let key = &refusal.pod.key;
                        let refused = refuse(&client, &recorder, &counters, &refusal, clock);
                        match catch_panic(refused).await {
                            Ok(Ok(())) => {}
                            Ok(Err(error)) => {
                                count(&counters.errors);
                                let error = error_chain(&error);
                                warn!(
                                    pod = %key, error,
                                    "failed to report an unschedulable pod; the next attempt \
                                     reports it again"
                                );
                            }
                            Err(panicked) => counters.panicked(NAME, key, &panicked),
                        }
                    });
                }
            }
        }
        while status_patches.try_join_next().is_some() {}
        for report in state.take_invalid_reports() {
            count(&counters.invalid_reports);
            report_invalid(&recorder, report);
        }
        counters.set_pending(state.pending());
        if made == DECISIONS {
            tokio::task::yield_now().await;
            if *stop.borrow() {
                break;
            }
            continue;
        }
        let due = state.next_due().map(|at| clock.at_millis(at));
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => break,
            change = changes.recv() => match change {
                Some(change) => state.observe(change, clock.millis()),
                None => break,
            },
            Some(done) = binding.join_next() => {
                finish_binding(&mut state, done, &counters, &recorder, clock);
            }
            Some(ended) = informers.join_next() => {
                // Without one of its informers the scheduler decides on stale data: restart it.
                if let Ok((kind, Err(PanicMessage(message)))) = ended {
                    error!(kind, "an informer of the scheduler panicked: {message}");
                }
                break;
            }
            () = sleep_until(due), if due.is_some() && binding.len() < BINDINGS => {}
        }
    }
    // Let pending requests finish.
    while binding.join_next().await.is_some() {}
    while status_patches.join_next().await.is_some() {}
}

/// The kind of an informer that ended, and its panic.
type InformerEnd = (&'static str, Result<(), PanicMessage>);

/// Starts the informers of all kinds that decisions depend on.
fn start_informers(
    informers: &mut JoinSet<InformerEnd>,
    client: &Client,
    sender: &mpsc::Sender<InformerEvent>,
) {
    // Finished pods do not matter to the scheduler, and there may be many of them.
    let scope = Scope {
        field_selector: "status.phase!=Succeeded,status.phase!=Failed".to_owned(),
        ..Scope::default()
    };
    let pods = Reflector::new(client.clone(), PODS, scope, projection::pod);
    spawn_informer(informers, PODS.plural, pods, sender.clone(), InformerEvent::Pods);
    let nodes = Reflector::new(client.clone(), NODES, Scope::default(), projection::node);
    spawn_informer(informers, NODES.plural, nodes, sender.clone(), InformerEvent::Nodes);
    for other in GroupingKind::ALL {
        let kind = match other {
            GroupingKind::Namespace => NAMESPACES,
            GroupingKind::Service => SERVICES,
            GroupingKind::Budget => BUDGETS,
            GroupingKind::ReplicaSet => REPLICA_SETS,
        };
        let objects = Reflector::new(client.clone(), kind, Scope::default(), observe::untyped);
        let sender = sender.clone();
        spawn_informer(informers, kind.plural, objects, sender, move |change| {
            InformerEvent::Groupings(other, change)
        });
    }
}

fn spawn_informer<T: Send + 'static>(
    informers: &mut JoinSet<InformerEnd>,
    kind: &'static str,
    mut reflector: Reflector<T>,
    sender: mpsc::Sender<InformerEvent>,
    wrap: impl Fn(client::Change<T>) -> InformerEvent + Send + 'static,
) {
    let run = async move {
        let (mut failures, mut errors) = (0, ErrorLog::default());
        loop {
            match reflector.step().await {
                Ok(changes) => {
                    failures = 0;
                    if errors.recovered().is_some() {
                        info!(kind, "the scheduler's informer has recovered");
                    }
                    for change in changes {
                        if sender.send(wrap(change)).await.is_err() {
                            return;
                        }
                    }
                }
                Err(error) => {
                    failures += 1;
                    let error = error_chain(&error);
                    if errors.failed(&error) {
                        warn!(
                            kind,
                            error, "the scheduler's informer failed; it retries with back-off"
                        );
                    }
                    tokio::time::sleep(RETRY.wait_with_jitter("scheduler", failures)).await;
                }
            }
        }
    };
    informers.spawn(async move { (kind, catch_panic(run).await) });
}

/// Records an event about an invalid node report.
fn report_invalid(recorder: &Recorder, report: InvalidReport) {
    let InvalidReport { node, message } = report;
    warn!(node = node.key.name(), error = message, "ignoring the invalid machine report of a node");
    let subject = InvolvedObject::new(NODES, "", node.key.name(), &node.uid);
    let message = scheduling::event_text(&message);
    let event = Event::warning(&subject, "InvalidNodeReport", message);
    recorder.record(event.with_action("Scheduling"));
}

fn subject(pod: &ObjectRef) -> InvolvedObject {
    InvolvedObject::new(PODS, pod.key.namespace(), pod.key.name(), &pod.uid)
}

fn finish_binding(
    state: &mut SchedulerState,
    done: Result<Bound, tokio::task::JoinError>,
    counters: &Counters,
    recorder: &Recorder,
    clock: Clock,
) {
    let Ok((pod, node, done)) = done else { return };
    match done {
        Ok(()) => {
            count(&counters.scheduled);
            debug!(pod = %pod.key, node, "bound the pod");
            state.bound(&pod.key);
            let message = format!("Successfully assigned {} to {node}", pod.key);
            let event = Event::normal(&subject(&pod), "Scheduled", message);
            recorder.record(event.with_action("Binding"));
        }
        Err(error) => {
            count(&counters.errors);
            let cause = error_chain(&error);
            warn!(
                pod = %pod.key, node, error = cause,
                "failed to bind the pod; it is retried after its back-off"
            );
            // If the pod is gone or bound, the informer delivers that.
            if !error.is_not_found() {
                let message = format!("binding rejected: {error}");
                let event = Event::warning(&subject(&pod), "FailedScheduling", message);
                recorder.record(event.with_action("Scheduling"));
            }
            state.binding_failed(&pod, clock.millis());
        }
    }
}

async fn bind(client: &Client, pod: &ObjectRef, node: &str) -> Result<(), Error> {
    let (namespace, name) = (pod.key.namespace(), pod.key.name());
    let binding = json!({
        "kind": "Binding", "apiVersion": "v1",
        "metadata": {"name": name, "namespace": namespace, "uid": pod.uid},
        "target": {"kind": "Node", "name": node},
    });
    let sent = client.create_subresource(PODS, namespace, name, "binding", &binding);
    tokio::time::timeout(BINDING_TIME, sent).await.unwrap_or(Err(Error::Behind))
}

/// Records why a pod has no node, and preempts its victims.
async fn refuse(
    client: &Client,
    recorder: &Recorder,
    counters: &Counters,
    refusal: &Refusal,
    clock: Clock,
) -> Result<(), Error> {
    let event =
        Event::warning(&subject(&refusal.pod), "FailedScheduling", refusal.event_message.clone());
    recorder.record(event.with_action("Scheduling"));
    let now = clock.now().to_seconds_text();
    if !refusal.victims.is_empty() {
        count(&counters.preemptions);
        info!(
            pod = %refusal.pod.key, node = refusal.victims_on, victims = refusal.victims.len(),
            "preempting pods with lower priority"
        );
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
        let event = Event::normal(&subject(victim), "Preempted", message);
        recorder.record(event.with_action("Preempting"));
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

async fn patch_status(client: &Client, pod: &ObjectRef, patch: &Value) -> Result<(), Error> {
    let (namespace, name) = (pod.key.namespace(), pod.key.name());
    let kind = PatchKind::StrategicMerge;
    client.patch_subresource(PODS, namespace, name, "status", kind, patch).await.map(|_| ())
}
