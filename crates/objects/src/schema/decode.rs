//! Decodes JSON to the canonical value of a type.
//!
//! [`Schema::decode`] reads bytes, [`Schema::decode_value`] a value from another step (a patched
//! object, YAML). Both produce the value as Go would write it: without empty optional fields, with
//! required ones, quantities and times in their canonical form. Unknown and duplicate fields are
//! dropped and listed in [`Decoded::strict`]; the caller decides whether that is an error, a
//! warning or ignored. A value of the wrong type is an error, and so is a body that is nested too
//! deep or whose values take too much memory ([`crate::decode_budget`]).

use std::fmt;

use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserializer, de};
use serde_json::{Map, Value};
use thiserror::Error;

use super::{Field, Presence, Schema, Shape, TypeId};
use crate::decode_budget::{DecodeBudget, MAX_DECODED, MAX_DEPTH, TooLarge};
use crate::decode_path::{DecodePath, Step};
use crate::problems::Problems;
use crate::quantity::Quantity;
use crate::timestamp::{Timestamp, is_micro_time};

/// A value in canonical form, and the dropped fields.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    pub value: Value,
    /// `unknown field "spec.x"` and `duplicate field "spec.y"`, in the order of the text. There are
    /// at most 100, as upstream reports.
    pub strict: Vec<String>,
}

/// A text is not an object of its type.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// Not JSON.
    #[error("{0}")]
    Syntax(String),
    #[error("json: cannot unmarshal {found} into Go struct field {holder}.{path} of type {wanted}")]
    Type { found: String, holder: String, path: String, wanted: String },
    /// The type is right and the text in it is malformed: a quantity, a time, base64.
    #[error("{detail}")]
    Value { path: String, detail: String },
    #[error("exceeded max depth: the value of {path:?} is nested deeper than {MAX_DEPTH} levels")]
    TooDeep { path: String },
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
}

impl Schema {
    pub fn decode(&self, id: TypeId, json: &[u8]) -> Result<Decoded, DecodeError> {
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        let mut decoder = Decoder::new(self, MAX_DECODED);
        let read = decoder.seed(&Shape::Struct(id)).deserialize(&mut deserializer);
        let value = match read {
            Ok(value) => value,
            Err(error) => return Err(decoder.failed(&error)),
        };
        deserializer.end().map_err(|error| DecodeError::Syntax(error.to_string()))?;
        Ok(decoder.finished(id, value))
    }

    pub fn decode_value(&self, id: TypeId, value: Value) -> Result<Decoded, DecodeError> {
        let mut decoder = Decoder::new(self, MAX_DECODED);
        match decoder.seed(&Shape::Struct(id)).deserialize(value) {
            Ok(value) => Ok(decoder.finished(id, value)),
            Err(error) => Err(decoder.failed(&error)),
        }
    }

    /// Reads any JSON, within the limits on depth and memory of objects.
    pub fn decode_any(&self, json: &[u8]) -> Result<Value, DecodeError> {
        self.decode_any_within(json, 0, &mut DecodeBudget::new(MAX_DECODED))
    }

    /// Reads any JSON inside an object, at a depth of `depth` lists and maps.
    pub(crate) fn decode_any_within(
        &self,
        json: &[u8],
        depth: usize,
        budget: &mut DecodeBudget,
    ) -> Result<Value, DecodeError> {
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        let mut decoder = Decoder { depth, budget: budget.clone(), ..Decoder::new(self, 0) };
        let read = decoder.seed(&Shape::Any).deserialize(&mut deserializer);
        *budget = decoder.budget.clone();
        let value = match read {
            Ok(value) => value,
            Err(error) => return Err(decoder.failed(&error)),
        };
        deserializer.end().map_err(|error| DecodeError::Syntax(error.to_string()))?;
        Ok(value)
    }

