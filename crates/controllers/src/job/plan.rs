//! What a job does next: [`plan`], a function of it and its pods.
//!
//! ```text
//!                      failed for good ──▶ FailureTarget ─────────┐
//!   (running) ◀─▶ Suspended                                       ├─ its pods go, are counted ──▶ Failed
//!                      done, or enough ──▶ SuccessCriteriaMet ────┘                              Complete
//! ```

use std::collections::HashSet;
use std::sync::Arc;

use objects::timestamp::Timestamp;
use serde_json::{Value, json};

use super::count::{Count, End};
use super::scale::{NewPod, Present, scale};
use super::terms::{Terms, is_tracked};
use crate::observe::{Pod, Seconds, seconds};
use crate::workload::conditions;
use crate::world::text;

/// An event: whether it is a warning, its reason and its message.
pub(super) type Told = (bool, &'static str, String);

#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) status: Value,
    pub(super) create: Vec<NewPod>,
    pub(super) delete: Vec<Arc<Pod>>,
    /// Pods that are counted and may go.
    pub(super) release: Vec<Arc<Pod>>,
    pub(super) events: Vec<Told>,
    pub(super) again: Option<Seconds>,
}

fn holds(conditions: &[Value], kind: &str) -> bool {
    conditions.iter().any(|c| c["type"] == kind && c["status"] == "True")
}

pub(super) fn is_finished(job: &Value) -> bool {
    let conditions = conditions(job);
    holds(&conditions, "Complete") || holds(&conditions, "Failed")
}

fn condition(kind: &str, status: &str, reason: &str, message: &str, now: Timestamp) -> Value {
    let time = now.to_seconds_text();
    json!({
        "type": kind, "status": status, "reason": reason, "message": message,
        "lastProbeTime": time, "lastTransitionTime": time,
    })
}

fn set(conditions: &mut Vec<Value>, new: Value) {
    match conditions.iter_mut().find(|condition| condition["type"] == new["type"]) {
        Some(there) => *there = new,
        None => conditions.push(new),
    }
}

/// What the job is to end as, why, and how that is said.
#[derive(Debug, PartialEq, Eq)]
struct Goal {
    end: End,
    reason: String,
    message: String,
}

impl Goal {
    fn new(end: End, reason: &str, message: &str) -> Goal {
        Goal { end, reason: reason.to_owned(), message: message.to_owned() }
    }

    /// The goal that was set, if one was.
    fn of(conditions: &[Value]) -> Option<Goal> {
        let set =
            |kind: &str| conditions.iter().find(|c| c["type"] == kind && c["status"] == "True");
        let (end, found) = match (set("SuccessCriteriaMet"), set("FailureTarget")) {
            (Some(met), _) => (End::Complete, met),
            (None, Some(target)) => (End::Failed, target),
            (None, None) => return None,
        };
        Some(Goal::new(end, text(&found["reason"]), text(&found["message"])))
    }

    /// As a condition before the pods are gone, and as one after it.
    fn condition(&self, is_over: bool, now: Timestamp) -> Value {
        let kind = match (self.end, is_over) {
            (End::Complete, false) => "SuccessCriteriaMet",
            (End::Complete, true) => "Complete",
            (End::Failed, false) => "FailureTarget",
            (End::Failed, true) => "Failed",
        };
        condition(kind, "True", &self.reason, &self.message, now)
    }
}

const POD_FAILURE_POLICY: &str = "PodFailurePolicy";
const BACKOFF_LIMIT: &str = "BackoffLimitExceeded";
const DEADLINE: &str = "DeadlineExceeded";
const MAX_FAILED_INDEXES: &str = "MaxFailedIndexesExceeded";
const FAILED_INDEXES: &str = "FailedIndexes";

/// Why jobs fail.
const FAILURES: [&str; 5] =
    [POD_FAILURE_POLICY, BACKOFF_LIMIT, DEADLINE, MAX_FAILED_INDEXES, FAILED_INDEXES];

/// What to do about a job that is not finished.
pub(super) fn plan(job: &Value, pods: &[Arc<Pod>], now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let terms = Terms::of(job);
    let present = Present::of(pods);
    let mut count = Count::of(&terms, &job["status"], pods);
    let mut conditions = conditions(job);
    let started = started(job, &terms, now);
    let left = time_left(&terms, started.as_deref(), now);
    let before = Goal::of(&conditions);
    let is_going = before.is_some();
    let goal = before.or_else(|| judge(&terms, &count, pods, &present, left));
    let forerunners = count.forerunners(&terms, pods);
    if goal.is_some() {
        plan.delete = present.active.clone();
    } else {
        let scaling = scale(&terms, pods, &present, &count, &forerunners, now.seconds());
        plan.events.extend(suspend(&mut conditions, terms.suspended, now));
        plan.again = [left, scaling.again].into_iter().flatten().min();
        // Pods that are taken away are no failures.
        plan.release = scaling.remove.iter().filter(|pod| is_tracked(pod)).cloned().collect();
        (plan.create, plan.delete) = (scaling.create, scaling.remove);
    }
    let end = goal.as_ref().map(|goal| goal.end);
    plan.release.extend(count.settle(&terms, pods, end, &forerunners));
    plan.status = status(job, &terms, &present, &count, &plan.delete);
    let is_waiting = terms.suspended && goal.is_none();
    let started = started.unwrap_or_else(|| now.to_seconds_text());
    put(&mut plan.status, "startTime", (!is_waiting).then(|| started.into()));
    let is_empty = present.active.is_empty() && present.terminating.is_empty();
    let is_over = is_going && is_empty && plan.release.is_empty() && count.is_settled();
    if let Some(goal) = goal.filter(|_| !is_going || is_over) {
        set(&mut conditions, goal.condition(is_over, now));
        if is_over {
            plan.events.extend(farewell(&goal, &terms, &count));
            let complete = goal.end == End::Complete;
            let completed = complete.then(|| now.to_seconds_text().into());
            put(&mut plan.status, "completionTime", completed);
        }
    }
    put(&mut plan.status, "conditions", (!conditions.is_empty()).then(|| conditions.into()));
    plan
}

