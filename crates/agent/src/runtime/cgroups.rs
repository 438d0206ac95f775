//! Cgroups of pods: their limits ([`of_pod`], [`of_class`], [`of_all_pods`]), and [`PodCgroups`], which
//! creates and removes them.
//!
//! ```text
//!   kubepods                      the node's resources for pods
//!   ├── pod<uid>                  Guaranteed
//!   ├── burstable ── pod<uid>     the sum of its pods' CPU requests
//!   └── besteffort ── pod<uid>    the minimum
//! ```
//!
//! The limits are computed as upstream does, and pure. The runtime creates the containers' own cgroups. With
//! the driver `systemd`, systemd creates all slices when the runtime requests a scope in them; here only
//! leftovers are removed.

use std::collections::BTreeMap;

use host::cgroups::{Bound, CgroupError, Cgroups, Limits, Quota, Usage};
use objects::resources::{CPU, MEMORY, huge_page_size};
use objects::{QosClass, Quantity};

use crate::runtime::lower::resources::{cpu_quota, cpu_shares, page_size_name};
use crate::runtime::lower::{
    self, CgroupDriver, CgroupVersion, NodeEnvironment, PodInput, cgroup, qos,
};
use lifecycle::spec::{Pod, ResourceList};

/// Returns the memory limit of a pod in bytes; `None` if one of its containers has no limit.
#[must_use]
pub fn memory_limit(pod: &Pod) -> Option<i64> {
    limit(pod, MEMORY).map(|limit| limit.value())
}

/// Returns the limit of a pod. A Burstable pod has one only if every container has.
fn limit(pod: &Pod, name: &str) -> Option<Quantity> {
    let limit = || lifecycle::limits(pod).remove(name);
    match qos::class(pod) {
        QosClass::Guaranteed => limit(),
        QosClass::Burstable if all_have_limit(pod, name) => limit(),
        QosClass::Burstable | QosClass::BestEffort => None,
    }
}

/// Returns true if every container has its own limit, or the pod has a pod-level one.
fn all_have_limit(pod: &Pod, name: &str) -> bool {
    let is_set = |limits: &ResourceList| limits.get(name).is_some_and(|of| !of.is_zero());
    let mut containers = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    qos::pod_level(pod).is_some_and(|whole| is_set(&whole.limits))
        || containers.all(|container| is_set(&container.resources.limits))
}

/// Returns the limits of a pod's cgroup; `pids` is `podPidsLimit`. Missing limits are set to unlimited, so
/// that removing a limit takes effect.
#[must_use]
pub fn of_pod(input: &PodInput<'_>, pids: Option<u64>) -> Limits {
    let (pod, node_env) = (input.pod, input.node_env);
    let requests = lifecycle::requests(pod);
    let milli = |of: Option<&Quantity>| of.map_or(0, Quantity::milli_value);
    let shares = match qos::class(pod) {
        QosClass::BestEffort => 0,
        QosClass::Guaranteed | QosClass::Burstable => milli(requests.get(CPU)),
    };
    // A pod with exclusive CPUs needs no quota.
    let is_exclusive = input.affinities.values().any(|affinity| affinity.exclusive);
    let cpu_quota = node_env.cpu_quota_period.map(|period| {
        let limit = limit(pod, CPU).filter(|_| !is_exclusive);
        let time = match cpu_quota(milli(limit.as_ref()), period) {
            0 => Bound::Max,
            time => at(time),
        };
        Quota { time, period: unsigned(period) }
    });
    Limits {
        cpu_shares: Some(unsigned(cpu_shares(shares))),
        cpu_quota,
        memory: Some(memory_limit(pod).filter(|limit| *limit > 0).map_or(Bound::Max, at)),
        pids: Some(pids.map_or(Bound::Max, Bound::At)),
        huge_pages: huge_pages(node_env, &requests),
        unified: protection(node_env, requests.get(MEMORY).map_or(0, Quantity::value)),
    }
}

/// Returns the limits of a QoS class's cgroup for its pods on the node. Guaranteed pods have no such cgroup:
/// theirs is [`of_all_pods`].
#[must_use]
pub fn of_class<'a>(
    node_env: &NodeEnvironment,
    class: QosClass,
    pods: impl IntoIterator<Item = &'a Pod>,
) -> Limits {
    let (mut cpu, mut memory) = (0_i64, 0_i64);
    if class == QosClass::Burstable {
        for pod in pods.into_iter().filter(|pod| qos::class(pod) == class) {
            let requests = lifecycle::requests(pod);
            cpu = cpu.saturating_add(requests.get(CPU).map_or(0, Quantity::milli_value));
            memory = memory.saturating_add(requests.get(MEMORY).map_or(0, Quantity::value));
        }
    }
    let sizes = node_env.huge_page_sizes.iter();
    Limits {
        cpu_shares: Some(unsigned(cpu_shares(cpu))),
        huge_pages: sizes.map(|size| (page_size_name(*size), Bound::Max)).collect(),
        unified: protection(node_env, memory),
        ..Limits::default()
    }
}

