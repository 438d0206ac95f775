//! The source of a Linux machine's files.
//!
//! Main type: [`Tree`], with the implementations [`Directory`] (a mounted or unpacked `/sys`) and
//! [`crate::Capture`] (one file). Paths have no leading slash: `sys/devices/system/cpu/online`. It
//! reads text and lists names; [`crate::sysfs`] interprets them.

use std::fs;
use std::io::{ErrorKind, Read as _};
use std::path::PathBuf;

use thiserror::Error;

/// The largest size that is read of one file. The kernel's files of interest are a page or less;
/// CPU lists of the largest machines take tens of kilobytes.
pub const MAX_FILE: u64 = 256 * 1024;

/// The reason why a file could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReadError {
    #[error("there is no such file")]
    Missing,
    #[error("{0}")]
    Unreadable(String),
}

/// The files of a machine.
pub trait Tree {
    /// Returns the text of a file without surrounding white space.
    fn read(&self, path: &str) -> Result<String, ReadError>;

    /// Returns the names in a directory in any order; none if it cannot be read.
    fn list(&self, path: &str) -> Vec<String>;
}

/// A `sys` directory and, if given, a `proc` directory.
#[derive(Clone, Debug)]
pub struct Directory {
    pub sys: PathBuf,
    pub proc: Option<PathBuf>,
}

impl Directory {
    /// Returns this machine's directories.
    #[must_use]
    pub fn live() -> Directory {
        Directory { sys: "/sys".into(), proc: Some("/proc".into()) }
    }

    fn locate(&self, path: &str) -> Option<PathBuf> {
        match path.split_once('/')? {
            ("sys", rest) => Some(self.sys.join(rest)),
            ("proc", rest) => Some(self.proc.as_ref()?.join(rest)),
            _ => None,
        }
    }
}

impl Tree for Directory {
    fn read(&self, path: &str) -> Result<String, ReadError> {
        let path = self.locate(path).ok_or(ReadError::Missing)?;
        let unreadable = |error: std::io::Error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => ReadError::Missing,
            _ => ReadError::Unreadable(error.to_string()),
        };
        // Opening a pipe in an unpacked tree would block for ever.
        if !fs::metadata(&path).map_err(unreadable)?.is_file() {
            return Err(ReadError::Unreadable("not a regular file".into()));
        }
        let mut bytes = Vec::new();
        let file = fs::File::open(&path).map_err(unreadable)?;
        file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        if bytes.len() as u64 > MAX_FILE {
            return Err(ReadError::Unreadable(format!("longer than {MAX_FILE} bytes")));
        }
        let text =
            String::from_utf8(bytes).map_err(|_| ReadError::Unreadable("not UTF-8 text".into()))?;
        Ok(text.trim().to_owned())
    }

    fn list(&self, path: &str) -> Vec<String> {
        let Some(Ok(entries)) = self.locate(path).map(fs::read_dir) else { return Vec::new() };
        entries.flatten().filter_map(|e| e.file_name().into_string().ok()).collect()
    }
}
