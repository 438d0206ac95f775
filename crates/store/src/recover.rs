//! Opening: reads the files of a directory into an [`Index`] and finds the end of the log. Entry
//! point: [`recover`].
//!
//! Every frame is read and every checksum verified. An incomplete batch at the very end of the log
//! was cut short by a crash and never acknowledged; it is dropped and reported ([`Dropped`]). Any
//! other deviation is an error, and nothing is repaired (see `salvage`).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::checkpoint;
use crate::error::{OpenError, StorageError};
use crate::files::{checkpoint_path, list, log_path};
use crate::format::{BadHeader, HEADER, RecordKind, SegmentKind, records};
use crate::index::{Index, Version};
use crate::log::Log;
use crate::revision::Revision;
use crate::segment::{Segment, read_header};

/// The incomplete last write, which a crash cut short before it was acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    pub path: PathBuf,
    /// The offset where it began.
    pub offset: u64,
    pub bytes: u64,
    /// The number of its records that could be read.
    pub records: u64,
}

/// The result of recovery.
pub(crate) struct Recovered {
    pub(crate) index: Index,
    pub(crate) log: Log,
    pub(crate) dropped: Option<Dropped>,
}

pub(crate) fn recover(directory: &Path, segment_bytes: u64) -> Result<Recovered, OpenError> {
    let listing = list(directory).map_err(StorageError::io("list", directory))?;
    let mut index = Index::new();
    if let Some(checkpoint) = listing.checkpoints.last() {
        let path = checkpoint_path(directory, (*checkpoint).into());
        load_checkpoint(&mut index, &open_segment(&path, SegmentKind::Checkpoint)?)?;
    }
    let covered = index.revision;

    let mut logs = Vec::new();
    for number in &listing.logs {
        let segment = open_segment(&log_path(directory, *number), SegmentKind::Log)?;
        logs.push((*number, segment));
    }
    // The checkpoint replaces everything before the last segment that starts at or before its
    // revision.
    let after = |at: usize| logs.get(at).map(|(_, segment)| segment.header().after);
    let obsolete = (0..logs.len()).rev().find(|at| after(*at).is_some_and(|a| a <= covered));
    let obsolete = obsolete.unwrap_or(0);
    for (at, (number, segment)) in logs.iter().enumerate().skip(obsolete) {
        let missing = match at == obsolete {
            true => segment.header().after > covered,
            false => logs[at - 1].0 + 1 != *number,
        };
        if missing {
            return Err(OpenError::Missing(log_path(directory, number.saturating_sub(1))));
        }
    }
    let mut end = HEADER as u64;
    for (at, (_, segment)) in logs.iter().enumerate().skip(obsolete) {
        end = load_log(&mut index, segment, covered, after(at + 1))?;
    }
    index.prune(None, index.oldest, usize::MAX);
    let mut dropped = None;
    let log = match logs.last() {
        Some((number, segment)) => {
            dropped = segment.tail(end)?;
            let length = match dropped {
                None => Some(segment.file_length()?),
                Some(_) => None,
            };
            Log::resume(directory, *number, segment_bytes, segment.clone(), end, length)?
        }
        None => Log::create(directory, 1, segment_bytes, index.revision, index.oldest)?,
    };
    index.add_log(log.segment());

    let old_checkpoints = listing.checkpoints.iter().rev().skip(1);
    let old_checkpoints =
        old_checkpoints.map(|checkpoint| checkpoint_path(directory, (*checkpoint).into()));
    let old_logs = logs[..obsolete].iter().map(|(_, segment)| segment.path().to_owned());
    for path in old_checkpoints.chain(old_logs).chain(listing.unfinished) {
        // A file that stays does no harm.
        let _ = fs::remove_file(path);
    }
    Ok(Recovered { index, log, dropped })
}

pub(crate) fn open_segment(path: &Path, kind: SegmentKind) -> Result<Arc<Segment>, OpenError> {
    let not_a_store = |what| OpenError::NotAStore { path: path.to_owned(), what };
    match read_header(path).map_err(StorageError::io("read", path))? {
        Ok(header) if header.kind == kind => Ok(Arc::new(Segment::new(path.to_owned(), header))),
        Ok(_) => {
            Err(not_a_store("a log in place of a checkpoint, or a checkpoint in place of a log"))
        }
        Err(BadHeader::NotOurs) => {
            Err(not_a_store("the file does not start like one of its files"))
        }
        Err(BadHeader::Version(found)) => Err(OpenError::Version { path: path.to_owned(), found }),
        Err(BadHeader::Damaged) => {
            Err(StorageError::Damaged { path: path.to_owned(), offset: 0 }.into())
        }
    }
}

/// Loads the entries of a checkpoint into an empty index.
pub(crate) fn load_checkpoint(
    index: &mut Index,
    segment: &Arc<Segment>,
) -> Result<(), StorageError> {
    checkpoint::read(segment, |entries| {
        for (offset, record) in entries {
            let (revision, offset, length) = (record.revision, *offset, record.length() as u32);
            let segment = segment.clone();
            index.add(record.key, Version { revision, segment, offset, length });
        }
        Ok(())
    })?;
    index.set_checkpoint(segment);
    index.revision = segment.header().after;
    index.oldest = segment.header().oldest;
    Ok(())
}

/// Loads the changes of a log segment into the index, except those that the checkpoint covers.
/// Returns the offset where the segment ends. `until` is the revision that the next segment
/// follows, if there is one.
fn load_log(
    index: &mut Index,
    segment: &Arc<Segment>,
    covered: Revision,
    until: Option<Revision>,
) -> Result<u64, StorageError> {
    index.add_log(segment);
    let mut oldest = index.oldest.max(segment.header().oldest);
    let mut reached = segment.header().after;
    let mut scan = segment.scan(HEADER as u64)?;
    while until.is_none_or(|until| reached < until) {
        let start = scan.offset();
        let Some(frame) = scan.step()? else {
            if until.is_some() || segment.frame_beyond(start)? {
                return Err(segment.damaged(start));
            }
            break;
        };
        segment.remember(reached, start);
        for record in records(frame.records) {
            let damaged = || segment.damaged(start);
            let (place, record) = record.ok_or_else(damaged)?;
            let revision = record.revision;
            match record.kind {
                RecordKind::Put | RecordKind::Delete => {
                    if revision != reached && revision != reached.next() {
                        return Err(damaged());
                    }
                    reached = revision;
                    if revision > covered {
                        let put = record.kind == RecordKind::Put;
                        let length = if put { record.length() as u32 } else { 0 };
                        let (segment, offset) = (segment.clone(), frame.offset + place as u64);
                        index.add(record.key, Version { revision, segment, offset, length });
                    }
                }
                RecordKind::Compacted if revision <= reached => oldest = oldest.max(revision),
                RecordKind::Compacted | RecordKind::End => return Err(damaged()),
            }
        }
    }
    // A checkpoint may be older than the compaction point; the last segment is not.
    if until.map_or(oldest > reached, |until| until != reached) {
        return Err(segment.damaged(scan.offset()));
    }
    index.revision = index.revision.max(reached);
    index.oldest = oldest;
    // The end of the last frame, or the first bytes that are not a frame.
    Ok(scan.offset())
}
