//! Validates the status of a job and its changes. A rule applies only if its fields changed, so
//! that jobs that were written before the rule can still be updated.

use std::collections::BTreeSet;

use serde_json::Value;

use super::super::checks::{IMMUTABLE, is_same, non_negative};
use crate::cursor::{Causes, Cursor};
use crate::timestamp::Timestamp;

/// A job and its old version, for checks of the status.
struct Change<'a> {
    new: &'a Value,
    old: &'a Value,
}

impl Change<'_> {
    fn changed(&self, field: &str) -> bool {
        !is_same(&self.new["status"][field], &self.old["status"][field])
    }

    /// Reports whether the condition was added or removed.
    fn turned(&self, condition: &str) -> bool {
        holds(self.new, condition) != holds(self.old, condition)
    }

    fn finished_turned(&self) -> bool {
        is_finished(self.new) != is_finished(self.old)
    }
}

/// Reports whether a condition of a job is true.
pub(super) fn holds(job: &Value, kind: &str) -> bool {
    let conditions = job["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|c| c["type"] == kind && c["status"] == "True")
}

fn is_finished(job: &Value) -> bool {
    holds(job, "Complete") || holds(job, "Failed")
}

/// Reports a cause about the conditions as a whole, which shows no value.
fn unfit(status: &Cursor<'_>, detail: &str, causes: &mut Causes) {
    let at = status.field("conditions").path();
    causes.add("FieldValueInvalid", at, format!("Invalid value: {detail}"));
}

pub(super) fn validate(job: &Cursor<'_>, old: &Cursor<'_>, causes: &mut Causes) {
    let change = Change { new: job.value(), old: old.value() };
    let status = job.field("status");
    for field in ["active", "succeeded", "failed", "ready", "terminating"] {
        non_negative(&status.field(field), causes);
    }
    validate_uncounted(&status, causes);
    validate_end(&change, &status, causes);
    validate_indexes(&change, &status, causes);
    let finished = is_finished(job.value());
    let terminating = status.field("terminating");
    let above_zero = |at: &Cursor<'_>| at.int().is_some_and(|number| number > 0);
    if (change.finished_turned() || change.changed("terminating"))
        && above_zero(&terminating)
        && finished
    {
        causes.invalid(&terminating, "terminating>0 is invalid for finished job");
    }
    let (ready, active) = (status.field("ready"), status.field("active"));
    if (change.changed("ready") || change.changed("active"))
        && ready.int().is_some_and(|ready| ready > active.int().unwrap_or(0))
    {
        causes.invalid(&ready, "cannot set more ready pods than active");
    }
    validate_criteria(&change, &status, causes);
    validate_history(&change, job, causes);
}

/// Checks the terminated pods that are not counted yet: each is listed once.
fn validate_uncounted(status: &Cursor<'_>, causes: &mut Causes) {
    let uncounted = status.field("uncountedTerminatedPods");
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for list in ["succeeded", "failed"] {
        let list = uncounted.field(list);
        for uid in list.items() {
            if uid.text().is_empty() {
                causes.invalid_as(&uid, "", "must not be empty");
            } else if !seen.insert(uid.text()) {
                causes.duplicate(&uid);
            }
        }
    }
}

/// Checks the end of a job: complete or failed, with its times, and without running pods.
fn validate_end(change: &Change<'_>, status: &Cursor<'_>, causes: &mut Causes) {
    let job = change.new;
    let complete = holds(job, "Complete");
    let (start, end) = (status.field("startTime"), status.field("completionTime"));
    if (change.turned("Complete") || change.turned("Failed")) && complete && holds(job, "Failed") {
        unfit(status, "cannot set Complete=True and Failed=true conditions", causes);
    }
    if (change.turned("Complete") || change.turned("FailureTarget"))
        && complete
        && holds(job, "FailureTarget")
    {
        unfit(status, "cannot set Complete=True and FailureTarget=true conditions", causes);
    }
    let about_end = change.turned("Complete") || change.changed("completionTime");
    if about_end && end.is_set() && !complete {
        let detail = "cannot set completionTime when there is no Complete=True condition";
        causes.invalid(&end, detail);
    }
    if about_end && !end.is_set() && complete {
        causes.required(&end, "completionTime is required for Complete jobs");
    }
    let times = change.changed("startTime") || change.changed("completionTime");
    let read = |at: &Cursor<'_>| Timestamp::parse(at.text()).ok();
    if times
        && let (Some(start), Some(ended)) = (read(&start), read(&end))
        && ended < start
    {
        causes.invalid(&end, "must be equal to or after `startTime`");
    }
    if change.turned("Failed") && holds(job, "Failed") && !holds(job, "FailureTarget") {
        let detail = "cannot set Failed=True condition without the FailureTarget=true condition";
        unfit(status, detail, causes);
    }
    if change.turned("Complete") && complete && !holds(job, "SuccessCriteriaMet") {
        let detail =
            "cannot set Complete=True condition without the SuccessCriteriaMet=true condition";
        unfit(status, detail, causes);
    }
    if !is_finished(job) {
        return;
    }
    let active = status.field("active");
    if (change.finished_turned() || change.changed("active"))
        && active.int().is_some_and(|number| number > 0)
    {
        causes.invalid(&active, "active>0 is invalid for finished job");
    }
    if (change.finished_turned() || change.changed("startTime")) && !start.is_set() {
        causes.required(&start, "startTime is required for finished job");
    }
    let uncounted = status.field("uncountedTerminatedPods");
    let left = !uncounted.field("failed").is_empty() || !uncounted.field("succeeded").is_empty();
    if (change.finished_turned() || change.changed("uncountedTerminatedPods")) && left {
        causes.invalid(&uncounted, "must be empty for finished job");
    }
}

fn validate_indexes(change: &Change<'_>, status: &Cursor<'_>, causes: &mut Causes) {
    let spec = &change.new["spec"];
    let completions = spec["completions"].as_i64();
    let per_index = spec.get("backoffLimitPerIndex").is_some();
    let (done, failed) = (status.field("completedIndexes"), status.field("failedIndexes"));
    let (about_done, about_failed) =
        (change.changed("completedIndexes"), change.changed("failedIndexes"));
    if about_done
        && let Some(completions) = completions
        && let Err(error) = indexes(done.text(), completions)
    {
        let detail = format!("error parsing completedIndexes: {error}");
        causes.invalid_as(&done, done.text(), &detail);
    }
    if about_failed
        && per_index
        && failed.is_set()
        && let Some(completions) = completions
        && let Err(error) = indexes(failed.text(), completions)
    {
        causes.invalid(&failed, &format!("error parsing failedIndexes: {error}"));
    }
    if about_done && !done.text().is_empty() && spec["completionMode"] != "Indexed" {
        let detail = "cannot set non-empty completedIndexes when non-indexed completion mode";
        causes.invalid(&done, detail);
    }
    if about_failed && !per_index && failed.is_set() {
        let detail = "cannot set non-null failedIndexes when backoffLimitPerIndex is null";
        causes.invalid(&failed, detail);
    }
    if (about_done || about_failed)
        && failed.is_set()
        && let Some(completions) = completions
        && let (Ok(done), Ok(wrong)) =
            (indexes(done.text(), completions), indexes(failed.text(), completions))
        && let Some(both) = common(&done, &wrong)
    {
        let detail = format!("failedIndexes and completedIndexes overlap at index: {both}");
        causes.invalid(&failed, &detail);
    }
}

/// Returns the first index that is in both.
fn common(a: &[(i64, i64)], b: &[(i64, i64)]) -> Option<i64> {
    let overlap = |(x, y): (&(i64, i64), &(i64, i64))| {
        let first = x.0.max(y.0);
        (first <= x.1.min(y.1)).then_some(first)
    };
    a.iter().flat_map(|x| b.iter().map(move |y| (x, y))).filter_map(overlap).min()
}

/// Reads `0-2,5` into ranges: ascending, without overlap, below the number of completions.
pub(super) fn indexes(text: &str, completions: i64) -> Result<Vec<(i64, i64)>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let mut ranges: Vec<(i64, i64)> = Vec::new();
    let mut last: Option<i64> = None;
    for part in text.split(',') {
        let ends: Vec<&str> = part.split('-').collect();
        if ends.len() > 2 {
            return Err(format!(
                "the fragment \"{part}\" violates the requirement that an index interval can have at most two parts separated by '-'"
            ));
        }
        let read = |end: &str| -> Result<i64, String> {
            let number = end.parse::<i64>();
            let number = number
                .map_err(|_| format!("cannot convert string to integer for index: \"{end}\""))?;
            if number >= completions {
                return Err(format!("too large index: \"{end}\""));
            }
            Ok(number)
        };
        let first = read(ends[0])?;
        if last.is_some_and(|last| first <= last) {
            return Err(format!(
                "non-increasing order, previous: {}, current: {first}",
                last.unwrap_or(0)
            ));
        }
        let end = match ends.get(1) {
            Some(end) => read(end)?,
            None => first,
        };
        if ends.len() == 2 && end <= first {
            return Err(format!("non-increasing order, previous: {first}, current: {end}"));
        }
        last = Some(end);
        ranges.push((first, end));
    }
    Ok(ranges)
}

