//! YAML 1.1 as goresctrl's files are read: by sigs.k8s.io/yaml in its strict mode.
//!
//! Main type: [`Located`]; entry: [`read`]. Only the first document of a text counts. Plain scalars
//! get the types of YAML 1.1 (`010` is 8, `yes` is true), keys become texts, names of fields match
//! in any case, unknown and repeated fields are errors. The tree itself is built by
//! [`objects::yaml`].

use std::collections::HashMap;

use objects::FieldPath;
use objects::yaml::{self, Mark, Problem, YamlError};

use crate::go_text::shortest_f32;

/// A value and its position.
#[derive(Clone, Debug, PartialEq)]
pub struct Located {
    pub mark: Mark,
    pub value: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    List(Vec<Located>),
    Map(Vec<Field>),
}

/// A key and its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    pub name: String,
    pub mark: Mark,
    pub value: Located,
}

/// Reads the first document. An empty text is null.
pub fn read(text: &str) -> Result<Located, YamlError> {
    let (documents, errors) = yaml::parse(first_document(text));
    if let Some(error) = errors.into_iter().next() {
        return Err(error);
    }
    match documents.into_iter().next() {
        Some(node) => from_node(node, &FieldPath::root()),
        None => Ok(Located { mark: Mark::START, value: Value::Null }),
    }
}

/// Cuts a text at the end of its first document. The lines keep their numbers.
fn first_document(text: &str) -> &str {
    let is_marker = |line: &str, marker: &str| {
        line.strip_prefix(marker)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t']))
    };
    let (mut offset, mut started) = (0, false);
    for line in text.split_inclusive('\n') {
        let bare = line.trim_end_matches(['\n', '\r']).trim_start_matches('\u{feff}');
        if is_marker(bare, "...") || (started && is_marker(bare, "---")) {
            return &text[..offset];
        }
        started |= is_marker(bare, "---")
            || !(bare.trim().is_empty()
                || bare.starts_with(['#', '%'])
                || bare.trim_start().starts_with('#'));
        offset += line.len();
    }
    text
}

/// Reads a value of a tree that is read already.
pub fn from_node(node: yaml::Node, path: &FieldPath) -> Result<Located, YamlError> {
    let error = |mark, path: &FieldPath, text: &str| YamlError {
        mark,
        path: path.clone(),
        problem: Problem::Other(text.to_owned()),
    };
    let value = match node.value {
        yaml::Value::Scalar(scalar) if !scalar.plain => Value::Text(scalar.text),
        yaml::Value::Scalar(scalar) => plain(scalar.text)
            .ok_or_else(|| error(node.mark, path, "the number does not fit in 64 bits"))?,
        yaml::Value::List(items) => {
            let item = |(at, item)| from_node(item, &path.index(at));
            Value::List(items.into_iter().enumerate().map(item).collect::<Result<_, _>>()?)
        }
        yaml::Value::Map(entries) => {
            let mut fields: Vec<Field> = Vec::with_capacity(entries.len());
            let mut marks: HashMap<String, Mark> = HashMap::with_capacity(entries.len());
            for entry in entries {
                let name = if entry.plain_key {
                    let key = plain(entry.key).and_then(|key| key.into_text());
                    key.ok_or_else(|| error(entry.mark, path, "the key is not a text"))?
                } else {
                    entry.key
                };
                let path = path.child(&name);
                if let Some(first) = marks.insert(name.clone(), entry.mark) {
                    let problem = Problem::DuplicateKey { first };
                    return Err(YamlError { mark: entry.mark, path, problem });
                }
                let value = from_node(entry.value, &path)?;
                fields.push(Field { name, mark: entry.mark, value });
            }
            Value::Map(fields)
        }
    };
    Ok(Located { mark: node.mark, value })
}

/// Resolves a plain scalar; `None` for a number of more than 64 bits.
fn plain(text: String) -> Option<Value> {
    Some(match text.as_str() {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Value::Bool(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Value::Bool(false)
        }
        ".nan" | ".NaN" | ".NAN" => Value::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Value::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => Value::Float(f64::NEG_INFINITY),
        number => match number.bytes().next() {
            Some(b'0'..=b'9' | b'+' | b'-') => {
                let digits = number.replace('_', "");
                match integer(&digits) {
                    Integer::Fits(value) => Value::Integer(value),
                    Integer::TooLarge if !is_float(&digits) => return None,
                    _ => match digits.parse::<f64>() {
                        Ok(value) if is_float(&digits) => Value::Float(value),
                        _ => Value::Text(text),
                    },
                }
            }
            Some(b'.') if is_float(number) => {
                number.parse().map_or_else(|_| Value::Text(text.clone()), Value::Float)
            }
            _ => Value::Text(text),
        },
    })
}

