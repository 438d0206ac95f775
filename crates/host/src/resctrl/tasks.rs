//! Moves the tasks of a cgroup into a group of resctrl.
//!
//! A child inherits the group of its parent when it is forked, and only single threads can be moved.
//! So the threads of the cgroup are listed and moved until none is outside:
//!
//! ```text
//!   list threads of the cgroup ── outside the group? ── none, twice in a row ──▶ settled
//!        ▲                              │ some
//!        └────── write each one ────────┘
//! ```
//!
//! The second list without a finding covers a fork that was under way during the first: such a child
//! has its parent's old group but is not in the cgroup yet. Tasks are not frozen meanwhile, because
//! they would stay frozen if this process were killed.

use std::collections::BTreeSet;

use super::groups::{add_task, tasks_of};
use super::{Resctrl, ResctrlError, Workload};
use crate::cgroups::Cgroups;

/// The largest number of lists of a cgroup that forks all the time.
const PASSES: u32 = 200;

/// The number of successive lists without a finding.
const CLEAN_PASSES: u32 = 2;

/// `ESRCH`: the task has ended.
const NO_TASK: i32 = 3;

impl Resctrl {
    /// Moves all tasks of a workload's cgroup into its group, and returns the number of moves.
    pub fn settle(&self, cgroups: &Cgroups, workload: &Workload) -> Result<usize, ResctrlError> {
        workload.group.owned()?;
        let (mut moves, mut clean, mut left) = (0, 0, 0);
        for _ in 0..PASSES {
            left = 0;
            for task in self.outside(cgroups, workload)? {
                // A task that has ended since it was listed was not outside.
                left += usize::from(self.move_task(workload, task)?);
            }
            moves += left;
            clean = if left == 0 { clean + 1 } else { 0 };
            if clean == CLEAN_PASSES {
                return Ok(moves);
            }
        }
        let (cgroup, group) = (workload.cgroup.clone(), workload.group.clone());
        Err(ResctrlError::Unsettled { cgroup, group, left, passes: PASSES })
    }

    /// Returns the tasks of a workload's cgroup that are outside its group.
    fn outside(
        &self,
        cgroups: &Cgroups,
        workload: &Workload,
    ) -> Result<BTreeSet<u32>, ResctrlError> {
        // In this order: a task that is forked after the first list has the group of its parent.
        let threads = cgroups.threads(&workload.cgroup)?;
        if threads.is_empty() {
            return Ok(threads);
        }
        let directory = match &workload.monitor {
            Some(monitor) => self.monitor_directory(&workload.group, monitor),
            None => self.directory(&workload.group),
        };
        let inside = tasks_of(&directory)?;
        Ok(&threads - &inside)
    }

    /// Moves a task, and returns false if it has ended. A monitoring group accepts tasks of its own
    /// control group only, so a task enters the control group first.
    fn move_task(&self, workload: &Workload, task: u32) -> Result<bool, ResctrlError> {
        let control = self.directory(&workload.group);
        let monitor = workload.monitor.as_ref();
        let monitor = monitor.map(|name| self.monitor_directory(&workload.group, name));
        for directory in [Some(control), monitor].into_iter().flatten() {
            match add_task(&directory, task) {
                Err(error) if error.raw_os_error() == Some(NO_TASK) => return Ok(false),
                done => done.map_err(|error| self.refused("move a task to", &directory)(error))?,
            }
        }
        Ok(true)
    }
}
