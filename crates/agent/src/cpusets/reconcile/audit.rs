//! A check of the whole node, without repairs: [`CpusetReconciler::audit`].

use std::collections::BTreeMap;

use placement::{CpuId, Ledger};
use serde::Serialize;

use super::CpusetReconciler;
use super::Finding;
use crate::cpusets::tracker::TrackedContainer;
use crate::reclaim::housekeeping::Housekeeping;
use crate::runtime::relist;
use lifecycle::observed::{ContainerState, RuntimeId};

/// The problems found. Empty if there are none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditReport {
    /// CPUs that are exclusive to more than one holder.
    pub held_twice: Vec<SharedExclusiveCpu>,
    /// Containers that run outside their allocation.
    pub outside: Vec<MisplacedContainer>,
    /// Running containers that are not tracked, by runtime id.
    pub untracked: Vec<RuntimeId>,
    /// UIDs in the ledger without a pod.
    pub unknown_holders: Vec<String>,
    /// Cgroups without a pod.
    pub leftover_cgroups: Vec<String>,
    /// Directories and log directories without a pod.
    pub leftover_directories: Vec<String>,
    /// Parts of the node that could not be checked.
    pub unseen: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SharedExclusiveCpu {
    pub cpu: CpuId,
    /// `uid/container`, or `the shared cpuset_tracker`.
    pub holders: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MisplacedContainer {
    pub pod_uid: String,
    pub container: String,
    pub findings: Vec<Finding>,
}

impl AuditReport {
    #[must_use]
    pub fn is_clean(&self) -> bool {
        *self == AuditReport::default()
    }
}

impl CpusetReconciler {
    /// Checks ledger, tracked containers, runtime, cgroups and directories.
    pub async fn audit(&self, housekeeping: &Housekeeping) -> AuditReport {
        let mut report = AuditReport::default();
        let surveyed = self.survey().await;
        let running: Vec<TrackedContainer> =
            surveyed.iter().map(|(entry, _)| entry.clone()).collect();
        report.held_twice = held_twice(self.state.ledger().contents(), &running);
        for (entry, findings) in surveyed {
            if !findings.is_empty() {
                let TrackedContainer { pod_uid, container, .. } = entry;
                report.outside.push(MisplacedContainer { pod_uid, container, findings });
            }
        }
        match relist::relist(&self.runtime.cri).await {
            Ok(summaries) => {
                let containers = summaries.values().flat_map(|summary| &summary.containers);
                let running = containers.filter(|(_, of)| of.state == ContainerState::Running);
                let tracked = self.state.cpuset_tracker.all();
                let untracked = running.map(|(id, _)| id).filter(|id| !tracked.contains_key(*id));
                report.untracked = untracked.cloned().collect();
            }
            Err(error) => report.unseen.push(format!("the runtime: {error}")),
        }
        match housekeeping.left().await {
            Some(left) => {
                report.unknown_holders = left.ledger_pods.into_iter().collect();
                report.leftover_cgroups = left.cgroups.into_values().collect();
                let logs = left.logs.into_values().map(|path| path.display().to_string());
                report.leftover_directories = left.directories.into_iter().chain(logs).collect();
            }
            None => report.unseen.push("what pods that are gone left behind".to_owned()),
        }
        report
    }
}

const SHARED: &str = "the shared pool";

/// Two pods must not have the same exclusive CPU, and no exclusive CPU may be in the shared pool.
/// Containers of one pod may share a CPU if at most one of them runs: a container that exited passes its
/// CPUs on.
pub(super) fn held_twice(ledger: &Ledger, running: &[TrackedContainer]) -> Vec<SharedExclusiveCpu> {
    let mut allocated_cpus: BTreeMap<CpuId, BTreeMap<String, String>> = BTreeMap::new();
    for (pod, containers) in &ledger.cpu.assignments {
        for (container, cpus) in containers {
            for cpu in cpus {
                let holders = allocated_cpus.entry(cpu).or_default();
                holders.entry(pod.to_string()).or_insert_with(|| format!("{pod}/{container}"));
            }
        }
    }
    for cpu in &ledger.cpu.shared {
        if let Some(holders) = allocated_cpus.get_mut(&cpu) {
            holders.insert(SHARED.to_owned(), SHARED.to_owned());
        }
    }
    let mut allocated: BTreeMap<CpuId, Vec<String>> = BTreeMap::new();
    for entry in running.iter().filter(|entry| entry.affinity.exclusive) {
        for cpu in &entry.affinity.cpus {
            allocated
                .entry(cpu)
                .or_default()
                .push(format!("{}/{}", entry.pod_uid, entry.container));
        }
    }
    for entry in running.iter().filter(|entry| !entry.affinity.exclusive) {
        for cpu in &entry.affinity.cpus {
            if let Some(holders) = allocated.get_mut(&cpu) {
                holders.push(format!("{}/{}", entry.pod_uid, entry.container));
            }
        }
    }
    let of_ledger = allocated_cpus.into_iter().map(|(cpu, of)| (cpu, of.into_values().collect()));
    let mut twice: BTreeMap<CpuId, Vec<String>> = BTreeMap::new();
    for (cpu, holders) in
        of_ledger.chain(allocated).filter(|(_, of): &(_, Vec<String>)| of.len() > 1)
    {
        twice.entry(cpu).or_default().extend(holders);
    }
    let held = |(cpu, mut holders): (CpuId, Vec<String>)| {
        holders.sort();
        holders.dedup();
        SharedExclusiveCpu { cpu, holders }
    };
    twice.into_iter().map(held).collect()
}
