//! [`Revision`]: a point in the history of a store. Independent of wall-clock time.

use std::fmt;

/// A point in the history of a store: one per committed transaction, strictly increasing, never
/// reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(u64);

impl Revision {
    /// The revision of a new store. Not 0, which callers may use for "none".
    pub const FIRST: Self = Self(1);

    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the next revision. It saturates, which only a forged file can reach.
    pub(crate) const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl From<u64> for Revision {
    fn from(revision: u64) -> Self {
        Self(revision)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
