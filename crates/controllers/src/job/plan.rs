//! Plans the next step of a job: [`plan`], a function of the job and its pods.
//!
//! ```text
//!                      outcome: failed ──▶ FailureTarget ─────────┐
//!   (running) ◀─▶ Suspended                                       ├─ pods deleted and counted ──▶ Failed
//!                      outcome: success ─▶ SuccessCriteriaMet ────┘                              Complete
//! ```

use std::collections::HashSet;
use std::sync::Arc;

use objects::timestamp::Timestamp;
use serde_json::{Value, json};

use super::count::{Count, JobResult};
use super::scale::{NewPod, UnfinishedPods, scale};
use super::spec::{JobSpec, is_tracked};
use crate::context::text;
use crate::observe::{Pod, Seconds, seconds};
use crate::workload::conditions;

/// An event about the job.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct JobEvent {
    pub(super) warning: bool,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl JobEvent {
    fn normal(reason: &'static str, message: &str) -> JobEvent {
        JobEvent { warning: false, reason, message: message.to_owned() }
    }

    fn warning(reason: &'static str, message: &str) -> JobEvent {
        JobEvent { warning: true, ..JobEvent::normal(reason, message) }
    }
}

#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) status: Value,
    pub(super) create: Vec<NewPod>,
    pub(super) delete: Vec<Arc<Pod>>,
    /// Counted pods whose finalizers can be removed.
    pub(super) release: Vec<Arc<Pod>>,
    pub(super) events: Vec<JobEvent>,
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

/// The decided outcome of a job, with the reason and message of its condition.
#[derive(Debug, PartialEq, Eq)]
struct JobOutcome {
    end: JobResult,
    reason: String,
    message: String,
}

impl JobOutcome {
    fn new(end: JobResult, reason: &str, message: &str) -> JobOutcome {
        JobOutcome { end, reason: reason.to_owned(), message: message.to_owned() }
    }

    /// Returns the outcome that the conditions record.
    fn of(conditions: &[Value]) -> Option<JobOutcome> {
        let set =
            |kind: &str| conditions.iter().find(|c| c["type"] == kind && c["status"] == "True");
        let (end, found) = match (set("SuccessCriteriaMet"), set("FailureTarget")) {
            (Some(met), _) => (JobResult::Complete, met),
            (None, Some(target)) => (JobResult::Failed, target),
            (None, None) => return None,
        };
        Some(JobOutcome::new(end, text(&found["reason"]), text(&found["message"])))
    }

    /// Returns the condition that announces the outcome, or the final one once the pods are gone.
    fn condition(&self, is_over: bool, now: Timestamp) -> Value {
        let kind = match (self.end, is_over) {
            (JobResult::Complete, false) => "SuccessCriteriaMet",
            (JobResult::Complete, true) => "Complete",
            (JobResult::Failed, false) => "FailureTarget",
            (JobResult::Failed, true) => "Failed",
        };
        condition(kind, "True", &self.reason, &self.message, now)
    }
}

const POD_FAILURE_POLICY: &str = "PodFailurePolicy";
const BACKOFF_LIMIT: &str = "BackoffLimitExceeded";
const DEADLINE: &str = "DeadlineExceeded";
const MAX_FAILED_INDEXES: &str = "MaxFailedIndexesExceeded";
const FAILED_INDEXES: &str = "FailedIndexes";

/// The reasons for which jobs fail.
const FAILURES: [&str; 5] =
    [POD_FAILURE_POLICY, BACKOFF_LIMIT, DEADLINE, MAX_FAILED_INDEXES, FAILED_INDEXES];

/// Plans the next step of an unfinished job.
pub(super) fn plan(job: &Value, pods: &[Arc<Pod>], now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let spec = JobSpec::of(job);
    let unfinished = UnfinishedPods::of(pods);
    let mut count = Count::of(&spec, &job["status"], pods);
    let mut conditions = conditions(job);
    let started = started(job, &spec, now);
    let left = time_left(&spec, started.as_deref(), now);
    let before = JobOutcome::of(&conditions);
    let is_going = before.is_some();
    let outcome = before.or_else(|| judge(&spec, &count, pods, &unfinished, left));
    let previous_failures = count.previous_failures(&spec, pods);
    if outcome.is_some() {
        plan.delete = unfinished.active.clone();
    } else {
        let scaling = scale(&spec, pods, &unfinished, &count, &previous_failures, now.seconds());
        plan.events.extend(suspend(&mut conditions, spec.suspended, now));
        plan.again = [left, scaling.again].into_iter().flatten().min();
        // Pods that are scaled down do not count as failed.
        plan.release = scaling.remove.iter().filter(|pod| is_tracked(pod)).cloned().collect();
        (plan.create, plan.delete) = (scaling.create, scaling.remove);
    }
    let end = outcome.as_ref().map(|outcome| outcome.end);
    plan.release.extend(count.settle(&spec, pods, end, &previous_failures));
    plan.status = status(job, &spec, &unfinished, &count, &plan.delete);
    let is_waiting = spec.suspended && outcome.is_none();
    let started = started.unwrap_or_else(|| now.to_seconds_text());
    put(&mut plan.status, "startTime", (!is_waiting).then(|| started.into()));
    let is_empty = unfinished.active.is_empty() && unfinished.terminating.is_empty();
    let is_over = is_going && is_empty && plan.release.is_empty() && count.is_settled();
    if let Some(outcome) = outcome.filter(|_| !is_going || is_over) {
        set(&mut conditions, outcome.condition(is_over, now));
        if is_over {
            plan.events.extend(final_events(&outcome, &spec, &count));
            let complete = outcome.end == JobResult::Complete;
            let completed = complete.then(|| now.to_seconds_text().into());
            put(&mut plan.status, "completionTime", completed);
        }
    }
    put(&mut plan.status, "conditions", (!conditions.is_empty()).then(|| conditions.into()));
    plan
}

