//! The cpuset reconciler. [`findings`] compares allocated with effective resources,
//! [`CpusetReconciler`] compares and repairs all containers, and checks the whole node.
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
use host::cgroups::{EffectiveLimits, ThreadAffinity};
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

pub use audit::{AuditReport, MisplacedContainer, SharedExclusiveCpu};
pub use contention::{Contender, HostObservation, contenders};
pub use history::{Contention, ReconcileHistory};
pub use pass::{CpusetReconciler, PassSummary};

/// A difference between the allocated and the effective resources of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "what", rename_all = "camelCase")]
pub enum Finding {
    /// The cgroup has other CPUs.
    Cpus { found: CpuSet, allocated: CpuSet },
    /// The cgroup has other memory nodes.
    Mems { found: BTreeSet<NumaId>, allocated: BTreeSet<NumaId> },
    /// A thread may run on CPUs outside those of its container.
    Thread { thread: u32, found: CpuSet, allocated: CpuSet },
    /// A thread may allocate memory outside the nodes of its container.
    ThreadMems { thread: u32, found: BTreeSet<NumaId>, allocated: BTreeSet<NumaId> },
    /// Windows: other processors, by group and mask. An empty `found` is any processor.
    Groups { found: String, allocated: String },
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
            Finding::Cpus { found, allocated } => write!(f, "CPUs {found} instead of {allocated}"),
            Finding::Mems { found, allocated } => {
                write!(f, "memory nodes {} instead of {}", listed(found), listed(allocated))
            }
            Finding::Thread { thread, found, allocated } => {
                write!(f, "thread {thread} on CPUs {found} instead of {allocated}")
            }
            Finding::ThreadMems { thread, found, allocated } => {
                let (found, allocated) = (listed(found), listed(allocated));
                write!(f, "thread {thread} with memory nodes {found} instead of {allocated}")
            }
            Finding::Groups { found, allocated } => {
                let found = if found.is_empty() { "any processor" } else { found };
                write!(f, "{found} instead of {allocated}")
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
    allocated: &ContainerAffinity,
    found: &EffectiveLimits,
    online: Option<&CpuSet>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !allocated.cpus.is_empty() {
        let there =
            online.map_or_else(|| allocated.cpus.clone(), |online| &allocated.cpus & online);
        findings.extend(of_cpus(allocated, found, &there));
    }
    if !allocated.mems.is_empty() {
        findings.extend(of_mems(allocated, found));
    }
    findings
}

fn of_cpus(
    allocated: &ContainerAffinity,
    found: &EffectiveLimits,
    there: &CpuSet,
) -> Option<Finding> {
    let difference = |found: &CpuSet| {
        Some(Finding::Cpus { found: found.clone(), allocated: allocated.cpus.clone() })
    };
    // cgroup v1 forgets offline CPUs, v2 remembers the written set. An empty set means that of the parent
    // cgroup.
    let written = if found.cpus.is_empty() { &found.effective_cpus } else { &found.cpus };
    if !written.is_empty() && *written != allocated.cpus && written != there {
        return difference(written);
    }
    // The written set is right, but a parent cgroup has fewer CPUs.
    if !found.effective_cpus.is_empty() && found.effective_cpus != *there {
        return difference(&found.effective_cpus);
    }
    let thread = threads(found).find(|thread| !thread.cpus.is_subset(&allocated.cpus))?;
    let (found, allocated) = (thread.cpus.clone(), allocated.cpus.clone());
    Some(Finding::Thread { thread: thread.id, found, allocated })
}

fn of_mems(allocated: &ContainerAffinity, found: &EffectiveLimits) -> Option<Finding> {
    let difference = |found: &BTreeSet<NumaId>| {
        Some(Finding::Mems { found: found.clone(), allocated: allocated.mems.clone() })
    };
    let written = if found.mems.is_empty() { &found.effective_mems } else { &found.mems };
    if !written.is_empty() && *written != allocated.mems {
        return difference(written);
    }
    if !found.effective_mems.is_empty() && found.effective_mems != allocated.mems {
        return difference(&found.effective_mems);
    }
    let thread = threads(found).find(|thread| !thread.mems.is_subset(&allocated.mems))?;
    let (found, allocated) = (thread.mems.clone(), allocated.mems.clone());
    Some(Finding::ThreadMems { thread: thread.id, found, allocated })
}

fn threads(found: &EffectiveLimits) -> impl Iterator<Item = &ThreadAffinity> {
    found.processes.iter().flat_map(|process| &process.threads)
}

/// Compares the allocation with the status that the runtime reports. A Windows runtime that reports
/// resources without processors ignored the field; a Linux runtime may leave it out.
#[must_use]
pub fn reported_findings(
    os: OsName,
    allocated: &ContainerAffinity,
    reported: &v1::ContainerResources,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    match os {
        OsName::Linux => {
            let Some(linux) = &reported.linux else { return findings };
            if let Ok(found) = CpuSet::parse(&linux.cpuset_cpus)
                && !found.is_empty()
                && !allocated.cpus.is_empty()
                && found != allocated.cpus
            {
                findings.push(Finding::Cpus { found, allocated: allocated.cpus.clone() });
            }
            if let Ok(found) = CpuSet::parse(&linux.cpuset_mems) {
                let found: BTreeSet<NumaId> = found.iter().map(|id| NumaId(id.0)).collect();
                if !found.is_empty() && !allocated.mems.is_empty() && found != allocated.mems {
                    findings.push(Finding::Mems { found, allocated: allocated.mems.clone() });
                }
            }
        }
        OsName::Windows => {
            let Some(windows) = &reported.windows else { return findings };
            let (found, allocated) =
                (groups(&windows.affinity_cpus), groups(&resources::affinity(allocated)));
            if !allocated.is_empty() && found != allocated {
                findings.push(Finding::Groups { found, allocated });
            }
        }
    }
    findings
}

/// Formats `group 0 mask 0x3, group 1 mask 0x1`, sorted by group.
fn groups(affinities: &[v1::WindowsCpuGroupAffinity]) -> String {
    let mut groups: Vec<(u32, u64)> =
        affinities.iter().map(|one| (one.cpu_group, one.cpu_mask)).collect();
    groups.sort_unstable();
    let texts: Vec<String> =
        groups.iter().map(|(group, mask)| format!("group {group} mask {mask:#x}")).collect();
    texts.join(", ")
}
