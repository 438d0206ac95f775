//! Keeps the Node object of this machine up to date in the API: [`run`].
//!
//! Registers the node or adopts the existing object, follows changes of other writers, and writes differences. A node that
//! is deleted stays deleted until the agent is restarted, as upstream.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use client::clock::{Clock as _, SystemClock};
use client::{Backoff, Change, Client, Error, PatchKind, Reflector, Scope, kind};
use objects::timestamp::Timestamp;
use placement::report::NodeReport;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tracing::{info, warn};

use super::object::{annotations, labels};
use super::{
    Conditions, Description, Devices, Image, Observation, RuntimeHealth, changes, conditions,
    lease, object, status,
};
use crate::observability::events::{AgentEvent, NodeChange};
use crate::supervisor::millis;
use client::ErrorLog;
use lifecycle::eviction::Pressure;

/// Progress in adopting the containers that ran before the agent was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takeover {
    /// The runtime has not been queried yet.
    Unknown,
    UnderWay,
    /// Every container has its CPUs, or none was running.
    Done,
}

/// Time for which a node that was ready stays ready while its containers are adopted. The adoption needs
/// one list of pods and one call for each container.
const LONGEST_TAKEOVER: Duration = Duration::from_secs(10);

/// Interval after a write that failed.
const AGAIN: Duration = Duration::from_secs(1);

/// The wait between two attempts to register the node. Upstream's values.
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(7));

/// Sources of the node's state.
#[derive(Debug, Clone)]
pub struct StatusInputs {
    pub runtime: watch::Receiver<RuntimeHealth>,
    pub pressure: watch::Receiver<Pressure>,
    pub images: watch::Receiver<Arc<Vec<Image>>>,
    pub devices: watch::Receiver<BTreeMap<String, Devices>>,
    pub report: watch::Receiver<Arc<NodeReport>>,
    /// Other problems that keep the node from being ready, such as a shutdown.
    pub problems: watch::Receiver<Vec<String>>,
    pub takeover: watch::Receiver<Takeover>,
    /// The pods' directory, whose file system is reported.
    pub root: PathBuf,
}

