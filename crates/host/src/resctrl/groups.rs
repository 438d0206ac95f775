//! Control groups and monitoring groups as directories: lists, creates, configures and removes them.
//!
//! Main types: [`GroupName`], [`ControlGroup`], [`MonitorName`] and [`Observed`], the state of all
//! groups. Tasks are moved elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use classes::schemata::Schemata;

use super::{NoClosid, Resctrl, ResctrlError, failed, holds, is_gone};

/// The beginning of the names of Berth's groups.
pub const PREFIX: &str = "berth.";

/// The directories in a control group that are not control groups.
const RESERVED: [&str; 3] = ["info", "mon_data", "mon_groups"];
const MONITORS: &str = "mon_groups";
const TASKS: &str = "tasks";

/// The name of a directory in resctrl.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupName(String);

impl GroupName {
    /// Returns the name of the control group of a class.
    pub fn of_class(class: &str) -> Result<GroupName, ResctrlError> {
        Ok(GroupName(checked(class)?))
    }

    /// Returns the name of a directory, which must begin with [`PREFIX`].
    pub fn own(directory: &str) -> Result<GroupName, ResctrlError> {
        let class = directory.strip_prefix(PREFIX);
        GroupName::of_class(class.ok_or_else(|| ResctrlError::Foreign(directory.to_owned()))?)
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if the group is Berth's.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.0.starts_with(PREFIX)
    }
}

impl fmt::Display for GroupName {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.0)
    }
}

/// Returns a name with the prefix, if the kernel accepts it as the name of a directory.
fn checked(name: &str) -> Result<String, ResctrlError> {
    const LONGEST: usize = 255;
    let error = |reason| Err(ResctrlError::Name(name.chars().take(80).collect(), reason));
    if name.is_empty() {
        return error("it is empty");
    }
    if name.contains(['/', '\n', '\0']) {
        return error("it contains a slash, a newline or a zero byte");
    }
    if PREFIX.len() + name.len() > LONGEST {
        return error("it is longer than 249 bytes");
    }
    Ok(format!("{PREFIX}{name}"))
}

/// A control group: a class of service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ControlGroup {
    /// The group of all tasks that are in no other.
    Root,
    Named(GroupName),
}

impl ControlGroup {
    /// Returns the control group of a class; `system/default` and the empty name are the root group.
    pub fn of_class(class: &str) -> Result<ControlGroup, ResctrlError> {
        match class {
            "" | "system/default" => Ok(ControlGroup::Root),
            class => GroupName::of_class(class).map(ControlGroup::Named),
        }
    }

    /// Returns the class identifier for OCI runtimes, `linux.intelRdt.closID`.
    #[must_use]
    pub fn clos_id(&self) -> &str {
        match self {
            ControlGroup::Root => "/",
            ControlGroup::Named(name) => name.as_str(),
        }
    }

    /// Returns an error if the group belongs to another program.
    pub(super) fn owned(&self) -> Result<(), ResctrlError> {
        match self {
            ControlGroup::Named(name) if !name.is_own() => {
                Err(ResctrlError::Foreign(name.0.clone()))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for ControlGroup {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.clos_id())
    }
}

/// The name of a monitoring group of a pod or of one of its containers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MonitorName(GroupName);

impl MonitorName {
    /// Returns the monitoring group of the tasks of a pod that belong to no monitored container.
    pub fn of_pod(uid: &str) -> Result<MonitorName, ResctrlError> {
        if uid.contains('.') {
            let reason = "the UID of a pod contains no dot";
            return Err(ResctrlError::Name(uid.chars().take(80).collect(), reason));
        }
        Ok(MonitorName(GroupName(checked(uid)?)))
    }

    /// Returns the monitoring group of a container.
    pub fn of_container(uid: &str, container: &str) -> Result<MonitorName, ResctrlError> {
        MonitorName::of_pod(uid)?;
        Ok(MonitorName(GroupName(checked(&format!("{uid}.{container}"))?)))
    }

    /// Returns the UID of the pod.
    #[must_use]
    pub fn pod(&self) -> &str {
        let name = self.0.0.strip_prefix(PREFIX).unwrap_or_default();
        name.split_once('.').map_or(name, |(uid, _)| uid)
    }

    /// Returns the name of the container; `None` for the group of a pod.
    #[must_use]
    pub fn container(&self) -> Option<&str> {
        let name = self.0.0.strip_prefix(PREFIX)?;
        name.split_once('.').map(|(_, container)| container)
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0.0
    }

    /// Returns the name of a directory, if it is Berth's.
    fn read(name: &str) -> Option<MonitorName> {
        let rest = name.strip_prefix(PREFIX)?;
        (!rest.is_empty()).then(|| MonitorName(GroupName(name.to_owned())))
    }
}

impl fmt::Display for MonitorName {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(to)
    }
}

/// The state of a control group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    pub schemata: Schemata,
    /// The threads of the group, with those of its monitoring groups.
    pub tasks: BTreeSet<u32>,
    /// Berth's monitoring groups and their threads.
    pub monitors: BTreeMap<MonitorName, BTreeSet<u32>>,
}

