//! The text of a control group's `schemata` file.
//!
//! Main type: [`Schemata`]. It holds values and renders and parses them; computing them is in
//! [`crate::rdt`].

use std::fmt;

use thiserror::Error;

use crate::go_text::{NumberError, parse_uint};
use crate::hardware::resctrl::{CacheId, CacheLevel, CacheUse};

/// A resource that `schemata` has a line for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Control {
    Cache(CacheLevel, CacheUse),
    MemoryBandwidth,
}

impl Control {
    fn parse(name: &str) -> Option<Control> {
        let cache = |level| CacheUse::ALL.into_iter().map(move |of| Control::Cache(level, of));
        CacheLevel::ALL
            .into_iter()
            .flat_map(cache)
            .chain([Control::MemoryBandwidth])
            .find(|control| control.to_string() == name)
    }
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Control::Cache(level, of) => write!(f, "{level}{}", of.suffix()),
            Control::MemoryBandwidth => f.write_str("MB"),
        }
    }
}

/// One line: a value for each cache, masks of bits for caches and numbers for bandwidth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub control: Control,
    pub values: Vec<(CacheId, u64)>,
}

/// The lines of a `schemata` file, in the order in which they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schemata {
    pub lines: Vec<Line>,
}

/// The reason why a text is not the content of a `schemata` file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SchemataError {
    #[error("schemata line {line:?} has no ':' after the name of the resource")]
    NoColon { line: String },
    #[error("schemata line {line:?}: {value:?} is not CACHE=VALUE")]
    NotAssignment { line: String, value: String },
    #[error("schemata line {line:?}: {source}")]
    NotANumber { line: String, source: NumberError },
}

impl Schemata {
    /// Parses the content of a `schemata` file. Lines of unknown resources are left out, and white
    /// space around names and values is ignored.
    pub fn parse(text: &str) -> Result<Schemata, SchemataError> {
        let mut lines = Vec::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let Some((name, values)) = line.split_once(':') else {
                return Err(SchemataError::NoColon { line: line.to_owned() });
            };
            let Some(control) = Control::parse(name.trim()) else { continue };
            let values = values.split(';').map(|value| value_of(control, line, value));
            lines.push(Line { control, values: values.collect::<Result<_, _>>()? });
        }
        Ok(Schemata { lines })
    }

    /// Returns the value of a cache.
    #[must_use]
    pub fn value(&self, control: Control, id: CacheId) -> Option<u64> {
        let line = self.lines.iter().find(|line| line.control == control)?;
        line.values.iter().find(|(other, _)| *other == id).map(|(_, value)| *value)
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

fn value_of(control: Control, line: &str, text: &str) -> Result<(CacheId, u64), SchemataError> {
    let number = |digits: &str, base| {
        parse_uint(digits.trim(), base, 64)
            .map_err(|source| SchemataError::NotANumber { line: line.to_owned(), source })
    };
    let Some((id, value)) = text.split_once('=') else {
        let value = text.to_owned();
        return Err(SchemataError::NotAssignment { line: line.to_owned(), value });
    };
    let base = if control == Control::MemoryBandwidth { 10 } else { 16 };
    Ok((CacheId(number(id, 10)?), number(value, base)?))
}

impl fmt::Display for Schemata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Line { control, values } in &self.lines {
            write!(f, "{control}:")?;
            for (at, (id, value)) in values.iter().enumerate() {
                let separator = if at == 0 { "" } else { ";" };
                match control {
                    Control::Cache(..) => write!(f, "{separator}{id}={value:x}")?,
                    Control::MemoryBandwidth => write!(f, "{separator}{id}={value}")?,
                }
            }
            f.write_str("\n")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padded_schemata_read_like_written_ones() {
        let padded = "    MB:0=  100;1=   50\n  SMBA:0= 2048\nL3CODE:0=00fff;1=fffff\n";
        let schemata = Schemata::parse(padded).unwrap();
        assert_eq!(schemata.to_string(), "MB:0=100;1=50\nL3CODE:0=fff;1=fffff\n");
        let code = Control::Cache(CacheLevel::L3, CacheUse::Code);
        assert_eq!(schemata.value(code, CacheId(0)), Some(0xfff));
        assert_eq!(schemata.value(Control::MemoryBandwidth, CacheId(2)), None);
    }

    #[test]
    fn broken_schemata_are_errors() {
        for text in ["L3", "L3:0", "L3:0=xyz", "MB:a=100", "L3:"] {
            assert!(Schemata::parse(text).is_err(), "{text}");
        }
    }
}
