//! NUMA affinity: the sets of nodes that each resource accepts, and the set that satisfies all.
//!
//! Main types: [`Hint`] (a set of nodes, preferred or not), [`Family`] (all hints of one resource)
//! and [`merge`](merge::merge). The kubelet lists every mask of nodes that satisfies a request and
//! tries every combination of such lists; both are exponential in nodes. Here a family is kept as a
//! description, "all sets of these nodes that contain those and weigh at least so much"
//! ([`Threshold`]), plus a few sets listed one by one. Merging works on that description.
//!
//! This module knows nothing of CPUs or memory; [`crate::cpu`] and [`crate::memory`] describe
//! their resources with it.

use smallvec::SmallVec;

use crate::numa::{MAX_NODES, NumaMask};

pub mod merge;
pub mod search;

/// A set of NUMA nodes that can provide a resource. `None` means any node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hint {
    pub nodes: Option<NumaMask>,
    pub preferred: bool,
}

impl Hint {
    /// A resource without a preference.
    pub const ANYWHERE: Hint = Hint { nodes: None, preferred: true };
    /// A resource that cannot be satisfied.
    pub const NOWHERE: Hint = Hint { nodes: None, preferred: false };
}

/// All hints of one resource.
#[derive(Clone, Debug, Default)]
pub struct Family {
    /// A hint without nodes, and its preference.
    pub anywhere: Option<bool>,
    /// Sets listed one by one.
    pub listed: SmallVec<[(NumaMask, bool); 8]>,
    /// Sets described by their required weight.
    pub threshold: Option<Threshold>,
}

/// All sets of nodes within `ground` that contain `must`, have at least `least` nodes, and reach
/// the required weight in every dimension. Every superset of a member within `ground` is a member
/// too.
#[derive(Clone, Debug)]
pub struct Threshold {
    pub ground: NumaMask,
    pub must: NumaMask,
    pub least: usize,
    pub dimensions: SmallVec<[Dimension; 1]>,
    pub preference: Preference,
}

/// One resource's amount per node (by position) and the amount needed.
#[derive(Clone, Debug)]
pub struct Dimension {
    pub weight: [u64; MAX_NODES],
    pub need: u64,
}

/// Which members of a [`Threshold`] are preferred.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Preference {
    /// Sets with exactly this number of nodes.
    Size(usize),
    /// These, and sets whose nodes lie in exactly this number of sockets.
    SizeOrSockets { size: usize, sockets: usize, sockets_of: Box<[u64; MAX_NODES]> },
}

impl Preference {
    #[must_use]
    pub fn holds(&self, mask: NumaMask) -> bool {
        match self {
            Preference::Size(size) => mask.len() == *size,
            Preference::SizeOrSockets { size, sockets, sockets_of } => {
                mask.len() == *size || socket_count(sockets_of, mask) == *sockets
            }
        }
    }
}

fn socket_count(sockets_of: &[u64; MAX_NODES], mask: NumaMask) -> usize {
    mask.iter().fold(0, |sockets, node| sockets | sockets_of[node]).count_ones() as usize
}

impl Dimension {
    /// Saturates: amounts near the top of the range mean "more than enough".
    fn sum(&self, mask: NumaMask) -> u64 {
        mask.iter().fold(0, |sum: u64, node| sum.saturating_add(self.weight[node]))
    }
}

impl Threshold {
    #[must_use]
    pub fn contains(&self, mask: NumaMask) -> bool {
        mask.is_subset(self.ground)
            && self.must.is_subset(mask)
            && mask.len() >= self.least.max(1)
            && self.dimensions.iter().all(|d| d.sum(mask) >= d.need)
    }

    /// Returns true if there is a member: then the whole ground is one.
    #[must_use]
    pub fn is_satisfiable(&self) -> bool {
        self.contains(self.ground)
    }
}

impl Family {
    /// Returns the family of a resource without constraints.
    #[must_use]
    pub fn anywhere(preferred: bool) -> Family {
        Family { anywhere: Some(preferred), ..Family::default() }
    }

    #[must_use]
    pub fn listed(hints: impl IntoIterator<Item = (NumaMask, bool)>) -> Family {
        Family { listed: hints.into_iter().collect(), ..Family::default() }
    }

    #[must_use]
    pub fn described(threshold: Threshold) -> Family {
        let threshold = threshold.is_satisfiable().then_some(threshold);
        Family { threshold, ..Family::default() }
    }

    /// Returns true if there is no hint.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.anywhere.is_none() && self.listed.is_empty() && self.threshold.is_none()
    }

    /// Returns the preference of `mask`; `None` if it is not among the hints.
    #[must_use]
    pub fn find(&self, mask: NumaMask) -> Option<bool> {
        let listed =
            self.listed.iter().filter(|(m, _)| *m == mask).map(|(_, preferred)| *preferred);
        let described =
            self.threshold.iter().filter(|t| t.contains(mask)).map(|t| t.preference.holds(mask));
        listed.chain(described).reduce(|a, b| a || b)
    }

    /// Keeps only preferred sets of one node and a preferred "anywhere", as `single-numa-node`
    /// requires.
    #[must_use]
    pub fn only_preferred_single_nodes(&self) -> Family {
        let mut singles =
            Family { anywhere: self.anywhere.filter(|preferred| *preferred), ..Family::default() };
        let ground = self.threshold.as_ref().map_or(NumaMask::EMPTY, |t| t.ground);
        let listed = self.listed.iter().fold(NumaMask::EMPTY, |all, (mask, _)| all | *mask);
        for node in (ground | listed).iter() {
            let mask = NumaMask::single(node);
            if self.find(mask) == Some(true) {
                singles.listed.push((mask, true));
            }
        }
        singles
    }

    /// Returns the smallest number of nodes of any hint with nodes.
    #[must_use]
    pub fn smallest(&self) -> Option<usize> {
        let listed = self.listed.iter().map(|(mask, _)| mask.len()).min();
        let described = self.threshold.as_ref().and_then(search::smallest_size);
        listed.into_iter().chain(described).min()
    }

    /// Returns every hint in the kubelet's order: by number of nodes, then by nodes. Exponential in
    /// nodes: for comparisons and explanations on small machines, never for decisions.
    #[must_use]
    pub fn enumerate(&self, nodes: usize) -> Vec<Hint> {
        let mut hints = Vec::new();
        if let Some(preferred) = self.anywhere {
            hints.push(Hint { nodes: None, preferred });
        }
        let mut masks: Vec<NumaMask> = (1..1u64 << nodes).map(NumaMask).collect();
        masks.sort_by_key(|mask| (mask.len(), mask.0.reverse_bits() ^ u64::MAX));
        hints.extend(masks.into_iter().filter_map(|mask| {
            self.find(mask).map(|preferred| Hint { nodes: Some(mask), preferred })
        }));
        hints
    }
}