/// The state of all control groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    pub groups: BTreeMap<ControlGroup, Group>,
    /// The number of control groups that can exist, including the root group; `None` if the
    /// machine has no control.
    pub closids: Option<u64>,
    /// Bandwidth is rounded up to multiples of this.
    pub bandwidth_step: u64,
}

impl Resctrl {
    /// Returns the state of all control groups. Groups that are removed meanwhile are skipped.
    pub fn groups(&self) -> Result<Observed, ResctrlError> {
        let mut groups = BTreeMap::new();
        groups.insert(ControlGroup::Root, self.group(&ControlGroup::Root)?.unwrap_or_default());
        for name in self.control_groups()? {
            let group = ControlGroup::Named(name);
            if let Some(state) = self.group(&group)? {
                groups.insert(group, state);
            }
        }
        let (closids, bandwidth_step) = (self.closids()?, self.bandwidth_step()?);
        Ok(Observed { groups, closids, bandwidth_step })
    }

    /// Returns the names of all control groups except the root group.
    pub fn control_groups(&self) -> Result<BTreeSet<GroupName>, ResctrlError> {
        let names = directories(&self.root)?.into_iter();
        Ok(names.filter(|name| !RESERVED.contains(&name.as_str())).map(GroupName).collect())
    }

    /// Returns the state of a control group; `None` if it does not exist.
    fn group(&self, group: &ControlGroup) -> Result<Option<Group>, ResctrlError> {
        let directory = self.directory(group);
        let schemata = match self.schemata(group) {
            // A machine with monitoring alone has no schemata.
            Err(ResctrlError::Io { source, .. }) if is_gone(&source) => {
                if !directory.is_dir() {
                    return Ok(None);
                }
                Schemata::default()
            }
            schemata => schemata?,
        };
        let tasks = tasks_of(&directory)?;
        let mut monitors = BTreeMap::new();
        for name in directories(&directory.join(MONITORS))? {
            if let Some(monitor) = MonitorName::read(&name) {
                let tasks = tasks_of(&self.monitor_directory(group, &monitor))?;
                monitors.insert(monitor, tasks);
            }
        }
        Ok(Some(Group { schemata, tasks, monitors }))
    }

    /// Returns the schemata of a control group.
    pub fn schemata(&self, group: &ControlGroup) -> Result<Schemata, ResctrlError> {
        let path = self.directory(group).join("schemata");
        let text = fs::read_to_string(&path).map_err(failed("read", &path))?;
        Schemata::parse(&text).map_err(|source| ResctrlError::Schemata { path, source })
    }

    /// Creates a control group. One that exists is left unchanged.
    pub fn create(&self, name: &GroupName) -> Result<(), ResctrlError> {
        let group = ControlGroup::Named(name.clone());
        group.owned()?;
        self.make(&self.directory(&group), name.as_str())
    }

    /// Writes the schemata of a control group and reads them back.
    pub fn configure(&self, group: &ControlGroup, wanted: &Schemata) -> Result<(), ResctrlError> {
        group.owned()?;
        if wanted.is_empty() {
            return Ok(());
        }
        let path = self.directory(group).join("schemata");
        write(&path, &wanted.to_string())
            .map_err(|error| self.refused("write the schemata of", &path)(error))?;
        let found = self.schemata(group)?;
        if holds(&found, wanted, self.bandwidth_step()?) {
            return Ok(());
        }
        Err(ResctrlError::NotInForce { group: group.clone(), wanted: wanted.clone(), found })
    }

    /// Removes a control group without tasks, and returns true if it does not exist any more. The
    /// kernel would move tasks to the root group, so a group with tasks is kept.
    pub fn remove(&self, name: &GroupName) -> Result<bool, ResctrlError> {
        let group = ControlGroup::Named(name.clone());
        group.owned()?;
        self.remove_empty(&self.directory(&group))
    }

    /// Creates a monitoring group. One that exists is left unchanged.
    pub fn create_monitor(
        &self,
        group: &ControlGroup,
        monitor: &MonitorName,
    ) -> Result<(), ResctrlError> {
        group.owned()?;
        self.make(&self.monitor_directory(group, monitor), monitor.as_str())
    }

    /// Removes a monitoring group without tasks, and returns true if it does not exist any more.
    pub fn remove_monitor(
        &self,
        group: &ControlGroup,
        monitor: &MonitorName,
    ) -> Result<bool, ResctrlError> {
        group.owned()?;
        self.remove_empty(&self.monitor_directory(group, monitor))
    }

