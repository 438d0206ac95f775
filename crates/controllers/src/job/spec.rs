//! What a job asks for: [`JobSpec`], its spec read once, and what its pods are under it.

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
    /// Only a pod that has come to its end is followed by another.
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

    /// How many indexes there are.
    pub(super) fn width(&self) -> i64 {
        self.completions.unwrap_or(0)
    }

    /// The index of a pod, if it is one of the job's.
    pub(super) fn index(&self, pod: &Pod) -> Option<i64> {
        let is_ours = |index: &i64| self.indexed && (0..self.width()).contains(index);
        pod.completion_index.filter(is_ours)
    }

    /// Whether a pod is one the job can count: those of an indexed job need an index.
    pub(super) fn can_count(&self, pod: &Pod) -> bool {
        !self.indexed || self.index(pod).is_some()
    }

    /// Whether a pod counts as failed. One that is deleted never comes to a good end, but where ends
    /// are waited for, that has yet to be seen.
    pub(super) fn has_failed(&self, pod: &Pod) -> bool {
        let given_up = pod.deleting.is_some() && pod.phase != Phase::Succeeded;
        pod.phase == Phase::Failed || (given_up && !self.waits_for_ends)
    }

    /// What the failure of a pod means.
    pub(super) fn verdict(&self, pod: &Pod) -> Verdict {
        policy::verdict(&self.spec["podFailurePolicy"], pod)
    }

    /// Why the job fails at once, if a pod failed in a way that asks for it.
    pub(super) fn fatal(&self, pods: &[Arc<Pod>]) -> Option<String> {
        let failed = pods.iter().filter(|pod| self.has_failed(pod));
        failed.map(|pod| self.verdict(pod)).find_map(|verdict| match verdict {
            Verdict::FailJob(message) => Some(message),
            _ => None,
        })
    }

    /// Whether the failure of a pod is that of its index.
    pub(super) fn fails_index(&self, pod: &Pod) -> bool {
        let Some(limit) = self.backoff_limit_per_index else { return false };
        self.has_failed(pod)
            && match self.verdict(pod) {
                Verdict::FailIndex => true,
                Verdict::Ignore => false,
                Verdict::Count | Verdict::FailJob(_) => pod.index_failures.counted >= limit,
            }
    }

    /// Whether containers that are started again where they are were so too often.
    pub(super) fn restarts_too_often(&self, pods: &[Arc<Pod>]) -> bool {
        if self.spec["template"]["spec"]["restartPolicy"] != "OnFailure" {
            return false;
        }
        let alive = pods.iter().filter(|p| matches!(p.phase, Phase::Pending | Phase::Running));
        let restarts: i64 = alive.map(|pod| pod.all_restarts).sum();
        restarts > 0 && restarts >= self.backoff_limit
    }

    /// Which rule for success is met, if one is.
    pub(super) fn success(&self, done: &Indexes) -> Option<String> {
        policy::success(&self.spec["successPolicy"], self.width(), done)
    }
}

/// Whether a pod has yet to be counted.
pub(super) fn is_tracked(pod: &Pod) -> bool {
    pod.finalizers.iter().any(|finalizer| finalizer == TRACKING)
}
