//! Merges the hints of several resources into one.
//!
//! Main entry: [`merge`]. A merged hint takes one hint of every resource; its nodes are their
//! intersection. It is preferred if all are preferred and have the same nodes. Preferred hints win;
//! among them the one with the fewest nodes, then the fittest. Without a preferred hint, the target
//! is the number of nodes that the most demanding resource needs at least: that many if possible,
//! else the most below, else the fewest above.
//!
//! Neither case tries combinations of hints. A preferred merged hint is a member of every family,
//! so one search over sets of nodes finds it. The other case asks which sets are intersections of
//! members of these families. A set is one if every other node can be left out by at least one
//! family without that family falling below its threshold ([`Pruning`]).

use smallvec::SmallVec;

use crate::numa::{MAX_NODES, NumaMask};

use super::search::{Fit, Partial, fittest, within_reach};
use super::{Dimension, Family, Hint, Preference, Threshold, socket_count};

/// Returns the best merged hint of `families`, each with its multiplicity, on a machine with the
/// nodes `all`.
#[must_use]
pub fn merge(families: &[(&Family, usize)], all: NumaMask, fit: Fit<'_>) -> Hint {
    if let Some(nodes) = best_preferred(families, all, fit) {
        return Hint { nodes: Some(nodes), preferred: true };
    }
    let nodes = best_common(families, all, fit).unwrap_or(all);
    Hint { nodes: Some(nodes), preferred: false }
}

/// The fewest, then fittest nodes that every family prefers or does not care about.
fn best_preferred(families: &[(&Family, usize)], all: NumaMask, fit: Fit<'_>) -> Option<NumaMask> {
    let agrees = |mask: NumaMask| {
        families.iter().all(|(f, _)| f.anywhere == Some(true) || f.find(mask) == Some(true))
    };
    let mut best: Option<(usize, (u64, u64), NumaMask)> = None;
    let mut consider = |mask: NumaMask| {
        let nodes = mask & all;
        if nodes.is_empty() {
            return;
        }
        let key = (nodes.len(), fit.key(nodes), nodes);
        if best.is_none_or(|b| key < b) {
            best = Some(key);
        }
    };
    let caring: SmallVec<[&Family; 4]> =
        families.iter().map(|(f, _)| *f).filter(|f| f.anywhere != Some(true)).collect();
    if caring.is_empty() {
        consider(all);
    }
    // A family with nothing but a list settles the candidates; otherwise all lists and what the
    // descriptions have in common do.
    let pool: SmallVec<[&Family; 4]> = match caring.iter().find(|f| f.threshold.is_none()) {
        Some(family) => SmallVec::from_slice(&[*family]),
        None if caring.is_empty() => families.iter().map(|(f, _)| *f).collect(),
        None => caring.clone(),
    };
    for family in &pool {
        for (mask, preferred) in &family.listed {
            if *preferred && agrees(*mask) {
                consider(*mask);
            }
        }
    }
    if pool.iter().all(|f| f.threshold.is_some()) {
        let thresholds: SmallVec<[&Threshold; 4]> =
            pool.iter().filter_map(|f| f.threshold.as_ref()).collect();
        if let Some(mask) = best_described(&thresholds, fit) {
            consider(mask);
        }
    }
    best.map(|(_, _, nodes)| nodes)
}

/// The smallest, then fittest set that is a preferred member of all descriptions.
fn best_described(thresholds: &[&Threshold], fit: Fit<'_>) -> Option<NumaMask> {
    let first = thresholds.first()?;
    let ground = thresholds.iter().fold(first.ground, |ground, t| ground & t.ground);
    let must = thresholds.iter().fold(first.must, |must, t| must | t.must);
    let least = thresholds.iter().map(|t| t.least.max(1)).max()?;
    let dimensions: SmallVec<[&Dimension; 4]> =
        thresholds.iter().flat_map(|t| &t.dimensions).collect();
    (least..=ground.len()).find_map(|size| {
        // Of each preference only what this size leaves open: nothing, or a number of sockets.
        let mut sockets: SmallVec<[(usize, &[u64; MAX_NODES]); 4]> = SmallVec::new();
        for threshold in thresholds {
            match &threshold.preference {
                Preference::Size(s) | Preference::SizeOrSockets { size: s, .. } if *s == size => {}
                Preference::Size(_) => return None,
                Preference::SizeOrSockets { sockets: n, sockets_of, .. } => {
                    sockets.push((*n, sockets_of));
                }
            }
        }
        fittest(
            ground,
            must,
            size,
            fit,
            |partial| {
                dimensions.iter().all(|d| within_reach(d, partial))
                    && sockets.iter().all(|(n, of)| {
                        socket_count(of, partial.taken) <= *n
                            && socket_count(of, partial.taken | partial.open) >= *n
                    })
            },
            |mask| {
                thresholds.iter().all(|t| t.contains(mask))
                    && sockets.iter().all(|(n, of)| socket_count(of, mask) == *n)
            },
        )
    })
}

