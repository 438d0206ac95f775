//! A kubelet's configuration file: KubeletConfiguration, `kubelet.config.k8s.io/v1beta1`.
//!
//! Main type: [`KubeletConfig`]; entry: [`read`], which returns the configuration with all
//! warnings, or every error with its position. Every value is checked as upstream's
//! ValidateKubeletConfiguration checks it, and every field that Berth does not act on gets a
//! warning. `placement::configured` checks what depends on the machine or on feature gates.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::feature_gates::FeatureGates;
use crate::pod::OsName;
use crate::quantity::{Format, Quantity};
use crate::resources::ResourceList;
use crate::yaml::read::{At, Findings};

mod checks;
mod eviction;
mod fields;
mod keywords;
mod names;
mod nested;
mod read;

pub use eviction::{EvictionSignal, Threshold, Thresholds};
pub use read::read;

pub const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
pub const KIND: &str = "KubeletConfiguration";

/// Fields that are known and valid but not acted on.
pub type Untyped = BTreeMap<String, serde_json::Value>;

/// The options of the static CPU policy, as they are written.
pub const CPU_POLICY_OPTIONS: [&str; 6] = [
    "full-pcpus-only",
    "strict-cpu-reservation",
    "prefer-align-cpus-by-uncorecache",
    "distribute-cpus-across-numa",
    "align-by-socket",
    "distribute-cpus-across-cores",
];

