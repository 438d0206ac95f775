//! Reading of fields: their names without a copy, and values that may be `null`.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

/// The name of a field, borrowed from the text where possible.
pub(super) struct FieldName<'de>(Cow<'de, str>);

impl FieldName<'_> {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for FieldName<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<FieldName<'de>, D::Error> {
        struct Name;

        impl<'de> Visitor<'de> for Name {
            type Value = FieldName<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a field")
            }

            fn visit_borrowed_str<E: Error>(self, name: &'de str) -> Result<FieldName<'de>, E> {
                Ok(FieldName(Cow::Borrowed(name)))
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<FieldName<'de>, E> {
                self.visit_string(name.to_owned())
            }

            fn visit_string<E: Error>(self, name: String) -> Result<FieldName<'de>, E> {
                Ok(FieldName(Cow::Owned(name)))
            }
        }

        from.deserialize_str(Name)
    }
}

/// Reads the value of a field. `null` is the zero value.
pub(super) fn value<'de, T, A>(entries: &mut A) -> Result<T, A::Error>
where
    T: Deserialize<'de> + Default,
    A: MapAccess<'de>,
{
    Ok(entries.next_value::<Option<T>>()?.unwrap_or_default())
}

/// Skips the value of an unknown field.
pub(super) fn skip<'de, A: MapAccess<'de>>(entries: &mut A) -> Result<(), A::Error> {
    entries.next_value::<IgnoredAny>().map(drop)
}
