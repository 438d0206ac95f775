//! [`Log`]: the end of the log, where batches are appended. Owned by the writer thread.
//!
//! After a failed write or sync the contents of the file are unknown, so nothing is appended to it.
//! The next batch starts a new segment, whose header names the revision that it follows. Later
//! readers ignore the remains of the failed batch in the old segment.
//!
//! The file is preallocated with zeros beyond the end of the log. An ordinary batch is written only
//! if this room can be kept; on a full disk it is refused before any byte is written. Batches that
//! may use the reserve are written into the room.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::StorageError;
use crate::files;
use crate::format::{FRAME, HEADER, Header, SegmentKind};
use crate::revision::Revision;
use crate::segment::Segment;

/// The maximum preallocated room. It also makes syncs faster: a sync that does not change the
/// file's length costs a fraction of one that does.
const MAX_ROOM: u64 = 1 << 20;

/// Returns the preallocated room of a segment, in proportion to its size.
pub(crate) fn room(segment_bytes: u64) -> u64 {
    (segment_bytes / 16).min(MAX_ROOM)
}

#[derive(Debug)]
pub(crate) struct Log {
    directory: PathBuf,
    /// The number of the active segment.
    number: u64,
    /// The length after which a new segment is started.
    segment_bytes: u64,
    active: Active,
}

#[derive(Debug)]
struct Active {
    segment: Arc<Segment>,
    file: File,
    /// The offset of the next frame.
    end: u64,
    /// The length of the file, which is zero from `end` on.
    length: u64,
    /// A write failed: the contents beyond `end` are unknown.
    broken: bool,
    /// True if readers know the segment. Until then another file may replace it.
    published: bool,
}

/// The result of an append.
pub(crate) struct Appended {
    /// The offset of the records.
    pub(crate) offset: u64,
    pub(crate) segment: Arc<Segment>,
}

/// The permission of a batch to use the preallocated room on a full disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// The room is kept.
    Ordinary,
    /// The room may be used.
    UsesReserve,
}

impl Log {
    /// Creates a log, or a new segment of one.
    pub(crate) fn create(
        directory: &Path,
        number: u64,
        segment_bytes: u64,
        after: Revision,
        oldest: Revision,
    ) -> Result<Self, StorageError> {
        let mut active = Active::create(directory, number, room(segment_bytes), after, oldest)?;
        active.published = true;
        Ok(Self { directory: directory.to_owned(), number, segment_bytes, active })
    }

    /// Continues after the last complete frame of an existing segment. `length` is the file length
    /// if the file is zero beyond `end`.
    pub(crate) fn resume(
        directory: &Path,
        number: u64,
        segment_bytes: u64,
        segment: Arc<Segment>,
        end: u64,
        length: Option<u64>,
    ) -> Result<Self, StorageError> {
        let open = || {
            let file = OpenOptions::new().write(true).open(segment.path())?;
            if length.is_none() {
                file.set_len(end)?;
                file.sync_all()?;
            }
            Ok(file)
        };
        let file = open().map_err(StorageError::io("cut", segment.path()))?;
        let length = length.unwrap_or(end);
        let active = Active { segment, file, end, length, broken: false, published: true };
        Ok(Self { directory: directory.to_owned(), number, segment_bytes, active })
    }

    pub(crate) fn segment(&self) -> &Arc<Segment> {
        &self.active.segment
    }

