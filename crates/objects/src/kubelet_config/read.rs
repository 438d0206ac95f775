//! Reads and checks the configuration file, field by field, and collects all errors.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::names::{MEMORY_SWAP, RESERVED_MEMORY};
use super::{
    API_VERSION, CPU_POLICY_OPTIONS, Enforcement, EvictionSignal, KIND, KubeletConfig,
    MemoryReservation, TOPOLOGY_POLICY_OPTIONS, Threshold, Thresholds, checks, fields, keywords,
    nested, read_duration,
};
use crate::duration;
use crate::feature_gates::{FeatureGates, GateError, parse_bool};
use crate::resources::{self, CPU, EPHEMERAL_STORAGE, MEMORY, ResourceList};
use crate::suggest::nearest;
use crate::yaml::read::{At, Findings, Object};
use crate::yaml::{self, Mark, Problem, YamlError, did_you_mean};

/// Reads a configuration file. Returns the configuration with warnings, or all errors and warnings.
pub fn read(text: &str) -> Result<(KubeletConfig, Vec<YamlError>), Findings> {
    let (documents, errors) = yaml::parse(text);
    let mut findings = Findings { errors, warnings: Vec::new() };
    let mut config = KubeletConfig::default();
    match documents.as_slice() {
        [document] => {
            let at = At::root(document);
            if let Some(object) = at.object(&mut findings) {
                check_type(&object, &mut findings);
                object.refuse_unknown(&fields::names(), &mut findings);
                config = Reader { object: &object, findings: &mut findings }.config();
            }
        }
        [] if findings.errors.is_empty() => {
            let message = format!(
                "the file is empty; it should begin with \"apiVersion: {API_VERSION}\" and \"kind: {KIND}\""
            );
            findings.errors.push(whole_file(Mark::START, message));
        }
        [] => {}
        [_, second, ..] => {
            let message = "a second document; a configuration file has one".to_owned();
            findings.errors.push(whole_file(second.mark, message));
        }
    }
    let findings = findings.sorted();
    if findings.errors.is_empty() { Ok((config, findings.warnings)) } else { Err(findings) }
}

fn whole_file(mark: Mark, message: String) -> YamlError {
    YamlError { mark, path: crate::FieldPath::root(), problem: Problem::Other(message) }
}

fn check_type(object: &Object<'_>, findings: &mut Findings) {
    for (field, right) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        match object.field(field) {
            Some(at) => {
                if at.text(findings).is_some_and(|text| text != right) {
                    at.expected(format!("{right:?}"), findings);
                }
            }
            None => findings.errors.push(YamlError {
                mark: object.mark(),
                path: object.at.path().child(field),
                problem: Problem::Other(format!("missing; write \"{field}: {right}\"")),
            }),
        }
    }
}

struct Reader<'a, 'f> {
    object: &'a Object<'a>,
    findings: &'f mut Findings,
}

