//! Replays one recorded pod: objects, the pod, its binding, and the steps, each when the state
//! recorded before it is reached: [`replay`].
//!
//! A step waits for three things: every stable state recorded before it, the last state recorded
//! before it, and the Events recorded before it. After a timeout it runs anyway; a missing state is
//! then found by the comparison. Steps in the first second interrupt a start, and run at their
//! recorded time.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use client::DeleteOptions;
use client::kind::{Kind, PODS, RUNTIME_CLASSES};
use serde_json::{Value, json};

use super::action::act;
use super::states::{self, State, in_order, runs};
use super::testbed::{NODE, ReplayContext};

/// Steps before this time, in seconds, run at their recorded time.
const INTERRUPTS: f64 = 1.0;
/// Seconds that a state must hold before a later step runs, or its recorded duration if that was
/// shorter.
const SETTLE: f64 = 1.0;

/// A replayed pod.
#[derive(Clone, Debug)]
pub(super) struct ReplayedPod {
    pub(super) namespace: String,
    pub(super) name: String,
    /// The time of its binding on the trace's clock.
    pub(super) zero: f64,
    /// The API's responses to steps, where they are recorded: step, status and body.
    pub(super) answers: Vec<(usize, u64, String)>,
    /// The reason why the pod was not created.
    pub(super) refused: Option<String>,
}

pub(super) fn namespace(manifest: &Value) -> &str {
    manifest["metadata"]["namespace"].as_str().unwrap_or("lives")
}

pub(super) fn name(manifest: &Value) -> &str {
    manifest["metadata"]["name"].as_str().unwrap_or_default()
}

/// Replaces host paths in the manifest by ours.
pub(super) fn manifest_here(context: &ReplayContext, manifest: &Value) -> Value {
    let mut manifest = manifest.clone();
    let volumes = manifest["spec"]["volumes"].as_array_mut();
    for volume in volumes.into_iter().flatten() {
        let Some(path) = volume["hostPath"]["path"].as_str() else { continue };
        if let Some(rest) = path.strip_prefix("/srv/hp") {
            let here = format!("{}{rest}", context.host_paths().display());
            volume["hostPath"]["path"] = here.into();
        }
    }
    manifest
}

/// Creates and binds a pod, as the recorder did.
pub(super) async fn create_and_bind(context: &ReplayContext, line: &Value) -> Result<ReplayedPod> {
    let manifest = manifest_here(context, &line["manifest"]);
    let (namespace, name) = (namespace(&manifest).to_owned(), name(&manifest).to_owned());
    for object in line["objects"].as_array().into_iter().flatten() {
        create_object(context, &namespace, object).await?;
    }
    let class = runtime_class(line);
    if let Some((class, handler, _)) = &class {
        let object = json!({"metadata": {"name": class}, "handler": handler});
        match context.api.create(RUNTIME_CLASSES, "", &object).await {
            Err(error) if !error.is_already_there() => return Err(error.into()),
            _ => {}
        }
    }
    if is_refused_for_ports(line) {
        let ports = host_ports(&manifest);
        let taken =
            || context.trace.any_running(|pod| host_ports(pod).iter().any(|p| ports.contains(p)));
        wait(context, timeout(0.0), Duration::ZERO, taken).await;
    }
    let zero = context.trace.now();
    let mut replayed = ReplayedPod { namespace, name, zero, answers: Vec::new(), refused: None };
    if let Err(error) = context.api.create(PODS, &replayed.namespace, &manifest).await {
        if line.get("create_error").is_none() {
            bail!("{}: {error}", replayed.name);
        }
        replayed.refused = Some(error.to_string());
        return Ok(replayed);
    }
    if let Some((class, _, true)) = &class {
        context.api.delete(RUNTIME_CLASSES, "", class, &DeleteOptions::default()).await?;
    }
    if manifest["spec"]["nodeName"].is_string() {
        return Ok(replayed);
    }
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": replayed.name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": NODE},
    });
    context
        .api
        .create_subresource(PODS, &replayed.namespace, &replayed.name, "binding", &binding)
        .await?;
    replayed.zero = context.trace.now();
    Ok(replayed)
}

