//! Cgroups of pods: what they are given ([`of_pod`], [`of_class`], [`of_all_pods`]), and [`PodCgroups`],
//! which makes and removes them.
//!
//! ```text
//!   kubepods                      what the node has for pods
//!   ├── pod<uid>                  Guaranteed
//!   ├── burstable ── pod<uid>     as many shares as its pods request
//!   └── besteffort ── pod<uid>    next to none
//! ```
//!
//! What is given is upstream's arithmetic, and pure. Containers' own cgroups are the runtime's. With the
//! driver `systemd` all of this is made by systemd when the runtime asks for a scope in it; then only
//! what was left over is removed here.

use std::collections::BTreeMap;

use host::cgroups::{Bound, CgroupError, Cgroups, Limits, Quota, Usage};
use objects::resources::{CPU, MEMORY, huge_page_size};
use objects::{QosClass, Quantity};

use crate::runtime::lower::resources::{cpu_quota, cpu_shares, page_size_name};
use crate::runtime::lower::{self, CgroupDriver, CgroupVersion, NodeFacts, PodInput, cgroup, qos};
use crate::spec::{Amounts, Pod};

/// The bytes all containers of a pod may use together; `None` if one of them has no limit.
#[must_use]
pub fn memory_limit(pod: &Pod) -> Option<i64> {
    limit(pod, MEMORY).map(|limit| limit.value())
}

/// What all containers may use together. A Burstable pod has it only if every container does.
fn limit(pod: &Pod, name: &str) -> Option<Quantity> {
    let limit = || crate::limits(pod).remove(name);
    match qos::class(pod) {
        QosClass::Guaranteed => limit(),
        QosClass::Burstable if all_have_limit(pod, name) => limit(),
        QosClass::Burstable | QosClass::BestEffort => None,
    }
}

/// Whether every container has a limit of its own, or the pod as a whole.
fn all_have_limit(pod: &Pod, name: &str) -> bool {
    let is_set = |limits: &Amounts| limits.get(name).is_some_and(|of| !of.is_zero());
    let mut containers = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    qos::pod_level(pod).is_some_and(|whole| is_set(&whole.limits))
        || containers.all(|container| is_set(&container.resources.limits))
}

/// What the cgroup of a pod is given; `pids` is `podPidsLimit`. Whatever is not said is without limit, so
/// that a limit that was taken away goes.
#[must_use]
pub fn of_pod(input: &PodInput<'_>, pids: Option<u64>) -> Limits {
    let (pod, facts) = (input.pod, input.facts);
    let requests = crate::requests(pod);
    let milli = |of: Option<&Quantity>| of.map_or(0, Quantity::milli_value);
    let shares = match qos::class(pod) {
        QosClass::BestEffort => 0,
        QosClass::Guaranteed | QosClass::Burstable => milli(requests.get(CPU)),
    };
    // CPUs of its own are limit enough.
    let is_exclusive = input.placed.values().any(|placed| placed.exclusive);
    let cpu_quota = facts.cpu_quota_period.map(|period| {
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
        huge_pages: huge_pages(facts, &requests),
        unified: protection(facts, requests.get(MEMORY).map_or(0, Quantity::value)),
    }
}

/// What the cgroup of a class is given for the pods of it that are on the node. Guaranteed pods have no
/// such cgroup: theirs is [`of_all_pods`].
#[must_use]
pub fn of_class<'a>(
    facts: &NodeFacts,
    class: QosClass,
    pods: impl IntoIterator<Item = &'a Pod>,
) -> Limits {
    let (mut cpu, mut memory) = (0_i64, 0_i64);
    if class == QosClass::Burstable {
        for pod in pods.into_iter().filter(|pod| qos::class(pod) == class) {
            let requests = crate::requests(pod);
            cpu = cpu.saturating_add(requests.get(CPU).map_or(0, Quantity::milli_value));
            memory = memory.saturating_add(requests.get(MEMORY).map_or(0, Quantity::value));
        }
    }
    let sizes = facts.huge_page_sizes.iter();
    Limits {
        cpu_shares: Some(unsigned(cpu_shares(cpu))),
        huge_pages: sizes.map(|size| (page_size_name(*size), Bound::Max)).collect(),
        unified: protection(facts, memory),
        ..Limits::default()
    }
}

