//! Control groups: [`Cgroups`] makes, limits, empties and removes them, and tells what is in force.
//!
//! A cgroup is named by its path from the root of every hierarchy, `/kubepods/burstable/pod1`. Where
//! the hierarchies are is read from a `mountinfo` ([`Layout`]), so a tree in a temporary directory will
//! do, on any system. [`Limits`] are what is written, [`EffectiveLimits`] is what is read of a process, [`Usage`]
//! what a cgroup uses.
//!
//! Directories are made in the file system itself (the driver `cgroupfs`). Under the driver `systemd`,
//! slices belong to systemd: a directory made behind its back has no unit, and systemd may take it away.
//! Reading and removing what is left over work with either. What names mean, and who gets how much, is
//! decided elsewhere.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

mod effective;
mod layout;
mod limits;
mod remove;
#[cfg(test)]
mod tests;
mod tree;
mod usage;

pub use effective::{CpuShare, EffectiveLimits, ProcessAffinity, ThreadAffinity};
pub use layout::{Layout, Version};
pub use limits::{Bound, Limits, Quota, weight_of_shares};
pub use usage::{DiskUsage, Pressure, Stalled, Usage};

/// The control groups of a machine. All methods block.
#[derive(Clone, Debug)]
pub struct Cgroups {
    layout: Layout,
    /// `/proc`, for what processes are in.
    proc: PathBuf,
    /// How long the kernel may take to let go of a cgroup whose processes were killed.
    patience: Duration,
}

/// Processes end within moments of being killed, unless they wait for a device.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why something could not be done with a cgroup.
#[derive(Debug, Error)]
pub enum CgroupError {
    #[error("this system has no cgroups: they are Linux'")]
    NotOnThisSystem,
    #[error(
        "no cgroup file system is mounted, neither version 1 with cpu and memory nor version 2"
    )]
    NotMounted,
    #[error("cgroup {0:?} is no path below the root, such as \"/kubepods/pod1\"")]
    Path(String),
    #[error("cannot {step} {path}")]
    Io { step: &'static str, path: PathBuf, source: io::Error },
    #[error("{path} says {text:?}, which is no {expected}")]
    Text { path: PathBuf, text: String, expected: &'static str },
    #[error(
        "cgroup {path} is still in use after {waited:?}; processes that were killed and did not end: \
         {processes:?}"
    )]
    Busy { path: String, processes: Vec<u32>, waited: Duration },
    #[error("there is no process {0}")]
    NoProcess(u32),
}

impl Cgroups {
    /// This machine's.
    pub fn observe() -> Result<Cgroups, CgroupError> {
        if !cfg!(target_os = "linux") {
            return Err(CgroupError::NotOnThisSystem);
        }
        let mounts = Path::new("/proc/self/mountinfo");
        let text = std::fs::read_to_string(mounts).map_err(failed("read", mounts))?;
        Cgroups::mounted(&text, "/proc")
    }

    /// Those that are mounted as the text of a `mountinfo` says; `proc` is where processes are listed.
    pub fn mounted(mountinfo: &str, proc: impl Into<PathBuf>) -> Result<Cgroups, CgroupError> {
        let layout = Layout::parse(mountinfo)?;
        Ok(Cgroups { layout, proc: proc.into(), patience: PATIENCE })
    }

    #[must_use]
    pub fn version(&self) -> Version {
        self.layout.version()
    }

    /// Whether the kernel counts swap.
    #[must_use]
    pub fn counts_swap(&self) -> bool {
        match &self.layout {
            Layout::V1 { controllers, .. } => controllers
                .get("memory")
                .is_some_and(|of| of.point.join("memory.memsw.limit_in_bytes").exists()),
            // The root has no limits; every cgroup below it has.
            Layout::V2(of) => {
                let below = std::fs::read_dir(&of.point).into_iter().flatten().flatten();
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

/// The names of a path below the root; at least one.
fn names(path: &str) -> Result<Vec<&str>, CgroupError> {
    let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
    let is_bad = |name: &&str| matches!(*name, "." | "..") || name.contains('\0');
    if names.is_empty() || !path.starts_with('/') || names.iter().any(is_bad) {
        return Err(CgroupError::Path(path.to_owned()));
    }
    Ok(names)
}
