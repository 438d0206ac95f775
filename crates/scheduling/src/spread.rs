//! Topology spread constraints: spread the pods of a group evenly.
//!
//! Main types: [`TopologySpread`], the hard constraints of a pod with the counts of one attempt,
//! and [`soft_scores`] for the soft ones. Counts are taken from shapes, not from pods.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::cluster::Cluster;
use crate::node::NodeView;
use crate::profile::Profile;
use crate::shape::{PodShape, Spread};
use crate::taints;
use crate::topology::{Domains, Tables};
use crate::verdict::{Code, Plugin, Reason, Rejection};

/// Returns the pod's own constraints of one kind, or those of the profile.
fn constraints(shape: &PodShape, cluster: &Cluster, profile: &Profile, hard: bool) -> Vec<Spread> {
    if !shape.spread.is_empty() {
        return shape.spread.iter().filter(|c| c.hard == hard).cloned().collect();
    }
    let mut defaults: Vec<Spread> =
        profile.spread_defaults.iter().filter(|c| c.hard == hard).cloned().collect();
    if defaults.is_empty() {
        return defaults;
    }
    let Some(selector) = cluster.workloads.companions(shape, &cluster.known.everything) else {
        return Vec::new();
    };
    for constraint in &mut defaults {
        constraint.selector = selector.clone();
    }
    defaults
}

/// Returns true if a node matches the pod's node selector and required affinity.
pub(crate) fn wants_node(shape: &PodShape, node: &NodeView, cluster: &Cluster) -> bool {
    shape.node_selector.iter().all(|(k, v)| node.labels.get(*k) == Some(*v))
        && shape
            .node_required
            .as_ref()
            .is_none_or(|terms| terms.match_any(node.name, &node.labels, &cluster.symbols))
}

/// Returns true if the pods of a node count for a constraint.
fn counts_node(
    constraint: &Spread,
    shape: &PodShape,
    node: &NodeView,
    cluster: &Cluster,
    profile: &Profile,
) -> bool {
    (!constraint.honor_affinity || wants_node(shape, node, cluster))
        && !(constraint.honor_taints
            && taints::untolerated(&node.taints, &shape.tolerations, profile.compare_taints))
}

/// Returns true if a constraint counts the pods of every node with its label: most do, and then no
/// node needs to be checked.
fn counts_every_node(constraint: &Spread, shape: &PodShape) -> bool {
    let anywhere = shape.node_selector.is_empty() && shape.node_required.is_none();
    (anywhere || !constraint.honor_affinity) && !constraint.honor_taints
}

/// Returns true if existing pods count for a constraint. With a selector of everything upstream
/// counts none of them.
fn selects(constraint: &Spread, other: &PodShape, cluster: &Cluster) -> bool {
    !constraint.selector.is_everything()
        && constraint.selector.matches(&other.labels, &cluster.symbols)
}

/// The hard constraints of a pod, with the current numbers of pods.
#[derive(Debug)]
pub(crate) struct TopologySpread(Vec<Hard>);

#[derive(Debug)]
struct Hard {
    constraint: Spread,
    domains: Arc<Domains>,
    counts: Vec<i64>,
    /// By slot: true if the node's pods count.
    eligible: Vec<bool>,
    /// The number of domains with an eligible node.
    present: i64,
    /// The domain with the fewest pods, its number, and the fewest in any other domain.
    lowest: (usize, i64, i64),
    /// One if the constraint selects the pod itself.
    itself: i64,
}

/// Changes of the counts by pods that are added to or removed from one node, by constraint.
pub(crate) type SpreadDelta = SmallVec<[i64; 2]>;

impl TopologySpread {
    /// `None` if the pod has no hard constraints.
    pub(crate) fn new(
        shape: &PodShape,
        cluster: &Cluster,
        profile: &Profile,
        tables: &mut Tables,
    ) -> Option<TopologySpread> {
        let constraints = constraints(shape, cluster, profile, true);
        if constraints.is_empty() {
            return None;
        }
        let domains: Vec<_> = constraints.iter().map(|c| tables.domains(cluster, c.key)).collect();
        let hard = constraints.iter().zip(&domains).map(|(constraint, own)| {
            let mut eligible = vec![false; cluster.slot_count()];
            let mut present = vec![false; own.count];
            let every = counts_every_node(constraint, shape);
            for slot in &cluster.order {
                let Some(node) = cluster.node(*slot) else { continue };
                let labelled = domains.iter().all(|d| d.of(*slot).is_some());
                let counts = || counts_node(constraint, shape, &node.view, cluster, profile);
                if labelled && (every || counts()) {
                    eligible[*slot as usize] = true;
                    if let Some(domain) = own.of(*slot) {
                        present[domain] = true;
                    }
                }
            }
            let mut counts = vec![0; own.count];
            for other in cluster.shapes.in_namespace(shape.namespace) {
                if selects(constraint, &other.shape, cluster) {
                    for (slot, placed) in &other.placed {
                        if let (true, Some(domain)) = (eligible[*slot as usize], own.of(*slot)) {
                            counts[domain] += placed.staying();
                        }
                    }
                }
            }
            let mut lowest = (usize::MAX, i64::MAX, i64::MAX);
            for (domain, count) in counts.iter().enumerate().filter(|(d, _)| present[*d]) {
                if *count < lowest.1 {
                    lowest = (domain, *count, lowest.1);
                } else {
                    lowest.2 = lowest.2.min(*count);
                }
            }
            let present = present.iter().filter(|p| **p).count();
            let itself = constraint.selector.matches(&shape.labels, &cluster.symbols);
            Hard {
                constraint: constraint.clone(),
                domains: own.clone(),
                counts,
                eligible,
                present: i64::try_from(present).unwrap_or(i64::MAX),
                lowest,
                itself: i64::from(itself),
            }
        });
        Some(TopologySpread(hard.collect()))
    }

