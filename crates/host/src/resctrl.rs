//! The resctrl file system, through which the kernel divides caches and memory bandwidth among
//! groups of tasks: [`Resctrl`].
//!
//! ```text
//!   observe ──▶ Observed ─┐
//!                         ├─ compare ──▶ Drift ── repair ──▶ Step ── apply
//!               Desired ──┘   (pure)               (pure)
//! ```
//!
//! A class is a control group, a directory whose name begins with [`PREFIX`]. A container is a
//! [`Workload`]: the tasks of its cgroup belong to one control group and, if it is monitored, to one
//! monitoring group inside it. Groups with other names belong to other programs and are never
//! changed; ADR 25 has the reasons.
//!
//! The root is a field, so tests use directories of their own on any system. Which classes exist and
//! which container has which class is decided elsewhere; nothing here mounts the file system.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

mod apply;
mod desired;
mod drift;
mod figures;
mod groups;
mod hardware;
mod schemata;
mod tasks;
#[cfg(test)]
mod tests;

pub use apply::{Applied, ApplyError};
pub use desired::{Desired, Workload};
pub use drift::{Drift, NoClosid, Step, Threads, compare, repair};
pub use figures::{DomainFigures, Event, Figures, Reading};
pub use groups::{ControlGroup, Group, GroupName, MonitorName, Observed, PREFIX};
pub use schemata::holds;

use classes::schemata::{Schemata, SchemataError};
use schemata::one_line;

use crate::mounts;

/// The resctrl file system of a machine. All methods block.
#[derive(Clone, Debug)]
pub struct Resctrl {
    root: PathBuf,
    options: Vec<String>,
}

/// The reason why an operation on resctrl failed.
#[derive(Debug, Error)]
pub enum ResctrlError {
    #[error("resctrl is only available on Linux")]
    NotOnThisSystem,
    #[error(
        "resctrl is not mounted; if the CPU supports it, run \"mount -t resctrl resctrl \
         /sys/fs/resctrl\""
    )]
    NotMounted,
    #[error("{0:?} cannot be the name of a resctrl group: {1}")]
    Name(String, &'static str),
    #[error(
        "resctrl group {0:?} belongs to another program: names of groups that can be changed begin \
         with {PREFIX:?}"
    )]
    Foreign(String),
    #[error("cannot {step} {path}{}", shown(.status))]
    Io { step: &'static str, path: PathBuf, status: Option<String>, source: io::Error },
    #[error("{path} contains {text:?}, not {expected}")]
    Text { path: PathBuf, text: String, expected: &'static str },
    #[error("{path} cannot be used")]
    Schemata { path: PathBuf, source: SchemataError },
    #[error(transparent)]
    NoClosid(#[from] NoClosid),
    #[error(
        "cannot create resctrl group {group}: the machine has {limit} monitoring ids (RMIDs), and \
         {used} groups use one{}",
        if *.in_limbo { "; ids of removed groups are still in the caches, try again later" } else { "" }
    )]
    NoRmid { group: String, limit: u64, used: usize, in_limbo: bool },
    #[error(
        "resctrl group {group} has the schemata {} after {} was written",
        one_line(.found), one_line(.wanted)
    )]
    NotInForce { group: ControlGroup, wanted: Schemata, found: Schemata },
    #[error(
        "{left} tasks of cgroup {cgroup} are still outside resctrl group {group} after {passes} \
         passes: new tasks appear faster than they are moved"
    )]
    Unsettled { cgroup: String, group: ControlGroup, left: usize, passes: u32 },
    #[error(transparent)]
    Cgroup(#[from] crate::cgroups::CgroupError),
}

/// Appends the kernel's reason to a message.
fn shown(status: &Option<String>) -> String {
    status.as_ref().map(|status| format!(" ({status})")).unwrap_or_default()
}

impl Resctrl {
    /// Returns the mounted resctrl file system of this machine.
    pub fn observe() -> Result<Resctrl, ResctrlError> {
        if !cfg!(target_os = "linux") {
            return Err(ResctrlError::NotOnThisSystem);
        }
        let file = Path::new("/proc/self/mountinfo");
        let text = std::fs::read_to_string(file).map_err(failed("read", file))?;
        Resctrl::mounted(&text)
    }

    /// Returns the resctrl file system of a `mountinfo`. A bind mount of a part of it is skipped.
    pub fn mounted(mountinfo: &str) -> Result<Resctrl, ResctrlError> {
        let mounts = mounts::parse(mountinfo);
        let mount = mounts.into_iter().find(|mount| mount.kind == "resctrl" && mount.root == "/");
        let mount = mount.ok_or(ResctrlError::NotMounted)?;
        Ok(Resctrl { root: mount.point, options: mount.options })
    }

    /// Returns the mount point.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the mount options of the file system: `rw`, and those that change its interface, for
    /// example `cdp` and `mba_MBps`.
    #[must_use]
    pub fn options(&self) -> &[String] {
        &self.options
    }

    /// Returns the kernel's reason for the last failure; `None` if it gives none.
    fn status(&self) -> Option<String> {
        let text = std::fs::read_to_string(self.root.join("info/last_cmd_status")).ok()?;
        let lines: Vec<&str> =
            text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        (!lines.is_empty() && lines != ["ok"]).then(|| lines.join("; "))
    }

    /// Returns an error with the kernel's reason.
    fn refused(&self, step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ResctrlError {
        let status = self.status();
        let path = path.to_owned();
        move |source| ResctrlError::Io { step, path, status, source }
    }
}

fn failed(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ResctrlError {
    let path = path.to_owned();
    move |source| ResctrlError::Io { step, path, status: None, source }
}

/// Returns true for an error of a group that was removed meanwhile; open files fail with `ENODEV`.
fn is_gone(error: &io::Error) -> bool {
    const NO_DEVICE: i32 = 19;
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(NO_DEVICE)
}
