//! The file format of a store: header, frames, records. Encodes and decodes; does not access files.
//!
//! ```text
//! segment   header frame frame … zeros          all numbers little-endian
//! header    magic:8 version:4 kind:4 salt:8 after:8 oldest:8 crc:4
//! frame     mark:4 length:4 crc:4 record record …
//! record    crc:4 kind:1 key:2 value:4 revision:8 created:8  key… value…
//! ```
//!
//! - A *log* segment has one frame per synced batch, so that a batch is either complete or absent.
//!   `after` is the newest revision before the segment.
//! - A *checkpoint* segment (`.base`) has the newest value of each key as of `after`, in key order.
//!   It ends with an `End` record that holds the number of records.
//! - A frame's `mark` is the lower half of the segment's random salt, and its checksum covers the
//!   salt and the frame's offset. A copy of a frame is therefore invalid at any other offset and in
//!   any other file, even inside a value that contains a copy of a segment.
//! - A record has its own checksum because single records are read by offset long after they were
//!   written.
//!
//! Decoding accepts any bytes: invalid input gives `None`, never a panic.

use crate::revision::Revision;
use crate::transaction::MAX_BYTES;

pub(crate) const MAGIC: [u8; 8] = *b"BerthLog";
pub(crate) const VERSION: u32 = 1;
pub(crate) const HEADER: usize = 44;
pub(crate) const FRAME: usize = 12;
pub(crate) const RECORD: usize = 27;
/// The maximum length of a frame: a batch is one large transaction or several small ones, and a
/// frame of a checkpoint ends with the record that fills it. Bounds the memory for reading a file
/// with any contents.
pub(crate) const MAX_FRAME: usize = 2 * MAX_BYTES;
/// The longest key that the two length bytes can express.
pub(crate) const MAX_KEY: usize = u16::MAX as usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentKind {
    Log,
    Checkpoint,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: SegmentKind,
    pub(crate) salt: u64,
    pub(crate) after: Revision,
    pub(crate) oldest: Revision,
}

