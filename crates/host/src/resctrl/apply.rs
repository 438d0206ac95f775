//! Carries out [`Step`]s and repeats the comparison until nothing differs.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use super::drift::Threads;
use super::{ControlGroup, Desired, Drift, MonitorName, Resctrl, ResctrlError, Step, Workload};
use super::{compare, repair};
use crate::cgroups::Cgroups;

/// The result of [`Resctrl::apply`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The differences that were found first.
    pub found: Vec<Drift>,
    /// The differences that remain: groups without a class or container that still have tasks.
    pub left: Vec<Drift>,
    /// The monitoring groups that the machine has no RMID for, with the reason. Their workloads have
    /// their class.
    pub unmonitored: BTreeMap<MonitorName, String>,
}

/// The step that failed. The steps before it are in force, and the next call continues.
#[derive(Debug, Error)]
#[error("cannot apply classes to resctrl")]
pub struct ApplyError {
    /// `None` if resctrl could not be read or has too few CLOSIDs, and nothing was changed.
    pub step: Option<Step>,
    #[source]
    pub source: ResctrlError,
}

impl Resctrl {
    /// Returns the differences between resctrl and the desired groups, without changing anything.
    pub fn drift(&self, cgroups: &Cgroups, desired: &Desired) -> Result<Vec<Drift>, ResctrlError> {
        let threads = threads(cgroups, desired)?;
        Ok(compare(&self.groups()?, desired, &threads))
    }

    /// Makes resctrl have the desired groups with their tasks. After a failure or a crash, another
    /// call continues from any point.
    pub fn apply(&self, cgroups: &Cgroups, desired: &Desired) -> Result<Applied, ApplyError> {
        let unread = |source: ResctrlError| ApplyError { step: None, source };
        let threads = threads(cgroups, desired).map_err(unread)?;
        let observed = self.groups().map_err(unread)?;
        let found = compare(&observed, desired, &threads);
        let steps = repair(&observed, &found).map_err(|error| unread(error.into()))?;
        if steps.is_empty() {
            return Ok(Applied::default());
        }
        let mut unmonitored = BTreeMap::new();
        for mut step in steps {
            if let Step::Settle(Workload { monitor, .. }) = &mut step
                && monitor.as_ref().is_some_and(|name| unmonitored.contains_key(name))
            {
                *monitor = None;
            }
            match (self.take(cgroups, &step), &step) {
                (
                    Err(error @ ResctrlError::NoRmid { .. }),
                    Step::CreateMonitor(_, monitor) | Step::MoveMonitor { monitor, .. },
                ) => {
                    unmonitored.insert(monitor.clone(), error.to_string());
                }
                (Err(source), _) => return Err(ApplyError { step: Some(step), source }),
                (Ok(()), _) => {}
            }
        }
        let left = self.drift(cgroups, desired).map_err(unread)?;
        Ok(Applied { found, left, unmonitored })
    }

    /// Carries out one step. A step that was carried out before changes nothing.
    pub fn take(&self, cgroups: &Cgroups, step: &Step) -> Result<(), ResctrlError> {
        match step {
            Step::RemoveGroup(group) => self.remove(group).map(drop),
            Step::CreateGroup(group) => self.create(group),
            Step::Configure(group, schemata) => self.configure(group, schemata),
            Step::CreateMonitor(group, monitor) => self.create_monitor(group, monitor),
            Step::MoveMonitor { monitor, from, to } => self.move_monitor(monitor, from, to),
            Step::Settle(workload) => self.settle(cgroups, workload).map(drop),
            Step::RemoveMonitor(group, monitor) => self.remove_monitor(group, monitor).map(drop),
        }
    }

    /// Moves a monitoring group, or creates it in the other control group. In the second case its
    /// counters start again, and its tasks are moved one by one afterwards.
    fn move_monitor(
        &self,
        monitor: &MonitorName,
        from: &ControlGroup,
        to: &ControlGroup,
    ) -> Result<(), ResctrlError> {
        match self.rename_monitor(monitor, from, to) {
            Ok(true) => Ok(()),
            Ok(false) => self.create_monitor(to, monitor),
            Err(_) if self.monitor_directory(to, monitor).is_dir() => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Returns the threads of all workloads.
fn threads(cgroups: &Cgroups, desired: &Desired) -> Result<Threads, ResctrlError> {
    let paths: BTreeSet<&String> = desired.workloads.iter().map(|of| &of.cgroup).collect();
    let mut threads = Threads::new();
    for path in paths {
        threads.insert(path.clone(), cgroups.threads(path)?);
    }
    Ok(threads)
}
