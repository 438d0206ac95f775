//! Scheduling and resource limits of running processes: [`Scheduling`] and [`Rlimits`], set for all
//! processes of a cgroup and read back.
//!
//! Children inherit both, so the processes are listed and changed until none differs. The system
//! calls are in [`crate::os::tuning`]; the text of `/proc/PID/limits` is read here. Which class has
//! which values is decided elsewhere.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::cgroups::{Bound, CgroupError, Cgroups};
use crate::os::tuning as system;

mod rlimits;

pub use rlimits::{Rlimit, RlimitKind, Rlimits, RlimitsTextError};

/// The largest number of lists of a cgroup that forks all the time.
const PASSES: u32 = 200;

/// `ESRCH`: the process has ended.
const NO_PROCESS: i32 = 3;

/// The niceness of a thread, from -20 (most CPU time) to 19.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nice(i8);

impl Nice {
    /// Returns `None` outside the range of the kernel.
    #[must_use]
    pub fn new(value: i32) -> Option<Nice> {
        i8::try_from(value).ok().filter(|value| (-20..=19).contains(value)).map(Nice)
    }

    #[must_use]
    pub fn get(self) -> i32 {
        self.0.into()
    }
}

/// A priority of real-time threads, from 1 to 99 (first).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RealtimePriority(u8);

impl RealtimePriority {
    /// Returns `None` outside the range of the kernel.
    #[must_use]
    pub fn new(value: u32) -> Option<RealtimePriority> {
        u8::try_from(value).ok().filter(|value| (1..=99).contains(value)).map(RealtimePriority)
    }

    #[must_use]
    pub fn get(self) -> u8 {
        self.0
    }
}

/// The scheduling policy of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// `SCHED_OTHER`, the default.
    Other,
    Batch,
    Idle,
    Fifo(RealtimePriority),
    RoundRobin(RealtimePriority),
}

/// A level within a class of I/O priorities, from 0 (first) to 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IoLevel(u8);

impl IoLevel {
    /// Returns `None` outside the range of the kernel.
    #[must_use]
    pub fn new(value: u32) -> Option<IoLevel> {
        u8::try_from(value).ok().filter(|value| *value <= 7).map(IoLevel)
    }

    #[must_use]
    pub fn get(self) -> u8 {
        self.0
    }
}

/// The I/O priority of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoPriority {
    /// Follows the niceness.
    None,
    Realtime(IoLevel),
    BestEffort(IoLevel),
    Idle,
}

/// The scheduling of a class. `None` is left unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scheduling {
    pub policy: Option<Policy>,
    pub nice: Option<Nice>,
    pub io_priority: Option<IoPriority>,
}

/// A property of a process that can be refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Property {
    Policy(Policy),
    Nice(Nice),
    IoPriority(IoPriority),
    Rlimit(RlimitKind, Rlimit),
}

impl fmt::Display for Property {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Property::Policy(policy) => write!(to, "scheduling policy {policy}"),
            Property::Nice(nice) => write!(to, "niceness {}", nice.get()),
            Property::IoPriority(priority) => write!(to, "I/O priority {priority}"),
            Property::Rlimit(kind, limit) => write!(to, "{kind} {limit}"),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Policy::Other => to.write_str("SCHED_OTHER"),
            Policy::Batch => to.write_str("SCHED_BATCH"),
            Policy::Idle => to.write_str("SCHED_IDLE"),
            Policy::Fifo(priority) => write!(to, "SCHED_FIFO with priority {}", priority.0),
            Policy::RoundRobin(priority) => write!(to, "SCHED_RR with priority {}", priority.0),
        }
    }
}

impl fmt::Display for IoPriority {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IoPriority::None => to.write_str("IOPRIO_CLASS_NONE"),
            IoPriority::Realtime(level) => write!(to, "IOPRIO_CLASS_RT level {}", level.0),
            IoPriority::BestEffort(level) => write!(to, "IOPRIO_CLASS_BE level {}", level.0),
            IoPriority::Idle => to.write_str("IOPRIO_CLASS_IDLE"),
        }
    }
}

