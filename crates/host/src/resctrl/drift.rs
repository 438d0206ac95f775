//! Compares the groups of resctrl with those that it should have: [`compare`] finds each [`Drift`],
//! and [`repair`] turns them into [`Step`]s.
//!
//! Both are pure. Every step is one change that the kernel makes as a whole, except
//! [`Step::Settle`], which can be repeated. The order of steps leaves a state, after any of them, from
//! which the same comparison leads to the same end:
//!
//! ```text
//!   schemata of existing groups ── create a group, then its schemata ── monitoring groups
//!                                                                           │
//!                                   remove unused groups ◀── settle tasks ◀─┘
//! ```
//!
//! A task enters a group only after the group has its schemata. Unused groups are removed first only
//! if their CLOSIDs are needed: if the kernel refuses a new class, the old ones are still there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use thiserror::Error;

use classes::schemata::Schemata;

use super::schemata::one_line;
use super::{ControlGroup, Desired, GroupName, MonitorName, Observed, Workload, holds};

/// The threads of cgroups by the path of the cgroup.
pub type Threads = BTreeMap<String, BTreeSet<u32>>;

/// A difference between the groups of resctrl and those that it should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drift {
    /// The control group of a class does not exist.
    MissingGroup { group: GroupName, schemata: Schemata },
    /// A control group has other schemata.
    OtherSchemata { group: ControlGroup, wanted: Schemata, found: Schemata },
    /// A control group of Berth belongs to no class; `tasks` still use it.
    StaleGroup { group: GroupName, tasks: BTreeSet<u32> },
    /// A monitoring group does not exist in its control group, but may exist in another.
    MissingMonitor { monitor: MonitorName, group: ControlGroup, elsewhere: Option<ControlGroup> },
    /// A monitoring group of Berth belongs to no workload of this control group.
    StaleMonitor { monitor: MonitorName, group: ControlGroup, tasks: BTreeSet<u32> },
    /// Tasks of a workload are outside its group; the value is the control group that has them.
    TasksOutside { workload: Workload, tasks: BTreeMap<u32, ControlGroup> },
}

impl fmt::Display for Drift {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Drift::MissingGroup { group, .. } => write!(to, "resctrl group {group} is missing"),
            Drift::OtherSchemata { group, wanted, found } => {
                let (found, wanted) = (one_line(found), one_line(wanted));
                write!(to, "resctrl group {group} has the schemata {found} instead of {wanted}")
            }
            Drift::StaleGroup { group, tasks } => {
                write!(
                    to,
                    "resctrl group {group} belongs to no class and has {} tasks",
                    tasks.len()
                )
            }
            Drift::MissingMonitor { monitor, group, elsewhere: None } => {
                write!(to, "monitoring group {monitor} is missing in resctrl group {group}")
            }
            Drift::MissingMonitor { monitor, group, elsewhere: Some(other) } => {
                write!(to, "monitoring group {monitor} is in resctrl group {other}, not in {group}")
            }
            Drift::StaleMonitor { monitor, group, tasks } => write!(
                to,
                "monitoring group {monitor} in resctrl group {group} belongs to no container and \
                 has {} tasks",
                tasks.len()
            ),
            Drift::TasksOutside { workload, tasks } => {
                let groups: BTreeSet<&ControlGroup> = tasks.values().collect();
                let groups: Vec<String> = groups.into_iter().map(ToString::to_string).collect();
                write!(
                    to,
                    "{} tasks of cgroup {} are in resctrl group {}, not in {}",
                    tasks.len(),
                    workload.cgroup,
                    groups.join(", "),
                    workload.group
                )?;
                match &workload.monitor {
                    Some(monitor) => write!(to, " with monitoring group {monitor}"),
                    None => Ok(()),
                }
            }
        }
    }
}

/// The machine has too few classes of service (CLOSIDs) for the wanted groups.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "cannot create resctrl groups {}: the machine has {limit} classes of service (CLOSIDs); the root \
     group uses 1, Berth {}, other programs {}{}",
    .wanted.join(", "), .own.len(), .foreign.len(), listed(.foreign)
)]
pub struct NoClosid {
    /// The groups that should be created.
    pub wanted: Vec<String>,
    pub limit: u64,
    pub own: Vec<String>,
    pub foreign: Vec<String>,
}