    /// Adds or removes a pod of this shape on the node.
    pub(crate) fn change(
        &self,
        delta: &mut SpreadDelta,
        shape: &PodShape,
        slot: u32,
        other: &PodShape,
        by: i64,
        cluster: &Cluster,
    ) {
        delta.resize(self.0.len(), 0);
        if other.namespace != shape.namespace {
            return;
        }
        for (hard, delta) in self.0.iter().zip(delta) {
            let selector = &hard.constraint.selector;
            if hard.eligible[slot as usize] && selector.matches(&other.labels, &cluster.symbols) {
                *delta += by;
            }
        }
    }

    pub(crate) fn filter(&self, slot: u32, delta: Option<&SpreadDelta>) -> Option<Rejection> {
        let plugin = Plugin::PodTopologySpread;
        for (n, hard) in self.0.iter().enumerate() {
            let Some(domain) = hard.domains.of(slot) else {
                let code = Code::UnschedulableAndUnresolvable;
                return Some(Rejection::new(plugin, code, Reason::SpreadLabel));
            };
            let delta = delta.and_then(|d| d.get(n)).copied().unwrap_or(0);
            let count = hard.counts[domain] + delta;
            let fewest = if hard.present < hard.constraint.min_domains {
                0
            } else if delta == 0 {
                hard.lowest.1
            } else {
                let elsewhere = if hard.lowest.0 == domain { hard.lowest.2 } else { hard.lowest.1 };
                elsewhere.min(count)
            };
            let skew = (count + hard.itself).saturating_sub(fewest);
            if skew > hard.constraint.max_skew {
                return Some(Rejection::new(plugin, Code::Unschedulable, Reason::SpreadSkew));
            }
        }
        None
    }
}

/// Returns raw scores of the soft constraints for the feasible nodes, in their order, with `None`
/// for a node that lacks a label; `None` if the pod has no soft constraints.
pub(crate) fn soft_scores(
    shape: &PodShape,
    cluster: &Cluster,
    profile: &Profile,
    tables: &mut Tables,
    fitting: &[u32],
) -> Option<Vec<Option<i64>>> {
    let constraints = constraints(shape, cluster, profile, false);
    if constraints.is_empty() {
        return None;
    }
    let domains: Vec<_> = constraints.iter().map(|c| tables.domains(cluster, c.key)).collect();
    // With the system's default constraints a node without a zone still takes part.
    let all_labels = !shape.spread.is_empty() || !profile.system_spread;
    let labelled = |slot: u32| !all_labels || domains.iter().all(|d| d.of(slot).is_some());
    let taking_part: Vec<bool> = fitting.iter().map(|slot| labelled(*slot)).collect();
    let mut raw: Vec<f64> = vec![0.0; fitting.len()];
    for (constraint, own) in constraints.iter().zip(&domains) {
        let by_node = constraint.key == cluster.known.hostname;
        let every = counts_every_node(constraint, shape);
        let counts = |slot: u32| {
            let node = cluster.node(slot);
            node.is_some_and(|n| counts_node(constraint, shape, &n.view, cluster, profile))
        };
        let eligible = |slot: u32| labelled(slot) && (every || counts(slot));
        // Domains of the feasible nodes; a missing value is a domain of its own.
        let mut wanted = vec![false; own.count];
        let mut size = 0_usize;
        let mut unlabelled = false;
        for (slot, _) in fitting.iter().zip(&taking_part).filter(|(_, takes)| **takes) {
            match own.of(*slot) {
                Some(domain) if !wanted[domain] => {
                    wanted[domain] = true;
                    size += 1;
                }
                Some(_) => {}
                None if !unlabelled => {
                    unlabelled = true;
                    size += 1;
                }
                None => {}
            }
        }
        if by_node {
            size = taking_part.iter().filter(|takes| **takes).count();
        }
        let weight = ((size + 2) as f64).ln();
        let slots = if by_node { cluster.slot_count() } else { own.count };
        let mut counts = vec![0_i64; slots];
        for other in cluster.shapes.in_namespace(shape.namespace) {
            if !selects(constraint, &other.shape, cluster) {
                continue;
            }
            for (slot, placed) in &other.placed {
                if by_node {
                    // A node's own pods count whatever the policies are.
                    counts[*slot as usize] += placed.staying();
                } else if let Some(domain) = own.of(*slot)
                    && wanted[domain]
                    && eligible(*slot)
                {
                    counts[domain] += placed.staying();
                }
            }
        }
        for (slot, raw) in fitting.iter().zip(&mut raw) {
            if let Some(domain) = own.of(*slot) {
                let count = if by_node { counts[*slot as usize] } else { counts[domain] };
                *raw += count as f64 * weight + (constraint.max_skew - 1) as f64;
            }
        }
    }
    let scores = raw.iter().zip(&taking_part);
    Some(scores.map(|(raw, takes)| takes.then_some(raw.round() as i64)).collect())
}

/// Normalises scores to 0 to 100: the fewer matching pods, the better.
pub(crate) fn normalise(raw: &[Option<i64>]) -> Vec<i64> {
    let lowest = raw.iter().flatten().min().copied().unwrap_or(0);
    let highest = raw.iter().flatten().max().copied().unwrap_or(0).max(0);
    let one = |raw: &Option<i64>| match raw {
        None => 0,
        Some(_) if highest == 0 => 100,
        Some(raw) => 100 * (highest + lowest - raw) / highest,
    };
    raw.iter().map(one).collect()
}
