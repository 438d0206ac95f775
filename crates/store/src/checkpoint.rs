//! Checkpoints: the newest value of each key as of one revision, in one file. Entry points:
//! [`write`] to a file, [`write_to`] any stream, [`read`].
//!
//! A checkpoint replaces the log up to its revision. A backup has the same format. Checkpoint files
//! have the extension `.base`, which format version 1 fixes.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use crate::entry::Entry;
use crate::error::StorageError;
use crate::files;
use crate::format::{FRAME, HEADER, Header, Record, RecordKind, SegmentKind, records};
use crate::log::salt;
use crate::revision::Revision;
use crate::segment::Segment;

/// The size of the frames that records are collected into. A frame is verified and loaded as a
/// whole.
const FRAME_BYTES: usize = 64 << 10;

/// The number of bytes written between two syncs. Keeps the disk queue short, so that syncs of the
/// log do not wait long.
const SYNC_BYTES: u64 = 4 << 20;

/// Writes a checkpoint, renames it to its final name once it is complete on disk, and returns it
/// for reading. Entries must be in key order, as of `after`.
pub(crate) fn write<E: From<StorageError>>(
    path: &Path,
    after: Revision,
    oldest: Revision,
    entries: impl Iterator<Item = Result<Entry, E>>,
) -> Result<Segment, E> {
    let header = Header { kind: SegmentKind::Checkpoint, salt: salt(), after, oldest };
    write_atomically(path, |unfinished| {
        let failed = |error| E::from(StorageError::io("write", unfinished)(error));
        let mut file = PeriodicSync::create(unfinished).map_err(failed)?;
        write_to(&mut file, &header, entries, failed)?;
        file.file.sync_all().map_err(failed)
    })?;
    Ok(Segment::new(path.to_owned(), header))
}

/// Writes a file under a temporary name and renames it when it is complete.
fn write_atomically<E: From<StorageError>>(
    path: &Path,
    write: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    let unfinished = files::unfinished(path);
    let written = write(&unfinished).and_then(|()| {
        files::rename(&unfinished, path).map_err(StorageError::io("create", path))?;
        Ok(())
    });
    if written.is_err() {
        // The failure is already reported.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// Writes a checkpoint to a stream. It is complete only if this returns without an error.
pub(crate) fn write_to<E>(
    out: &mut impl Write,
    header: &Header,
    entries: impl Iterator<Item = Result<Entry, E>>,
    failed: impl Fn(io::Error) -> E,
) -> Result<(), E> {
    let mut writer = CheckpointWriter::begin(out, header).map_err(&failed)?;
    let mut count = 0;
    for entry in entries {
        let Entry { key, value, created, modified } = &entry?;
        let (kind, revision, created) = (RecordKind::Put, *modified, *created);
        writer.add(&Record { kind, revision, created, key, value }).map_err(&failed)?;
        count += 1;
    }
    writer.end(count).map_err(&failed)
}

/// Copies the contents of a checkpoint into a new one, which replaces a log up to `after`.
pub(crate) fn copy(from: &Segment, to: &Path, after: Revision) -> Result<(), StorageError> {
    let header = Header { kind: SegmentKind::Checkpoint, salt: salt(), after, oldest: after };
    write_atomically(to, |unfinished| {
        let failed = |error| StorageError::io("write", unfinished)(error);
        let mut file = PeriodicSync::create(unfinished).map_err(failed)?;
        let mut writer = CheckpointWriter::begin(&mut file, &header).map_err(failed)?;
        let mut count = 0;
        read(from, |entries| {
            count += entries.len() as u64;
            entries.iter().try_for_each(|(_, record)| writer.add(record)).map_err(failed)
        })?;
        writer.end(count).map_err(failed)?;
        file.file.sync_all().map_err(failed)
    })
}

/// Reads a whole checkpoint frame by frame and passes on records with their offsets. Returns an
/// error, at the end at the latest, unless the file is exactly as [`write`] left it.
pub(crate) fn read(
    segment: &Segment,
    mut each: impl FnMut(&[(u64, Record<'_>)]) -> Result<(), StorageError>,
) -> Result<(), StorageError> {
    let mut scan = segment.scan(HEADER as u64)?;
    let mut last_key = String::new();
    let mut count = 0;
    loop {
        let start = scan.offset();
        let damaged = || segment.damaged(start);
        let frame = scan.step()?.ok_or_else(damaged)?;
        let mut entries = Vec::new();
        let mut ended = false;
        for record in records(frame.records) {
            let (place, record) = record.ok_or_else(damaged)?;
            let in_order = count == 0 || *last_key < *record.key;
            match record.kind {
                _ if ended => return Err(damaged()),
                RecordKind::Put if in_order && record.revision <= segment.header().after => {
                    last_key.replace_range(.., record.key);
                    count += 1;
                    entries.push((frame.offset + place as u64, record));
                }
                RecordKind::End if record.revision == Revision::from(count) => ended = true,
                _ => return Err(damaged()),
            }
        }
        each(&entries)?;
        if ended {
            return Ok(());
        }
    }
}

struct CheckpointWriter<'a, W> {
    out: &'a mut W,
    header: &'a Header,
    frame: Vec<u8>,
    /// The offset of the next frame.
    end: u64,
}

impl<'a, W: Write> CheckpointWriter<'a, W> {
    fn begin(out: &'a mut W, header: &'a Header) -> io::Result<Self> {
        let start = header.encode();
        out.write_all(&start)?;
        let mut frame = Vec::new();
        Header::start(&mut frame);
        Ok(Self { out, header, frame, end: start.len() as u64 })
    }

    fn add(&mut self, record: &Record<'_>) -> io::Result<()> {
        record.encode(&mut self.frame);
        if self.frame.len() >= FRAME_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.header.seal(&mut self.frame, self.end);
        self.out.write_all(&self.frame)?;
        self.end += self.frame.len() as u64;
        Header::start(&mut self.frame);
        Ok(())
    }

    /// Writes the number of records, by which a truncated file is detected.
    fn end(mut self, count: u64) -> io::Result<()> {
        self.add(&Record::control(RecordKind::End, Revision::from(count)))?;
        if self.frame.len() > FRAME {
            self.flush()?;
        }
        self.out.flush()
    }
}

/// A file that is synced at intervals while it is written.
struct PeriodicSync {
    file: File,
    /// Bytes written since the last sync.
    unsynced: u64,
}

impl PeriodicSync {
    fn create(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::create(path)?, unsynced: 0 })
    }
}

impl Write for PeriodicSync {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.unsynced += written as u64;
        if self.unsynced >= SYNC_BYTES {
            self.file.sync_data()?;
            self.unsynced = 0;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
