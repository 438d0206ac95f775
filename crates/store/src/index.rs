//! [`Index`]: the locations of the versions of each key. In memory, rebuilt from the log on
//! opening.
//!
//! Holds no values and does not access files. A reader takes a [`Location`] and reads the value
//! after it has released the lock.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::entry::Entry;
use crate::error::{ReadError, StorageError};
use crate::revision::Revision;
use crate::segment::Segment;

/// One value of a key, or its deletion.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    pub(crate) revision: Revision,
    pub(crate) segment: Arc<Segment>,
    pub(crate) offset: u64,
    /// The length of the record; 0 if the key was deleted.
    pub(crate) length: u32,
}

impl Version {
    fn deleted(&self) -> bool {
        self.length == 0
    }
}

/// The versions of a key, oldest first. One is stored inline because most keys are written once.
type Versions = SmallVec<[Version; 1]>;

#[derive(Debug)]
pub(crate) struct Index {
    keys: BTreeMap<Arc<str>, Versions>,
    checkpoint: Option<Arc<Segment>>,
    /// The log segments after the checkpoint, in order.
    logs: Vec<Arc<Segment>>,
    pub(crate) revision: Revision,
    pub(crate) oldest: Revision,
}

/// The location of an entry, which stays readable when the index changes.
#[derive(Clone, Debug)]
pub(crate) struct Location {
    key: Arc<str>,
    version: Version,
}

impl Location {
    pub(crate) fn key(&self) -> &Arc<str> {
        &self.key
    }

    pub(crate) fn modified(&self) -> Revision {
        self.version.revision
    }

    pub(crate) fn read(&self) -> Result<Entry, StorageError> {
        let Version { revision, segment, offset, length } = &self.version;
        segment.entry(&self.key, *revision, *offset, *length)
    }
}

impl Index {
    pub(crate) fn new() -> Self {
        Self {
            keys: BTreeMap::new(),
            checkpoint: None,
            logs: Vec::new(),
            revision: Revision::FIRST,
            oldest: Revision::FIRST,
        }
    }

    /// Returns the number of keys, including deleted ones that are not pruned yet.
    pub(crate) fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// Returns an error if a revision is compacted or in the future.
    pub(crate) fn check(&self, revision: Revision) -> Result<(), ReadError> {
        if revision > self.revision {
            return Err(ReadError::Future { newest: self.revision });
        }
        if revision < self.oldest {
            return Err(ReadError::Compacted { oldest: self.oldest });
        }
        Ok(())
    }

    pub(crate) fn set_checkpoint(&mut self, checkpoint: &Arc<Segment>) {
        self.checkpoint = Some(checkpoint.clone());
    }

    /// Adds a segment at the end of the log, if it is not there already.
    pub(crate) fn add_log(&mut self, segment: &Arc<Segment>) {
        if !self.logs.last().is_some_and(|last| Arc::ptr_eq(last, segment)) {
            self.logs.push(segment.clone());
        }
    }

    /// Adds a version of a key. The revisions of a key must come in order.
    pub(crate) fn add<K: AsRef<str> + Into<Arc<str>>>(&mut self, key: K, version: Version) {
        match self.keys.get_mut(key.as_ref()) {
            Some(versions) => versions.push(version),
            None => _ = self.keys.insert(key.into(), Versions::from_elem(version, 1)),
        }
    }

    /// Returns the shared copy of a key.
    pub(crate) fn key(&self, key: &str) -> Option<&Arc<str>> {
        self.keys.get_key_value(key).map(|(key, _)| key)
    }

    pub(crate) fn newest(&self, key: &str) -> Option<Location> {
        let (key, versions) = self.keys.get_key_value(key)?;
        location(key, versions.last()?)
    }

    /// Returns the key as of a revision.
    pub(crate) fn at(&self, key: &str, revision: Revision) -> Option<Location> {
        let (key, versions) = self.keys.get_key_value(key)?;
        location(key, current(versions, revision)?)
    }

