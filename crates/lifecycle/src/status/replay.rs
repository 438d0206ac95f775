//! Replays recorded traces of pods of the real kubelet: from each recorded status the state of the runtime is
//! derived, and from that state the recorded status must follow.
//!
//! Values that a status does not contain are given: reasons of failed starts, probe results, the reason of a
//! termination, the progress of a resize. Everything else (phase, conditions, states, counts, ids, resources)
//! is derived. Each recorded status falls into one of the categories of [`StatusSource`], and how many fall into
//! which is asserted.

use std::collections::BTreeMap;

use objects::timestamp::Timestamp;
use serde_json::{Value, json};

use super::*;
use rig::golden_node::{defaulted, lines};

use crate::observed::{ContainerState, RuntimeContainer, RuntimeSandbox};
use crate::spec::Container;

mod compare;

use compare::{compare, foreign, ours, without};

/// The kernel's value for "no limit", as the recorded kubelet read it.
const ARTEFACT: &str = "9007199254740988Ki";
/// Any time: recorded times are replaced by placeholders.
const SOME_TIME: i64 = 1_700_000_000_000_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum StatusSource {
    /// Written by the API server, the binding or a client.
    ByOthers,
    /// The status of a rejected pod.
    Rejected,
    /// Equals the result of `generate` and `merge`.
    Generated,
    /// The same, followed by `terminate`: nothing was left of the pod.
    Terminated,
    /// The same, but the kubelet had not noticed yet that the pod had finished and kept its phase.
    HeldBack,
    /// The same, but a restarted kubelet lost the mounts.
    WithoutMounts,
    /// The same, but the kubelet had not read the address of the sandbox yet.
    WithoutAddress,
    /// The line is marked as a quirk of upstream that is not copied.
    Quirk,
    /// The inputs of the kubelet are not in the record; see [`DIFFERENT`].
    Different,
}

/// Statuses that differ, by line and time, with what the kubelet did there.
const DIFFERENT: &[(&str, f64, &str)] = &[
    ("sidecar-order", 3.19, "s1 is started in its status and not yet in the conditions"),
    ("static-fail-node-1", 2.12, "a static pod's last phase is told before its sandbox is gone"),
];

/// The trace of one pod: the statuses in order, each with the one before it.
struct PodTrace<'a> {
    line: &'a Value,
    spec: Value,
}

impl PodTrace<'_> {
    fn pod(&self, snapshot: &Value, before: &Value) -> Pod {
        let mut pod = self.spec.clone();
        let t = snapshot["t"].as_f64().unwrap();
        for step in self.line["steps"].as_array().unwrap() {
            let added = &step["action"]["patch"]["spec"]["ephemeralContainers"];
            if added.is_array() && step["t"].as_f64().unwrap() < t {
                pod["spec"]["ephemeralContainers"] = added.clone();
            }
        }
        let status = &snapshot["status"];
        pod["metadata"]["generation"] = json!(status["observedGeneration"].as_i64().unwrap_or(0));
        // A status update that was in flight when the pod was deleted has the old generation.
        let generation = snapshot["generation"].as_i64().unwrap_or(1);
        let observed = status["observedGeneration"].as_i64().unwrap_or(generation);
        if snapshot["deleting"].is_object() && observed == generation {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        if !self.line["mirror_pod"].is_null() || self.line["family"] == "static" {
            pod["metadata"]["annotations"] = json!({"kubernetes.io/config.source": "file"});
        }
        pod["status"] = before.clone();
        if let Some(status) = pod["status"].as_object_mut() {
            status.remove("qosClass");
        }
        serde_json::from_value(pod).unwrap()
    }
}

/// Derives the state of the runtime and the inputs of the worker from a status.
fn world(line: &Value, pod: &Pod, status: &PodStatus) -> (RuntimePod, StatusInputs) {
    let mut inputs = StatusInputs {
        runtime: "containerd".to_owned(),
        host_ips: status.host_ips.iter().map(|ip| ip.ip.clone()).collect(),
        ..StatusInputs::default()
    };
    let mut containers = Vec::new();
    let lists = [
        &status.init_container_statuses,
        &status.container_statuses,
        &status.ephemeral_container_statuses,
    ];
    for found in lists.into_iter().flatten() {
        let (_, container) = pod.container(&found.name).unwrap();
        containers.extend(seen_of(container, found));
        learn(container, found, &mut inputs);
    }
    let sandbox = status.condition("PodReadyToStartContainers");
    let ready = sandbox.is_some_and(Condition::is_true);
    let ips: Vec<String> = status.pod_ips.iter().map(|ip| ip.ip.clone()).collect();
    // A ready sandbox has an address even if the status does not have it yet.
    let ips = if ips.is_empty() { vec!["<POD_IP>".to_owned()] } else { ips };
    let sandboxes = match sandbox {
        Some(none) if none.message == "no pod sandbox exists" => Vec::new(),
        None => Vec::new(),
        Some(_) => vec![RuntimeSandbox {
            id: "sandbox".to_owned(),
            attempt: 0,
            ready,
            created_at: SOME_TIME,
            ips: if pod.spec.host_network { Vec::new() } else { ips },
            host_network: pod.spec.host_network,
        }],
    };
    // A deleted pod without a sandbox is finished at once.
    let over = pod.is_terminating() || PodStatus::read(&pod.status).phase.is_terminal();
    inputs.finished = !ready && (!sandboxes.is_empty() || over);
    remember_end(line, status, &mut inputs);
    remember_resize(line, status, &mut inputs);
    (RuntimePod::new(sandboxes, containers), inputs)
}

