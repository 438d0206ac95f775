//! Parses unsigned numbers like Go's `strconv.ParseUint`, with its error texts.
//!
//! Main entry: [`parse_uint`]. Users search for the messages of goresctrl, which quote them.

use thiserror::Error;

/// The reason why a text is not an unsigned number.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParseUintError {
    #[error("strconv.ParseUint: parsing {0:?}: invalid syntax")]
    Syntax(String),
    #[error("strconv.ParseUint: parsing {0:?}: value out of range")]
    Range(String),
}

/// Parses digits of a base that fit in a number of bits. Signs, prefixes and underscores are
/// syntax errors.
pub fn parse_uint(text: &str, base: u32, bits: u32) -> Result<u64, ParseUintError> {
    if text.is_empty() || !text.chars().all(|c| c.is_digit(base)) {
        return Err(ParseUintError::Syntax(text.to_owned()));
    }
    match u64::from_str_radix(text, base) {
        Ok(number) if bits >= 64 || number >> bits == 0 => Ok(number),
        _ => Err(ParseUintError::Range(text.to_owned())),
    }
}

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
}
