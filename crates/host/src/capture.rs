//! The description of a Linux machine in one file, readable on any other machine.
//!
//! Main type: [`Capture`]. It is recorded by running [`crate::sysfs::observe`] and contains exactly
//! the files that this reads, so it has no host name, serial number or address. It is not a general
//! archive of `/sys`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Bound;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::sysfs;
use crate::tree::{MAX_FILE, ReadError, Tree};

pub const API_VERSION: &str = "berth.dev/v1alpha1";
pub const KIND: &str = "SysfsCapture";

/// The largest size of a capture. The largest machine of interest takes about 4 MiB.
pub const MAX_CAPTURE: usize = 64 << 20;

/// The recorded files: path without the leading slash → text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capture {
    files: BTreeMap<String, String>,
}

/// The reason why a text is not a capture.
#[derive(Debug, Error)]
pub enum CaptureError {
    #[error("the capture is {0} bytes long; at most {MAX_CAPTURE} are read")]
    TooLong(usize),
    #[error("not a capture: {0}")]
    Json(#[from] serde_json::Error),
    #[error("this is a {found:?}; a capture says apiVersion {API_VERSION:?} and kind {KIND:?}")]
    OtherKind { found: String },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    api_version: String,
    kind: String,
    files: BTreeMap<String, String>,
}

/// Records every file that the description of a machine depends on.
pub fn capture(tree: &impl Tree) -> Capture {
    let recorder = Recorder { tree, files: RefCell::default() };
    // The reader of the capture judges the machine: a bug report needs a capture of exactly those
    // machines that cannot be described.
    let _ = sysfs::observe(&recorder);
    Capture { files: recorder.files.into_inner() }
}

impl Capture {
    pub fn parse(text: &str) -> Result<Capture, CaptureError> {
        if text.len() > MAX_CAPTURE {
            return Err(CaptureError::TooLong(text.len()));
        }
        let document: Document = serde_json::from_str(text)?;
        if document.api_version != API_VERSION || document.kind != KIND {
            let found = format!("{} {}", document.api_version, document.kind);
            return Err(CaptureError::OtherKind { found });
        }
        Ok(Capture { files: document.files })
    }

    /// Renders JSON with one file per line, so that captures can be compared and edited.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = format!("{{\n\"apiVersion\": \"{API_VERSION}\",\n\"kind\": \"{KIND}\",\n");
        text.push_str("\"files\": {");
        let mut comma = "\n";
        for (path, content) in &self.files {
            // A string can always be represented in JSON.
            let quote = |s: &str| serde_json::Value::from(s).to_string();
            text.push_str(&format!("{comma}{}: {}", quote(path), quote(content)));
            comma = ",\n";
        }
        text.push_str("\n}}\n");
        text
    }

    /// Builds a capture of an artificial machine from files.
    pub fn from_files<P: Into<String>, T: Into<String>>(
        files: impl IntoIterator<Item = (P, T)>,
    ) -> Capture {
        Capture { files: files.into_iter().map(|(p, t)| (p.into(), t.into())).collect() }
    }

    #[must_use]
    pub fn files(&self) -> &BTreeMap<String, String> {
        &self.files
    }
}

impl Tree for Capture {
    fn read(&self, path: &str) -> Result<String, ReadError> {
        let text = self.files.get(path).ok_or(ReadError::Missing)?;
        if text.len() as u64 > MAX_FILE {
            return Err(ReadError::Unreadable(format!("longer than {MAX_FILE} bytes")));
        }
        Ok(text.trim().to_owned())
    }

    fn list(&self, path: &str) -> Vec<String> {
        let prefix = format!("{path}/");
        let mut names: Vec<String> = Vec::new();
        let mut from = Bound::Included(prefix.clone());
        // One lookup per name, not per file below it.
        while let Some((file, _)) = self.files.range((from, Bound::Unbounded)).next() {
            let Some(rest) = file.strip_prefix(&prefix) else { break };
            let name = rest.split('/').next().unwrap_or(rest);
            names.push(name.to_owned());
            // '0' follows '/', so this key is just after everything below the directory `name`, and
            // after the plain file `name`.
            from = Bound::Included(format!("{prefix}{name}0"));
            if rest == name {
                from = Bound::Excluded(file.clone());
            }
        }
        names.dedup();
        names
    }
}

/// Forwards reads and records their results.
struct Recorder<'a, T> {
    tree: &'a T,
    files: RefCell<BTreeMap<String, String>>,
}

impl<T: Tree> Tree for Recorder<'_, T> {
    fn read(&self, path: &str) -> Result<String, ReadError> {
        let mut text = self.tree.read(path)?;
        if path.ends_with("/meminfo") {
            // The other lines change every second and reveal the machine's activity.
            text = text.lines().filter(|l| l.contains("MemTotal:")).collect::<Vec<_>>().join("\n");
        }
        self.files.borrow_mut().insert(path.to_owned(), text.clone());
        Ok(text)
    }

    fn list(&self, path: &str) -> Vec<String> {
        self.tree.list(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listing_gives_each_name_once_and_only_the_next_level() {
        let capture = Capture::from_files([
            ("sys/cpu/cpu1/cache/index0/level", "1"),
            ("sys/cpu/cpu1/cache/index1/level", "2"),
            ("sys/cpu/cpu1/online", "1"),
            ("sys/cpu/cpu10/online", "1"),
            ("sys/cpu/online", "0-1"),
            ("sys/cpux", "?"),
        ]);
        assert_eq!(capture.list("sys/cpu"), ["cpu1", "cpu10", "online"]);
        assert_eq!(capture.list("sys/cpu/cpu1/cache"), ["index0", "index1"]);
        assert!(capture.list("sys/none").is_empty());
    }

    #[test]
    fn text_round_trips() {
        let capture = Capture::from_files([("sys/a", "1\n2"), ("sys/\"b\"", "\u{1}é")]);
        assert_eq!(Capture::parse(&capture.render()).unwrap(), capture);
        assert_eq!(Capture::parse(&Capture::default().render()).unwrap(), Capture::default());
    }

    #[test]
    fn another_kind_is_named_in_the_error() {
        let error = Capture::parse(r#"{"apiVersion":"v1","kind":"Pod","files":{}}"#).unwrap_err();
        assert!(error.to_string().contains("v1 Pod"), "{error}");
    }
}
