//! The cpuset reconciler. [`findings`] compares allocated with effective resources, [`check`] compares and
//! repairs all containers, [`audit`] checks the whole node.
//!
//! ```text
//!   ledger, tracker ──▶ allocated ──┐
//!                                   ├──▶ findings ──▶ repair, metric, event with the suspected cause
//!   cgroups, /proc ─────────────────┘
//! ```
//!
//! A container may restrict its own threads to a part of its CPUs; that is not a difference. If a process
//! cannot be read, the status of the runtime is compared instead, and without a status there are no findings.

use std::collections::BTreeSet;
use std::fmt;

use cri::v1;
use host::cgroups::{InForce, ThreadSeen};
use objects::pod::OsName;
use placement::{CpuSet, NumaId};
use serde::Serialize;

use crate::runtime::lower::{ContainerAffinity, resources};

mod audit;
mod contention;
mod history;
mod pass;
#[cfg(test)]
mod tests;

pub use audit::{AuditReport, MisplacedContainer, SharedExclusiveCpu, audit};
pub use contention::{Contender, HostObservation, contenders};
pub use history::{Contention, ReconcileHistory};
pub use pass::{PassSummary, check, cpus_in_use, keep};

/// A difference between the allocated and the effective resources of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "what", rename_all = "camelCase")]
pub enum Finding {
    /// The cgroup has other CPUs.
    Cpus { found: CpuSet, told: CpuSet },
    /// The cgroup has other memory nodes.
    Mems { found: BTreeSet<NumaId>, told: BTreeSet<NumaId> },
    /// A thread may run on CPUs outside those of its container.
    Thread { thread: u32, found: CpuSet, told: CpuSet },
    /// A thread may allocate memory outside the nodes of its container.
    ThreadMems { thread: u32, found: BTreeSet<NumaId>, told: BTreeSet<NumaId> },
    /// Windows: other processors, by group and mask. An empty `found` is any processor.
    Groups { found: String, told: String },
}

impl Finding {
    /// The value of the metrics label.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Finding::Cpus { .. } | Finding::Groups { .. } => "cpus",
            Finding::Mems { .. } => "mems",
            Finding::Thread { .. } | Finding::ThreadMems { .. } => "affinity",
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Cpus { found, told } => write!(f, "CPUs {found} instead of {told}"),
            Finding::Mems { found, told } => {
                write!(f, "memory nodes {} instead of {}", listed(found), listed(told))
            }
            Finding::Thread { thread, found, told } => {
                write!(f, "thread {thread} on CPUs {found} instead of {told}")
            }
            Finding::ThreadMems { thread, found, told } => {
                let (found, told) = (listed(found), listed(told));
                write!(f, "thread {thread} with memory nodes {found} instead of {told}")
            }
            Finding::Groups { found, told } => {
                let found = if found.is_empty() { "any processor" } else { found };
                write!(f, "{found} instead of {told}")
            }
        }
    }
}

fn listed(nodes: &BTreeSet<NumaId>) -> String {
    nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Compares the allocation with what the kernel enforces for the processes of the container. Offline CPUs
/// are not a difference; `online` are the others.
#[must_use]
pub fn findings(
    told: &ContainerAffinity,
    found: &InForce,
    online: Option<&CpuSet>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !told.cpus.is_empty() {
        let there = online.map_or_else(|| told.cpus.clone(), |online| &told.cpus & online);
        findings.extend(of_cpus(told, found, &there));
    }
    if !told.mems.is_empty() {
        findings.extend(of_mems(told, found));
    }
    findings
}

fn of_cpus(told: &ContainerAffinity, found: &InForce, there: &CpuSet) -> Option<Finding> {
    let of = |found: &CpuSet| Some(Finding::Cpus { found: found.clone(), told: told.cpus.clone() });
    // cgroup v1 forgets offline CPUs, v2 remembers the written set. An empty set means that of the parent
    // cgroup.
    let written = if found.cpus.is_empty() { &found.effective_cpus } else { &found.cpus };
    if !written.is_empty() && *written != told.cpus && written != there {
        return of(written);
    }
    // The written set is right, but a parent cgroup has fewer CPUs.
    if !found.effective_cpus.is_empty() && found.effective_cpus != *there {
        return of(&found.effective_cpus);
    }
    let thread = threads(found).find(|thread| !thread.cpus.is_subset(&told.cpus))?;
    let (found, told) = (thread.cpus.clone(), told.cpus.clone());
    Some(Finding::Thread { thread: thread.id, found, told })
}

fn of_mems(told: &ContainerAffinity, found: &InForce) -> Option<Finding> {
    let of = |found: &BTreeSet<NumaId>| {
        Some(Finding::Mems { found: found.clone(), told: told.mems.clone() })
    };
    let written = if found.mems.is_empty() { &found.effective_mems } else { &found.mems };
    if !written.is_empty() && *written != told.mems {
        return of(written);
    }
    if !found.effective_mems.is_empty() && found.effective_mems != told.mems {
        return of(&found.effective_mems);
    }
    let thread = threads(found).find(|thread| !thread.mems.is_subset(&told.mems))?;
    let (found, told) = (thread.mems.clone(), told.mems.clone());
    Some(Finding::ThreadMems { thread: thread.id, found, told })
}

fn threads(found: &InForce) -> impl Iterator<Item = &ThreadSeen> {
    found.processes.iter().flat_map(|process| &process.threads)
}

/// Compares the allocation with the status that the runtime reports. A Windows runtime that reports
/// resources without processors ignored the field; a Linux runtime may leave it out.
#[must_use]
pub fn said(os: OsName, told: &ContainerAffinity, says: &v1::ContainerResources) -> Vec<Finding> {
    let mut findings = Vec::new();
    match os {
        OsName::Linux => {
            let Some(linux) = &says.linux else { return findings };
            if let Ok(found) = CpuSet::parse(&linux.cpuset_cpus)
                && !found.is_empty()
                && !told.cpus.is_empty()
                && found != told.cpus
            {
                findings.push(Finding::Cpus { found, told: told.cpus.clone() });
            }
            if let Ok(found) = CpuSet::parse(&linux.cpuset_mems) {
                let found: BTreeSet<NumaId> = found.iter().map(|id| NumaId(id.0)).collect();
                if !found.is_empty() && !told.mems.is_empty() && found != told.mems {
                    findings.push(Finding::Mems { found, told: told.mems.clone() });
                }
            }
        }
        OsName::Windows => {
            let Some(windows) = &says.windows else { return findings };
            let (found, told) =
                (groups(&windows.affinity_cpus), groups(&resources::affinity(told)));
            if !told.is_empty() && found != told {
                findings.push(Finding::Groups { found, told });
            }
        }
    }
    findings
}

/// Formats `group 0 mask 0x3, group 1 mask 0x1`, sorted by group.
fn groups(of: &[v1::WindowsCpuGroupAffinity]) -> String {
    let mut of: Vec<(u32, u64)> = of.iter().map(|one| (one.cpu_group, one.cpu_mask)).collect();
    of.sort_unstable();
    let words: Vec<String> =
        of.iter().map(|(group, mask)| format!("group {group} mask {mask:#x}")).collect();
    words.join(", ")
}