impl NoClosid {
    pub(super) fn new(wanted: Vec<String>, limit: u64, existing: &BTreeSet<GroupName>) -> NoClosid {
        let (own, foreign): (Vec<_>, Vec<_>) = existing.iter().partition(|group| group.is_own());
        let names = |groups: Vec<&GroupName>| groups.into_iter().map(ToString::to_string).collect();
        NoClosid { wanted, limit, own: names(own), foreign: names(foreign) }
    }
}

fn listed(groups: &[String]) -> String {
    if groups.is_empty() { String::new() } else { format!(" ({})", groups.join(", ")) }
}

/// A change of resctrl.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Remove a control group, if it has no tasks.
    RemoveGroup(GroupName),
    CreateGroup(GroupName),
    /// Write schemata and read them back.
    Configure(ControlGroup, Schemata),
    CreateMonitor(ControlGroup, MonitorName),
    /// Move a monitoring group with its tasks; a kernel that cannot do so gets a new group.
    MoveMonitor {
        monitor: MonitorName,
        from: ControlGroup,
        to: ControlGroup,
    },
    /// Move the tasks of a cgroup until none is outside.
    Settle(Workload),
    /// Remove a monitoring group, if it has no tasks.
    RemoveMonitor(ControlGroup, MonitorName),
}

/// Returns all differences between the observed and the desired groups.
#[must_use]
pub fn compare(observed: &Observed, desired: &Desired, threads: &Threads) -> Vec<Drift> {
    let mut drift = Vec::new();
    let wanted = desired.classes.iter().map(|(name, of)| (ControlGroup::Named(name.clone()), of));
    let root = desired.root.iter().map(|of| (ControlGroup::Root, of));
    for (group, wanted) in root.chain(wanted) {
        match (observed.groups.get(&group), &group) {
            (Some(state), _) if holds(&state.schemata, wanted, observed.bandwidth_step) => {}
            (None, ControlGroup::Named(name)) => {
                let (group, schemata) = (name.clone(), wanted.clone());
                drift.push(Drift::MissingGroup { group, schemata });
            }
            (state, _) => {
                let found = state.map(|state| state.schemata.clone()).unwrap_or_default();
                drift.push(Drift::OtherSchemata { group, wanted: wanted.clone(), found });
            }
        }
    }
    compare_monitors(observed, desired, &mut drift);
    for workload in &desired.workloads {
        let tasks = outside(observed, workload, threads.get(&workload.cgroup));
        if !tasks.is_empty() {
            drift.push(Drift::TasksOutside { workload: workload.clone(), tasks });
        }
    }
    for (group, state) in &observed.groups {
        if let ControlGroup::Named(name) = group
            && name.is_own()
            && !desired.classes.contains_key(name)
        {
            let (group, tasks) = (name.clone(), state.tasks.clone());
            drift.push(Drift::StaleGroup { group, tasks });
        }
    }
    drift
}

fn compare_monitors(observed: &Observed, desired: &Desired, drift: &mut Vec<Drift>) {
    let has = |group: &ControlGroup, monitor: &MonitorName| {
        observed.groups.get(group).is_some_and(|state| state.monitors.contains_key(monitor))
    };
    let is_own = |group: &ControlGroup| group.owned().is_ok();
    let mut wanted = BTreeMap::new();
    for workload in &desired.workloads {
        let Some(monitor) = &workload.monitor else { continue };
        // Several cgroups of a pod may share its monitoring group.
        let is_new = wanted.insert(monitor, &workload.group).is_none();
        if is_new && !has(&workload.group, monitor) {
            let mut groups = observed.groups.keys();
            let elsewhere = groups.find(|group| is_own(group) && has(group, monitor)).cloned();
            let (monitor, group) = (monitor.clone(), workload.group.clone());
            drift.push(Drift::MissingMonitor { monitor, group, elsewhere });
        }
    }
    for (group, state) in observed.groups.iter().filter(|(group, _)| is_own(group)) {
        for (monitor, tasks) in &state.monitors {
            let belongs = wanted.get(monitor).is_some_and(|wanted| *wanted == group);
            if !belongs {
                let (monitor, group, tasks) = (monitor.clone(), group.clone(), tasks.clone());
                drift.push(Drift::StaleMonitor { monitor, group, tasks });
            }
        }
    }
}

