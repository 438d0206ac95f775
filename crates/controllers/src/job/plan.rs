//! What a job does next: [`plan`], a function of it and its pods.

use std::collections::BTreeSet;
use std::sync::Arc;

use objects::timestamp::Timestamp;
use serde_json::{Value, json};

use super::{TRACKING, indexes};
use crate::observe::{Phase, Pod, Seconds, seconds};
use crate::workload::{conditions, int};
use crate::world::text;

/// How long the first failed pod is followed by nothing; doubled with each. Upstream's figures.
const FIRST_DELAY: Seconds = 10;
const LONGEST_DELAY: Seconds = 360;

/// How many pods come at a time. Upstream's figure.
const BURST: i64 = 500;

#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) status: Value,
    /// Pods to make, each for an index if the job has them.
    pub(super) create: Vec<Option<i64>>,
    pub(super) delete: Vec<Arc<Pod>>,
    /// Pods that are counted and may go.
    pub(super) release: Vec<Arc<Pod>>,
    pub(super) events: Vec<(bool, &'static str, String)>,
    pub(super) again: Option<Seconds>,
}

fn holds(conditions: &[Value], kind: &str) -> bool {
    conditions.iter().any(|c| c["type"] == kind && c["status"] == "True")
}

fn add(conditions: &mut Vec<Value>, kind: &str, reason: &str, message: &str, now: Timestamp) {
    let time = now.to_seconds_text();
    let mut new = json!({
        "type": kind, "status": "True", "lastProbeTime": time, "lastTransitionTime": time,
    });
    if !reason.is_empty() {
        new["reason"] = reason.into();
        new["message"] = message.into();
    }
    conditions.retain(|condition| condition["type"] != kind);
    conditions.push(new);
}

/// A pod that counts as failed: one that is deleted never comes to a good end.
fn has_failed(pod: &Pod) -> bool {
    pod.phase == Phase::Failed || (pod.deleting.is_some() && pod.phase != Phase::Succeeded)
}

/// What is known of the pods that have ended.
struct Tally {
    succeeded: i64,
    failed: i64,
    /// Written into the status, not yet numbers.
    uncounted: [BTreeSet<String>; 2],
    completed: BTreeSet<i64>,
}