/// The reason why a property is not in force.
#[derive(Debug, Error)]
pub enum TuningError {
    #[error("cannot set {property} of process {pid}: {source}{}", advice(.source))]
    Refused { property: Property, pid: u32, source: io::Error },
    #[error("process {pid} does not have {wanted} after it was set")]
    NotInForce { wanted: Property, pid: u32 },
    #[error("cannot read {what} of process {pid}")]
    Unread { what: &'static str, pid: u32, source: io::Error },
    #[error(transparent)]
    Text(#[from] RlimitsTextError),
    #[error(
        "{left} processes of cgroup {cgroup} still differ after {passes} passes: new ones appear \
         faster than they are changed"
    )]
    Unsettled { cgroup: String, left: usize, passes: u32 },
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
}

/// Returns the capability that a refusal may be due to.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "; it needs CAP_SYS_NICE for scheduling or CAP_SYS_RESOURCE for a higher hard limit"
        }
        _ => "",
    }
}

/// Changes the processes of cgroups. All methods block.
#[derive(Clone, Debug)]
pub struct Tuning {
    cgroups: Cgroups,
    /// `/proc`, for the resource limits of processes.
    proc: PathBuf,
}

impl Tuning {
    #[must_use]
    pub fn new(cgroups: Cgroups, proc: impl Into<PathBuf>) -> Tuning {
        Tuning { cgroups, proc: proc.into() }
    }

    /// Gives all threads of a cgroup a scheduling.
    pub fn schedule(&self, cgroup: &str, wanted: &Scheduling) -> Result<(), TuningError> {
        let properties = [
            wanted.policy.map(Property::Policy),
            wanted.nice.map(Property::Nice),
            wanted.io_priority.map(Property::IoPriority),
        ];
        let properties: Vec<Property> = properties.into_iter().flatten().collect();
        self.settle(cgroup, &properties, |cgroup| self.cgroups.threads(cgroup))
    }

    /// Gives all processes of a cgroup resource limits.
    pub fn limit(&self, cgroup: &str, wanted: &Rlimits) -> Result<(), TuningError> {
        let properties: Vec<Property> =
            wanted.iter().map(|(kind, limit)| Property::Rlimit(*kind, *limit)).collect();
        self.settle(cgroup, &properties, |cgroup| self.cgroups.processes(cgroup))
    }

    /// Sets properties of the listed tasks until all have them.
    fn settle(
        &self,
        cgroup: &str,
        properties: &[Property],
        list: impl Fn(&str) -> Result<BTreeSet<u32>, CgroupError>,
    ) -> Result<(), TuningError> {
        let mut left = 0;
        for _ in 0..PASSES {
            left = 0;
            for pid in list(cgroup)? {
                let mut differs = false;
                for property in properties {
                    match self.ensure(pid, property) {
                        Err(error) if has_ended(&error) => break,
                        changed => differs |= changed?,
                    }
                }
                left += usize::from(differs);
            }
            if left == 0 {
                return Ok(());
            }
        }
        Err(TuningError::Unsettled { cgroup: cgroup.to_owned(), left, passes: PASSES })
    }

    /// Sets a property unless the process has it, reads it back, and returns true if it was set.
    fn ensure(&self, pid: u32, property: &Property) -> Result<bool, TuningError> {
        if self.has(pid, property)? {
            return Ok(false);
        }
        let done = match property {
            Property::Policy(policy) => system::set_policy(pid, *policy),
            Property::Nice(nice) => system::set_nice(pid, *nice),
            Property::IoPriority(priority) => system::set_io_priority(pid, *priority),
            Property::Rlimit(kind, limit) => system::set_rlimit(pid, *kind, *limit),
        };
        let property = property.clone();
        if let Err(source) = done {
            return Err(TuningError::Refused { property, pid, source });
        }
        if self.has(pid, &property)? {
            return Ok(true);
        }
        Err(TuningError::NotInForce { wanted: property, pid })
    }

