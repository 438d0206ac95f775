//! The finished pods of a job: [`Count`] counts each exactly once.
//!
//! ```text
//!   tracked by finalizer ──▶ uid in the status ──▶ finalizer removed ──▶ part of the count
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use super::indexes::Indexes;
use super::policy::Verdict;
use super::spec::{JobSpec, is_tracked};
use crate::context::text;
use crate::observe::{Phase, Pod};
use crate::workload::int;

/// The most pods counted in one sync, to keep the status small. Upstream's figure.
const AT_A_TIME: usize = 500;

/// The final state of a job whose outcome is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobResult {
    Complete,
    Failed,
}

#[derive(Debug)]
pub(super) struct Count {
    succeeded: i64,
    failed: i64,
    /// Uids in `uncountedTerminatedPods` that are not in the counts yet.
    uncounted_succeeded: BTreeSet<String>,
    uncounted_failed: BTreeSet<String>,
    /// Finished pods that the status does not list yet.
    new_succeeded: i64,
    new_failed: i64,
    /// Indexes that succeeded, and indexes that failed.
    pub(super) done: Indexes,
    pub(super) failed_indexes: Indexes,
    indexed: bool,
}

fn size(uids: &BTreeSet<String>) -> i64 {
    i64::try_from(uids.len()).unwrap_or(i64::MAX)
}

