//! Messages that are one value in JSON: quantities, ports, times, raw JSON.

use serde_json::Value;

use super::{Decoder, Fault, expect, int, int32, text};
use crate::protobuf::wire::Kind;
use crate::quantity::Quantity;
use crate::schema::DecodeError;
use crate::timestamp::Timestamp;

impl Decoder<'_> {
    pub(super) fn quantity(&mut self, bytes: &[u8]) -> Result<Value, Fault> {
        let mut quantity = Value::from("0");
        self.each(bytes, |_, number, kind, reader| {
            if number != 1 {
                return Ok(false);
            }
            expect(kind, Kind::Length)?;
            let text = text(reader.bytes()?)?;
            let parsed = Quantity::parse(&text).map_err(|error| Fault::Value(error.to_string()))?;
            quantity = Value::String(parsed.to_string());
            Ok(true)
        })?;
        Ok(quantity)
    }

    pub(super) fn int_or_string(&mut self, bytes: &[u8]) -> Result<Value, Fault> {
        let (mut is_text, mut whole, mut string) = (0, 0, String::new());
        self.each(bytes, |_, number, kind, reader| {
            match number {
                1 => is_text = int(kind, reader)?,
                2 => whole = int32(int(kind, reader)?)?,
                3 => {
                    expect(kind, Kind::Length)?;
                    string = text(reader.bytes()?)?;
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        match is_text {
            0 => Ok(Value::from(whole)),
            1 => Ok(Value::String(string)),
            other => {
                Err(Fault::Value(format!("the type {other} is neither 0, int, nor 1, string")))
            }
        }
    }

    /// Reads a time; empty bytes are an unset one. `Time` has whole seconds, `MicroTime` whole
    /// microseconds.
    pub(super) fn time(&mut self, bytes: &[u8], micro: bool) -> Result<Value, Fault> {
        /// The years 1 to 9999, the range of RFC 3339.
        const WRITABLE: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        let (mut seconds, mut nanos) = (0, 0);
        self.each(bytes, |_, number, kind, reader| {
            match number {
                1 => seconds = int(kind, reader)?,
                2 => nanos = int32(int(kind, reader)?)?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let nanos = match u32::try_from(nanos) {
            Ok(nanos) if nanos < 1_000_000_000 => nanos,
            _ => return Err(Fault::Value(format!("{nanos} nanoseconds are not below a second"))),
        };
        if !WRITABLE.contains(&seconds) {
            let what = format!("{seconds} seconds since 1970 are not in the years 1 to 9999");
            return Err(Fault::Value(what));
        }
        let time = Timestamp::new(seconds, nanos);
        Ok(Value::String(if micro { time.to_micros_text() } else { time.to_seconds_text() }))
    }

    fn json(&mut self, json: &[u8]) -> Result<Value, Fault> {
        let read = self.schema.decode_any_within(json, self.path.len(), &mut self.budget);
        read.map_err(|error| match error {
            DecodeError::TooLarge(error) => Fault::TooLarge(error),
            DecodeError::Syntax(what) => Fault::Value(format!("not JSON: {what}")),
            other => Fault::Value(other.to_string()),
        })
    }

    /// `RawExtension` and `FieldsV1` hold JSON.
    pub(super) fn raw(&mut self, bytes: &[u8]) -> Result<Value, Fault> {
        let mut value = Value::Null;
        self.each(bytes, |decoder, number, kind, reader| {
            if number != 1 {
                return Ok(false);
            }
            expect(kind, Kind::Length)?;
            let json = reader.bytes()?;
            if !json.is_empty() {
                value = decoder.json(json)?;
            }
            Ok(true)
        })?;
        Ok(value)
    }
}
