//! Preemption: selects the pods to delete so that a pod with higher priority fits.
//!
//! Main entry: [`find`]. On each node it removes all pods with lower priority and then adds them
//! back one by one while the pod still fits: those protected by a disruption budget first, and the
//! most important first. Nothing is deleted here.

use std::cmp::Reverse;

use crate::cluster::{Cluster, PodId};
use crate::filters::{Cycle, SimulatedNode};
use crate::interner::Symbol;
use crate::labels::Labels;
use crate::time::Milliseconds;
use crate::verdict::{Code, Reason, Rejection};

/// A node on which preemption would make the pod fit.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) slot: u32,
    /// The most important first.
    pub(crate) victims: Vec<PodId>,
    pub(crate) violations: usize,
}

/// The result of the search.
#[derive(Debug, Default)]
pub(crate) struct PreemptionSearch {
    pub(crate) candidates: Vec<Candidate>,
    /// Nodes on which preemption does not help.
    pub(crate) no_help: Vec<(u32, Rejection)>,
    /// The candidates that are equally good and better than the others.
    pub(crate) best: Vec<usize>,
}

/// The reason why a pod may not preempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotEligible {
    Never,
    /// Its earlier victims are still terminating.
    VictimsAreLeaving,
}

impl NotEligible {
    pub(crate) fn text(self) -> &'static str {
        match self {
            NotEligible::Never => "not eligible due to preemptionPolicy=Never.",
            NotEligible::VictimsAreLeaving => {
                "not eligible due to a terminating pod on the nominated node."
            }
        }
    }
}

/// Checks whether a pod may preempt. `on_nominated` is the code of its nominated node's rejection.
pub(crate) fn eligible(cycle: &Cycle<'_>, on_nominated: Option<Code>) -> Result<(), NotEligible> {
    if !cycle.shape.preempts {
        return Err(NotEligible::Never);
    }
    let waits_for = cycle.entry.nominated.and_then(|node| cycle.cluster.slot_of(node));
    let Some(slot) = waits_for.filter(|_| on_nominated != Some(Code::UnschedulableAndUnresolvable))
    else {
        return Ok(());
    };
    let pods = cycle.cluster.node(slot).into_iter().flat_map(|node| &node.pods);
    let leaving = |id: &PodId| {
        cycle
            .cluster
            .pod_with_shape(*id)
            .is_some_and(|(entry, shape)| entry.preempted && shape.priority < cycle.shape.priority)
    };
    if pods.into_iter().any(leaving) { Err(NotEligible::VictimsAreLeaving) } else { Ok(()) }
}

/// Tries nodes in order until there are enough candidates.
pub(crate) fn find(cycle: &Cycle<'_>, nodes: &[u32], offset: usize) -> PreemptionSearch {
    let share = nodes.len() * cycle.profile.candidates_percentage / 100;
    let enough = share.max(cycle.profile.candidates_least).min(nodes.len());
    let mut found = PreemptionSearch::default();
    let (later, earlier) = nodes.split_at(if nodes.is_empty() { 0 } else { offset % nodes.len() });
    for slot in earlier.iter().chain(later) {
        match victims(cycle, *slot) {
            Ok(candidate) => found.candidates.push(candidate),
            Err(rejection) => found.no_help.push((*slot, rejection)),
        }
        // At least one of them must violate no budget.
        let harmless = found.candidates.iter().any(|c| c.violations == 0);
        if harmless && found.candidates.len() >= enough {
            break;
        }
    }
    found.best = best(cycle.cluster, &found.candidates);
    found
}

/// Later than any reported start time.
const NOT_STARTED: Milliseconds = Milliseconds::MAX;

/// Returns the sort key of pods by importance, the most important first.
fn importance(cluster: &Cluster, id: PodId) -> (Reverse<i32>, Milliseconds) {
    match cluster.pod_with_shape(id) {
        Some((entry, shape)) => (Reverse(shape.priority), entry.started.unwrap_or(NOT_STARTED)),
        None => (Reverse(i32::MIN), NOT_STARTED),
    }
}

