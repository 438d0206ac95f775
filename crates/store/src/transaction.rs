//! [`Transaction`]: conditions, and the writes to make if they hold. [`Outcome`] is its result.
//!
//! Describes only; `writer` decides.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::entry::Entry;
use crate::error::CommitError;
use crate::format::{MAX_KEY, RECORD};
use crate::revision::Revision;

/// The maximum size of a transaction. Bounds the memory of the writer, with ample room for the 1.5
/// MiB that Kubernetes allows an object.
pub(crate) const MAX_BYTES: usize = 8 << 20;

/// Conditions and writes that take effect together or not at all.
///
/// Conditions refer to the state before the transaction. Of several writes to one key the last one
/// counts. Deleting an absent key does nothing.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    pub(crate) conditions: Vec<(Arc<str>, Condition)>,
    /// `None` deletes.
    pub(crate) writes: BTreeMap<Arc<str>, Option<Bytes>>,
    uses_reserve: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Condition {
    Absent,
    Present,
    ModifiedAt(Revision),
}

impl Condition {
    pub(crate) fn holds(self, modified: Option<Revision>) -> bool {
        match self {
            Self::Absent => modified.is_none(),
            Self::Present => modified.is_some(),
            Self::ModifiedAt(revision) => modified == Some(revision),
        }
    }
}

/// The result of a transaction that was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The transaction is on disk. `revision` is its own, or the newest one if it changed nothing.
    Committed { revision: Revision },
    /// Nothing was written: `key` is the first key whose condition did not hold.
    Conflict { key: Arc<str>, found: Option<Entry> },
}

impl Transaction {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn expect_absent(self, key: impl Into<Arc<str>>) -> Self {
        self.expect(key.into(), Condition::Absent)
    }

    pub fn expect_present(self, key: impl Into<Arc<str>>) -> Self {
        self.expect(key.into(), Condition::Present)
    }

    /// Requires that the newest value of the key was written at `revision`.
    pub fn expect_modified_at(self, key: impl Into<Arc<str>>, revision: Revision) -> Self {
        self.expect(key.into(), Condition::ModifiedAt(revision))
    }

    pub fn put(mut self, key: impl Into<Arc<str>>, value: impl Into<Bytes>) -> Self {
        self.writes.insert(key.into(), Some(value.into()));
        self
    }

    pub fn delete(mut self, key: impl Into<Arc<str>>) -> Self {
        self.writes.insert(key.into(), None);
        self
    }

    /// Lets the transaction use the reserve on a full disk, like transactions that only delete. For
    /// writes that lead to a deletion.
    #[must_use]
    pub fn with_reserve(mut self) -> Self {
        self.uses_reserve = true;
        self
    }

    /// Returns true if the transaction may use the reserve.
    pub(crate) fn may_use_reserve(&self) -> bool {
        self.uses_reserve || self.writes.values().all(Option::is_none)
    }

    fn expect(mut self, key: Arc<str>, condition: Condition) -> Self {
        self.conditions.push((key, condition));
        self
    }

    /// Returns the number of bytes that the transaction adds to the log, or the reason why it
    /// cannot be committed.
    pub(crate) fn size(&self) -> Result<usize, CommitError> {
        let mut bytes = 0;
        for (key, value) in &self.writes {
            if key.is_empty() || key.len() > MAX_KEY {
                return Err(CommitError::Key { length: key.len(), max: MAX_KEY });
            }
            bytes += RECORD + key.len() + value.as_ref().map_or(0, Bytes::len);
        }
        if bytes > MAX_BYTES {
            return Err(CommitError::TooLarge { bytes, max: MAX_BYTES });
        }
        Ok(bytes)
    }
}