/// When the job started, which may be now; one that waits has not.
fn started(job: &Value, terms: &Terms<'_>, now: Timestamp) -> Option<String> {
    let started = job["status"]["startTime"].as_str().map(str::to_owned);
    started.or_else(|| (!terms.suspended).then(|| now.to_seconds_text()))
}

/// How long the job may still run, if that is limited.
fn time_left(terms: &Terms<'_>, started: Option<&str>, now: Timestamp) -> Option<Seconds> {
    let allowed = terms.active_deadline.filter(|_| !terms.suspended)?;
    Some(seconds(started?)? + allowed - now.seconds())
}

/// Whether the job has got where it was going, or cannot.
fn judge(
    terms: &Terms<'_>,
    count: &Count,
    pods: &[Arc<Pod>],
    present: &Present,
    left: Option<Seconds>,
) -> Option<Goal> {
    let failed = |reason: &str, message: &str| Some(Goal::new(End::Failed, reason, message));
    if let Some(message) = terms.fatal(pods) {
        return failed(POD_FAILURE_POLICY, &message);
    }
    if count.failed() > terms.backoff_limit || terms.restarts_too_often(pods) {
        return failed(BACKOFF_LIMIT, "Job has reached the specified backoff limit");
    }
    if left.is_some_and(|left| left <= 0) {
        return failed(DEADLINE, "Job was active longer than specified deadline");
    }
    let given_up = count.failed_indexes.count();
    if terms.max_failed_indexes.is_some_and(|most| given_up > most) {
        let message = "Job has exceeded the specified maximal number of failed indexes";
        return failed(MAX_FAILED_INDEXES, message);
    }
    if given_up > 0 && given_up + count.done.count() >= terms.width() {
        return failed(FAILED_INDEXES, "Job has failed indexes");
    }
    if let Some(message) = terms.success(&count.done) {
        return Some(Goal::new(End::Complete, "SuccessPolicy", &message));
    }
    let is_done = match terms.completions {
        Some(completions) => count.succeeded() >= completions,
        None => count.succeeded() > 0 && (present.active.is_empty() || terms.suspended),
    };
    let message = "Reached expected number of succeeded pods";
    is_done.then(|| Goal::new(End::Complete, "CompletionsReached", message))
}

/// Notes whether the job is suspended, and tells of it if that is new.
fn suspend(conditions: &mut Vec<Value>, on: bool, now: Timestamp) -> Option<Told> {
    let (status, reason, message, event) = if on {
        ("True", "JobSuspended", "Job suspended", "Suspended")
    } else {
        ("False", "JobResumed", "Job resumed", "Resumed")
    };
    let was = conditions.iter().find(|condition| condition["type"] == "Suspended");
    if was.map_or("False", |was| text(&was["status"])) == status {
        return None;
    }
    set(conditions, condition("Suspended", status, reason, message, now));
    Some((false, event, message.to_owned()))
}

fn put(status: &mut Value, field: &str, value: Option<Value>) {
    let Some(status) = status.as_object_mut() else { return };
    match value {
        Some(value) => status.insert(field.to_owned(), value),
        None => status.remove(field),
    };
}

/// What the status says of pods.
fn status(
    job: &Value,
    terms: &Terms<'_>,
    present: &Present,
    count: &Count,
    delete: &[Arc<Pod>],
) -> Value {
    let mut status = job["status"].clone();
    if status.is_null() {
        status = json!({});
    }
    for (field, value) in count.fields(terms) {
        put(&mut status, field, value);
    }
    let gone: HashSet<&str> = delete.iter().map(|pod| pod.uid.as_str()).collect();
    let stays = present.active.iter().filter(|pod| !gone.contains(pod.uid.as_str()));
    let stays: Vec<&Arc<Pod>> = stays.collect();
    put(&mut status, "active", (!stays.is_empty()).then(|| stays.len().into()));
    status["ready"] = stays.iter().filter(|pod| pod.is_ready()).count().into();
    status["terminating"] = (present.terminating.len() + delete.len()).into();
    status
}

/// What is told of a job that is over.
fn farewell(goal: &Goal, terms: &Terms<'_>, count: &Count) -> Vec<Told> {
    if goal.end == End::Failed {
        let known = FAILURES.into_iter().find(|known| *known == goal.reason);
        return vec![(true, known.unwrap_or("Failed"), goal.message.clone())];
    }
    let mut told = Vec::new();
    if terms.completions.is_some_and(|completions| count.succeeded() > completions) {
        let message = "Too many succeeded pods running after completion count reached";
        told.push((true, "TooManySucceededPods", message.to_owned()));
    }
    told.push((false, "Completed", "Job completed".to_owned()));
    told
}

#[cfg(test)]
mod tests;
