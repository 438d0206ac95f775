//! Texts as Go writes them, for messages that clients compare with upstream's: [`quoted`] is `%q`, [`value`] is
//! `%v`, [`syntax`] is `%#v`, [`duration`] is `Duration.String`. [`crate::duration`] reads durations.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;

/// Quotes a text as `%q` does.
#[must_use]
pub fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{b}' => quoted.push_str("\\v"),
            '\u{c}' => quoted.push_str("\\f"),
            ' '..='~' => quoted.push(character),
            '\0'..='\u{7f}' => {
                let _ = write!(quoted, "\\x{:02x}", u32::from(character));
            }
            printable if is_printable(printable) => quoted.push(printable),
            '\0'..='\u{ffff}' => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(character));
            }
            _ => {
                let _ = write!(quoted, "\\U{:08x}", u32::from(character));
            }
        }
    }
    quoted.push('"');
    quoted
}

/// Rust's debug form escapes the same characters as Go. At the start of a text it escapes combining characters
/// too, so the character is tested behind a letter.
fn is_printable(character: char) -> bool {
    let text = String::from_iter(['a', character]);
    text.escape_debug().count() == 2
}

/// Renders a value as `%v` does: `map[a:1 b:[x y]]`.
#[must_use]
pub fn value(value: &Value) -> String {
    let mut text = String::new();
    write_value(&mut text, value);
    text
}

fn write_value(text: &mut String, value: &Value) {
    match value {
        Value::Null => text.push_str("<nil>"),
        Value::String(string) => text.push_str(string),
        Value::Bool(_) | Value::Number(_) => {
            let _ = write!(text, "{value}");
        }
        Value::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    text.push(' ');
                }
                write_value(text, item);
            }
            text.push(']');
        }
        Value::Object(object) => {
            text.push_str("map[");
            for (index, (key, value)) in object.iter().enumerate() {
                if index > 0 {
                    text.push(' ');
                }
                text.push_str(key);
                text.push(':');
                write_value(text, value);
            }
            text.push(']');
        }
    }
}

/// Renders a value as `%#v` does.
#[must_use]
pub fn syntax(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(syntax).collect();
            format!("[]interface {{}}{{{}}}", items.join(", "))
        }
        Value::Object(map) => {
            let entry = |(key, value): (&String, &Value)| format!("{key:?}:{}", syntax(value));
            let entries: Vec<String> = map.iter().map(entry).collect();
            format!("map[string]interface {{}}{{{}}}", entries.join(", "))
        }
    }
}

/// Returns the Go type of a decoded value.
#[must_use]
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// Formats a duration as `Duration.String` does: `1.5s`, `2m40s`, `1h0m0s`, `843ms`.
#[must_use]
pub fn duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    if duration.as_secs() > 0 {
        let (seconds, nanos) = (duration.as_secs(), duration.subsec_nanos());
        let shown = decimal(seconds % 60, u64::from(nanos), 9);
        return match (seconds / 3600, seconds / 60 % 60) {
            (0, 0) => format!("{shown}s"),
            (0, minutes) => format!("{minutes}m{shown}s"),
            (hours, minutes) => format!("{hours}h{minutes}m{shown}s"),
        };
    }
    // Below a second there is one unit.
    let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
    match nanos {
        0 => "0s".to_owned(),
        1..1_000 => format!("{nanos}ns"),
        1_000..1_000_000 => format!("{}µs", decimal(nanos / 1_000, nanos % 1_000, 3)),
        _ => format!("{}ms", decimal(nanos / 1_000_000, nanos % 1_000_000, 6)),
    }
}

/// Formats a number whose fraction has that number of digits, without zeros at the end.
fn decimal(whole: u64, fraction: u64, digits: usize) -> String {
    let text = format!("{whole}.{fraction:0digits$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_are_quoted_with_gos_escapes() {
        for (text, expected) in [
            ("", r#""""#),
            ("it's \"a\\b\"", r#""it's \"a\\b\"""#),
            ("\n\r\t\u{7}\u{8}\u{b}\u{c}", r#""\n\r\t\a\b\v\f""#),
            ("\0\u{1f}\u{7f}", r#""\x00\x1f\x7f""#),
            ("é中e\u{301}", "\"é中e\u{301}\""),
            ("\u{301}", "\"\u{301}\""),
            ("\u{85}\u{a0}\u{200b}\u{feff}", r#""\u0085\u00a0\u200b\ufeff""#),
            ("\u{2028}\u{e0001}\u{10ffff}", r#""\u2028\U000e0001\U0010ffff""#),
        ] {
            assert_eq!(quoted(text), expected, "{text:?}");
        }
    }

    #[test]
    fn values_are_rendered_with_gos_verbs() {
        let object = json!({"a": 1, "b": ["x", true, null], "c": {"d": 1.5}});
        assert_eq!(value(&object), "map[a:1 b:[x true <nil>] c:map[d:1.5]]");
        let expected = "map[string]interface {}{\"a\":1, \"b\":[]interface {}{\"x\", true, \
                        interface {}(nil)}, \"c\":map[string]interface {}{\"d\":1.5}}";
        assert_eq!(syntax(&object), expected);
        for (of, expected) in [
            (json!(null), "<nil>"),
            (json!(true), "bool"),
            (json!(1), "int64"),
            (json!(1.5), "float64"),
            (json!("x"), "string"),
            (json!([]), "[]interface {}"),
            (json!({}), "map[string]interface {}"),
        ] {
            assert_eq!(type_name(&of), expected);
        }
    }

    #[test]
    fn durations_have_gos_units() {
        for (nanos, expected) in [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1µs"),
            (7_000_000, "7ms"),
            (843_250_000, "843.25ms"),
            (1_000_000_000, "1s"),
            (1_500_000_000, "1.5s"),
            (61_005_000_000, "1m1.005s"),
            (160_000_000_000, "2m40s"),
            (300_000_000_000, "5m0s"),
            (3_600_000_000_000, "1h0m0s"),
            (3_600_000_000_001, "1h0m0.000000001s"),
        ] {
            assert_eq!(duration(Duration::from_nanos(nanos)), expected);
        }
    }
}
