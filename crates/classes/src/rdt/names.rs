//! Names of RDT classes and of the control groups that hold them.
//!
//! Main types: [`Group`] and [`Prefix`]. A class is kept in the control group whose directory is
//! the prefix followed by the class name; `system/default` and the empty name are the root group.

use std::fmt;

use thiserror::Error;

use super::Tree;
use crate::go_text::quoted;

/// The class of the root group.
pub const ROOT_CLASS: &str = "system/default";

/// Entries of the resctrl root and of control groups. A group of such a name cannot be created.
const RESERVED: &[&str] = &[
    "info",
    "mon_groups",
    "mon_data",
    "tasks",
    "schemata",
    "cpus",
    "cpus_list",
    "mode",
    "size",
    "ctrl_hw_id",
    "mon_hw_id",
    "mba_MBps_event",
];

/// The longest name of a directory.
pub(crate) const LONGEST_NAME: usize = 255;

/// A control group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    Root,
    /// The name of its directory.
    Named(String),
}

impl Group {
    /// Returns the path of the group, or of a file in it, below the mount point.
    #[must_use]
    pub fn path(&self, mount: &str) -> String {
        match self {
            Group::Root => mount.to_owned(),
            Group::Named(directory) => format!("{mount}/{directory}"),
        }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Group::Root => ".",
            Group::Named(directory) => directory,
        })
    }
}

/// The beginning of the directory names of our control groups and monitoring groups. Groups of
/// other names belong to other programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefix(pub String);

impl Prefix {
    /// Returns the control group of a class.
    #[must_use]
    pub fn group(&self, class: &str) -> Group {
        match canonical(class) {
            ROOT_CLASS => Group::Root,
            class => Group::Named(format!("{}{class}", self.0)),
        }
    }

    /// Returns the class of a directory; `None` for one of another program.
    #[must_use]
    pub fn class<'a>(&self, directory: &'a str) -> Option<&'a str> {
        directory.strip_prefix(&self.0).filter(|class| !class.is_empty())
    }
}

/// Returns the name of a class without aliases: the empty name is the root class.
#[must_use]
pub fn canonical(class: &str) -> &str {
    if class.is_empty() { ROOT_CLASS } else { class }
}

/// Returns true if a class can have this name: that of a file, or the root class.
#[must_use]
pub fn is_qualified(class: &str) -> bool {
    const LONGEST_PATH: usize = 4096;
    let file_name =
        class.len() < LONGEST_PATH && !matches!(class, "." | "..") && !class.contains(['/', '\n']);
    class == ROOT_CLASS || file_name
}

/// Returns true if the kernel uses this name in resctrl itself.
#[must_use]
pub fn is_reserved(directory: &str) -> bool {
    RESERVED.contains(&directory)
}

/// The reason why a class cannot be looked up.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "failed to get class {name} from resctrl fs: resctrl group not found for class {name} ({path})",
    name = quoted(.class), path = quoted(.path)
)]
pub struct LookupError {
    pub class: String,
    pub path: String,
}

/// Returns the control group of a class if it exists.
pub fn lookup(
    class: &str,
    prefix: &Prefix,
    tree: &Tree,
    mount: &str,
) -> Result<Group, LookupError> {
    let group = prefix.group(class);
    match &group {
        Group::Root => Ok(group),
        Group::Named(directory) if is_qualified(class) && tree.groups.contains_key(directory) => {
            Ok(group)
        }
        Group::Named(directory) => Err(LookupError {
            class: class.to_owned(),
            path: clean(&format!("{mount}/{directory}")),
        }),
    }
}

/// Shortens an absolute path like Go's `filepath.Clean`.
pub(crate) fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}