    /// Returns a structure with nothing set, as Go writes it.
    #[must_use]
    pub fn zero(&self, id: TypeId) -> Value {
        let mut object = Map::new();
        // An object of zeros is small.
        let _ = self.fill(id, &mut object, &mut DecodeBudget::new(usize::MAX));
        Value::Object(object)
    }

    /// Adds the fields that are written even when they are not set.
    pub(crate) fn fill(
        &self,
        id: TypeId,
        object: &mut Map<String, Value>,
        budget: &mut DecodeBudget,
    ) -> Result<(), TooLarge> {
        for field in &self.get(id).fields {
            if field.presence == Presence::Always && !object.contains_key(&field.name) {
                let zero = if field.pointer { Value::Null } else { self.zero_of(&field.shape) };
                budget.entry(object.len(), &field.name)?;
                budget.value(&zero)?;
                object.insert(field.name.clone(), zero);
            }
        }
        Ok(())
    }

    pub(crate) fn zero_of(&self, shape: &Shape) -> Value {
        match shape {
            Shape::String | Shape::Bytes => Value::String(String::new()),
            Shape::Bool => Value::Bool(false),
            Shape::Int32 | Shape::Int64 | Shape::Float64 | Shape::IntOrString => Value::from(0),
            Shape::Quantity => Value::from("0"),
            Shape::Struct(id) => self.zero(*id),
            Shape::Time
            | Shape::MicroTime
            | Shape::Any
            | Shape::Fields
            | Shape::List(_)
            | Shape::Map(_) => Value::Null,
        }
    }

    /// Returns the name that Go has for a type.
    fn go_name(&self, shape: &Shape) -> String {
        match shape {
            Shape::String | Shape::Bytes => "string".to_owned(),
            Shape::Bool => "bool".to_owned(),
            Shape::Int32 => "int32".to_owned(),
            Shape::Int64 => "int64".to_owned(),
            Shape::Float64 => "float64".to_owned(),
            Shape::Quantity => "resource.Quantity".to_owned(),
            Shape::IntOrString => "intstr.IntOrString".to_owned(),
            Shape::Time => "v1.Time".to_owned(),
            Shape::MicroTime => "v1.MicroTime".to_owned(),
            Shape::Any => "runtime.RawExtension".to_owned(),
            Shape::Fields => "v1.FieldsV1".to_owned(),
            Shape::Struct(id) => {
                let type_ = self.get(*id);
                let version = type_.package.rsplit('.').next().unwrap_or_default();
                format!("{version}.{}", type_.name)
            }
            Shape::List(item) => format!("[]{}", self.go_name(item)),
            Shape::Map(value) => format!("map[string]{}", self.go_name(value)),
        }
    }
}

struct Decoder<'s> {
    schema: &'s Schema,
    path: DecodePath<'s>,
    /// The depth of this object in another one.
    depth: usize,
    /// The enclosing structures, innermost last.
    holders: Vec<TypeId>,
    strict: Problems,
    budget: DecodeBudget,
    failure: Option<DecodeError>,
}

impl<'s> Decoder<'s> {
    fn new(schema: &'s Schema, memory: usize) -> Decoder<'s> {
        let (path, holders, strict) = (DecodePath::default(), Vec::new(), Problems::default());
        Decoder {
            schema,
            path,
            depth: 0,
            holders,
            strict,
            budget: DecodeBudget::new(memory),
            failure: None,
        }
    }

    fn seed<'d>(&'d mut self, shape: &'d Shape) -> Seed<'d, 's> {
        Seed { decoder: self, shape }
    }

    fn finished(self, id: TypeId, value: Value) -> Decoded {
        // `null` is an object with nothing set.
        let value = if value.is_null() { self.schema.zero(id) } else { value };
        Decoded { value, strict: self.strict.into_list() }
    }

    fn failed(self, error: &dyn fmt::Display) -> DecodeError {
        self.failure.unwrap_or_else(|| DecodeError::Syntax(error.to_string()))
    }

