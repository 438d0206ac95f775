//! The mounted cgroup hierarchies: [`Layout`], parsed from a `mountinfo`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::CgroupError;
use crate::mounts;

/// The version of the hierarchies that have the controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}

/// The mounted hierarchies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Each controller has a hierarchy; several may share one.
    V1 {
        controllers: BTreeMap<String, Hierarchy>,
        /// Hierarchies without controllers: named ones such as systemd's, and a unified one on a
        /// hybrid machine. Runtimes create containers there too, so they are cleaned up.
        others: BTreeMap<String, Hierarchy>,
    },
    /// One hierarchy has all controllers.
    V2(Hierarchy),
}

/// A mounted hierarchy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hierarchy {
    pub point: PathBuf,
    /// The cgroup that is mounted there; the root except inside a container.
    pub root: String,
}

/// The controllers without which version 1 cannot limit pods.
const NEEDED: [&str; 2] = ["cpu", "memory"];
/// The controllers of version 1; other mount options are not controllers.
const CONTROLLERS: [&str; 14] = [
    "blkio",
    "cpu",
    "cpuacct",
    "cpuset",
    "debug",
    "devices",
    "freezer",
    "hugetlb",
    "memory",
    "misc",
    "net_cls",
    "net_prio",
    "perf_event",
    "pids",
];
/// The prefix of a named hierarchy in mount options and in `/proc/PID/cgroup`.
const NAMED: &str = "name=";

impl Layout {
    /// Parses the layout from a `mountinfo`.
    pub fn parse(mountinfo: &str) -> Result<Layout, CgroupError> {
        let mut controllers = BTreeMap::new();
        let mut others = BTreeMap::new();
        for mount in mounts::parse(mountinfo) {
            let hierarchy = Hierarchy { point: mount.point, root: mount.root };
            match mount.kind.as_str() {
                "cgroup" => {
                    for option in mount.options {
                        if CONTROLLERS.contains(&option.as_str()) {
                            prefer(&mut controllers, option, hierarchy.clone());
                        } else if option.starts_with(NAMED) {
                            prefer(&mut others, option, hierarchy.clone());
                        }
                    }
                }
                "cgroup2" => prefer(&mut others, String::new(), hierarchy),
                _ => {}
            }
        }
        if NEEDED.iter().all(|name| controllers.contains_key(*name)) {
            return Ok(Layout::V1 { controllers, others });
        }
        others.remove("").map(Layout::V2).ok_or(CgroupError::NotMounted)
    }

    #[must_use]
    pub fn version(&self) -> Version {
        match self {
            Layout::V1 { .. } => Version::V1,
            Layout::V2(_) => Version::V2,
        }
    }

    /// Returns the hierarchy of a controller.
    pub(super) fn of(&self, controller: &str) -> Option<&Hierarchy> {
        match self {
            Layout::V1 { controllers, .. } => controllers.get(controller),
            Layout::V2(hierarchy) => Some(hierarchy),
        }
    }

    /// Returns the hierarchies with a controller, each once.
    pub(super) fn limiting(&self) -> Vec<&Hierarchy> {
        let mut all: Vec<_> = match self {
            Layout::V1 { controllers, .. } => controllers.values().collect(),
            Layout::V2(hierarchy) => vec![hierarchy],
        };
        all.sort();
        all.dedup();
        all
    }

    /// Returns all hierarchies, each once.
    pub(super) fn all(&self) -> Vec<&Hierarchy> {
        let mut all = self.limiting();
        if let Layout::V1 { others, .. } = self {
            all.extend(others.values());
        }
        all.sort();
        all.dedup();
        all
    }
}

/// A hierarchy may be mounted more than once; a mount of the whole hierarchy is preferred.
fn prefer(to: &mut BTreeMap<String, Hierarchy>, name: String, hierarchy: Hierarchy) {
    match to.get(&name) {
        Some(known) if known.root == "/" || hierarchy.root != "/" => {}
        _ => {
            to.insert(name, hierarchy);
        }
    }
}

impl Hierarchy {
    /// Returns the directory of a cgroup whose path is relative to the mount.
    pub(super) fn directory(&self, names: &[&str]) -> PathBuf {
        names.iter().fold(self.point.clone(), |path, name| path.join(name))
    }

    /// Returns the directory of a cgroup path from `/proc/PID/cgroup`; `None` if it is not visible
    /// here.
    pub(super) fn of_process(&self, path: &str) -> Option<PathBuf> {
        let below = Path::new(path).strip_prefix(&self.root).ok()?;
        // A cgroup outside the process' own namespace is reported as a path with `..`.
        let leads_up = below.components().any(|part| part == std::path::Component::ParentDir);
        (!leads_up).then(|| self.point.join(below))
    }
}
