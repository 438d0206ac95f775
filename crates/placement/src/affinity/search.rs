//! Finds the fittest set of a given number of nodes that passes a test, without trying all sets.
//!
//! Main entry: [`fittest`]. Nodes are decided from the highest to the lowest, leaving out before
//! taking in, so sets come in ascending order of mask value; an optimistic test of the caller
//! prunes branches that cannot succeed. For one resource the test is exact and the search never
//! backtracks.

use smallvec::SmallVec;

use crate::numa::{MAX_NODES, NumaMask};

use super::{Dimension, Threshold};

/// Which of two sets of equal size is fitter.
#[derive(Clone, Copy, Debug)]
pub enum Fit<'a> {
    /// The one with the lower nodes.
    Lowest,
    /// The one with the smaller sum of distances, then the one with the lower nodes.
    Closest(&'a [Vec<u32>]),
}

impl Fit<'_> {
    /// Lower is fitter, among sets of equal size.
    #[must_use]
    pub fn key(&self, mask: NumaMask) -> (u64, u64) {
        match self {
            Fit::Lowest => (0, mask.0),
            Fit::Closest(distances) => (distance_sum(distances, mask), mask.0),
        }
    }
}

/// The sum over all ordered pairs. Sets of equal size have the same number of pairs, so comparing
/// sums compares averages.
fn distance_sum(distances: &[Vec<u32>], mask: NumaMask) -> u64 {
    mask.iter().flat_map(|a| mask.iter().map(move |b| u64::from(distances[a][b]))).sum()
}

/// A partial set: nodes taken, nodes not decided yet, and the number of nodes still missing.
#[derive(Clone, Copy, Debug)]
pub struct Partial {
    pub taken: NumaMask,
    pub open: NumaMask,
    pub missing: usize,
}

/// Returns the fittest set of `size` nodes within `universe` that contains `must` and passes
/// `accept`. `possible` may return false only if no completion of the partial set would be
/// accepted.
pub fn fittest(
    universe: NumaMask,
    must: NumaMask,
    size: usize,
    fit: Fit<'_>,
    possible: impl Fn(Partial) -> bool,
    accept: impl Fn(NumaMask) -> bool,
) -> Option<NumaMask> {
    if size == 0 || size > universe.len() || must.len() > size || !must.is_subset(universe) {
        return None;
    }
    let mut search = Search { must, fit, possible, accept, best: None };
    search.descend(Partial { taken: NumaMask::EMPTY, open: universe, missing: size });
    search.best.map(|(_, mask)| mask)
}

struct Search<'a, P, A> {
    must: NumaMask,
    fit: Fit<'a>,
    possible: P,
    accept: A,
    best: Option<((u64, u64), NumaMask)>,
}

impl<P: Fn(Partial) -> bool, A: Fn(NumaMask) -> bool> Search<'_, P, A> {
    fn descend(&mut self, partial: Partial) {
        let Partial { taken, open, missing } = partial;
        if missing == 0 {
            if self.must.is_subset(taken) && (self.accept)(taken) {
                let key = self.fit.key(taken);
                if self.best.is_none_or(|(best, _)| key < best) {
                    self.best = Some((key, taken));
                }
            }
            return;
        }
        if open.len() < missing || !self.can_beat(partial) || !(self.possible)(partial) {
            return;
        }
        let Some(node) = open.iter().next_back() else { return };
        let open = open - NumaMask::single(node);
        if !self.must.contains(node) {
            self.descend(Partial { taken, open, missing });
            // Sets come in ascending order, so without distances the first is the fittest.
            if self.best.is_some() && matches!(self.fit, Fit::Lowest) {
                return;
            }
        }
        let taken = taken | NumaMask::single(node);
        self.descend(Partial { taken, open, missing: missing - 1 });
    }

    /// Returns true if some completion could be closer than the best so far. A later set of the
    /// same distance has a higher value, so it must be strictly closer.
    fn can_beat(&self, partial: Partial) -> bool {
        match (self.fit, self.best) {
            (Fit::Closest(distances), Some(((best, _), _))) => {
                closest_bound(distances, partial) < best
            }
            (_, best) => best.is_none(),
        }
    }
}

/// Returns a lower bound on the distance sum of any completion: every added node counts its
/// distances to the nodes taken and to its nearest possible companions.
fn closest_bound(distances: &[Vec<u32>], partial: Partial) -> u64 {
    let Partial { taken, open, missing } = partial;
    let mut newcomers: SmallVec<[u64; MAX_NODES]> = SmallVec::new();
    for node in open.iter() {
        let way =
            |other: usize| u64::from(distances[node][other]) + u64::from(distances[other][node]);
        let mut companions: SmallVec<[u64; MAX_NODES]> =
            open.iter().filter(|o| *o != node).map(|o| u64::from(distances[node][o])).collect();
        companions.sort_unstable();
        let near: u64 = companions.iter().take(missing - 1).sum();
        let to_taken: u64 = taken.iter().map(way).sum();
        newcomers.push(u64::from(distances[node][node]) + to_taken + near);
    }
    newcomers.sort_unstable();
    distance_sum(distances, taken) + newcomers.iter().take(missing).sum::<u64>()
}

/// Returns true if the heaviest open nodes would be enough.
#[must_use]
pub fn within_reach(dimension: &Dimension, partial: Partial) -> bool {
    let taken = dimension.sum(partial.taken);
    if taken >= dimension.need {
        return true;
    }
    let mut open: SmallVec<[u64; MAX_NODES]> =
        partial.open.iter().map(|node| dimension.weight[node]).collect();
    let top = match open.len() {
        n if n > partial.missing => {
            open.select_nth_unstable_by(partial.missing, |a, b| b.cmp(a));
            &open[..partial.missing]
        }
        _ => &open[..],
    };
    top.iter().fold(taken, |sum, weight| sum.saturating_add(*weight)) >= dimension.need
}

/// The number of nodes of the smallest member.
#[must_use]
pub fn smallest_size(threshold: &Threshold) -> Option<usize> {
    if !threshold.is_satisfiable() {
        return None;
    }
    let from = threshold.must.len().max(threshold.least).max(1);
    (from..=threshold.ground.len()).find(|size| member_of_size(threshold, *size).is_some())
}

/// The lowest member with just `size` nodes.
#[must_use]
pub fn member_of_size(threshold: &Threshold, size: usize) -> Option<NumaMask> {
    fittest(
        threshold.ground,
        threshold.must,
        size,
        Fit::Lowest,
        |partial| threshold.dimensions.iter().all(|d| within_reach(d, partial)),
        |mask| threshold.contains(mask),
    )
}
