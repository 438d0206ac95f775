//! Control groups: [`Cgroups`] creates, limits, empties and removes them, and reads effective
//! limits.
//!
//! A cgroup is named by its path from the root of every hierarchy, `/kubepods/burstable/pod1`. The
//! hierarchies are read from a `mountinfo` ([`Layout`]), so tests can use a temporary directory on
//! any system. [`Limits`] are written, [`EffectiveLimits`] are read for a process, and [`Usage`] is
//! read for a cgroup.
//!
//! Directories are created in the file system (the driver `cgroupfs`). Under the driver `systemd`,
//! slices belong to systemd: a directory created without systemd has no unit, and systemd may
//! remove it. Reading and removing leftovers work with either driver. Names and limits of pods are
//! decided elsewhere.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

mod block_io;
mod effective;

mod layout;
mod limits;
mod memory;
mod remove;
#[cfg(test)]
mod tests;
mod tree;
mod usage;

pub use block_io::{IoError, IoFile, IoSettings, IoTextError, Setting};
pub use effective::{CpuShare, EffectiveLimits, ProcessAffinity, ThreadAffinity};
pub use layout::{Layout, Version};
pub use limits::{Bound, Limits, Quota, weight_of_shares};
pub use memory::{MemoryError, MemoryKnob, MemoryKnobs};
pub use usage::{DiskUsage, Pressure, Stalled, Usage};

/// The control groups of a machine. All methods block.
#[derive(Clone, Debug)]
pub struct Cgroups {
    layout: Layout,
    /// `/proc`, for the cgroups of processes.
    proc: PathBuf,
    /// The timeout for the kernel to release a cgroup whose processes were killed.
    remove_timeout: Duration,
}

/// Killed processes end within moments unless they wait for a device.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(10);

/// The reason why an operation on a cgroup failed.
#[derive(Debug, Error)]
pub enum CgroupError {
    #[error("cgroups are only available on Linux")]
    NotOnThisSystem,
    #[error(
        "no cgroup file system is mounted, neither version 1 with cpu and memory nor version 2"
    )]
    NotMounted,
    #[error("cgroup {0:?} is not a path below the root, such as \"/kubepods/pod1\"")]
    Path(String),
    #[error("cannot {step} {path}")]
    Io { step: &'static str, path: PathBuf, source: io::Error },
    #[error("{path} contains {text:?}, not a {expected}")]
    Text { path: PathBuf, text: String, expected: &'static str },
    #[error(
        "cgroup {path} is still in use after {waited:?}; processes that were killed and did not end: \
         {processes:?}"
    )]
    Busy { path: String, processes: Vec<u32>, waited: Duration },
    #[error("process {0} does not exist")]
    NoProcess(u32),
}

impl Cgroups {
    /// Returns the cgroups of this machine.
    pub fn observe() -> Result<Cgroups, CgroupError> {
        if !cfg!(target_os = "linux") {
            return Err(CgroupError::NotOnThisSystem);
        }
        let mounts = Path::new("/proc/self/mountinfo");
        let text = std::fs::read_to_string(mounts).map_err(failed("read", mounts))?;
        Cgroups::mounted(&text, "/proc")
    }

    /// Returns the cgroups mounted according to the text of a `mountinfo`; `proc` is the directory
    /// with the processes.
    pub fn mounted(mountinfo: &str, proc: impl Into<PathBuf>) -> Result<Cgroups, CgroupError> {
        let layout = Layout::parse(mountinfo)?;
        Ok(Cgroups { layout, proc: proc.into(), remove_timeout: REMOVE_TIMEOUT })
    }

    #[must_use]
    pub fn version(&self) -> Version {
        self.layout.version()
    }

    /// Returns true if the kernel accounts swap.
    #[must_use]
    pub fn counts_swap(&self) -> bool {
        match &self.layout {
            Layout::V1 { controllers, .. } => controllers.get("memory").is_some_and(|hierarchy| {
                hierarchy.point.join("memory.memsw.limit_in_bytes").exists()
            }),
            // The root has no limits; every cgroup below it has.
            Layout::V2(hierarchy) => {
                let below = std::fs::read_dir(&hierarchy.point).into_iter().flatten().flatten();
                below.into_iter().any(|entry| entry.path().join("memory.swap.max").exists())
            }
        }
    }

    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }
}

fn failed(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CgroupError {
    let path = path.to_owned();
    move |source| CgroupError::Io { step, path, source }
}

/// Splits a path below the root into its names, at least one.
fn names(path: &str) -> Result<Vec<&str>, CgroupError> {
    let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
    let is_bad = |name: &&str| matches!(*name, "." | "..") || name.contains('\0');
    if names.is_empty() || !path.starts_with('/') || names.iter().any(is_bad) {
        return Err(CgroupError::Path(path.to_owned()));
    }
    Ok(names)
}