    /// Returns the key as of just before a revision.
    pub(crate) fn before(&self, key: &str, revision: Revision) -> Option<Location> {
        let (key, versions) = self.keys.get_key_value(key)?;
        let until = versions.partition_point(|version| version.revision < revision);
        location(key, versions.get(until.checked_sub(1)?)?)
    }

    /// Returns the keys with a prefix, after `after`, that exist as of a revision, in order.
    pub(crate) fn range<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&str>,
        revision: Revision,
    ) -> impl Iterator<Item = (&'a Arc<str>, &'a Version)> {
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        self.keys
            .range::<str, _>((from, Bound::Unbounded))
            .take_while(move |(key, _)| key.starts_with(prefix))
            .filter_map(move |(key, versions)| Some((key, current(versions, revision)?)))
            .filter(|(_, version)| !version.deleted())
    }

    /// Drops versions that are not visible at `floor` or later, for up to `limit` keys after
    /// `after`.
    pub(crate) fn prune(&mut self, after: Option<&str>, floor: Revision, limit: usize) -> Pruned {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut pruned = Pruned { last: None, kept_bytes: 0 };
        let mut gone = Vec::new();
        for (key, versions) in self.keys.range_mut::<str, _>((from, Bound::Unbounded)).take(limit) {
            pruned.last = Some(key.clone());
            let newer = versions.partition_point(|version| version.revision <= floor);
            if let Some(visible) = newer.checked_sub(1) {
                pruned.kept_bytes += u64::from(versions[visible].length);
                let unseen = if versions[visible].deleted() { newer } else { visible };
                if unseen > 0 {
                    versions.drain(..unseen);
                    versions.shrink_to_fit();
                }
            }
            if versions.is_empty() {
                gone.push(key.clone());
            }
        }
        for key in gone {
            self.keys.remove(&key);
        }
        pruned
    }

    /// Returns the segments that a checkpoint as of `revision` would replace.
    pub(crate) fn up_to(&self, revision: Revision) -> Vec<Arc<Segment>> {
        let logs = &self.logs[..self.log_with(revision).unwrap_or(0)];
        self.checkpoint.iter().chain(logs).cloned().collect()
    }

    /// Moves a version to another location with the same contents.
    pub(crate) fn relocate(
        &mut self,
        key: &str,
        revision: Revision,
        to: &Arc<Segment>,
        offset: u64,
    ) {
        let versions = self.keys.get_mut(key).into_iter().flatten();
        for version in versions.filter(|version| version.revision == revision) {
            version.segment = to.clone();
            version.offset = offset;
        }
    }

    /// Replaces all segments that the checkpoint covers.
    pub(crate) fn install_checkpoint(&mut self, checkpoint: &Arc<Segment>) {
        let obsolete = self.log_with(checkpoint.header().after).unwrap_or(0);
        self.logs.drain(..obsolete);
        self.checkpoint = Some(checkpoint.clone());
    }

    /// Returns the log segment that contains the revision after `after`, and the last revision in
    /// it if there is a later segment.
    pub(crate) fn log_after(&self, after: Revision) -> Option<(Arc<Segment>, Option<Revision>)> {
        let at = self.log_with(after)?;
        let end = self.logs.get(at + 1).map(|next| next.header().after);
        Some((self.logs[at].clone(), end))
    }

    /// Returns the last log segment that starts at or before a revision.
    fn log_with(&self, after: Revision) -> Option<usize> {
        self.logs.iter().rposition(|segment| segment.header().after <= after)
    }
}

/// The result of [`Index::prune`].
pub(crate) struct Pruned {
    /// The last key visited; `None` at the end.
    pub(crate) last: Option<Arc<str>>,
    /// The total length of the records that are visible at the floor.
    pub(crate) kept_bytes: u64,
}

/// Returns the last version that is not newer than a revision.
fn current(versions: &[Version], revision: Revision) -> Option<&Version> {
    let beyond = versions.partition_point(|version| version.revision <= revision);
    versions.get(beyond.checked_sub(1)?)
}

/// Returns the location of a version; `None` if it is a deletion.
pub(crate) fn location(key: &Arc<str>, version: &Version) -> Option<Location> {
    (!version.deleted()).then(|| Location { key: key.clone(), version: version.clone() })
}
