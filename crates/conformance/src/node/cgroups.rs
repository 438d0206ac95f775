//! Recorded cgroups of pods and their values (kind `cgroups`), compared with ours: [`check`], and
//! [`left`], which compares the cgroups that remain after the pods.
//!
//! Recorded with cgroup v1. Inherited values (CPUs, memory nodes, swappiness) are compared with
//! this machine's root cgroup; the process limit of all pods is the machine's.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use host::cgroups::{Cgroups, Layout};
use serde_json::Value;

use super::super::Difference;
use super::steady_state::SteadyState;
use super::testbed::{ReplayContext, TIMEOUT};

/// Larger values mean no limit: the kernel rounds the largest value down to whole pages.
const UNLIMITED: u64 = 1 << 62;

/// Values that a cgroup inherits unless they are written.
const INHERITED: &[&str] = &["cpuset.cpus", "cpuset.mems", "memory.swappiness"];

/// Returns the directory of each controller.
fn controllers() -> BTreeMap<String, PathBuf> {
    let Ok(cgroups) = Cgroups::observe() else { return BTreeMap::new() };
    match cgroups.layout() {
        Layout::V1 { controllers, .. } => {
            controllers.iter().map(|(name, of)| (name.clone(), of.point.clone())).collect()
        }
        Layout::V2(_) => BTreeMap::new(),
    }
}

/// Returns all cgroups below a directory, by their relative path.
fn below(directory: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = vec![(directory.to_owned(), String::new())];
    while let Some((directory, path)) = open.pop() {
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let path = format!("{path}/{}", entry.file_name().to_string_lossy());
                open.push((entry.path(), path));
            }
        }
        found.insert(if path.is_empty() { "/".to_owned() } else { path });
    }
    found
}

/// Replaces ids in a path by the recording's names; a pod's cgroup of no container is its sandbox.
fn named(steady_state: &SteadyState, path: &str) -> String {
    let named = steady_state.named(path);
    let is_id = |part: &str| part.len() == 64 && part.chars().all(|c| c.is_ascii_hexdigit());
    let parts: Vec<&str> =
        named.split('/').map(|part| if is_id(part) { "<SANDBOX>" } else { part }).collect();
    parts.join("/")
}

fn read(file: &Path) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let text = text.trim();
    let unlimited = text.parse::<u64>().is_ok_and(|number| number >= UNLIMITED);
    Some(if unlimited { "max".to_owned() } else { text.to_owned() })
}

/// Values of recorded files, by cgroup and file.
type Found = BTreeMap<String, BTreeMap<String, String>>;

/// Compares cgroups while their pods run.
pub(super) fn check(
    context: &ReplayContext,
    steady_state: &SteadyState,
    line: &Value,
) -> Vec<Difference> {
    let controllers = controllers();
    let mut ours: Found = BTreeMap::new();
    let files: BTreeSet<&String> = line["cgroups"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(_, files)| files.as_object())
        .flat_map(|files| files.keys())
        .collect();
    let root = context.cgroup_root();
    let paths: BTreeSet<String> =
        controllers.values().flat_map(|point| below(&point.join(root))).collect();
    for path in paths {
        let values = files.iter().filter_map(|file| {
            let point = controllers.get(file.split('.').next()?)?;
            let directory = point.join(root).join(path.trim_start_matches('/'));
            Some(((*file).clone(), read(&directory.join(file))?))
        });
        let values = values.collect();
        ours.insert(named(steady_state, &path), values);
    }
    let processes =
        host::os::system::process_ids().ok().flatten().map(|limit| limit.max.to_string());
    differences(&line["cgroups"], &ours, processes.as_deref())
}

