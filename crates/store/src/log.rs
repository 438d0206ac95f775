//! [`Log`]: the end of the log, where batches are appended. Has one owner, the writer thread.
//!
//! After a write or a sync failed it is unknown what of it is on the disk, so nothing more is written
//! behind it: the next batch starts a new segment, whose header says which revision it follows. What
//! the failed batch left in the old one is not looked at again.
//!
//! Behind the end there is always some room, zeros that are on the disk already. An ordinary batch is
//! written only if that room can be kept; if the disk is full it is refused before any byte of it is
//! written. Batches that may use the reserve are written into the room.

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

/// The room behind the end at most. Also, a sync of bytes whose room exists already costs a fraction of
/// one that has to make the file's new length durable as well.
const MAX_ROOM: u64 = 1 << 20;

/// The room behind the end of a segment, in proportion to its size.
pub(crate) fn room(segment_bytes: u64) -> u64 {
    (segment_bytes / 16).min(MAX_ROOM)
}

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
    /// True if readers know the segment. Until then another file may take its place.
    published: bool,
}

/// What appending did.
pub(crate) struct Appended {
    /// Where the records are.
    pub(crate) offset: u64,
    pub(crate) segment: Arc<Segment>,
}

/// The rights of a batch when the disk is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Nothing: the room stays.
    Ordinary,
    /// Use the room.
    UsesReserve,
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
        let mut active = Active::create(directory, number, room(segment_bytes), after, oldest)?;
        active.published = true;
        Ok(Self { directory: directory.to_owned(), number, segment_bytes, active })
    }

    /// Goes on behind the last whole frame of an existing segment. `length` is that of the file, if
    /// there is nothing but zeros behind `end`.
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

    /// Writes and syncs one frame (begun with [`Header::start`]) with what comes after `newest`.
    pub(crate) fn append(
        &mut self,
        frame: &mut [u8],
        newest: Revision,
        oldest: Revision,
        urgency: Urgency,
    ) -> Result<Appended, StorageError> {
        if self.active.broken || self.active.end >= self.segment_bytes {
            match self.next_segment(newest, oldest) {
                // What is urgent goes where there is room, in a segment that is longer than it should be.
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
            // A full disk has not touched what is there; of other failures nothing is known.
            active.broken = !error.is_full();
            error
        })?;
        active.segment.header().seal(frame, active.end);
        active.write(frame).map_err(|error| {
            active.broken = true;
            // Best effort: if it is still there when the store is opened next, it counts.
            let _ = active.file.set_len(active.end);
            failed(active.segment.path(), error)
        })?;
        active.published = true;
        active.segment.remember(newest, active.end);
        let offset = active.end + FRAME as u64;
        active.end += frame.len() as u64;
        Ok(Appended { offset, segment: active.segment.clone() })
    }

    /// Returns whether there is anything in the active segment.
    pub(crate) fn is_used(&self) -> bool {
        self.active.end > HEADER as u64
    }

    /// Begins a new segment that readers are to know although nothing is in it yet.
    pub(crate) fn begin_segment(
        &mut self,
        newest: Revision,
        oldest: Revision,
    ) -> Result<&Arc<Segment>, StorageError> {
        self.next_segment(newest, oldest)?;
        self.active.published = true;
        Ok(&self.active.segment)
    }

    /// Begins a new segment. One that nothing was published of is replaced, so that a disk that
    /// refuses every write does not end up with a file for each.
    fn next_segment(&mut self, newest: Revision, oldest: Revision) -> Result<(), StorageError> {
        let number = if self.active.published { self.number + 1 } else { self.number };
        let room = room(self.segment_bytes);
        let next = Active::create(&self.directory, number, room, newest, oldest)?;
        let full = std::mem::replace(&mut self.active, next);
        if full.published {
            // The room is no longer needed. If this fails, it is given back with the file.
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
        // Under another name until the header is on the disk, so that a file with this name and
        // without a header is damaged and not new.
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
            // On a full disk its space is needed. What stays is removed when the store is opened.
            let _ = fs::remove_file(&unfinished);
            StorageError::io("create", &path)(error)
        })?;
        let segment = Arc::new(Segment::new(path, header));
        let (end, length) = (HEADER as u64, HEADER as u64 + room);
        Ok(Self { segment, file, end, length, broken: false, published: false })
    }

    /// Makes the file so long that `room` is left behind a frame of `bytes`. If that fails, the file is
    /// as long as before.
    fn make_room(&mut self, bytes: u64, room: u64) -> io::Result<()> {
        let needed = self.end + bytes + room;
        if needed <= self.length {
            return Ok(());
        }
        // Twice the room, so that the next batches find some.
        let length = needed + room;
        let mut extend = || {
            self.file.seek(SeekFrom::Start(self.length))?;
            write_zeros(&mut self.file, length - self.length)
        };
        let extended = extend();
        if extended.is_err() {
            // Zeros that stay behind the end do no harm.
            let _ = self.file.set_len(self.length);
        } else {
            self.length = length;
        }
        extended
    }

    /// Writes a frame at the end, where there is room for it.
    fn write(&mut self, frame: &[u8]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.end))?;
        self.file.write_all(frame)?;
        self.file.sync_data()
    }
}

fn write_zeros(file: &mut File, bytes: u64) -> io::Result<()> {
    io::copy(&mut io::repeat(0).take(bytes), file).map(|_| ())
}

/// Different for every segment. Chance is enough: it guards against accidents.
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

    /// A log with revision 2 in it, and with revision 3 written but not acknowledged: the disk has
    /// failed, and will not take anything more in this file.
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
    fn after_a_failed_write_a_new_segment_is_begun_and_the_failed_one_is_not_looked_at() {
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
    fn a_failed_write_that_is_whole_counts_if_nothing_came_after_it() {
        let directory = tempfile::tempdir().unwrap();
        drop(with_a_failed_write(directory.path()));
        let index = recover(directory.path(), LARGE).unwrap().index;
        assert_eq!(index.revision, 3.into());
        assert!(index.newest("failed").is_some());
    }

    #[test]
    #[cfg_attr(windows, ignore = "not on wine: a file that is open cannot be replaced by a rename")]
    fn a_disk_that_refuses_every_write_is_not_filled_with_segments() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = with_a_failed_write(directory.path());
        for _ in 0..20 {
            log.next_segment(2.into(), Revision::FIRST).unwrap();
            // The disk fails again before anything is in the segment.
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
