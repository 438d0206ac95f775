//! Reading damaged stores: [`survey`] reports what is readable and what is lost, [`salvage`]
//! creates a new store from the readable part. Neither changes the damaged store.
//!
//! ```text
//!  frame  frame  ░░░░ damage ░░░░  frame  frame          found again by its mark and checksum
//!                rec ░░░ rec rec                         records inside have checksums of their own
//! ```
//!
//! A record with a wrong checksum that still has the form of a record names a key that has lost a
//! revision. Files are held in memory as a whole, one at a time.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use crate::backup::REVISION_GAP;
use crate::checkpoint;
use crate::entry::Entry;
use crate::error::{OpenError, RestoreError, StorageError};
use crate::files::{self, Lock, checkpoint_path, list, log_path};
use crate::format::{
    BadHeader, FRAME, HEADER, Header, MAGIC, RECORD, Record, RecordKind, SegmentKind, VERSION,
    records,
};
use crate::recover::Dropped;
use crate::revision::Revision;
use crate::store::{Store, Usage};

/// The maximum number of revisions that a damaged part is assumed to have if no later data bounds
/// it.
const MAX_REVISIONS: u64 = 1_000_000;

/// The maximum number of missing files that are listed.
const MAX_MISSING: u64 = 100;

/// The result of reading all files of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Examination {
    pub usage: Usage,
    /// The newest revision found in the store.
    pub revision: Revision,
    /// The keys that have a value.
    pub keys: u64,
    pub damages: Vec<Damage>,
    /// The incomplete last write that opening the store would drop. It is not damage.
    pub dropped: Option<Dropped>,
    /// First and last revision of the ranges that cannot be read.
    pub lost_revisions: Vec<(Revision, Revision)>,
    /// The keys that lost a revision and can be named.
    pub lost_keys: Vec<LostKey>,
    /// The number of further keys of a damaged checkpoint, which cannot be named.
    pub unnamed_keys: u64,
}

impl Examination {
    #[must_use]
    pub fn is_intact(&self) -> bool {
        self.damages.is_empty()
    }

    /// Returns the number of damaged bytes, without missing files.
    #[must_use]
    pub fn lost_bytes(&self) -> u64 {
        let lengths = self.damages.iter().map(|damage| match damage.region {
            Region::Bytes { length, .. } => length,
            Region::Missing => 0,
        });
        lengths.sum()
    }
}

/// A damaged part of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    pub path: PathBuf,
    pub region: Region,
    /// The number of readable records inside the region.
    pub saved: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    Bytes {
        offset: u64,
        length: u64,
    },
    /// The whole file is missing.
    Missing,
}

/// A key that lost the value of a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostKey {
    pub key: String,
    pub revision: Revision,
    pub remaining: RemainingValue,
}

/// The state of a key that has lost a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemainingValue {
    None,
    /// It has the older value of this revision.
    Older(Revision),
    /// It has a newer value: only history is lost.
    Newer(Revision),
}

/// The location of the newest record of a key.
struct RecordLocation {
    path: Arc<Path>,
    offset: u64,
    /// 0 for a deletion.
    length: usize,
    revision: Revision,
}

pub(crate) struct Survey {
    pub(crate) examination: Examination,
    keys: BTreeMap<Arc<str>, RecordLocation>,
}

/// Creates a store in `to` from everything readable in `from`.
pub(crate) fn salvage(from: &Path, to: &Path) -> Result<Examination, RestoreError> {
    let Survey { examination, keys } = survey(from).map_err(RestoreError::Backup)?;
    files::create_directory(to)?;
    let _guard = Lock::take(to).map_err(RestoreError::Target)?;
    if Store::is_in(to).map_err(StorageError::io("list", to))? {
        return Err(RestoreError::Exists(to.to_owned()));
    }
    // As after a restore, lost revisions are not assigned again.
    let at = Revision::from(examination.revision.get().saturating_add(REVISION_GAP));
    let there = keys.iter().filter(|(_, found)| found.length > 0);
    let entries = there.map(|(key, found)| found.read(key));
    checkpoint::write::<StorageError>(&checkpoint_path(to, at), at, at, entries)?;
    Ok(examination)
}

impl RecordLocation {
    fn read(&self, key: &Arc<str>) -> Result<Entry, StorageError> {
        let failed = || StorageError::io("read", &self.path);
        let mut file = File::open(&self.path).map_err(failed())?;
        file.seek(SeekFrom::Start(self.offset)).map_err(failed())?;
        let mut bytes = vec![0; self.length];
        file.read_exact(&mut bytes).map_err(failed())?;
        let damaged =
            || StorageError::Damaged { path: self.path.to_path_buf(), offset: self.offset };
        let record = Record::decode(&bytes).ok_or_else(damaged)?;
        Ok(Entry {
            key: key.clone(),
            value: Bytes::copy_from_slice(record.value),
            created: record.created,
            modified: record.revision,
        })
    }
}