/// What the cgroup of all pods is given: what the node has, without what is reserved for others, and with
/// what is kept back for eviction.
#[must_use]
pub fn of_all_pods(facts: &NodeFacts, amounts: &Amounts, pids: Option<u64>) -> Limits {
    let of = |name: &str| amounts.get(name);
    Limits {
        cpu_shares: of(CPU).map(|cpu| unsigned(cpu_shares(cpu.milli_value()))),
        memory: of(MEMORY).map(|memory| at(memory.value())),
        pids: pids.map(Bound::At),
        huge_pages: huge_pages(facts, amounts),
        ..Limits::default()
    }
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

fn at(number: i64) -> Bound {
    Bound::At(unsigned(number))
}

/// A limit for every size of page there is; what was not asked for is 0.
fn huge_pages(facts: &NodeFacts, amounts: &Amounts) -> BTreeMap<String, Bound> {
    let of_size = |size: &i64| {
        let found = amounts.iter().find(|(name, _)| huge_page_size(name) == Some(*size));
        (page_size_name(*size), at(found.map_or(0, |(_, amount)| amount.value())))
    };
    facts.huge_page_sizes.iter().map(of_size).collect()
}

/// Gate `MemoryQoS`: what is requested below is kept for it.
fn protection(facts: &NodeFacts, request: i64) -> BTreeMap<String, String> {
    let is_on = facts.memory_throttling.is_some() && facts.cgroups.version == CgroupVersion::V2;
    let file = (is_on && request > 0).then(|| ("memory.min".to_owned(), request.to_string()));
    file.into_iter().collect()
}

/// The cgroups of the pods of a node. All methods block.
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

    /// What all pods use together; `None` if nobody counts it.
    #[must_use]
    pub fn used_by_all(&self) -> Option<Usage> {
        self.cgroups.usage(&cgroup::of_all_pods(&self.names)).ok().flatten()
    }

    /// Makes the cgroups of all pods and of the classes, or gives them new limits.
    pub fn ensure_classes<'a>(
        &self,
        facts: &NodeFacts,
        all: &Limits,
        pods: impl IntoIterator<Item = &'a Pod>,
    ) -> Result<(), CgroupError> {
        if self.is_systemd() {
            return Ok(());
        }
        self.cgroups.ensure(&cgroup::of_all_pods(&self.names), all)?;
        let burstable = of_class(facts, QosClass::Burstable, pods);
        let best_effort = of_class(facts, QosClass::BestEffort, []);
        self.cgroups.ensure(&cgroup::of_class(&self.names, QosClass::Burstable), &burstable)?;
        self.cgroups.ensure(&cgroup::of_class(&self.names, QosClass::BestEffort), &best_effort)
    }

    /// Makes the cgroup of a pod, or gives it new limits.
    pub fn ensure_pod(&self, input: &PodInput<'_>, pids: Option<u64>) -> Result<(), CgroupError> {
        if self.is_systemd() {
            return Ok(());
        }
        self.cgroups.ensure(&self.path(input.pod), &of_pod(input, pids))
    }

    /// Gives the cgroup of a pod other limits, if it has one: systemd's are made with containers.
    pub fn limit_pod(&self, pod: &Pod, limits: &Limits) -> Result<(), CgroupError> {
        let path = self.path(pod);
        if !self.cgroups.exists(&path) {
            return Ok(());
        }
        self.cgroups.update(&path, limits)
    }

    /// The cgroup of a pod.
    #[must_use]
    pub fn path(&self, pod: &Pod) -> String {
        cgroup::parent(&self.names, qos::class(pod), &pod.metadata.uid)
    }

    /// Removes the cgroup of a pod, of whichever class, and kills what is left in it.
    pub fn remove_pod(&self, uid: &str) -> Result<(), CgroupError> {
        for class in CLASSES {
            self.cgroups.remove(&cgroup::parent(&self.names, class, uid))?;
        }
        Ok(())
    }

    /// The pods that have a cgroup, whether they are known or not, by UID with its path.
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