    /// Writes and syncs one frame (begun with [`Header::start`]) that follows `newest`.
    pub(crate) fn append(
        &mut self,
        frame: &mut [u8],
        newest: Revision,
        oldest: Revision,
        urgency: Urgency,
    ) -> Result<Appended, StorageError> {
        if self.active.broken || self.active.end >= self.segment_bytes {
            match self.next_segment(newest, oldest) {
                // An urgent batch is written into the room of the current segment, which then
                // exceeds its size.
                Err(error)
                    if error.is_full()
                        && urgency == Urgency::UsesReserve
                        && !self.active.broken => {}
                done => done?,
            }
        }
        let active = &mut self.active;
        let room = match urgency {
            Urgency::Ordinary => room(self.segment_bytes),
            Urgency::UsesReserve => 0,
        };
        let failed = |path: &Path, error| StorageError::io("write", path)(error);
        active.make_room(frame.len() as u64, room).map_err(|error| {
            let error = failed(active.segment.path(), error);
            // A full disk leaves existing data intact; after other failures the file is in an
            // unknown state.
            active.broken = !error.is_full();
            error
        })?;
        active.segment.header().seal(frame, active.end);
        active.write(frame).map_err(|error| {
            active.broken = true;
            // Best effort: a frame that is still there when the store is opened next counts.
            let _ = active.file.set_len(active.end);
            failed(active.segment.path(), error)
        })?;
        active.published = true;
        active.segment.remember(newest, active.end);
        let offset = active.end + FRAME as u64;
        active.end += frame.len() as u64;
        Ok(Appended { offset, segment: active.segment.clone() })
    }

    /// Returns true if the active segment has any frames.
    pub(crate) fn is_used(&self) -> bool {
        self.active.end > HEADER as u64
    }

    /// Begins a new segment and publishes it although it is empty.
    pub(crate) fn begin_segment(
        &mut self,
        newest: Revision,
        oldest: Revision,
    ) -> Result<&Arc<Segment>, StorageError> {
        self.next_segment(newest, oldest)?;
        self.active.published = true;
        Ok(&self.active.segment)
    }

    /// Begins a new segment. Replaces an unpublished one, so that a disk that refuses every write
    /// does not collect a file for each attempt.
    fn next_segment(&mut self, newest: Revision, oldest: Revision) -> Result<(), StorageError> {
        let number = if self.active.published { self.number + 1 } else { self.number };
        let room = room(self.segment_bytes);
        let next = Active::create(&self.directory, number, room, newest, oldest)?;
        let full = std::mem::replace(&mut self.active, next);
        if full.published {
            // The room is no longer needed. If this fails, it is freed with the file.
            let _ = full.file.set_len(full.end);
        }
        self.number = number;
        Ok(())
    }
}

impl Active {
    fn create(
        directory: &Path,
        number: u64,
        room: u64,
        after: Revision,
        oldest: Revision,
    ) -> Result<Self, StorageError> {
        let path = files::log_path(directory, number);
        let header = Header { kind: SegmentKind::Log, salt: salt(), after, oldest };
        // The file has a temporary name until its header is on disk, so a segment without a header
        // is damaged, never new.
        let unfinished = files::unfinished(&path);
        let create = || {
            let mut file = File::create(&unfinished)?;
            file.write_all(&header.encode())?;
            write_zeros(&mut file, room)?;
            file.sync_all()?;
            drop(file);
            files::rename(&unfinished, &path)?;
            OpenOptions::new().write(true).open(&path)
        };
        let file = create().map_err(|error| {
            // On a full disk the space is needed. A file that cannot be removed is removed when the
            // store is opened.
            let _ = fs::remove_file(&unfinished);
            StorageError::io("create", &path)(error)
        })?;
        let segment = Arc::new(Segment::new(path, header));
        let (end, length) = (HEADER as u64, HEADER as u64 + room);
        Ok(Self { segment, file, end, length, broken: false, published: false })
    }

    /// Extends the file so that `room` is left after a frame of `bytes`. On failure the length is
    /// unchanged.
    fn make_room(&mut self, bytes: u64, room: u64) -> io::Result<()> {
        let needed = self.end + bytes + room;
        if needed <= self.length {
            return Ok(());
        }
        // Twice the room, so that the next batches need no extension.
        let length = needed + room;
        let mut extend = || {
            self.file.seek(SeekFrom::Start(self.length))?;
            write_zeros(&mut self.file, length - self.length)
        };
        let extended = extend();
        if extended.is_err() {
            // Zeros beyond the end do no harm.
            let _ = self.file.set_len(self.length);
        } else {
            self.length = length;
        }
        extended
    }

