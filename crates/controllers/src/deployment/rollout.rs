//! How many pods each replica set has while one template gives way to another.

use std::sync::Arc;

use serde_json::Value;

use super::plan::{Action, Plan};
use crate::context::text;
use crate::int_or_percent::scaled_value;
use crate::workload::{int, replicas};

/// How far a rollout may stray from the number that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) wanted: i64,
    /// How many more there may be.
    pub(super) surge: i64,
    /// How many fewer may be available.
    pub(super) unavailable: i64,
}

impl Bounds {
    pub(super) fn of(deployment: &Value) -> Bounds {
        let wanted = replicas(deployment);
        let strategy = &deployment["spec"]["strategy"];
        if strategy["type"] == "Recreate" {
            return Bounds { wanted, surge: 0, unavailable: 0 };
        }
        let given = &strategy["rollingUpdate"];
        let surge = scaled_value(&given["maxSurge"], wanted, true);
        let mut unavailable = scaled_value(&given["maxUnavailable"], wanted, false);
        if surge == 0 && unavailable == 0 {
            // Otherwise nothing could ever move.
            unavailable = 1;
        }
        Bounds { wanted, surge, unavailable: unavailable.min(wanted) }
    }

    fn most(&self) -> i64 {
        self.wanted + self.surge
    }
}

pub(super) fn scaled(set: &Value, to: i64, bounds: &Bounds) -> Action {
    Action::Scale {
        name: text(&set["metadata"]["name"]).to_owned(),
        from: replicas(set),
        to,
        annotations: bounds.annotations().into(),
    }
}

fn total(sets: &[Arc<Value>]) -> i64 {
    sets.iter().map(|set| replicas(set)).sum()
}

fn available(set: &Value) -> i64 {
    int(&set["status"]["availableReplicas"])
}

/// How many pods the new set may have now.
pub(super) fn for_new(bounds: &Bounds, new: Option<&Value>, sets: &[Arc<Value>]) -> i64 {
    let there = new.map_or(0, replicas);
    let room = bounds.most() - total(sets);
    if room <= 0 {
        return there;
    }
    there + room.min(bounds.wanted - there)
}

/// One step: the new set grows as far as the surge allows; if it cannot, the old ones shrink as far as
/// availability allows.
pub(super) fn roll(
    new: &Value,
    old: &[&Arc<Value>],
    sets: &[Arc<Value>],
    bounds: &Bounds,
    plan: &mut Plan,
) {
    let there = replicas(new);
    if there > bounds.wanted {
        plan.actions.push(scaled(new, bounds.wanted, bounds));
        return;
    }
    if there < bounds.wanted {
        let next = for_new(bounds, Some(new), sets);
        if next > there {
            plan.actions.push(scaled(new, next, bounds));
            return;
        }
    }
    let active: Vec<&&Arc<Value>> = old.iter().filter(|set| replicas(set) > 0).collect();
    if active.is_empty() {
        return;
    }
    let all = total(sets);
    let least = bounds.wanted - bounds.unavailable;
    let new_unavailable = there - available(new);
    let mut may_go = all - least - new_unavailable;
    if may_go <= 0 {
        return;
    }
    // Pods that do nobody any good go first, then those that are missed.
    let mut sizes: Vec<i64> = active.iter().map(|set| replicas(set)).collect();
    let mut unhealthy_gone = 0;
    for (set, size) in active.iter().zip(&mut sizes) {
        let dead = (*size - available(set)).max(0).min(may_go - unhealthy_gone);
        *size -= dead;
        unhealthy_gone += dead;
    }
    let ready: i64 = sets.iter().map(|set| available(set)).sum();
    may_go = (ready - least).max(0);
    for size in &mut sizes {
        let go = (*size).min(may_go);
        *size -= go;
        may_go -= go;
    }
    for (set, size) in active.iter().zip(sizes) {
        if size != replicas(set) {
            plan.actions.push(scaled(set, size, bounds));
        }
    }
}

/// Follows a change of the deployment's size without going on with a rollout: the one set that is
/// active, or all of them in proportion.
pub(super) fn scale(
    deployment: &Value,
    new: Option<&Arc<Value>>,
    old: &[&Arc<Value>],
    bounds: &Bounds,
    plan: &mut Plan,
) {
    let active: Vec<&Arc<Value>> =
        old.iter().copied().chain(new).filter(|set| replicas(set) > 0).collect();
    match active.as_slice() {
        [] => {
            let latest =
                new.or_else(|| old.iter().copied().max_by_key(|set| super::plan::revision_of(set)));
            if let Some(set) = latest.filter(|set| replicas(set) != bounds.wanted) {
                plan.actions.push(scaled(set, bounds.wanted, bounds));
            }
        }
        [only] if replicas(only) == bounds.wanted => {}
        [only] => plan.actions.push(scaled(only, bounds.wanted, bounds)),
        _ if new.is_some_and(|new| is_saturated(deployment, new)) => {
            plan.actions.extend(
                old.iter().filter(|set| replicas(set) > 0).map(|set| scaled(set, 0, bounds)),
            );
        }
        many if deployment["spec"]["strategy"]["type"] != "Recreate" => {
            let all: i64 = many.iter().map(|set| replicas(set)).sum();
            let most = if bounds.wanted > 0 { bounds.most() } else { 0 };
            plan.actions.extend(in_proportion(many, most - all, bounds));
        }
        _ => {}
    }
}

fn is_saturated(deployment: &Value, set: &Value) -> bool {
    let wanted = replicas(deployment);
    replicas(set) == wanted && available(set) == wanted
}

/// Adds (or takes) pods so that each set has its share; what does not divide goes to the largest.
fn in_proportion(sets: &[&Arc<Value>], difference: i64, bounds: &Bounds) -> Vec<Action> {
    let mut order: Vec<&Arc<Value>> = sets.to_vec();
    order.sort_by_key(|set| {
        let age = text(&set["metadata"]["creationTimestamp"]);
        // The larger first; of equals the newer when growing, the older when shrinking.
        (std::cmp::Reverse(replicas(set)), age.to_owned())
    });
    let all: i64 = sets.iter().map(|set| replicas(set)).sum();
    let mut left = difference;
    let mut sizes: Vec<i64> = Vec::new();
    for set in &order {
        let own = replicas(set);
        let mut part = if all == 0 { 0 } else { rounded(own * (all + difference), all) - own };
        part = if difference > 0 { part.clamp(0, left.max(0)) } else { part.clamp(left.min(0), 0) };
        left -= part;
        sizes.push(own + part);
    }
    if let Some(first) = sizes.first_mut() {
        *first = (*first + left).max(0);
    }
    order.iter().zip(sizes).map(|(set, size)| scaled(set, size, bounds)).collect()
}

/// A quotient of numbers that are not negative, to the nearest.
fn rounded(dividend: i64, divisor: i64) -> i64 {
    (2 * dividend + divisor).div_euclid(2 * divisor)
}