/// Returns the differing values; `processes` is the machine's process limit.
fn differences(recorded: &Value, ours: &Found, processes: Option<&str>) -> Vec<Difference> {
    let mut found = Vec::new();
    let top = &recorded["/"];
    let here = ours.get("/").cloned().unwrap_or_default();
    for (path, files) in recorded.as_object().into_iter().flatten() {
        let Some(values) = ours.get(path) else {
            found.push(Difference {
                what: format!("cgroup {path}"),
                expected: "to be there".to_owned(),
                got: "none".to_owned(),
            });
            continue;
        };
        for (file, value) in files.as_object().into_iter().flatten() {
            let inherited = INHERITED.contains(&file.as_str()) && *value == top[file];
            let wanted = match (inherited, path.as_str(), file.as_str()) {
                (true, ..) => here.get(file).map(String::as_str),
                (_, "/kubepods", "pids.max") if value != "max" => processes,
                _ => value.as_str(),
            };
            let got = values.get(file).map(String::as_str);
            if wanted != got {
                found.push(Difference {
                    what: format!("{file} of {path}"),
                    expected: wanted.unwrap_or("nothing").to_owned(),
                    got: got.unwrap_or("nothing").to_owned(),
                });
            }
        }
    }
    let more = ours.keys().filter(|path| recorded.get(path.as_str()).is_none());
    found.extend(more.map(|path| Difference {
        what: format!("cgroup {path}"),
        expected: "none".to_owned(),
        got: "one".to_owned(),
    }));
    found
}

/// Compares the cgroups that remain after the pods. The kernel removes them with a delay.
pub(super) async fn left(context: &ReplayContext, line: &Value) -> Vec<Difference> {
    let Some(wanted) = line["after_all_pods_deleted"].as_array() else { return Vec::new() };
    let wanted: BTreeSet<String> =
        wanted.iter().filter_map(Value::as_str).map(str::to_owned).collect();
    let controllers = controllers();
    let now = || -> BTreeSet<String> {
        let root = context.cgroup_root();
        controllers.values().flat_map(|point| below(&point.join(root))).collect()
    };
    let looking = async {
        while now() != wanted {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    if tokio::time::timeout(TIMEOUT, looking).await.is_ok() {
        return Vec::new();
    }
    let (what, got) = ("cgroups that are left".to_owned(), format!("{:?}", now()));
    vec![Difference { what, expected: format!("{wanted:?}"), got }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn ours(values: &[(&str, &str, &str)]) -> Found {
        let mut found = Found::new();
        for (path, file, value) in values {
            let files = found.entry((*path).to_owned()).or_default();
            files.insert((*file).to_owned(), (*value).to_owned());
        }
        found
    }

    #[test]
    fn inherited_values_are_those_of_this_machine() {
        let recorded = json!({
            "/": {"cpuset.cpus": "0-1", "cpu.shares": "1024"},
            "/a": {"cpuset.cpus": "0-1", "cpu.shares": "2"},
            "/b": {"cpuset.cpus": "1"},
        });
        let check = |values: &[(&str, &str, &str)], wanted: &[&str]| {
            let found = differences(&recorded, &ours(values), None);
            let paths: Vec<&str> = found.iter().map(|found| found.what.as_str()).collect();
            assert_eq!(paths, wanted);
        };
        let same = [
            ("/", "cpuset.cpus", "0-7"),
            ("/", "cpu.shares", "1024"),
            ("/a", "cpuset.cpus", "0-7"),
            ("/a", "cpu.shares", "2"),
            ("/b", "cpuset.cpus", "1"),
        ];
        check(&same, &[]);
        let mut other = same;
        (other[2].2, other[3].2, other[4].2) = ("0-1", "3", "0-7");
        check(&other, &["cpu.shares of /a", "cpuset.cpus of /a", "cpuset.cpus of /b"]);
        check(&same[..4], &["cgroup /b"]);
    }

    #[test]
    fn unrecorded_cgroups_are_reported() {
        let recorded = json!({"/": {}});
        let found = differences(&recorded, &ours(&[("/", "x", "1"), ("/c", "x", "1")]), None);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].what, "cgroup /c");
    }

    #[test]
    fn process_limit_is_the_machines() {
        let recorded = json!({"/kubepods": {"pids.max": "32768"}});
        let here = ours(&[("/kubepods", "pids.max", "99")]);
        assert!(differences(&recorded, &here, Some("99")).is_empty());
        assert_eq!(differences(&recorded, &here, Some("98")).len(), 1);
    }
}
