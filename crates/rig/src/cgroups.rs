//! Removes cgroups that containers left behind, of either version.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::wait::wait_until;

/// The longest time for which the kernel may keep the cgroup of a dead process.
const PATIENCE: Duration = Duration::from_secs(5);

/// Returns the mount points of cgroup file systems.
pub(crate) fn mounts() -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().filter_map(|line| mount(line, |kind| kind.starts_with("cgroup"))).collect()
}

/// Returns the mount point in a line of `mountinfo` if the file system is of that kind.
pub(crate) fn mount(line: &str, kind: impl Fn(&str) -> bool) -> Option<PathBuf> {
    let (before, after) = line.split_once(" - ")?;
    let point = before.split(' ').nth(4)?;
    kind(after.split(' ').next()?).then(|| PathBuf::from(point))
}

/// Returns the cgroups of processes, as paths below a mount.
pub(crate) fn of_processes(processes: &[u32]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for process in processes {
        let text = fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap_or_default();
        found.extend(text.lines().filter_map(|line| Some(line.splitn(3, ':').nth(2)?.to_owned())));
    }
    found.remove("/");
    found
}

/// Removes a cgroup and its descendants in every hierarchy. Returns true if it is gone from all of
/// them.
pub(crate) fn remove(path: &str) -> bool {
    let directories: Vec<_> =
        mounts().iter().map(|mount| mount.join(path.trim_start_matches('/'))).collect();
    wait_until(PATIENCE, || {
        for directory in &directories {
            remove_tree(directory);
        }
        directories.iter().all(|directory| !directory.exists()).then_some(())
    })
    .is_ok()
}

/// Removes directories bottom-up; the kernel removes their files with them.
fn remove_tree(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    let _ = fs::remove_dir(directory);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_by_kind() {
        let line = "30 24 0:26 / /sys/fs/cgroup/cpu rw,nosuid shared:9 - cgroup cgroup rw,cpu";
        let check = |wanted: &str, expected: Option<&str>| {
            assert_eq!(mount(line, |kind| kind == wanted), expected.map(PathBuf::from));
        };
        check("cgroup", Some("/sys/fs/cgroup/cpu"));
        check("cgroup2", None);
        assert_eq!(mount("", |_| true), None);
    }
}
