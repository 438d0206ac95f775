//! Node scores, with upstream's arithmetic.
//!
//! Main types: [`LocalScores`], which depend only on the node and its own pods, and [`ScoreTable`],
//! the scores of all feasible nodes. Integer divisions truncate toward zero, as upstream's do.

use crate::cluster::Cluster;
use crate::inter_pod_affinity;
use crate::node::{NodeView, Occupancy};
use crate::profile::{Profile, Strategy};
use crate::resources::Resource;
use crate::shape::PodShape;
use crate::spread;
use crate::taints::Effect;
use crate::topology::Tables;
use crate::verdict::Plugin;

const HIGHEST: i64 = 100;

/// Images below this size do not count.
const SMALL_IMAGE: i64 = 23 << 20;
/// Above this size per image a node gets the full score.
const LARGE_IMAGE: i64 = 1000 << 20;

/// Raw scores that depend on a node and its own pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LocalScores {
    taints: i32,
    affinity: i32,
    fit: i32,
    balanced: i32,
    images: i32,
    classes: i32,
}

fn narrow(score: i64) -> i32 {
    i32::try_from(score).unwrap_or(if score < 0 { i32::MIN } else { i32::MAX })
}

impl LocalScores {
    pub(crate) const NONE: LocalScores =
        LocalScores { taints: 0, affinity: 0, fit: 0, balanced: 0, images: 0, classes: 0 };

    pub(crate) fn new(
        shape: &PodShape,
        node: &NodeView,
        occupancy: &Occupancy,
        cluster: &Cluster,
        profile: &Profile,
    ) -> LocalScores {
        LocalScores {
            taints: narrow(taints(shape, node, profile)),
            affinity: narrow(affinity(shape, node, cluster, profile)),
            fit: narrow(fit(shape, node, occupancy, profile)),
            balanced: narrow(balanced(shape, node, occupancy, profile)),
            images: narrow(images(shape, node, cluster)),
            classes: narrow(classes(shape, node, occupancy)),
        }
    }
}

/// Counts `PreferNoSchedule` taints that are not tolerated.
fn taints(shape: &PodShape, node: &NodeView, profile: &Profile) -> i64 {
    let soft = node.taints.iter().filter(|t| t.effect == Effect::PreferNoSchedule);
    let disliked = soft.filter(|taint| {
        let mut tolerations = shape.tolerations.iter().filter(|t| t.is_for_preferences());
        !tolerations.any(|t| t.tolerates(taint, profile.compare_taints))
    });
    disliked.count() as i64
}

/// Returns the sum of the weights of matching preferred terms.
fn affinity(shape: &PodShape, node: &NodeView, cluster: &Cluster, profile: &Profile) -> i64 {
    let terms = shape.node_preferred.iter().chain(&profile.added_preferred);
    let matching =
        terms.filter(|(_, term)| term.matches(node.name, &node.labels, &cluster.symbols));
    matching.map(|(weight, _)| *weight).sum()
}

fn fit(shape: &PodShape, node: &NodeView, occupancy: &Occupancy, profile: &Profile) -> i64 {
    let (mut sum, mut weights) = (0, 0);
    for (resource, weight) in &profile.fit_resources {
        let own = shape.scored_as_new.get(*resource);
        let there = match resource {
            // An extended resource that the pod does not request does not count.
            Resource::Scalar(_) if own == 0 => 0,
            resource => node.allocatable.get(*resource),
        };
        if there == 0 {
            continue;
        }
        let used = match resource {
            Resource::Cpu => occupancy.scored_milli_cpu,
            Resource::FilterCache => occupancy.scored_memory,
            other => occupancy.requested.get(*other),
        };
        let asked = used.saturating_add(own);
        let score = match &profile.strategy {
            Strategy::LeastAllocated if asked > there => 0,
            Strategy::LeastAllocated => percentage(there.saturating_sub(asked), there),
            Strategy::MostAllocated => percentage(asked.min(there), there),
            Strategy::Ratio(points) => match at_utilisation(asked, there, points) {
                // Upstream leaves such resources out of the mean.
                score if score <= 0 => continue,
                score => score,
            },
        };
        sum += score * weight;
        weights += weight;
    }
    match (&profile.strategy, weights) {
        (_, 0) => 0,
        (Strategy::Ratio(_), weights) => (sum as f64 / weights as f64).round() as i64,
        (_, weights) => sum / weights,
    }
}