/// The options of the topology manager, as they are written.
pub const TOPOLOGY_POLICY_OPTIONS: [&str; 2] =
    ["prefer-closest-numa-nodes", "max-allowable-numa-nodes"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CpuManagerPolicy {
    #[default]
    None,
    Static,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MemoryManagerPolicy {
    #[default]
    None,
    Static,
    /// Windows only.
    BestEffort,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TopologyManagerPolicy {
    #[default]
    None,
    BestEffort,
    Restricted,
    SingleNumaNode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TopologyManagerScope {
    #[default]
    Container,
    Pod,
}

/// The CPUs that a Windows container may use (Berth's own field).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WindowsAffinity {
    /// Its CPUs and those of its memory's nodes, except other containers' exclusive ones.
    #[default]
    Union,
    /// Its CPUs only.
    CpuOnly,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CgroupDriver {
    #[default]
    Cgroupfs,
    Systemd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SwapBehavior {
    #[default]
    NoSwap,
    LimitedSwap,
}

/// A cgroup where node allocatable is enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Enforcement {
    None,
    Pods,
    SystemReserved,
    SystemReservedCompressible,
    KubeReserved,
    KubeReservedCompressible,
}

/// An entry of `reservedMemory`: memory of one NUMA node that containers do not get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryReservation {
    pub numa_node: u32,
    pub limits: ResourceList,
}

/// A kubelet's configuration with defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct KubeletConfig {
    pub cpu_manager_policy: CpuManagerPolicy,
    pub cpu_manager_policy_options: BTreeMap<String, String>,
    pub cpu_manager_reconcile_period: Duration,
    pub memory_manager_policy: MemoryManagerPolicy,
    pub topology_manager_policy: TopologyManagerPolicy,
    pub topology_manager_scope: TopologyManagerScope,
    pub topology_manager_policy_options: BTreeMap<String, String>,
    /// A CPU list, not parsed.
    pub reserved_system_cpus: Option<String>,
    pub system_reserved: ResourceList,
    pub kube_reserved: ResourceList,
    pub reserved_memory: Vec<MemoryReservation>,
    /// The value as written; [`KubeletConfig::hard_eviction`] returns the effective thresholds.
    pub eviction_hard: Option<Thresholds>,
    pub eviction_soft: Thresholds,
    pub eviction_soft_grace_period: BTreeMap<EvictionSignal, Duration>,
    pub eviction_minimum_reclaim: Thresholds,
    pub merge_default_eviction_settings: bool,
    /// Percent of a resource that is kept for Guaranteed pods.
    pub qos_reserved: BTreeMap<String, u8>,
    pub enforce_node_allocatable: Vec<Enforcement>,
    pub system_reserved_cgroup: Option<String>,
    pub kube_reserved_cgroup: Option<String>,
    pub cgroup_driver: CgroupDriver,
    pub cgroup_root: Option<String>,
    pub cgroups_per_qos: bool,
    pub cpu_cfs_quota: bool,
    pub cpu_cfs_quota_period: Duration,
    pub memory_throttling_factor: f64,
    pub memory_swap: SwapBehavior,
    /// Refuses a machine with swap; `None` if the configuration does not say.
    pub fail_swap_on: Option<bool>,
    /// Refuses a machine with cgroup v1; `None` if the configuration does not say.
    pub fail_cgroup_v1: Option<bool>,
    pub single_process_oom_kill: Option<bool>,
    pub container_runtime_endpoint: Option<String>,
    pub feature_gates: FeatureGates,
    /// `None`: no limit of its own.
    pub pod_pids_limit: Option<u64>,
    pub max_pods: u32,
    /// Zero: no limit by cores.
    pub pods_per_core: u32,
    pub static_pod_path: Option<String>,
    pub windows_affinity: WindowsAffinity,
    /// Fields without a typed reader, as written. Their values have been checked.
    pub untyped: Untyped,
}

impl Default for KubeletConfig {
    /// Returns the configuration of a kubelet with an empty file.
    fn default() -> KubeletConfig {
        KubeletConfig {
            cpu_manager_policy: CpuManagerPolicy::default(),
            cpu_manager_policy_options: BTreeMap::new(),
            cpu_manager_reconcile_period: Duration::from_secs(10),
            memory_manager_policy: MemoryManagerPolicy::default(),
            topology_manager_policy: TopologyManagerPolicy::default(),
            topology_manager_scope: TopologyManagerScope::default(),
            topology_manager_policy_options: BTreeMap::new(),
            reserved_system_cpus: None,
            system_reserved: ResourceList::new(),
            kube_reserved: ResourceList::new(),
            reserved_memory: Vec::new(),
            eviction_hard: None,
            eviction_soft: Thresholds::new(),
            eviction_soft_grace_period: BTreeMap::new(),
            eviction_minimum_reclaim: Thresholds::new(),
            merge_default_eviction_settings: false,
            qos_reserved: BTreeMap::new(),
            enforce_node_allocatable: vec![Enforcement::Pods],
            system_reserved_cgroup: None,
            kube_reserved_cgroup: None,
            cgroup_driver: CgroupDriver::default(),
            cgroup_root: None,
            cgroups_per_qos: true,
            cpu_cfs_quota: true,
            cpu_cfs_quota_period: Duration::from_millis(100),
            memory_throttling_factor: 0.9,
            memory_swap: SwapBehavior::default(),
            fail_swap_on: None,
            fail_cgroup_v1: None,
            single_process_oom_kill: None,
            container_runtime_endpoint: None,
            feature_gates: FeatureGates::default(),
            pod_pids_limit: None,
            max_pods: 110,
            pods_per_core: 0,
            static_pod_path: None,
            windows_affinity: WindowsAffinity::default(),
            untyped: Untyped::new(),
        }
    }
}

impl KubeletConfig {
    /// Returns the effective hard eviction thresholds: those given, with the defaults if none are
    /// given or if merging is enabled.
    #[must_use]
    pub fn hard_eviction(&self, os: OsName) -> Thresholds {
        let defaults = eviction::default_hard(os);
        match &self.eviction_hard {
            None => defaults,
            Some(given) if self.merge_default_eviction_settings => {
                defaults.into_iter().chain(given.clone()).collect()
            }
            Some(given) => given.clone(),
        }
    }

    /// Returns the bytes of memory that the hard eviction threshold keeps from pods on a machine
    /// with `capacity` bytes.
    #[must_use]
    pub fn memory_kept_for_eviction(&self, os: OsName, capacity: u64) -> u64 {
        match self.hard_eviction(os).get(&EvictionSignal::MemoryAvailable) {
            Some(threshold) => threshold.of(capacity),
            None => 0,
        }
    }

    /// Returns the total reservation of system and Kubernetes daemons, without eviction thresholds.
    #[must_use]
    pub fn reserved(&self) -> ResourceList {
        let mut sum = self.system_reserved.clone();
        crate::resources::add(&mut sum, &self.kube_reserved);
        sum
    }

    /// Returns the amount of `resource` that node allocatable leaves out on a machine with
    /// `capacity` of it: the reservations, and for memory the hard eviction threshold. The memory
    /// manager requires `reservedMemory` to add up to exactly this.
    #[must_use]
    pub fn kept_from_pods(&self, os: OsName, resource: &str, capacity: u64) -> Quantity {
        let reserved = self.reserved().remove(resource).unwrap_or_default();
        if resource != crate::resources::MEMORY {
            return reserved;
        }
        let eviction = self.memory_kept_for_eviction(os, capacity);
        let eviction = Quantity::from_bytes(eviction);
        let zero = Quantity::from_i64(0, Format::BinarySi);
        let sum = zero.checked_add(&reserved).and_then(|sum| sum.checked_add(&eviction));
        sum.unwrap_or(reserved)
    }
}

/// Reads a duration. A negative one has an error of its own, because no field takes one.
fn read_duration(at: &At<'_>, findings: &mut Findings) -> Option<Duration> {
    // A number is rejected, even `0`, as by a kubelet.
    let Some(text) = at.text(&mut Findings::default()) else {
        at.expected("a duration such as 10s, 100ms or 1m30s", findings);
        return None;
    };
    let duration = duration_of(&text);
    if duration.is_none() {
        match text.strip_prefix('-').and_then(duration_of) {
            Some(_) => {
                let path = at.path();
                at.error(
                    format!("invalid configuration: {path} {text} must not be negative"),
                    findings,
                );
            }
            None => at.expected("a duration such as 10s, 100ms or 1m30s", findings),
        }
    }
    duration
}

fn duration_of(text: &str) -> Option<Duration> {
    crate::duration::parse(text)
}

#[cfg(test)]
mod tests;
