//! Typed reading of a tree: a cursor with its path ([`At`], [`Object`]) and a list of errors and
//! warnings ([`Findings`]). A reader reports a wrong value and continues, so that one run lists all
//! problems.

use std::collections::BTreeMap;

use super::{Entry, Mark, Node, Problem, Resolved, Scalar, Value, YamlError};
use crate::field::{FieldError, FieldPath, Step};
use crate::quantity::Quantity;
use crate::suggest::nearest;

/// The errors and warnings of a reader.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    pub errors: Vec<YamlError>,
    /// Accepted, but not in the expected form.
    pub warnings: Vec<YamlError>,
}

impl Findings {
    pub fn extend(&mut self, other: Findings) {
        self.errors.extend(other.errors);
        self.warnings.extend(other.warnings);
    }

    /// Adds the errors of validation, with positions looked up in the tree.
    pub fn locate(&mut self, root: &Node, prefix: &FieldPath, errors: Vec<FieldError>) {
        self.errors.extend(errors.into_iter().map(|error| {
            let path = error.path.under(prefix);
            YamlError { mark: root.locate(&path), path, problem: Problem::Field(error.problem) }
        }));
    }

    /// Sorts the findings by position.
    #[must_use]
    pub fn sorted(mut self) -> Findings {
        self.errors.sort_by_key(|e| e.mark);
        self.warnings.sort_by_key(|e| e.mark);
        self
    }
}

/// A step of a path that is rendered only for an error.
#[derive(Debug, Clone, Copy)]
enum StepRef<'a> {
    Field(&'a str),
    Index(usize),
}

/// A value and its path.
#[derive(Debug, Clone, Copy)]
pub struct At<'a> {
    pub node: &'a Node,
    parent: Option<(&'a At<'a>, StepRef<'a>)>,
}

impl<'a> At<'a> {
    #[must_use]
    pub fn root(node: &'a Node) -> At<'a> {
        At { node, parent: None }
    }

    #[must_use]
    pub fn path(&self) -> FieldPath {
        let mut steps = Vec::new();
        let mut at = self;
        while let Some((parent, step)) = at.parent {
            steps.push(match step {
                StepRef::Field(name) => Step::Field(name.to_owned()),
                StepRef::Index(index) => Step::Index(index),
            });
            at = parent;
        }
        steps.into_iter().rev().collect()
    }

    #[must_use]
    pub fn problem(&self, problem: Problem) -> YamlError {
        YamlError { mark: self.node.mark, path: self.path(), problem }
    }

    /// Reports that another value was expected here.
    pub fn expected(&self, expected: impl Into<String>, findings: &mut Findings) {
        let found = self.node.describe();
        findings.errors.push(self.problem(Problem::Expected { expected: expected.into(), found }));
    }

    pub fn error(&self, message: impl Into<String>, findings: &mut Findings) {
        findings.errors.push(self.problem(Problem::Other(message.into())));
    }

    pub fn warn(&self, message: impl Into<String>, findings: &mut Findings) {
        findings.warnings.push(self.problem(Problem::Other(message.into())));
    }

    /// Reads a map of fields.
    pub fn object<'b>(&'b self, findings: &mut Findings) -> Option<Object<'b>> {
        match &self.node.value {
            Value::Map(entries) => Some(Object { at: self, entries }),
            _ => {
                self.expected("a map of fields", findings);
                None
            }
        }
    }

    /// Reads the items of a list.
    pub fn items<'b>(&'b self, findings: &mut Findings) -> Vec<At<'b>> {
        let Value::List(items) = &self.node.value else {
            self.expected("a list", findings);
            return Vec::new();
        };
        items
            .iter()
            .enumerate()
            .map(|(index, node)| At { node, parent: Some((self, StepRef::Index(index))) })
            .collect()
    }

    fn scalar(&self, expected: &str, findings: &mut Findings) -> Option<(&'a Scalar, Resolved)> {
        match &self.node.value {
            Value::Scalar(scalar) => Some((scalar, scalar.resolve())),
            _ => {
                self.expected(expected, findings);
                None
            }
        }
    }

    /// Reads a text; numbers and booleans must be in quotes.
    pub fn text(&self, findings: &mut Findings) -> Option<String> {
        match self.scalar("a text", findings)? {
            (scalar, Resolved::Text) => Some(scalar.text.clone()),
            (scalar, Resolved::Number | Resolved::Bool(_)) => {
                self.expected(format!("a text; write it in quotes: {:?}", scalar.text), findings);
                None
            }
            (_, Resolved::Null) => {
                self.expected("a text", findings);
                None
            }
        }
    }

    /// Reads a text without quotes around a number or boolean, with a warning.
    pub fn text_like(&self, findings: &mut Findings) -> Option<String> {
        match self.scalar("a text", findings)? {
            (_, Resolved::Null) => {
                self.expected("a text", findings);
                None
            }
            (scalar, resolved) => {
                if resolved != Resolved::Text {
                    let text = &scalar.text;
                    self.warn(
                        format!("taken as text; upstream requires quotes: {text:?}"),
                        findings,
                    );
                }
                Some(scalar.text.clone())
            }
        }
    }

    pub fn boolean(&self, findings: &mut Findings) -> Option<bool> {
        match self.scalar("true or false", findings)? {
            (_, Resolved::Bool(value)) => Some(value),
            _ => {
                self.expected("true or false", findings);
                None
            }
        }
    }

    /// Reads an integer within `least..=most`.
    pub fn integer(&self, least: i64, most: i64, findings: &mut Findings) -> Option<i64> {
        let expected = match (least, most) {
            (i64::MIN, i64::MAX) => "a whole number".to_owned(),
            (0, i64::MAX) => "a whole number, 0 or more".to_owned(),
            _ => format!("a whole number between {least} and {most}"),
        };
        let number = match self.scalar(&expected, findings)? {
            (scalar, Resolved::Number) => scalar.text.parse::<i64>().ok(),
            _ => None,
        };
        let number = number.filter(|n| (least..=most).contains(n));
        if number.is_none() {
            self.expected(expected, findings);
        }
        number
    }

    pub fn number(&self, findings: &mut Findings) -> Option<f64> {
        let number = match self.scalar("a number", findings)? {
            (scalar, Resolved::Number) => scalar.text.parse::<f64>().ok(),
            _ => None,
        };
        if number.is_none() {
            self.expected("a number", findings);
        }
        number
    }

    /// Reads a resource quantity, written as text or as a number.
    pub fn quantity(&self, findings: &mut Findings) -> Option<Quantity> {
        const EXPECTED: &str = "a quantity such as 500m, 2 or 1Gi";
        let (scalar, resolved) = self.scalar(EXPECTED, findings)?;
        match resolved {
            Resolved::Null | Resolved::Bool(_) => {
                self.expected(EXPECTED, findings);
                None
            }
            Resolved::Number if is_octal(&scalar.text) => {
                let expected = format!(
                    "{EXPECTED}; YAML takes a leading zero for an octal number, write {:?} or {:?}",
                    scalar.text,
                    scalar.text.trim_start_matches('0'),
                );
                self.expected(expected, findings);
                None
            }
            Resolved::Number | Resolved::Text => match Quantity::parse(scalar.text.trim()) {
                Ok(quantity) => Some(quantity),
                Err(error) => {
                    let text = super::shortened(&scalar.text);
                    let hint = quantity_hint(&scalar.text);
                    self.error(format!("{text:?} is not {EXPECTED}{hint}: {error}"), findings);
                    None
                }
            },
        }
    }

    /// Reads a map with values of one type. Values that cannot be read are left out.
    pub fn map_of<T>(
        &self,
        findings: &mut Findings,
        mut read: impl FnMut(&At<'_>, &mut Findings) -> Option<T>,
    ) -> BTreeMap<String, T> {
        let Some(object) = self.object(findings) else { return BTreeMap::new() };
        object
            .fields()
            .filter_map(|(key, at)| Some((key.to_owned(), read(&at, findings)?)))
            .collect()
    }
}

