//! The truth check: whether containers really are where they were put. [`findings`] compares, [`check`]
//! looks at all of them and puts right what is not, [`audit`] looks at the whole node.
//!
//! ```text
//!   book, pool ──▶ told ──┐
//!                         ├──▶ findings ──▶ repaired, counted, told in an event with who is suspected
//!   cgroups, /proc ───────┘
//! ```
//!
//! A container may narrow where its own threads run, as long as it stays within what it has: that is its
//! right, and no finding. Where nothing can be read of a process, what the runtime says of the container is
//! taken instead, and where it says nothing nothing is found.

use std::collections::BTreeSet;
use std::fmt;

use cri::v1;
use host::cgroups::{InForce, ThreadSeen};
use objects::pod::OsName;
use placement::{CpuSet, NumaId};
use serde::Serialize;

use crate::runtime::lower::{Placed, resources};

mod audit;
mod contention;
mod history;
mod pass;
#[cfg(test)]
mod tests;

pub use audit::{AuditReport, HeldTwice, Outside, audit};
pub use contention::{Rival, Surroundings, rivals};
pub use history::{Fight, History};
pub use pass::{Checked, check, cpus_in_use, keep};

/// Something that is not as it was told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "what", rename_all = "camelCase")]
pub enum Finding {
    /// The cgroup has other CPUs.
    Cpus { found: CpuSet, told: CpuSet },
    /// It has other memory nodes.
    Mems { found: BTreeSet<NumaId>, told: BTreeSet<NumaId> },
    /// A thread may run where its container may not.
    Thread { thread: u32, found: CpuSet, told: CpuSet },
    /// A thread may have memory where its container may not.
    ThreadMems { thread: u32, found: BTreeSet<NumaId>, told: BTreeSet<NumaId> },
    /// Windows: other processors, by group and mask. Nothing found is any processor.
    Groups { found: String, told: String },
}

impl Finding {
    /// As counters have it.
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

/// What is not as the container was told, of what the kernel holds its processes to. CPUs that are
/// switched off are nobody's fault; `online` are the others.
#[must_use]
pub fn findings(told: &Placed, found: &InForce, online: Option<&CpuSet>) -> Vec<Finding> {
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

fn of_cpus(told: &Placed, found: &InForce, there: &CpuSet) -> Option<Finding> {
    let of = |found: &CpuSet| Some(Finding::Cpus { found: found.clone(), told: told.cpus.clone() });
    // Version 1 forgets CPUs that are switched off, version 2 remembers what was written. Where nothing
    // was written it is what the cgroup above has.
    let written = if found.cpus.is_empty() { &found.effective_cpus } else { &found.cpus };
    if !written.is_empty() && *written != told.cpus && written != there {
        return of(written);
    }
    // Written as it should be, and yet a cgroup above has less.
    if !found.effective_cpus.is_empty() && found.effective_cpus != *there {
        return of(&found.effective_cpus);
    }
    let thread = threads(found).find(|thread| !thread.cpus.is_subset(&told.cpus))?;
    let (found, told) = (thread.cpus.clone(), told.cpus.clone());
    Some(Finding::Thread { thread: thread.id, found, told })
}

fn of_mems(told: &Placed, found: &InForce) -> Option<Finding> {
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

/// What is not as the container was told, of what its runtime says of it. A runtime of Windows that says
/// what it has, and has no processors among it, did not take the field; one of Linux may leave it out.
#[must_use]
pub fn said(os: OsName, told: &Placed, says: &v1::ContainerResources) -> Vec<Finding> {
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

/// `group 0 mask 0x3, group 1 mask 0x1`, whatever the order they came in.
fn groups(of: &[v1::WindowsCpuGroupAffinity]) -> String {
    let mut of: Vec<(u32, u64)> = of.iter().map(|one| (one.cpu_group, one.cpu_mask)).collect();
    of.sort_unstable();
    let words: Vec<String> =
        of.iter().map(|(group, mask)| format!("group {group} mask {mask:#x}")).collect();
    words.join(", ")
}
