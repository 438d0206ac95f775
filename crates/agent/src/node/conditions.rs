//! Conditions of the node: [`conditions`], with upstream's reasons, messages and rules of time.
//!
//! A condition's transition time is that of its last change of status; the heartbeat that of the last
//! report. Conditions that others have put there are not ours and are not returned.

use serde_json::{Value, json};

use super::{Pressure, list};
use crate::observability::events::NodeIs;

/// Ours, and what is to be told of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Conditions {
    pub conditions: Vec<Value>,
    pub told: Vec<NodeIs>,
}

/// A condition, its reason and message, and what is told when it comes to be so.
struct Condition {
    kind: &'static str,
    status: bool,
    reason: &'static str,
    message: String,
    is: NodeIs,
}

fn all(pressure: Pressure, problems: &[String]) -> [Condition; 4] {
    let of = |kind, status: bool, yes: (&'static str, &str, NodeIs), no: (_, _, _)| {
        let (reason, message, is) = if status { yes } else { no };
        Condition { kind, status, reason, message: message.to_owned(), is }
    };
    // What several have to say is written as Go writes a list of errors.
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
                NodeIs::InsufficientMemory,
            ),
            (
                "KubeletHasSufficientMemory",
                "kubelet has sufficient memory available",
                NodeIs::SufficientMemory,
            ),
        ),
        of(
            "DiskPressure",
            pressure.disk,
            ("KubeletHasDiskPressure", "kubelet has disk pressure", NodeIs::DiskPressure),
            ("KubeletHasNoDiskPressure", "kubelet has no disk pressure", NodeIs::NoDiskPressure),
        ),
        of(
            "PIDPressure",
            pressure.pids,
            (
                "KubeletHasInsufficientPID",
                "kubelet has insufficient PID available",
                NodeIs::InsufficientPids,
            ),
            (
                "KubeletHasSufficientPID",
                "kubelet has sufficient PID available",
                NodeIs::SufficientPids,
            ),
        ),
        of(
            "Ready",
            problems.is_empty(),
            ("KubeletReady", "kubelet is posting ready status", NodeIs::Ready),
            ("KubeletNotReady", &trouble, NodeIs::NotReady),
        ),
    ]
}

/// The conditions at `now`, after those the API has. `problems` keep the node from being ready;
/// `first` is whether this agent has not reported before: then it tells what pressure there is, as
/// the kubelet does at its start.
#[must_use]
pub fn conditions(
    before: &Value,
    pressure: Pressure,
    problems: &[String],
    now: &str,
    first: bool,
) -> Conditions {
    let mut told = Vec::new();
    let conditions = all(pressure, problems).into_iter().map(|condition| {
        let Condition { kind, status, reason, message, is } = condition;
        let status = if status { "True" } else { "False" };
        let old = list(before).iter().find(|old| old["type"] == kind);
        let same = old.is_some_and(|old| old["status"] == status);
        let changed = old.is_some() && !same;
        // A node that appears for the first time is not told to have become what it is.
        if changed || (first && kind != "Ready") {
            told.push(is);
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
    Conditions { conditions, told }
}
