//! Parses numbers and booleans like Go, with Go's error texts, and formats maps like Go.
//!
//! Option values and CPU lists reach the kubelet as strings, and users search for its messages.
//! Only the functions that configuration needs are here.

use std::collections::BTreeMap;

use thiserror::Error;

/// The reason why a text is not an integer or boolean.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParseError {
    #[error("strconv.{function}: parsing {text:?}: invalid syntax")]
    Syntax { function: &'static str, text: String },
    #[error("strconv.{function}: parsing {text:?}: value out of range")]
    Range { function: &'static str, text: String },
}

/// Parses a decimal integer with an optional sign.
pub fn parse_int(text: &str) -> Result<i64, ParseError> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(ParseError::Syntax { function: "Atoi", text: text.to_owned() });
    }
    text.parse().map_err(|_| ParseError::Range { function: "Atoi", text: text.to_owned() })
}

/// Formats a map like `%v`: `map[a:1 b:2]`.
pub fn format_map(map: &BTreeMap<String, String>) -> String {
    let entries: Vec<String> = map.iter().map(|(key, value)| format!("{key}:{value}")).collect();
    format!("map[{}]", entries.join(" "))
}

/// Parses one of the twelve spellings that Go accepts.
pub fn parse_bool(text: &str) -> Result<bool, ParseError> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(ParseError::Syntax { function: "ParseBool", text: text.to_owned() }),
    }
}
