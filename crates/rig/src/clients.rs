//! The clients that `tools/clients` downloads, found through the variable `BERTH_CLIENTS`.

#![allow(clippy::panic, clippy::unwrap_used, reason = "only tests call these functions")]

use std::env;
use std::path::{Path, PathBuf};

/// Returns the path of a client, for example `kubectl-1.32`. Panics if it is missing, so that no test
/// passes without running.
#[must_use]
pub fn client(name: &str) -> PathBuf {
    let directory = env::var_os("BERTH_CLIENTS")
        .unwrap_or_else(|| panic!("BERTH_CLIENTS is not set: BERTH_CLIENTS=$(tools/clients)"));
    let path = Path::new(&directory).join(name);
    assert!(path.exists(), "{} is missing; tools/clients downloads it", path.display());
    path
}

/// Returns the kubectl with the highest version, which is not known beforehand.
#[must_use]
pub fn newest_kubectl() -> PathBuf {
    let mut found: Vec<(u32, PathBuf)> = std::fs::read_dir(client(""))
        .unwrap()
        .filter_map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name()?.to_str()?.to_owned();
            Some((name.strip_prefix("kubectl-1.")?.parse().ok()?, path))
        })
        .collect();
    found.sort();
    let (minor, path) = found.pop().unwrap_or_else(|| panic!("tools/clients has no kubectl"));
    assert!(minor > 32, "the newest kubectl is 1.{minor}, which is not newer than the others");
    path
}
