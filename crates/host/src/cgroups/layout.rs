//! Where the hierarchies of cgroups are: [`Layout`], from the text of a `mountinfo`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::CgroupError;
use crate::mounts;

/// Which kind of hierarchies has the controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}

/// The mounted hierarchies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Each controller has a hierarchy, some of them the same one.
    V1 {
        controllers: BTreeMap<String, Hierarchy>,
        /// Hierarchies that limit nothing: named ones such as systemd's, and a unified one beside the
        /// others (a hybrid machine). Runtimes put containers there too, so they are cleaned up.
        others: BTreeMap<String, Hierarchy>,
    },
    /// One hierarchy has all controllers.
    V2(Hierarchy),
}

/// One hierarchy as it is mounted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hierarchy {
    pub point: PathBuf,
    /// Which cgroup is seen there; all of them but inside a container.
    pub root: String,
}

/// Without these on version 1 there is nothing to limit pods with.
const NEEDED: [&str; 2] = ["cpu", "memory"];
/// Controllers of version 1; other options of such a mount are not.
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
/// How a named hierarchy begins among the options, and in `/proc/PID/cgroup`.
const NAMED: &str = "name=";

impl Layout {
    /// The layout that the mounts say.
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

    /// The hierarchy of a controller.
    pub(super) fn of(&self, controller: &str) -> Option<&Hierarchy> {
        match self {
            Layout::V1 { controllers, .. } => controllers.get(controller),
            Layout::V2(hierarchy) => Some(hierarchy),
        }
    }

    /// Hierarchies with a controller, each once.
    pub(super) fn limiting(&self) -> Vec<&Hierarchy> {
        let mut all: Vec<_> = match self {
            Layout::V1 { controllers, .. } => controllers.values().collect(),
            Layout::V2(hierarchy) => vec![hierarchy],
        };
        all.sort();
        all.dedup();
        all
    }

    /// All hierarchies, each once.
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

/// A hierarchy may be mounted more than once; where all of it is seen is best.
fn prefer(to: &mut BTreeMap<String, Hierarchy>, name: String, hierarchy: Hierarchy) {
    match to.get(&name) {
        Some(known) if known.root == "/" || hierarchy.root != "/" => {}
        _ => {
            to.insert(name, hierarchy);
        }
    }
}

impl Hierarchy {
    /// The directory of a cgroup whose path counts from what is seen here.
    pub(super) fn directory(&self, names: &[&str]) -> PathBuf {
        names.iter().fold(self.point.clone(), |path, name| path.join(name))
    }

    /// The directory of a cgroup as a process tells it. `None` for one that is not seen here.
    pub(super) fn of_process(&self, path: &str) -> Option<PathBuf> {
        let below = Path::new(path).strip_prefix(&self.root).ok()?;
        // Of a cgroup outside of the process' own namespace only the way there is told.
        let leads_up = below.components().any(|part| part == std::path::Component::ParentDir);
        (!leads_up).then(|| self.point.join(below))
    }
}
