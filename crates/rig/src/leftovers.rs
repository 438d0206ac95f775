//! Cleans up after a rig by its directory: processes, mounts, cgroups, sockets, files.
//!
//! Only objects that contain the directory's name are touched.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{cgroups, processes};

/// The prefix of rig directories.
pub(crate) const PREFIX: &str = "berth-rig-";

/// The file that a live rig keeps locked.
pub(crate) const LOCK: &str = "lock";

/// Returns the cgroup for the pods of a rig.
pub(crate) fn cgroup_parent(directory: &Path) -> String {
    format!("/{}", directory.file_name().unwrap_or_default().to_string_lossy())
}

/// Cleans up after rigs whose process is dead.
pub(crate) fn sweep() {
    let entries = fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX)) {
        // A directory without this file is being created or removed right now.
        let Ok(lock) = fs::File::open(entry.path().join(LOCK)) else { continue };
        if lock.try_lock().is_ok() {
            remove(&entry.path());
        }
    }
}

/// Removes everything that a rig created, and returns the objects that could not be removed.
pub(crate) fn remove(directory: &Path) -> Vec<String> {
    let mut left = Vec::new();
    let path = directory.to_string_lossy();
    let socket = format!("{path}/containerd.sock");
    let config = format!("{path}/config.toml");
    let find = |name: &str, value: &str| -> Vec<u32> {
        let all = processes::all();
        all.iter().filter(|process| process.has_arguments(name, value)).map(|p| p.id).collect()
    };

    // The daemon ends first, so that it does not react to the following steps.
    let daemons = find("--config", &config);
    if !processes::kill(&daemons) {
        left.push(format!("containerd {daemons:?}"));
    }
    let shims = find("-address", &socket);
    let inside = processes::descendants(&shims, &processes::all());
    let mut groups = cgroups::of_processes(&inside);
    groups.insert(cgroup_parent(directory));
    groups.extend(containers(directory).iter().filter_map(|container| {
        // containerd's default cgroup for containers without a parent.
        Some(format!("/k8s.io/{}", container.file_name()?.to_str()?))
    }));
    // Shims reap their containers, so the containers end first.
    if !processes::kill(&inside) {
        left.push(format!("processes in containers {inside:?}"));
    }
    if !processes::kill(&shims) {
        left.push(format!("shims {shims:?}"));
    }
    for group in groups {
        if !cgroups::remove(&group) {
            left.push(format!("cgroup {group}"));
        }
    }
    for container in containers(directory) {
        // Shims listen outside the directory, where paths are short enough for a socket.
        let address = fs::read_to_string(container.join("address")).unwrap_or_default();
        if let Some(socket) = address.trim().strip_prefix("unix://") {
            let _ = fs::remove_file(socket);
        }
    }
    for mount in mounts_below(directory).into_iter().rev() {
        let _ = Command::new("umount").arg("-l").arg(&mount).status();
    }
    let mounts = mounts_below(directory);
    if mounts.is_empty() {
        if let Err(error) = fs::remove_dir_all(directory) {
            left.push(format!("{path}: {error}"));
        }
    } else {
        left.push(format!("mounts {mounts:?}"));
    }
    left
}

/// Returns the directories of the containers with a shim.
fn containers(directory: &Path) -> Vec<PathBuf> {
    let tasks = directory.join("state/io.containerd.runtime.v2.task/k8s.io");
    fs::read_dir(tasks).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Returns the mount points below a directory, outer ones first.
fn mounts_below(directory: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounts = table.lines().filter_map(|line| cgroups::mount(line, |_| true));
    mounts.filter(|mount| mount.starts_with(directory)).collect()
}
