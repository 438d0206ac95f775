//! The path of a value while it is decoded: [`DecodePath`], for errors of the JSON, protobuf and patch
//! decoders.

use std::fmt;

/// One step into a value.
#[derive(Debug)]
pub(crate) enum Step<'s> {
    /// A field of the schema.
    Field(&'s str),
    Key(String),
    Index(usize),
}

/// The steps to the current value. Displayed as `spec.containers[0].name`.
#[derive(Debug, Default)]
pub(crate) struct DecodePath<'s>(Vec<Step<'s>>);

impl<'s> DecodePath<'s> {
    pub(crate) fn push(&mut self, step: Step<'s>) {
        self.0.push(step);
    }

    pub(crate) fn pop(&mut self) -> Option<Step<'s>> {
        self.0.pop()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the fields of the path without keys and indexes: `spec.containers.name`.
    pub(crate) fn fields(&self) -> String {
        let names = self.0.iter().filter_map(|step| match step {
            Step::Field(name) => Some(*name),
            Step::Key(_) | Step::Index(_) => None,
        });
        names.collect::<Vec<_>>().join(".")
    }
}

impl fmt::Display for DecodePath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An empty name writes nothing, so that the next one has no dot before it.
        let mut is_empty = true;
        for step in &self.0 {
            let name = match step {
                Step::Index(index) => {
                    write!(f, "[{index}]")?;
                    is_empty = false;
                    continue;
                }
                Step::Field(name) => name,
                Step::Key(name) => name.as_str(),
            };
            let dot = if is_empty { "" } else { "." };
            write!(f, "{dot}{name}")?;
            is_empty = is_empty && name.is_empty();
        }
        Ok(())
    }
}
