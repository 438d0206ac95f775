//! Numbers and quoted texts as Go reads and writes them.
//!
//! goresctrl is a Go program, and users search for its messages. Main entries: [`parse_uint`],
//! [`parse_int`], [`quoted`], [`shortest_f32`]. Only what its files and messages need is here.

use std::fmt;

use thiserror::Error;

/// The reason why a text is not a number.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NumberError {
    #[error("strconv.{function}: parsing {}: invalid syntax", quoted(.text))]
    Syntax { function: &'static str, text: String },
    #[error("strconv.{function}: parsing {}: value out of range", quoted(.text))]
    Range { function: &'static str, text: String },
}

/// Parses digits of a base that fit in a number of bits. Signs, prefixes and underscores are
/// syntax errors.
pub fn parse_uint(text: &str, base: u32, bits: u32) -> Result<u64, NumberError> {
    const FUNCTION: &str = "ParseUint";
    if text.is_empty() || !text.chars().all(|c| c.is_digit(base)) {
        return Err(NumberError::Syntax { function: FUNCTION, text: text.to_owned() });
    }
    match u64::from_str_radix(text, base) {
        Ok(number) if bits >= 64 || number >> bits == 0 => Ok(number),
        _ => Err(NumberError::Range { function: FUNCTION, text: text.to_owned() }),
    }
}

/// Parses decimal digits with an optional sign.
pub fn parse_int(text: &str) -> Result<i64, NumberError> {
    const FUNCTION: &str = "ParseInt";
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(NumberError::Syntax { function: FUNCTION, text: text.to_owned() });
    }
    text.parse().map_err(|_| NumberError::Range { function: FUNCTION, text: text.to_owned() })
}

/// Formats a text like `%q`.
#[must_use]
pub fn quoted(text: &str) -> Quoted<'_> {
    Quoted(text)
}

/// A text that is displayed in double quotes with Go's escapes.
#[derive(Clone, Copy, Debug)]
pub struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        for c in self.0.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\u{7}' => f.write_str("\\a")?,
                '\u{8}' => f.write_str("\\b")?,
                '\u{b}' => f.write_str("\\v")?,
                '\u{c}' => f.write_str("\\f")?,
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                '\t' => f.write_str("\\t")?,
                c if c < ' ' || c == '\u{7f}' => write!(f, "\\x{:02x}", u32::from(c))?,
                c if c.is_control() => write!(f, "\\u{:04x}", u32::from(c))?,
                c => write!(f, "{c}")?,
            }
        }
        f.write_str("\"")
    }
}

/// Formats a number with the fewest digits that name it among 32-bit floats, like
/// `strconv.FormatFloat(value, 'g', -1, 32)`.
#[must_use]
pub fn shortest_f32(value: f64) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "the rounding is Go's")]
    let value = value as f32;
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if !(-4..SHORTEST_PRECISION).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs());
    }
    format!("{value}")
}

/// The exponent at which `%g` changes to scientific notation when it writes the fewest digits.
const SHORTEST_PRECISION: i32 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_parse_within_their_bits() {
        let check = |text: &str, base, bits, expected: Result<u64, &str>| {
            let got = parse_uint(text, base, bits).map_err(|error| error.to_string());
            assert_eq!(got.as_ref().map_err(String::as_str).copied(), expected, "{text:?}");
        };
        check("127", 10, 7, Ok(127));
        check("128", 10, 7, Err("strconv.ParseUint: parsing \"128\": value out of range"));
        check("fF", 16, 64, Ok(255));
        check("+1", 10, 64, Err("strconv.ParseUint: parsing \"+1\": invalid syntax"));
        check("", 10, 64, Err("strconv.ParseUint: parsing \"\": invalid syntax"));
        check(
            "1ffffffffffffffff",
            16,
            64,
            Err("strconv.ParseUint: parsing \"1ffffffffffffffff\": value out of range"),
        );
    }

    #[test]
    fn floats_are_written_like_go() {
        for (value, text) in [
            (50.0, "50"),
            (999.1, "999.1"),
            (1e6, "1e+06"),
            (123_456.0, "123456"),
            (123_456_789.0, "1.2345679e+08"),
            (0.001, "0.001"),
            (0.000_01, "1e-05"),
            (-0.5, "-0.5"),
            (f64::INFINITY, "+Inf"),
        ] {
            assert_eq!(shortest_f32(value), text);
        }
    }

    #[test]
    fn texts_are_quoted_like_go() {
        assert_eq!(quoted("a\"\\\n\0\u{7f}ä").to_string(), r#""a\"\\\n\x00\x7fä""#);
    }
}
