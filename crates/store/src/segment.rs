//! [`Segment`]: one file of the store, for reading. [`Scan`] reads its frames in order.
//!
//! Does not write (see `log` and `checkpoint`) and does not know what is current (see `index`).

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::{Buf, Bytes};
use parking_lot::Mutex;

use crate::entry::Entry;
use crate::error::StorageError;
use crate::format::{BadHeader, FRAME, HEADER, Header, MAX_FRAME, RECORD, Record, records};
use crate::handles;
use crate::recover::Dropped;
use crate::revision::Revision;

/// The minimum distance between landmarks. A watcher that reads from the log skips at most this
/// many bytes.
const LANDMARK_DISTANCE: u64 = 64 << 10;

/// The read buffer of a scan.
const SCAN_BUFFER: usize = 64 << 10;

/// The maximum number of marks that [`Segment::frame_beyond`] follows. More than one or two
/// occurrences of these four random bytes in a file are not a coincidence.
const MAX_MARKS: usize = 16;

#[derive(Debug)]
pub(crate) struct Segment {
    path: PathBuf,
    header: Header,
    /// A process-wide unique id.
    id: u64,
    /// The offsets of some frames of a log, with the newest revision before each.
    landmarks: Mutex<Vec<(Revision, u64)>>,
    is_obsolete: AtomicBool,
}