/// Returns a part as a percentage of the whole.
fn percentage(part: i64, whole: i64) -> i64 {
    part.checked_mul(HIGHEST).map_or_else(
        // Amounts above 92 petabytes are compared slightly less exactly.
        || part / (whole / HIGHEST).max(1),
        |hundredfold| hundredfold / whole,
    )
}

/// Returns the value of a piecewise linear function at the requested percentage of the whole.
pub(crate) fn at_utilisation(asked: i64, there: i64, points: &[(i64, i64)]) -> i64 {
    let all = there == 0 || asked > there;
    interpolate(points, if all { HIGHEST } else { percentage(asked, there) })
}

/// Returns the value of a piecewise linear function.
fn interpolate(points: &[(i64, i64)], at: i64) -> i64 {
    let mut before: Option<(i64, i64)> = None;
    for (x, y) in points {
        if at <= *x {
            return match before {
                None => *y,
                Some((x0, y0)) => y0 + (y - y0) * (at - x0) / (x - x0),
            };
        }
        before = Some((*x, *y));
    }
    before.map_or(0, |(_, y)| y)
}

/// Compares how evenly resources are used with the pod and without it: 75 means no change.
fn balanced(shape: &PodShape, node: &NodeView, occupancy: &Occupancy, profile: &Profile) -> i64 {
    let evenness = |with_pod: bool| {
        let mut fractions: smallvec::SmallVec<[f64; 4]> = smallvec::SmallVec::new();
        for resource in &profile.balanced {
            let own = shape.requests.get(*resource);
            let there = node.allocatable.get(*resource);
            if there == 0 || (own == 0 && matches!(resource, Resource::Scalar(_))) {
                continue;
            }
            let own = if with_pod { own } else { 0 };
            let asked = occupancy.requested.get(*resource).saturating_add(own);
            fractions.push((asked as f64 / there as f64).min(1.0));
        }
        let deviation = match fractions.as_slice() {
            [] | [_] => 0.0,
            [a, b] => ((a - b) / 2.0).abs(),
            many => {
                let mean = many.iter().sum::<f64>() / many.len() as f64;
                let squares: f64 = many.iter().map(|f| (f - mean) * (f - mean)).sum();
                (squares / many.len() as f64).sqrt()
            }
        };
        ((1.0 - deviation) * HIGHEST as f64) as i64
    };
    50 + (50 + evenness(true) - evenness(false)) / 2
}

/// Returns true if balance is scored: a pod without requests does not disturb it.
fn disturbs_balance(shape: &PodShape, profile: &Profile) -> bool {
    profile.balanced.iter().any(|resource| shape.requests.get(*resource) != 0)
}

fn images(shape: &PodShape, node: &NodeView, cluster: &Cluster) -> i64 {
    if node.images.is_empty() || shape.images.is_empty() {
        return 0;
    }
    let all = cluster.node_count() as f64;
    let scaled = |image| {
        let here = node.images.iter().any(|(name, _)| name == image);
        let spread = cluster.images.get(image).filter(|_| here)?;
        Some((spread.size as f64 * (spread.nodes as f64 / all)) as i64)
    };
    let sum = shape.images.iter().filter_map(scaled).fold(0, i64::saturating_add);
    let most = LARGE_IMAGE * shape.images.len() as i64;
    HIGHEST * (sum.clamp(SMALL_IMAGE, most) - SMALL_IMAGE) / (most - SMALL_IMAGE)
}

/// Returns the mean percentage of free capacity over the classes that the pod uses.
fn classes(shape: &PodShape, node: &NodeView, occupancy: &Occupancy) -> i64 {
    if shape.classes.is_empty() {
        return 0;
    }
    let needs = shape.classes.on(&node.classes);
    let free = |(class, count): &(crate::classes::Class, u32)| {
        let capacity = match node.classes.capacity(*class) {
            None => return 0,
            Some(0) => return HIGHEST,
            Some(capacity) => i64::try_from(capacity).unwrap_or(i64::MAX),
        };
        let used = occupancy.classes.of(*class).saturating_add(u64::from(*count));
        let used = i64::try_from(used).unwrap_or(i64::MAX);
        percentage((capacity - used).max(0), capacity)
    };
    needs.iter().map(free).sum::<i64>() / (needs.len() as i64).max(1)
}

/// The scores of one plugin for the feasible nodes.
#[derive(Debug)]
pub(crate) struct Column {
    pub(crate) plugin: Plugin,
    pub(crate) weight: i64,
    pub(crate) raw: Vec<i64>,
    pub(crate) normalised: Vec<i64>,
}

