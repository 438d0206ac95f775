//! [`Index`]: where the versions of each key lie. In memory, rebuilt from the log on opening.
//!
//! Holds no values and reads no files; [`Place`] is what a reader takes along to read one when the
//! lock is free again.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::entry::Entry;
use crate::error::{ReadError, StorageError};
use crate::format::SegmentKind;
use crate::revision::Revision;
use crate::segment::Segment;

/// Names a segment as long as the store is open; later log segments have greater ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SegmentId(u32);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Version {
    pub(crate) revision: Revision,
    pub(crate) offset: u64,
    pub(crate) segment: SegmentId,
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
    segments: BTreeMap<SegmentId, Arc<Segment>>,
    next_segment: SegmentId,
    pub(crate) revision: Revision,
    pub(crate) oldest: Revision,
}

/// Where one entry can be read, however the index changes meanwhile.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    key: Arc<str>,
    version: Version,
    segment: Arc<Segment>,
}

impl Place {
    pub(crate) fn key(&self) -> &Arc<str> {
        &self.key
    }

    pub(crate) fn modified(&self) -> Revision {
        self.version.revision
    }

    pub(crate) fn read(&self) -> Result<Entry, StorageError> {
        let Version { revision, offset, length, .. } = self.version;
        self.segment.entry(&self.key, revision, offset, length)
    }
}

impl Index {
    pub(crate) fn new() -> Self {
        Self {
            keys: BTreeMap::new(),
            segments: BTreeMap::new(),
            next_segment: SegmentId(0),
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

    /// The id of a segment, which gets one if it is new.
    pub(crate) fn enrol(&mut self, segment: &Arc<Segment>) -> SegmentId {
        let known = self.segments.iter().rev().find(|(_, known)| Arc::ptr_eq(known, segment));
        if let Some((id, _)) = known {
            return *id;
        }
        let id = self.next_segment;
        self.next_segment = SegmentId(id.0 + 1);
        self.segments.insert(id, segment.clone());
        id
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

    pub(crate) fn newest(&self, key: &str) -> Option<Place> {
        let (key, versions) = self.keys.get_key_value(key)?;
        self.place(key, versions.last()?)
    }

    /// The key as of a revision.
    pub(crate) fn at(&self, key: &str, revision: Revision) -> Option<Place> {
        let (key, versions) = self.keys.get_key_value(key)?;
        self.place(key, current(versions, revision)?)
    }

    /// The key as of just before a revision.
    pub(crate) fn before(&self, key: &str, revision: Revision) -> Option<Place> {
        let (key, versions) = self.keys.get_key_value(key)?;
        let until = versions.partition_point(|version| version.revision < revision);
        self.place(key, versions.get(until.checked_sub(1)?)?)
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

    pub(crate) fn place(&self, key: &Arc<str>, version: &Version) -> Option<Place> {
        if version.deleted() {
            return None;
        }
        let segment = self.segments.get(&version.segment)?.clone();
        Some(Place { key: key.clone(), version: *version, segment })
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

    /// The segments with nothing after `revision` in them.
    pub(crate) fn up_to(&self, revision: Revision) -> Vec<(SegmentId, Arc<Segment>)> {
        let logs = |segment: &&Arc<Segment>| segment.header().kind == SegmentKind::Log;
        let afters = self.segments.values().filter(logs).map(|segment| segment.header().after);
        let last = afters.rev().find(|after| *after <= revision);
        let obsolete = self.segments.iter().filter(|(_, segment)| match segment.header().kind {
            SegmentKind::Log => last.is_some_and(|last| segment.header().after < last),
            SegmentKind::Base => true,
        });
        obsolete.map(|(id, segment)| (*id, segment.clone())).collect()
    }

    /// Notes that a version has a second place.
    pub(crate) fn relocate(
        &mut self,
        key: &str,
        revision: Revision,
        segment: SegmentId,
        offset: u64,
    ) {
        let versions = self.keys.get_mut(key).into_iter().flatten();
        for version in versions.filter(|version| version.revision == revision) {
            version.segment = segment;
            version.offset = offset;
        }
    }

    pub(crate) fn dismiss(&mut self, segment: SegmentId) {
        self.segments.remove(&segment);
    }

    /// The log segment in which the revision after `after` is, and the last revision in it if there
    /// is a later segment.
    pub(crate) fn log_after(&self, after: Revision) -> Option<(Arc<Segment>, Option<Revision>)> {
        let mut end = None;
        for segment in self.segments.values().rev() {
            let header = segment.header();
            if header.kind == SegmentKind::Log {
                if header.after <= after {
                    return Some((segment.clone(), end));
                }
                end = Some(header.after);
            }
        }
        None
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