/// Reads all files of a store.
pub(crate) fn survey(directory: &Path) -> Result<Survey, OpenError> {
    let failed = || StorageError::io("list", directory);
    let listing = list(directory).map_err(failed())?;
    let usage = files::usage(directory).map_err(failed())?;
    if listing.checkpoints.is_empty() && listing.logs.is_empty() {
        let what = "it has neither a checkpoint nor a log";
        return Err(OpenError::NotAStore { path: directory.to_owned(), what });
    }
    let covered = listing.checkpoints.last().map(|checkpoint| Revision::from(*checkpoint));
    let mut walk = Walk::new(covered.unwrap_or(Revision::FIRST));
    if let Some(covered) = covered {
        walk.checkpoint(&checkpoint_path(directory, covered))?;
    }
    walk.logs(directory, &listing.logs)?;
    Ok(walk.finish(usage))
}

/// The state while the files are read in order.
struct Walk {
    keys: BTreeMap<Arc<str>, RecordLocation>,
    damages: Vec<Damage>,
    dropped: Option<Dropped>,
    lost_revisions: Vec<(Revision, Revision)>,
    suspects: Vec<(String, Revision)>,
    unnamed_keys: u64,
    /// The revision that the checkpoint covers.
    covered: Revision,
    /// The revision of the last change in the logs, or the revision that they start after.
    reached: Revision,
}

/// A file of the store, held in memory.
struct Loaded {
    path: Arc<Path>,
    bytes: Vec<u8>,
    /// `None` if the header cannot be reconstructed. Frames cannot be recognised without it.
    header: Option<Header>,
}

/// The range of revisions that records of a damaged part can have.
#[derive(Clone, Copy)]
struct Bounds {
    first: Revision,
    last: Revision,
}

impl Bounds {
    fn contain(self, revision: Revision) -> bool {
        self.first <= revision && revision <= self.last
    }
}

impl Loaded {
    /// Reads a file, and records damage to its header.
    fn read(path: &Path, kind: SegmentKind, damages: &mut Vec<Damage>) -> Result<Self, OpenError> {
        let bytes = fs::read(path).map_err(StorageError::io("read", path))?;
        let (header, damaged) = match Header::decode(&bytes) {
            Ok(header) => (Some(header), None),
            Err(BadHeader::Version(found)) => match repaired_header(&bytes) {
                None if VERSION != found && bytes.len() >= HEADER => {
                    return Err(OpenError::Version { path: path.to_owned(), found });
                }
                repaired_header => (repaired_header, Some(HEADER)),
            },
            Err(_) => (repaired_header(&bytes), Some(HEADER)),
        };
        // A checkpoint under the name of a log counts as a missing header.
        let right = header.as_ref().is_some_and(|header| header.kind == kind);
        if damaged.is_some() || !right {
            let region = Region::Bytes { offset: 0, length: bytes.len().min(HEADER) as u64 };
            damages.push(Damage { path: path.to_owned(), region, saved: 0 });
        }
        Ok(Self { path: path.into(), bytes, header: header.filter(|_| right) })
    }

    /// Returns the records of the frame at `at`, and where the frame ends.
    fn frame(&self, at: usize) -> Option<(&[u8], usize)> {
        let header = self.header.as_ref()?;
        let head = self.bytes.get(at..)?.first_chunk::<FRAME>()?;
        let start = at + FRAME;
        let end = start + header.frame_length(head)?;
        let records = self.bytes.get(start..end)?;
        header.intact(at as u64, head, records).then_some((records, end))
    }

    /// Returns the first frame at `from` or later.
    fn next_frame(&self, from: usize) -> Option<usize> {
        let mark = self.header.as_ref()?.mark();
        let rest = self.bytes.get(from..)?;
        let places = rest.windows(mark.len()).enumerate().filter(|(_, found)| **found == mark);
        places.map(|(at, _)| from + at).find(|at| self.frame(*at).is_some())
    }

    /// Returns the length without trailing zeros.
    fn used(&self) -> usize {
        self.bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
    }
}

/// Reconstructs a header of which only the magic bytes or the version are damaged.
fn repaired_header(bytes: &[u8]) -> Option<Header> {
    let mut start: [u8; HEADER] = *bytes.first_chunk()?;
    start[..8].copy_from_slice(&MAGIC);
    start[8..12].copy_from_slice(&VERSION.to_le_bytes());
    Header::decode(&start).ok()
}

impl Walk {
    fn new(covered: Revision) -> Self {
        Self {
            keys: BTreeMap::new(),
            damages: Vec::new(),
            dropped: None,
            lost_revisions: Vec::new(),
            suspects: Vec::new(),
            unnamed_keys: 0,
            covered,
            reached: covered,
        }
    }

