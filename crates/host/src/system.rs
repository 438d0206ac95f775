//! Identity and usage of a machine: [`Identity`], [`Memory`], [`FileSystem`], [`ProcessIds`],
//! [`Interface`], [`ProcessUsage`], and its [`addresses`].
//!
//! These are the values and the parsers of Linux' text files, which are tested everywhere.
//! [`crate::os::system`] reads them; the agent interprets them.

use std::path::Path;

pub mod addresses;
pub mod linux;

/// The identity of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    /// In lower case, like node names.
    pub hostname: String,
    pub machine_id: String,
    pub system_uuid: String,
    /// Changes with every boot.
    pub boot_id: String,
    pub kernel_version: String,
    /// For example `Debian GNU/Linux 12 (bookworm)`.
    pub os_image: String,
    /// True if root in this process is another user on the machine.
    pub in_user_namespace: bool,
}

/// Memory in bytes, as the kernel counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Memory {
    pub total: u64,
    pub free: u64,
    /// Memory available without swapping, as the kernel estimates it.
    pub available: u64,
    /// File pages that were not used lately.
    pub inactive_file: u64,
    pub swap_total: u64,
    pub swap_free: u64,
}

impl Memory {
    /// Returns upstream's `memory.available`: the total without the working set. The working set is
    /// the used memory without inactive file pages.
    #[must_use]
    pub fn outside_working_set(&self) -> u64 {
        self.free.saturating_add(self.inactive_file).min(self.total)
    }
}

/// The file system of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileSystem {
    pub capacity: u64,
    /// Available to every user, not only to root.
    pub available: u64,
    /// `None` if the file system does not count inodes.
    pub inodes: Option<Inodes>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Inodes {
    pub total: u64,
    pub free: u64,
}

/// The limit and the number of processes and threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProcessIds {
    pub max: u64,
    pub used: u64,
}

/// The traffic of a network interface.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Interface {
    pub name: String,
    pub received: Traffic,
    pub sent: Traffic,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    pub bytes: u64,
    pub packets: u64,
    pub errors: u64,
    pub dropped: u64,
}

/// The resource usage of a process. Times are in nanoseconds, amounts in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProcessUsage {
    pub cpu: u64,
    pub resident: u64,
    pub virtual_memory: u64,
    pub open_files: u64,
}

/// Returns `thermal_throttle` of each CPU directory below `cpus` that has one, sorted.
#[must_use]
pub fn thermal_throttle_paths(cpus: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(cpus).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path().join("thermal_throttle"));
    let mut found: Vec<String> =
        paths.filter(|path| path.exists()).map(|path| path.display().to_string()).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_cpus_with_throttle_counters_are_returned() {
        let cpus = tempfile::tempdir().unwrap();
        for path in ["cpu1/thermal_throttle", "cpu0/thermal_throttle", "cpu2", "power"] {
            std::fs::create_dir_all(cpus.path().join(path)).unwrap();
        }
        let expected = ["cpu0", "cpu1"]
            .map(|cpu| cpus.path().join(cpu).join("thermal_throttle").display().to_string());
        assert_eq!(thermal_throttle_paths(cpus.path()), expected);
        assert!(thermal_throttle_paths(&cpus.path().join("missing")).is_empty());
    }
}
