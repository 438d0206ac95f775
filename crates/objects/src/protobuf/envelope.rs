//! The envelope of objects: [`MAGIC`] and a `runtime.Unknown` of kind, version and message.
//!
//! [`Envelope`] holds one object, read or written; [`ListEnvelope`] is written around items that
//! were encoded one by one; [`watch_event`] is a frame of a watch.

use serde_json::Value;

use super::decode::ProtobufError;
use super::encode::{EncodeError, encode};
use super::wire::{Kind, Reader, WireError, put_bytes, put_tag, put_varint, varint_len};
use crate::schema::{Schema, TypeId};

/// The first bytes of every enveloped object.
pub const MAGIC: &[u8; 4] = b"k8s\0";

/// An object with its kind and version, as it was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// Empty if not given.
    pub api_version: String,
    /// Empty if not given.
    pub kind: String,
    /// The object's message.
    pub message: &'a [u8],
}

impl<'a> Envelope<'a> {
    /// Opens an envelope.
    pub fn read(bytes: &'a [u8]) -> Result<Envelope<'a>, ProtobufError> {
        let inner = bytes.strip_prefix(MAGIC).ok_or(ProtobufError::NoEnvelope)?;
        let mut envelope =
            Envelope { api_version: String::new(), kind: String::new(), message: &[] };
        each_text(inner, &mut |number, bytes| {
            match number {
                1 => each_text(bytes, &mut |number, bytes| {
                    match number {
                        1 => envelope.api_version = text(bytes, "apiVersion")?,
                        2 => envelope.kind = text(bytes, "kind")?,
                        _ => {}
                    }
                    Ok(())
                })?,
                2 => envelope.message = bytes,
                // Clients never set these, and their effect cannot be ignored.
                3 if !bytes.is_empty() => {
                    let encoding = String::from_utf8_lossy(bytes);
                    return Err(ProtobufError::Envelope(format!(
                        "the content encoding {encoding:?} is not supported"
                    )));
                }
                4 if !bytes.is_empty() && bytes != super::MEDIA_TYPE.as_bytes() => {
                    let media = String::from_utf8_lossy(bytes);
                    return Err(ProtobufError::Envelope(format!(
                        "the content type {media:?} is not {:?}",
                        super::MEDIA_TYPE
                    )));
                }
                _ => {}
            }
            Ok(())
        })?;
        Ok(envelope)
    }

    /// Encodes an object of a type, with its own kind and version.
    pub fn write(schema: &Schema, id: TypeId, object: &Value) -> Result<Vec<u8>, EncodeError> {
        let mut message = Vec::with_capacity(1024);
        encode(schema, id, object, &mut message)?;
        let name = |field: &str| object[field].as_str().unwrap_or_default();
        let mut out = Vec::with_capacity(message.len() + 64);
        put_head(&mut out, name("apiVersion"), name("kind"), message.len());
        out.extend_from_slice(&message);
        Ok(out)
    }
}

/// Writes everything before the message; its length comes last.
fn put_head(out: &mut Vec<u8>, api_version: &str, kind: &str, length: usize) {
    let mut names = Vec::with_capacity(48);
    put_bytes(&mut names, 1, api_version.as_bytes());
    put_bytes(&mut names, 2, kind.as_bytes());
    out.extend_from_slice(MAGIC);
    put_bytes(out, 1, &names);
    put_tag(out, 2, Kind::Length);
    put_varint(out, length as u64);
}

/// A list whose items are encoded as they are read.
///
/// The length of a list precedes its items, so nothing can be sent until the last one is encoded.
/// Items are held once, in the chunks in which they are sent.
#[derive(Debug)]
pub struct ListEnvelope {
    api_version: String,
    kind: String,
    pieces: Vec<Vec<u8>>,
    item: Vec<u8>,
}

/// The size of a chunk of a list.
const PIECE: usize = 256 * 1024;

impl ListEnvelope {
    /// A list of the given kind, as `PodList`.
    #[must_use]
    pub fn new(api_version: &str, kind: &str) -> ListEnvelope {
        let (api_version, kind) = (api_version.to_owned(), kind.to_owned());
        ListEnvelope { api_version, kind, pieces: vec![Vec::new()], item: Vec::new() }
    }

    /// Adds an item of a type.
    pub fn push(&mut self, schema: &Schema, id: TypeId, item: &Value) -> Result<(), EncodeError> {
        self.item.clear();
        encode(schema, id, item, &mut self.item)?;
        if self.pieces.last().is_none_or(|piece| piece.len() >= PIECE) {
            self.pieces.push(Vec::with_capacity(PIECE + 16 * 1024));
        }
        if let Some(piece) = self.pieces.last_mut() {
            put_bytes(piece, 2, &self.item);
        }
        Ok(())
    }

    /// Returns the finished list in chunks, the first of which has everything before the items.
    /// `metadata` is of type `id`, a `ListMeta`.
    pub fn finish(
        mut self,
        schema: &Schema,
        id: TypeId,
        metadata: &Value,
    ) -> Result<Vec<Vec<u8>>, EncodeError> {
        let mut meta = Vec::new();
        encode(schema, id, metadata, &mut meta)?;
        let before = 1 + varint_len(meta.len() as u64) + meta.len();
        let length = before + self.pieces.iter().map(Vec::len).sum::<usize>();
        let mut head = Vec::with_capacity(128 + before);
        put_head(&mut head, &self.api_version, &self.kind, length);
        put_bytes(&mut head, 1, &meta);
        match self.pieces.as_mut_slice() {
            // A short list is one chunk.
            [only] => {
                head.append(only);
                Ok(vec![head])
            }
            _ => {
                self.pieces.insert(0, head);
                Ok(self.pieces)
            }
        }
    }
}

/// Encodes one frame of a watch: its length, and a `WatchEvent` of the change and the enveloped
/// object.
#[must_use]
pub fn watch_event(change: &str, object: &[u8]) -> Vec<u8> {
    // RawExtension { raw = 1 }
    let raw = 1 + varint_len(object.len() as u64) + object.len();
    let length = 2 + change.len() + 1 + varint_len(raw as u64) + raw;
    let mut out = Vec::with_capacity(4 + length);
    out.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    put_bytes(&mut out, 1, change.as_bytes());
    put_tag(&mut out, 2, Kind::Length);
    put_varint(&mut out, raw as u64);
    put_bytes(&mut out, 1, object);
    out
}

/// Iterates over a message whose fields are all texts or messages.
fn each_text<'a>(
    message: &'a [u8],
    take: &mut dyn FnMut(u32, &'a [u8]) -> Result<(), ProtobufError>,
) -> Result<(), ProtobufError> {
    let broken = |error: WireError| ProtobufError::Envelope(error.to_string());
    let mut reader = Reader::new(message);
    while !reader.is_empty() {
        match reader.tag().map_err(broken)? {
            (number, Kind::Length) => take(number, reader.bytes().map_err(broken)?)?,
            (_, kind) => {
                reader.skip(kind).map_err(broken)?;
            }
        }
    }
    Ok(())
}

fn text(bytes: &[u8], field: &str) -> Result<String, ProtobufError> {
    let not_text = |error| ProtobufError::Envelope(format!("{field} is not UTF-8: {error}"));
    std::str::from_utf8(bytes).map(str::to_owned).map_err(not_text)
}
