//! The kubectl binaries on this machine: [`Kubectl`], and the choice of one for a recorded version.
//!
//! Runs only `version --client`; the parent module runs the commands.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

/// The environment variable with a list of kubectl binaries, separated like `PATH`. The one on the
/// `PATH` is added.
pub(super) const BINARIES: &str = "BERTH_KUBECTL";

/// A version without its patch level, which changes no output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Minor {
    major: u32,
    minor: u32,
}

impl Minor {
    /// Parses `1.32` and `v1.32.4-dispatcher`.
    pub(super) fn parse(text: &str) -> Option<Minor> {
        let mut numbers = text.trim_start_matches('v').split('.');
        let mut next = || numbers.next()?.parse().ok();
        Some(Minor { major: next()?, minor: next()? })
    }

    fn distance(self, other: Minor) -> (u32, u32) {
        (self.major.abs_diff(other.major), self.minor.abs_diff(other.minor))
    }
}

impl std::fmt::Display for Minor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kubectl {
    pub(super) path: PathBuf,
    pub(super) version: Minor,
}

/// Returns every working kubectl of the variable and the `PATH`.
pub(super) fn installed() -> Vec<Kubectl> {
    let named = env::var_os(BINARIES).unwrap_or_default();
    let on_path = OsString::from(format!("kubectl{}", env::consts::EXE_SUFFIX));
    env::split_paths(&named)
        .filter(|path| !path.as_os_str().is_empty())
        .chain([PathBuf::from(on_path)])
        .filter_map(|path| version(&path).map(|version| Kubectl { path, version }))
        .collect()
}

fn version(path: &PathBuf) -> Option<Minor> {
    let output = Command::new(path).args(["version", "--client", "-o", "json"]).output().ok()?;
    let answer: Value = serde_json::from_slice(&output.stdout).ok()?;
    Minor::parse(answer["clientVersion"]["gitVersion"].as_str()?)
}

/// Returns the binary nearest to a recorded version; the first of equally near ones.
pub(super) fn nearest(installed: &[Kubectl], recorded: Minor) -> Option<&Kubectl> {
    installed.iter().min_by_key(|kubectl| kubectl.version.distance(recorded))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_parsed_up_to_the_minor() {
        let minor = |text| Minor::parse(text).map(|m| m.to_string());
        assert_eq!(minor("v1.32.4-dispatcher").as_deref(), Some("1.32"));
        assert_eq!(minor("1.37").as_deref(), Some("1.37"));
        assert_eq!(minor("v1"), None);
        assert_eq!(minor("one.two"), None);
    }

    #[test]
    fn nearest_version_replaces_the_recorded_one() {
        let kubectl = |name: &str, version: &str| Kubectl {
            path: name.into(),
            version: Minor::parse(version).unwrap(),
        };
        let installed = [
            kubectl("old", "1.20"),
            kubectl("a", "1.32"),
            kubectl("b", "1.32"),
            kubectl("new", "1.36"),
        ];
        let chosen = |version: &str| nearest(&installed, Minor::parse(version).unwrap()).unwrap();
        assert_eq!(chosen("1.32").path, PathBuf::from("a"));
        assert_eq!(chosen("1.37").path, PathBuf::from("new"));
        assert_eq!(chosen("1.24").path, PathBuf::from("old"));
        assert_eq!(nearest(&[], Minor::parse("1.32").unwrap()), None);
    }
}
