//! Keeps the Node object of this machine up to date in the API: [`run`].
//!
//! Registers the node or adopts the existing object, follows changes of other writers, and writes differences. A node that
//! is deleted stays deleted until the agent is restarted, as upstream.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use client::{Change, Client, Error, PatchKind, Reflector, Scope, kind};
use objects::timestamp::Timestamp;
use placement::report::NodeReport;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::object::{annotations, labels};
use super::{
    Conditions, Description, Devices, Image, Observation, Pressure, RuntimeHealth, changes,
    conditions, lease, object, status,
};
use crate::observability::events::{AgentEvent, NodeChange};

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
/// or `None` while there is none; `tell` gets the events of the node.
pub async fn run(
    client: Client,
    of: Description,
    mut sources: StatusInputs,
    seen: watch::Sender<Option<Arc<Value>>>,
    tell: mpsc::UnboundedSender<AgentEvent>,
) {
    let node = registered(&client, &of, &sources).await;
    let uid = node["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    reboot(&of, &node, &tell);
    let (_, has) = (seen.send_replace(Some(Arc::new(node))), seen.subscribe());
    let follow = follow(&client, &of.name, &seen);
    let beat = lease::keep(&client, &of.name, &uid, of.settings.lease_seconds);
    let report = report(&client, &of, &mut sources, has, &tell);
    // None of them ends.
    tokio::join!(follow, beat, report);
}

/// Returns the current time.
pub(super) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::new(i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos())
}

