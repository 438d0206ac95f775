//! One recorded life, played again: objects, the pod, its binding, and the steps, each when the state is
//! reached that was recorded before it: [`play`].
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
use super::significant::{self, State, in_order, runs};
use super::stage::{NODE, Scene};

/// Steps before this, in seconds, are made by the clock.
const INTERRUPTS: f64 = 1.0;
/// How long a state has to hold before a step is made that was recorded later, in seconds; or as long as
/// it did when recorded, if that was less.
const SETTLE: f64 = 1.0;

/// Whose life it is, and since when.
#[derive(Clone, Debug)]
pub(super) struct Played {
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
pub(super) fn manifest_here(scene: &Scene, manifest: &Value) -> Value {
    let mut manifest = manifest.clone();
    let volumes = manifest["spec"]["volumes"].as_array_mut();
    for volume in volumes.into_iter().flatten() {
        let Some(path) = volume["hostPath"]["path"].as_str() else { continue };
        if let Some(rest) = path.strip_prefix("/srv/hp") {
            let here = format!("{}{rest}", scene.host_paths().display());
            volume["hostPath"]["path"] = here.into();
        }
    }
    manifest
}

/// Creates a pod and binds it, as the recorder did.
pub(super) async fn create_and_bind(scene: &Scene, line: &Value) -> Result<Played> {
    let manifest = manifest_here(scene, &line["manifest"]);
    let (namespace, name) = (namespace(&manifest).to_owned(), name(&manifest).to_owned());
    for object in line["objects"].as_array().into_iter().flatten() {
        create_object(scene, &namespace, object).await?;
    }
    let class = runtime_class(line);
    if let Some((class, handler, _)) = &class {
        let object = json!({"metadata": {"name": class}, "handler": handler});
        match scene.api.create(RUNTIME_CLASSES, "", &object).await {
            Err(error) if !error.is_already_there() => return Err(error.into()),
            _ => {}
        }
    }
    if is_refused_for_ports(line) {
        let ports = host_ports(&manifest);
        let taken =
            || scene.trace.any_running(|pod| host_ports(pod).iter().any(|p| ports.contains(p)));
        wait(scene, patience(0.0), Duration::ZERO, taken).await;
    }
    let zero = scene.trace.now();
    let mut played = Played { namespace, name, zero, answers: Vec::new(), refused: None };
    if let Err(error) = scene.api.create(PODS, &played.namespace, &manifest).await {
        if line.get("create_error").is_none() {
            bail!("{}: {error}", played.name);
        }
        played.refused = Some(error.to_string());
        return Ok(played);
    }
    if let Some((class, _, true)) = &class {
        scene.api.delete(RUNTIME_CLASSES, "", class, &DeleteOptions::default()).await?;
    }
    if manifest["spec"]["nodeName"].is_string() {
        return Ok(played);
    }
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": played.name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": NODE},
    });
    scene
        .api
        .create_subresource(PODS, &played.namespace, &played.name, "binding", &binding)
        .await?;
    played.zero = scene.trace.now();
    Ok(played)
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
    let said = |words: &str| {
        let events = line["events"].as_array().into_iter().flatten();
        events.filter_map(|event| event["message"].as_str()).find_map(|message| {
            let (_, after) = message.split_once(words)?;
            Some(after.split('"').next().unwrap_or_default().to_owned())
        })
    };
    let gone = said("runtimeclass.node.k8s.io \"").is_some();
    let handler = said("no runtime for \"").unwrap_or_else(|| "runc".to_owned());
    Some((class, handler, gone))
}

async fn create_object(scene: &Scene, namespace: &str, object: &Value) -> Result<()> {
    let api_version = object["apiVersion"].as_str().unwrap_or("v1");
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let kind = object["kind"].as_str().unwrap_or_default();
    let resource = objects::catalog::RESOURCES
        .iter()
        .find(|r| r.group == group && r.version == version && r.kind == kind)
        .with_context(|| format!("{kind} of {api_version} is not served"))?;
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or(namespace);
    match scene.api.create(Kind::of(resource), namespace, object).await {
        Err(error) if !error.is_already_there() => Err(error.into()),
        _ => Ok(()),
    }
}

