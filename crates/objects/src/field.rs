//! Field paths and errors: [`FieldPath`] (`spec.containers[0].name`) and [`FieldError`] with
//! upstream's texts (`Required value`, `Invalid value: "x": …`). [`crate::yaml`] has the lines and
//! columns of a file.

use std::fmt;

use thiserror::Error;

use crate::yaml::shortened;

/// One step into an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Step {
    /// A field of a structure: `.name`.
    Field(String),
    /// A key of a map: `[cpu]`.
    Key(String),
    /// An item of a list: `[0]`.
    Index(usize),
}

/// The path from the top of an object to one of its values.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct FieldPath(Vec<Step>);

impl FieldPath {
    /// The object itself.
    #[must_use]
    pub fn root() -> FieldPath {
        FieldPath::default()
    }

    /// A path of fields only, separated by dots: `spec.resources`.
    #[must_use]
    pub fn of(fields: &str) -> FieldPath {
        FieldPath(fields.split('.').map(|f| Step::Field(f.to_owned())).collect())
    }

    /// Parses the notation of the API: `spec.containers[0].resources.limits[cpu]`.
    #[must_use]
    pub fn parse(text: &str) -> FieldPath {
        let mut steps = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            if let Some(inside) = rest.strip_prefix('[') {
                let (key, after) = inside.split_once(']').unwrap_or((inside, ""));
                steps.push(match key.parse() {
                    Ok(index) => Step::Index(index),
                    Err(_) => Step::Key(key.to_owned()),
                });
                rest = after;
            } else {
                rest = rest.strip_prefix('.').unwrap_or(rest);
                let end = rest.find(['.', '[']).unwrap_or(rest.len());
                if end > 0 {
                    steps.push(Step::Field(rest[..end].to_owned()));
                }
                rest = &rest[end..];
            }
        }
        FieldPath(steps)
    }

    #[must_use]
    pub fn child(&self, field: &str) -> FieldPath {
        self.with(Step::Field(field.to_owned()))
    }

    #[must_use]
    pub fn key(&self, key: &str) -> FieldPath {
        self.with(Step::Key(key.to_owned()))
    }

    #[must_use]
    pub fn index(&self, index: usize) -> FieldPath {
        self.with(Step::Index(index))
    }

    /// Returns this path below `prefix`.
    #[must_use]
    pub fn under(&self, prefix: &FieldPath) -> FieldPath {
        FieldPath(prefix.0.iter().chain(&self.0).cloned().collect())
    }

    #[must_use]
    pub fn with(&self, step: Step) -> FieldPath {
        let mut steps = self.0.clone();
        steps.push(step);
        FieldPath(steps)
    }

    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.0
    }

    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<Step> for FieldPath {
    fn from_iter<I: IntoIterator<Item = Step>>(steps: I) -> FieldPath {
        FieldPath(steps.into_iter().collect())
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, step) in self.0.iter().enumerate() {
            match step {
                // A name with a dot would read as two names.
                Step::Field(name) if name.contains('.') => write!(f, "[{}]", shortened(name))?,
                Step::Field(name) if n == 0 => f.write_str(&shortened(name))?,
                Step::Field(name) => write!(f, ".{}", shortened(name))?,
                Step::Key(key) => write!(f, "[{}]", shortened(key))?,
                Step::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// An error in a value, with upstream's text.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FieldProblem {
    #[error("Required value{}", after_colon(.detail))]
    Required { detail: String },
    #[error("Invalid value: {value:?}: {detail}")]
    Invalid { value: String, detail: String },
    #[error("Duplicate value: {value:?}")]
    Duplicate { value: String },
    #[error("Forbidden: {detail}")]
    Forbidden { detail: String },
    #[error("Unsupported value: {value:?}: supported values: {}", quoted(.supported))]
    NotSupported { value: String, supported: Vec<String> },
}

/// An error and the path of the value.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{path}: {problem}")]
pub struct FieldError {
    pub path: FieldPath,
    pub problem: FieldProblem,
}

impl FieldError {
    #[must_use]
    pub fn required(path: FieldPath, detail: &str) -> FieldError {
        FieldError { path, problem: FieldProblem::Required { detail: detail.to_owned() } }
    }

    #[must_use]
    pub fn invalid(path: FieldPath, value: impl fmt::Display, detail: impl Into<String>) -> Self {
        let problem = FieldProblem::Invalid { value: value.to_string(), detail: detail.into() };
        FieldError { path, problem }
    }

    #[must_use]
    pub fn duplicate(path: FieldPath, value: &str) -> FieldError {
        FieldError { path, problem: FieldProblem::Duplicate { value: value.to_owned() } }
    }

    #[must_use]
    pub fn forbidden(path: FieldPath, detail: &str) -> FieldError {
        FieldError { path, problem: FieldProblem::Forbidden { detail: detail.to_owned() } }
    }
}

fn after_colon(detail: &str) -> String {
    if detail.is_empty() { String::new() } else { format!(": {detail}") }
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|n| format!("{n:?}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_problems_read_as_upstream_writes_them() {
        let container = FieldPath::of("spec.containers").index(1);
        let requests = container.child("resources").child("requests");
        let error = FieldError::invalid(requests.key("cpu"), "-1", "must be positive");
        assert_eq!(
            error.to_string(),
            "spec.containers[1].resources.requests[cpu]: Invalid value: \"-1\": must be positive"
        );
        let error = FieldError::required(container.child("name"), "");
        assert_eq!(error.to_string(), "spec.containers[1].name: Required value");
        assert_eq!(FieldPath::of("a").child("b.c").to_string(), "a[b.c]");
    }
}