fn validate_criteria(change: &Change<'_>, status: &Cursor<'_>, causes: &mut Causes) {
    let job = change.new;
    let met = holds(job, "SuccessCriteriaMet");
    if met && holds(job, "Failed") {
        unfit(status, "cannot set SuccessCriteriaMet=True and Failed=true conditions", causes);
    }
    if met && holds(job, "FailureTarget") {
        unfit(
            status,
            "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions",
            causes,
        );
    }
    if job["spec"].get("successPolicy").is_some() && !met && holds(job, "Complete") {
        let detail =
            "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True";
        unfit(status, detail, causes);
    }
}

/// Checks that permanent facts are not reverted.
fn validate_history(change: &Change<'_>, job: &Cursor<'_>, causes: &mut Causes) {
    let (new, old) = (change.new, change.old);
    let status = job.field("status");
    for kind in ["Failed", "Complete", "FailureTarget"] {
        if holds(old, kind) && !holds(new, kind) {
            unfit(&status, &format!("cannot disable the terminal {kind}=True condition"), causes);
        }
    }
    let count = |job: &Value, field: &str| job["status"][field].as_i64().unwrap_or(0);
    // An indexed job whose two numbers are equal can be made smaller.
    let spec = &new["spec"];
    let can_shrink =
        spec["completionMode"] == "Indexed" && spec["completions"] == spec["parallelism"];
    for field in ["failed", "succeeded"] {
        let may_fall = field == "succeeded" && can_shrink;
        if !may_fall && count(new, field) < count(old, field) {
            let detail = format!("cannot decrease the {field} counter");
            causes.invalid_as(&status.field(field), count(new, field), &detail);
        }
    }
    let (end, before) = (status.field("completionTime"), &old["status"]["completionTime"]);
    if end.is_set() && before.is_string() && end.value() != before {
        causes.invalid(&end, IMMUTABLE);
    }
    let (start, before) = (status.field("startTime"), &old["status"]["startTime"]);
    if before.is_string() && start.value() != before && new["spec"]["suspend"] != true {
        causes.required(&start, "startTime cannot be removed for unsuspended job");
    }
    let met = |job: &Value| holds(job, "SuccessCriteriaMet");
    if met(old) && !met(new) {
        unfit(&status, "cannot disable the SuccessCriteriaMet=True condition", causes);
    }
    if holds(old, "Complete") && !met(old) && met(new) {
        let detail =
            "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions";
        unfit(&status, detail, causes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_ascending_ranges() {
        assert_eq!(indexes("0-2,5", 9), Ok(vec![(0, 2), (5, 5)]));
        assert_eq!(indexes("", 9), Ok(vec![]));
        for text in ["2,1", "0-0", "3-1", "9", "a", "0-1-2", "1,", "0-"] {
            assert!(indexes(text, 9).is_err(), "{text}");
        }
        assert_eq!(common(&[(0, 2), (5, 5)], &[(3, 9)]), Some(5));
        assert_eq!(common(&[(0, 2)], &[(3, 9)]), None);
    }
}