fn seen_of(container: &Container, status: &ContainerStatus) -> Vec<RuntimeContainer> {
    let id = |full: &str| full.strip_prefix("containerd://").unwrap_or(full).to_owned();
    let made = |id: String, attempt: u32, state, end: Option<&Terminated>| {
        let end = end.cloned().unwrap_or_default();
        let unstarted = end.started_at.as_deref() == Some("1970-01-01T00:00:00Z");
        RuntimeContainer {
            id,
            sandbox: "sandbox".to_owned(),
            name: container.name.clone(),
            attempt,
            state,
            created_at: SOME_TIME + i64::from(attempt),
            started_at: if unstarted { 0 } else { SOME_TIME },
            finished_at: SOME_TIME,
            exit_code: end.exit_code,
            reason: end.reason,
            message: end.message,
            image: status.image.clone(),
            image_id: status.image_id.clone(),
            hash: String::new(),
        }
    };
    let of_end = |state: &State, attempt| {
        let end = state.terminated.as_ref().filter(|end| !end.container_id.is_empty())?;
        Some(made(id(&end.container_id), attempt, ContainerState::Exited, Some(end)))
    };
    let attempt = status.restart_count;
    let mut found = Vec::new();
    if status.state.running.is_some() {
        found.push(made(id(&status.container_id), attempt, ContainerState::Running, None));
    }
    found.extend(of_end(&status.state, attempt));
    let last = of_end(&status.last_state, attempt);
    match last {
        // It waits for its restart: the newest container is the one that exited.
        Some(last) if id(&status.container_id) == last.id => found.push(last),
        Some(last) => found.push(RuntimeContainer {
            attempt: attempt.saturating_sub(1),
            created_at: SOME_TIME - 1,
            ..last
        }),
        None => {}
    }
    found
}

/// Derives the inputs of the worker about a container.
fn learn(container: &Container, status: &ContainerStatus, inputs: &mut StatusInputs) {
    let id = status.container_id.trim_start_matches("containerd://").to_owned();
    if container.readiness_probe.is_some() && status.state.running.is_some() {
        inputs.readiness.insert(id.clone(), status.ready);
    }
    if container.startup_probe.is_some() {
        inputs.startup.insert(id, status.started == Some(true));
    }
    if let Some(devices) = status.other.get("allocatedResourcesStatus") {
        inputs.devices.insert(container.name.clone(), devices.clone());
    }
    let Some(waiting) = &status.state.waiting else { return };
    match waiting.reason.as_str() {
        "ContainerCreating" | "PodInitializing" => {}
        "RestartingAllContainers" => inputs.restarting_all = RestartingAll::Removed,
        _ => {
            inputs.waiting.insert(container.name.clone(), waiting.clone());
        }
    }
}

fn remember_end(line: &Value, status: &PodStatus, inputs: &mut StatusInputs) {
    // The kubelet reports the failure from this condition on.
    let failed = status.condition("Ready").is_some_and(|ready| ready.reason == "PodFailed");
    let snapshots = line["snapshots"].as_array().unwrap();
    let last = PodStatus::read(&snapshots.last().unwrap()["status"]);
    if failed && !last.reason.is_empty() {
        let disruption = last.condition("DisruptionTarget").map(|c| c.message.clone());
        inputs.termination =
            Some(TerminationCause { reason: last.reason, message: last.message, disruption });
    }
    if status.condition("AllContainersRestarting").is_some_and(Condition::is_true) {
        inputs.restarting_all = RestartingAll::Stopping;
    }
}

fn remember_resize(line: &Value, status: &PodStatus, inputs: &mut StatusInputs) {
    let outcome = |kind: &str| {
        let condition = status.condition(kind)?;
        let (reason, message) = (condition.reason.clone(), condition.message.clone());
        Some(ResizeOutcome { reason, message, generation: condition.observed_generation })
    };
    inputs.resize = Resize {
        pending: outcome("PodResizePending"),
        in_progress: outcome("PodResizeInProgress"),
    };
    let steps = line["steps"].to_string();
    if line["family"] != "resize" && !steps.contains("resize") {
        return;
    }
    for found in &status.container_statuses {
        let id = found.container_id.trim_start_matches("containerd://").to_owned();
        let Some(resources) = &found.resources else { continue };
        let requests = found.allocated_resources.clone();
        let limits = resources.limits.clone();
        inputs.allocated.insert(found.name.clone(), Resources { limits, requests });
        inputs.actual.insert(id, resources.clone());
    }
    let requests = status.allocated_resources.clone();
    inputs.pod_allocated = Some(Resources { requests, ..Resources::default() });
    inputs.pod_actual = status.resources.clone();
}

