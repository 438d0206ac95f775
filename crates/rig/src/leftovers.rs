//! Cleaning up after a rig, by its directory alone: processes, mounts, cgroups, sockets, files.
//!
//! Only what carries the directory's name is touched.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{cgroups, processes};

/// How directories of rigs begin.
pub(crate) const PREFIX: &str = "berth-rig-";

/// The file that a rig keeps locked for as long as it lives.
pub(crate) const LOCK: &str = "lock";

/// The cgroup below which a rig's pods are to be.
pub(crate) fn cgroup_parent(directory: &Path) -> String {
    format!("/{}", directory.file_name().unwrap_or_default().to_string_lossy())
}

/// Cleans up after rigs whose process is dead.
pub(crate) fn sweep() {
    let entries = fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX)) {
        // A directory without this file is one that is being made or removed at this moment.
        let Ok(lock) = fs::File::open(entry.path().join(LOCK)) else { continue };
        if lock.try_lock().is_ok() {
            remove(&entry.path());
        }
    }
}

/// Removes everything that a rig made. What cannot be removed is told, since nobody else will.
pub(crate) fn remove(directory: &Path) -> Vec<String> {
    let mut left = Vec::new();
    let path = directory.to_string_lossy();
    let socket = format!("{path}/containerd.sock");
    let config = format!("{path}/config.toml");
    let find = |name: &str, value: &str| -> Vec<u32> {
        let all = processes::all();
        all.iter().filter(|process| process.has_arguments(name, value)).map(|p| p.id).collect()
    };

    // First the daemon, so that it does not react to what follows.
    let daemons = find("--config", &config);
    if !processes::kill(&daemons) {
        left.push(format!("containerd {daemons:?}"));
    }
    let shims = find("-address", &socket);
    let inside = processes::descendants(&shims, &processes::all());
    let mut groups = cgroups::of_processes(&inside);
    groups.insert(cgroup_parent(directory));
    groups.extend(containers(directory).iter().filter_map(|container| {
        // Where containerd puts containers for which nobody named a parent.
        Some(format!("/k8s.io/{}", container.file_name()?.to_str()?))
    }));
    // Shims reap their containers, so these go before them.
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
        // Shims listen outside of the directory, where a path is short enough for a socket.
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

/// Directories of the containers that containerd has a shim for.
fn containers(directory: &Path) -> Vec<PathBuf> {
    let tasks = directory.join("state/io.containerd.runtime.v2.task/k8s.io");
    fs::read_dir(tasks).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Mount points below a directory, the outer ones first.
fn mounts_below(directory: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounts = table.lines().filter_map(|line| cgroups::mount(line, |_| true));
    mounts.filter(|mount| mount.starts_with(directory)).collect()
}
