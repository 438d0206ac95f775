//! Bases: the newest value of each key as of one revision, in one file. Entries: [`write`], [`read`].
//!
//! A base stands in for all of the log up to its revision. It is also what a backup is.

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

/// Records are gathered into frames of this size: what is checked, and put in use, as a whole.
const FRAME_BYTES: usize = 64 << 10;

/// Written at most before it is synced. The disk is never so far behind that the log's own syncs have
/// to wait for long.
const SYNC_BYTES: u64 = 4 << 20;

/// Writes a base, gives it its name when it is on the disk as a whole, and returns it for reading.
/// Entries come in the order of their keys, as of `after`.
pub(crate) fn write<E: From<StorageError>>(
    path: &Path,
    after: Revision,
    oldest: Revision,
    entries: impl Iterator<Item = Result<Entry, E>>,
) -> Result<Segment, E> {
    let header = Header { kind: SegmentKind::Base, salt: salt(), after, oldest };
    let unfinished = files::unfinished(path);
    let written = write_unfinished(&unfinished, &header, entries).and_then(|()| {
        files::rename(&unfinished, path).map_err(StorageError::io("create", path))?;
        Ok(())
    });
    if written.is_err() {
        // The failure is reported already.
        let _ = fs::remove_file(&unfinished);
    }
    written.map(|()| Segment::new(path.to_owned(), header))
}

fn write_unfinished<E: From<StorageError>>(
    path: &Path,
    header: &Header,
    entries: impl Iterator<Item = Result<Entry, E>>,
) -> Result<(), E> {
    let failed = || StorageError::io("write", path);
    let mut base = Base::create(path, header).map_err(failed())?;
    let mut count = 0;
    for entry in entries {
        let Entry { key, value, created, modified } = &entry?;
        let (kind, revision, created) = (RecordKind::Put, *modified, *created);
        base.add(&Record { kind, revision, created, key, value }).map_err(failed())?;
        count += 1;
    }
    base.add(&Record::control(RecordKind::End, Revision::from(count))).map_err(failed())?;
    base.finish().map_err(failed())?;
    Ok(())
}

/// Goes through a whole base, frame by frame: records with their places. Is an error, at the latest in
/// the end, unless all of it is as [`write`] left it.
pub(crate) fn read(
    segment: &Segment,
    mut each: impl FnMut(&[(u64, Record<'_>)]),
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
        each(&entries);
        if ended {
            return Ok(());
        }
    }
}

struct Base<'a> {
    file: File,
    header: &'a Header,
    frame: Vec<u8>,
    /// Where the frame goes.
    end: u64,
    synced: u64,
}

impl<'a> Base<'a> {
    fn create(path: &Path, header: &'a Header) -> io::Result<Self> {
        let mut file = File::create(path)?;
        let start = header.encode();
        file.write_all(&start)?;
        let mut frame = Vec::new();
        Header::start(&mut frame);
        Ok(Self { file, header, frame, end: start.len() as u64, synced: 0 })
    }

    fn add(&mut self, record: &Record<'_>) -> io::Result<()> {
        record.encode(&mut self.frame);
        if self.frame.len() >= FRAME_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.header.seal(&mut self.frame, self.end);
        self.file.write_all(&self.frame)?;
        self.end += self.frame.len() as u64;
        Header::start(&mut self.frame);
        if self.end - self.synced >= SYNC_BYTES {
            self.file.sync_data()?;
            self.synced = self.end;
        }
        Ok(())
    }

    fn finish(mut self) -> io::Result<()> {
        if self.frame.len() > FRAME {
            self.flush()?;
        }
        self.file.sync_all()
    }
}