/// Returns the start time of the job, which may be now. A suspended job has not started.
fn started(job: &Value, spec: &JobSpec<'_>, now: Timestamp) -> Option<String> {
    let started = job["status"]["startTime"].as_str().map(str::to_owned);
    started.or_else(|| (!spec.suspended).then(|| now.to_seconds_text()))
}

/// Returns the remaining run time of the job, if it is limited.
fn time_left(spec: &JobSpec<'_>, started: Option<&str>, now: Timestamp) -> Option<Seconds> {
    let allowed = spec.active_deadline.filter(|_| !spec.suspended)?;
    Some(seconds(started?)? + allowed - now.seconds())
}

/// Returns the outcome if the job has reached or missed its goal.
fn judge(
    spec: &JobSpec<'_>,
    count: &Count,
    pods: &[Arc<Pod>],
    unfinished: &UnfinishedPods,
    left: Option<Seconds>,
) -> Option<JobOutcome> {
    let failed =
        |reason: &str, message: &str| Some(JobOutcome::new(JobResult::Failed, reason, message));
    if let Some(message) = spec.fatal(pods) {
        return failed(POD_FAILURE_POLICY, &message);
    }
    if count.failed() > spec.backoff_limit || spec.restarts_too_often(pods) {
        return failed(BACKOFF_LIMIT, "Job has reached the specified backoff limit");
    }
    if left.is_some_and(|left| left <= 0) {
        return failed(DEADLINE, "Job was active longer than specified deadline");
    }
    let given_up = count.failed_indexes.count();
    if spec.max_failed_indexes.is_some_and(|most| given_up > most) {
        let message = "Job has exceeded the specified maximal number of failed indexes";
        return failed(MAX_FAILED_INDEXES, message);
    }
    if given_up > 0 && given_up + count.done.count() >= spec.width() {
        return failed(FAILED_INDEXES, "Job has failed indexes");
    }
    if let Some(message) = spec.success(&count.done) {
        return Some(JobOutcome::new(JobResult::Complete, "SuccessPolicy", &message));
    }
    let is_done = match spec.completions {
        Some(completions) => count.succeeded() >= completions,
        None => count.succeeded() > 0 && (unfinished.active.is_empty() || spec.suspended),
    };
    let message = "Reached expected number of succeeded pods";
    is_done.then(|| JobOutcome::new(JobResult::Complete, "CompletionsReached", message))
}

/// Updates the `Suspended` condition and returns an event if it changed.
fn suspend(conditions: &mut Vec<Value>, on: bool, now: Timestamp) -> Option<JobEvent> {
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
    Some(JobEvent::normal(event, message))
}

fn put(status: &mut Value, field: &str, value: Option<Value>) {
    let Some(status) = status.as_object_mut() else { return };
    match value {
        Some(value) => status.insert(field.to_owned(), value),
        None => status.remove(field),
    };
}

/// Returns the status fields about pods.
fn status(
    job: &Value,
    spec: &JobSpec<'_>,
    unfinished: &UnfinishedPods,
    count: &Count,
    delete: &[Arc<Pod>],
) -> Value {
    let mut status = job["status"].clone();
    if status.is_null() {
        status = json!({});
    }
    for (field, value) in count.fields(spec) {
        put(&mut status, field, value);
    }
    let gone: HashSet<&str> = delete.iter().map(|pod| pod.uid.as_str()).collect();
    let remaining = unfinished.active.iter().filter(|pod| !gone.contains(pod.uid.as_str()));
    let remaining: Vec<&Arc<Pod>> = remaining.collect();
    put(&mut status, "active", (!remaining.is_empty()).then(|| remaining.len().into()));
    status["ready"] = remaining.iter().filter(|pod| pod.is_ready()).count().into();
    status["terminating"] = (unfinished.terminating.len() + delete.len()).into();
    status
}

/// Returns the events of a finished job.
fn final_events(outcome: &JobOutcome, spec: &JobSpec<'_>, count: &Count) -> Vec<JobEvent> {
    if outcome.end == JobResult::Failed {
        let known = FAILURES.into_iter().find(|known| *known == outcome.reason);
        return vec![JobEvent::warning(known.unwrap_or("Failed"), &outcome.message)];
    }
    let mut events = Vec::new();
    if spec.completions.is_some_and(|completions| count.succeeded() > completions) {
        let message = "Too many succeeded pods running after completion count reached";
        events.push(JobEvent::warning("TooManySucceededPods", message));
    }
    events.push(JobEvent::normal("Completed", "Job completed"));
    events
}

#[cfg(test)]
mod tests;