/// Plays a life that is nobody else's, to its end.
pub(super) async fn play(scene: &Scene, line: &Value) -> Result<Played> {
    let mut played = create_and_bind(scene, line).await?;
    if played.refused.is_some() {
        return Ok(played);
    }
    let steps = line["steps"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut astray = false;
    for (index, step) in steps.iter().enumerate() {
        let t = step["t"].as_f64().unwrap_or_default();
        // A life that has left the recorded way does not come back to it.
        if t < INTERRUPTS {
            until_taken(scene, line, &played, t).await;
            let passed = scene.trace.now() - played.zero;
            tokio::time::sleep(Duration::from_secs_f64((t - passed).max(0.0))).await;
        } else if !astray {
            astray = !until_recorded(scene, line, &played, t).await;
        }
        if let Some((code, message)) = act(scene, &played, &step["action"]).await? {
            played.answers.push((index, code, message));
        }
    }
    until_end(scene, line, &played).await;
    Ok(played)
}

/// Lives to be played at the same time: who was refused for its ports comes while another one has them.
pub(super) fn together(lines: Vec<Value>) -> Vec<Vec<Value>> {
    let (refused, others): (Vec<Value>, Vec<Value>) =
        lines.into_iter().partition(is_refused_for_ports);
    let mut all: Vec<Vec<Value>> = others.into_iter().map(|line| vec![line]).collect();
    for line in refused {
        let wanted = host_ports(&line["manifest"]);
        let has_them = |of: &&mut Vec<Value>| {
            let own = of.first().map(|first| host_ports(&first["manifest"])).unwrap_or_default();
            own.iter().any(|port| wanted.contains(port))
        };
        match all.iter_mut().find(has_them) {
            Some(of) => of.push(line),
            None => all.push(vec![line]),
        }
    }
    all
}

/// Plays lives at the same time. Where none of them has the ports that the first was refused for, one that
/// is like it takes them before.
pub(super) async fn play_together(
    scene: &Scene,
    lines: Vec<Value>,
) -> Vec<(Value, Result<Played>)> {
    let alone = lines.first().filter(|line| is_refused_for_ports(line));
    let before = match alone {
        Some(line) => {
            let mut manifest = line["manifest"].clone();
            manifest["metadata"]["name"] = format!("{}-before", name(&manifest)).into();
            Some(create_and_bind(scene, &json!({"manifest": manifest})).await)
        }
        None => None,
    };
    let mut playing = tokio::task::JoinSet::new();
    for line in lines {
        let scene = scene.clone();
        playing.spawn(async move {
            let played = play(&scene, &line).await;
            (line, played)
        });
    }
    let done = playing.join_all().await;
    if let Some(Ok(before)) = before {
        // What is left of it goes with the stage.
        let _ = act(scene, &before, &json!({"delete": {"gracePeriodSeconds": 0}})).await;
    }
    done
}

fn is_refused_for_ports(line: &Value) -> bool {
    line["end"]["reason"] == "NodePorts"
}

/// Waits until the agent has taken a pod up, if the recorded kubelet had by then.
async fn until_taken(scene: &Scene, line: &Value, played: &Played, t: f64) {
    let calls = line["cri_calls"].as_array().into_iter().flatten();
    if calls.into_iter().all(|call| call["t"].as_f64().unwrap_or_default() >= t) {
        return;
    }
    let taken = || {
        let last = scene.trace.last(&played.namespace, &played.name);
        last.is_some_and(|(pod, _)| pod["status"]["startTime"].is_string())
    };
    wait(scene, patience(t), Duration::ZERO, taken).await;
}

/// Waits until what was recorded before `t` has come, or patience is at an end; says which.
pub(super) async fn until_recorded(scene: &Scene, line: &Value, played: &Played, t: f64) -> bool {
    let snapshots = line["snapshots"].as_array().map(Vec::as_slice).unwrap_or_default();
    let before: Vec<Value> =
        snapshots.iter().filter(|s| s["t"].as_f64().unwrap_or_default() < t).cloned().collect();
    let recorded = runs(&before);
    let Some(last) = recorded.last() else { return true };
    let held = t - last.from;
    let wanted: Vec<&State> = recorded
        .iter()
        .enumerate()
        .filter(|(index, run)| run.stands() || index + 1 == recorded.len())
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
        let ours = runs(&scene.trace.snapshots(&played.namespace, &played.name, played.zero));
        let Some(current) = ours.last().map(|run| &run.state) else { return false };
        if current.restarts > last.state.restarts {
            // Waiting only makes it later still.
            return true;
        }
        // What was seen for a moment only need not be the state that is left.
        let there = held < SETTLE || current.is(&last.state);
        there && in_order(wanted.iter().copied(), &ours).len() == wanted.len() && {
            let seen = scene.trace.events(&played.namespace, &played.name);
            events.iter().all(|wanted| {
                seen.iter().any(|event| {
                    let same = |key: &str| event[key] == wanted[key];
                    same("type") && same("reason")
                })
            })
        }
    };
    let longest = if took_its_time(line) { held.max(SETTLE) } else { SETTLE };
    let settle = Duration::from_secs_f64(held.clamp(0.0, longest));
    let patience = if held < SETTLE { Duration::from_secs_f64(10.0 + t) } else { patience(t) };
    wait(scene, patience, settle, arrived).await
}