/// The best set of nodes common to one hint of every family, preferred or not. `None` if no
/// choice of hints has a node in common.
fn best_common(families: &[(&Family, usize)], all: NumaMask, fit: Fit<'_>) -> Option<NumaMask> {
    let target = families.iter().filter_map(|(f, _)| f.smallest()).max().unwrap_or(0);
    let key = |mask: NumaMask| {
        let n = mask.len();
        let rank = match n.cmp(&target) {
            std::cmp::Ordering::Equal => (0, 0),
            std::cmp::Ordering::Less => (1, target - n),
            std::cmp::Ordering::Greater => (2, n),
        };
        (rank, fit.key(mask))
    };
    let mut best: Option<NumaMask> = None;
    if families.iter().all(|(f, _)| f.threshold.is_none()) {
        return reachable(families, all).into_iter().min_by_key(|mask| key(*mask));
    }
    for state in choices(families, all) {
        let mut consider = |mask: NumaMask| {
            if !mask.is_empty() && best.is_none_or(|b| key(mask) < key(b)) {
                best = Some(mask);
            }
        };
        if state.thresholds.is_empty() {
            consider(state.within);
            continue;
        }
        let pruning = Pruning::new(state.within, &state.thresholds);
        let sizes = (1..=target).rev().chain(target + 1..=pruning.universe.len());
        if let Some(mask) = sizes.into_iter().find_map(|size| pruning.fittest(size, fit)) {
            consider(mask);
        }
    }
    best
}

/// Every non-empty set that one listed hint of each family have in common. There can be no more
/// than there are sets of nodes, however many combinations lead to them.
fn reachable(families: &[(&Family, usize)], all: NumaMask) -> Vec<NumaMask> {
    let mut reached = vec![all];
    // Up to 16 nodes a bit for every set fits 8 KiB; beyond that lists are short, sets sparse.
    let dense = all == NumaMask::first(all.len()) && all.len() <= 16;
    for (family, times) in families {
        for _ in 0..*times {
            if family.listed.is_empty() {
                continue;
            }
            let mut seen = vec![0u64; if dense { (1 << all.len()) / 64 + 1 } else { 0 }];
            let mut next = Vec::new();
            for within in &reached {
                let anywhere = family.anywhere.map(|_| all);
                for mask in family.listed.iter().map(|(mask, _)| *mask).chain(anywhere) {
                    let common = *within & mask;
                    if common.is_empty() {
                        continue;
                    }
                    if dense {
                        let (word, bit) = (common.0 as usize / 64, 1 << (common.0 % 64));
                        if seen[word] & bit != 0 {
                            continue;
                        }
                        seen[word] |= bit;
                    }
                    next.push(common);
                }
            }
            if !dense {
                next.sort_unstable();
                next.dedup();
            }
            reached = next;
        }
    }
    reached
}

/// One way to choose between the listed hints and the description of every family.
struct Choice<'a> {
    /// The intersection of the chosen listed hints.
    within: NumaMask,
    /// The chosen descriptions, with repetitions.
    thresholds: SmallVec<[&'a Threshold; 4]>,
}

/// Every choice that can matter: combinations of listed hints are reduced to what they have in
/// common, so their number is bounded by the number of different results.
fn choices<'a>(families: &[(&'a Family, usize)], all: NumaMask) -> Vec<Choice<'a>> {
    let mut states = vec![Choice { within: all, thresholds: SmallVec::new() }];
    for (family, times) in families {
        for _ in 0..*times {
            if family.listed.is_empty() && family.threshold.is_none() {
                continue;
            }
            let mut next: Vec<Choice<'a>> = Vec::new();
            // States of one family's copies differ only in number of thresholds and in nodes left.
            let mut seen = std::collections::HashSet::new();
            let mut add = |within: NumaMask, thresholds: &SmallVec<[&'a Threshold; 4]>| {
                if !within.is_empty() && seen.insert((within, fingerprint(thresholds))) {
                    next.push(Choice { within, thresholds: thresholds.clone() });
                }
            };
            for state in &states {
                if family.anywhere.is_some() {
                    add(state.within, &state.thresholds);
                }
                for (mask, _) in &family.listed {
                    add(state.within & *mask, &state.thresholds);
                }
                if let Some(threshold) = &family.threshold {
                    let mut thresholds = state.thresholds.clone();
                    thresholds.push(threshold);
                    add(state.within, &thresholds);
                }
            }
            states = next;
        }
    }
    states
}

/// Identifies the chosen descriptions, to detect equal choices.
fn fingerprint(thresholds: &[&Threshold]) -> SmallVec<[usize; 4]> {
    thresholds.iter().map(|t| std::ptr::from_ref(*t) as usize).collect()
}