/// Returns the host ports of a pod. A pod rejected for them needs another one that holds them.
fn host_ports(pod: &Value) -> Vec<u64> {
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    let ports = containers.flat_map(|c| c["ports"].as_array().into_iter().flatten());
    ports.filter_map(|port| port["hostPort"].as_u64()).collect()
}

/// Returns the runtime class that a manifest names and that existed at its creation: its name, its
/// handler, and whether it was gone at the binding. The recording has no such objects, but its
/// Events mention them.
fn runtime_class(line: &Value) -> Option<(String, String, bool)> {
    let class = line["manifest"]["spec"]["runtimeClassName"].as_str()?.to_owned();
    if line.get("create_error").is_some() {
        return None;
    }
    let quoted_after = |words: &str| {
        let events = line["events"].as_array().into_iter().flatten();
        events.filter_map(|event| event["message"].as_str()).find_map(|message| {
            let (_, after) = message.split_once(words)?;
            Some(after.split('"').next().unwrap_or_default().to_owned())
        })
    };
    let gone = quoted_after("runtimeclass.node.k8s.io \"").is_some();
    let handler = quoted_after("no runtime for \"").unwrap_or_else(|| "runc".to_owned());
    Some((class, handler, gone))
}

async fn create_object(context: &ReplayContext, namespace: &str, object: &Value) -> Result<()> {
    let api_version = object["apiVersion"].as_str().unwrap_or("v1");
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let kind = object["kind"].as_str().unwrap_or_default();
    let resource = objects::catalog::RESOURCES
        .iter()
        .find(|r| r.group == group && r.version == version && r.kind == kind)
        .with_context(|| format!("{kind} of {api_version} is not served"))?;
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or(namespace);
    match context.api.create(Kind::of(resource), namespace, object).await {
        Err(error) if !error.is_already_there() => Err(error.into()),
        _ => Ok(()),
    }
}