    fn has(&self, pid: u32, property: &Property) -> Result<bool, TuningError> {
        let unread = |what| move |source| TuningError::Unread { what, pid, source };
        Ok(match property {
            Property::Policy(wanted) => {
                system::policy(pid).map_err(unread("the scheduling policy"))? == Some(*wanted)
            }
            Property::Nice(wanted) => {
                system::nice(pid).map_err(unread("the niceness"))? == wanted.get()
            }
            Property::IoPriority(wanted) => {
                system::io_priority(pid).map_err(unread("the I/O priority"))? == Some(*wanted)
            }
            Property::Rlimit(kind, wanted) => {
                self.rlimits(pid)?.get(kind).is_some_and(|limit| limit == wanted)
            }
        })
    }

    /// Returns the resource limits of a process.
    pub fn rlimits(&self, pid: u32) -> Result<Rlimits, TuningError> {
        let file = Path::new(&self.proc).join(pid.to_string()).join("limits");
        let text = std::fs::read_to_string(file).map_err(|source| TuningError::Unread {
            what: "the resource limits",
            pid,
            source,
        })?;
        Ok(rlimits::parse(&text)?)
    }
}

/// Returns true for an error of a process that has ended meanwhile.
fn has_ended(error: &TuningError) -> bool {
    match error {
        TuningError::Refused { source, .. } | TuningError::Unread { source, .. } => {
            source.raw_os_error() == Some(NO_PROCESS) || source.kind() == io::ErrorKind::NotFound
        }
        _ => false,
    }
}

/// The numbers of policies and I/O priorities in system calls.
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux has the calls"))]
pub(crate) mod numbers {
    use super::{IoLevel, IoPriority, Policy, RealtimePriority};

    /// Set with a policy if children start with the default policy.
    const RESET_ON_FORK: i32 = 0x4000_0000;

    /// Returns the number of a policy and its priority.
    #[must_use]
    pub(crate) fn of_policy(policy: Policy) -> (i32, i32) {
        match policy {
            Policy::Other => (0, 0),
            Policy::Fifo(priority) => (1, priority.get().into()),
            Policy::RoundRobin(priority) => (2, priority.get().into()),
            Policy::Batch => (3, 0),
            Policy::Idle => (5, 0),
        }
    }

    /// Returns the policy of a number and a priority; `None` for others, such as deadlines.
    #[must_use]
    pub(crate) fn policy(number: i32, priority: i32) -> Option<Policy> {
        let realtime = || RealtimePriority::new(u32::try_from(priority).ok()?);
        match number & !RESET_ON_FORK {
            0 => Some(Policy::Other),
            1 => realtime().map(Policy::Fifo),
            2 => realtime().map(Policy::RoundRobin),
            3 => Some(Policy::Batch),
            5 => Some(Policy::Idle),
            _ => None,
        }
    }

    /// An I/O priority has its class in the bits from this one on, and its level below.
    const CLASS_SHIFT: u32 = 13;

    #[must_use]
    pub(crate) fn of_io_priority(priority: IoPriority) -> u32 {
        let (class, level) = match priority {
            IoPriority::None => (0, 0),
            IoPriority::Realtime(level) => (1, level.get()),
            IoPriority::BestEffort(level) => (2, level.get()),
            IoPriority::Idle => (3, 0),
        };
        class << CLASS_SHIFT | u32::from(level)
    }

    /// Returns the I/O priority of a number; `None` for classes that do not exist.
    #[must_use]
    pub(crate) fn io_priority(number: u32) -> Option<IoPriority> {
        let level = IoLevel::new(number & 7)?;
        match number >> CLASS_SHIFT {
            0 => Some(IoPriority::None),
            1 => Some(IoPriority::Realtime(level)),
            2 => Some(IoPriority::BestEffort(level)),
            3 => Some(IoPriority::Idle),
            _ => None,
        }
    }
}

/// Returns resource limits in the form of the OCI runtime configuration, `process.rlimits`.
#[must_use]
pub fn oci_rlimits(limits: &Rlimits) -> serde_json::Value {
    let number = |bound: Bound| match bound {
        Bound::At(value) => value,
        // The kernel's RLIM_INFINITY.
        Bound::Max => u64::MAX,
    };
    limits
        .iter()
        .map(|(kind, limit)| {
            let (soft, hard) = (number(limit.soft()), number(limit.hard()));
            serde_json::json!({"type": kind.name(), "soft": soft, "hard": hard})
        })
        .collect()
}

#[cfg(test)]
mod tests;
