//! Selectors of objects, by labels, by fields, or (for nodes) by both.
//!
//! Main types: [`LabelSelector`], read from an object's `matchLabels`/`matchExpressions` or from
//! the text of a `labelSelector=` query, [`FieldSelector`] of a `fieldSelector=` query, and
//! [`NodeSelector`] of a pod's node affinity. Matching looks labels up and allocates nothing. An
//! absent selector is `None`: it selects *nothing* in some places of upstream and *everything* in
//! others. The server decides by which fields a kind can be selected.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use crate::types;

mod fields;
mod names;
mod node;
mod parse;
#[cfg(test)]
mod tests;

pub use fields::{FieldRequirement, FieldSelector, FieldSelectorError};
pub use names::{label_key_problems, label_value_problems};
pub use node::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
pub use parse::ParseSelectorError;

/// The operator of a requirement. `=`, `==` and `in (x)` mean the same and are separate only
/// because upstream writes them back as given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operator {
    In,
    NotIn,
    Equals,
    DoubleEquals,
    NotEquals,
    Exists,
    DoesNotExist,
    GreaterThan,
    LessThan,
}

impl Operator {
    /// Parses the operator of a node selector's expression: `In`, `NotIn`, `Exists`,
    /// `DoesNotExist`, `Gt`, `Lt`. A label selector has the first four.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Operator> {
        Some(match word {
            "In" => Operator::In,
            "NotIn" => Operator::NotIn,
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            "Gt" => Operator::GreaterThan,
            "Lt" => Operator::LessThan,
            _ => return None,
        })
    }
}

/// One condition on one label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Requirement {
    key: Box<str>,
    operator: Operator,
    values: Box<[Box<str>]>,
}

/// An error in a part of a requirement, with upstream's text.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{at}: Invalid value: {value}: {detail}")]
pub struct RequirementProblem {
    /// `key`, `values`, `values[0]`, `values[0][app]`, or `<nil>` where upstream has no path.
    pub at: String,
    /// The value as upstream prints it: text in quotes, a list as JSON.
    pub value: String,
    pub detail: String,
}

/// All errors of a requirement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequirementError(pub Vec<RequirementProblem>);

impl fmt::Display for RequirementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.0.as_slice() {
            return write!(f, "{only}");
        }
        f.write_str("[")?;
        for (n, problem) in self.0.iter().enumerate() {
            write!(f, "{}{problem}", if n == 0 { "" } else { ", " })?;
        }
        f.write_str("]")
    }
}

impl std::error::Error for RequirementError {}

impl Requirement {
    /// Creates a requirement after checking its key, number of values and values.
    pub fn new(
        key: &str,
        operator: Operator,
        values: Vec<String>,
    ) -> Result<Requirement, RequirementError> {
        let mut problems = Vec::new();
        let mut wrong = |at: String, value: String, detail: String| {
            problems.push(RequirementProblem { at, value, detail });
        };
        let in_key = label_key_problems(key);
        if !in_key.is_empty() {
            wrong("key".into(), format!("{key:?}"), in_key.join("; "));
        }
        let count = match operator {
            Operator::In | Operator::NotIn if values.is_empty() => {
                Some("for 'in', 'notin' operators, values set can't be empty")
            }
            Operator::Equals | Operator::DoubleEquals | Operator::NotEquals
                if values.len() != 1 =>
            {
                Some("exact-match compatibility requires one single value")
            }
            Operator::Exists | Operator::DoesNotExist if !values.is_empty() => {
                Some("values set must be empty for exists and does not exist")
            }
            Operator::GreaterThan | Operator::LessThan if values.len() != 1 => {
                Some("for 'Gt', 'Lt' operators, exactly one value is required")
            }
            _ => None,
        };
        if let Some(detail) = count {
            wrong("values".into(), Value::from(values.clone()).to_string(), detail.into());
        }
        if matches!(operator, Operator::GreaterThan | Operator::LessThan) {
            for (n, value) in values.iter().enumerate() {
                if value.parse::<i64>().is_err() {
                    let detail = "for 'Gt', 'Lt' operators, the value must be an integer";
                    wrong(format!("values[{n}]"), format!("{value:?}"), detail.into());
                }
            }
        }
        for (n, value) in values.iter().enumerate() {
            let in_value = label_value_problems(value);
            if !in_value.is_empty() {
                wrong(format!("values[{n}][{key}]"), format!("{value:?}"), in_value.join("; "));
            }
        }
        if problems.is_empty() {
            Ok(Requirement::unchecked(key, operator, values))
        } else {
            Err(RequirementError(problems))
        }
    }

    fn unchecked(key: &str, operator: Operator, values: Vec<String>) -> Requirement {
        let values = values.into_iter().map(String::into_boxed_str).collect();
        Requirement { key: key.into(), operator, values }
    }

    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    #[must_use]
    pub fn operator(&self) -> Operator {
        self.operator
    }

    pub fn values(&self) -> impl ExactSizeIterator<Item = &str> {
        self.values.iter().map(|v| &**v)
    }