    /// Stores an error of the current value; serde gets only a placeholder.
    fn value_error<E: de::Error>(&mut self, detail: impl Into<String>) -> E {
        self.failure =
            Some(DecodeError::Value { path: self.path.to_string(), detail: detail.into() });
        E::custom("value")
    }

    fn type_error<E: de::Error>(&mut self, shape: &Shape, found: impl Into<String>) -> E {
        let holder = self.holders.last().map(|id| self.schema.get(*id).name.clone());
        self.failure = Some(DecodeError::Type {
            found: found.into(),
            holder: holder.unwrap_or_default(),
            path: self.path.fields(),
            wanted: self.schema.go_name(shape),
        });
        E::custom("type")
    }

    fn note(&mut self, what: &str) {
        if !self.strict.is_full() {
            self.strict.note(format!("{what} field {:?}", self.path.to_string()));
        }
    }

    /// Fails if the budget is used up.
    fn within<E: de::Error>(
        &mut self,
        take: impl FnOnce(&mut DecodeBudget) -> Result<(), TooLarge>,
    ) -> Result<(), E> {
        take(&mut self.budget).map_err(|error| {
            self.failure = Some(error.into());
            E::custom("budget")
        })
    }

    /// Fails if the current list or map is nested too deep.
    fn check_depth<E: de::Error>(&mut self) -> Result<(), E> {
        if self.depth + self.path.len() < MAX_DEPTH {
            return Ok(());
        }
        self.failure =
            Some(DecodeError::TooDeep { path: crate::yaml::shortened(&self.path.to_string()) });
        Err(E::custom("depth"))
    }
}

/// Reads one value of a shape.
struct Seed<'d, 's> {
    decoder: &'d mut Decoder<'s>,
    shape: &'d Shape,
}

