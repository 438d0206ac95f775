//! Where the files of a Linux machine are read from.
//!
//! Main type: [`Tree`], with the implementations [`Directory`] (a mounted or unpacked `/sys`) and
//! [`crate::Capture`] (one file). Paths are written as on a machine without the leading slash:
//! `sys/devices/system/cpu/online`. It reads text and lists names; what they mean is
//! [`crate::sysfs`]'s business.

use std::fs;
use std::io::{ErrorKind, Read as _};
use std::path::PathBuf;

use thiserror::Error;

/// The most that is read of one file. The kernel's own files of interest are a page or less; CPU
/// lists of the largest machines take tens of kilobytes.
pub const MAX_FILE: u64 = 256 * 1024;

/// Why a file gave no text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReadError {
    #[error("there is no such file")]
    Missing,
    #[error("{0}")]
    Unreadable(String),
}

/// The files of a machine.
pub trait Tree {
    /// The text of a file without white space around it.
    fn read(&self, path: &str) -> Result<String, ReadError>;

    /// The names in a directory, in no particular order; none if it cannot be read.
    fn list(&self, path: &str) -> Vec<String>;
}

/// A `sys` directory and, if given, a `proc` directory.
#[derive(Clone, Debug)]
pub struct Directory {
    pub sys: PathBuf,
    pub proc: Option<PathBuf>,
}

impl Directory {
    /// This machine's own.
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
        // Opening a pipe that someone left in an unpacked tree would wait for ever.
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