fn victims(cycle: &Cycle<'_>, slot: u32) -> Result<Candidate, Rejection> {
    let cluster = cycle.cluster;
    let no_victims = || Rejection::without_plugin(Reason::NoVictims);
    let node = cluster.node(slot).ok_or_else(no_victims)?;
    let lower = |id: &PodId| {
        cluster.pod_with_shape(*id).is_some_and(|(_, shape)| shape.priority < cycle.shape.priority)
    };
    let mut possible: Vec<PodId> = node.pods.iter().copied().filter(lower).collect();
    if possible.is_empty() {
        return Err(no_victims());
    }
    let mut simulated = SimulatedNode::new(slot, node);
    for id in &possible {
        simulated.remove(cycle, *id);
    }
    if let Some(rejection) = cycle.check_simulated(&simulated) {
        return Err(rejection);
    }
    possible.sort_by_key(|id| importance(cluster, *id));
    let (protected, others) = by_budget(cluster, &possible);
    let mut victims = Vec::new();
    let mut put_back = |id: PodId| {
        simulated.add(cycle, id);
        let fits = cycle.check_simulated(&simulated).is_none();
        if !fits {
            simulated.remove(cycle, id);
            victims.push(id);
        }
        fits
    };
    let violations = protected.iter().filter(|id| !put_back(**id)).count();
    for id in &others {
        put_back(*id);
    }
    if victims.is_empty() {
        // The pod fits without victims: only nominated pods blocked it.
        return Err(no_victims());
    }
    victims.sort_by_key(|id| importance(cluster, *id));
    Ok(Candidate { slot, victims, violations })
}

/// Splits pods into those whose deletion would violate a disruption budget and the others, in
/// order.
fn by_budget(cluster: &Cluster, pods: &[PodId]) -> (Vec<PodId>, Vec<PodId>) {
    let mut budgets: Vec<_> = cluster.workloads.budgets().map(|b| (b, b.allowed)).collect();
    let mut breaks = |name: &str, namespace: Symbol, labels: &Labels| {
        // Pods without labels, and budgets that select everything, are not protected here.
        let mut of_pod = budgets.iter_mut().filter(|(budget, _)| {
            budget.namespace == namespace
                && !labels.is_empty()
                && !budget.selector.is_everything()
                && budget.selector.matches(labels, &cluster.symbols)
                && !budget.disrupted.contains(name)
        });
        // The first violated budget decides; later ones are not charged.
        of_pod.any(|(_, allowed)| {
            *allowed -= 1;
            *allowed < 0
        })
    };
    pods.iter().copied().partition(|id| {
        cluster
            .pod_with_shape(*id)
            .is_some_and(|(entry, shape)| breaks(entry.name(), shape.namespace, &shape.labels))
    })
}

/// Returns the candidates that are equally good and better than the others.
fn best(cluster: &Cluster, candidates: &[Candidate]) -> Vec<usize> {
    let priority = |id: &PodId| cluster.pod_with_shape(*id).map_or(i32::MIN, |(_, s)| s.priority);
    let cost = |candidate: &Candidate| {
        let victims = &candidate.victims;
        let highest = victims.iter().map(priority).max().unwrap_or(i32::MIN);
        // Priorities are shifted above zero, so that many victims never cost less than few.
        let sum: i64 = victims.iter().map(|v| i64::from(priority(v)) + (1 << 31)).sum();
        let most_important = victims.iter().filter(|v| priority(v) == highest);
        let started = |id: &PodId| cluster.pod(*id).and_then(|p| p.started).unwrap_or(NOT_STARTED);
        let earliest = most_important.map(started).min().unwrap_or(NOT_STARTED);
        (candidate.violations, highest, sum, victims.len(), Reverse(earliest))
    };
    let costs: Vec<_> = candidates.iter().map(cost).collect();
    let Some(least) = costs.iter().min() else { return Vec::new() };
    costs.iter().enumerate().filter(|(_, c)| *c == least).map(|(n, _)| n).collect()
}