fn is_octal(text: &str) -> bool {
    text.len() > 1 && text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit())
}

/// Suggests the intended value for common mistakes.
fn quantity_hint(text: &str) -> String {
    let text = text.trim();
    let suffix_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(suffix_at);
    let number = number.trim();
    let meant = match suffix {
        "K" => "k",
        "KB" | "kB" | "kb" | "Kb" => "k",
        "MB" | "Mb" | "mb" => "M",
        "GB" | "Gb" | "gb" | "g" => "G",
        "TB" | "Tb" | "tb" | "t" => "T",
        "ki" | "KI" | "KiB" | "kiB" => "Ki",
        "mi" | "MI" | "MiB" => "Mi",
        "gi" | "GI" | "GiB" => "Gi",
        "ti" | "TI" | "TiB" => "Ti",
        "Ki" | "Mi" | "Gi" | "Ti" | "m" | "k" | "M" | "G" | "T" if text.contains(' ') => suffix,
        _ => return String::new(),
    };
    let suggestion = format!("{number}{meant}");
    match Quantity::parse(&suggestion) {
        Ok(_) => format!(" (did you mean {suggestion:?}?)"),
        Err(_) => String::new(),
    }
}

/// A map of fields and its path.
#[derive(Debug, Clone, Copy)]
pub struct Object<'a> {
    pub at: &'a At<'a>,
    entries: &'a [Entry],
}

impl<'a> Object<'a> {
    fn child(&self, entry: &'a Entry) -> At<'a> {
        At { node: &entry.value, parent: Some((self.at, StepRef::Field(&entry.key))) }
    }

    /// Returns a field; one that is null counts as absent.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<At<'a>> {
        let entry = self.entries.iter().find(|entry| entry.key == name)?;
        (!entry.value.is_null()).then(|| self.child(entry))
    }

    /// All fields, null or not.
    pub fn fields(&self) -> impl Iterator<Item = (&'a str, At<'a>)> {
        self.entries.iter().map(|entry| (entry.key.as_str(), self.child(entry)))
    }

    /// Reports every unknown field.
    pub fn refuse_unknown(&self, known: &[&str], findings: &mut Findings) {
        for entry in self.entries {
            if !known.contains(&entry.key.as_str()) {
                let nearest = nearest(&entry.key, known.iter().copied()).map(str::to_owned);
                let name = super::shortened(&entry.key);
                findings.errors.push(YamlError {
                    mark: entry.mark,
                    path: self.child(entry).path(),
                    problem: Problem::UnknownField { name, nearest },
                });
            }
        }
    }

    /// Returns the fields that no typed reader takes, unchanged.
    #[must_use]
    pub fn untyped(&self, typed: &[&str]) -> BTreeMap<String, serde_json::Value> {
        self.entries
            .iter()
            .filter(|entry| !typed.contains(&entry.key.as_str()) && !entry.value.is_null())
            .map(|entry| (entry.key.clone(), entry.value.to_json()))
            .collect()
    }

    /// Returns the position of the map.
    #[must_use]
    pub fn mark(&self) -> Mark {
        self.at.node.mark
    }
}
