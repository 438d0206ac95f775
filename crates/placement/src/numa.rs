//! Sets of NUMA nodes.
//!
//! Main type: [`NumaMask`], a 64-bit mask. Bit *i* stands for the *i*-th NUMA node of a
//! [`crate::topology::Topology`] in order of node id, not for node id *i*: ids may have holes and
//! may exceed 63, positions do not. Because positions keep the order of ids, comparing masks as
//! numbers gives the same answer either way.

use std::fmt;
use std::ops::{BitAnd, BitOr, Not, Sub};

/// The most NUMA nodes a machine can have here: the width of a mask.
pub const MAX_NODES: usize = 64;

/// A set of NUMA nodes, by position in the topology.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NumaMask(pub u64);

impl NumaMask {
    pub const EMPTY: NumaMask = NumaMask(0);

    /// The first `n` nodes.
    #[must_use]
    pub const fn first(n: usize) -> NumaMask {
        if n >= 64 { NumaMask(u64::MAX) } else { NumaMask((1 << n) - 1) }
    }

    #[must_use]
    pub const fn single(position: usize) -> NumaMask {
        NumaMask(1 << position)
    }

    #[must_use]
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[must_use]
    pub const fn contains(self, position: usize) -> bool {
        self.0 >> position & 1 == 1
    }

    #[must_use]
    pub const fn is_subset(self, other: NumaMask) -> bool {
        self.0 & !other.0 == 0
    }

    pub const fn insert(&mut self, position: usize) {
        self.0 |= 1 << position;
    }

    pub const fn remove(&mut self, position: usize) {
        self.0 &= !(1 << position);
    }

    /// Positions in ascending order.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = usize> + Clone {
        Positions(self.0)
    }

    /// The lowest position, if there is one.
    #[must_use]
    pub fn lowest(self) -> Option<usize> {
        (self.0 != 0).then(|| self.0.trailing_zeros() as usize)
    }
}

#[derive(Clone)]
struct Positions(u64);

impl Iterator for Positions {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let lowest = (self.0 != 0).then(|| self.0.trailing_zeros() as usize)?;
        self.0 &= self.0 - 1;
        Some(lowest)
    }
}

impl DoubleEndedIterator for Positions {
    fn next_back(&mut self) -> Option<usize> {
        let highest = (self.0 != 0).then(|| 63 - self.0.leading_zeros() as usize)?;
        self.0 &= !(1 << highest);
        Some(highest)
    }
}

impl FromIterator<usize> for NumaMask {
    fn from_iter<I: IntoIterator<Item = usize>>(positions: I) -> NumaMask {
        let mut mask = NumaMask::EMPTY;
        positions.into_iter().for_each(|p| mask.insert(p));
        mask
    }
}

impl BitAnd for NumaMask {
    type Output = NumaMask;

    fn bitand(self, other: NumaMask) -> NumaMask {
        NumaMask(self.0 & other.0)
    }
}

impl BitOr for NumaMask {
    type Output = NumaMask;

    fn bitor(self, other: NumaMask) -> NumaMask {
        NumaMask(self.0 | other.0)
    }
}

impl Sub for NumaMask {
    type Output = NumaMask;

    fn sub(self, other: NumaMask) -> NumaMask {
        NumaMask(self.0 & !other.0)
    }
}

impl Not for NumaMask {
    type Output = NumaMask;

    fn not(self) -> NumaMask {
        NumaMask(!self.0)
    }
}

impl fmt::Debug for NumaMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}
