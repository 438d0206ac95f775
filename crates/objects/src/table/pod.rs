//! A pod's cells: ready containers, status, restarts.
//!
//! The status is one word for a whole pod. It starts as the phase, or the reason given with it; the
//! first init container that has not completed replaces it with `Init:…`; after that the containers
//! decide, where the first one has precedence; deletion overrides everything but completion.

use serde_json::Value;

use super::age;
use super::kinds::{or_none, text};
use crate::pod::is_sidecar;
use crate::timestamp::Timestamp;

pub(super) fn cells(pod: &Value, now: Timestamp) -> Vec<Value> {
    let summary = Summary::of(pod);
    let restarts = match summary.last_restart {
        Some(last) if summary.restarts != 0 => {
            let ago = age::human_duration(age::between(last, now));
            format!("{} ({ago} ago)", summary.restarts)
        }
        _ => summary.restarts.to_string(),
    };
    vec![
        pod["metadata"]["name"].clone(),
        format!("{}/{}", summary.ready, summary.total).into(),
        summary.status.into(),
        restarts.into(),
        age::since(&pod["metadata"]["creationTimestamp"], now).into(),
        or_none(&pod["status"]["podIPs"][0]["ip"]),
        or_none(&pod["spec"]["nodeName"]),
        or_none(&pod["status"]["nominatedNodeName"]),
        gates(pod).into(),
    ]
}

struct Summary {
    ready: usize,
    total: usize,
    status: String,
    restarts: i64,
    last_restart: Option<Timestamp>,
}

impl Summary {
    fn of(pod: &Value) -> Summary {
        let init_containers = list(&pod["spec"]["initContainers"]);
        let sidecars: Vec<&str> =
            init_containers.iter().filter(|c| is_sidecar(c)).map(|c| text(&c["name"])).collect();
        let mut summary = Summary {
            ready: 0,
            total: list(&pod["spec"]["containers"]).len() + sidecars.len(),
            status: first_word(pod),
            restarts: 0,
            last_restart: None,
        };
        let sidecar_restarts = summary.initialize(pod, &sidecars, init_containers.len());
        if let Some((restarts, last_restart)) = sidecar_restarts {
            (summary.restarts, summary.last_restart) = (restarts, last_restart);
            summary.run(pod);
        }
        let leaving = pod["metadata"]["deletionTimestamp"].is_string();
        let at_end = matches!(text(&pod["status"]["phase"]), "Succeeded" | "Failed");
        if leaving && pod["status"]["reason"] == "NodeLost" {
            "Unknown".clone_into(&mut summary.status);
        } else if leaving && !at_end {
            "Terminating".clone_into(&mut summary.status);
        }
        summary
    }

    /// Processes the init containers. Returns the restarts of the sidecars once the pod is
    /// initialized, else `None`.
    fn initialize(
        &mut self,
        pod: &Value,
        sidecars: &[&str],
        total: usize,
    ) -> Option<(i64, Option<Timestamp>)> {
        let mut of_sidecars = (0, None);
        let mut initializing = false;
        for (index, status) in list(&pod["status"]["initContainerStatuses"]).iter().enumerate() {
            let restarts = status["restartCount"].as_i64().unwrap_or(0);
            let ended = last_end(status);
            let is_sidecar = sidecars.contains(&text(&status["name"]));
            self.restarts += restarts;
            self.last_restart = self.last_restart.max(ended);
            if is_sidecar {
                of_sidecars = (of_sidecars.0 + restarts, of_sidecars.1.max(ended));
            }
            let (terminated, waiting) =
                (&status["state"]["terminated"], &status["state"]["waiting"]);
            let waits_for = text(&waiting["reason"]);
            if terminated.is_object() && exit_code(terminated) == 0 {
                continue;
            }
            if is_sidecar && status["started"] == true {
                self.ready += usize::from(status["ready"] == true);
                continue;
            }
            self.status = if terminated.is_object() {
                format!("Init:{}", end_word(terminated))
            } else if !waits_for.is_empty() && waits_for != "PodInitializing" {
                format!("Init:{waits_for}")
            } else {
                format!("Init:{index}/{total}")
            };
            initializing = true;
            break;
        }
        (!initializing || has_condition(pod, "Initialized")).then_some(of_sidecars)
    }

    fn run(&mut self, pod: &Value) {
        let mut running = false;
        for status in list(&pod["status"]["containerStatuses"]).iter().rev() {
            self.restarts += status["restartCount"].as_i64().unwrap_or(0);
            self.last_restart = self.last_restart.max(last_end(status));
            let state = &status["state"];
            let waits_for = text(&state["waiting"]["reason"]);
            if !waits_for.is_empty() {
                waits_for.clone_into(&mut self.status);
            } else if state["terminated"].is_object() {
                self.status = end_word(&state["terminated"]);
            } else if status["ready"] == true && state["running"].is_object() {
                running = true;
                self.ready += 1;
            }
        }
        if running && self.status == "Completed" {
            let word = if has_condition(pod, "Ready") { "Running" } else { "NotReady" };
            word.clone_into(&mut self.status);
        }
    }
}

/// Returns the status before any container is considered.
fn first_word(pod: &Value) -> String {
    let status = &pod["status"];
    let gated = |condition: &Value| {
        condition["type"] == "PodScheduled" && condition["reason"] == "SchedulingGated"
    };
    if list(&status["conditions"]).iter().any(gated) {
        return "SchedulingGated".to_owned();
    }
    match text(&status["reason"]) {
        "" => text(&status["phase"]).to_owned(),
        reason => reason.to_owned(),
    }
}

/// Returns the reason of a termination, or the exit code or signal if there is none.
fn end_word(terminated: &Value) -> String {
    match (text(&terminated["reason"]), terminated["signal"].as_i64().unwrap_or(0)) {
        ("", 0) => format!("ExitCode:{}", exit_code(terminated)),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

fn exit_code(terminated: &Value) -> i64 {
    terminated["exitCode"].as_i64().unwrap_or(0)
}

/// Returns the time at which the previous run of the container ended.
fn last_end(status: &Value) -> Option<Timestamp> {
    Timestamp::parse(status["lastState"]["terminated"]["finishedAt"].as_str()?).ok()
}

fn has_condition(pod: &Value, kind: &str) -> bool {
    let holds = |condition: &Value| condition["type"] == kind && condition["status"] == "True";
    list(&pod["status"]["conditions"]).iter().any(holds)
}

fn gates(pod: &Value) -> String {
    let gates = list(&pod["spec"]["readinessGates"]);
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let conditions = list(&pod["status"]["conditions"]);
    let open = gates.iter().filter(|gate| {
        let condition = conditions.iter().find(|c| c["type"] == gate["conditionType"]);
        condition.is_some_and(|condition| condition["status"] == "True")
    });
    format!("{}/{}", open.count(), gates.len())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}
