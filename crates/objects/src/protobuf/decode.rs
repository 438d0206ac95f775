//! Decodes a message to the canonical value of its type.
//!
//! Go sends every field that is not a pointer, zero or not; fields that JSON omits when zero are
//! omitted here. Fields with an unknown number are skipped and, unless they are empty, listed in
//! [`Decoded::strict`] with the findings that JSON has.

use serde_json::{Map, Number as JsonNumber, Value};
use thiserror::Error;

use super::base64;
use super::wire::{Kind, Reader, WireError};
use crate::decode_budget::{DecodeBudget, MAX_DECODED, TooLarge};
use crate::decode_path::{DecodePath, Step};
use crate::problems::Problems;
use crate::schema::decode::is_written;
use crate::schema::numbers::{Slot, Wire};
use crate::schema::{Decoded, Field, Schema, Shape, TypeId};

mod values;

/// The bytes are not an object.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ProtobufError {
    /// The text is Go's; the numbers are those of [`super::MAGIC`].
    #[error(
        "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"
    )]
    NoEnvelope,
    #[error("the envelope: {0}")]
    Envelope(String),
    #[error("proto: {0}")]
    Message(WireError),
    #[error("proto: {path}: {what}")]
    Field { path: String, what: String },
    #[error("proto: {0}")]
    TooLarge(TooLarge),
}

/// The maximum nesting of messages. The schema is not that deep, and a body cannot make it so.
const DEEP: usize = 64;

/// Decodes a message.
pub fn decode(schema: &Schema, id: TypeId, message: &[u8]) -> Result<Decoded, ProtobufError> {
    let (path, strict) = (DecodePath::default(), Problems::default());
    let mut decoder = Decoder { schema, path, strict, budget: DecodeBudget::new(MAX_DECODED) };
    let mut object = Map::new();
    match decoder.structure(id, message, &mut object) {
        Ok(()) => Ok(Decoded { value: Value::Object(object), strict: decoder.strict.into_list() }),
        Err(Fault::Wire(error)) if decoder.path.is_empty() => Err(ProtobufError::Message(error)),
        Err(Fault::Wire(error)) => {
            Err(ProtobufError::Field { path: decoder.path.to_string(), what: error.to_string() })
        }
        Err(Fault::Value(what)) => {
            Err(ProtobufError::Field { path: decoder.path.to_string(), what })
        }
        Err(Fault::TooLarge(error)) => Err(ProtobufError::TooLarge(error)),
    }
}

/// An error at the decoder's current path.
enum Fault {
    Wire(WireError),
    Value(String),
    TooLarge(TooLarge),
}

impl From<TooLarge> for Fault {
    fn from(error: TooLarge) -> Fault {
        Fault::TooLarge(error)
    }
}

impl From<WireError> for Fault {
    fn from(error: WireError) -> Fault {
        Fault::Wire(error)
    }
}

/// After an error the path still leads to the value.
struct Decoder<'s> {
    schema: &'s Schema,
    path: DecodePath<'s>,
    strict: Problems,
    budget: DecodeBudget,
}

impl<'s> Decoder<'s> {
    /// Reads fields into an object that may already have some of them: two messages for one field
    /// are merged.
    fn structure(
        &mut self,
        id: TypeId,
        message: &[u8],
        object: &mut Map<String, Value>,
    ) -> Result<(), Fault> {
        if self.path.len() > DEEP {
            return Err(Fault::Value(format!("more than {DEEP} messages within each other")));
        }
        let schema = self.schema;
        let type_ = schema.get(id);
        self.fields(&type_.fields, &type_.wire, message, object)?;
        schema.fill(id, object, &mut self.budget)?;
        Ok(())
    }

    fn fields(
        &mut self,
        fields: &'s [Field],
        wire: &'s Wire,
        message: &[u8],
        object: &mut Map<String, Value>,
    ) -> Result<(), Fault> {
        let mut reader = Reader::new(message);
        while !reader.is_empty() {
            let (number, kind) = reader.tag()?;
            match wire.slot(number) {
                Some(Slot::Field(place)) => {
                    let field = &fields[*place];
                    self.path.push(Step::Field(&field.name));
                    self.field(field, kind, &mut reader, object)?;
                    self.path.pop();
                }
                Some(Slot::Embedded(wire)) => {
                    expect(kind, Kind::Length)?;
                    self.fields(fields, wire, reader.bytes()?, object)?;
                }
                None => {
                    if reader.skip(kind)? {
                        self.unknown(number);
                    }
                }
            }
        }
        Ok(())
    }