impl<'de> DeserializeSeed<'de> for Seed<'_, '_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_, '_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of the field's type")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        match self.shape {
            Shape::Bool | Shape::Any => Ok(Value::Bool(value)),
            Shape::Quantity => quantity(self.decoder, &value.to_string()),
            shape => Err(self.decoder.type_error(shape, "bool")),
        }
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        match self.shape {
            Shape::Int64 | Shape::Float64 | Shape::Any => Ok(Value::from(value)),
            Shape::Int32 | Shape::IntOrString if i32::try_from(value).is_ok() => {
                Ok(Value::from(value))
            }
            Shape::IntOrString => {
                let detail =
                    format!("json: cannot unmarshal number {value} into Go value of type int32");
                Err(self.decoder.value_error(detail))
            }
            Shape::Quantity => quantity(self.decoder, &value.to_string()),
            shape @ Shape::Int32 => Err(self.decoder.type_error(shape, format!("number {value}"))),
            shape => Err(self.decoder.type_error(shape, "number")),
        }
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        match (i64::try_from(value), self.shape) {
            (Ok(value), _) => self.visit_i64(value),
            (_, Shape::Float64 | Shape::Any) => Ok(Value::from(value)),
            (_, Shape::Quantity) => quantity(self.decoder, &value.to_string()),
            (_, shape @ (Shape::Int32 | Shape::Int64)) => {
                Err(self.decoder.type_error(shape, format!("number {value}")))
            }
            (_, shape) => Err(self.decoder.type_error(shape, "number")),
        }
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        match self.shape {
            Shape::Float64 | Shape::Any => Ok(Value::from(value)),
            Shape::Quantity => quantity(self.decoder, &value.to_string()),
            shape @ (Shape::Int32 | Shape::Int64) => {
                Err(self.decoder.type_error(shape, format!("number {value}")))
            }
            shape => Err(self.decoder.type_error(shape, "number")),
        }
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        match self.shape {
            Shape::Quantity => quantity(self.decoder, value),
            Shape::Time | Shape::MicroTime => time(self.decoder, self.shape, value),
            _ => self.visit_string(value.to_owned()),
        }
    }

    fn visit_string<E: de::Error>(self, value: String) -> Result<Value, E> {
        self.decoder.within(|budget| budget.text(&value))?;
        match self.shape {
            Shape::String | Shape::IntOrString | Shape::Any => Ok(Value::String(value)),
            Shape::Quantity => quantity(self.decoder, &value),
            Shape::Time | Shape::MicroTime => time(self.decoder, self.shape, &value),
            Shape::Bytes => match base64_fault(&value) {
                None => Ok(Value::String(value)),
                Some(at) => {
                    let detail = format!("illegal base64 data at input byte {at}");
                    Err(self.decoder.value_error(detail))
                }
            },
            shape => Err(self.decoder.type_error(shape, "string")),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let decoder = self.decoder;
        decoder.check_depth()?;
        let shape = match self.shape {
            Shape::List(shape) => shape,
            shape @ Shape::Any => shape,
            shape => return Err(decoder.type_error(shape, "array")),
        };
        let mut list = Vec::with_capacity(items.size_hint().unwrap_or(0).min(1024));
        loop {
            decoder.path.push(Step::Index(list.len()));
            let item = items.next_element_seed(decoder.seed(shape))?;
            decoder.path.pop();
            let Some(item) = item else { return Ok(Value::Array(list)) };
            decoder.within(DecodeBudget::item)?;
            list.push(match item {
                Value::Null => zero_within(decoder, shape)?,
                item => item,
            });
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<Value, A::Error> {
        self.decoder.check_depth()?;
        match self.shape {
            Shape::Struct(id) => structure(self.decoder, *id, entries),
            Shape::Map(shape) => map(self.decoder, shape, entries),
            Shape::Any | Shape::Fields => map(self.decoder, &Shape::Any, entries),
            shape => Err(self.decoder.type_error(shape, "object")),
        }
    }
}

fn structure<'de, A: MapAccess<'de>>(
    decoder: &mut Decoder<'_>,
    id: TypeId,
    mut entries: A,
) -> Result<Value, A::Error> {
    let schema = decoder.schema;
    let type_ = schema.get(id);
    let mut object = Map::new();
    let mut seen = vec![false; type_.fields.len()];
    decoder.holders.push(id);
    while let Some(found) = entries.next_key_seed(KeySeed { type_ })? {
        let place = match found {
            Key::Known(place) => place,
            Key::Unknown(name) => {
                decoder.path.push(Step::Key(name));
                decoder.note("unknown");
                decoder.path.pop();
                entries.next_value::<de::IgnoredAny>()?;
                continue;
            }
        };
        let field = &type_.fields[place];
        decoder.path.push(Step::Field(&field.name));
        if std::mem::replace(&mut seen[place], true) {
            decoder.note("duplicate");
            object.remove(&field.name);
        }
        let value = entries.next_value_seed(decoder.seed(&field.shape))?;
        decoder.path.pop();
        if is_written(field, &value) {
            decoder.within(|budget| budget.entry(object.len(), &field.name))?;
            object.insert(field.name.clone(), value);
        }
    }
    decoder.holders.pop();
    fill_within(decoder, id, &mut object)?;
    Ok(Value::Object(object))
}

/// Adds the fields that are written even when they are not set.
fn fill_within<E: de::Error>(
    decoder: &mut Decoder<'_>,
    id: TypeId,
    object: &mut Map<String, Value>,
) -> Result<(), E> {
    let schema = decoder.schema;
    decoder.within(|budget| schema.fill(id, object, budget))
}

/// Returns the value that replaces `null` in a list or map.
fn zero_within<E: de::Error>(decoder: &mut Decoder<'_>, shape: &Shape) -> Result<Value, E> {
    let zero = match shape {
        Shape::Any => Value::Null,
        shape => decoder.schema.zero_of(shape),
    };
    decoder.within(|budget| budget.value(&zero))?;
    Ok(zero)
}

fn map<'de, A: MapAccess<'de>>(
    decoder: &mut Decoder<'_>,
    shape: &Shape,
    mut entries: A,
) -> Result<Value, A::Error> {
    let mut object = Map::new();
    while let Some(key) = entries.next_key::<String>()? {
        decoder.path.push(Step::Key(key));
        let value = entries.next_value_seed(decoder.seed(shape))?;
        let Some(Step::Key(key)) = decoder.path.pop() else {
            return Err(A::Error::custom("path"));
        };
        let value = match value {
            Value::Null => zero_within(decoder, shape)?,
            value => value,
        };
        decoder.within(|budget| budget.entry(object.len(), &key))?;
        if object.contains_key(&key) && !matches!(shape, Shape::Any) {
            decoder.path.push(Step::Key(key.clone()));
            decoder.note("duplicate");
            decoder.path.pop();
        }
        object.insert(key, value);
    }
    Ok(Value::Object(object))
}

/// Reports whether Go would write the field with this value.
pub(crate) fn is_written(field: &Field, value: &Value) -> bool {
    match field.presence {
        Presence::Always => {
            !value.is_null() || !matches!(field.shape, Shape::Struct(_) | Shape::String)
        }
        Presence::Given => !value.is_null(),
        Presence::NonZero => match value {
            Value::Null => false,
            Value::Bool(value) => *value,
            Value::Number(number) => number.as_f64() != Some(0.0),
            Value::String(text) => !text.is_empty(),
            Value::Array(items) => !items.is_empty(),
            Value::Object(object) => !object.is_empty(),
        },
    }
}

enum Key {
    /// The index of a field in its type.
    Known(usize),
    Unknown(String),
}

/// Looks a name up without copying it.
struct KeySeed<'s> {
    type_: &'s super::Type,
}

impl<'de> DeserializeSeed<'de> for KeySeed<'_> {
    type Value = Key;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Key, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for KeySeed<'_> {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field's name")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<Key, E> {
        Ok(self.type_.place(name).map_or_else(|| Key::Unknown(name.to_owned()), Key::Known))
    }
}

