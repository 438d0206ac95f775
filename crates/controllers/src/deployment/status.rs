//! Computes the status of a deployment.

use std::sync::Arc;

use objects::timestamp::Timestamp;
use serde_json::{Value, json};

use super::plan::{Plan, newest};
use super::rollout::Bounds;
use crate::context::text;
use crate::observe::seconds;
use crate::workload::{conditions, int, replicas, set_condition};

/// Returns true if the status reports all pods as updated and available.
pub(super) fn is_complete(deployment: &Value) -> bool {
    let wanted = replicas(deployment);
    let status = &deployment["status"];
    int(&status["updatedReplicas"]) == wanted
        && int(&status["replicas"]) == wanted
        && int(&status["availableReplicas"]) == wanted
        && int(&status["observedGeneration"]) >= int(&deployment["metadata"]["generation"])
}

pub(super) fn status(
    deployment: &Value,
    sets: &[Arc<Value>],
    plan: &Plan,
    failure: Option<&str>,
    now: Timestamp,
) -> Value {
    let sum = |field: &str| -> i64 { sets.iter().map(|set| int(&set["status"][field])).sum() };
    let new = newest(deployment, sets);
    let total = sum("replicas");
    let available = sum("availableReplicas");
    let updated = new.map_or(0, |set| int(&set["status"]["replicas"]));
    let spec_total: i64 = sets.iter().map(|set| replicas(set)).sum();
    let mut status = json!({"observedGeneration": deployment["metadata"]["generation"]});
    for (field, count) in [
        ("replicas", total),
        ("updatedReplicas", updated),
        ("readyReplicas", sum("readyReplicas")),
        ("availableReplicas", available),
        ("unavailableReplicas", (spec_total - available).max(0)),
    ] {
        if count > 0 {
            status[field] = count.into();
        }
    }
    let collisions = &deployment["status"]["collisionCount"];
    if !collisions.is_null() {
        status["collisionCount"] = collisions.clone();
    }
    let mut conditions = conditions(deployment);
    let bounds = Bounds::of(deployment);
    let enough = available >= bounds.wanted - bounds.unavailable;
    let (reason, message) = if enough {
        ("MinimumReplicasAvailable", "Deployment has minimum availability.")
    } else {
        ("MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    };
    set_condition(&mut conditions, ("Available", enough), (reason, message), now, true);
    match failure {
        Some(message) => {
            let cause = ("ReplicaSetCreateError", message);
            set_condition(&mut conditions, ("ReplicaFailure", true), cause, now, true);
        }
        None => {
            conditions.retain(|condition| condition["type"] != "ReplicaFailure");
            let failing = new.and_then(|set| {
                let failing = set["status"]["conditions"].as_array()?;
                failing.iter().find(|c| c["type"] == "ReplicaFailure")
            });
            if let Some(failing) = failing {
                let cause = (text(&failing["reason"]), text(&failing["message"]));
                set_condition(&mut conditions, ("ReplicaFailure", true), cause, now, true);
            }
        }
    }
    progress(deployment, plan, &status, &mut conditions, now);
    status["conditions"] = conditions.into();
    status
}

/// Sets the `Progressing` condition.
fn progress(
    deployment: &Value,
    plan: &Plan,
    status: &Value,
    conditions: &mut Vec<Value>,
    now: Timestamp,
) {
    let Some(allowed) = deployment["spec"]["progressDeadlineSeconds"].as_i64() else {
        conditions.retain(|condition| condition["type"] != "Progressing");
        return;
    };
    let current = conditions.iter().find(|c| c["type"] == "Progressing").cloned();
    let reason = current.as_ref().map_or("", |c| text(&c["reason"])).to_owned();
    let name = plan.new.as_deref().unwrap_or_default();
    if deployment["spec"]["paused"] == true {
        if reason != "ProgressDeadlineExceeded" {
            set_unknown(conditions, ("DeploymentPaused", "Deployment is paused"), now);
        }
        return;
    }
    if reason == "DeploymentPaused" {
        set_unknown(conditions, ("DeploymentResumed", "Deployment is resumed"), now);
        return;
    }
    if plan.created {
        let cause = format!("Created new replica set {name:?}");
        let cause = ("NewReplicaSetCreated", cause.as_str());
        set_condition(conditions, ("Progressing", true), cause, now, true);
        return;
    }
    let mut after = deployment.clone();
    after["status"] = status.clone();
    let old = &deployment["status"];
    let count = |status: &Value, field: &str| int(&status[field]);
    let moved = count(status, "updatedReplicas") > count(old, "updatedReplicas")
        || count(status, "readyReplicas") > count(old, "readyReplicas")
        || count(status, "availableReplicas") > count(old, "availableReplicas")
        || count(status, "replicas") - count(status, "updatedReplicas")
            < count(old, "replicas") - count(old, "updatedReplicas");
    // A completed rollout stays complete, whatever happens to its pods.
    let over = reason == "NewReplicaSetAvailable"
        && count(status, "replicas") == count(status, "updatedReplicas")
        && plan.actions.is_empty();
    if is_complete(&after) {
        let cause = format!("ReplicaSet {name:?} has successfully progressed.");
        let cause = ("NewReplicaSetAvailable", cause.as_str());
        set_condition(conditions, ("Progressing", true), cause, now, true);
    } else if over {
    } else if moved || current.is_none() {
        let cause = format!("ReplicaSet {name:?} is progressing.");
        // `lastUpdateTime` records the last progress.
        conditions.retain(|condition| condition["type"] != "Progressing");
        let cause = ("ReplicaSetUpdated", cause.as_str());
        set_condition(conditions, ("Progressing", true), cause, now, true);
        if let (Some(old), Some(new)) = (&current, conditions.last_mut())
            && old["status"] == "True"
        {
            new["lastTransitionTime"] = old["lastTransitionTime"].clone();
        }
    } else if let Some(current) = current {
        let since = seconds(text(&current["lastUpdateTime"])).unwrap_or(now.seconds());
        if reason != "NewReplicaSetAvailable" && since + allowed < now.seconds() {
            let cause = format!("ReplicaSet {name:?} has timed out progressing.");
            let cause = ("ProgressDeadlineExceeded", cause.as_str());
            set_condition(conditions, ("Progressing", false), cause, now, true);
        } else if reason == "NewReplicaSetAvailable" {
            let cause = format!("ReplicaSet {name:?} is progressing.");
            let cause = ("ReplicaSetUpdated", cause.as_str());
            set_condition(conditions, ("Progressing", true), cause, now, true);
        }
    }
}

fn set_unknown(conditions: &mut Vec<Value>, (reason, message): (&str, &str), now: Timestamp) {
    set_condition(conditions, ("Progressing", true), (reason, message), now, true);
    if let Some(set) = conditions.iter_mut().find(|c| c["type"] == "Progressing") {
        set["status"] = "Unknown".into();
    }
}
