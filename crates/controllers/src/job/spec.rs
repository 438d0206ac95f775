//! The spec of a job, parsed once: [`JobSpec`], and the classification of its pods.

use std::sync::Arc;

use serde_json::Value;

use super::TRACKING;
use super::indexes::Indexes;
use super::policy::{self, Verdict};
use crate::observe::{Phase, Pod};

pub(super) struct JobSpec<'a> {
    spec: &'a Value,
    pub(super) indexed: bool,
    pub(super) completions: Option<i64>,
    pub(super) parallelism: i64,
    pub(super) backoff_limit: i64,
    pub(super) backoff_limit_per_index: Option<i64>,
    pub(super) max_failed_indexes: Option<i64>,
    pub(super) active_deadline: Option<i64>,
    pub(super) suspended: bool,
    /// A pod is replaced only after it has ended.
    pub(super) waits_for_ends: bool,
}

impl<'a> JobSpec<'a> {
    pub(super) fn of(job: &'a Value) -> JobSpec<'a> {
        let spec = &job["spec"];
        JobSpec {
            spec,
            indexed: spec["completionMode"] == "Indexed",
            completions: spec["completions"].as_i64(),
            parallelism: spec["parallelism"].as_i64().unwrap_or(1),
            backoff_limit: spec["backoffLimit"].as_i64().unwrap_or(6),
            backoff_limit_per_index: spec["backoffLimitPerIndex"].as_i64(),
            max_failed_indexes: spec["maxFailedIndexes"].as_i64(),
            active_deadline: spec["activeDeadlineSeconds"].as_i64(),
            suspended: spec["suspend"] == true,
            waits_for_ends: spec["podReplacementPolicy"] == "Failed"
                || spec["podFailurePolicy"].is_object(),
        }
    }

    /// Returns the number of indexes.
    pub(super) fn width(&self) -> i64 {
        self.completions.unwrap_or(0)
    }

    /// Returns the index of a pod if it is valid for the job.
    pub(super) fn index(&self, pod: &Pod) -> Option<i64> {
        let is_ours = |index: &i64| self.indexed && (0..self.width()).contains(index);
        pod.completion_index.filter(is_ours)
    }

    /// Returns true if the job can count a pod: pods of an indexed job need an index.
    pub(super) fn can_count(&self, pod: &Pod) -> bool {
        !self.indexed || self.index(pod).is_some()
    }

    /// Returns true if a pod counts as failed. A deleted pod that has not succeeded counts as
    /// failed, unless the job waits for it to end.
    pub(super) fn has_failed(&self, pod: &Pod) -> bool {
        let given_up = pod.deleting.is_some() && pod.phase != Phase::Succeeded;
        pod.phase == Phase::Failed || (given_up && !self.waits_for_ends)
    }

    /// Returns the effect of a failed pod.
    pub(super) fn verdict(&self, pod: &Pod) -> Verdict {
        policy::verdict(&self.spec["podFailurePolicy"], pod)
    }

    /// Returns the message of the failure that fails the whole job, if any.
    pub(super) fn fatal(&self, pods: &[Arc<Pod>]) -> Option<String> {
        let failed = pods.iter().filter(|pod| self.has_failed(pod));
        failed.map(|pod| self.verdict(pod)).find_map(|verdict| match verdict {
            Verdict::FailJob(message) => Some(message),
            _ => None,
        })
    }

    /// Returns true if the failure of a pod fails its index.
    pub(super) fn fails_index(&self, pod: &Pod) -> bool {
        let Some(limit) = self.backoff_limit_per_index else { return false };
        self.has_failed(pod)
            && match self.verdict(pod) {
                Verdict::FailIndex => true,
                Verdict::Ignore => false,
                Verdict::Count | Verdict::FailJob(_) => pod.index_failures.counted >= limit,
            }
    }

    /// Returns true if containers were restarted in place more often than the back-off limit
    /// allows.
    pub(super) fn restarts_too_often(&self, pods: &[Arc<Pod>]) -> bool {
        if self.spec["template"]["spec"]["restartPolicy"] != "OnFailure" {
            return false;
        }
        let alive = pods.iter().filter(|p| matches!(p.phase, Phase::Pending | Phase::Running));
        let restarts: i64 = alive.map(|pod| pod.all_restarts).sum();
        restarts > 0 && restarts >= self.backoff_limit
    }

    /// Returns the message of the success rule that is met, if any.
    pub(super) fn success(&self, done: &Indexes) -> Option<String> {
        policy::success(&self.spec["successPolicy"], self.width(), done)
    }
}

/// Returns true if a pod has yet to be counted.
pub(super) fn is_tracked(pod: &Pod) -> bool {
    pod.finalizers.iter().any(|finalizer| finalizer == TRACKING)
}
