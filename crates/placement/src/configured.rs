//! A machine with a kubelet's configuration: the policies of its managers and its allocatable
//! resources.
//!
//! Main type: [`Configured`]; [`Configured::new`] checks a configuration against a machine and
//! collects all errors, each as a [`Finding`] with the kubelet's message and a remedy. `objects`
//! reads the file, and [`crate::plan`] places pods.

use std::collections::BTreeMap;
use std::fmt;

use objects::kubelet_config::{
    CpuManagerPolicy, MemoryManagerPolicy, TopologyManagerPolicy, WindowsAffinity,
};
use objects::pod::OsName;
use objects::{FieldPath, Gate, KubeletConfig, Quantity, resources};

use crate::alignment::{Alignment, NodeLimit};
use crate::gates::Gates;
use crate::machine::Machine;
use crate::memory::reserve::Entry;
use crate::node::{CpuPolicy, MemoryPolicy, Node};
use crate::windows::AffinityMode;
use crate::{CpuSet, Topology};

mod advice;
mod capacity;
mod host;

pub use capacity::Capacity;
pub use host::HostConditions;

/// An error or warning about a field of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub path: FieldPath,
    /// The problem; the kubelet's message if it has one.
    pub message: String,
    /// The correct value.
    pub remedy: Option<String>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)?;
        match &self.remedy {
            Some(remedy) => write!(f, "; {remedy}"),
            None => Ok(()),
        }
    }
}

/// A checked configuration of one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configured {
    pub node: Node,
    /// The resources that the machine offers to pods in total.
    pub allocatable: Capacity,
    /// Problems that do not prevent a start.
    pub warnings: Vec<Finding>,
}

impl Configured {
    /// Checks a configuration on a machine; returns all errors.
    pub fn new(machine: &Machine, config: &KubeletConfig) -> Result<Configured, Vec<Finding>> {
        let mut check = Check {
            machine,
            topology: &machine.topology,
            config,
            gates: gates(config),
            errors: Vec::new(),
            warnings: Vec::new(),
        };
        check.gated_fields();
        let reserved_cpus = check.reserved_cpus();
        let allocatable = check.allocatable(&reserved_cpus);
        let (cpu, memory, alignment) = check.managers(&reserved_cpus);
        if !check.errors.is_empty() {
            return Err(check.errors);
        }
        let node = Node {
            topology: machine.topology.clone(),
            os: machine.os,
            cpu,
            memory,
            alignment,
            affinity_mode: match config.windows_affinity {
                WindowsAffinity::Union => AffinityMode::Union,
                WindowsAffinity::CpuOnly => AffinityMode::CpuOnly,
            },
        };
        Ok(Configured { node, allocatable, warnings: check.warnings })
    }

    /// Adds devices of the machine, such as `nvidia.com/gpu`.
    #[must_use]
    pub fn with_devices(mut self, devices: &BTreeMap<String, u64>) -> Configured {
        self.allocatable.others.extend(devices.iter().map(|(name, n)| (name.clone(), *n)));
        self
    }
}

/// Returns the gates that decisions depend on.
#[must_use]
pub fn gates(config: &KubeletConfig) -> Gates {
    let on = |gate: Gate| config.feature_gates.enabled(gate);
    Gates {
        cpu_policy_alpha_options: on(Gate::CpuManagerPolicyAlphaOptions),
        cpu_policy_beta_options: on(Gate::CpuManagerPolicyBetaOptions),
        windows_affinity: on(Gate::WindowsCpuAndMemoryAffinity),
    }
}

/// Returns the total memory of a machine.
#[must_use]
pub fn total_memory(topology: &Topology) -> u64 {
    topology.nodes().iter().fold(0, |sum: u64, node| sum.saturating_add(node.memory.0))
}

struct Check<'a> {
    machine: &'a Machine,
    topology: &'a Topology,
    config: &'a KubeletConfig,
    gates: Gates,
    errors: Vec<Finding>,
    warnings: Vec<Finding>,
}

