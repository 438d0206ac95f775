//! Encodes a value as the message of its type, with fields by number as upstream writes them.
//!
//! The value is in canonical form; members that its type has no field for are not written. Zero
//! numbers and empty texts, which Go sends and JSON omits, are not sent: the result reads the same.

use serde_json::{Map, Value};
use thiserror::Error;

use super::base64;
use super::wire::{Kind, put_bytes, put_int, put_message, put_tag};
use crate::schema::{Field, Number, Schema, Shape, TypeId};
use crate::timestamp::Timestamp;

/// A value does not have its type. Canonical values always have.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{field}: {found} is not {wanted}")]
pub struct EncodeError {
    pub field: String,
    pub found: String,
    pub wanted: &'static str,
}

/// Appends the message of a value.
pub fn encode(
    schema: &Schema,
    id: TypeId,
    value: &Value,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    match value {
        Value::Object(object) => structure(schema, id, object, out),
        other => Err(wrong(&schema.get(id).name, other, "an object")),
    }
}

fn wrong(field: &str, found: &Value, wanted: &'static str) -> EncodeError {
    let mut found = found.to_string();
    if found.len() > 64 {
        let end = (0..=64).rev().find(|end| found.is_char_boundary(*end)).unwrap_or_default();
        found.truncate(end);
        found.push('…');
    }
    EncodeError { field: field.to_owned(), found, wanted }
}

fn structure(
    schema: &Schema,
    id: TypeId,
    object: &Map<String, Value>,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    let type_ = schema.get(id);
    let mut given: Vec<(&Field, &Value)> = Vec::with_capacity(object.len());
    for (name, value) in object {
        match type_.field(name) {
            Some(field) if !value.is_null() && field.number != Number::Nowhere => {
                given.push((field, value));
            }
            _ => {}
        }
    }
    given.sort_by_key(|(field, _)| match field.number {
        Number::Nowhere => (0, 0),
        Number::Own(number) => (number, 0),
        Number::Within(outer, inner) => (outer, inner),
    });
    let mut rest = given.as_slice();
    while let Some(((field, value), after)) = rest.split_first() {
        match field.number {
            Number::Nowhere => rest = after,
            Number::Own(number) => {
                put(schema, field, number, value, out)?;
                rest = after;
            }
            Number::Within(outer, _) => {
                let same = |(field, _): &&(&Field, &Value)| match field.number {
                    Number::Within(number, _) => number == outer,
                    _ => false,
                };
                let (embedded, after) = rest.split_at(rest.iter().take_while(same).count());
                put_message(out, outer, |out| {
                    embedded.iter().try_for_each(|(field, value)| match field.number {
                        Number::Within(_, inner) => put(schema, field, inner, value, out),
                        _ => Ok(()),
                    })
                })?;
                rest = after;
            }
        }
    }
    Ok(())
}

/// Writes a field: once, or once for every item or entry.
fn put(
    schema: &Schema,
    field: &Field,
    number: u32,
    value: &Value,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    repeated(schema, &field.name, &field.shape, number, value, out)
}

fn repeated(
    schema: &Schema,
    name: &str,
    shape: &Shape,
    number: u32,
    value: &Value,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    match (shape, value) {
        (Shape::List(item), Value::Array(items)) => {
            items.iter().try_for_each(|value| single(schema, name, item, number, value, out))
        }
        (Shape::List(_), other) => Err(wrong(name, other, "a list")),
        (Shape::Map(inner), Value::Object(entries)) => {
            entries.iter().try_for_each(|(key, value)| {
                put_message(out, number, |out| {
                    put_bytes(out, 1, key.as_bytes());
                    match value {
                        Value::Null => Ok(()),
                        value => single(schema, key, inner, 2, value, out),
                    }
                })
            })
        }
        (Shape::Map(_), other) => Err(wrong(name, other, "an object")),
        (shape, value) => single(schema, name, shape, number, value, out),
    }
}

fn single(
    schema: &Schema,
    name: &str,
    shape: &Shape,
    number: u32,
    value: &Value,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    match shape {
        Shape::String => put_bytes(out, number, text(name, value)?.as_bytes()),
        Shape::Bool => {
            let flag = value.as_bool().ok_or_else(|| wrong(name, value, "true or false"))?;
            put_int(out, number, i64::from(flag));
        }
        Shape::Int32 | Shape::Int64 => {
            let whole = value.as_i64().ok_or_else(|| wrong(name, value, "a whole number"))?;
            put_int(out, number, whole);
        }
        Shape::Float64 => {
            let float = value.as_f64().ok_or_else(|| wrong(name, value, "a number"))?;
            put_tag(out, number, Kind::Fixed64);
            out.extend_from_slice(&float.to_bits().to_le_bytes());
        }
        Shape::Bytes => {
            let bytes = value.as_str().and_then(base64::bytes_of);
            put_bytes(out, number, &bytes.ok_or_else(|| wrong(name, value, "base64"))?);
        }
        Shape::Quantity => {
            let text = text(name, value)?;
            put_message(out, number, |out| {
                put_bytes(out, 1, text.as_bytes());
                Ok(())
            })?;
        }
        Shape::IntOrString => put_message(out, number, |out| match value {
            Value::String(text) => {
                put_int(out, 1, 1);
                put_bytes(out, 3, text.as_bytes());
                Ok(())
            }
            other => {
                let whole = other.as_i64().ok_or_else(|| wrong(name, other, "a number or text"))?;
                put_int(out, 1, 0);
                put_int(out, 2, whole);
                Ok(())
            }
        })?,
        Shape::Time | Shape::MicroTime => {
            let time = value.as_str().and_then(|text| Timestamp::parse(text).ok());
            let time = time.ok_or_else(|| wrong(name, value, "a time"))?;
            put_message(out, number, |out| {
                put_int(out, 1, time.seconds());
                put_int(out, 2, i64::from(time.nanos()));
                Ok(())
            })?;
        }
        Shape::Any | Shape::Fields => {
            put_message(out, number, |out| {
                put_bytes(out, 1, value.to_string().as_bytes());
                Ok(())
            })?;
        }
        Shape::Struct(id) => match value {
            Value::Object(object) => {
                put_message(out, number, |out| structure(schema, *id, object, out))?;
            }
            other => return Err(wrong(name, other, "an object")),
        },
        // The value of a map is a message with the list as field 1.
        Shape::List(_) | Shape::Map(_) => {
            put_message(out, number, |out| repeated(schema, name, shape, 1, value, out))?;
        }
    }
    Ok(())
}

fn text<'v>(name: &str, value: &'v Value) -> Result<&'v str, EncodeError> {
    value.as_str().ok_or_else(|| wrong(name, value, "a text"))
}
