//! Protobuf messages as lists of fields that keep every byte they do not understand: [`Message`].
//!
//! A proxy must not decode a message into generated types and encode it again, because fields of newer versions of the
//! protocol would be lost. Here a message is split at its top level only. The caller takes, replaces or adds the fields
//! that it knows by number and leaves the others as they are, in their order.
//!
//! Nothing here knows CRI. Nested messages are opened by the caller, one level per call, so no input decides how deep
//! the code recurses.

use bytes::{BufMut as _, Bytes, BytesMut};
use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};

/// The number of a field in its message.
pub type FieldNumber = u32;

/// The reason why bytes are not a protobuf message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("field at byte {at} is malformed: {reason}")]
    Malformed { at: usize, reason: String },
    #[error("field {number} at byte {at} ends {missing} bytes after the end of the message")]
    Truncated { number: FieldNumber, at: usize, missing: usize },
    #[error("field {number} at byte {at} is a group, which proto3 does not have")]
    Group { number: FieldNumber, at: usize },
    #[error("field {number} is not a message, a string or bytes")]
    NotDelimited { number: FieldNumber },
}

/// One field with its key, as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Field {
    number: FieldNumber,
    wire_type: WireType,
    /// Key and value.
    raw: Bytes,
    /// The value without key and length.
    value: Bytes,
}

/// The fields of a message in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    fields: Vec<Field>,
}

impl Message {
    /// Splits the encoded message into its fields, which share its memory.
    pub fn parse(encoded: &Bytes) -> Result<Message, WireError> {
        let mut fields = Vec::new();
        let mut at = 0;
        while at < encoded.len() {
            let mut rest = &encoded[at..];
            let malformed =
                |error: prost::DecodeError| WireError::Malformed { at, reason: error.to_string() };
            let (number, wire_type) = decode_key(&mut rest).map_err(malformed)?;
            let length = match wire_type {
                WireType::Varint => {
                    let before = rest.len();
                    decode_varint(&mut rest).map_err(malformed)?;
                    let length = before - rest.len();
                    rest = &encoded[encoded.len() - before..];
                    length
                }
                WireType::ThirtyTwoBit => 4,
                WireType::SixtyFourBit => 8,
                WireType::LengthDelimited => {
                    let length = decode_varint(&mut rest).map_err(malformed)?;
                    usize::try_from(length).unwrap_or(usize::MAX)
                }
                WireType::StartGroup | WireType::EndGroup => {
                    return Err(WireError::Group { number, at });
                }
            };
            let begin = encoded.len() - rest.len();
            if length > rest.len() {
                let missing = length - rest.len();
                return Err(WireError::Truncated { number, at, missing });
            }
            let end = begin + length;
            fields.push(Field {
                number,
                wire_type,
                raw: encoded.slice(at..end),
                value: encoded.slice(begin..end),
            });
            at = end;
        }
        Ok(Message { fields })
    }

    /// Removes all occurrences of a field that holds a message, a string or bytes, and returns their values.
    pub fn take(&mut self, number: FieldNumber) -> Result<Vec<Bytes>, WireError> {
        self.take_if(number, |_| Ok(true))
    }

    /// Removes the occurrences of a field whose value the predicate accepts, and returns their values. The others keep
    /// their place.
    pub fn take_if(
        &mut self,
        number: FieldNumber,
        mut accept: impl FnMut(&Bytes) -> Result<bool, WireError>,
    ) -> Result<Vec<Bytes>, WireError> {
        let mut taken = Vec::new();
        let mut kept = Vec::with_capacity(self.fields.len());
        for field in &self.fields {
            if field.number == number && accept(field.delimited_value()?)? {
                taken.push(field.value.clone());
            } else {
                kept.push(field.clone());
            }
        }
        self.fields = kept;
        Ok(taken)
    }

    /// Returns the value of a singular string or bytes field; the last occurrence counts.
    pub fn last(&self, number: FieldNumber) -> Result<Option<&Bytes>, WireError> {
        let last = self.fields.iter().rfind(|field| field.number == number);
        last.map(Field::delimited_value).transpose()
    }

    /// Opens a singular field that holds a message. Several occurrences are one message in pieces, as protobuf defines
    /// it. Returns `None` if the field is absent.
    pub fn nested(&self, number: FieldNumber) -> Result<Option<Message>, WireError> {
        let mut nested: Option<Message> = None;
        for field in self.fields.iter().filter(|field| field.number == number) {
            let part = Message::parse(field.delimited_value()?)?;
            nested.get_or_insert_default().fields.extend(part.fields);
        }
        Ok(nested)
    }

    /// Replaces a singular field by a message. It keeps the place of its first occurrence, or comes last.
    pub fn set_nested(&mut self, number: FieldNumber, nested: &Message) {
        let field = Field::delimited(number, &nested.encode());
        match self.fields.iter().position(|field| field.number == number) {
            None => self.fields.push(field),
            Some(first) => {
                self.fields[first] = field;
                let mut index = 0;
                self.fields.retain(|field| {
                    index += 1;
                    field.number != number || index - 1 == first
                });
            }
        }
    }

    /// Adds an occurrence of a field at the end.
    pub fn push(&mut self, number: FieldNumber, value: &[u8]) {
        self.fields.push(Field::delimited(number, value));
    }

    /// Adds an entry of a `map<string, string>`, which wins over an earlier entry with the same key.
    pub fn push_entry(&mut self, number: FieldNumber, key: &str, value: &str) {
        let mut entry = Message::default();
        entry.push(1, key.as_bytes());
        entry.push(2, value.as_bytes());
        self.push(number, &entry.encode());
    }

    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut encoded =
            BytesMut::with_capacity(self.fields.iter().map(|field| field.raw.len()).sum());
        for field in &self.fields {
            encoded.put_slice(&field.raw);
        }
        encoded.freeze()
    }
}

impl Field {
    fn delimited(number: FieldNumber, value: &[u8]) -> Field {
        let mut raw = BytesMut::with_capacity(value.len() + 10);
        encode_key(number, WireType::LengthDelimited, &mut raw);
        encode_varint(value.len() as u64, &mut raw);
        let begin = raw.len();
        raw.put_slice(value);
        let raw = raw.freeze();
        let value = raw.slice(begin..);
        Field { number, wire_type: WireType::LengthDelimited, raw, value }
    }

    fn delimited_value(&self) -> Result<&Bytes, WireError> {
        match self.wire_type {
            WireType::LengthDelimited => Ok(&self.value),
            _ => Err(WireError::NotDelimited { number: self.number }),
        }
    }
}

#[cfg(test)]
mod tests;