impl Count {
    pub(super) fn of(spec: &JobSpec<'_>, status: &Value, pods: &[Arc<Pod>]) -> Count {
        let listed = |field: &str| -> BTreeSet<String> {
            let uids = status["uncountedTerminatedPods"][field].as_array();
            uids.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let tracked: Vec<&Arc<Pod>> = pods.iter().filter(|pod| is_tracked(pod)).collect();
        let is_waiting = |uid: &String| tracked.iter().any(|pod| pod.uid == *uid);
        let indexes = |field: &str| Indexes::parse(text(&status[field]), spec.width());
        let (succeeded, failed) = (listed("succeeded"), listed("failed"));
        let mut count = Count {
            succeeded: int(&status["succeeded"]) + size(&succeeded),
            failed: int(&status["failed"]) + size(&failed),
            uncounted_succeeded: succeeded.into_iter().filter(is_waiting).collect(),
            uncounted_failed: failed.into_iter().filter(is_waiting).collect(),
            new_succeeded: 0,
            new_failed: 0,
            done: indexes("completedIndexes"),
            failed_indexes: indexes("failedIndexes"),
            indexed: spec.indexed,
        };
        // Uids of pods without a finalizer are part of the counts now.
        count.succeeded -= size(&count.uncounted_succeeded);
        count.failed -= size(&count.uncounted_failed);
        count.count_new(spec, &tracked);
        count
    }

    /// Counts finished pods that the status does not list yet.
    fn count_new(&mut self, spec: &JobSpec<'_>, tracked: &[&Arc<Pod>]) {
        let (mut done, mut newly_failed) = (Vec::new(), Vec::new());
        for pod in tracked.iter().filter(|pod| spec.can_count(pod)) {
            let is_new = !self.uncounted_succeeded.contains(&pod.uid)
                && !self.uncounted_failed.contains(&pod.uid);
            if pod.phase == Phase::Succeeded {
                self.new_succeeded += i64::from(is_new);
                done.extend(spec.index(pod));
            } else if spec.has_failed(pod) {
                let counts = spec.verdict(pod) != Verdict::Ignore;
                self.new_failed += i64::from(is_new && counts);
                newly_failed.extend(spec.index(pod).filter(|_| spec.fails_index(pod)));
            }
        }
        // The result of an index is final, whatever its other pods do.
        done.retain(|index| !self.failed_indexes.contains(*index));
        self.done = self.done.with(done);
        newly_failed.retain(|index| !self.done.contains(*index));
        self.failed_indexes = self.failed_indexes.with(newly_failed);
    }

    /// Returns the number of succeeded pods. An index counts once.
    pub(super) fn succeeded(&self) -> i64 {
        if self.indexed {
            return self.done.count();
        }
        self.succeeded + size(&self.uncounted_succeeded) + self.new_succeeded
    }

    /// Returns the number of failed pods.
    pub(super) fn failed(&self) -> i64 {
        self.failed + size(&self.uncounted_failed) + self.new_failed
    }

    /// Returns, for each index without a running pod, the pod that failed last. Its replacement
    /// inherits the failure count, so these pods keep their finalizers until it exists.
    pub(super) fn previous_failures(
        &self,
        spec: &JobSpec<'_>,
        pods: &[Arc<Pod>],
    ) -> BTreeMap<i64, Arc<Pod>> {
        let mut last: BTreeMap<i64, Arc<Pod>> = BTreeMap::new();
        if spec.backoff_limit_per_index.is_none() {
            return last;
        }
        let active = pods.iter().filter(|pod| pod.is_active());
        let busy: BTreeSet<i64> = active.filter_map(|pod| spec.index(pod)).collect();
        for pod in pods.iter().filter(|pod| is_tracked(pod) && spec.has_failed(pod)) {
            let Some(index) = spec.index(pod) else { continue };
            let over = self.done.contains(index) || self.failed_indexes.contains(index);
            if over || busy.contains(&index) {
                continue;
            }
            let rank = |pod: &Pod| (pod.index_failures.all(), pod.ended);
            if last.get(&index).is_none_or(|known| rank(known) <= rank(pod)) {
                last.insert(index, pod.clone());
            }
        }
        last
    }

    /// Records finished pods and returns those whose finalizers can be removed. Once the outcome is
    /// decided, all pods count as finished; pods that a failed job cuts short have failed.
    pub(super) fn settle(
        &mut self,
        spec: &JobSpec<'_>,
        pods: &[Arc<Pod>],
        end: Option<JobResult>,
        previous_failures: &BTreeMap<i64, Arc<Pod>>,
    ) -> Vec<Arc<Pod>> {
        let mut released = Vec::new();
        for pod in pods.iter().filter(|pod| is_tracked(pod)) {
            let succeeded = pod.phase == Phase::Succeeded;
            let failed = !succeeded && spec.has_failed(pod);
            let previous = spec.index(pod).and_then(|index| previous_failures.get(&index));
            let is_kept = previous.is_some_and(|kept| kept.uid == pod.uid);
            if end.is_none() && (is_kept || !succeeded && !failed) {
                continue;
            }
            released.push(pod.clone());
            if succeeded && !self.indexed && !self.uncounted_failed.contains(&pod.uid) {
                self.uncounted_succeeded.insert(pod.uid.clone());
            } else if (failed || !succeeded && end == Some(JobResult::Failed))
                && spec.can_count(pod)
                && spec.verdict(pod) != Verdict::Ignore
            {
                self.uncounted_failed.insert(pod.uid.clone());
            }
            if released.len() >= AT_A_TIME {
                break;
            }
        }
        released
    }

    /// Returns true if every recorded uid has been counted.
    pub(super) fn is_settled(&self) -> bool {
        self.uncounted_succeeded.is_empty() && self.uncounted_failed.is_empty()
    }

    /// Returns the status fields about finished pods.
    pub(super) fn fields(&self, spec: &JobSpec<'_>) -> [(&'static str, Option<Value>); 5] {
        let succeeded = if self.indexed { self.done.count() } else { self.succeeded };
        let above_zero = |count: i64| (count > 0).then(|| count.into());
        let mut uncounted = json!({});
        for (field, uids) in
            [("succeeded", &self.uncounted_succeeded), ("failed", &self.uncounted_failed)]
        {
            if !uids.is_empty() {
                uncounted[field] = json!(uids);
            }
        }
        let done = (!self.done.is_empty()).then(|| self.done.render().into());
        let failed_indexes =
            spec.backoff_limit_per_index.map(|_| self.failed_indexes.render().into());
        [
            ("succeeded", above_zero(succeeded)),
            ("failed", above_zero(self.failed)),
            ("uncountedTerminatedPods", Some(uncounted)),
            ("completedIndexes", done),
            ("failedIndexes", failed_indexes),
        ]
    }
}
