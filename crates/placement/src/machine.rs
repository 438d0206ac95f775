//! One machine with its name and operating system, as our own files describe it.
//!
//! Main type: [`Machine`]. [`file`] reads and writes the files; other descriptions of machines
//! (hwloc, `lscpu`, words) are the planner's business, and looking at a real one is `host`'s.

use objects::pod::OsName;

use crate::topology::{Parts, Topology, TopologyError};

pub mod file;
pub mod quantity;

/// One machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Empty if the description gives none.
    pub name: String,
    pub os: OsName,
    pub topology: Topology,
}

/// What a name may be made of, for errors.
pub const NAME: &str = "a name of up to 253 letters, digits, '.', '-' and '_'";

/// Names end up in files, tables and pictures, so they are plain.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    text.len() <= 253 && text.chars().all(plain)
}

impl Machine {
    pub fn new(
        name: impl Into<String>,
        os: OsName,
        parts: Parts,
    ) -> Result<Machine, TopologyError> {
        Ok(Machine { name: name.into(), os, topology: Topology::new(parts)? })
    }
}
