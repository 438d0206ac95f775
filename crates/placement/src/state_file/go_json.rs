//! JSON as Go's `encoding/json` reads and writes it, for the state files.
//!
//! Main parts: [`parse`] returns a [`Json`] tree, [`Decode`] fills values from it, [`object`] and
//! [`string`] write. Go's peculiarities that matter here: field names match in any case; a value of
//! the wrong type leaves its field unchanged and the rest is still read, so that a broken file
//! shows whether it is of the newest version; `null` empties maps and lists and leaves other values
//! unchanged; `<`, `>` and `&` are escaped; map keys are sorted as text, even numeric ones. It is
//! not a general JSON library: numbers are 64-bit integers, and nesting ends at 128 levels.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use thiserror::Error;

use crate::cpuset::ParseCpuSetError;

/// Why a text does not decode. The words are partly ours: upstream quotes its decoder here.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    #[error("unexpected end of JSON input")]
    Truncated,
    #[error("invalid character or value: {0}")]
    Syntax(String),
    #[error("json: cannot unmarshal {found} into {field} of type {wanted}")]
    WrongType { found: &'static str, field: String, wanted: &'static str },
    #[error("failed to parse cpuset: {0}")]
    PodCpus(ParseCpuSetError),
}

/// A JSON value. Objects keep their members in order and doubled names.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Json {
    Null,
    Bool,
    Unsigned(u64),
    Negative(i64),
    /// A fraction, or beyond 64 bits: no field takes either.
    OtherNumber,
    String(String),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    const fn kind(&self) -> &'static str {
        match self {
            Json::Null => "null",
            Json::Bool => "bool",
            Json::Unsigned(_) | Json::Negative(_) | Json::OtherNumber => "number",
            Json::String(_) => "string",
            Json::Array(_) => "array",
            Json::Object(_) => "object",
        }
    }
}

