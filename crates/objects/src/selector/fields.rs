//! Field selectors: the text of a `fieldSelector=` query, such as
//! `metadata.name=x,status.phase!=Running`.
//!
//! Main type: [`FieldSelector`]. In values a backslash escapes `\`, `,` and `=`. The caller looks
//! up the fields of a kind.

use std::fmt;

use thiserror::Error;

/// A field and the value that it must, or must not, have.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FieldRequirement {
    pub field: String,
    pub equals: bool,
    pub value: String,
}

/// A conjunction of field requirements; an empty one selects every object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct FieldSelector {
    requirements: Vec<FieldRequirement>,
}

/// A text is not a field selector.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FieldSelectorError {
    #[error("invalid selector: '{selector}'; can't understand '{term}'")]
    Term { selector: String, term: String },
    #[error("invalid field selector: invalid escape sequence: {0}")]
    Escape(String),
    /// Upstream prints the character's code point.
    #[error("invalid field selector: unescaped character in value: {}", u32::from(*.0))]
    Unescaped(char),
}

impl FieldSelector {
    pub fn parse(text: &str) -> Result<FieldSelector, FieldSelectorError> {
        let mut terms = split_terms(text);
        // Upstream sorts the terms by their text, so the first error is that of the sorted terms.
        terms.sort_unstable();
        let mut requirements = Vec::new();
        for term in terms.into_iter().filter(|t| !t.is_empty()) {
            // The first operator splits: fields have no escapes.
            let sign = |(at, _): (usize, char)| {
                let rest = term.get(at..)?;
                let signs = [("!=", false), ("==", true), ("=", true)];
                let (sign, equals) = signs.into_iter().find(|(sign, _)| rest.starts_with(sign))?;
                Some((term.get(..at)?, equals, rest.get(sign.len()..)?))
            };
            let Some((field, equals, value)) = term.char_indices().find_map(sign) else {
                return Err(FieldSelectorError::Term {
                    selector: text.to_owned(),
                    term: term.to_owned(),
                });
            };
            let value = unescape(value)?;
            requirements.push(FieldRequirement { field: field.to_owned(), equals, value });
        }
        Ok(FieldSelector { requirements })
    }

    #[must_use]
    pub fn requirements(&self) -> &[FieldRequirement] {
        &self.requirements
    }

    /// Reports whether every object is selected.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Returns the value that a field must have, if there is exactly one.
    #[must_use]
    pub fn requires_exactly(&self, field: &str) -> Option<&str> {
        self.requirements.iter().find(|r| r.equals && r.field == field).map(|r| r.value.as_str())
    }

    /// Reports whether an object with these fields is selected. An absent field is the empty text.
    pub fn matches<'a>(&self, fields: impl Fn(&str) -> Option<&'a str>) -> bool {
        let holds =
            |r: &FieldRequirement| (fields(&r.field).unwrap_or_default() == r.value) == r.equals;
        self.requirements.iter().all(holds)
    }
}

impl std::str::FromStr for FieldSelector {
    type Err = FieldSelectorError;

    fn from_str(text: &str) -> Result<FieldSelector, FieldSelectorError> {
        FieldSelector::parse(text)
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, r) in self.requirements.iter().enumerate() {
            let comma = if n == 0 { "" } else { "," };
            write!(f, "{comma}{}{}", r.field, if r.equals { "=" } else { "!=" })?;
            for c in r.value.chars() {
                if matches!(c, '\\' | ',' | '=') {
                    f.write_str("\\")?;
                }
                write!(f, "{c}")?;
            }
        }
        Ok(())
    }
}

/// Splits at commas that are not escaped.
fn split_terms(text: &str) -> Vec<&str> {
    let mut escaped = false;
    text.split(|c| {
        let splits = !escaped && c == ',';
        escaped = !escaped && c == '\\';
        splits
    })
    .collect()
}

fn unescape(value: &str) -> Result<String, FieldSelectorError> {
    let mut plain = String::with_capacity(value.len());
    let mut characters = value.chars();
    while let Some(c) = characters.next() {
        match c {
            '\\' => match characters.next() {
                Some(c @ ('\\' | ',' | '=')) => plain.push(c),
                Some(c) => return Err(FieldSelectorError::Escape(format!("\\{c}"))),
                None => return Err(FieldSelectorError::Escape("\\".to_owned())),
            },
            ',' | '=' => return Err(FieldSelectorError::Unescaped(c)),
            c => plain.push(c),
        }
    }
    Ok(plain)
}
