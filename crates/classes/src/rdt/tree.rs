//! A model of the control groups and monitoring groups of a resctrl file system.
//!
//! Main type: [`Tree`]. `host` reads a real file system into it, plans are made against it, and it
//! carries plans out on itself to show their result. Schemata are not part of it.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use super::names::{Group, Prefix, clean};
use super::plan::Plan;
use crate::go_text::quoted;

/// A task (thread) in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u32);

/// All groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    pub root: ControlGroup,
    /// By directory name.
    pub groups: BTreeMap<String, ControlGroup>,
}

/// One control group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControlGroup {
    pub tasks: BTreeSet<TaskId>,
    /// The tasks of its monitoring groups, by directory name.
    pub mon_groups: BTreeMap<String, BTreeSet<TaskId>>,
}

/// The reason why an operation on a monitoring group fails.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MonGroupError {
    #[error("failed to create new monitoring group {}: mkdir {path}: no such file or directory", quoted(.name))]
    Path { name: String, path: String },
    #[error("resctrl group not found for monitoring group {} ({})", quoted(.name), quoted(.path))]
    NotFound { name: String, path: String },
}

impl Tree {
    #[must_use]
    pub fn group(&self, group: &Group) -> Option<&ControlGroup> {
        match group {
            Group::Root => Some(&self.root),
            Group::Named(directory) => self.groups.get(directory),
        }
    }

    /// Returns a group for changes. Moving a task needs [`Tree::add_task`].
    pub fn group_mut(&mut self, group: &Group) -> Option<&mut ControlGroup> {
        match group {
            Group::Root => Some(&mut self.root),
            Group::Named(directory) => self.groups.get_mut(directory),
        }
    }

    /// Returns the classes whose groups exist, the root class included, in order of their names.
    #[must_use]
    pub fn classes(&self, prefix: &Prefix) -> BTreeSet<String> {
        let ours = self.groups.keys().filter_map(|directory| prefix.class(directory));
        ours.chain([super::names::ROOT_CLASS]).map(str::to_owned).collect()
    }

    /// Moves a task to a group, out of any other.
    pub fn add_task(&mut self, group: &Group, task: TaskId) {
        for other in self.groups.values_mut().chain([&mut self.root]) {
            other.tasks.remove(&task);
            other.mon_groups.values_mut().for_each(|tasks| {
                tasks.remove(&task);
            });
        }
        if let Some(group) = self.group_mut(group) {
            group.tasks.insert(task);
        }
    }

    /// Removes a control group. Its tasks and those of its monitoring groups move to the root group.
    pub fn remove(&mut self, directory: &str) {
        if let Some(group) = self.groups.remove(directory) {
            let tasks = group.mon_groups.into_values().flatten().chain(group.tasks);
            self.root.tasks.extend(tasks);
        }
    }

    /// Carries out a plan.
    pub fn apply(&mut self, plan: &Plan) {
        for directory in &plan.remove {
            self.remove(directory);
        }
        for directory in &plan.create {
            self.groups.entry(directory.clone()).or_default();
        }
        for (group, mon_group) in &plan.prune {
            if let Some(group) = self.group_mut(group) {
                group.mon_groups.remove(mon_group);
            }
        }
    }
}

impl ControlGroup {
    /// Creates a monitoring group, if it does not exist.
    pub fn create_mon_group(
        &mut self,
        name: &str,
        prefix: &Prefix,
        path: &str,
    ) -> Result<(), MonGroupError> {
        let directory = format!("{}{name}", prefix.0);
        if name.contains('/') {
            let (name, path) = (name.to_owned(), clean(&format!("{path}/mon_groups/{directory}")));
            return Err(MonGroupError::Path { name, path });
        }
        self.mon_groups.entry(directory).or_default();
        Ok(())
    }

    /// Removes a monitoring group.
    pub fn delete_mon_group(
        &mut self,
        name: &str,
        prefix: &Prefix,
        path: &str,
    ) -> Result<(), MonGroupError> {
        let directory = format!("{}{name}", prefix.0);
        match self.mon_groups.remove(&directory) {
            Some(_) => Ok(()),
            None => {
                let path = clean(&format!("{path}/mon_groups/{directory}"));
                Err(MonGroupError::NotFound { name: name.to_owned(), path })
            }
        }
    }

    /// Removes all monitoring groups of ours.
    pub fn delete_mon_groups(&mut self, prefix: &Prefix) {
        self.mon_groups.retain(|directory, _| !directory.starts_with(&prefix.0));
    }

    /// Returns the names of the monitoring groups of ours.
    #[must_use]
    pub fn mon_groups(&self, prefix: &Prefix) -> Vec<&str> {
        self.mon_groups.keys().filter_map(|directory| directory.strip_prefix(&prefix.0)).collect()
    }
}
