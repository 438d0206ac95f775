//! The size of each replica set during a rollout.

use std::sync::Arc;

use serde_json::Value;

use super::plan::{Action, Plan};
use crate::context::text;
use crate::int_or_percent::scaled_value;
use crate::workload::{int, replicas};

/// The bounds of a rollout around the desired number of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) wanted: i64,
    /// The number of pods allowed above `wanted`.
    pub(super) surge: i64,
    /// The number of pods that may be unavailable.
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
            // Otherwise the rollout could never progress.
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

/// Returns the number of pods that the new replica set may have now.
pub(super) fn for_new(bounds: &Bounds, new: Option<&Value>, sets: &[Arc<Value>]) -> i64 {
    let current = new.map_or(0, replicas);
    let room = bounds.most() - total(sets);
    if room <= 0 {
        return current;
    }
    current + room.min(bounds.wanted - current)
}

/// Plans one step: scales the new replica set up within the surge, or else the old ones down within
/// `maxUnavailable`.
pub(super) fn roll(
    new: &Value,
    old: &[&Arc<Value>],
    sets: &[Arc<Value>],
    bounds: &Bounds,
    plan: &mut Plan,
) {
    let current = replicas(new);
    if current > bounds.wanted {
        plan.actions.push(scaled(new, bounds.wanted, bounds));
        return;
    }
    if current < bounds.wanted {
        let next = for_new(bounds, Some(new), sets);
        if next > current {
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
    let new_unavailable = current - available(new);
    let mut may_go = all - least - new_unavailable;
    if may_go <= 0 {
        return;
    }
    // Scale down unavailable pods first, then available ones.
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

/// Applies a resize of the deployment without continuing a rollout: to the only active replica set,
/// or to all in proportion.
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

/// Distributes `difference` over the replica sets in proportion to their sizes. The largest gets
/// the remainder.
fn in_proportion(sets: &[&Arc<Value>], difference: i64, bounds: &Bounds) -> Vec<Action> {
    let mut order: Vec<&Arc<Value>> = sets.to_vec();
    order.sort_by_key(|set| {
        let age = text(&set["metadata"]["creationTimestamp"]);
        // The largest first, then the oldest.
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

/// Divides non-negative numbers and rounds to the nearest integer.
fn rounded(dividend: i64, divisor: i64) -> i64 {
    (2 * dividend + divisor).div_euclid(2 * divisor)
}
