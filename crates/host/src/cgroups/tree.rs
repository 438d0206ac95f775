//! Cgroups as directories: creates, writes and lists them.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::layout::{Hierarchy, Layout};
use super::limits::{Limits, PERIOD_V1, Write};
use super::{CgroupError, Cgroups, Version, failed, names};

/// The controllers of pod cgroups in version 2, where the kernel supports them.
const CONTROLLERS: [&str; 6] = ["cpu", "cpuset", "hugetlb", "io", "memory", "pids"];

impl Cgroups {
    /// Returns true if a cgroup exists in every hierarchy with controllers.
    #[must_use]
    pub fn exists(&self, path: &str) -> bool {
        let Ok(names) = names(path) else { return false };
        self.layout.limiting().iter().all(|of| of.directory(&names).is_dir())
    }

    /// Creates a cgroup and its parents, enables controllers for its children, and writes the
    /// limits.
    pub fn ensure(&self, path: &str, limits: &Limits) -> Result<(), CgroupError> {
        let names = names(path)?;
        for hierarchy in self.layout.limiting() {
            for depth in 1..=names.len() {
                make(&hierarchy.directory(&names[..depth]))?;
            }
        }
        match &self.layout {
            Layout::V1 { controllers, .. } => {
                if let Some(cpuset) = controllers.get("cpuset") {
                    self.inherit_cpuset(cpuset, &names)?;
                }
            }
            Layout::V2(hierarchy) => {
                for depth in 0..=names.len() {
                    enable(&hierarchy.directory(&names[..depth]))?;
                }
            }
        }
        self.update(path, limits)
    }

    /// Writes the limits of an existing cgroup. A growing limit must be written to a cgroup before
    /// its descendants, a shrinking one after them: version 1 rejects a child with more CPU time
    /// than its parent. [`super::Bound`]s compare accordingly.
    pub fn update(&self, path: &str, limits: &Limits) -> Result<(), CgroupError> {
        let names = names(path)?;
        let writes = limits.writes(self.version());
        let mut writes = writes.as_slice();
        while let [write, rest @ ..] = writes {
            writes = rest;
            let done = self.put(&names, write);
            // Version 1 validates quota and period after each write. If a new period does not fit
            // the old quota, the quota is written first.
            match (done, rest) {
                (Err(_), [second, after @ ..]) if write.file == PERIOD_V1 => {
                    self.put(&names, second)?;
                    self.put(&names, write)?;
                    writes = after;
                }
                (done, _) => done?,
            }
        }
        Ok(())
    }

    fn put(&self, names: &[&str], write: &Write) -> Result<(), CgroupError> {
        let Some(hierarchy) = self.layout.of(write.controller) else {
            // Without the controller there is nothing to limit.
            return Ok(());
        };
        let file = hierarchy.directory(names).join(&write.file);
        match write_existing(&file, &write.value) {
            Err(error) if write.optional && error.kind() == ErrorKind::NotFound => Ok(()),
            done => done.map_err(failed("write", &file)),
        }
    }

