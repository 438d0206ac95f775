//! [`Index`]: where the versions of each key lie. In memory, rebuilt from the log on opening.
//!
//! Holds no values and reads no files; [`Location`] is what a reader takes along to read one when the
//! lock is free again.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::entry::Entry;
use crate::error::{ReadError, StorageError};
use crate::revision::Revision;
use crate::segment::Segment;

/// One value of a key, or its absence.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    pub(crate) revision: Revision,
    pub(crate) segment: Arc<Segment>,
    pub(crate) offset: u64,
    /// Of the record; 0 if the key was deleted.
    pub(crate) length: u32,
}

impl Version {
    fn deleted(&self) -> bool {
        self.length == 0
    }
}

/// Oldest first. One version in place: most keys are written once.
type Versions = SmallVec<[Version; 1]>;

#[derive(Debug)]
pub(crate) struct Index {
    keys: BTreeMap<Arc<str>, Versions>,
    checkpoint: Option<Arc<Segment>>,
    /// In order; everything after the base is in them.
    logs: Vec<Arc<Segment>>,
    pub(crate) revision: Revision,
    pub(crate) oldest: Revision,
}

/// Where one entry can be read, however the index changes meanwhile.
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

    /// Whether everything visible at a revision, and after it, is there.
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

    /// Adds the segment at the end of the log, if it is a new one.
    pub(crate) fn add_log(&mut self, segment: &Arc<Segment>) {
        if !self.logs.last().is_some_and(|last| Arc::ptr_eq(last, segment)) {
            self.logs.push(segment.clone());
        }
    }

    /// Adds what a transaction did to a key. Revisions of a key come in order.
    pub(crate) fn add<K: AsRef<str> + Into<Arc<str>>>(&mut self, key: K, version: Version) {
        match self.keys.get_mut(key.as_ref()) {
            Some(versions) => versions.push(version),
            None => _ = self.keys.insert(key.into(), Versions::from_elem(version, 1)),
        }
    }

    /// The key as it is shared by all who name it.
    pub(crate) fn key(&self, key: &str) -> Option<&Arc<str>> {
        self.keys.get_key_value(key).map(|(key, _)| key)
    }

    pub(crate) fn newest(&self, key: &str) -> Option<Location> {
        let (key, versions) = self.keys.get_key_value(key)?;
        location(key, versions.last()?)
    }

    /// The key as of a revision.
    pub(crate) fn at(&self, key: &str, revision: Revision) -> Option<Location> {
        let (key, versions) = self.keys.get_key_value(key)?;
        location(key, current(versions, revision)?)
    }

    /// The key as of just before a revision.
    pub(crate) fn before(&self, key: &str, revision: Revision) -> Option<Location> {
        let (key, versions) = self.keys.get_key_value(key)?;
        let until = versions.partition_point(|version| version.revision < revision);
        location(key, versions.get(until.checked_sub(1)?)?)
    }

    /// The keys with a prefix and behind `after` that are there as of a revision, in order.
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

    /// Forgets, for some keys behind `after`, what is not visible at `floor` or later.
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

    /// The segments that a base as of `revision` would stand in for.
    pub(crate) fn up_to(&self, revision: Revision) -> Vec<Arc<Segment>> {
        let logs = &self.logs[..self.log_with(revision).unwrap_or(0)];
        self.checkpoint.iter().chain(logs).cloned().collect()
    }

    /// Notes that a version lies in another place as well.
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

    /// Lets `base` stand in for all segments that it can.
    pub(crate) fn install_checkpoint(&mut self, checkpoint: &Arc<Segment>) {
        let obsolete = self.log_with(checkpoint.header().after).unwrap_or(0);
        self.logs.drain(..obsolete);
        self.checkpoint = Some(checkpoint.clone());
    }

    /// The log segment in which the revision after `after` is, and the last revision in it if there
    /// is a later segment.
    pub(crate) fn log_after(&self, after: Revision) -> Option<(Arc<Segment>, Option<Revision>)> {
        let at = self.log_with(after)?;
        let end = self.logs.get(at + 1).map(|next| next.header().after);
        Some((self.logs[at].clone(), end))
    }

    /// The last log segment that starts at or before a revision.
    fn log_with(&self, after: Revision) -> Option<usize> {
        self.logs.iter().rposition(|segment| segment.header().after <= after)
    }
}

/// What [`Index::prune`] went through.
pub(crate) struct Pruned {
    /// The last key; `None` at the end.
    pub(crate) last: Option<Arc<str>>,
    /// The length of the records of those that are visible at the floor.
    pub(crate) kept_bytes: u64,
}

/// The last version that is not newer than a revision.
fn current(versions: &[Version], revision: Revision) -> Option<&Version> {
    let beyond = versions.partition_point(|version| version.revision <= revision);
    versions.get(beyond.checked_sub(1)?)
}

/// Where to read a version, if there is something to read.
pub(crate) fn location(key: &Arc<str>, version: &Version) -> Option<Location> {
    (!version.deleted()).then(|| Location { key: key.clone(), version: version.clone() })
}