/// Returns the tasks of a workload that are outside its group, with the group that has them.
fn outside(
    observed: &Observed,
    workload: &Workload,
    threads: Option<&BTreeSet<u32>>,
) -> BTreeMap<u32, ControlGroup> {
    let state = observed.groups.get(&workload.group);
    let inside = match &workload.monitor {
        Some(monitor) => state.and_then(|state| state.monitors.get(monitor)),
        None => state.map(|state| &state.tasks),
    };
    let is_inside = |task: &u32| inside.is_some_and(|tasks| tasks.contains(task));
    // A task that is in no group at all has ended since the cgroup was listed.
    let holder = |task: &u32| {
        let mut groups = observed.groups.iter();
        let found = groups.find(|(_, state)| state.tasks.contains(task));
        found.map(|(group, _)| (*task, group.clone()))
    };
    let threads = threads.into_iter().flatten().filter(|task| !is_inside(task));
    threads.filter_map(holder).collect()
}

/// Returns the steps that remove all differences, or an error if the machine has too few classes of
/// service for the missing groups. A group that still has tasks is kept until they end.
pub fn repair(observed: &Observed, drift: &[Drift]) -> Result<Vec<Step>, NoClosid> {
    let must_make_room = needs_room(observed, drift)?;
    let removals: Vec<Step> = drift
        .iter()
        .filter_map(|difference| match difference {
            Drift::StaleGroup { group, .. } => Some(Step::RemoveGroup(group.clone())),
            _ => None,
        })
        .collect();
    let mut steps = Vec::new();
    if must_make_room {
        steps.extend(removals.iter().cloned());
    }
    for difference in drift {
        if let Drift::OtherSchemata { group, wanted, .. } = difference {
            steps.push(Step::Configure(group.clone(), wanted.clone()));
        }
    }
    for difference in drift {
        if let Drift::MissingGroup { group, schemata } = difference {
            let configure = Step::Configure(ControlGroup::Named(group.clone()), schemata.clone());
            steps.extend([Step::CreateGroup(group.clone()), configure]);
        }
    }
    for difference in drift {
        if let Drift::MissingMonitor { monitor, group, elsewhere } = difference {
            let (monitor, to) = (monitor.clone(), group.clone());
            steps.push(match elsewhere.clone() {
                Some(from) => Step::MoveMonitor { monitor, from, to },
                None => Step::CreateMonitor(to, monitor),
            });
        }
    }
    for difference in drift {
        if let Drift::TasksOutside { workload, .. } = difference {
            steps.push(Step::Settle(workload.clone()));
        }
    }
    for difference in drift {
        if let Drift::StaleMonitor { monitor, group, .. } = difference {
            steps.push(Step::RemoveMonitor(group.clone(), monitor.clone()));
        }
    }
    steps.extend(removals);
    Ok(steps)
}

/// Returns true if unused groups must be removed before the missing ones can be created, or an error
/// if even that is not enough.
fn needs_room(observed: &Observed, drift: &[Drift]) -> Result<bool, NoClosid> {
    let named = observed.groups.keys().filter_map(|group| match group {
        ControlGroup::Root => None,
        ControlGroup::Named(name) => Some(name.clone()),
    });
    let mut existing: BTreeSet<GroupName> = named.collect();
    let missing: Vec<String> = drift
        .iter()
        .filter_map(|difference| match difference {
            Drift::MissingGroup { group, .. } => Some(group.to_string()),
            _ => None,
        })
        .collect();
    let Some(limit) = observed.closids else { return Ok(false) };
    let fits = |existing: &BTreeSet<GroupName>| {
        (1 + existing.len() + missing.len()) as u64 <= limit || missing.is_empty()
    };
    if fits(&existing) {
        return Ok(false);
    }
    for difference in drift {
        if let Drift::StaleGroup { group, tasks } = difference
            && tasks.is_empty()
        {
            existing.remove(group);
        }
    }
    if fits(&existing) { Ok(true) } else { Err(NoClosid::new(missing, limit, &existing)) }
}
