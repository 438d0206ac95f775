//! [`Snapshot`]: all keys as of one revision, independent of later commits and compactions.
//!
//! Reads the index a few keys at a time and values one by one, so that a list of any length neither
//! blocks the writer nor needs much memory.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use crate::entry::Entry;
use crate::error::{ReadError, StorageError};
use crate::index::{Index, Location, location};
use crate::revision::Revision;
use crate::shared::Shared;

/// The number of keys per lookup: a few microseconds under the lock.
const KEYS_PER_LOOKUP: usize = 64;

/// The number of keys counted at a time: tens of microseconds, as no values are looked up.
const KEYS_PER_COUNT: usize = 1024;

/// All keys as of one revision. Compaction keeps what it shows, so do not hold it for long.
#[derive(Clone)]
pub struct Snapshot {
    pin: Arc<RevisionPin>,
}

/// Prevents compaction from dropping the values visible at a revision.
struct RevisionPin {
    shared: Arc<Shared>,
    revision: Revision,
}

impl Snapshot {
    pub(crate) fn newest(shared: Arc<Shared>) -> Self {
        let Ok(snapshot) = Self::pin(shared, |index| Ok::<_, Infallible>(index.revision));
        snapshot
    }

    pub(crate) fn at(shared: Arc<Shared>, revision: Revision) -> Result<Self, ReadError> {
        Self::pin(shared, |index| index.check(revision).map(|()| revision))
    }

    /// Returns a snapshot for the compactor, which knows that all values of this revision still
    /// exist.
    pub(crate) fn unchecked(shared: Arc<Shared>, revision: Revision) -> Self {
        let Ok(snapshot) = Self::pin(shared, |_| Ok::<_, Infallible>(revision));
        snapshot
    }

    fn pin<E>(
        shared: Arc<Shared>,
        choose: impl FnOnce(&Index) -> Result<Revision, E>,
    ) -> Result<Self, E> {
        // The compactor reads the pins after the compaction point has moved, so either it sees this
        // pin or we see the new point.
        let mut pins = shared.pins.lock();
        let revision = choose(&shared.index.read())?;
        *pins.entry(revision).or_default() += 1;
        drop(pins);
        Ok(Self { pin: Arc::new(RevisionPin { shared, revision }) })
    }

    pub fn revision(&self) -> Revision {
        self.pin.revision
    }

    pub fn get(&self, key: &str) -> Result<Option<Entry>, ReadError> {
        let location = self.pin.shared.index.read().at(key, self.pin.revision);
        Ok(location.map(|location| location.read()).transpose()?)
    }

    /// Returns the entries whose keys start with `prefix` and sort after `after`, in key order.
    pub fn range(&self, prefix: &str, after: Option<&str>) -> Range {
        Range {
            pin: self.pin.clone(),
            prefix: prefix.to_owned(),
            after: after.map(Arc::from),
            locations: Vec::new().into_iter(),
            done: false,
        }
    }

    /// Returns the number of entries that [`Self::range`] would return. Reads no values.
    pub fn count(&self, prefix: &str, after: Option<&str>) -> usize {
        let mut after = after.map(Arc::from);
        let mut count = 0;
        loop {
            let index = self.pin.shared.index.read();
            let some =
                index.range(prefix, after.as_deref(), self.pin.revision).take(KEYS_PER_COUNT);
            let (number, last) =
                some.fold((0, None), |(number, _), (key, _)| (number + 1, Some(key)));
            let last = last.cloned();
            count += number;
            match last {
                Some(key) => after = Some(key),
                None => return count,
            }
        }
    }
}

/// The entries of a range, read on demand. Keeps its snapshot alive. Ends after an error.
pub struct Range {
    pin: Arc<RevisionPin>,
    prefix: String,
    after: Option<Arc<str>>,
    locations: std::vec::IntoIter<Location>,
    done: bool,
}

impl Iterator for Range {
    type Item = Result<Entry, StorageError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        if self.locations.len() == 0 {
            let index = self.pin.shared.index.read();
            let locations: Vec<_> = index
                .range(&self.prefix, self.after.as_deref(), self.pin.revision)
                .take(KEYS_PER_LOOKUP)
                .filter_map(|(key, version)| location(key, version))
                .collect();
            drop(index);
            self.after =
                locations.last().map(|location| location.key().clone()).or(self.after.take());
            self.locations = locations.into_iter();
        }
        let entry = self.locations.next().map(|location| location.read());
        self.done = !matches!(entry, Some(Ok(_)));
        entry
    }
}

impl Drop for RevisionPin {
    fn drop(&mut self) {
        let mut pins = self.shared.pins.lock();
        if let Some(count) = pins.get_mut(&self.revision) {
            *count -= 1;
            if *count == 0 {
                pins.remove(&self.revision);
            }
        }
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("revision", &self.pin.revision).finish_non_exhaustive()
    }
}

impl fmt::Debug for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Range")
            .field("revision", &self.pin.revision)
            .field("prefix", &self.prefix)
            .field("after", &self.after)
            .finish_non_exhaustive()
    }
}
