//! The text of a patch as a value, with a note of every key given twice. The last one counts.

use std::fmt;

use serde::de::{self, DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::PatchError;

/// More than these are not listed; nobody reads them.
pub(super) const MAX_NOTES: usize = 100;

pub(super) struct Read {
    pub(super) value: Value,
    /// `duplicate field "data.a"`, in the order of the text.
    pub(super) strict: Vec<String>,
}

pub(super) fn read(text: &[u8]) -> Result<Read, PatchError> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let mut reader = Reader { path: Vec::new(), strict: Vec::new() };
    let value =
        Seed(&mut reader).deserialize(&mut deserializer).map_err(|_| PatchError::NotJson)?;
    deserializer.end().map_err(|_| PatchError::NotJson)?;
    Ok(Read { value, strict: reader.strict })
}

enum Step {
    Key(String),
    Index(usize),
}

struct Reader {
    path: Vec<Step>,
    strict: Vec<String>,
}

impl Reader {
    fn note_duplicate(&mut self) {
        if self.strict.len() >= MAX_NOTES {
            return;
        }
        let mut place = String::new();
        for step in &self.path {
            match step {
                Step::Index(index) => place.push_str(&format!("[{index}]")),
                Step::Key(key) => {
                    if !place.is_empty() {
                        place.push('.');
                    }
                    place.push_str(key);
                }
            }
        }
        let note = format!("duplicate field {place:?}");
        if !self.strict.contains(&note) {
            self.strict.push(note);
        }
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
        Ok(Value::from(value))
    }

    fn visit_string<E: de::Error>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let reader = self.0;
        let mut list = Vec::new();
        loop {
            reader.path.push(Step::Index(list.len()));
            let item = items.next_element_seed(Seed(reader))?;
            reader.path.pop();
            match item {
                Some(item) => list.push(item),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let reader = self.0;
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let again = object.contains_key(&key);
            reader.path.push(Step::Key(key));
            if again {
                reader.note_duplicate();
            }
            let value = entries.next_value_seed(Seed(reader))?;
            let Some(Step::Key(key)) = reader.path.pop() else {
                return Err(A::Error::custom("path"));
            };
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}
