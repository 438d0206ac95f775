//! [`Log`]: the end of the log, where batches are appended. Has one owner, the writer thread.
//!
//! After a write or a sync failed nobody knows what of it is on the disk, so nothing more is written
//! behind it: the next batch starts a new segment, whose header says which revision it follows. What
//! the failed batch left in the old one is not looked at again.

use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::StorageError;
use crate::files;
use crate::format::{FRAME, HEADER, Header, SegmentKind};
use crate::revision::Revision;
use crate::segment::Segment;

/// Zeros written ahead of the end. A sync of bytes whose room exists already costs a fraction of one
/// that has to make the file's new length durable as well.
const AHEAD: u64 = 1 << 20;

#[derive(Debug)]
pub(crate) struct Log {
    directory: PathBuf,
    /// The number of the active segment.
    number: u64,
    /// A segment that is longer than this is followed by a new one.
    segment_bytes: u64,
    active: Active,
}

#[derive(Debug)]
struct Active {
    segment: Arc<Segment>,
    file: File,
    /// Where the next frame goes.
    end: u64,
    /// The length of the file: zeros from `end` on.
    length: u64,
    /// A write failed: what is behind `end` is unknown.
    broken: bool,
}

/// What appending did.
pub(crate) struct Appended {
    /// Where the records are.
    pub(crate) offset: u64,
    pub(crate) segment: Arc<Segment>,
}

impl Log {
    /// A new log, or a new segment of one.
    pub(crate) fn create(
        directory: &Path,
        number: u64,
        segment_bytes: u64,
        after: Revision,
        oldest: Revision,
    ) -> Result<Self, StorageError> {
        let active = Active::create(directory, number, after, oldest)?;
        Ok(Self { directory: directory.to_owned(), number, segment_bytes, active })
    }

    /// Goes on behind the last whole frame of an existing segment.
    pub(crate) fn resume(
        directory: &Path,
        number: u64,
        segment_bytes: u64,
        segment: Arc<Segment>,
        end: u64,
    ) -> Result<Self, StorageError> {
        let open = || {
            let file = OpenOptions::new().write(true).open(segment.path())?;
            file.set_len(end)?;
            file.sync_all()?;
            Ok(file)
        };
        let file = open().map_err(StorageError::io("cut", segment.path()))?;
        let active = Active { segment, file, end, length: end, broken: false };
        Ok(Self { directory: directory.to_owned(), number, segment_bytes, active })
    }

    pub(crate) fn segment(&self) -> &Arc<Segment> {
        &self.active.segment
    }

    /// Writes and syncs one frame (begun with [`Header::start`]) with what comes after `newest`.
    pub(crate) fn append(
        &mut self,
        frame: &mut [u8],
        newest: Revision,
        oldest: Revision,
    ) -> Result<Appended, StorageError> {
        if self.active.broken || self.active.end >= self.segment_bytes {
            let next = Active::create(&self.directory, self.number + 1, newest, oldest)?;
            let full = std::mem::replace(&mut self.active, next);
            self.number += 1;
            // The room ahead will not be needed. Nor will it be missed if this fails.
            let _ = full.file.set_len(full.end);
        }
        let active = &mut self.active;
        active.segment.header().seal(frame, active.end);
        active.write(frame, self.segment_bytes).map_err(|error| {
            active.broken = true;
            // Best effort: if it is still there when the store is opened next, it counts.
            let _ = active.file.set_len(active.end);
            StorageError::io("write", active.segment.path())(error)
        })?;
        active.segment.remember(newest, active.end);
        let offset = active.end + FRAME as u64;
        active.end += frame.len() as u64;
        Ok(Appended { offset, segment: active.segment.clone() })
    }
}

impl Active {
    fn create(
        directory: &Path,
        number: u64,
        after: Revision,
        oldest: Revision,
    ) -> Result<Self, StorageError> {
        let path = files::log_path(directory, number);
        let header = Header { kind: SegmentKind::Log, salt: salt(), after, oldest };
        // Under another name until the header is on the disk, so that a file with this name and
        // without a header is damaged and not new.
        let unfinished = files::unfinished(&path);
        let create = || {
            let mut file = File::create(&unfinished)?;
            file.write_all(&header.encode())?;
            file.sync_all()?;
            drop(file);
            files::rename(&unfinished, &path)?;
            OpenOptions::new().write(true).open(&path)
        };
        let file = create().map_err(StorageError::io("create", &path))?;
        let segment = Arc::new(Segment::new(path, header));
        Ok(Self { segment, file, end: HEADER as u64, length: HEADER as u64, broken: false })
    }

    /// Writes a frame at the end, and room for the next ones if the segment is to have any.
    fn write(&mut self, frame: &[u8], segment_bytes: u64) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.end))?;
        self.file.write_all(frame)?;
        let end = self.end + frame.len() as u64;
        if end > self.length {
            let ahead = segment_bytes.saturating_sub(end).min(AHEAD);
            io::copy(&mut io::repeat(0).take(ahead), &mut self.file)?;
            self.length = end + ahead;
        }
        self.file.sync_data()
    }
}

/// Different for every segment. Chance is enough: it guards against accidents.
pub(crate) fn salt() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Record, RecordKind};
    use crate::recover::recover;

    const LARGE: u64 = 1 << 20;

    fn frame(key: &str, revision: Revision) -> Vec<u8> {
        let mut frame = Vec::new();
        Header::start(&mut frame);
        let (kind, created) = (RecordKind::Put, revision);
        Record { kind, revision, created, key, value: b"value" }.encode(&mut frame);
        frame
    }

    /// A log with revision 2 in it, and with revision 3 written but not acknowledged: the disk has
    /// failed, and will not take anything more in this file.
    fn with_a_failed_write(directory: &Path) -> Log {
        let first = Revision::FIRST;
        let mut log = Log::create(directory, 1, LARGE, first, first).unwrap();
        log.append(&mut frame("good", 2.into()), first, first).unwrap();
        let path = log.segment().path().to_owned();
        let mut failed = frame("failed", 3.into());
        log.segment().header().seal(&mut failed, log.active.end);
        let mut file = OpenOptions::new().write(true).open(&path).unwrap();
        file.seek(SeekFrom::Start(log.active.end)).unwrap();
        file.write_all(&failed).unwrap();
        log.active.file = File::open(&path).unwrap();
        let refused = log.append(&mut frame("failed", 3.into()), 2.into(), first);
        assert!(matches!(refused, Err(StorageError::Io { step: "write", .. })));
        log
    }

    #[test]
    fn after_a_failed_write_a_new_segment_is_begun_and_the_failed_one_is_not_looked_at() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = with_a_failed_write(directory.path());
        log.append(&mut frame("next", 3.into()), 2.into(), Revision::FIRST).unwrap();
        assert_eq!(log.number, 2);
        drop(log);
        let (index, log) = recover(directory.path(), LARGE).unwrap();
        assert_eq!((index.revision, log.number), (3.into(), 2));
        assert!(index.newest("failed").is_none());
        assert_eq!(index.newest("good").unwrap().read().unwrap().value, "value");
        assert_eq!(index.newest("next").unwrap().read().unwrap().value, "value");
    }

    #[test]
    fn a_failed_write_that_is_whole_counts_if_nothing_came_after_it() {
        let directory = tempfile::tempdir().unwrap();
        drop(with_a_failed_write(directory.path()));
        let (index, _) = recover(directory.path(), LARGE).unwrap();
        assert_eq!(index.revision, 3.into());
        assert!(index.newest("failed").is_some());
    }
}
