//! Results of earlier checks: [`ReconcileHistory`]. It shows contention over a container and prevents repeated events.
//! Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::SystemTime;

use lifecycle::observed::RuntimeId;

/// Number of repairs of one container, and the number of checks in which they count as contention.
const OFTEN: usize = 3;
const WITHIN: u64 = 5;

/// A container had to be repaired again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contention {
    pub times: usize,
    pub checks: u64,
}

/// Results of earlier checks.
#[derive(Debug, Default)]
pub struct ReconcileHistory {
    checks: u64,
    containers: BTreeMap<RuntimeId, RepairHistory>,
    /// Modification times of the kubelet's state files at the first check.
    pub(super) files: Option<BTreeMap<PathBuf, Option<SystemTime>>>,
    /// The event that nothing can be checked was recorded.
    pub(super) reported_blind: bool,
}

#[derive(Debug, Default)]
struct RepairHistory {
    pid: Option<u32>,
    was_right: bool,
    /// The checks that repaired the container.
    repairs: Vec<u64>,
    /// The last recorded problem that could not be repaired.
    reported: Option<String>,
}

impl ReconcileHistory {
    /// Starts a check. Containers that no longer exist are forgotten.
    pub fn begin<'a>(&mut self, there: impl IntoIterator<Item = &'a RuntimeId>) {
        self.checks += 1;
        let there: BTreeSet<&RuntimeId> = there.into_iter().collect();
        self.containers.retain(|id, _| there.contains(id));
    }

    fn past(&mut self, id: &RuntimeId) -> &mut RepairHistory {
        self.containers.entry(id.clone()).or_default()
    }

    /// Returns the PID of the container's first process, if known.
    #[must_use]
    pub fn pid(&self, id: &RuntimeId) -> Option<u32> {
        self.containers.get(id)?.pid
    }

    pub fn set_pid(&mut self, id: &RuntimeId, pid: Option<u32>) {
        self.past(id).pid = pid;
    }

    /// Records that the container matched its allocation.
    pub fn right(&mut self, id: &RuntimeId) {
        let record = self.past(id);
        (record.was_right, record.reported) = (true, None);
    }

    /// Returns true if the container ever matched its allocation.
    #[must_use]
    pub fn was_right(&self, id: &RuntimeId) -> bool {
        self.containers.get(id).is_some_and(|record| record.was_right)
    }

    /// Records a repair. Returns the contention if repairs are too frequent.
    pub fn repaired(&mut self, id: &RuntimeId) -> Option<Contention> {
        let now = self.checks;
        let record = self.past(id);
        (record.was_right, record.reported) = (true, None);
        record.repairs.retain(|check| check + WITHIN > now);
        record.repairs.push(now);
        let times = record.repairs.len();
        (times >= OFTEN).then_some(Contention { times, checks: WITHIN })
    }

    /// Records a problem that cannot be repaired. Returns true if it is new.
    pub fn stays(&mut self, id: &RuntimeId, what: &str) -> bool {
        let record = self.past(id);
        let is_new = record.reported.as_deref() != Some(what);
        record.reported = Some(what.to_owned());
        is_new
    }
}