fn quantity<E: de::Error>(decoder: &mut Decoder<'_>, text: &str) -> Result<Value, E> {
    match Quantity::parse(text) {
        Ok(quantity) => Ok(Value::String(quantity.to_string())),
        Err(error) => Err(decoder.value_error(error.to_string())),
    }
}

fn time<E: de::Error>(decoder: &mut Decoder<'_>, shape: &Shape, text: &str) -> Result<Value, E> {
    let (layout, micro) = match shape {
        Shape::MicroTime => ("2006-01-02T15:04:05.000000Z07:00", true),
        _ => ("2006-01-02T15:04:05Z07:00", false),
    };
    match Timestamp::parse(text) {
        Ok(time) if micro && is_micro_time(text) => Ok(Value::String(time.to_micros_text())),
        Ok(time) if !micro => Ok(Value::String(time.to_seconds_text())),
        _ => {
            let detail = format!("parsing time {text:?} as {layout:?}: cannot parse {text:?}");
            Err(decoder.value_error(detail))
        }
    }
}

/// Returns the position where a text stops being standard base64, as Go counts it.
fn base64_fault(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut digits = 0;
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'+' | b'/' => digits += 1,
            b'\r' | b'\n' => {}
            b'=' => {
                let padding = bytes[at..].iter().filter(|b| !matches!(b, b'\r' | b'\n'));
                let padding: Vec<_> = padding.collect();
                let wanted = match digits % 4 {
                    2 => 2,
                    3 => 1,
                    _ => 0,
                };
                let right = padding.len() == wanted && padding.iter().all(|b| **b == b'=');
                return (!right).then_some(at);
            }
            _ => return Some(at),
        }
    }
    (digits % 4 != 0).then_some(bytes.len())
}
