//! Removing cgroups, with whatever still runs in them.
//!
//! ```text
//!   thaw ── kill every process ── remove directories, deepest first ──▶ gone
//!    ▲                                   │ busy, and patience left
//!    └───────────────────────────────────┘
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind::{DirectoryNotEmpty, ResourceBusy};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::tree::{directories, is_gone, write_existing};
use super::{CgroupError, Cgroups, Version, failed, names};
use crate::os::processes;

/// How long to wait before looking again, at first and at most.
const FIRST_WAIT: Duration = Duration::from_millis(1);
const LONGEST_WAIT: Duration = Duration::from_millis(100);

impl Cgroups {
    /// Removes a cgroup and all below it from all hierarchies. What runs there is killed. Does nothing
    /// where there is nothing.
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
            if begun.elapsed() >= self.patience {
                let processes = processes.into_iter().collect();
                let (path, waited) = (path.to_owned(), self.patience);
                return Err(CgroupError::Busy { path, processes, waited });
            }
            thread::sleep(wait);
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    /// Kills what runs in a cgroup and below it, and says what that was.
    pub fn kill(&self, path: &str) -> Result<BTreeSet<u32>, CgroupError> {
        let found = self.processes(path)?;
        if found.is_empty() {
            return Ok(found);
        }
        let names = names(path)?;
        if self.version() == Version::V1
            && let Some(freezer) = self.layout.of("freezer")
        {
            // In version 1 who is frozen does not die.
            thaw(&freezer.directory(&names));
        }
        for pid in &found {
            processes::kill(*pid).map_err(failed("kill", &self.proc.join(pid.to_string())))?;
        }
        Ok(found)
    }
}

/// Lets everything in a cgroup and below it run. Where it cannot, killing shows.
fn thaw(directory: &Path) {
    let _ = write_existing(&directory.join("freezer.state"), "THAWED");
    for below in directories(directory).unwrap_or_default() {
        thaw(&below);
    }
}

/// Removes a directory and those below it, deepest first. Whether that is done; if not, something is
/// still in use.
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