impl Reader<'_, '_> {
    fn config(mut self) -> KubeletConfig {
        let base = KubeletConfig::default();
        let config = KubeletConfig {
            cpu_manager_policy: self.word("cpuManagerPolicy"),
            cpu_manager_policy_options: self.field("cpuManagerPolicyOptions", cpu_options),
            cpu_manager_reconcile_period: self
                .duration("cpuManagerReconcilePeriod", base.cpu_manager_reconcile_period),
            memory_manager_policy: self.word("memoryManagerPolicy"),
            topology_manager_policy: self.word("topologyManagerPolicy"),
            topology_manager_scope: self.word("topologyManagerScope"),
            topology_manager_policy_options: self
                .field("topologyManagerPolicyOptions", topology_options),
            reserved_system_cpus: self.text_like("reservedSystemCPUs"),
            system_reserved: self.field("systemReserved", reservation),
            kube_reserved: self.field("kubeReserved", reservation),
            reserved_memory: self.field("reservedMemory", reserved_memory),
            eviction_hard: self
                .object
                .field("evictionHard")
                .map(|at| thresholds(&at, Bound::AboveZero, self.findings)),
            eviction_soft: self.field("evictionSoft", |at, f| thresholds(at, Bound::AboveZero, f)),
            eviction_soft_grace_period: self.field("evictionSoftGracePeriod", grace_periods),
            eviction_minimum_reclaim: self
                .field("evictionMinimumReclaim", |at, f| thresholds(at, Bound::NotNegative, f)),
            merge_default_eviction_settings: self.boolean("mergeDefaultEvictionSettings", false),
            qos_reserved: self.field("qosReserved", qos_reserved),
            enforce_node_allocatable: match self.object.field("enforceNodeAllocatable") {
                Some(at) => enforcements(&at, self.findings),
                None => base.enforce_node_allocatable,
            },
            system_reserved_cgroup: self.text("systemReservedCgroup"),
            kube_reserved_cgroup: self.text("kubeReservedCgroup"),
            cgroup_driver: self.word("cgroupDriver"),
            cgroup_root: self.text("cgroupRoot"),
            cgroups_per_qos: self.boolean("cgroupsPerQOS", base.cgroups_per_qos),
            cpu_cfs_quota: self.boolean("cpuCFSQuota", base.cpu_cfs_quota),
            cpu_cfs_quota_period: self.cfs_period(base.cpu_cfs_quota_period),
            memory_throttling_factor: self.throttling_factor(base.memory_throttling_factor),
            memory_swap: self.field("memorySwap", swap).unwrap_or_default(),
            fail_swap_on: self.switch("failSwapOn"),
            fail_cgroup_v1: self.switch("failCgroupV1"),
            single_process_oom_kill: self.switch("singleProcessOOMKill"),
            container_runtime_endpoint: self.text("containerRuntimeEndpoint"),
            feature_gates: self.field("featureGates", feature_gates),
            pod_pids_limit: self
                .integer("podPidsLimit", -1, i64::MAX)
                .and_then(|limit| u64::try_from(limit).ok())
                .filter(|limit| *limit > 0),
            // Zero stands for the default, as upstream has it.
            max_pods: match self.count("maxPods", base.max_pods) {
                0 => base.max_pods,
                most => most,
            },
            pods_per_core: self.count("podsPerCore", base.pods_per_core),
            static_pod_path: self.text("staticPodPath"),
            windows_affinity: self.word("windowsAffinity"),
            untyped: self.object.untyped(&fields::typed()),
        };
        let (object, findings) = (self.object, self.findings);
        checks::types(object, findings);
        checks::values(object, findings);
        nested::check(object, findings);
        checks::together(object, &config, findings);
        checks::without_effect(object, &config, findings);
        config
    }

    fn field<T: Default>(
        &mut self,
        name: &str,
        read: impl FnOnce(&At<'_>, &mut Findings) -> T,
    ) -> T {
        self.object.field(name).map(|at| read(&at, self.findings)).unwrap_or_default()
    }

    fn word<T: keywords::Keyword + Default>(&mut self, name: &str) -> T {
        self.field(name, keywords::read::<T>).unwrap_or_default()
    }

    fn text(&mut self, name: &str) -> Option<String> {
        self.field(name, |at, findings| at.text(findings)).filter(|text| !text.is_empty())
    }

    fn text_like(&mut self, name: &str) -> Option<String> {
        self.field(name, |at, findings| at.text_like(findings)).filter(|text| !text.is_empty())
    }

    fn boolean(&mut self, name: &str, default: bool) -> bool {
        self.switch(name).unwrap_or(default)
    }

    /// Reads a boolean whose absence has a meaning of its own.
    fn switch(&mut self, name: &str) -> Option<bool> {
        self.field(name, |at, findings| at.boolean(findings))
    }

    fn integer(&mut self, name: &str, least: i64, most: i64) -> Option<i64> {
        self.field(name, |at, findings| at.integer(least, most, findings))
    }

    fn count(&mut self, name: &str, default: u32) -> u32 {
        let number = checks::number(self.object, name, self.findings);
        number.and_then(|n| u32::try_from(n).ok()).unwrap_or(default)
    }

    /// Reads a duration; zero stands for the default, as upstream has it.
    fn duration(&mut self, name: &str, default: Duration) -> Duration {
        let given = self.field(name, read_duration);
        given.filter(|duration| !duration.is_zero()).unwrap_or(default)
    }

    fn cfs_period(&mut self, default: Duration) -> Duration {
        let period = self.duration("cpuCFSQuotaPeriod", default);
        if !(Duration::from_millis(1)..=Duration::from_secs(1)).contains(&period)
            && let Some(at) = self.object.field("cpuCFSQuotaPeriod")
        {
            let message = format!(
                "invalid configuration: cpuCFSQuotaPeriod (--cpu-cfs-quota-period) {} must be between \
                 1ms and 1sec, inclusive",
                duration::render(period)
            );
            at.error(message, self.findings);
        }
        period
    }

    fn throttling_factor(&mut self, default: f64) -> f64 {
        let Some(at) = self.object.field("memoryThrottlingFactor") else { return default };
        let Some(factor) = at.number(self.findings) else { return default };
        if factor > 0.0 && factor <= 1.0 {
            return factor;
        }
        let message = format!(
            "invalid configuration: memoryThrottlingFactor {factor} must be greater than 0 and less \
             than or equal to 1.0"
        );
        at.error(message, self.findings);
        default
    }
}

/// Reads a map of options with known names. `check` returns the expected form of a wrong value.
fn options(
    at: &At<'_>,
    known: &[&str],
    what: &str,
    check: fn(&str, &str) -> Result<(), &'static str>,
    findings: &mut Findings,
) -> BTreeMap<String, String> {
    let Some(object) = at.object(findings) else { return BTreeMap::new() };
    let mut options = BTreeMap::new();
    for (name, at) in object.fields() {
        let Some(value) = at.text_like(findings) else { continue };
        if !known.contains(&name) {
            let meant = did_you_mean(nearest(name, known.iter().copied()));
            at.error(format!("unknown {what} option: {name:?}{meant}"), findings);
        } else if let Err(right) = check(name, &value) {
            let message = format!("bad value for option {name:?}: {value:?}; expected {right}");
            at.error(message, findings);
        } else {
            options.insert(name.to_owned(), value);
        }
    }
    options
}

fn cpu_options(at: &At<'_>, findings: &mut Findings) -> BTreeMap<String, String> {
    options(at, &CPU_POLICY_OPTIONS, "CPU Manager Policy", |_, value| truth(value), findings)
}

fn topology_options(at: &At<'_>, findings: &mut Findings) -> BTreeMap<String, String> {
    let check = |name: &str, value: &str| match name {
        "max-allowable-numa-nodes" => match value.parse::<u32>() {
            Ok(nodes) if nodes >= 8 => Ok(()),
            _ => Err("a whole number, 8 or more"),
        },
        _ => truth(value),
    };
    options(at, &TOPOLOGY_POLICY_OPTIONS, "Topology Manager Policy", check, findings)
}

fn truth(value: &str) -> Result<(), &'static str> {
    parse_bool(value).map(|_| ()).ok_or("true or false")
}