/// The CPUs of `reservedSystemCPUs`, or the sum of the reserved amounts.
struct ReservedCpus {
    /// Empty if only an amount is given.
    cpus: CpuSet,
    amount: Quantity,
    /// `reservedSystemCPUs` is invalid and has been reported.
    broken: bool,
}

impl Check<'_> {
    fn error(&mut self, field: &str, message: impl Into<String>, remedy: Option<String>) {
        let path = FieldPath::of(field);
        self.errors.push(Finding { path, message: message.into(), remedy });
    }

    fn warn(&mut self, field: &str, message: impl Into<String>, remedy: Option<String>) {
        let path = FieldPath::of(field);
        self.warnings.push(Finding { path, message: message.into(), remedy });
    }

    /// Checks values that a kubelet accepts only with a feature gate.
    fn gated_fields(&mut self) {
        let config = self.config;
        let default = KubeletConfig::default();
        if config.cpu_cfs_quota_period != default.cpu_cfs_quota_period
            && !config.feature_gates.enabled(Gate::CustomCpuCfsQuotaPeriod)
        {
            let period = objects::duration::render(config.cpu_cfs_quota_period);
            let message = format!(
                "invalid configuration: cpuCFSQuotaPeriod (--cpu-cfs-quota-period) {period} requires \
                 feature gate {}",
                Gate::CustomCpuCfsQuotaPeriod
            );
            let remedy = format!("write featureGates: {{{}: true}}", Gate::CustomCpuCfsQuotaPeriod);
            self.error("cpuCFSQuotaPeriod", message, Some(remedy));
        }
        if config.feature_gates.enabled(Gate::MemoryQos) {
            return;
        }
        if config.memory_throttling_factor.to_bits() != default.memory_throttling_factor.to_bits() {
            let message = "invalid configuration: memoryThrottlingFactor must not be set when MemoryQoS \
                           feature gate is disabled";
            self.error("memoryThrottlingFactor", message, None);
        }
        let policy = config.untyped.get("memoryReservationPolicy");
        if policy.is_some_and(|policy| policy == "TieredReservation") {
            let message = "invalid configuration: memoryReservationPolicy \"TieredReservation\" requires \
                           MemoryQoS feature gate to be enabled";
            self.error("memoryReservationPolicy", message, None);
        }
    }

    /// `reservedSystemCPUs` replaces amounts of CPU reserved elsewhere, as in the kubelet.
    fn reserved_cpus(&mut self) -> ReservedCpus {
        const FIELD: &str = "reservedSystemCPUs";
        let by_amount = self.config.reserved().remove(resources::CPU);
        let Some(text) = &self.config.reserved_system_cpus else {
            let amount = by_amount.unwrap_or_default();
            return ReservedCpus { cpus: CpuSet::new(), amount, broken: false };
        };
        let broken =
            ReservedCpus { cpus: CpuSet::new(), amount: Quantity::from_milli(1000), broken: true };
        let cpus = match CpuSet::parse(text) {
            Ok(cpus) => cpus,
            Err(error) => {
                let remedy = format!("write a list such as \"{}\"", self.suggested_cpus());
                self.error(
                    FIELD,
                    format!("unable to parse reserved-cpus list: {error}"),
                    Some(remedy),
                );
                return broken;
            }
        };
        let all = self.topology.all_cpus();
        if !cpus.is_subset(all) {
            let missing = &cpus - all;
            let message = format!("reserved-cpus: {text} is not a subset of online-cpus: {all}");
            let remedy =
                format!("the machine has no CPU {missing}; \"{}\" would do", self.suggested_cpus());
            self.error(FIELD, message, Some(remedy));
            return broken;
        }
        if cpus.is_empty() {
            let amount = by_amount.unwrap_or_default();
            return ReservedCpus { cpus, amount, broken: false };
        }
        let amount = Quantity::from_milli(cpus.len() as i64 * 1000);
        if by_amount.is_some_and(|given| given != amount) {
            let message = format!(
                "replaces the cpu of systemReserved and kubeReserved: {} CPUs are reserved",
                cpus.len()
            );
            self.warn(FIELD, message, None);
        }
        ReservedCpus { cpus, amount, broken: false }
    }

    /// Computes the allocatable resources as the kubelet does.
    fn allocatable(&mut self, reserved: &ReservedCpus) -> Capacity {
        let (config, topology) = (self.config, self.topology);
        let cpus = topology.cpus().len() as u64 * 1000;
        let reserved_milli = u64::try_from(reserved.amount.milli_value()).unwrap_or(u64::MAX);
        let total = total_memory(topology);
        let kept = config.kept_from_pods(self.machine.os, resources::MEMORY, total);
        let kept_bytes = kept.checked_value().and_then(|n| u64::try_from(n).ok());
        let kept_bytes = kept_bytes.unwrap_or(u64::MAX);
        if reserved_milli > cpus {
            let capacity = Quantity::from_milli(cpus as i64);
            self.over_reserved("cpu", &reserved.amount, &capacity);
        } else if reserved_milli == cpus {
            let field =
                if reserved.cpus.is_empty() { "systemReserved.cpu" } else { "reservedSystemCPUs" };
            let remedy = format!("leave some: \"{}\" would do", self.suggested_cpus());
            self.error(field, "every CPU is reserved, so no pod would get any", Some(remedy));
        }
        if kept_bytes > total && total > 0 {
            self.over_reserved("memory", &kept, &Quantity::from_bytes(total));
        }
        let mut others: BTreeMap<String, u64> = BTreeMap::new();
        let mut in_pages = 0u64;
        for pages in topology.nodes().iter().flat_map(|node| &node.huge_pages) {
            let bytes = pages.page_size.0.saturating_mul(pages.count);
            in_pages = in_pages.saturating_add(bytes);
            let amount = others.entry(format!("hugepages-{}", pages.page_size)).or_default();
            *amount = amount.saturating_add(bytes);
        }
        for (name, amount) in &mut others {
            let reserved = config.reserved().remove(name).unwrap_or_default();
            *amount = amount.saturating_sub(u64::try_from(reserved.value()).unwrap_or(0));
        }
        let by_core = u64::from(config.pods_per_core) * topology.cpus().len() as u64;
        let most = u64::from(config.max_pods);
        Capacity {
            milli_cpus: cpus.saturating_sub(reserved_milli),
            // In a description without memory, the memory is unknown, not zero.
            memory: match total {
                0 => u64::MAX,
                _ => total.saturating_sub(kept_bytes).saturating_sub(in_pages),
            },
            pods: if by_core == 0 { most } else { most.min(by_core) },
            others,
        }
    }

    fn over_reserved(&mut self, resource: &str, reserved: &Quantity, capacity: &Quantity) {
        let message = format!(
            "invalid Node Allocatable configuration. Resource {resource:?} has a reservation of \
             {reserved} but capacity of {capacity}. Expected capacity >= reservation."
        );
        let remedy = format!(
            "reserve less than {capacity} in systemReserved and kubeReserved{}",
            if resource == "memory" { ", evictionHard included" } else { "" }
        );
        self.error(&format!("systemReserved.{resource}"), message, Some(remedy));
    }

    fn managers(&mut self, reserved: &ReservedCpus) -> (CpuPolicy, MemoryPolicy, Alignment) {
        let config = self.config;
        if self.machine.os == OsName::Windows && !self.gates.windows_affinity {
            self.warn_about_windows_gate();
            return (CpuPolicy::None, MemoryPolicy::None, Alignment::default());
        }
        let alignment = Alignment::new(
            &config.topology_manager_policy.to_string(),
            &config.topology_manager_scope.to_string(),
            &config.topology_manager_policy_options,
            self.topology,
            NodeLimit::None,
        );
        let alignment = alignment.unwrap_or_else(|error| {
            self.errors.push(advice::on_alignment(&error, self.topology));
            Alignment::default()
        });
        (self.cpu_manager(reserved, &alignment), self.memory_manager(), alignment)
    }

    fn cpu_manager(&mut self, reserved: &ReservedCpus, alignment: &Alignment) -> CpuPolicy {
        let config = self.config;
        let manager = CpuPolicy::new(
            &config.cpu_manager_policy.to_string(),
            &config.cpu_manager_policy_options,
            Some(&reserved.amount),
            &reserved.cpus,
            alignment.policy,
            &self.gates,
            self.topology,
        );
        manager.unwrap_or_else(|error| {
            let finding = advice::on_cpus(&error, self.topology, config);
            // An invalid list has already been reported.
            if !(reserved.broken && advice::is_about_reservation(&error)) {
                self.errors.push(finding);
            }
            CpuPolicy::None
        })
    }

    fn memory_manager(&mut self) -> MemoryPolicy {
        let config = self.config;
        if config.memory_manager_policy == MemoryManagerPolicy::None {
            if !config.reserved_memory.is_empty() {
                let policy = advice::memory_policy_of(self.machine.os);
                let remedy = format!("write memoryManagerPolicy: {policy}, or leave it out");
                let message = "does nothing while memoryManagerPolicy is None";
                self.warn("reservedMemory", message, Some(remedy));
            }
            return MemoryPolicy::None;
        }
        let total = total_memory(self.topology);
        if total == 0 {
            let remedy = "describe it: memory in a machine file, mem=64Gi in words".to_owned();
            let message = "the machine's memory is not known, so it cannot be managed";
            self.error("memoryManagerPolicy", message, Some(remedy));
            return MemoryPolicy::None;
        }
        let entries: Vec<Entry> = config
            .reserved_memory
            .iter()
            .map(|entry| Entry { numa_node: entry.numa_node.into(), limits: entry.limits.clone() })
            .collect();
        let kept = config.kept_from_pods(self.machine.os, resources::MEMORY, total);
        let mut expected = BTreeMap::from([(resources::MEMORY.to_owned(), kept.clone())]);
        let reserved = config.reserved();
        expected.extend(reserved.into_iter().filter(|(name, _)| resources::is_huge_pages(name)));
        self.errors.extend(advice::on_too_large_shares(&config.reserved_memory, self.topology));
        let policy = config.memory_manager_policy.to_string();
        let manager =
            MemoryPolicy::new(&policy, self.machine.os, &entries, &expected, self.topology);
        manager.unwrap_or_else(|error| {
            self.errors.push(advice::on_memory(&error, self.machine, config, &kept));
            MemoryPolicy::None
        })
    }

    /// Without the gate the managers are not started on Windows.
    fn warn_about_windows_gate(&mut self) {
        let config = self.config;
        let on = [
            ("cpuManagerPolicy", config.cpu_manager_policy != CpuManagerPolicy::None),
            ("memoryManagerPolicy", config.memory_manager_policy != MemoryManagerPolicy::None),
            (
                "topologyManagerPolicy",
                config.topology_manager_policy != TopologyManagerPolicy::None,
            ),
        ];
        for (field, _) in on.into_iter().filter(|(_, on)| *on) {
            let gate = Gate::WindowsCpuAndMemoryAffinity;
            let message = format!("does nothing on Windows while the feature gate {gate} is off");
            let remedy = format!("write featureGates: {{{gate}: true}}");
            self.warn(field, message, Some(remedy));
        }
        if config.memory_manager_policy == MemoryManagerPolicy::Static {
            let error =
                MemoryPolicy::new("Static", OsName::Windows, &[], &BTreeMap::new(), self.topology);
            if let Err(error) = error {
                let kept = Quantity::zero();
                self.errors.push(advice::on_memory(&error, self.machine, config, &kept));
            }
        }
    }

    fn suggested_cpus(&self) -> CpuSet {
        advice::suggested_cpus(self.topology)
    }
}
