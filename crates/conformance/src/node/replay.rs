//! One recorded life, replayed again: objects, the pod, its binding, and the steps, each when the state is
//! reached that was recorded before it: [`replay`].
//!
//! A step waits for three things: every recorded state that stood before it, the state that was recorded
//! last before it, and the Events that were recorded before it. It does not wait for ever; what did not
//! come is then a difference of the comparison, which is made elsewhere. Steps in the first second of a
//! life interrupt something, and are made by the clock.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use client::DeleteOptions;
use client::kind::{Kind, PODS, RUNTIME_CLASSES};
use serde_json::{Value, json};

use super::action::act;
use super::states::{self, State, in_order, runs};
use super::testbed::{NODE, ReplayContext};

/// Steps before this, in seconds, are made by the clock.
const INTERRUPTS: f64 = 1.0;
/// How long a state has to hold before a step is made that was recorded later, in seconds; or as long as
/// it did when recorded, if that was less.
const SETTLE: f64 = 1.0;

/// Whose life it is, and since when.
#[derive(Clone, Debug)]
pub(super) struct ReplayedPod {
    pub(super) namespace: String,
    pub(super) name: String,
    /// When the pod was bound, by the clock of the trace.
    pub(super) zero: f64,
    /// What a step was answered, where the recording has it.
    pub(super) answers: Vec<(usize, u64, String)>,
    /// Why there is no pod.
    pub(super) refused: Option<String>,
}

pub(super) fn namespace(manifest: &Value) -> &str {
    manifest["metadata"]["namespace"].as_str().unwrap_or("lives")
}

pub(super) fn name(manifest: &Value) -> &str {
    manifest["metadata"]["name"].as_str().unwrap_or_default()
}

/// The manifest with host paths of ours.
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

/// Creates a pod and binds it, as the recorder did.
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
    context.api.create_part(PODS, &replayed.namespace, &replayed.name, "binding", &binding).await?;
    replayed.zero = context.trace.now();
    Ok(replayed)
}

/// Ports of the node that a pod asks for. One that was refused for them needs another that has them.
fn host_ports(pod: &Value) -> Vec<u64> {
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    let ports = containers.flat_map(|c| c["ports"].as_array().into_iter().flatten());
    ports.filter_map(|port| port["hostPort"].as_u64()).collect()
}

/// The class that a manifest names and that was there when the pod was created: its name, its handler,
/// and whether it was gone again when the pod was bound. The recording does not have such classes among
/// its objects, but its Events tell of them.
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

/// Plays a life that is nobody else's, to its end.
pub(super) async fn replay(context: &ReplayContext, line: &Value) -> Result<ReplayedPod> {
    let mut replayed = create_and_bind(context, line).await?;
    if replayed.refused.is_some() {
        return Ok(replayed);
    }
    let steps = line["steps"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut diverged = false;
    for (index, step) in steps.iter().enumerate() {
        let t = step["t"].as_f64().unwrap_or_default();
        // A life that has left the recorded way does not come back to it.
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

/// Lives to be replayed at the same time: who was refused for its ports comes while another one has them.
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

/// Plays lives at the same time. Where none of them has the ports that the first was refused for, one that
/// is like it takes them before.
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
        // What is left of it goes with the testbed.
        let _ = act(context, &before, &json!({"delete": {"gracePeriodSeconds": 0}})).await;
    }
    done
}

fn is_refused_for_ports(line: &Value) -> bool {
    line["end"]["reason"] == "NodePorts"
}

/// Waits until the agent has taken a pod up, if the recorded kubelet had by then.
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

/// Waits until what was recorded before `t` has come, or timeout is at an end; says which.
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
        // The recorder's own deletion is told of before anybody sees it.
        .filter(|event| event["reason"] != "Killing")
        .filter(|event| event["t"].as_f64().unwrap_or_default() < t)
        .collect();
    let arrived = || {
        let ours =
            runs(&context.trace.snapshots(&replayed.namespace, &replayed.name, replayed.zero));
        let Some(current) = ours.last().map(|run| &run.state) else { return false };
        if current.restarts > last.state.restarts {
            // Waiting only makes it later still.
            return true;
        }
        // What was seen for a moment only need not be the state that is left.
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

/// Whether a container ended while it was being stopped, neither at once nor when its time was up: how long
/// it had run may have mattered.
fn was_slow(line: &Value) -> bool {
    let calls = line["cri_calls"].as_array().into_iter().flatten();
    let mut stops = calls.filter(|call| call["call"] == "StopContainer");
    stops.any(|stop| {
        let grace = stop["timeout"].as_str().and_then(|text| text.parse::<f64>().ok());
        let took = stop["ms"].as_f64().unwrap_or_default() / 1000.0;
        took > SETTLE && grace.is_some_and(|grace| took < grace)
    })
}

/// Waits until the life has ended as it did when it was recorded.
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

/// How long to wait for what took so many seconds when it was recorded: busy machines are slower, and
/// what never comes must not hold up the rest for ever.
fn timeout(recorded: f64) -> Duration {
    Duration::from_secs_f64(60.0 + 1.5 * recorded.clamp(0.0, 300.0))
}

/// Waits until `arrived` holds and has held for `settle`, or timeout is at an end; says which.
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
                        // The testbed outlives its players.
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

/// Whether a life needs a network of its own.
pub(super) fn needs_network(line: &Value) -> bool {
    let snapshots = line["snapshots"].to_string();
    // One that is refused for its ports is refused only if the pod that has them could be replayed.
    let network = snapshots.contains("<POD_IP>") || snapshots.contains("\"NodePorts\"");
    line["manifest"]["spec"]["hostNetwork"] != true && network
}

/// The words of all standing states, for messages.
pub(super) fn render_runs(snapshots: &[Value]) -> String {
    let runs = states::runs(snapshots);
    runs.iter().map(|run| format!("\n      {:.1} {}", run.from, run.state)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_refused_for_ports_is_played_beside_who_has_them() {
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
    fn pods_refused_for_ports_need_the_network_of_those_that_have_them() {
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