fn tally(job: &Value, pods: &[Arc<Pod>], release: &mut Vec<Arc<Pod>>) -> Tally {
    let status = &job["status"];
    let listed = |field: &str| -> BTreeSet<String> {
        let uids = status["uncountedTerminatedPods"][field].as_array();
        uids.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut tally = Tally {
        succeeded: int(&status["succeeded"]),
        failed: int(&status["failed"]),
        uncounted: [listed("succeeded"), listed("failed")],
        completed: indexes::parse(text(&status["completedIndexes"])),
    };
    let indexed = job["spec"]["completionMode"] == "Indexed";
    let completions = job["spec"]["completions"].as_i64().unwrap_or(i64::MAX);
    let is_tracked = |pod: &Pod| pod.finalizers.iter().any(|finalizer| finalizer == TRACKING);
    // Those whose finalizer has gone become numbers.
    let [succeeded, failed] = &mut tally.uncounted;
    for (uids, count) in [(succeeded, &mut tally.succeeded), (failed, &mut tally.failed)] {
        uids.retain(|uid| {
            let tracked = pods.iter().any(|pod| pod.uid == *uid && is_tracked(pod));
            *count += i64::from(!tracked);
            tracked
        });
    }
    for pod in pods.iter().filter(|pod| is_tracked(pod)) {
        let known = tally.uncounted.iter().any(|uids| uids.contains(&pod.uid));
        if pod.phase == Phase::Succeeded {
            if let Some(index) = pod.completion_index.filter(|index| *index < completions) {
                tally.completed.insert(index);
            }
            if !known {
                tally.uncounted[0].insert(pod.uid.clone());
            }
            release.push(pod.clone());
        } else if has_failed(pod) {
            if !known {
                tally.uncounted[1].insert(pod.uid.clone());
            }
            release.push(pod.clone());
        }
    }
    if indexed {
        // Of several pods of an index one counts.
        let done = i64::try_from(tally.completed.len()).unwrap_or(i64::MAX);
        tally.succeeded = done - i64::try_from(tally.uncounted[0].len()).unwrap_or(0);
        if tally.succeeded < 0 {
            tally.succeeded = 0;
        }
    }
    tally
}

pub(super) fn plan(job: &Value, pods: &[Arc<Pod>], now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let spec = &job["spec"];
    let mut conditions = conditions(job);
    let mut status = job["status"].clone();
    if status.is_null() {
        status = json!({});
    }
    let tally = tally(job, pods, &mut plan.release);
    let size = |set: &BTreeSet<String>| i64::try_from(set.len()).unwrap_or(i64::MAX);
    let indexed = spec["completionMode"] == "Indexed";
    let succeeded = if indexed {
        i64::try_from(tally.completed.len()).unwrap_or(i64::MAX)
    } else {
        tally.succeeded + size(&tally.uncounted[0])
    };
    let failed = tally.failed + size(&tally.uncounted[1]);
    let active: Vec<&Arc<Pod>> = pods.iter().filter(|pod| pod.is_active()).collect();
    let terminating = pods.iter().filter(|p| p.deleting.is_some() && !p.is_finished()).count();
    let finished = holds(&conditions, "Complete") || holds(&conditions, "Failed");
    let suspended = spec["suspend"] == true;
    if !finished && !suspended && status["startTime"].is_null() {
        status["startTime"] = now.to_seconds_text().into();
    }
    if !finished {
        judge(job, &mut conditions, &status, (succeeded, failed), &active, now, &mut plan);
    }
    let going_down =
        holds(&conditions, "FailureTarget") || holds(&conditions, "SuccessCriteriaMet");
    let mut left = active.len();
    if going_down || finished {
        plan.delete = active.iter().map(|pod| (*pod).clone()).collect();
    } else if suspended {
        plan.delete = active.iter().map(|pod| (*pod).clone()).collect();
        left = 0;
        suspend(&mut conditions, true, now, &mut plan);
        if let Some(status) = status.as_object_mut() {
            status.remove("startTime");
        }
    } else {
        suspend(&mut conditions, false, now, &mut plan);
        let last_failure = pods.iter().filter(|p| has_failed(p)).filter_map(|p| p.finished).max();
        populate(job, &active, (succeeded, failed), &tally.completed, last_failure, now, &mut plan);
    }
    let settled = tally.uncounted.iter().all(BTreeSet::is_empty) && plan.release.is_empty();
    if going_down && !finished && left == 0 && terminating == 0 && settled {
        end(&mut conditions, &mut status, now, &mut plan);
    }
    let finished = holds(&conditions, "Complete") || holds(&conditions, "Failed");
    let active_now = if finished || going_down || suspended {
        0
    } else {
        i64::try_from(active.len()).unwrap_or(0) - i64::try_from(plan.delete.len()).unwrap_or(0)
    };
    let ready = active.iter().filter(|pod| pod.is_ready()).count();
    let ready = if active_now == 0 { 0 } else { i64::try_from(ready).unwrap_or(0) };
    let count = |status: &mut Value, field: &str, count: i64| match status.as_object_mut() {
        Some(map) if count == 0 => {
            map.remove(field);
        }
        Some(map) => {
            map.insert(field.to_owned(), count.into());
        }
        None => {}
    };
    count(&mut status, "active", active_now);
    count(&mut status, "succeeded", tally.succeeded);
    count(&mut status, "failed", tally.failed);
    status["ready"] = ready.into();
    status["terminating"] = if finished { json!(0) } else { json!(terminating) };
    let mut uncounted = json!({});
    for (field, uids) in ["succeeded", "failed"].into_iter().zip(&tally.uncounted) {
        if !uids.is_empty() {
            uncounted[field] = json!(uids);
        }
    }
    status["uncountedTerminatedPods"] = uncounted;
    if indexed && !tally.completed.is_empty() {
        status["completedIndexes"] = indexes::render(&tally.completed).into();
    }
    if !conditions.is_empty() {
        status["conditions"] = conditions.into();
    }
    plan.status = status;
    plan
}

/// Whether the job has got where it was going, or cannot.
fn judge(
    job: &Value,
    conditions: &mut Vec<Value>,
    status: &Value,
    (succeeded, failed): (i64, i64),
    active: &[&Arc<Pod>],
    now: Timestamp,
    plan: &mut Plan,
) {
    if holds(conditions, "FailureTarget") || holds(conditions, "SuccessCriteriaMet") {
        return;
    }
    let spec = &job["spec"];
    let limit = spec["backoffLimit"].as_i64().unwrap_or(6);
    let restarts: i64 = active.iter().map(|pod| pod.restarts).sum();
    let on_failure = spec["template"]["spec"]["restartPolicy"] == "OnFailure";
    let too_often = on_failure && restarts > 0 && failed + restarts > limit;
    if failed > limit || too_often {
        let message = "Job has reached the specified backoff limit";
        add(conditions, "FailureTarget", "BackoffLimitExceeded", message, now);
        return;
    }
    let started = seconds(text(&status["startTime"]));
    if let (Some(allowed), Some(started)) = (spec["activeDeadlineSeconds"].as_i64(), started)
        && spec["suspend"] != true
    {
        let left = started + allowed - now.seconds();
        if left <= 0 {
            let message = "Job was active longer than specified deadline";
            add(conditions, "FailureTarget", "DeadlineExceeded", message, now);
            return;
        }
        plan.again = Some(left);
    }
    let enough = match spec["completions"].as_i64() {
        Some(completions) => succeeded >= completions,
        None => succeeded > 0 && active.is_empty(),
    };
    if enough && spec["suspend"] != true || spec["completions"] == 0 {
        let message = "Reached expected number of succeeded pods";
        add(conditions, "SuccessCriteriaMet", "CompletionsReached", message, now);
    }
}

fn suspend(conditions: &mut Vec<Value>, on: bool, now: Timestamp, plan: &mut Plan) {
    let time = now.to_seconds_text();
    let there = conditions.iter_mut().find(|condition| condition["type"] == "Suspended");
    let (status, reason, message, event) = if on {
        ("True", "JobSuspended", "Job suspended", "Suspended")
    } else {
        ("False", "JobResumed", "Job resumed", "Resumed")
    };
    match there {
        Some(condition) if condition["status"] == status => return,
        Some(condition) => {
            *condition = json!({
                "type": "Suspended", "status": status, "reason": reason, "message": message,
                "lastProbeTime": time, "lastTransitionTime": time,
            });
        }
        None if !on => return,
        None => add(conditions, "Suspended", reason, message, now),
    }
    plan.events.push((false, event, message.to_owned()));
}

/// Makes as many pods as are missing, later if the last ones failed.
fn populate(
    job: &Value,
    active: &[&Arc<Pod>],
    (succeeded, failed): (i64, i64),
    completed: &BTreeSet<i64>,
    last_failure: Option<Seconds>,
    now: Timestamp,
    plan: &mut Plan,
) {
    let spec = &job["spec"];
    let parallelism = spec["parallelism"].as_i64().unwrap_or(1);
    let there = i64::try_from(active.len()).unwrap_or(i64::MAX);
    let wanted = match spec["completions"].as_i64() {
        Some(completions) => parallelism.min(completions - succeeded).max(0),
        None if succeeded > 0 => there,
        None => parallelism,
    };
    if there > wanted {
        let mut excess: Vec<Arc<Pod>> = active.iter().map(|pod| (*pod).clone()).collect();
        excess.sort_by_key(|pod| (pod.is_ready(), std::cmp::Reverse(pod.created)));
        excess.truncate(usize::try_from(there - wanted).unwrap_or(0));
        plan.delete = excess;
        return;
    }
    if there == wanted {
        return;
    }
    if failed > 0
        && let Some(last) = last_failure
    {
        let doublings = u32::try_from(failed - 1).unwrap_or(0).min(10);
        let delay = (FIRST_DELAY << doublings).min(LONGEST_DELAY);
        let wait = last + delay - now.seconds();
        if wait > 0 {
            plan.again = Some(plan.again.map_or(wait, |again| again.min(wait)));
            return;
        }
    }
    let count = (wanted - there).min(BURST);
    if spec["completionMode"] == "Indexed" {
        let completions = spec["completions"].as_i64().unwrap_or(0);
        let busy: BTreeSet<i64> = active.iter().filter_map(|pod| pod.completion_index).collect();
        let free = (0..completions).filter(|i| !completed.contains(i) && !busy.contains(i));
        plan.create = free.take(usize::try_from(count).unwrap_or(0)).map(Some).collect();
    } else {
        plan.create = vec![None; usize::try_from(count).unwrap_or(0)];
    }
}

/// The job is over: what was aimed at is so.
fn end(conditions: &mut Vec<Value>, status: &mut Value, now: Timestamp, plan: &mut Plan) {
    let target = conditions.iter().find(|c| c["type"] == "FailureTarget").cloned();
    match target {
        Some(target) => {
            let (reason, message) = (text(&target["reason"]), text(&target["message"]));
            add(conditions, "Failed", reason, message, now);
            let event = match reason {
                "DeadlineExceeded" => "DeadlineExceeded",
                _ => "BackoffLimitExceeded",
            };
            plan.events.push((true, event, message.to_owned()));
        }
        None => {
            let message = "Reached expected number of succeeded pods";
            add(conditions, "Complete", "CompletionsReached", message, now);
            status["completionTime"] = now.to_seconds_text().into();
            plan.events.push((false, "Completed", "Job completed".to_owned()));
        }
    }
    plan.again = None;
}

#[cfg(test)]
mod tests;