/// Reads one JSON value and nothing after it. Like Go, it takes bytes that are not UTF-8 as
/// replacement characters.
pub(super) fn parse(content: &[u8]) -> Result<Json, DecodeError> {
    let text = String::from_utf8_lossy(content);
    serde_json::from_str(&text).map_err(|error| {
        if error.is_eof() { DecodeError::Truncated } else { DecodeError::Syntax(error.to_string()) }
    })
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Json, E> {
        Ok(Json::Bool)
    }

    fn visit_u64<E>(self, n: u64) -> Result<Json, E> {
        Ok(Json::Unsigned(n))
    }

    fn visit_i64<E>(self, n: i64) -> Result<Json, E> {
        Ok(u64::try_from(n).map_or(Json::Negative(n), Json::Unsigned))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Json, E> {
        Ok(Json::OtherNumber)
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::String(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut array = Vec::new();
        while let Some(item) = items.next_element()? {
            array.push(item);
        }
        Ok(Json::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Json, A::Error> {
        let mut object = Vec::new();
        while let Some(member) = members.next_entry()? {
            object.push(member);
        }
        Ok(Json::Object(object))
    }
}

/// A Go map: `None` is the nil map, which hashes differently from an empty one.
pub(super) type Map<K, V> = Option<BTreeMap<K, V>>;

/// A Go slice: `None` is the nil slice.
pub(super) type Slice<T> = Option<Vec<T>>;

/// A Go pointer.
pub(super) type Pointer<T> = Option<Box<T>>;

/// The first wrong type met while decoding; the last word on whether decoding succeeded.
#[derive(Debug, Default)]
pub(super) struct Faults(Option<DecodeError>);

impl Faults {
    fn wrong_type(&mut self, json: &Json, field: &str, wanted: &'static str) {
        self.0.get_or_insert_with(|| DecodeError::WrongType {
            found: json.kind(),
            field: field.to_owned(),
            wanted,
        });
    }

    pub(super) fn into_result(self) -> Result<(), DecodeError> {
        self.0.map_or(Ok(()), Err)
    }
}

/// A value that can be filled from JSON. A wrong type is noted in `faults` and decoding goes on; an
/// `Err` ends it on the spot.
pub(super) trait Decode {
    fn decode(&mut self, json: &Json, field: &str, faults: &mut Faults) -> Result<(), DecodeError>;
}

/// Calls `set` with the name and value of each member that is one of `fields`.
pub(super) fn decode_fields(
    json: &Json,
    name: &str,
    fields: &[&'static str],
    faults: &mut Faults,
    mut set: impl FnMut(&'static str, &Json, &mut Faults) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    match json {
        Json::Null => {}
        Json::Object(members) => {
            for (key, value) in members {
                let known = fields.iter().find(|f| *f == key);
                if let Some(field) = known.or_else(|| fields.iter().find(|f| folded_eq(f, key))) {
                    set(field, value, faults)?;
                }
            }
        }
        other => faults.wrong_type(other, name, "object"),
    }
    Ok(())
}

/// Equality without regard to case. Two letters beyond ASCII fold to ASCII ones.
fn folded_eq(field: &str, key: &str) -> bool {
    let fold = |c: char| match c {
        'ſ' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    };
    field.chars().map(fold).eq(key.chars().map(fold))
}

impl Decode for String {
    fn decode(&mut self, json: &Json, field: &str, faults: &mut Faults) -> Result<(), DecodeError> {
        match json {
            Json::Null => {}
            Json::String(text) => self.clone_from(text),
            other => faults.wrong_type(other, field, "string"),
        }
        Ok(())
    }
}

impl Decode for u64 {
    fn decode(&mut self, json: &Json, field: &str, faults: &mut Faults) -> Result<(), DecodeError> {
        match json {
            Json::Null => {}
            Json::Unsigned(n) => *self = *n,
            other => faults.wrong_type(other, field, "uint64"),
        }
        Ok(())
    }
}

impl Decode for i64 {
    fn decode(&mut self, json: &Json, field: &str, faults: &mut Faults) -> Result<(), DecodeError> {
        let number = match json {
            Json::Null => return Ok(()),
            Json::Unsigned(n) => i64::try_from(*n).ok(),
            Json::Negative(n) => Some(*n),
            _ => None,
        };
        match number {
            Some(n) => *self = n,
            None => faults.wrong_type(json, field, "int"),
        }
        Ok(())
    }
}

/// The key of a Go map.
pub(super) trait Key: Ord + Sized {
    fn from_name(name: &str) -> Option<Self>;
}

impl Key for String {
    fn from_name(name: &str) -> Option<String> {
        Some(name.to_owned())
    }
}

impl Key for i64 {
    fn from_name(name: &str) -> Option<i64> {
        name.parse().ok()
    }
}

impl<K: Key, V: Decode + Default> Decode for Map<K, V> {
    /// Adds to what is there, so a map given twice is the union of both.
    fn decode(&mut self, json: &Json, field: &str, faults: &mut Faults) -> Result<(), DecodeError> {
        match json {
            Json::Null => *self = None,
            Json::Object(members) => {
                let map = self.get_or_insert_default();
                for (name, member) in members {
                    let mut value = V::default();
                    value.decode(member, field, faults)?;
                    match K::from_name(name) {
                        Some(key) => _ = map.insert(key, value),
                        None => faults.wrong_type(&Json::OtherNumber, field, "int"),
                    }
                }
            }
            other => faults.wrong_type(other, field, "map"),
        }
        Ok(())
    }
}

impl<T: Decode + Default> Decode for Slice<T> {
    fn decode(&mut self, json: &Json, field: &str, faults: &mut Faults) -> Result<(), DecodeError> {
        match json {
            Json::Null => *self = None,
            Json::Array(items) => {
                let mut slice = Vec::with_capacity(items.len());
                for item in items {
                    let mut value = T::default();
                    value.decode(item, field, faults)?;
                    slice.push(value);
                }
                *self = Some(slice);
            }
            other => faults.wrong_type(other, field, "list"),
        }
        Ok(())
    }
}

impl<T: Decode + Default> Decode for Pointer<T> {
    fn decode(&mut self, json: &Json, field: &str, faults: &mut Faults) -> Result<(), DecodeError> {
        if *json == Json::Null {
            *self = None;
            return Ok(());
        }
        self.get_or_insert_default().decode(json, field, faults)
    }
}

/// A JSON string.
pub(super) fn string(text: &str) -> String {
    let mut json = String::with_capacity(text.len() + 2);
    json.push('"');
    for c in text.chars() {
        match c {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\n' => json.push_str("\\n"),
            '\r' => json.push_str("\\r"),
            '\t' => json.push_str("\\t"),
            '\x08' => json.push_str("\\b"),
            '\x0c' => json.push_str("\\f"),
            '\0'..'\x20' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(json, "\\u{:04x}", u32::from(c));
            }
            c => json.push(c),
        }
    }
    json.push('"');
    json
}

/// A JSON object of members that are JSON already, in the order given.
pub(super) fn object<N: AsRef<str>>(members: impl IntoIterator<Item = (N, String)>) -> String {
    enclosed('{', members.into_iter().map(|(n, v)| format!("{}:{v}", string(n.as_ref()))), '}')
}

/// A JSON array of items that are JSON already.
pub(super) fn array(items: impl IntoIterator<Item = String>) -> String {
    enclosed('[', items.into_iter(), ']')
}

fn enclosed(open: char, items: impl Iterator<Item = String>, close: char) -> String {
    let mut json = String::from(open);
    for (n, item) in items.enumerate() {
        if n > 0 {
            json.push(',');
        }
        json.push_str(&item);
    }
    json.push(close);
    json
}

/// A Go map as a JSON object, its keys sorted as text.
pub(super) fn map<K: ToString, V>(map: &Map<K, V>, value: impl Fn(&V) -> String) -> String {
    let Some(map) = map else { return "null".into() };
    let mut members: Vec<_> = map.iter().map(|(k, v)| (k.to_string(), value(v))).collect();
    members.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    object(members)
}

/// A Go slice as a JSON array.
pub(super) fn slice<T>(slice: &Slice<T>, item: impl Fn(&T) -> String) -> String {
    slice.as_ref().map_or_else(|| "null".into(), |items| array(items.iter().map(item)))
}

/// Returns true if Go's `omitempty` leaves a map out.
pub(super) fn is_empty<K, V>(map: &Map<K, V>) -> bool {
    map.as_ref().is_none_or(BTreeMap::is_empty)
}
