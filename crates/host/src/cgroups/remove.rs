//! Removes cgroups with the processes in them.
//!
//! ```text
//!   thaw ── kill every process ── remove directories, deepest first ──▶ gone
//!    ▲                                   │ busy, and time left
//!    └───────────────────────────────────┘
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind::{DirectoryNotEmpty, ResourceBusy};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use tracing::debug;

use super::tree::{directories, is_gone, write_existing};
use super::{CgroupError, Cgroups, Version, failed, names};
use crate::os::processes;

/// The first and the longest pause between two attempts.
const FIRST_WAIT: Duration = Duration::from_millis(1);
const LONGEST_WAIT: Duration = Duration::from_millis(100);

impl Cgroups {
    /// Removes a cgroup and its descendants from all hierarchies, and kills their processes. A
    /// missing cgroup is not an error.
    pub fn remove(&self, path: &str) -> Result<(), CgroupError> {
        let names = names(path)?;
        let begun = Instant::now();
        let mut wait = FIRST_WAIT;
        loop {
            let processes = self.kill(path)?;
            let mut left = false;
            for hierarchy in self.layout.all() {
                left |= !remove_below(&hierarchy.directory(&names))?;
            }
            if !left {
                return Ok(());
            }
            if wait == FIRST_WAIT {
                debug!(path, ?processes, "cgroup is still in use, waiting for its processes");
            }
            if begun.elapsed() >= self.remove_timeout {
                let processes = processes.into_iter().collect();
                let (path, waited) = (path.to_owned(), self.remove_timeout);
                return Err(CgroupError::Busy { path, processes, waited });
            }
            thread::sleep(wait);
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    /// Kills the processes in a cgroup and its descendants, and returns their ids.
    pub fn kill(&self, path: &str) -> Result<BTreeSet<u32>, CgroupError> {
        let found = self.processes(path)?;
        if found.is_empty() {
            return Ok(found);
        }
        let names = names(path)?;
        if self.version() == Version::V1
            && let Some(freezer) = self.layout.of("freezer")
        {
            // In version 1 a frozen process does not die.
            thaw(&freezer.directory(&names));
        }
        for pid in &found {
            processes::kill(*pid).map_err(failed("kill", &self.proc.join(pid.to_string())))?;
        }
        Ok(found)
    }
}

/// Thaws a cgroup and its descendants. A failure shows up when processes do not die.
fn thaw(directory: &Path) {
    if let Err(error) = write_existing(&directory.join("freezer.state"), "THAWED")
        && !is_gone(&error)
    {
        debug!(cgroup = %directory.display(), %error, "failed to thaw a cgroup");
    }
    for below in directories(directory).unwrap_or_default() {
        thaw(&below);
    }
}

/// Removes a directory and its descendants, deepest first. Returns false if something is still in
/// use.
fn remove_below(directory: &Path) -> Result<bool, CgroupError> {
    let mut done = true;
    for below in directories(directory)? {
        done &= remove_below(&below)?;
    }
    if !done {
        return Ok(false);
    }
    match fs::remove_dir(directory) {
        Ok(()) => Ok(true),
        Err(error) if is_gone(&error) => Ok(true),
        Err(error) if matches!(error.kind(), ResourceBusy | DirectoryNotEmpty) => Ok(false),
        Err(error) => Err(failed("remove", directory)(error)),
    }
}