fn find_source(trace: &PodTrace<'_>, at: usize) -> Result<StatusSource, String> {
    let snapshots = trace.line["snapshots"].as_array().unwrap();
    let snapshot = &snapshots[at];
    let recorded = &snapshot["status"];
    let fresh = at == 0 || snapshots[at - 1]["incarnation"] != snapshot["incarnation"];
    let mut before = if fresh { json!({}) } else { snapshots[at - 1]["status"].clone() };
    if recorded["startTime"].is_null() || ours(&before) == ours(recorded) {
        return Ok(StatusSource::ByOthers);
    }
    if before["conditions"].is_array() {
        before["conditions"] = ours(&before)["conditions"].clone();
        let all = before["conditions"].as_array_mut().unwrap();
        let given = foreign(recorded);
        all.splice(0..0, given);
    }
    let pod = trace.pod(snapshot, &before);
    let now = Timestamp::new(SOME_TIME / 1_000_000_000, 0);
    let status = PodStatus::read(recorded);
    if recorded["containerStatuses"].is_null() {
        let bare = status.message.strip_prefix("Pod was rejected: ").unwrap_or_default();
        let may_run = status.phase == Phase::Running;
        let again = merge(&pod, rejected(&pod, &status.reason, bare), may_run, now).unwrap();
        return compare(&again, recorded, true).map(|()| StatusSource::Rejected);
    }
    let (observed, inputs) = world(trace.line, &pod, &status);
    let generated = generate(&pod, &observed, &inputs);
    let drop = recorded.to_string().contains(ARTEFACT) || inputs.finished;
    let written =
        merge(&pod, generated.clone(), !inputs.finished, now).map_err(|e| e.to_string())?;
    let Err(first) = compare(&written, recorded, drop) else { return Ok(StatusSource::Generated) };
    if without(&written, recorded, "volumeMounts", drop) {
        return Ok(StatusSource::WithoutMounts);
    }
    if !pod.spec.host_network && recorded["podIP"].is_null() {
        let (pod_ip, pod_ips) = (String::new(), Vec::new());
        let unnoticed = PodStatus { pod_ip, pod_ips, ..written.clone() };
        if compare(&unnoticed, recorded, drop).is_ok() {
            return Ok(StatusSource::WithoutAddress);
        }
    }
    if !inputs.finished {
        return Err(first);
    }
    let held = merge(&pod, generated, true, now).map_err(|e| e.to_string())?;
    if compare(&held, recorded, drop).is_ok() || without(&held, recorded, "volumeMounts", drop) {
        return Ok(StatusSource::HeldBack);
    }
    // The status at the start of the termination.
    let earlier =
        snapshots.iter().find(|s| s["deleting"].is_object()).unwrap_or(&snapshots[at - 1]);
    let knew = Pod { status: earlier["status"].clone(), ..pod.clone() };
    let ended = terminate(&knew, written);
    let written = merge(&pod, ended, false, now).map_err(|e| e.to_string())?;
    compare(&written, recorded, drop).map(|()| StatusSource::Terminated).map_err(|_| first)
}

#[test]
fn recorded_statuses_are_reproduced() {
    let mut counts: BTreeMap<StatusSource, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    for line in lines("pods.jsonl.gz") {
        let Some(snapshots) = line["snapshots"].as_array() else { continue };
        let id = line["id"].as_str().unwrap();
        let trace = PodTrace { line: &line, spec: defaulted(&line["manifest"]) };
        for (at, snapshot) in snapshots.iter().enumerate() {
            let t = snapshot["t"].as_f64().unwrap();
            let named = DIFFERENT.iter().any(|(line, time, _)| *line == id && *time == t);
            let source = match find_source(&trace, at) {
                Ok(source) if named => {
                    wrong.push(format!("{id} at {t}: no longer different"));
                    source
                }
                Ok(source) => source,
                Err(_) if !line["quirk"].is_null() => StatusSource::Quirk,
                Err(_) if named => StatusSource::Different,
                Err(why) => {
                    wrong.push(format!("{id} at {t}:\n    {why}"));
                    StatusSource::Different
                }
            };
            *counts.entry(source).or_default() += 1;
        }
    }
    assert!(wrong.is_empty(), "{} differ; {counts:?}\n{}", wrong.len(), wrong.join("\n"));
    let expected = [
        (StatusSource::ByOthers, 1034),
        (StatusSource::Rejected, 35),
        (StatusSource::Generated, 1133),
        (StatusSource::Terminated, 38),
        (StatusSource::HeldBack, 12),
        (StatusSource::WithoutMounts, 20),
        (StatusSource::WithoutAddress, 10),
        (StatusSource::Quirk, 6),
        (StatusSource::Different, 2),
    ];
    assert_eq!(counts, BTreeMap::from(expected));
}