enum Integer {
    Fits(i128),
    TooLarge,
    Not,
}

/// Reads an integer with Go's prefixes: `0x`, `0o`, `0b`, and `0` for octal.
fn integer(text: &str) -> Integer {
    let (negative, signed, digits) = match text.as_bytes().first() {
        Some(b'-') => (true, true, &text[1..]),
        Some(b'+') => (false, true, &text[1..]),
        _ => (false, false, text),
    };
    let prefix = digits.get(..2).map(str::to_ascii_lowercase);
    let (base, digits) = match prefix.as_deref() {
        Some("0x") => (16, &digits[2..]),
        Some("0o") => (8, &digits[2..]),
        Some("0b") => (2, &digits[2..]),
        Some(_) if digits.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    };
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(base)) {
        return Integer::Not;
    }
    let (least, most) =
        (i128::from(i64::MIN), i128::from(if signed { i64::MAX as u64 } else { u64::MAX }));
    match i128::from_str_radix(digits, base).map(|n| if negative { -n } else { n }) {
        Ok(number) if (least..=most).contains(&number) => Integer::Fits(number),
        _ => Integer::TooLarge,
    }
}

/// Returns true for a decimal number with an optional fraction and exponent.
fn is_float(text: &str) -> bool {
    let text = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let mantissa_right = match mantissa.split_once('.') {
        Some(("", fraction)) => !fraction.is_empty() && digits(fraction),
        Some((whole, fraction)) => digits(whole) && digits(fraction),
        None => !mantissa.is_empty() && digits(mantissa),
    };
    let exponent_right = exponent.is_none_or(|exponent| {
        let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        !exponent.is_empty() && digits(exponent)
    });
    mantissa_right && exponent_right
}

impl Value {
    /// Returns the text that a number or boolean becomes where a text is expected.
    fn into_text(self) -> Option<String> {
        Some(match self {
            Value::Text(text) => text,
            Value::Integer(number) => number.to_string(),
            Value::Float(number) => shortest_f32(number),
            Value::Bool(value) => value.to_string(),
            Value::Null | Value::List(_) | Value::Map(_) => return None,
        })
    }

    fn describe(&self) -> String {
        match self {
            Value::Null => "nothing".to_owned(),
            Value::Bool(value) => value.to_string(),
            Value::Integer(number) => format!("the number {number}"),
            Value::Float(number) => format!("the number {number}"),
            Value::Text(text) => {
                format!("the text {:?}", text.chars().take(60).collect::<String>())
            }
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a map of fields".to_owned(),
        }
    }
}

/// A value with its path, for typed reading.
#[derive(Clone, Debug)]
pub struct At<'a> {
    pub value: &'a Located,
    pub path: FieldPath,
}