    fn unknown(&mut self, number: u32) {
        if self.strict.is_full() {
            return;
        }
        let problem = match self.path.to_string() {
            place if place.is_empty() => format!("unknown protobuf field {number}"),
            place => format!("unknown protobuf field {number} of {place:?}"),
        };
        self.strict.note(problem);
    }

    fn field(
        &mut self,
        field: &'s Field,
        kind: Kind,
        reader: &mut Reader<'_>,
        object: &mut Map<String, Value>,
    ) -> Result<(), Fault> {
        match &field.shape {
            Shape::List(item) => match object.get_mut(&field.name) {
                Some(Value::Array(list)) => self.items(item, kind, reader, list),
                _ => {
                    let mut list = Vec::new();
                    self.items(item, kind, reader, &mut list)?;
                    if !list.is_empty() {
                        self.insert(object, field, Value::Array(list))?;
                    }
                    Ok(())
                }
            },
            Shape::Map(value) => {
                expect(kind, Kind::Length)?;
                let (key, value) = self.entry(value, reader.bytes()?)?;
                match object.get_mut(&field.name) {
                    Some(Value::Object(map)) => {
                        self.budget.entry(map.len(), &key)?;
                        map.insert(key, value);
                    }
                    _ => {
                        self.budget.entry(0, &key)?;
                        let map = Map::from_iter([(key, value)]);
                        self.insert(object, field, Value::Object(map))?;
                    }
                }
                Ok(())
            }
            Shape::Struct(id) => {
                expect(kind, Kind::Length)?;
                let bytes = reader.bytes()?;
                if let Some(Value::Object(present)) = object.get_mut(&field.name) {
                    return self.structure(*id, bytes, present);
                }
                let mut inner = Map::new();
                self.structure(*id, bytes, &mut inner)?;
                self.insert(object, field, Value::Object(inner))
            }
            shape => {
                let value = self.single(shape, kind, reader)?;
                if is_written(field, &value) {
                    return self.insert(object, field, value);
                }
                object.remove(&field.name);
                Ok(())
            }
        }
    }

    fn insert(
        &mut self,
        object: &mut Map<String, Value>,
        field: &Field,
        value: Value,
    ) -> Result<(), Fault> {
        self.budget.entry(object.len(), &field.name)?;
        object.insert(field.name.clone(), value);
        Ok(())
    }

    /// Reads one item of a list, or several numbers packed into one field.
    fn items(
        &mut self,
        item: &'s Shape,
        kind: Kind,
        reader: &mut Reader<'_>,
        list: &mut Vec<Value>,
    ) -> Result<(), Fault> {
        let packed = match item {
            Shape::Bool | Shape::Int32 | Shape::Int64 => Some(Kind::Varint),
            Shape::Float64 => Some(Kind::Fixed64),
            _ => None,
        };
        self.path.push(Step::Index(list.len()));
        match packed {
            Some(each) if kind == Kind::Length => {
                let mut inner = Reader::new(reader.bytes()?);
                while !inner.is_empty() {
                    self.budget.item()?;
                    list.push(self.single(item, each, &mut inner)?);
                }
            }
            _ => {
                self.budget.item()?;
                list.push(self.single(item, kind, reader)?);
            }
        }
        self.path.pop();
        Ok(())
    }

    /// Reads an entry of a map: the key is field 1, the value field 2.
    fn entry(&mut self, shape: &'s Shape, message: &[u8]) -> Result<(String, Value), Fault> {
        let mut reader = Reader::new(message);
        let (mut key, mut value) = (String::new(), None);
        while !reader.is_empty() {
            match reader.tag()? {
                (1, kind) => {
                    expect(kind, Kind::Length)?;
                    key = text(reader.bytes()?)?;
                }
                (2, kind) => {
                    self.path.push(Step::Key(key.clone()));
                    value = Some(self.single(shape, kind, &mut reader)?);
                    self.path.pop();
                }
                (number, kind) => {
                    if reader.skip(kind)? {
                        self.unknown(number);
                    }
                }
            }
        }
        Ok((key, value.unwrap_or_else(|| self.schema.zero_of(shape))))
    }

