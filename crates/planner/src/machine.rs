//! Machine descriptions: our own file, hwloc's XML, `lscpu`'s tables, a line of words.
//!
//! Main type: [`Machine`]; [`Machine::parse`] detects the format of a text. No function here opens
//! files or inspects the machine it runs on; captures of `/sys` are detected but parsed by `host`.

use placement::Machine;
use placement::machine::file::{self, FileError};
use thiserror::Error;

pub mod hwloc;
pub mod lscpu;
pub mod shape;

pub use hwloc::HwlocError;
pub use lscpu::LscpuError;
pub use shape::ShapeError;

/// The longest accepted text. The hwloc file of the largest relevant machine takes about 2 MiB.
pub const MAX_TEXT: usize = 64 << 20;

/// The formats of a machine description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Our own, as YAML or JSON.
    File,
    HwlocXml,
    LscpuJson,
    LscpuTable,
    /// The text that plain `lscpu` prints.
    LscpuSummary,
    /// What `berth topology capture` writes.
    Capture,
    Shape,
}

/// The reason why a text does not describe a machine.
#[derive(Debug, Error)]
pub enum MachineError {
    #[error("the text is {0} bytes long; at most {MAX_TEXT} are read")]
    TooLong(usize),
    #[error("the machine's description is empty; a short one is {:?}", shape::EXAMPLE)]
    Empty,
    #[error("this is a capture of a machine's sysfs, which has to be read as such")]
    IsCapture,
    #[error("not a usable machine file")]
    File(#[from] FileError),
    #[error("not a usable hwloc file")]
    Hwloc(#[from] HwlocError),
    #[error("not a usable lscpu table")]
    Lscpu(#[from] LscpuError),
    #[error(transparent)]
    Shape(#[from] ShapeError),
}

impl Format {
    /// Detects the format of a text. Unknown text counts as a shape, whose errors show an example.
    #[must_use]
    pub fn of(text: &str) -> Format {
        let text = text.trim_start_matches('\u{feff}').trim_start();
        // Enough to detect the format without scanning megabytes.
        let head: String = text.chars().take(4096).collect();
        let says = |word: &str| head.contains(word);
        if text.starts_with('<') {
            Format::HwlocXml
        } else if text.starts_with('{') {
            match () {
                () if says("\"SysfsCapture\"") => Format::Capture,
                () if says("\"apiVersion\"") || says("\"kind\"") => Format::File,
                () if says("\"lscpu\"") || says("\"cpus\"") => Format::LscpuJson,
                () => Format::File,
            }
        } else if head.lines().any(|l| l.starts_with("apiVersion:") || l.starts_with("kind:")) {
            Format::File
        } else if lscpu::looks_like_a_table(&head) {
            Format::LscpuTable
        } else if lscpu::summary::is_one(&head) {
            Format::LscpuSummary
        } else {
            Format::Shape
        }
    }
}

/// Parses a description in any of the known formats.
pub fn parse(text: &str) -> Result<Machine, MachineError> {
    if text.len() > MAX_TEXT {
        return Err(MachineError::TooLong(text.len()));
    }
    let text = text.trim_start_matches('\u{feff}');
    if text.trim().is_empty() {
        return Err(MachineError::Empty);
    }
    Ok(match Format::of(text) {
        Format::File => file::parse(text)?,
        Format::HwlocXml => hwloc::parse(text)?,
        Format::LscpuJson => lscpu::parse_json(text)?,
        Format::LscpuTable => lscpu::parse_table(text)?,
        Format::LscpuSummary => lscpu::parse_summary(text)?,
        Format::Shape => shape::parse(text)?,
        Format::Capture => return Err(MachineError::IsCapture),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_detected_by_their_first_words() {
        let check = |text: &str, format: Format| assert_eq!(Format::of(text), format, "{text}");
        check("<?xml version=\"1.0\"?><topology/>", Format::HwlocXml);
        check("\u{feff} {\"apiVersion\": \"berth.dev/v1alpha1\"}", Format::File);
        check("{\"cpus\": []}", Format::LscpuJson);
        check("{\"lscpu\": []}", Format::LscpuJson);
        check("{\"kind\": \"SysfsCapture\"}", Format::Capture);
        check("# a comment\napiVersion: berth.dev/v1alpha1\nkind: Machine\n", Format::File);
        check("# The following is the parsable format\n# CPU,Core\n0,0\n", Format::LscpuTable);
        check("CPU NODE SOCKET CORE\n0 0 0 0\n", Format::LscpuTable);
        check("2 sockets x 8 cores", Format::Shape);
    }

    #[test]
    fn empty_text_gets_an_example() {
        let error = parse(" \n").unwrap_err().to_string();
        assert!(error.contains("2 sockets x 2 numa x 8 cores x 2 threads"), "{error}");
    }
}