/// `systemReserved` and `kubeReserved`. Upstream requires the amounts as text; a bare number means
/// the same.
fn reservation(at: &At<'_>, findings: &mut Findings) -> ResourceList {
    const KNOWN: [&str; 4] = [CPU, MEMORY, EPHEMERAL_STORAGE, "pid"];
    let Some(object) = at.object(findings) else { return ResourceList::new() };
    let mut list = ResourceList::new();
    for (name, at) in object.fields() {
        let Some(amount) = at.quantity(findings) else { continue };
        if resources::is_huge_pages(name) {
            at.warn("upstream refuses to reserve huge pages here", findings);
        } else if !KNOWN.contains(&name) {
            let meant = did_you_mean(nearest(name, KNOWN));
            let message = format!("cannot reserve {name:?} resource{meant}");
            at.error(message, findings);
            continue;
        }
        if amount.is_negative() {
            let message = format!("resource quantity for {name:?} cannot be negative: {amount}");
            at.error(message, findings);
        } else if amount.checked_milli_value().is_none() {
            at.error(format!("{amount} is more than any machine has"), findings);
        } else {
            list.insert(name.to_owned(), amount);
        }
    }
    list
}

fn reserved_memory(at: &At<'_>, findings: &mut Findings) -> Vec<MemoryReservation> {
    let mut reservations = Vec::new();
    let mut seen = BTreeSet::new();
    for item in at.items(findings) {
        let Some(object) = item.object(findings) else { continue };
        object.refuse_unknown(RESERVED_MEMORY, findings);
        let numa_node = match object.field("numaNode") {
            Some(at) => {
                at.integer(0, i32::MAX.into(), findings).and_then(|n| u32::try_from(n).ok())
            }
            // Go's zero value: upstream takes a missing number as node 0.
            None => Some(0),
        };
        let Some(numa_node) = numa_node else { continue };
        let Some(limits) = object.field("limits") else {
            item.error("limits is missing; write limits: {memory: 1Gi}", findings);
            continue;
        };
        let Some(limits) = limits.object(findings) else { continue };
        let mut list = ResourceList::new();
        for (name, at) in limits.fields() {
            let Some(amount) = at.quantity(findings) else { continue };
            let complaint = if name != MEMORY && resources::huge_page_size(name).is_none() {
                format!(
                    "invalid configuration: the limit type {name:?} for NUMA node {numa_node} is \
                     not supported, only [memory hugepages-<HugePageSize>] is accepted"
                )
            } else if !seen.insert((numa_node, name.to_owned())) {
                format!(
                    "invalid configuration: the reserved memory has a duplicate value for NUMA \
                     node {numa_node} and resource {name:?}"
                )
            } else if amount.sign() <= 0 {
                format!(
                    "invalid configuration: reserved memory may not be zero for NUMA node \
                     {numa_node} and resource {name:?}"
                )
            } else if amount.checked_value().is_none() {
                format!("{amount} is more than any machine has")
            } else {
                list.insert(name.to_owned(), amount);
                continue;
            };
            at.error(complaint, findings);
        }
        reservations.push(MemoryReservation { numa_node, limits: list });
    }
    reservations
}