    /// Reads a value that is one field.
    fn single(
        &mut self,
        shape: &'s Shape,
        kind: Kind,
        reader: &mut Reader<'_>,
    ) -> Result<Value, Fault> {
        match shape {
            Shape::Bool => Ok(Value::Bool(int(kind, reader)? != 0)),
            Shape::Int64 => int(kind, reader).map(Value::from),
            Shape::Int32 => int32(int(kind, reader)?).map(Value::from),
            Shape::Float64 => {
                expect(kind, Kind::Fixed64)?;
                let number = f64::from_bits(reader.fixed64()?);
                let not_json = || Fault::Value(format!("{number} cannot be written as JSON"));
                JsonNumber::from_f64(number).map(Value::Number).ok_or_else(not_json)
            }
            shape => {
                expect(kind, Kind::Length)?;
                self.delimited(shape, reader.bytes()?)
            }
        }
    }

    fn delimited(&mut self, shape: &'s Shape, bytes: &[u8]) -> Result<Value, Fault> {
        match shape {
            Shape::String => {
                let text = text(bytes)?;
                self.budget.text(&text)?;
                Ok(Value::String(text))
            }
            Shape::Bytes => {
                let text = base64::text_of(bytes);
                self.budget.text(&text)?;
                Ok(Value::String(text))
            }
            Shape::Quantity => self.quantity(bytes),
            Shape::IntOrString => self.int_or_string(bytes),
            Shape::Time | Shape::MicroTime => self.time(bytes, *shape == Shape::MicroTime),
            Shape::Any | Shape::Fields => self.raw(bytes),
            Shape::Struct(id) => {
                let mut object = Map::new();
                self.structure(*id, bytes, &mut object)?;
                Ok(Value::Object(object))
            }
            // A list that is the value of a map is a message with the list as field 1.
            Shape::List(item) => {
                let mut list = Vec::new();
                self.each(bytes, |decoder, number, kind, reader| match number {
                    1 => decoder.items(item, kind, reader, &mut list).map(|()| true),
                    _ => Ok(false),
                })?;
                Ok(if list.is_empty() { Value::Null } else { Value::Array(list) })
            }
            Shape::Map(value) => {
                let mut map = Map::new();
                self.each(bytes, |decoder, number, kind, reader| match number {
                    1 => {
                        expect(kind, Kind::Length)?;
                        let (key, value) = decoder.entry(value, reader.bytes()?)?;
                        decoder.budget.entry(map.len(), &key)?;
                        map.insert(key, value);
                        Ok(true)
                    }
                    _ => Ok(false),
                })?;
                Ok(Value::Object(map))
            }
            Shape::Bool | Shape::Int32 | Shape::Int64 | Shape::Float64 => {
                Err(Fault::Value("a number was sent as bytes".to_owned()))
            }
        }
    }

    /// Iterates over the fields of a message; `take` returns true for a known field.
    fn each(
        &mut self,
        message: &[u8],
        mut take: impl FnMut(&mut Self, u32, Kind, &mut Reader<'_>) -> Result<bool, Fault>,
    ) -> Result<(), Fault> {
        let mut reader = Reader::new(message);
        while !reader.is_empty() {
            let (number, kind) = reader.tag()?;
            if !take(self, number, kind, &mut reader)? && reader.skip(kind)? {
                self.unknown(number);
            }
        }
        Ok(())
    }
}

fn expect(found: Kind, wanted: Kind) -> Result<(), Fault> {
    if found == wanted {
        return Ok(());
    }
    Err(Fault::Value(format!("the wire type is {found:?} and should be {wanted:?}")))
}

fn int(kind: Kind, reader: &mut Reader<'_>) -> Result<i64, Fault> {
    expect(kind, Kind::Varint)?;
    Ok(reader.varint()? as i64)
}

fn int32(number: i64) -> Result<i32, Fault> {
    let beyond = || Fault::Value(format!("{number} does not fit into 32 bits"));
    i32::try_from(number).map_err(|_| beyond())
}

fn text(bytes: &[u8]) -> Result<String, Fault> {
    let not_text = |error| Fault::Value(format!("not UTF-8: {error}"));
    std::str::from_utf8(bytes).map(str::to_owned).map_err(not_text)
}