/// Replays a single pod to its end.
pub(super) async fn replay(context: &ReplayContext, line: &Value) -> Result<ReplayedPod> {
    let mut replayed = create_and_bind(context, line).await?;
    if replayed.refused.is_some() {
        return Ok(replayed);
    }
    let steps = line["steps"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut diverged = false;
    for (index, step) in steps.iter().enumerate() {
        let t = step["t"].as_f64().unwrap_or_default();
        // A pod that has diverged from the recording does not return to it.
        if t < INTERRUPTS {
            until_taken(context, line, &replayed, t).await;
            let passed = context.trace.now() - replayed.zero;
            tokio::time::sleep(Duration::from_secs_f64((t - passed).max(0.0))).await;
        } else if !diverged {
            diverged = !until_recorded(context, line, &replayed, t).await;
        }
        if let Some((code, message)) = act(context, &replayed, &step["action"]).await? {
            replayed.answers.push((index, code, message));
        }
    }
    until_end(context, line, &replayed).await;
    Ok(replayed)
}

/// Groups pods to replay together: one rejected for its ports needs another one that holds them.
pub(super) fn together(lines: Vec<Value>) -> Vec<Vec<Value>> {
    let (refused, others): (Vec<Value>, Vec<Value>) =
        lines.into_iter().partition(is_refused_for_ports);
    let mut all: Vec<Vec<Value>> = others.into_iter().map(|line| vec![line]).collect();
    for line in refused {
        let wanted = host_ports(&line["manifest"]);
        let has_them = |lines: &&mut Vec<Value>| {
            let own = lines.first().map(|first| host_ports(&first["manifest"])).unwrap_or_default();
            own.iter().any(|port| wanted.contains(port))
        };
        match all.iter_mut().find(has_them) {
            Some(lines) => lines.push(line),
            None => all.push(vec![line]),
        }
    }
    all
}

/// Replays pods at the same time. If none holds the ports that the first was rejected for, a
/// similar pod takes them before.
pub(super) async fn replay_together(
    context: &ReplayContext,
    lines: Vec<Value>,
) -> Vec<(Value, Result<ReplayedPod>)> {
    let alone = lines.first().filter(|line| is_refused_for_ports(line));
    let before = match alone {
        Some(line) => {
            let mut manifest = line["manifest"].clone();
            manifest["metadata"]["name"] = format!("{}-before", name(&manifest)).into();
            Some(create_and_bind(context, &json!({"manifest": manifest})).await)
        }
        None => None,
    };
    let mut group_replay = tokio::task::JoinSet::new();
    for line in lines {
        let context = context.clone();
        group_replay.spawn(async move {
            let replayed = replay(&context, &line).await;
            (line, replayed)
        });
    }
    let done = group_replay.join_all().await;
    if let Some(Ok(before)) = before {
        // The testbed removes the rest.
        let _ = act(context, &before, &json!({"delete": {"gracePeriodSeconds": 0}})).await;
    }
    done
}

fn is_refused_for_ports(line: &Value) -> bool {
    line["end"]["reason"] == "NodePorts"
}

/// Waits until the agent has observed a pod, if the recorded kubelet had at `t`.
async fn until_taken(context: &ReplayContext, line: &Value, replayed: &ReplayedPod, t: f64) {
    let calls = line["cri_calls"].as_array().into_iter().flatten();
    if calls.into_iter().all(|call| call["t"].as_f64().unwrap_or_default() >= t) {
        return;
    }
    let taken = || {
        let last = context.trace.last(&replayed.namespace, &replayed.name);
        last.is_some_and(|(pod, _)| pod["status"]["startTime"].is_string())
    };
    wait(context, timeout(t), Duration::ZERO, taken).await;
}

/// Waits for everything recorded before `t`. Returns false on a timeout.
pub(super) async fn until_recorded(
    context: &ReplayContext,
    line: &Value,
    replayed: &ReplayedPod,
    t: f64,
) -> bool {
    let snapshots = line["snapshots"].as_array().map(Vec::as_slice).unwrap_or_default();
    let before: Vec<Value> =
        snapshots.iter().filter(|s| s["t"].as_f64().unwrap_or_default() < t).cloned().collect();
    let recorded = runs(&before);
    let Some(last) = recorded.last() else { return true };
    let held = t - last.from;
    let wanted: Vec<&State> = recorded
        .iter()
        .enumerate()
        .filter(|(index, run)| run.is_stable() || index + 1 == recorded.len())
        .map(|(_, run)| &run.state)
        .collect();
    let events: Vec<&Value> = line["events"]
        .as_array()
        .into_iter()
        .flatten()
        // The recorder's own deletion caused this Event.
        .filter(|event| event["reason"] != "Killing")
        .filter(|event| event["t"].as_f64().unwrap_or_default() < t)
        .collect();
    let arrived = || {
        let ours =
            runs(&context.trace.snapshots(&replayed.namespace, &replayed.name, replayed.zero));
        let Some(current) = ours.last().map(|run| &run.state) else { return false };
        if current.restarts > last.state.restarts {
            // Waiting longer does not help.
            return true;
        }
        // A short-lived state need not be the current one.
        let there = held < SETTLE || current.is(&last.state);
        there && in_order(wanted.iter().copied(), &ours).len() == wanted.len() && {
            let ours = context.trace.events(&replayed.namespace, &replayed.name);
            events.iter().all(|wanted| {
                ours.iter().any(|event| {
                    let same = |key: &str| event[key] == wanted[key];
                    same("type") && same("reason")
                })
            })
        }
    };
    let longest = if was_slow(line) { held.max(SETTLE) } else { SETTLE };
    let settle = Duration::from_secs_f64(held.clamp(0.0, longest));
    let timeout = if held < SETTLE { Duration::from_secs_f64(10.0 + t) } else { timeout(t) };
    wait(context, timeout, settle, arrived).await
}

/// Reports whether a container exited some time after its stop signal and before the end of the
/// grace period: its running time may matter.
fn was_slow(line: &Value) -> bool {
    let calls = line["cri_calls"].as_array().into_iter().flatten();
    let mut stops = calls.filter(|call| call["call"] == "StopContainer");
    stops.any(|stop| {
        let grace = stop["timeout"].as_str().and_then(|text| text.parse::<f64>().ok());
        let took = stop["ms"].as_f64().unwrap_or_default() / 1000.0;
        took > SETTLE && grace.is_some_and(|grace| took < grace)
    })
}

/// Waits until the pod has ended as recorded.
pub(super) async fn until_end(context: &ReplayContext, line: &Value, replayed: &ReplayedPod) {
    let snapshots = line["snapshots"].as_array().map(Vec::as_slice).unwrap_or_default();
    let Some(last) = snapshots.last() else { return };
    let t = last["t"].as_f64().unwrap_or_default();
    let removed = last["removed"] == true;
    let wanted = State::of(last);
    let arrived = || {
        if removed {
            return context
                .trace
                .last(&replayed.namespace, &replayed.name)
                .is_some_and(|(_, gone)| gone);
        }
        let ours =
            runs(&context.trace.snapshots(&replayed.namespace, &replayed.name, replayed.zero));
        ours.last().is_some_and(|run| run.state.is(&wanted))
    };
    wait(context, timeout(t), Duration::ZERO, arrived).await;
}

/// Returns the timeout for something that took this many seconds in the recording: busy machines
/// are slower.
fn timeout(recorded: f64) -> Duration {
    Duration::from_secs_f64(60.0 + 1.5 * recorded.clamp(0.0, 300.0))
}

/// Waits until `arrived` has held for `settle`. Returns false on a timeout.
pub(super) async fn wait(
    context: &ReplayContext,
    timeout: Duration,
    settle: Duration,
    arrived: impl Fn() -> bool,
) -> bool {
    let mut changes = context.trace.changes();
    let waiting = async {
        loop {
            changes.mark_unchanged();
            if arrived() {
                let changed = tokio::time::timeout(settle, async {
                    loop {
                        // The testbed outlives its replays.
                        let _ = changes.changed().await;
                        if !arrived() {
                            return;
                        }
                    }
                });
                if changed.await.is_err() {
                    return;
                }
                continue;
            }
            let _ = changes.changed().await;
        }
    };
    tokio::time::timeout(timeout, waiting).await.is_ok()
}

/// Reports whether a pod needs its own network.
pub(super) fn needs_network(line: &Value) -> bool {
    let snapshots = line["snapshots"].to_string();
    // A rejection for ports needs the pod that holds them to run.
    let network = snapshots.contains("<POD_IP>") || snapshots.contains("\"NodePorts\"");
    line["manifest"]["spec"]["hostNetwork"] != true && network
}

/// Renders all runs for messages.
pub(super) fn render_runs(snapshots: &[Value]) -> String {
    let runs = states::runs(snapshots);
    runs.iter().map(|run| format!("\n      {:.1} {}", run.from, run.state)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_conflicts_are_replayed_together() {
        let line = |id: &str, port: u64, end: Value| {
            let ports = json!([{"containerPort": 80, "hostPort": port}]);
            let manifest = json!({"spec": {"containers": [{"ports": ports}]}});
            json!({"id": id, "manifest": manifest, "end": end})
        };
        let refused = || json!({"reason": "NodePorts"});
        let lines = vec![
            line("second", 1, refused()),
            line("other", 2, json!({})),
            line("alone", 3, refused()),
            line("first", 1, json!({})),
        ];
        let ids = |lines: &Vec<Value>| {
            let ids: Vec<&str> = lines.iter().filter_map(|line| line["id"].as_str()).collect();
            ids.join(" ")
        };
        let found: Vec<String> = together(lines).iter().map(ids).collect();
        assert_eq!(found, ["other", "first second", "alone"]);
    }

    #[test]
    fn pods_rejected_for_ports_need_a_network() {
        let line = |host: bool, status: Value| {
            let manifest = json!({"spec": {"hostNetwork": host}});
            json!({"manifest": manifest, "snapshots": [{"status": status}]})
        };
        let refused = json!({"phase": "Failed", "reason": "NodePorts"});
        assert!(needs_network(&line(false, refused.clone())));
        assert!(!needs_network(&line(true, refused)));
        assert!(needs_network(&line(false, json!({"podIP": "<POD_IP>"}))));
        let other = json!({"phase": "Failed", "reason": "OutOfcpu"});
        assert!(!needs_network(&line(false, other)));
    }
}