/// Decides which sets are intersections of members: a set is one if every other node of the
/// universe is left out by at least one family, and each family stays above its threshold.
struct Pruning<'a> {
    /// Nodes that all have in common at the most; all others are out anyway.
    universe: NumaMask,
    thresholds: SmallVec<[&'a Threshold; 4]>,
    /// The nodes, and the weight per dimension, that each family can leave out.
    spare: SmallVec<[SparePool; 4]>,
}

#[derive(Clone, Debug)]
struct SparePool {
    nodes: usize,
    weights: SmallVec<[u64; 4]>,
}

impl SparePool {
    /// Returns the rest after leaving out `node`; `None` if the family cannot.
    fn without(&self, threshold: &Threshold, node: usize) -> Option<SparePool> {
        if threshold.must.contains(node) {
            return None;
        }
        let nodes = self.nodes.checked_sub(1)?;
        let weights = self
            .weights
            .iter()
            .zip(&threshold.dimensions)
            .map(|(spare, d)| spare.checked_sub(d.weight[node]))
            .collect::<Option<_>>()?;
        Some(SparePool { nodes, weights })
    }
}

impl<'a> Pruning<'a> {
    fn new(within: NumaMask, thresholds: &[&'a Threshold]) -> Pruning<'a> {
        let universe = thresholds.iter().fold(within, |universe, t| universe & t.ground);
        let spare = thresholds
            .iter()
            .map(|t| SparePool {
                nodes: t.ground.len() - t.least.max(1).min(t.ground.len()),
                weights: t.dimensions.iter().map(|d| d.sum(t.ground) - d.need).collect(),
            })
            .collect();
        Pruning { universe, thresholds: SmallVec::from_slice(thresholds), spare }
    }

    fn fittest(&self, size: usize, fit: Fit<'_>) -> Option<NumaMask> {
        fittest(
            self.universe,
            NumaMask::EMPTY,
            size,
            fit,
            |partial| self.possible(partial),
            |mask| self.leave_out(self.universe - mask, &self.spare),
        )
    }

    /// Optimistic: what is surely out must be spared by someone, and as many more nodes as have to
    /// go must fit if every family leaves out its lightest.
    fn possible(&self, partial: Partial) -> bool {
        let out = self.universe - partial.taken - partial.open;
        let to_go = out.len() + partial.open.len() - partial.missing;
        let candidates = out | partial.open;
        let most: usize = (self.thresholds.iter().zip(&self.spare))
            .map(|(threshold, spare)| most_left_out(threshold, spare, candidates))
            .sum();
        let spared = |node| {
            (self.thresholds.iter().zip(&self.spare)).any(|(c, s)| s.without(c, node).is_some())
        };
        most >= to_go && out.iter().all(spared)
    }

    /// Returns true if `out` can be divided among the families, each within its spare pool.
    fn leave_out(&self, out: NumaMask, spare: &[SparePool]) -> bool {
        let Some(node) = self.hardest(out) else { return true };
        let rest = out - NumaMask::single(node);
        for (at, threshold) in self.thresholds.iter().enumerate() {
            // Two families of the same description with the same left to spare are one choice.
            let same = |other: usize| {
                std::ptr::eq(*threshold, self.thresholds[other])
                    && spare[other].nodes == spare[at].nodes
                    && spare[other].weights == spare[at].weights
            };
            if (0..at).any(same) {
                continue;
            }
            if let Some(left) = spare[at].without(threshold, node) {
                let mut spare: SmallVec<[SparePool; 4]> = spare.into();
                spare[at] = left;
                if self.fits_by_count(rest, &spare) && self.leave_out(rest, &spare) {
                    return true;
                }
            }
        }
        false
    }

    fn fits_by_count(&self, out: NumaMask, spare: &[SparePool]) -> bool {
        let most: usize = (self.thresholds.iter().zip(spare))
            .map(|(threshold, spare)| most_left_out(threshold, spare, out))
            .sum();
        most >= out.len()
    }

    /// The node to place next: the heaviest share of anyone's spare weight first.
    fn hardest(&self, out: NumaMask) -> Option<usize> {
        out.iter().max_by_key(|node| {
            (self.thresholds.iter())
                .flat_map(|c| &c.dimensions)
                .map(|d| d.weight[*node])
                .max()
                .unwrap_or(0)
        })
    }
}

/// How many of `nodes` a family could leave out at the most, taking the lightest first.
fn most_left_out(threshold: &Threshold, spare: &SparePool, nodes: NumaMask) -> usize {
    let free = nodes - threshold.must;
    let mut most = spare.nodes.min(free.len());
    for (dimension, spare) in threshold.dimensions.iter().zip(&spare.weights) {
        let mut weights: SmallVec<[u64; MAX_NODES]> =
            free.iter().map(|node| dimension.weight[node]).collect();
        weights.sort_unstable();
        let mut left = *spare;
        let mut count = 0;
        for weight in weights {
            match left.checked_sub(weight) {
                Some(rest) => left = rest,
                None => break,
            }
            count += 1;
        }
        most = most.min(count);
    }
    most
}
