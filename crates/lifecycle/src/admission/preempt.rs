//! Making room for a critical pod: [`victims`], which pods go so that it fits.
//!
//! Takes as little as it can of those with the strongest promise: first it is asked which Guaranteed
//! pods must go even if all others went, then which Burstable ones, then which BestEffort ones. Of each
//! class those go that come closest to what is still lacking.

use std::fmt;

use objects::QosClass;
use objects::resources::{CPU, MEMORY};
use thiserror::Error;

use super::fit::{PODS, amount};
use super::{AdmittedPod, Rejection};
use crate::qos_class;
use crate::spec::Pod;

/// Returns true if a pod may preempt others.
#[must_use]
pub fn is_critical(pod: &Pod) -> bool {
    objects::pod::is_critical(&pod.metadata.annotations, pod.spec.priority)
}

/// How much of a resource has to be freed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    pub resource: String,
    pub quantity: i64,
}

/// Even if all went that may be made to go, this much is lacking.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub struct NoVictims {
    pub lacking: Vec<Requirement>,
}

impl fmt::Display for NoVictims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no set of running pods found to reclaim resources: [")?;
        for Requirement { resource, quantity } in &self.lacking {
            write!(f, "(res: {resource}, q: {quantity}), ")?;
        }
        f.write_str("]")
    }
}

/// The uids of the pods that must go, given all that speaks against a pod.
pub(super) fn recover(
    pod: &Pod,
    others: &[AdmittedPod<'_>],
    reasons: Vec<Rejection>,
) -> Result<Vec<String>, Rejection> {
    if !is_critical(pod) {
        return reasons.into_iter().next().map_or(Ok(Vec::new()), Err);
    }
    let mut lacking = Vec::new();
    for reason in reasons {
        match reason {
            Rejection::Insufficient { resource, requested, used, capacity } => {
                let free = capacity.saturating_sub(used);
                lacking.push(Requirement { resource, quantity: requested.saturating_sub(free) });
            }
            // Nobody's going would help.
            other => return Err(other),
        }
    }
    if lacking.is_empty() {
        return Ok(Vec::new());
    }
    let victims = victims(pod, others, &lacking).map_err(Rejection::NoVictims)?;
    Ok(victims.into_iter().map(|victim| victim.pod.metadata.uid.clone()).collect())
}

/// Which of the others go so that `pod` gets what is `lacking`.
pub fn victims<'a, 'b>(
    pod: &Pod,
    others: &'a [AdmittedPod<'b>],
    lacking: &[Requirement],
) -> Result<Vec<&'a AdmittedPod<'b>>, NoVictims> {
    let of_class = |class: QosClass| -> Vec<&'a AdmittedPod<'b>> {
        let may_go = others.iter().filter(|other| may_preempt(pod, other.pod));
        may_go.filter(|other| qos_class(other.pod) == class).collect()
    };
    let best_effort = of_class(QosClass::BestEffort);
    let burstable = of_class(QosClass::Burstable);
    let guaranteed = of_class(QosClass::Guaranteed);
    let all = [best_effort.as_slice(), &burstable, &guaranteed].concat();
    let never = without(lacking, &all);
    if !never.is_empty() {
        return Err(NoVictims { lacking: never });
    }
    let weaker = [best_effort.as_slice(), &burstable].concat();
    let guaranteed = closest(guaranteed, without(lacking, &weaker))?;
    let around = [best_effort.as_slice(), &guaranteed].concat();
    let burstable = closest(burstable, without(lacking, &around))?;
    let stronger = [burstable.as_slice(), &guaranteed].concat();
    let best_effort = closest(best_effort, without(lacking, &stronger))?;
    Ok([best_effort, burstable, guaranteed].concat())
}

fn may_preempt(pod: &Pod, other: &Pod) -> bool {
    let critical = is_critical(pod) && !is_critical(other);
    let higher = pod.spec.priority.zip(other.spec.priority).is_some_and(|(own, its)| own > its);
    critical || higher
}

fn freed(neighbour: &AdmittedPod<'_>, resource: &str) -> i64 {
    match resource {
        PODS => 1,
        resource => amount(&neighbour.requests, resource),
    }
}

/// Returns what is still insufficient without these pods.
fn without(lacking: &[Requirement], gone: &[&AdmittedPod<'_>]) -> Vec<Requirement> {
    let rest = lacking.iter().map(|Requirement { resource, quantity }| {
        let freed = gone.iter().map(|neighbour| freed(neighbour, resource));
        let quantity = freed.fold(*quantity, i64::saturating_sub);
        Requirement { resource: resource.clone(), quantity }
    });
    rest.filter(|requirement| requirement.quantity > 0).collect()
}

/// Takes the one that comes closest, until nothing is lacking.
fn closest<'a, 'b>(
    mut candidates: Vec<&'a AdmittedPod<'b>>,
    mut lacking: Vec<Requirement>,
) -> Result<Vec<&'a AdmittedPod<'b>>, NoVictims> {
    let mut taken = Vec::new();
    while !lacking.is_empty() {
        let mut best: Option<(usize, f64)> = None;
        for (index, candidate) in candidates.iter().enumerate() {
            let distance = distance(candidate, &lacking);
            let better = best.is_none_or(|(at, least)| {
                let tie = distance == least && is_smaller(candidate, candidates[at]);
                distance < least || tie
            });
            if better {
                best = Some((index, distance));
            }
        }
        let Some((index, _)) = best else { return Err(NoVictims { lacking }) };
        let victim = candidates.swap_remove(index);
        lacking = without(&lacking, &[victim]);
        taken.push(victim);
    }
    Ok(taken)
}

/// How far a pod is from freeing what is lacking: the squares of the parts it leaves.
fn distance(candidate: &AdmittedPod<'_>, lacking: &[Requirement]) -> f64 {
    let left = |Requirement { resource, quantity }: &Requirement| {
        let rest = quantity.saturating_sub(freed(candidate, resource)).max(0);
        (rest as f64 / *quantity as f64).powi(2)
    };
    lacking.iter().map(left).sum()
}

/// Returns true if the first pod uses less than the second; memory is compared before CPUs.
fn is_smaller(one: &AdmittedPod<'_>, other: &AdmittedPod<'_>) -> bool {
    let size = |n: &AdmittedPod<'_>| (amount(&n.requests, MEMORY), amount(&n.requests, CPU));
    size(one) <= size(other)
}