/// Reads the machine and the newest values of the other sources.
fn observe(sources: &StatusInputs, storage: &mut u64) -> Observation {
    let memory = host::os::facts::memory().unwrap_or_default();
    // A file system that does not answer keeps its last size.
    if let Ok(told) = host::os::facts::file_system(&sources.root) {
        *storage = told.capacity;
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
async fn registered(client: &Client, of: &Description, sources: &StatusInputs) -> Value {
    let mut failures = 0;
    loop {
        match register(client, of, sources).await {
            Ok(node) => return node,
            Err(_) => {
                failures += 1;
                // Upstream's values, doubling.
                let wait = client::backoff(&of.name, failures, 100, 7_000);
                tokio::time::sleep(Duration::from_millis(wait.unsigned_abs())).await;
            }
        }
    }
}

async fn register(
    client: &Client,
    of: &Description,
    sources: &StatusInputs,
) -> Result<Value, Error> {
    let observation = observe(sources, &mut 0);
    match client.get::<Value>(kind::NODES, "", &of.name).await {
        Ok(node) => {
            let (labels, annotations) = (labels(of), annotations(of, &observation));
            match changes::of_metadata(&node["metadata"], &labels, &annotations) {
                Some(patch) => {
                    client.patch(kind::NODES, "", &of.name, PatchKind::Merge, &patch).await
                }
                None => Ok(node),
            }
        }
        Err(error) if error.is_not_found() && of.settings.register => {
            let mut node = object(of, &observation);
            node["status"] = status(of, &observation);
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
fn reboot(of: &Description, node: &Value, tell: &mpsc::UnboundedSender<AgentEvent>) {
    let before = node["status"]["nodeInfo"]["bootID"].as_str().unwrap_or_default();
    let boot_id = &of.identity.boot_id;
    if !before.is_empty() && before != boot_id {
        let _ = tell.send(AgentEvent::Rebooted { name: of.name.clone(), boot_id: boot_id.clone() });
    }
}

/// Keeps `seen` at the object in the API.
async fn follow(client: &Client, name: &str, seen: &watch::Sender<Option<Arc<Value>>>) {
    let scope = Scope { field_selector: format!("metadata.name={name}"), ..Scope::default() };
    let reflector =
        Reflector::new(client.clone(), kind::NODES, scope, |raw| serde_json::from_str(raw.get()));
    let put = |node: Option<Value>| {
        seen.send_replace(node.map(Arc::new));
    };
    let take = |change: Change<Value>| {
        match change {
            Change::Replaced { all, .. } => put(all.into_iter().next().map(|(.., node)| node)),
            Change::Applied { object, .. } => put(Some(object)),
            Change::Removed { .. } => put(None),
            Change::UpTo { .. } => {}
        }
        true
    };
    reflector.run(take).await;
}

/// Writes the status when it changes, and periodically.
async fn report(
    client: &Client,
    of: &Description,
    sources: &mut StatusInputs,
    mut has: watch::Receiver<Option<Arc<Value>>>,
    tell: &mpsc::UnboundedSender<AgentEvent>,
) {
    let taken_over = sources.takeover.wait_for(|takeover| *takeover != Takeover::UnderWay);
    // An adoption that takes longer is reported as a problem.
    let _ = tokio::time::timeout(LONGEST_TAKEOVER, taken_over).await;
    let mut storage = 0;
    let mut first = true;
    let mut schedulable = None;
    let mut written: Option<Instant> = None;
    let mut last: Option<Arc<Value>> = None;
    loop {
        let told = has.borrow_and_update().clone();
        let node = told.map(|told| newer(told, last.as_ref()));
        let mut wait = of.settings.update_every;
        if let Some(node) = &node {
            cordoned(of, node, &mut schedulable, tell);
            let observation = observe(sources, &mut storage);
            let anyway = written.is_none_or(|at| at.elapsed() >= of.settings.report_every);
            match write(client, of, sources, &observation, node, first, anyway).await {
                Ok(outcome) => {
                    if let Some(node) = outcome.wrote {
                        last = Some(Arc::new(node));
                        written = Some(Instant::now());
                    }
                    first = false;
                    for is in outcome.told {
                        let _ = tell.send(AgentEvent::Node { name: of.name.clone(), is });
                    }
                }
                Err(_) => wait = AGAIN.min(wait),
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
    async fn of<T>(source: &mut watch::Receiver<T>) {
        if source.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
    // Images change often and are reported with the next status.
    tokio::select! {
        () = tokio::time::sleep(wait) => {}
        () = of(&mut sources.runtime) => {}
        () = of(&mut sources.pressure) => {}
        () = of(&mut sources.devices) => {}
        () = of(&mut sources.report) => {}
        () = of(&mut sources.problems) => {}
        () = of(&mut sources.takeover) => {}
        () = of(has) => {}
    }
}

/// Records an event when the node was cordoned or uncordoned.
fn cordoned(
    of: &Description,
    node: &Value,
    before: &mut Option<bool>,
    tell: &mpsc::UnboundedSender<AgentEvent>,
) {
    let schedulable = node["spec"]["unschedulable"] != true;
    if before.is_some_and(|before| before != schedulable) {
        let is = if schedulable { NodeChange::Schedulable } else { NodeChange::NotSchedulable };
        let _ = tell.send(AgentEvent::Node { name: of.name.clone(), is });
    }
    *before = Some(schedulable);
}

struct Outcome {
    /// The resulting node.
    wrote: Option<Value>,
    told: Vec<NodeChange>,
}

/// Prefers a node that was just written to an older one from the watch, if both are the same object.
fn newer(told: Arc<Value>, written: Option<&Arc<Value>>) -> Arc<Value> {
    let revision = |node: &Value| -> u64 {
        let text = node["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        text.parse().unwrap_or(0)
    };
    match written {
        Some(written)
            if written["metadata"]["uid"] == told["metadata"]["uid"]
                && revision(written) > revision(&told) =>
        {
            Arc::clone(written)
        }
        _ => told,
    }
}

async fn write(
    client: &Client,
    of: &Description,
    sources: &StatusInputs,
    observation: &Observation,
    node: &Value,
    first: bool,
    anyway: bool,
) -> Result<Outcome, Error> {
    let mut wrote = None;
    let annotations = annotations(of, observation);
    if let Some(patch) = changes::of_metadata(&node["metadata"], &labels(of), &annotations) {
        wrote = Some(client.patch(kind::NODES, "", &of.name, PatchKind::Merge, &patch).await?);
    }
    let problems = problems(sources);
    let time = now().to_seconds_text();
    let has = &node["status"];
    let Conditions { conditions, told } =
        conditions(&has["conditions"], observation.pressure, &problems, &time, first);
    let mut wanted = status(of, observation);
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
        let node = client.patch_part(kind::NODES, "", &of.name, "status", kind, &patch).await?;
        wrote = Some(node);
    }
    Ok(Outcome { wrote, told })
}