/// Registers the node and keeps it up to date as long as it is polled. `seen` gets the object in the API,
/// or `None` while there is none; `events` gets the events of the node.
pub async fn run(
    client: Client,
    description: Description,
    mut sources: StatusInputs,
    seen: watch::Sender<Option<Arc<Value>>>,
    events: mpsc::UnboundedSender<AgentEvent>,
) {
    let node = registered(&client, &description, &sources).await;
    let uid = node["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    reboot(&description, &node, &events);
    let (_, has) = (seen.send_replace(Some(Arc::new(node))), seen.subscribe());
    let follow = follow(&client, &description.name, &seen);
    let beat = lease::run(&client, &description.name, &uid, description.settings.lease_seconds);
    let report = report(&client, &description, &mut sources, has, &events);
    // None of them ends.
    tokio::join!(follow, beat, report);
}

/// Returns the current time.
pub(super) fn now() -> Timestamp {
    SystemClock.now()
}

/// Reads the machine and the newest values of the other sources.
fn observe(sources: &StatusInputs, storage: &mut u64) -> Observation {
    let memory = host::os::system::memory().unwrap_or_default();
    // A file system that does not answer keeps its last size.
    if let Ok(file_system) = host::os::system::file_system(&sources.root) {
        *storage = file_system.capacity;
    }
    Observation {
        memory,
        storage: *storage,
        runtime: sources.runtime.borrow().clone(),
        images: Arc::clone(&sources.images.borrow()),
        pressure: *sources.pressure.borrow(),
        report: Arc::clone(&sources.report.borrow()),
        devices: sources.devices.borrow().clone(),
    }
}

/// Returns the node in the API, creating it if needed. Retries while the server is unavailable.
async fn registered(client: &Client, description: &Description, sources: &StatusInputs) -> Value {
    let (mut attempts, mut errors) = (0, ErrorLog::default());
    loop {
        attempts += 1;
        match register(client, description, sources).await {
            Ok(node) => {
                let uid = node["metadata"]["uid"].as_str().unwrap_or_default();
                info!(node = description.name, uid, attempts, "the node is registered");
                return node;
            }
            Err(error) => {
                let wait = RETRY.wait_with_jitter(&description.name, attempts);
                if errors.failed(&error) {
                    let retry_in_ms = millis(wait);
                    warn!(node = description.name, %error, retry_in_ms, "failed to register the node");
                }
                tokio::time::sleep(wait).await;
            }
        }
    }
}

async fn register(
    client: &Client,
    description: &Description,
    sources: &StatusInputs,
) -> Result<Value, Error> {
    let observation = observe(sources, &mut 0);
    match client.get::<Value>(kind::NODES, "", &description.name).await {
        Ok(node) => {
            let (labels, annotations) =
                (labels(description), annotations(description, &observation));
            match changes::of_metadata(&node["metadata"], &labels, &annotations) {
                Some(patch) => {
                    client.patch(kind::NODES, "", &description.name, PatchKind::Merge, &patch).await
                }
                None => Ok(node),
            }
        }
        Err(error) if error.is_not_found() && description.settings.register => {
            let mut node = object(description, &observation);
            node["status"] = status(description, &observation);
            let problems = problems(sources);
            let time = now().to_seconds_text();
            let Conditions { conditions, .. } =
                conditions(&Value::Null, observation.pressure, &problems, &time, true);
            node["status"]["conditions"] = conditions.into();
            client.create(kind::NODES, "", &node).await
        }
        Err(error) => Err(error),
    }
}

fn problems(sources: &StatusInputs) -> Vec<String> {
    let mut problems = sources.runtime.borrow().problems();
    problems.extend(sources.problems.borrow().iter().cloned());
    if *sources.takeover.borrow() == Takeover::UnderWay {
        problems.push("running containers have not been taken over yet".to_owned());
    }
    problems
}

/// Records an event if the machine was rebooted since the last report.
fn reboot(description: &Description, node: &Value, events: &mpsc::UnboundedSender<AgentEvent>) {
    let before = node["status"]["nodeInfo"]["bootID"].as_str().unwrap_or_default();
    let boot_id = &description.identity.boot_id;
    if !before.is_empty() && before != boot_id {
        let _ = events.send(AgentEvent::Rebooted {
            name: description.name.clone(),
            boot_id: boot_id.clone(),
        });
    }
}

/// Keeps `seen` at the object in the API.
async fn follow(client: &Client, name: &str, seen: &watch::Sender<Option<Arc<Value>>>) {
    let scope = Scope { field_selector: format!("metadata.name={name}"), ..Scope::default() };
    let reflector = Reflector::new(client.clone(), kind::NODES, scope, |node: Value| node);
    let put = |node: Option<Value>| {
        let is_gone = node.is_none();
        if seen.send_replace(node.map(Arc::new)).is_some() && is_gone {
            warn!(node = name, "the node was deleted; restart the agent to register it again");
        }
    };
    let take = |change: Change<Value>| {
        match change {
            Change::Replaced { all, .. } => put(all.into_iter().next().map(|(.., node)| node)),
            Change::Applied { object, .. } => put(Some(object)),
            Change::Removed { .. } => put(None),
            Change::Bookmark { .. } => {}
        }
        true
    };
    reflector.run(take).await;
}

/// Writes the status when it changes, and periodically.
async fn report(
    client: &Client,
    description: &Description,
    sources: &mut StatusInputs,
    mut has: watch::Receiver<Option<Arc<Value>>>,
    events: &mpsc::UnboundedSender<AgentEvent>,
) {
    let taken_over = sources.takeover.wait_for(|takeover| *takeover != Takeover::UnderWay);
    // An adoption that takes longer is reported as a problem.
    let _ = tokio::time::timeout(LONGEST_TAKEOVER, taken_over).await;
    let (mut storage, mut errors) = (0, ErrorLog::default());
    let mut first = true;
    let mut schedulable = None;
    let mut written: Option<Instant> = None;
    let mut last: Option<Arc<Value>> = None;
    loop {
        let current = has.borrow_and_update().clone();
        let node = current.map(|current| newer(current, last.as_ref()));
        let mut wait = description.settings.update_every;
        if let Some(node) = &node {
            cordoned(description, node, &mut schedulable, events);
            let observation = observe(sources, &mut storage);
            let anyway = written.is_none_or(|at| at.elapsed() >= description.settings.report_every);
            match write(client, description, sources, &observation, node, first, anyway).await {
                Ok(outcome) => {
                    if let Some(failures) = errors.recovered() {
                        info!(node = description.name, failures, "wrote the node's status again");
                    }
                    if let Some(node) = outcome.wrote {
                        last = Some(Arc::new(node));
                        written = Some(Instant::now());
                    }
                    first = false;
                    for is in outcome.changes {
                        let _ =
                            events.send(AgentEvent::Node { name: description.name.clone(), is });
                    }
                }
                Err(error) => {
                    wait = AGAIN.min(wait);
                    if errors.failed(&error) {
                        let retry_in_ms = millis(wait);
                        warn!(node = description.name, %error, retry_in_ms, "failed to write the node's status");
                    }
                }
            }
        }
        changed(sources, &mut has, wait).await;
    }
}

/// Waits until something may have changed. Senders that are gone are ignored.
async fn changed(
    sources: &mut StatusInputs,
    has: &mut watch::Receiver<Option<Arc<Value>>>,
    wait: Duration,
) {
    async fn changed_in<T>(source: &mut watch::Receiver<T>) {
        if source.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
    // Images change often and are reported with the next status.
    tokio::select! {
        () = tokio::time::sleep(wait) => {}
        () = changed_in(&mut sources.runtime) => {}
        () = changed_in(&mut sources.pressure) => {}
        () = changed_in(&mut sources.devices) => {}
        () = changed_in(&mut sources.report) => {}
        () = changed_in(&mut sources.problems) => {}
        () = changed_in(&mut sources.takeover) => {}
        () = changed_in(has) => {}
    }
}

/// Records an event when the node was cordoned or uncordoned.
fn cordoned(
    description: &Description,
    node: &Value,
    before: &mut Option<bool>,
    events: &mpsc::UnboundedSender<AgentEvent>,
) {
    let schedulable = node["spec"]["unschedulable"] != true;
    if before.is_some_and(|before| before != schedulable) {
        let is = if schedulable { NodeChange::Schedulable } else { NodeChange::NotSchedulable };
        let _ = events.send(AgentEvent::Node { name: description.name.clone(), is });
    }
    *before = Some(schedulable);
}

struct Outcome {
    /// The resulting node.
    wrote: Option<Value>,
    changes: Vec<NodeChange>,
}

/// Prefers a node that was just written to an older one from the watch, if both are the same object.
fn newer(current: Arc<Value>, written: Option<&Arc<Value>>) -> Arc<Value> {
    let revision = |node: &Value| -> u64 {
        let text = node["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        text.parse().unwrap_or(0)
    };
    match written {
        Some(written)
            if written["metadata"]["uid"] == current["metadata"]["uid"]
                && revision(written) > revision(&current) =>
        {
            Arc::clone(written)
        }
        _ => current,
    }
}

async fn write(
    client: &Client,
    description: &Description,
    sources: &StatusInputs,
    observation: &Observation,
    node: &Value,
    first: bool,
    anyway: bool,
) -> Result<Outcome, Error> {
    let mut wrote = None;
    let annotations = annotations(description, observation);
    if let Some(patch) = changes::of_metadata(&node["metadata"], &labels(description), &annotations)
    {
        wrote =
            Some(client.patch(kind::NODES, "", &description.name, PatchKind::Merge, &patch).await?);
    }
    let problems = problems(sources);
    let time = now().to_seconds_text();
    let has = &node["status"];
    let Conditions { conditions, changes } =
        conditions(&has["conditions"], observation.pressure, &problems, &time, first);
    let mut wanted = status(description, observation);
    wanted["conditions"] = conditions.into();
    // A runtime that is unavailable keeps its last version.
    if !matches!(observation.runtime, RuntimeHealth::Seen(_)) {
        let version = &has["nodeInfo"]["containerRuntimeVersion"];
        if version.is_string() {
            wanted["nodeInfo"]["containerRuntimeVersion"] = version.clone();
        }
        for field in ["runtimeHandlers", "features", "qosResources"] {
            if !has[field].is_null() {
                wanted[field] = has[field].clone();
            }
        }
    }
    if let Some(patch) = changes::of_status(has, &wanted, anyway) {
        let kind = PatchKind::StrategicMerge;
        let node = client
            .patch_subresource(kind::NODES, "", &description.name, "status", kind, &patch)
            .await?;
        wrote = Some(node);
    }
    Ok(Outcome { wrote, changes })
}

#[cfg(test)]
mod tests;