    /// Moves a monitoring group with all its tasks to another control group, in one step. Returns
    /// false if the kernel cannot do so: versions before 6.5, and groups that monitor CPUs.
    pub fn rename_monitor(
        &self,
        monitor: &MonitorName,
        from: &ControlGroup,
        to: &ControlGroup,
    ) -> Result<bool, ResctrlError> {
        from.owned()?;
        to.owned()?;
        let (from, to) =
            (self.monitor_directory(from, monitor), self.monitor_directory(to, monitor));
        match fs::rename(&from, &to) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(false),
            Err(error) => Err(self.refused("move to another group", &from)(error)),
        }
    }

    pub(super) fn directory(&self, group: &ControlGroup) -> PathBuf {
        match group {
            ControlGroup::Root => self.root.clone(),
            ControlGroup::Named(name) => self.root.join(name.as_str()),
        }
    }

    pub(super) fn monitor_directory(&self, group: &ControlGroup, monitor: &MonitorName) -> PathBuf {
        self.directory(group).join(MONITORS).join(monitor.as_str())
    }

    fn make(&self, directory: &Path, name: &str) -> Result<(), ResctrlError> {
        match fs::create_dir(directory) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(self.not_made(directory, name, error)),
            Ok(()) => Ok(()),
        }
    }

    /// Returns the reason why a group could not be created.
    pub(super) fn not_made(&self, directory: &Path, name: &str, error: io::Error) -> ResctrlError {
        // Creating a directory appends to the status without clearing it.
        let status = self.status();
        let last = status.as_deref().and_then(|status| status.rsplit("; ").next());
        let is_full = error.kind() == ErrorKind::StorageFull;
        let exhausted = match last {
            Some("Out of CLOSIDs") if is_full => self.no_closid(name),
            Some("Out of RMIDs") => self.no_rmid(name, !is_full),
            _ => None,
        };
        exhausted.unwrap_or_else(|| {
            let status = last.map(str::to_owned);
            let path = directory.to_owned();
            ResctrlError::Io { step: "create resctrl group", path, status, source: error }
        })
    }

    fn no_closid(&self, name: &str) -> Option<ResctrlError> {
        let limit = self.closids().ok()??;
        let existing = self.control_groups().ok()?;
        Some(NoClosid::new([name.to_owned()].into(), limit, &existing).into())
    }

    fn no_rmid(&self, name: &str, in_limbo: bool) -> Option<ResctrlError> {
        let limit = self.rmids().ok()??;
        let mut used = 1 + directories(&self.root.join(MONITORS)).ok()?.len();
        for group in self.control_groups().ok()? {
            used += 1 + directories(&self.root.join(group.as_str()).join(MONITORS)).ok()?.len();
        }
        Some(ResctrlError::NoRmid { group: name.to_owned(), limit, used, in_limbo })
    }

    fn remove_empty(&self, directory: &Path) -> Result<bool, ResctrlError> {
        if !tasks_of(directory)?.is_empty() {
            return Ok(false);
        }
        match fs::remove_dir(directory) {
            Err(error) if !is_gone(&error) => {
                Err(self.refused("remove resctrl group", directory)(error))
            }
            _ => Ok(true),
        }
    }
}

/// Replaces the content of an existing file of the kernel.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).truncate(true).open(path)?;
    io::Write::write_all(&mut file, text.as_bytes())
}

/// Adds a task to a group. Appending adds it in a plain directory too.
pub(super) fn add_task(directory: &Path, task: u32) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().append(true).open(directory.join(TASKS))?;
    io::Write::write_all(&mut file, format!("{task}\n").as_bytes())
}

/// Returns the names of the subdirectories; none if the directory is missing.
pub(super) fn directories(path: &Path) -> Result<Vec<String>, ResctrlError> {
    let entries = match fs::read_dir(path) {
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        entries => entries.map_err(failed("list", path))?,
    };
    let entries = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|of| of.is_dir()));
    Ok(entries.filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

/// Returns the threads of a group; none if it does not exist.
pub(super) fn tasks_of(directory: &Path) -> Result<BTreeSet<u32>, ResctrlError> {
    let path = directory.join(TASKS);
    let text = match fs::read_to_string(&path) {
        Err(error) if is_gone(&error) => return Ok(BTreeSet::new()),
        text => text.map_err(failed("read", &path))?,
    };
    let mut tasks = BTreeSet::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let task = line.parse().map_err(|_| {
            let (path, text) = (path.clone(), line.to_owned());
            ResctrlError::Text { path, text, expected: "a task" }
        })?;
        // A task outside this PID namespace has the number 0.
        if task != 0 {
            tasks.insert(task);
        }
    }
    Ok(tasks)
}