    /// A cpuset of version 1 starts without CPUs and rejects processes, so pod cgroups copy the
    /// CPUs of their parents. CPUs that went offline and came back are missing below the root until
    /// the next call.
    fn inherit_cpuset(&self, cpuset: &Hierarchy, names: &[&str]) -> Result<(), CgroupError> {
        for depth in 1..=names.len() {
            let parent = cpuset.directory(&names[..depth - 1]);
            let child = cpuset.directory(&names[..depth]);
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let (from, to) = (parent.join(file), child.join(file));
                let wanted = read(&from)?;
                if read(&to)? != wanted {
                    write_existing(&to, &wanted).map_err(failed("write", &to))?;
                }
            }
        }
        Ok(())
    }

    /// Returns the names of the direct children of a cgroup in any hierarchy.
    pub fn children(&self, path: &str) -> Result<BTreeSet<String>, CgroupError> {
        let names = if path == "/" { Vec::new() } else { names(path)? };
        let mut found = BTreeSet::new();
        for hierarchy in self.layout.all() {
            for child in directories(&hierarchy.directory(&names))? {
                found.extend(child.file_name().and_then(|name| name.to_str()).map(str::to_owned));
            }
        }
        Ok(found)
    }

    /// Returns the processes of a cgroup and its descendants in any hierarchy.
    pub fn processes(&self, path: &str) -> Result<BTreeSet<u32>, CgroupError> {
        let names = names(path)?;
        let mut found = BTreeSet::new();
        for hierarchy in self.layout.all() {
            processes_below(&hierarchy.directory(&names), &mut found)?;
        }
        Ok(found)
    }

    /// Returns the threads of a cgroup and its descendants in any hierarchy.
    pub fn threads(&self, path: &str) -> Result<BTreeSet<u32>, CgroupError> {
        let names = names(path)?;
        let mut found = BTreeSet::new();
        for hierarchy in self.layout.all() {
            // Every version 2 hierarchy has the first file, every version 1 hierarchy the second.
            let directory = hierarchy.directory(&names);
            ids_below(&directory, "cgroup.threads", &mut found)?;
            ids_below(&directory, "tasks", &mut found)?;
        }
        Ok(found)
    }
}

fn make(directory: &Path) -> Result<(), CgroupError> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(failed("make the cgroup", directory)(error))
        }
        _ => Ok(()),
    }
}

/// Enables controllers for the children of a cgroup (version 2).
fn enable(directory: &Path) -> Result<(), CgroupError> {
    let there = read(&directory.join("cgroup.controllers"))?;
    let file = directory.join("cgroup.subtree_control");
    let enabled = read(&file)?;
    let has = |list: &str, name: &str| list.split_whitespace().any(|known| known == name);
    let missing: Vec<String> = CONTROLLERS
        .iter()
        .filter(|name| has(&there, name) && !has(&enabled, name))
        .map(|name| format!("+{name}"))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    write_existing(&file, &missing.join(" ")).map_err(failed("enable controllers in", &file))
}

/// Writes to an existing kernel file.
pub(super) fn write_existing(path: &Path, value: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).truncate(true).open(path)?;
    io::Write::write_all(&mut file, value.as_bytes())
}

pub(super) fn read(path: &Path) -> Result<String, CgroupError> {
    let text = fs::read_to_string(path).map_err(failed("read", path))?;
    Ok(text.trim().to_owned())
}

/// Returns the subdirectories of a directory; none if it is missing.
pub(super) fn directories(path: &Path) -> Result<Vec<PathBuf>, CgroupError> {
    let entries = match fs::read_dir(path) {
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        entries => entries.map_err(failed("list", path))?,
    };
    let entries = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|of| of.is_dir()));
    Ok(entries.map(|entry| entry.path()).collect())
}

/// Open files of a removed cgroup fail with `ENODEV`.
pub(super) fn is_gone(error: &io::Error) -> bool {
    const NO_DEVICE: i32 = 19;
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(NO_DEVICE)
}

pub(super) fn processes_below(
    directory: &Path,
    found: &mut BTreeSet<u32>,
) -> Result<(), CgroupError> {
    ids_below(directory, "cgroup.procs", found)
}

/// Adds the ids in the files of this name in a cgroup and its descendants.
fn ids_below(directory: &Path, name: &str, found: &mut BTreeSet<u32>) -> Result<(), CgroupError> {
    let file = directory.join(name);
    let text = match fs::read_to_string(&file) {
        Err(error) if is_gone(&error) => String::new(),
        text => text.map_err(failed("read", &file))?,
    };
    // A process outside this PID namespace has the number 0.
    let ids = text.lines().filter_map(|line| line.trim().parse::<u32>().ok());
    found.extend(ids.filter(|id| *id != 0));
    for below in directories(directory)? {
        ids_below(&below, name, found)?;
    }
    Ok(())
}

impl Version {
    /// Returns the file with the effective CPUs or memory nodes; `kind` is `cpus` or `mems`.
    pub(super) fn effective(self, kind: &str) -> String {
        match self {
            Version::V1 => format!("cpuset.effective_{kind}"),
            Version::V2 => format!("cpuset.{kind}.effective"),
        }
    }
}