    /// Writes a frame at the end, into the preallocated room.
    fn write(&mut self, frame: &[u8]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.end))?;
        self.file.write_all(frame)?;
        self.file.sync_data()
    }
}

fn write_zeros(file: &mut File, bytes: u64) -> io::Result<()> {
    io::copy(&mut io::repeat(0).take(bytes), file).map(|_| ())
}

/// Returns a random number for a new segment. It guards against accidents only, so no secure source
/// is needed.
pub(crate) fn salt() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Record, RecordKind};
    use crate::recover::{Recovered, recover};

    const LARGE: u64 = 1 << 20;

    fn frame(key: &str, revision: Revision) -> Vec<u8> {
        let mut frame = Vec::new();
        Header::start(&mut frame);
        let (kind, created) = (RecordKind::Put, revision);
        Record { kind, revision, created, key, value: b"value" }.encode(&mut frame);
        frame
    }

    fn append(
        log: &mut Log,
        key: &str,
        revision: u64,
        newest: Revision,
    ) -> Result<Appended, StorageError> {
        let mut frame = frame(key, revision.into());
        log.append(&mut frame, newest, Revision::FIRST, Urgency::Ordinary)
    }

    /// Returns a log with revision 2, and with revision 3 written but not acknowledged: the disk
    /// has failed and accepts no further writes to this file.
    fn with_a_failed_write(directory: &Path) -> Log {
        let first = Revision::FIRST;
        let mut log = Log::create(directory, 1, LARGE, first, first).unwrap();
        append(&mut log, "good", 2, first).unwrap();
        let path = log.segment().path().to_owned();
        let mut failed = frame("failed", 3.into());
        log.segment().header().seal(&mut failed, log.active.end);
        let mut file = OpenOptions::new().write(true).open(&path).unwrap();
        file.seek(SeekFrom::Start(log.active.end)).unwrap();
        file.write_all(&failed).unwrap();
        log.active.file = File::open(&path).unwrap();
        let refused = append(&mut log, "failed", 3, 2.into()).map(|_| ());
        assert!(matches!(refused, Err(StorageError::Io { step: "write", .. })));
        log
    }

    #[test]
    fn new_segment_begins_after_a_failed_write() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = with_a_failed_write(directory.path());
        append(&mut log, "next", 3, 2.into()).unwrap();
        assert_eq!(log.number, 2);
        drop(log);
        let Recovered { index, log, .. } = recover(directory.path(), LARGE).unwrap();
        assert_eq!((index.revision, log.number), (3.into(), 2));
        assert!(index.newest("failed").is_none());
        assert_eq!(index.newest("good").unwrap().read().unwrap().value, "value");
        assert_eq!(index.newest("next").unwrap().read().unwrap().value, "value");
    }

    #[test]
    fn complete_failed_write_counts_if_it_is_the_last() {
        let directory = tempfile::tempdir().unwrap();
        drop(with_a_failed_write(directory.path()));
        let index = recover(directory.path(), LARGE).unwrap().index;
        assert_eq!(index.revision, 3.into());
        assert!(index.newest("failed").is_some());
    }

    #[test]
    #[cfg_attr(windows, ignore = "not on wine: a file that is open cannot be replaced by a rename")]
    fn failing_disk_does_not_collect_segments() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = with_a_failed_write(directory.path());
        for _ in 0..20 {
            log.next_segment(2.into(), Revision::FIRST).unwrap();
            // The disk fails again before the segment has a frame.
            log.active.file = File::open(log.segment().path()).unwrap();
            assert!(append(&mut log, "failed", 3, 2.into()).is_err());
        }
        assert_eq!(log.number, 2);
        append(&mut log, "next", 3, 2.into()).unwrap();
        let index = recover(directory.path(), LARGE).unwrap().index;
        assert_eq!(index.revision, 3.into());
        assert!(index.newest("next").is_some() && index.newest("failed").is_none());
    }
}