/// The reason why bytes are not a usable header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadHeader {
    NotOurs,
    Version(u32),
    Damaged,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let kind: u32 = match self.kind {
            SegmentKind::Log => 1,
            SegmentKind::Checkpoint => 2,
        };
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&kind.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.salt.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.after.get().to_le_bytes());
        bytes[32..40].copy_from_slice(&self.oldest.get().to_le_bytes());
        let crc = crc32fast::hash(&bytes[..40]);
        bytes[40..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, BadHeader> {
        let mut rest = bytes;
        if take::<8>(&mut rest) != Some(MAGIC) {
            return Err(BadHeader::NotOurs);
        }
        // Checked before the checksum, which another version may store elsewhere.
        match take(&mut rest).map(u32::from_le_bytes) {
            Some(VERSION) => {}
            Some(other) => return Err(BadHeader::Version(other)),
            None => return Err(BadHeader::Damaged),
        }
        let mut fields = || {
            let kind = match u32::from_le_bytes(take(&mut rest)?) {
                1 => SegmentKind::Log,
                2 => SegmentKind::Checkpoint,
                _ => return None,
            };
            let salt = u64::from_le_bytes(take(&mut rest)?);
            let after = u64::from_le_bytes(take(&mut rest)?).into();
            let oldest = u64::from_le_bytes(take(&mut rest)?).into();
            let crc = u32::from_le_bytes(take(&mut rest)?);
            let covered = bytes.get(..40)?;
            (crc32fast::hash(covered) == crc).then_some(Self { kind, salt, after, oldest })
        };
        fields().ok_or(BadHeader::Damaged)
    }

    /// Returns true if this is the header of a checkpoint as of a revision.
    pub(crate) fn is_checkpoint_at(&self, revision: Revision) -> bool {
        self.kind == SegmentKind::Checkpoint && self.after == revision
    }

    pub(crate) fn mark(&self) -> [u8; 4] {
        (self.salt as u32).to_le_bytes()
    }

    /// Reserves room for a frame's head at the start of `frame`, to be filled in by [`Self::seal`].
    pub(crate) fn start(frame: &mut Vec<u8>) {
        frame.clear();
        frame.resize(FRAME, 0);
    }

    /// Completes a frame that is written at `offset`.
    pub(crate) fn seal(&self, frame: &mut [u8], offset: u64) {
        let length = (frame.len() - FRAME) as u32;
        let crc = self.checksum(offset, &frame[FRAME..]);
        frame[..4].copy_from_slice(&self.mark());
        frame[4..8].copy_from_slice(&length.to_le_bytes());
        frame[8..12].copy_from_slice(&crc.to_le_bytes());
    }

    /// Returns the length of a frame's records if `head` starts a frame of this segment.
    pub(crate) fn frame_length(&self, head: &[u8; FRAME]) -> Option<usize> {
        let mut rest = &head[..];
        if take(&mut rest)? != self.mark() {
            return None;
        }
        let length = u32::from_le_bytes(take(&mut rest)?) as usize;
        (RECORD..=MAX_FRAME).contains(&length).then_some(length)
    }

    /// Returns true if the checksum of a frame matches.
    pub(crate) fn intact(&self, offset: u64, head: &[u8; FRAME], records: &[u8]) -> bool {
        head[8..] == self.checksum(offset, records).to_le_bytes()
    }

    fn checksum(&self, offset: u64, records: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.salt.to_le_bytes());
        hasher.update(&offset.to_le_bytes());
        hasher.update(records);
        hasher.finalize()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordKind {
    Put,
    Delete,
    /// Everything before `revision` may be dropped. Has no key.
    Compacted,
    /// The end of a checkpoint; `revision` is the number of records before it. Has no key.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    pub(crate) kind: RecordKind,
    pub(crate) revision: Revision,
    /// The creation revision of a put; otherwise equal to `revision`.
    pub(crate) created: Revision,
    pub(crate) key: &'a str,
    pub(crate) value: &'a [u8],
}

impl<'a> Record<'a> {
    /// Returns a record without a key.
    pub(crate) fn control(kind: RecordKind, revision: Revision) -> Self {
        Self { kind, revision, created: revision, key: "", value: &[] }
    }

    /// Returns true if the record changes a key.
    pub(crate) fn is_change(&self) -> bool {
        matches!(self.kind, RecordKind::Put | RecordKind::Delete)
    }

    pub(crate) fn length(&self) -> usize {
        RECORD + self.key.len() + self.value.len()
    }

    /// Appends the record. `Transaction::size` has checked that the key is at most [`MAX_KEY`] long
    /// and that the value fits 32 bits.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let kind: u8 = match self.kind {
            RecordKind::Put => 1,
            RecordKind::Delete => 2,
            RecordKind::Compacted => 3,
            RecordKind::End => 4,
        };
        let start = out.len();
        out.reserve(self.length());
        out.extend_from_slice(&[0; 4]);
        out.push(kind);
        out.extend_from_slice(&(self.key.len() as u16).to_le_bytes());
        out.extend_from_slice(&(self.value.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.revision.get().to_le_bytes());
        out.extend_from_slice(&self.created.get().to_le_bytes());
        out.extend_from_slice(self.key.as_bytes());
        out.extend_from_slice(self.value);
        let crc = crc32fast::hash(&out[start + 4..]);
        out[start..start + 4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Decodes the first record of `bytes`.
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let mut rest = bytes;
        let crc = u32::from_le_bytes(take(&mut rest)?);
        let kind = match take(&mut rest)? {
            [1] => RecordKind::Put,
            [2] => RecordKind::Delete,
            [3] => RecordKind::Compacted,
            [4] => RecordKind::End,
            _ => return None,
        };
        let key = usize::from(u16::from_le_bytes(take(&mut rest)?));
        let value = u32::from_le_bytes(take(&mut rest)?) as usize;
        let revision = u64::from_le_bytes(take(&mut rest)?).into();
        let created = u64::from_le_bytes(take(&mut rest)?).into();
        let (key, rest) = rest.split_at_checked(key)?;
        let value = rest.get(..value)?;
        let end = RECORD + key.len() + value.len();
        if crc32fast::hash(&bytes[4..end]) != crc {
            return None;
        }
        Some(Self { kind, revision, created, key: str::from_utf8(key).ok()?, value })
    }
}

/// Returns the records of a frame with their offsets in it. Ends early, with `None`, at an invalid
/// one.
pub(crate) fn records(frame: &[u8]) -> impl Iterator<Item = Option<(usize, Record<'_>)>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= frame.len() {
            return None;
        }
        let record = Record::decode(&frame[at..]);
        let place = at;
        at = record.map_or(frame.len(), |record| at + record.length());
        Some(record.map(|record| (place, record)))
    })
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header() -> Header {
        Header {
            kind: SegmentKind::Log,
            salt: 0x1234_5678_9abc_def0,
            after: 7.into(),
            oldest: 3.into(),
        }
    }

    fn put<'a>(key: &'a str, value: &'a [u8]) -> Record<'a> {
        Record { kind: RecordKind::Put, revision: 9.into(), created: 8.into(), key, value }
    }

    #[test]
    fn headers_round_trip_and_foreign_ones_are_detected() {
        let bytes = header().encode();
        assert_eq!(Header::decode(&bytes), Ok(header()));
        assert_eq!(Header::decode(b"SQLite format 3\0"), Err(BadHeader::NotOurs));
        assert_eq!(Header::decode(&bytes[..20]), Err(BadHeader::Damaged));
        let mut newer = bytes;
        newer[8] = 2;
        assert_eq!(Header::decode(&newer), Err(BadHeader::Version(2)));
        let mut flipped = bytes;
        flipped[30] ^= 1;
        assert_eq!(Header::decode(&flipped), Err(BadHeader::Damaged));
    }

    #[test]
    fn frame_is_valid_only_at_its_offset() {
        let mut frame = Vec::new();
        Header::start(&mut frame);
        put("a", b"1").encode(&mut frame);
        put("b", b"").encode(&mut frame);
        header().seal(&mut frame, 44);
        let (head, body) = frame.split_first_chunk().unwrap();
        assert_eq!(header().frame_length(head), Some(body.len()));
        assert!(header().intact(44, head, body));
        assert!(!header().intact(45, head, body));
        assert!(!Header { salt: 1, ..header() }.intact(44, head, body));
        let keys: Vec<_> = records(body).map(|record| record.unwrap().1.key).collect();
        assert_eq!(keys, ["a", "b"]);
    }

    proptest! {
        #[test]
        fn records_come_back(key in "\\PC{0,40}", value in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut bytes = vec![];
            put(&key, &value).encode(&mut bytes);
            prop_assert_eq!(bytes.len(), put(&key, &value).length());
            prop_assert_eq!(Record::decode(&bytes), Some(put(&key, &value)));
        }

        #[test]
        fn a_changed_byte_is_noticed(value in prop::collection::vec(any::<u8>(), 0..99), at: prop::sample::Index, flip in 1u8..) {
            let mut bytes = vec![];
            put("key", &value).encode(&mut bytes);
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            prop_assert_eq!(Record::decode(&bytes), None);
        }

        #[test]
        fn no_bytes_make_decoding_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Header::decode(&bytes);
            let _ = records(&bytes).count();
        }
    }
}