/// Whether a container ended while it was being stopped, neither at once nor when its time was up: how long
/// it had run may have mattered.
fn took_its_time(line: &Value) -> bool {
    let calls = line["cri_calls"].as_array().into_iter().flatten();
    let mut stops = calls.filter(|call| call["call"] == "StopContainer");
    stops.any(|stop| {
        let grace = stop["timeout"].as_str().and_then(|text| text.parse::<f64>().ok());
        let took = stop["ms"].as_f64().unwrap_or_default() / 1000.0;
        took > SETTLE && grace.is_some_and(|grace| took < grace)
    })
}

/// Waits until the life has ended as it did when it was recorded.
pub(super) async fn until_end(scene: &Scene, line: &Value, played: &Played) {
    let snapshots = line["snapshots"].as_array().map(Vec::as_slice).unwrap_or_default();
    let Some(last) = snapshots.last() else { return };
    let t = last["t"].as_f64().unwrap_or_default();
    let removed = last["removed"] == true;
    let wanted = State::of(last);
    let arrived = || {
        if removed {
            return scene.trace.last(&played.namespace, &played.name).is_some_and(|(_, gone)| gone);
        }
        let ours = runs(&scene.trace.snapshots(&played.namespace, &played.name, played.zero));
        ours.last().is_some_and(|run| run.state.is(&wanted))
    };
    wait(scene, patience(t), Duration::ZERO, arrived).await;
}

/// How long to wait for what took so many seconds when it was recorded: busy machines are slower, and
/// what never comes must not hold up the rest for ever.
fn patience(recorded: f64) -> Duration {
    Duration::from_secs_f64(60.0 + 1.5 * recorded.clamp(0.0, 300.0))
}

/// Waits until `arrived` holds and has held for `settle`, or patience is at an end; says which.
pub(super) async fn wait(
    scene: &Scene,
    patience: Duration,
    settle: Duration,
    arrived: impl Fn() -> bool,
) -> bool {
    let mut changes = scene.trace.changes();
    let waiting = async {
        loop {
            changes.mark_unchanged();
            if arrived() {
                let changed = tokio::time::timeout(settle, async {
                    loop {
                        // The stage outlives its players.
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
    tokio::time::timeout(patience, waiting).await.is_ok()
}

/// Whether a life needs a network of its own.
pub(super) fn needs_network(line: &Value) -> bool {
    let told = line["snapshots"].to_string();
    // One that is refused for its ports is refused only if the pod that has them could be played.
    let network = told.contains("<POD_IP>") || told.contains("\"NodePorts\"");
    line["manifest"]["spec"]["hostNetwork"] != true && network
}

/// The words of all standing states, for messages.
pub(super) fn told(snapshots: &[Value]) -> String {
    let runs = significant::runs(snapshots);
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