#[derive(Clone, Copy, PartialEq)]
enum Bound {
    AboveZero,
    NotNegative,
}

fn thresholds(at: &At<'_>, bound: Bound, findings: &mut Findings) -> Thresholds {
    let Some(object) = at.object(findings) else { return Thresholds::new() };
    let mut thresholds = Thresholds::new();
    for (name, at) in object.fields() {
        let signal = keywords::interpret::<EvictionSignal>(name, &at, findings);
        let Some(text) = at.text_like(findings) else { continue };
        let threshold = match Threshold::parse(&text) {
            Ok(threshold) => threshold,
            Err(message) => {
                at.error(message, findings);
                continue;
            }
        };
        if let Threshold::Quantity(quantity) = &threshold {
            let message = match (bound, quantity.sign()) {
                (Bound::AboveZero, ..=0) => {
                    format!("eviction threshold {name} must be positive: {quantity}")
                }
                (Bound::NotNegative, ..0) => {
                    format!("negative eviction minimum reclaim specified for {name}")
                }
                _ => String::new(),
            };
            if !message.is_empty() {
                at.error(message, findings);
                continue;
            }
        }
        if let Some(signal) = signal {
            thresholds.insert(signal, threshold);
        }
    }
    thresholds
}

fn grace_periods(at: &At<'_>, findings: &mut Findings) -> BTreeMap<EvictionSignal, Duration> {
    let Some(object) = at.object(findings) else { return BTreeMap::new() };
    let mut periods = BTreeMap::new();
    for (name, at) in object.fields() {
        let signal = keywords::interpret::<EvictionSignal>(name, &at, findings);
        if let (Some(period), Some(signal)) = (read_duration(&at, findings), signal) {
            periods.insert(signal, period);
        }
    }
    periods
}

fn qos_reserved(at: &At<'_>, findings: &mut Findings) -> BTreeMap<String, u8> {
    let Some(object) = at.object(findings) else { return BTreeMap::new() };
    object.refuse_unknown(&[MEMORY], findings);
    at.map_of(findings, |at, findings| {
        let text = at.text_like(findings)?;
        let percent = text.strip_suffix('%').and_then(|n| n.parse().ok()).filter(|n| *n <= 100);
        if percent.is_none() {
            at.expected("a percentage between 0% and 100%", findings);
        }
        percent
    })
}

fn enforcements(at: &At<'_>, findings: &mut Findings) -> Vec<Enforcement> {
    let items = at.items(findings);
    items.iter().filter_map(|item| keywords::read(item, findings)).collect()
}

fn swap(at: &At<'_>, findings: &mut Findings) -> Option<super::SwapBehavior> {
    let object = at.object(findings)?;
    object.refuse_unknown(MEMORY_SWAP, findings);
    keywords::read(&object.field("swapBehavior")?, findings)
}

/// An unknown gate is an error if its name is close to a known one. Others pass with a warning,
/// because upstream has more gates than are listed here.
fn feature_gates(at: &At<'_>, findings: &mut Findings) -> FeatureGates {
    let mut gates = FeatureGates::default();
    let Some(object) = at.object(findings) else { return gates };
    for (name, at) in object.fields() {
        let Some(value) = at.boolean(findings) else { continue };
        match gates.set_named(name, value) {
            Ok(()) => {}
            Err(GateError::Unknown { nearest: None, .. }) => {
                at.warn(
                    format!("feature gate {name} is not known here; it changes nothing"),
                    findings,
                );
            }
            Err(error) => at.error(error.to_string(), findings),
        }
    }
    gates
}
