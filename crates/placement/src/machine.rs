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

/// The description of a valid name, for errors.
pub const NAME: &str = "a name of up to 253 letters, digits, '.', '-' and '_'";

/// Returns true if a text is a valid name. Names appear in files, tables and pictures, so they are
/// restricted.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    text.len() <= 253 && text.chars().all(plain)
}

/// Makes a valid name of any text: invalid characters become `-`. A machine may be named after the
/// words or the path that describe it, and its file must be readable.
#[must_use]
pub fn name_of(text: &str) -> String {
    if is_name(text) {
        return text.to_owned();
    }
    let mut name = String::new();
    for c in text.chars().take(253) {
        let plain = if is_name(c.encode_utf8(&mut [0; 4])) { c } else { '-' };
        if !(plain == '-' && name.ends_with('-')) {
            name.push(plain);
        }
    }
    name
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