impl Segment {
    pub(crate) fn new(path: PathBuf, header: Header) -> Self {
        let landmarks = Mutex::new(vec![(header.after, HEADER as u64)]);
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (id, is_obsolete) = (NEXT.fetch_add(1, Ordering::Relaxed), AtomicBool::new(false));
        Self { path, header, id, landmarks, is_obsolete }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    pub(crate) fn file_length(&self) -> Result<u64, StorageError> {
        let metadata = fs::metadata(&self.path).map_err(StorageError::io("read", &self.path))?;
        Ok(metadata.len())
    }

    /// Removes the file once the last reader has dropped the segment.
    pub(crate) fn remove_on_drop(&self) {
        self.is_obsolete.store(true, Ordering::Relaxed);
    }

    /// Records the offset of a frame that follows `before`.
    pub(crate) fn remember(&self, before: Revision, offset: u64) {
        let mut landmarks = self.landmarks.lock();
        if landmarks.last().is_none_or(|(_, last)| offset >= last + LANDMARK_DISTANCE) {
            landmarks.push((before, offset));
        }
    }

    /// Returns the offset to start reading at for changes after a revision.
    pub(crate) fn landmark(&self, after: Revision) -> u64 {
        let landmarks = self.landmarks.lock();
        let beyond = landmarks.partition_point(|(before, _)| *before <= after);
        beyond.checked_sub(1).map_or(HEADER as u64, |at| landmarks[at].1)
    }

    /// Reads the entry whose record is at `offset`, and compares its key.
    pub(crate) fn entry(
        &self,
        key: &Arc<str>,
        modified: Revision,
        offset: u64,
        length: u32,
    ) -> Result<Entry, StorageError> {
        let mut bytes = vec![0; length as usize];
        self.read(offset, &mut bytes).map_err(StorageError::io("read", &self.path))?;
        let created = Record::decode(&bytes)
            .filter(|record| record.key == &**key && record.revision == modified)
            .filter(|record| record.length() == bytes.len())
            .map(|record| record.created)
            .ok_or_else(|| self.damaged(offset))?;
        let mut value = Bytes::from(bytes);
        value.advance(RECORD + key.len());
        Ok(Entry { key: key.clone(), value, created, modified })
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut file = match handles::take(self.id) {
            Some(file) => file,
            None => File::open(&self.path)?,
        };
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(buffer)?;
        handles::keep(self.id, file);
        Ok(())
    }

    pub(crate) fn scan(&self, offset: u64) -> Result<Scan<'_>, StorageError> {
        let open = || {
            let mut file = File::open(&self.path)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(offset))?;
            Ok((BufReader::with_capacity(SCAN_BUFFER, file), length))
        };
        let (file, length) = open().map_err(StorageError::io("read", &self.path))?;
        Ok(Scan { segment: self, file, length, offset, frame: Vec::new() })
    }

    /// Returns true if there is a valid frame anywhere after `offset`, where there is none. A batch
    /// is written only after the previous one was synced, so then the bytes at `offset` are damage
    /// and not the remains of a crash.
    pub(crate) fn frame_beyond(&self, offset: u64) -> Result<bool, StorageError> {
        let failed = || StorageError::io("read", &self.path);
        let mut file = File::open(&self.path).map_err(failed())?;
        let mut at = offset + 1;
        file.seek(SeekFrom::Start(at)).map_err(failed())?;
        let mark = self.header.mark();
        let mut window = [0; 4];
        let mut marks = 0;
        for byte in BufReader::with_capacity(SCAN_BUFFER, file).bytes() {
            window.rotate_left(1);
            window[3] = byte.map_err(failed())?;
            at += 1;
            if window == mark {
                marks += 1;
                if marks > MAX_MARKS || self.scan(at - mark.len() as u64)?.step()?.is_some() {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Returns the bytes after the last frame of a log, which ends at `end`; `None` if they are all
    /// zero.
    pub(crate) fn tail(&self, end: u64) -> Result<Option<Dropped>, StorageError> {
        let read = || {
            let mut file = File::open(&self.path)?;
            file.seek(SeekFrom::Start(end))?;
            let mut used = 0;
            let mut at = 0;
            // The records of the incomplete frame, which cannot be longer than this.
            let mut begun = Vec::new();
            let mut buffer = vec![0; SCAN_BUFFER];
            loop {
                let length = file.read(&mut buffer)?;
                if length == 0 {
                    break;
                }
                if let Some(last) = buffer[..length].iter().rposition(|byte| *byte != 0) {
                    used = at + last as u64 + 1;
                }
                if begun.len() < MAX_FRAME {
                    begun.extend_from_slice(&buffer[..length]);
                }
                at += length as u64;
            }
            let records = records(begun.get(FRAME..).unwrap_or_default());
            Ok((used, records.take_while(Option::is_some).count() as u64))
        };
        let (bytes, records) = read().map_err(StorageError::io("read", &self.path))?;
        let path = self.path.clone();
        Ok((bytes > 0).then_some(Dropped { path, offset: end, bytes, records }))
    }

    pub(crate) fn damaged(&self, offset: u64) -> StorageError {
        StorageError::Damaged { path: self.path.clone(), offset }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // Windows keeps the name of a removed file until the last handle is closed.
        handles::close(self.id);
        if self.is_obsolete.load(Ordering::Relaxed) {
            // A file that cannot be removed now is removed when the store is opened next.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// An iteration over the frames of a segment.
#[derive(Debug)]
pub(crate) struct Scan<'a> {
    segment: &'a Segment,
    file: BufReader<File>,
    length: u64,
    offset: u64,
    frame: Vec<u8>,
}

/// The records of a frame, and the offset of the first one.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) offset: u64,
    pub(crate) records: &'a [u8],
}

impl Scan<'_> {
    /// Returns the offset of the next frame, or of the first bytes that are not a frame.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the next frame; `None` at zeros, at the end of the file, or at an invalid frame.
    pub(crate) fn step(&mut self) -> Result<Option<Frame<'_>>, StorageError> {
        let segment = self.segment;
        self.advance().map_err(StorageError::io("read", &segment.path))
    }

    fn advance(&mut self) -> io::Result<Option<Frame<'_>>> {
        let header = &self.segment.header;
        let left = self.length.saturating_sub(self.offset);
        let Some(left) = left.checked_sub(FRAME as u64) else { return Ok(None) };
        let mut head = [0; FRAME];
        self.file.read_exact(&mut head)?;
        let Some(length) = header.frame_length(&head).filter(|length| *length as u64 <= left)
        else {
            return Ok(None);
        };
        self.frame.resize(length, 0);
        self.file.read_exact(&mut self.frame)?;
        if !header.intact(self.offset, &head, &self.frame) {
            return Ok(None);
        }
        let offset = self.offset + FRAME as u64;
        self.offset = offset + length as u64;
        Ok(Some(Frame { offset, records: &self.frame }))
    }
}

/// Reads the header of the file at `path`, or the reason why it is invalid.
pub(crate) fn read_header(path: &Path) -> io::Result<Result<Header, BadHeader>> {
    let mut bytes = Vec::with_capacity(HEADER);
    File::open(path)?.take(HEADER as u64).read_to_end(&mut bytes)?;
    Ok(Header::decode(&bytes))
}
