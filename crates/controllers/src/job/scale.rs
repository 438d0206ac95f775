//! Plans the number and the indexes of a job's pods: [`scale`].

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::count::Count;
use super::policy::Verdict;
use super::spec::JobSpec;
use crate::observe::{IndexFailures, Phase, Pod, Seconds};

/// The delay before the replacement of a failed pod. It doubles with each failure. Upstream's
/// figures.
const FIRST_DELAY: Seconds = 10;
const LONGEST_DELAY: Seconds = 600;

/// The most pods created or deleted in one sync. Upstream's figure.
const BURST: usize = 500;

/// The unfinished pods of a job.
pub(super) struct UnfinishedPods {
    pub(super) active: Vec<Arc<Pod>>,
    /// Being deleted, but not gone yet.
    pub(super) terminating: Vec<Arc<Pod>>,
}

impl UnfinishedPods {
    pub(super) fn of(pods: &[Arc<Pod>]) -> UnfinishedPods {
        let alive = pods.iter().filter(|pod| !pod.is_finished()).cloned();
        let (active, terminating) = alive.partition(|pod| pod.is_active());
        UnfinishedPods { active, terminating }
    }
}

/// A pod to create, with its index and the failures of that index so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct NewPod {
    pub(super) index: Option<i64>,
    pub(super) failures: Option<IndexFailures>,
}

#[derive(Debug, Default)]
pub(super) struct Scaling {
    pub(super) remove: Vec<Arc<Pod>>,
    pub(super) create: Vec<NewPod>,
    /// The time until a delayed pod may be created.
    pub(super) again: Option<Seconds>,
}

/// Deletes excess pods, or creates missing ones, after a delay if the last ones failed. A suspended
/// job has no pods.
pub(super) fn scale(
    spec: &JobSpec<'_>,
    pods: &[Arc<Pod>],
    unfinished: &UnfinishedPods,
    count: &Count,
    previous_failures: &BTreeMap<i64, Arc<Pod>>,
    now: Seconds,
) -> Scaling {
    if spec.suspended {
        return Scaling { remove: unfinished.active.clone(), ..Scaling::default() };
    }
    let wanted = wanted(spec, unfinished, count);
    let remove = excess(spec, &unfinished.active, wanted);
    if !remove.is_empty() {
        return Scaling { remove, ..Scaling::default() };
    }
    let going = if spec.waits_for_ends { unfinished.terminating.len() } else { 0 };
    let missing = wanted.saturating_sub(unfinished.active.len() + going).min(BURST);
    if missing == 0 {
        return Scaling::default();
    }
    if spec.backoff_limit_per_index.is_none()
        && let Some(wait) = wait(pods, now)
    {
        return Scaling { again: Some(wait), ..Scaling::default() };
    }
    if !spec.indexed {
        return Scaling { create: vec![NewPod::default(); missing], ..Scaling::default() };
    }
    let going = unfinished.terminating.iter().filter(|_| spec.waits_for_ends);
    let taken = unfinished.active.iter().chain(going).filter_map(|pod| spec.index(pod));
    let taken = count.done.or(&count.failed_indexes).with(taken);
    let mut scaling = Scaling::default();
    for index in taken.missing(spec.width()).take(missing) {
        let previous = previous_failures.get(&index);
        match previous.and_then(|pod| delay(pod.index_failures.all() + 1, pod.ended, now)) {
            Some(wait) => {
                scaling.again = Some(scaling.again.map_or(wait, |again| again.min(wait)));
            }
            None => {
                let failures = spec.backoff_limit_per_index.map(|_| failures(spec, previous));
                scaling.create.push(NewPod { index: Some(index), failures });
            }
        }
    }
    scaling
}

/// Returns the number of pods that the job should have.
fn wanted(spec: &JobSpec<'_>, unfinished: &UnfinishedPods, count: &Count) -> usize {
    let wanted = match spec.completions {
        Some(completions) => spec.parallelism.min(completions - count.succeeded()),
        // A worker has found the queue empty: the others finish their items.
        None if count.succeeded() > 0 => return unfinished.active.len(),
        None => spec.parallelism,
    };
    usize::try_from(wanted).unwrap_or(0)
}

/// Returns the pods to delete: those whose index is invalid or has a better pod, and the lowest
/// ranked of those beyond `wanted`.
fn excess(spec: &JobSpec<'_>, active: &[Arc<Pod>], wanted: usize) -> Vec<Arc<Pod>> {
    let mut ranked = active.to_vec();
    ranked.sort_by_key(|pod| {
        let age = (Reverse(pod.ready), Reverse(pod.restarts), Reverse(pod.created));
        (pod.progress(), age, pod.name.clone())
    });
    let mut taken = BTreeSet::new();
    let mut fit =
        |pod: &Arc<Pod>| !spec.indexed || spec.index(pod).is_some_and(|index| taken.insert(index));
    // The highest ranked pod of an index comes first.
    let (mut left, mut remove): (Vec<_>, Vec<_>) =
        ranked.into_iter().rev().partition(|pod| fit(pod));
    remove.extend(left.drain(wanted.min(left.len())..).rev());
    remove.truncate(BURST);
    remove
}

/// Returns the remaining delay after the failures since the last success; `None` if it has passed.
fn wait(pods: &[Arc<Pod>], now: Seconds) -> Option<Seconds> {
    let ends =
        |phase: Phase| pods.iter().filter(move |pod| pod.phase == phase).map(|pod| pod.ended);
    let success = ends(Phase::Succeeded).max();
    let failures: Vec<Seconds> =
        ends(Phase::Failed).filter(|end| success.is_none_or(|success| *end > success)).collect();
    delay(i64::try_from(failures.len()).unwrap_or(i64::MAX), failures.into_iter().max()?, now)
}

fn delay(failures: i64, last: Seconds, now: Seconds) -> Option<Seconds> {
    let doublings = u32::try_from(failures - 1).unwrap_or(0).min(10);
    let wait = last + (FIRST_DELAY << doublings).min(LONGEST_DELAY) - now;
    (wait > 0).then_some(wait)
}

/// Returns the failure counts that the replacement of a failed pod carries.
fn failures(spec: &JobSpec<'_>, previous: Option<&Arc<Pod>>) -> IndexFailures {
    let Some(pod) = previous else { return IndexFailures::default() };
    let IndexFailures { counted, ignored } = pod.index_failures;
    match spec.verdict(pod) {
        Verdict::Ignore => IndexFailures { counted, ignored: ignored + 1 },
        _ => IndexFailures { counted: counted + 1, ignored },
    }
}
