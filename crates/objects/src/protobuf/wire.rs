//! The encoding below messages: varints, tags, lengths. [`Reader`] takes untrusted bytes and never
//! reads past their end; the writing half appends to a vector.

use thiserror::Error;

/// The wire type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Varint,
    Fixed64,
    Length,
    GroupStart,
    GroupEnd,
    Fixed32,
}

/// Bytes that are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum WireError {
    #[error("the message ends within a field")]
    Truncated,
    #[error("a varint is longer than ten bytes or 64 bits")]
    Varint,
    #[error("{0} is not a field number")]
    Number(u64),
    #[error("{0} is not a wire type")]
    Kind(u8),
    #[error("unbalanced start and end of a group")]
    Group,
}

/// The maximum nesting of groups in a field that is skipped. Groups are deprecated since 2008.
const GROUPS: usize = 32;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn varint(&mut self) -> Result<u64, WireError> {
        let mut number = 0_u64;
        for (at, byte) in self.bytes.iter().enumerate() {
            let bits = u64::from(byte & 0x7f);
            // The tenth byte holds the last bit.
            if at == 9 && *byte > 1 {
                return Err(WireError::Varint);
            }
            number |= bits << (7 * at);
            if byte & 0x80 == 0 {
                self.bytes = &self.bytes[at + 1..];
                return Ok(number);
            }
        }
        Err(WireError::Truncated)
    }

    /// Reads a field's number and kind.
    pub(crate) fn tag(&mut self) -> Result<(u32, Kind), WireError> {
        let tag = self.varint()?;
        let number = match u32::try_from(tag >> 3) {
            Ok(number) if (1..1 << 29).contains(&number) => number,
            _ => return Err(WireError::Number(tag >> 3)),
        };
        let kind = match tag & 7 {
            0 => Kind::Varint,
            1 => Kind::Fixed64,
            2 => Kind::Length,
            3 => Kind::GroupStart,
            4 => Kind::GroupEnd,
            5 => Kind::Fixed32,
            other => return Err(WireError::Kind(other as u8)),
        };
        Ok((number, kind))
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(WireError::Truncated)?;
        self.bytes = rest;
        Ok(taken)
    }

    /// Reads bytes with their length.
    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], WireError> {
        let length = self.varint()?;
        // A length that does not fit in memory is beyond the end.
        self.take(usize::try_from(length).unwrap_or(usize::MAX))
    }

    pub(crate) fn fixed64(&mut self) -> Result<u64, WireError> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(self.take(8)?);
        Ok(u64::from_le_bytes(bytes))
    }

    /// Skips a field's value and reports whether it was non-empty: Go sends zero numbers, empty
    /// texts and structures of such to clients that know the field and to those that do not.
    pub(crate) fn skip(&mut self, kind: Kind) -> Result<bool, WireError> {
        match kind {
            Kind::Varint => self.varint().map(|number| number != 0),
            Kind::Fixed64 => self.take(8).map(|bytes| bytes.iter().any(|byte| *byte != 0)),
            Kind::Fixed32 => self.take(4).map(|bytes| bytes.iter().any(|byte| *byte != 0)),
            Kind::Length => self.bytes().map(|bytes| !holds_nothing(bytes, 0)),
            Kind::GroupEnd => Err(WireError::Group),
            Kind::GroupStart => {
                let mut open = 1;
                while open > 0 {
                    match self.tag()?.1 {
                        Kind::GroupStart if open == GROUPS => return Err(WireError::Group),
                        Kind::GroupStart => open += 1,
                        Kind::GroupEnd => open -= 1,
                        kind => {
                            self.skip(kind)?;
                        }
                    }
                }
                Ok(true)
            }
        }
    }
}

/// Reports whether bytes are a message in which nothing is set.
fn holds_nothing(bytes: &[u8], depth: usize) -> bool {
    const DEEP: usize = 8;
    let mut reader = Reader::new(bytes);
    while !reader.is_empty() {
        let nothing = match reader.tag() {
            Ok((_, Kind::Length)) => {
                reader.bytes().is_ok_and(|inner| depth < DEEP && holds_nothing(inner, depth + 1))
            }
            Ok((_, kind @ (Kind::Varint | Kind::Fixed32 | Kind::Fixed64))) => {
                reader.skip(kind) == Ok(false)
            }
            _ => false,
        };
        if !nothing {
            return false;
        }
    }
    true
}