    fn note(&mut self, path: &Arc<Path>, offset: usize, record: &Record<'_>) {
        let length = if record.kind == RecordKind::Put { record.length() } else { 0 };
        let (path, offset, revision) = (path.clone(), offset as u64, record.revision);
        self.keys.insert(record.key.into(), RecordLocation { path, offset, length, revision });
    }

    /// Records a change in a log; skipped revisions are lost.
    fn change(&mut self, path: &Arc<Path>, offset: usize, record: &Record<'_>) {
        self.pass(record.revision);
        self.reached = record.revision;
        // The checkpoint has the values it covers, or newer ones.
        if record.revision > self.covered {
            self.note(path, offset, record);
        }
    }

    /// Records the revisions that are missing before `next`.
    fn pass(&mut self, next: Revision) {
        let first = self.reached.max(self.covered).next();
        if next > first {
            self.lost_revisions.push((first, Revision::from(next.get() - 1)));
        }
    }

    /// Reads the readable records of a damaged part.
    fn damage(
        &mut self,
        file: &Loaded,
        part: std::ops::Range<usize>,
        bounds: Bounds,
        mut each: impl FnMut(&mut Self, usize, &Record<'_>) -> bool,
    ) {
        let mut saved = 0;
        let mut at = part.start;
        let bytes = &file.bytes;
        // A record that begins here may end in the zeros after the part.
        while at < part.end {
            let Some(head) =
                RecordHead::at(&bytes[at..]).filter(|head| bounds.contain(head.revision))
            else {
                at += 1;
                continue;
            };
            match Record::decode(&bytes[at..]) {
                Some(record) if each(self, at, &record) => {
                    saved += 1;
                    at += record.length();
                }
                _ => {
                    if let Some(key) = head.key {
                        self.suspects.push((key.to_owned(), head.revision));
                    }
                    at += 1;
                }
            }
        }
        let (offset, length) = (part.start as u64, part.len() as u64);
        let region = Region::Bytes { offset, length };
        self.damages.push(Damage { path: file.path.to_path_buf(), region, saved });
    }

    fn checkpoint(&mut self, path: &Path) -> Result<(), OpenError> {
        let file = Loaded::read(path, SegmentKind::Checkpoint, &mut self.damages)?;
        let bounds = Bounds { first: Revision::FIRST, last: self.covered };
        let mut at = HEADER;
        let mut expected = None;
        while expected.is_none() {
            if let Some((frame, end)) = file.frame(at) {
                for (place, record) in records(frame).flatten() {
                    match record.kind {
                        RecordKind::Put => self.note(&file.path, at + FRAME + place, &record),
                        _ => expected = Some(record.revision.get()),
                    }
                }
                at = end;
                continue;
            }
            let next = file.next_frame(at + 1);
            let part = at..next.unwrap_or_else(|| file.used().max(at));
            self.damage(&file, part, bounds, |walk, at, record| {
                match record.kind {
                    RecordKind::Put => walk.note(&file.path, at, record),
                    RecordKind::End => expected = Some(record.revision.get()),
                    RecordKind::Delete | RecordKind::Compacted => return false,
                }
                true
            });
            match next {
                Some(next) => at = next,
                None => break,
            }
        }
        let named = self.keys.len() as u64 + self.suspects.len() as u64;
        self.unnamed_keys = expected.unwrap_or(named).saturating_sub(named);
        Ok(())
    }

    fn logs(&mut self, directory: &Path, numbers: &[u64]) -> Result<(), OpenError> {
        // Headers first: they show where each file ends and which files are obsolete.
        let covered = self.covered;
        let mut headers = Vec::new();
        for number in numbers {
            let path = log_path(directory, *number);
            let mut start = Vec::new();
            let file = File::open(&path).map_err(StorageError::io("read", &path))?;
            let read = file.take(HEADER as u64).read_to_end(&mut start);
            read.map_err(StorageError::io("read", &path))?;
            headers.push(Header::decode(&start).ok().or_else(|| repaired_header(&start)));
        }
        let after = |at: usize| headers.get(at)?.as_ref().map(|header: &Header| header.after);
        let starts = (0..numbers.len()).rev().find(|at| after(*at).is_some_and(|a| a <= covered));
        let first = starts.unwrap_or(0);
        for at in first..numbers.len() {
            let before = at.checked_sub(1).filter(|_| at > first).map(|before| numbers[before]);
            let missing = match before {
                Some(before) => before + 1..numbers[at],
                None if after(at).is_some_and(|after| after > covered) => {
                    numbers[at].saturating_sub(1)..numbers[at]
                }
                None => 0..0,
            };
            for number in missing.take(MAX_MISSING as usize) {
                let (path, region) = (log_path(directory, number), Region::Missing);
                self.damages.push(Damage { path, region, saved: 0 });
            }
            if let Some(after) = after(at) {
                self.pass(after.next());
                self.reached = after;
            }
            let is_last = at + 1 == numbers.len();
            let path = log_path(directory, numbers[at]);
            // Only the directly following file bounds this one.
            let follows = numbers.get(at + 1).is_some_and(|next| *next == numbers[at] + 1);
            self.log(&path, after(at + 1).filter(|_| follows), is_last)?;
        }
        Ok(())
    }

    /// `until` is the revision that the next file follows, if that is known.
    fn log(
        &mut self,
        path: &Path,
        until: Option<Revision>,
        is_last: bool,
    ) -> Result<(), OpenError> {
        let file = Loaded::read(path, SegmentKind::Log, &mut self.damages)?;
        let mut at = HEADER.min(file.bytes.len());
        while until.is_none_or(|until| self.reached < until) {
            if let Some((frame, end)) = file.frame(at) {
                for (place, record) in records(frame).flatten() {
                    if record.is_change() {
                        self.change(&file.path, at + FRAME + place, &record);
                    }
                }
                at = end;
                continue;
            }
            let next = file.next_frame(at + 1);
            let end = next.unwrap_or_else(|| file.used().max(at));
            if next.is_none() && is_last && file.header.is_some() {
                // This is the end of the log: a crash may have cut the write short.
                self.dropped = (end > at).then(|| tail(&file, at, end));
                break;
            }
            if next.is_none() && end == at && until.is_none() {
                break;
            }
            let follows = next.and_then(|next| file.frame(next)).and_then(|(frame, _)| {
                records(frame).flatten().find(|(_, record)| record.is_change())
            });
            let follows = follows.map(|(_, record)| Revision::from(record.revision.get() - 1));
            let last = follows.or(until);
            let last = last.unwrap_or_else(|| (self.reached.get() + MAX_REVISIONS).into());
            let bounds = Bounds { first: self.reached.next(), last };
            self.damage(&file, at..end, bounds, |walk, at, record| {
                let fits = record.is_change() && record.revision >= walk.reached;
                if fits {
                    walk.change(&file.path, at, record);
                }
                fits
            });
            match next {
                Some(next) => at = next,
                None => break,
            }
        }
        if let Some(until) = until {
            self.pass(until.next());
            self.reached = until;
        }
        Ok(())
    }

    fn finish(self, usage: Usage) -> Survey {
        let Walk { keys, damages, dropped, lost_revisions, mut suspects, .. } = self;
        suspects.sort();
        suspects.dedup();
        let remaining = |key: &str, revision: Revision| match keys.get(key) {
            Some(found) if found.revision > revision => RemainingValue::Newer(found.revision),
            Some(found) if found.length > 0 => RemainingValue::Older(found.revision),
            _ => RemainingValue::None,
        };
        let lost_keys = suspects.into_iter().map(|(key, revision)| {
            let remaining = remaining(&key, revision);
            LostKey { key, revision, remaining }
        });
        let examination = Examination {
            usage,
            revision: self.reached.max(self.covered),
            keys: keys.values().filter(|found| found.length > 0).count() as u64,
            damages,
            dropped,
            lost_revisions,
            lost_keys: lost_keys.collect(),
            unnamed_keys: self.unnamed_keys,
        };
        Survey { examination, keys }
    }
}

fn tail(file: &Loaded, at: usize, end: usize) -> Dropped {
    let begun = file.bytes.get(at + FRAME..end).unwrap_or_default();
    Dropped {
        path: file.path.to_path_buf(),
        offset: at as u64,
        bytes: (end - at) as u64,
        records: records(begun).take_while(Option::is_some).count() as u64,
    }
}

/// The fixed part of a record, valid or not.
struct RecordHead<'a> {
    revision: Revision,
    /// The key, if it is complete.
    key: Option<&'a str>,
}

impl<'a> RecordHead<'a> {
    /// Returns `None` if the bytes cannot be the start of a record.
    fn at(bytes: &'a [u8]) -> Option<Self> {
        let (fixed, rest) = bytes.split_first_chunk::<RECORD>()?;
        let kind = fixed[4];
        let key = usize::from(u16::from_le_bytes([fixed[5], fixed[6]]));
        let revision = u64::from_le_bytes(*fixed[11..].first_chunk()?);
        let created = u64::from_le_bytes(*fixed[19..].first_chunk()?);
        if !(1..=4).contains(&kind) || created > revision || revision == 0 {
            return None;
        }
        let key = rest.get(..key).filter(|key| !key.is_empty());
        let key = key.and_then(|key| str::from_utf8(key).ok());
        let revision = Revision::from(revision);
        Some(Self { revision, key: key.filter(|_| kind < 3) })
    }
}
