//! Parses a patch, and reports every duplicate key. The last value counts.

use std::collections::HashSet;
use std::fmt;

use serde::de::{self, DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::PatchError;
use crate::decode_budget::{DecodeBudget, MAX_DECODED, TooLarge};
use crate::decode_path::{DecodePath, Step};
use crate::problems::Problems;

pub(super) struct ParsedPatch {
    pub(super) value: Value,
    /// `duplicate field "data.a"`, in the order of the text.
    pub(super) strict: Vec<String>,
}

pub(super) fn read(text: &[u8]) -> Result<ParsedPatch, PatchError> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let (path, strict) = (DecodePath::default(), Problems::default());
    let mut reader = Reader { path, strict, budget: DecodeBudget::new(MAX_DECODED), full: None };
    let value = match Seed(&mut reader).deserialize(&mut deserializer) {
        Ok(value) => value,
        Err(_) => return Err(reader.full.map_or(PatchError::NotJson, PatchError::TooLarge)),
    };
    deserializer.end().map_err(|_| PatchError::NotJson)?;
    Ok(ParsedPatch { value, strict: reader.strict.into_list() })
}

struct Reader {
    path: DecodePath<'static>,
    strict: Problems,
    budget: DecodeBudget,
    /// Set once the budget is used up.
    full: Option<TooLarge>,
}

impl Reader {
    fn note_duplicate(&mut self) {
        if self.strict.is_full() {
            return;
        }
        let path = self.path.to_string();
        self.strict.note(format!("duplicate field {path:?}"));
    }

    fn within<E: de::Error>(
        &mut self,
        take: impl FnOnce(&mut DecodeBudget) -> Result<(), TooLarge>,
    ) -> Result<(), E> {
        take(&mut self.budget).map_err(|error| {
            self.full = Some(error);
            E::custom("budget")
        })
    }
}

struct Seed<'r>(&'r mut Reader);

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number"))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        self.visit_string(value.to_owned())
    }

    fn visit_string<E: de::Error>(self, value: String) -> Result<Value, E> {
        self.0.within(|budget| budget.text(&value))?;
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let reader = self.0;
        let mut list = Vec::new();
        loop {
            reader.path.push(Step::Index(list.len()));
            let item = items.next_element_seed(Seed(reader))?;
            reader.path.pop();
            let Some(item) = item else { return Ok(Value::Array(list)) };
            reader.within(DecodeBudget::item)?;
            list.push(item);
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let reader = self.0;
        let mut object = Map::new();
        // The path to a key may be long, so each key is reported once.
        let mut repeated = HashSet::new();
        while let Some(key) = entries.next_key::<String>()? {
            let first_again = object.contains_key(&key) && repeated.insert(key.clone());
            reader.path.push(Step::Key(key));
            if first_again {
                reader.note_duplicate();
            }
            let value = entries.next_value_seed(Seed(reader))?;
            let Some(Step::Key(key)) = reader.path.pop() else {
                return Err(A::Error::custom("path"));
            };
            reader.within(|budget| budget.entry(object.len(), &key))?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}