/// The scores of the feasible nodes, in their order.
#[derive(Debug)]
pub(crate) struct ScoreTable {
    /// Columns are kept, not only totals.
    keep: bool,
    pub(crate) columns: Vec<Column>,
    pub(crate) totals: Vec<i64>,
}

impl ScoreTable {
    pub(crate) fn new(keep: bool) -> ScoreTable {
        ScoreTable { keep, columns: Vec::new(), totals: Vec::new() }
    }

    /// Adds a plugin's scores: raw and normalised to 0 to 100 for each node.
    fn add(
        &mut self,
        plugin: Plugin,
        weight: i64,
        scores: impl Iterator<Item = (i64, i64)> + Clone,
    ) {
        for (total, (_, normalised)) in self.totals.iter_mut().zip(scores.clone()) {
            *total += weight * normalised;
        }
        if self.keep {
            let (raw, normalised) = scores.unzip();
            self.columns.push(Column { plugin, weight, raw, normalised });
        }
    }

    /// Adds scores that are already between 0 and 100.
    pub(crate) fn add_plain(&mut self, plugin: Plugin, weight: i64, scores: &[i64]) {
        self.add(plugin, weight, scores.iter().map(|score| (*score, *score)));
    }

    /// Scores the feasible nodes. `local` has their local scores.
    pub(crate) fn fill(
        &mut self,
        shape: &PodShape,
        cluster: &Cluster,
        profile: &Profile,
        tables: &mut Tables,
        fitting: &[u32],
        local: &[LocalScores],
    ) {
        self.totals = vec![0; fitting.len()];
        if let Some(weight) = profile.weight(Plugin::TaintToleration) {
            let raw = local.iter().map(|s| i64::from(s.taints));
            let most = raw.clone().max().unwrap_or(0);
            let one = |raw| (raw, if most == 0 { HIGHEST } else { HIGHEST - raw * HIGHEST / most });
            self.add(Plugin::TaintToleration, weight, raw.map(one));
        }
        let prefers = !(shape.node_preferred.is_empty() && profile.added_preferred.is_empty());
        if let (true, Some(weight)) = (prefers, profile.weight(Plugin::NodeAffinity)) {
            let raw = local.iter().map(|s| i64::from(s.affinity));
            let most = raw.clone().max().unwrap_or(0);
            let one = |raw| (raw, if most == 0 { raw } else { raw * HIGHEST / most });
            self.add(Plugin::NodeAffinity, weight, raw.map(one));
        }
        if let Some(weight) = profile.weight(Plugin::PodTopologySpread)
            && let Some(raw) = spread::soft_scores(shape, cluster, profile, tables, fitting)
        {
            let normalised = spread::normalise(&raw);
            let raw = raw.iter().map(|raw| raw.unwrap_or(0));
            self.add(Plugin::PodTopologySpread, weight, raw.zip(normalised.iter().copied()));
        }
        if let Some(weight) = profile.weight(Plugin::InterPodAffinity)
            && let Some(raw) = inter_pod_affinity::scores(shape, cluster, profile, tables, fitting)
        {
            let normalised = inter_pod_affinity::normalise(&raw);
            let scores = raw.iter().copied().zip(normalised.iter().copied());
            self.add(Plugin::InterPodAffinity, weight, scores);
        }
        let plain = |of: fn(&LocalScores) -> i32| {
            local.iter().map(move |s| (i64::from(of(s)), i64::from(of(s))))
        };
        if let Some(weight) = profile.weight(Plugin::NodeResourcesFit) {
            self.add(Plugin::NodeResourcesFit, weight, plain(|s| s.fit));
        }
        let balance = profile.weight(Plugin::NodeResourcesBalancedAllocation);
        if let (true, Some(weight)) = (disturbs_balance(shape, profile), balance) {
            let plugin = Plugin::NodeResourcesBalancedAllocation;
            self.add(plugin, weight, plain(|s| s.balanced));
        }
        if let Some(weight) = profile.weight(Plugin::ImageLocality) {
            self.add(Plugin::ImageLocality, weight, plain(|s| s.images));
        }
        let classes = profile.weight(Plugin::QosResources);
        if let (false, Some(weight)) = (shape.classes.is_empty(), classes) {
            self.add(Plugin::QosResources, weight, plain(|s| s.classes));
        }
    }
}