/// Returns the limits of the cgroup of all pods: the node's capacity minus reservations. The eviction
/// threshold is not subtracted.
#[must_use]
pub fn of_all_pods(
    node_env: &NodeEnvironment,
    amounts: &ResourceList,
    pids: Option<u64>,
) -> Limits {
    let of = |name: &str| amounts.get(name);
    Limits {
        cpu_shares: of(CPU).map(|cpu| unsigned(cpu_shares(cpu.milli_value()))),
        memory: of(MEMORY).map(|memory| at(memory.value())),
        pids: pids.map(Bound::At),
        huge_pages: huge_pages(node_env, amounts),
        ..Limits::default()
    }
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

fn at(number: i64) -> Bound {
    Bound::At(unsigned(number))
}

/// Returns a limit for every huge page size of the kernel; 0 without a request.
fn huge_pages(node_env: &NodeEnvironment, amounts: &ResourceList) -> BTreeMap<String, Bound> {
    let of_size = |size: &i64| {
        let found = amounts.iter().find(|(name, _)| huge_page_size(name) == Some(*size));
        (page_size_name(*size), at(found.map_or(0, |(_, amount)| amount.value())))
    };
    node_env.huge_page_sizes.iter().map(of_size).collect()
}

/// Gate `MemoryQoS`: protects the requested memory.
fn protection(node_env: &NodeEnvironment, request: i64) -> BTreeMap<String, String> {
    let is_on =
        node_env.memory_throttling.is_some() && node_env.cgroups.version == CgroupVersion::V2;
    let file = (is_on && request > 0).then(|| ("memory.min".to_owned(), request.to_string()));
    file.into_iter().collect()
}

/// The cgroups of a node's pods. All methods block.
#[derive(Debug, Clone)]
pub struct PodCgroups {
    cgroups: Cgroups,
    names: lower::Cgroups,
}

impl PodCgroups {
    #[must_use]
    pub fn new(cgroups: Cgroups, names: lower::Cgroups) -> PodCgroups {
        PodCgroups { cgroups, names }
    }

    #[must_use]
    pub fn host(&self) -> &Cgroups {
        &self.cgroups
    }

    /// Returns the usage of all pods together; `None` if it is not accounted.
    #[must_use]
    pub fn used_by_all(&self) -> Option<Usage> {
        self.cgroups.usage(&cgroup::of_all_pods(&self.names)).ok().flatten()
    }

    /// Creates the cgroups of all pods and of the classes, or updates their limits.
    pub fn ensure_classes<'a>(
        &self,
        node_env: &NodeEnvironment,
        all: &Limits,
        pods: impl IntoIterator<Item = &'a Pod>,
    ) -> Result<(), CgroupError> {
        if self.is_systemd() {
            return Ok(());
        }
        self.cgroups.ensure(&cgroup::of_all_pods(&self.names), all)?;
        let burstable = of_class(node_env, QosClass::Burstable, pods);
        let best_effort = of_class(node_env, QosClass::BestEffort, []);
        self.cgroups.ensure(&cgroup::of_class(&self.names, QosClass::Burstable), &burstable)?;
        self.cgroups.ensure(&cgroup::of_class(&self.names, QosClass::BestEffort), &best_effort)
    }

    /// Creates the cgroup of a pod, or updates its limits.
    pub fn ensure_pod(&self, input: &PodInput<'_>, pids: Option<u64>) -> Result<(), CgroupError> {
        if self.is_systemd() {
            return Ok(());
        }
        self.cgroups.ensure(&self.path(input.pod), &of_pod(input, pids))
    }

    /// Updates the limits of a pod's cgroup, if it exists: systemd's are created with the containers.
    pub fn limit_pod(&self, pod: &Pod, limits: &Limits) -> Result<(), CgroupError> {
        let path = self.path(pod);
        if !self.cgroups.exists(&path) {
            return Ok(());
        }
        self.cgroups.update(&path, limits)
    }

    /// Returns the cgroup of a pod.
    #[must_use]
    pub fn path(&self, pod: &Pod) -> String {
        cgroup::parent(&self.names, qos::class(pod), &pod.metadata.uid)
    }

    /// Removes the cgroup of a pod, of any class, and kills the processes in it.
    pub fn remove_pod(&self, uid: &str) -> Result<(), CgroupError> {
        for class in CLASSES {
            self.cgroups.remove(&cgroup::parent(&self.names, class, uid))?;
        }
        Ok(())
    }

    /// Returns all pods that have a cgroup, known or not, as UID and path.
    pub fn pods(&self) -> Result<BTreeMap<String, String>, CgroupError> {
        let mut found = BTreeMap::new();
        for class in CLASSES {
            let above = cgroup::of_class(&self.names, class);
            for name in self.cgroups.children(&above)? {
                if let Some(uid) = cgroup::uid(self.names.driver, &name) {
                    found.insert(uid, format!("{above}/{name}"));
                }
            }
        }
        Ok(found)
    }

    fn is_systemd(&self) -> bool {
        self.names.driver == CgroupDriver::Systemd
    }
}

const CLASSES: [QosClass; 3] = [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort];

#[cfg(test)]
mod tests;