impl<'a> At<'a> {
    #[must_use]
    pub fn root(value: &'a Located) -> At<'a> {
        At { value, path: FieldPath::root() }
    }

    /// Returns the error that another value is expected here.
    #[must_use]
    pub fn expected(&self, expected: &str) -> YamlError {
        let (expected, found) = (expected.to_owned(), self.value.value.describe());
        self.error(Problem::Expected { expected, found })
    }

    fn error(&self, problem: Problem) -> YamlError {
        YamlError { mark: self.value.mark, path: self.path.clone(), problem }
    }

    #[must_use]
    pub fn is_null(&self) -> bool {
        self.value.value == Value::Null
    }

    fn child(&self, field: &'a Field) -> At<'a> {
        At { value: &field.value, path: self.path.child(&field.name) }
    }

    /// Returns the entries of a map with keys of any name; null is an empty one.
    pub fn entries(&self) -> Result<Vec<(&'a str, At<'a>)>, YamlError> {
        match &self.value.value {
            Value::Null => Ok(Vec::new()),
            Value::Map(fields) => {
                Ok(fields.iter().map(|field| (field.name.as_str(), self.child(field))).collect())
            }
            _ => Err(self.expected("a map of fields")),
        }
    }

    /// Returns the items of a list; null is an empty one.
    pub fn items(&self) -> Result<Vec<At<'a>>, YamlError> {
        match &self.value.value {
            Value::Null => Ok(Vec::new()),
            Value::List(items) => {
                let item = |(at, value)| At { value, path: self.path.index(at) };
                Ok(items.iter().enumerate().map(item).collect())
            }
            _ => Err(self.expected("a list")),
        }
    }

    /// Returns the fields of a struct by their names in `known`, whatever their case. An unknown
    /// field is an error, and so is a field that is given in two cases.
    pub fn fields(
        &self,
        known: &'static [&'static str],
    ) -> Result<Vec<(&'static str, At<'a>)>, YamlError> {
        let Value::Map(fields) = &self.value.value else {
            return if self.is_null() {
                Ok(Vec::new())
            } else {
                Err(self.expected("a map of fields"))
            };
        };
        let mut found: Vec<(&'static str, At<'a>)> = Vec::with_capacity(fields.len());
        for field in fields {
            let at_key = |problem| YamlError {
                mark: field.mark,
                path: self.path.child(&field.name),
                problem,
            };
            let Some(name) = known.iter().find(|name| name.eq_ignore_ascii_case(&field.name))
            else {
                let nearest = objects::suggest::nearest(&field.name, known.iter().copied());
                return Err(at_key(Problem::UnknownField {
                    name: field.name.clone(),
                    nearest: nearest.map(str::to_owned),
                }));
            };
            if let Some((_, first)) = found.iter().find(|(other, _)| other == name) {
                return Err(at_key(Problem::DuplicateKey { first: first.value.mark }));
            }
            found.push((name, self.child(field)));
        }
        Ok(found)
    }

    /// Reads a boolean; null is false.
    pub fn boolean(&self) -> Result<bool, YamlError> {
        match self.value.value {
            Value::Null => Ok(false),
            Value::Bool(value) => Ok(value),
            _ => Err(self.expected("true or false")),
        }
    }

    /// Reads a text; null is the empty one. Numbers and booleans need quotes.
    pub fn quoted_text(&self) -> Result<String, YamlError> {
        match &self.value.value {
            Value::Null => Ok(String::new()),
            Value::Text(text) => Ok(text.clone()),
            Value::List(_) | Value::Map(_) => Err(self.expected("a text")),
            _ => Err(self.expected("a text; write it in quotes")),
        }
    }

    /// Reads a text; null is the empty one, numbers and booleans become texts.
    pub fn text(&self) -> Result<String, YamlError> {
        match &self.value.value {
            Value::Null => Ok(String::new()),
            value => value.clone().into_text().ok_or_else(|| self.expected("a text")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_scalars_have_the_types_of_yaml_1_1() {
        let check = |text: &str, expected: Value| {
            assert_eq!(read(text).unwrap().value, expected, "{text:?}");
        };
        check("010", Value::Integer(8));
        check("0o17", Value::Integer(15));
        check("0b1010", Value::Integer(10));
        check("-0x10", Value::Integer(-16));
        check("1_00", Value::Integer(100));
        check("18446744073709551615", Value::Integer(u64::MAX.into()));
        check("08", Value::Float(8.0));
        check("1e2", Value::Float(100.0));
        check(".5", Value::Float(0.5));
        check("yes", Value::Bool(true));
        check("'yes'", Value::Text("yes".to_owned()));
        check("50%", Value::Text("50%".to_owned()));
        check("0-3", Value::Text("0-3".to_owned()));
        check("2001-01-01", Value::Text("2001-01-01".to_owned()));
        check("", Value::Null);
    }

    #[test]
    fn only_the_first_document_counts() {
        let check = |text: &str, expected: Value| {
            assert_eq!(read(text).unwrap().value, expected, "{text:?}");
        };
        check("1\n---\n2\n", Value::Integer(1));
        check("# note\n--- 1\n---\n: [\n", Value::Integer(1));
        check("---\n---\n2\n", Value::Null);
        check("1\n...\n2\n", Value::Integer(1));
    }

    #[test]
    fn keys_become_texts() {
        let names = |text: &str| match read(text).unwrap().value {
            Value::Map(fields) => fields.into_iter().map(|field| field.name).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        assert_eq!(names("{0x1: a, '0x2': b, 1.50: c, true: d}"), ["1", "0x2", "1.5", "true"]);
        assert!(read("{null: a}").is_err());
        assert!(read("{1: a, 0x1: b}").is_err());
    }
}