    /// Reports whether a label with this value, or an absent one, satisfies the requirement.
    #[must_use]
    pub fn holds(&self, label: Option<&str>) -> bool {
        let listed = |value: &str| self.values.iter().any(|v| **v == *value);
        match self.operator {
            Operator::In | Operator::Equals | Operator::DoubleEquals => label.is_some_and(listed),
            Operator::NotIn | Operator::NotEquals => !label.is_some_and(listed),
            Operator::Exists => label.is_some(),
            Operator::DoesNotExist => label.is_none(),
            Operator::GreaterThan | Operator::LessThan => {
                let bound = self.values.first().map(|v| v.parse::<i64>());
                let (Some(Ok(label)), Some(Ok(bound))) = (label.map(str::parse::<i64>), bound)
                else {
                    return false;
                };
                if self.operator == Operator::GreaterThan { label > bound } else { label < bound }
            }
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match self.operator {
            Operator::DoesNotExist => return write!(f, "!{}", self.key),
            Operator::Exists => return f.write_str(&self.key),
            Operator::In => " in ",
            Operator::NotIn => " notin ",
            Operator::Equals => "=",
            Operator::DoubleEquals => "==",
            Operator::NotEquals => "!=",
            Operator::GreaterThan => ">",
            Operator::LessThan => "<",
        };
        let mut values: Vec<_> = self.values().collect();
        values.sort_unstable();
        let values = values.join(",");
        match self.operator {
            Operator::In | Operator::NotIn => write!(f, "{}{sign}({values})", self.key),
            _ => write!(f, "{}{sign}{values}", self.key),
        }
    }
}

/// A conjunction of requirements, sorted by key; an empty one selects every object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct LabelSelector {
    requirements: Box<[Requirement]>,
}

/// An object's `labelSelector` is invalid.
#[derive(Debug, Error)]
pub enum LabelSelectorError {
    #[error("{0:?} is not a valid label selector operator")]
    Operator(String),
    #[error(transparent)]
    Requirement(#[from] RequirementError),
    #[error("not a label selector")]
    Shape(#[source] serde_json::Error),
}

impl LabelSelector {
    #[must_use]
    pub fn new(mut requirements: Vec<Requirement>) -> LabelSelector {
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        LabelSelector { requirements: requirements.into() }
    }

    /// Creates the selector of objects with all these labels, such as a Service's. Labels of
    /// existing objects are not checked again.
    #[must_use]
    pub fn of_labels<'a>(labels: impl IntoIterator<Item = (&'a str, &'a str)>) -> LabelSelector {
        let equals =
            |(k, v): (&str, &str)| Requirement::unchecked(k, Operator::Equals, vec![v.to_owned()]);
        LabelSelector::new(labels.into_iter().map(equals).collect())
    }

    /// Reads `{matchLabels, matchExpressions}`.
    pub fn from_value(value: &Value) -> Result<LabelSelector, LabelSelectorError> {
        let read = types::LabelSelector::deserialize(value).map_err(LabelSelectorError::Shape)?;
        LabelSelector::try_from(&read)
    }

    /// Parses the text of a `labelSelector=` query, such as `a=b,c in (d,e),!f`.
    pub fn parse(text: &str) -> Result<LabelSelector, ParseSelectorError> {
        parse::requirements(text).map(LabelSelector::new)
    }

    #[must_use]
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Reports whether every object is selected.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Reports whether an object with these labels is selected.
    pub fn matches<'a>(&self, labels: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.requirements.iter().all(|r| r.holds(labels(&r.key)))
    }

    #[must_use]
    pub fn matches_map(&self, labels: &BTreeMap<String, String>) -> bool {
        self.matches(|key| labels.get(key).map(String::as_str))
    }

    /// Reports whether an API object, with its `metadata.labels`, is selected.
    #[must_use]
    pub fn matches_object(&self, object: &Value) -> bool {
        let labels = object.pointer("/metadata/labels");
        self.matches(|key| labels.and_then(|l| l.get(key)).and_then(Value::as_str))
    }
}

impl TryFrom<&types::LabelSelector> for LabelSelector {
    type Error = LabelSelectorError;

    fn try_from(selector: &types::LabelSelector) -> Result<LabelSelector, LabelSelectorError> {
        let mut requirements = Vec::new();
        for (key, value) in &selector.match_labels {
            requirements.push(Requirement::new(key, Operator::Equals, vec![value.clone()])?);
        }
        for expression in &selector.match_expressions {
            let operator = match Operator::from_word(&expression.operator) {
                None | Some(Operator::GreaterThan | Operator::LessThan) => {
                    return Err(LabelSelectorError::Operator(expression.operator.clone()));
                }
                Some(operator) => operator,
            };
            let values = expression.values.clone();
            requirements.push(Requirement::new(&expression.key, operator, values)?);
        }
        Ok(LabelSelector::new(requirements))
    }
}

impl std::str::FromStr for LabelSelector {
    type Err = ParseSelectorError;

    fn from_str(text: &str) -> Result<LabelSelector, ParseSelectorError> {
        LabelSelector::parse(text)
    }
}

/// Writes the equivalent text of a query, as upstream does.
impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, requirement) in self.requirements.iter().enumerate() {
            write!(f, "{}{requirement}", if n == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}
