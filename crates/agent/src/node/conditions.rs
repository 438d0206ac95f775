//! Conditions of the node: [`conditions`], with upstream's reasons, messages and times.
//!
//! The transition time is that of the last change of status, the heartbeat that of the last report. Conditions of other
//! writers are not returned.

use serde_json::{Value, json};

use super::list;
use crate::observability::events::NodeChange;
use lifecycle::eviction::Pressure;

/// The agent's conditions, and the events to record for them.
#[derive(Debug, Clone, PartialEq)]
pub struct Conditions {
    pub conditions: Vec<Value>,
    pub changes: Vec<NodeChange>,
}

/// A condition with its reason and message, and the event of its change.
struct Condition {
    kind: &'static str,
    status: bool,
    reason: &'static str,
    message: String,
    is: NodeChange,
}

fn all(pressure: Pressure, problems: &[String]) -> [Condition; 4] {
    let of = |kind, status: bool, yes: (&'static str, &str, NodeChange), no: (_, _, _)| {
        let (reason, message, is) = if status { yes } else { no };
        Condition { kind, status, reason, message: message.to_owned(), is }
    };
    // Several errors are formatted as Go formats a list of errors.
    let trouble = match problems {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    };
    [
        of(
            "MemoryPressure",
            pressure.memory,
            (
                "KubeletHasInsufficientMemory",
                "kubelet has insufficient memory available",
                NodeChange::InsufficientMemory,
            ),
            (
                "KubeletHasSufficientMemory",
                "kubelet has sufficient memory available",
                NodeChange::SufficientMemory,
            ),
        ),
        of(
            "DiskPressure",
            pressure.disk,
            ("KubeletHasDiskPressure", "kubelet has disk pressure", NodeChange::DiskPressure),
            (
                "KubeletHasNoDiskPressure",
                "kubelet has no disk pressure",
                NodeChange::NoDiskPressure,
            ),
        ),
        of(
            "PIDPressure",
            pressure.pids,
            (
                "KubeletHasInsufficientPID",
                "kubelet has insufficient PID available",
                NodeChange::InsufficientPids,
            ),
            (
                "KubeletHasSufficientPID",
                "kubelet has sufficient PID available",
                NodeChange::SufficientPids,
            ),
        ),
        of(
            "Ready",
            problems.is_empty(),
            ("KubeletReady", "kubelet is posting ready status", NodeChange::Ready),
            ("KubeletNotReady", &trouble, NodeChange::NotReady),
        ),
    ]
}

/// Returns the conditions at `now`, given those in the API. `problems` keep the node from being ready.
/// `first` is true for the first report of this agent, which records events for existing pressure, as the
/// kubelet does at its start.
#[must_use]
pub fn conditions(
    before: &Value,
    pressure: Pressure,
    problems: &[String],
    now: &str,
    first: bool,
) -> Conditions {
    let mut changes = Vec::new();
    let conditions = all(pressure, problems).into_iter().map(|condition| {
        let Condition { kind, status, reason, message, is } = condition;
        let status = if status { "True" } else { "False" };
        let old = list(before).iter().find(|old| old["type"] == kind);
        let same = old.is_some_and(|old| old["status"] == status);
        let changed = old.is_some() && !same;
        // A new node has no event for becoming what it is.
        if changed || (first && kind != "Ready") {
            changes.push(is);
        }
        let since = old.filter(|_| same).and_then(|old| old["lastTransitionTime"].as_str());
        json!({
            "type": kind,
            "status": status,
            "lastHeartbeatTime": now,
            "lastTransitionTime": since.unwrap_or(now),
            "reason": reason,
            "message": message,
        })
    });
    let conditions = conditions.collect();
    Conditions { conditions, changes }
}