pub(crate) fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

pub(crate) fn put_tag(out: &mut Vec<u8>, number: u32, kind: Kind) {
    let kind = match kind {
        Kind::Varint => 0,
        Kind::Fixed64 => 1,
        Kind::Length => 2,
        Kind::GroupStart => 3,
        Kind::GroupEnd => 4,
        Kind::Fixed32 => 5,
    };
    put_varint(out, u64::from(number) << 3 | kind);
}

pub(crate) fn put_bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    put_tag(out, number, Kind::Length);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

pub(crate) fn put_int(out: &mut Vec<u8>, number: u32, value: i64) {
    put_tag(out, number, Kind::Varint);
    // Negative numbers are sent as their two's complement, ten bytes long.
    put_varint(out, value as u64);
}

/// Writes a message whose length is known only afterwards. Most are short enough for one byte of
/// length; the others are moved up to make room.
pub(crate) fn put_message<E>(
    out: &mut Vec<u8>,
    number: u32,
    write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    put_tag(out, number, Kind::Length);
    let at = out.len();
    out.push(0);
    write(out)?;
    let length = out.len() - at - 1;
    if length < 0x80 {
        out[at] = length as u8;
    } else {
        let mut prefix = Vec::with_capacity(10);
        put_varint(&mut prefix, length as u64);
        out.splice(at..=at, prefix);
    }
    Ok(())
}

/// Returns the number of bytes of a varint.
pub(crate) fn varint_len(number: u64) -> usize {
    let bits = 64 - (number | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_come_back_and_have_their_length() {
        for number in [0, 1, 127, 128, 300, 1 << 35, u64::MAX >> 1, u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, number);
            assert_eq!(out.len(), varint_len(number), "{number}");
            let mut reader = Reader::new(&out);
            assert_eq!(reader.varint(), Ok(number));
            assert!(reader.is_empty());
        }
    }

    #[test]
    fn hostile_bytes_are_refused() {
        let tag = |bytes: &[u8]| Reader::new(bytes).tag();
        assert_eq!(tag(&[]), Err(WireError::Truncated));
        assert_eq!(tag(&[0x80; 9]), Err(WireError::Truncated));
        assert_eq!(tag(&[0xff; 12]), Err(WireError::Varint));
        assert_eq!(tag(&[0x00]), Err(WireError::Number(0)));
        assert_eq!(tag(&[0x0e]), Err(WireError::Kind(6)));
        let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 1];
        assert_eq!(Reader::new(&huge).bytes(), Err(WireError::Truncated));
        assert_eq!(Reader::new(&[]).skip(Kind::GroupEnd), Err(WireError::Group));
        assert_eq!(Reader::new(&[0x0b; 100]).skip(Kind::GroupStart), Err(WireError::Group));
        assert_eq!(Reader::new(&[0x0b, 0x0c]).skip(Kind::GroupStart), Err(WireError::Truncated));
        assert_eq!(Reader::new(&[0x0b, 0x0c, 0x0c]).skip(Kind::GroupStart), Ok(true));
    }

    #[test]
    fn empty_fields_are_distinguished_from_set_ones() {
        let skip = |bytes: &[u8], kind| Reader::new(bytes).skip(kind).unwrap();
        assert!(!skip(&[0], Kind::Varint));
        assert!(skip(&[1], Kind::Varint));
        assert!(!skip(&[0], Kind::Length));
        // {1: 0, 2: {1: ""}}
        assert!(!skip(&[6, 0x08, 0, 0x12, 2, 0x0a, 0], Kind::Length));
        assert!(skip(&[6, 0x08, 0, 0x12, 2, 0x08, 1], Kind::Length));
        assert!(skip(b"\x03abc", Kind::Length));
    }
}
