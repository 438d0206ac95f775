//! Values with a text form of their own: [`Time`], [`MicroTime`], [`IntOrString`] and [`Base64`].

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::ser::{Serialize, Serializer};

use crate::timestamp::Timestamp;

/// A point in time, written with whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub Timestamp);

/// A point in time, written with microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MicroTime(pub Timestamp);

impl Time {
    /// Returns seconds since 1970.
    #[must_use]
    pub fn seconds(self) -> i64 {
        self.0.seconds()
    }
}

impl MicroTime {
    /// Returns seconds since 1970.
    #[must_use]
    pub fn seconds(self) -> i64 {
        self.0.seconds()
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_seconds_text())
    }
}

impl fmt::Display for MicroTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_micros_text())
    }
}

/// Reads a time from its text.
struct TimeText;

impl Visitor<'_> for TimeText {
    type Value = Timestamp;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a time such as 2006-01-02T15:04:05Z")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Timestamp, E> {
        Timestamp::parse(text).map_err(|error| E::custom(format_args!("{text:?} is {error}")))
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Time, D::Error> {
        from.deserialize_str(TimeText).map(Time)
    }
}

impl<'de> Deserialize<'de> for MicroTime {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<MicroTime, D::Error> {
        from.deserialize_str(TimeText).map(MicroTime)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl Serialize for MicroTime {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// A number, or a text such as the name of a port or a percentage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IntOrString {
    Int(i32),
    String(String),
}

impl Default for IntOrString {
    fn default() -> IntOrString {
        IntOrString::Int(0)
    }
}

impl fmt::Display for IntOrString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IntOrString::Int(number) => write!(f, "{number}"),
            IntOrString::String(text) => f.write_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for IntOrString {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<IntOrString, D::Error> {
        struct Either;

        impl Visitor<'_> for Either {
            type Value = IntOrString;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a 32-bit integer or a string")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<IntOrString, E> {
                let range = |_| E::custom(format_args!("{number} is not a 32-bit integer"));
                i32::try_from(number).map(IntOrString::Int).map_err(range)
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<IntOrString, E> {
                let range = |_| E::custom(format_args!("{number} is not a 32-bit integer"));
                i32::try_from(number).map(IntOrString::Int).map_err(range)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<IntOrString, E> {
                Ok(IntOrString::String(text.to_owned()))
            }
        }

        from.deserialize_any(Either)
    }
}

impl Serialize for IntOrString {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            IntOrString::Int(number) => to.serialize_i32(*number),
            IntOrString::String(text) => to.serialize_str(text),
        }
    }
}

/// Bytes, as the base64 text that the API has.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Deserialize, serde::Serialize)]
pub struct Base64(pub String);

impl Base64 {
    /// Returns the bytes.
    pub fn decode(&self) -> Result<Vec<u8>, base64::DecodeError> {
        STANDARD.decode(&self.0)
    }
}
