//! Remedies for every configuration error of the managers.
//!
//! Entries: `on_cpus`, `on_memory`, `on_alignment`. The managers' messages come first; a remedy
//! names the field, the value and, if it can be computed, the exact text to write.

use objects::kubelet_config::MemoryReservation;
use objects::pod::OsName;
use objects::{FieldPath, KubeletConfig, Quantity, resources};

use super::{Finding, total_memory};
use crate::alignment::{AlignmentError, MAX_NODES_OPTION};
use crate::cpu::StaticCpusError;
use crate::cpu::options::{self, OptionsError};
use crate::machine::Machine;
use crate::memory::StaticMemoryError;
use crate::memory::reserve::ReserveError;
use crate::node::{CpuPolicyError, MemoryPolicyError};
use crate::reservation;
use crate::{Bytes, CpuSet, NumaId, Topology};

fn finding(field: &str, message: &impl ToString, remedy: impl Into<String>) -> Finding {
    Finding {
        path: FieldPath::of(field),
        message: message.to_string(),
        remedy: Some(remedy.into()),
    }
}

fn option(field: &str, name: &str, message: &impl ToString, remedy: String) -> Finding {
    Finding {
        path: FieldPath::of(field).key(name),
        message: message.to_string(),
        remedy: Some(remedy),
    }
}

/// Returns reserved CPUs that are valid on this machine.
pub(super) fn suggested_cpus(topology: &Topology) -> CpuSet {
    reservation::whole_cores(topology, reservation::usual_cpus(topology))
}

pub(super) fn memory_policy_of(os: OsName) -> &'static str {
    match os {
        OsName::Linux => "Static",
        OsName::Windows => "BestEffort",
    }
}

pub(super) fn is_about_reservation(error: &CpuPolicyError) -> bool {
    matches!(
        error,
        CpuPolicyError::NothingReserved
            | CpuPolicyError::Static(
                StaticCpusError::Reserve { .. } | StaticCpusError::UnknownReserved(_)
            )
    )
}

pub(super) fn on_cpus(
    error: &CpuPolicyError,
    topology: &Topology,
    config: &KubeletConfig,
) -> Finding {
    const POLICY: &str = "cpuManagerPolicy";
    const OPTIONS: &str = "cpuManagerPolicyOptions";
    match error {
        CpuPolicyError::UnknownPolicy(_) => finding(POLICY, error, "write none or static"),
        CpuPolicyError::ReservationUnknown | CpuPolicyError::NothingReserved => {
            let remedy = format!("write reservedSystemCPUs: \"{}\"", suggested_cpus(topology));
            finding(POLICY, error, remedy)
        }
        CpuPolicyError::NoneWithOptions(_) => {
            let remedy = "write cpuManagerPolicy: static, or leave the options out";
            finding(OPTIONS, error, remedy)
        }
        CpuPolicyError::Static(inner) => match inner {
            StaticCpusError::Options(inner) => match inner {
                OptionsError::Unknown(name) => {
                    let known = options::NAMES.join(", ");
                    option(OPTIONS, name, error, format!("there are {known}"))
                }
                OptionsError::Alpha(name) => {
                    let remedy = "write featureGates: {CPUManagerPolicyAlphaOptions: true}";
                    option(OPTIONS, name, error, remedy.to_owned())
                }
                OptionsError::Beta(name) => {
                    let remedy = "write featureGates: {CPUManagerPolicyBetaOptions: true}";
                    option(OPTIONS, name, error, remedy.to_owned())
                }
                OptionsError::BadValue { option: name, .. } => {
                    option(OPTIONS, name, error, "write \"true\" or \"false\"".to_owned())
                }
                OptionsError::Exclusive(first, second) => {
                    let remedy = format!("leave out {first} or {second}");
                    option(OPTIONS, second, error, remedy)
                }
            },
            StaticCpusError::AlignBySocketOnOneNode => {
                let name = options::ALIGN_BY_SOCKET;
                let remedy = format!("leave out {name} or write topologyManagerPolicy: restricted");
                option(OPTIONS, name, error, remedy)
            }
            StaticCpusError::AlignBySocketHardware => {
                let name = options::ALIGN_BY_SOCKET;
                let remedy = format!(
                    "leave out {name}: the machine has {} sockets and {} NUMA nodes with CPUs",
                    topology.sockets().len(),
                    topology.nodes_with_cpus().len()
                );
                option(OPTIONS, name, error, remedy)
            }
            StaticCpusError::Reserve { count, .. } => {
                let field = match config.reserved_system_cpus {
                    Some(_) => "reservedSystemCPUs",
                    None => "systemReserved.cpu",
                };
                let remedy = format!(
                    "{count} CPUs cannot be reserved on a machine with {}; write \
                     reservedSystemCPUs: \"{}\"",
                    topology.cpus().len(),
                    suggested_cpus(topology)
                );
                finding(field, error, remedy)
            }
            StaticCpusError::UnknownReserved(_) => {
                let remedy = format!(
                    "the machine has CPUs {}; \"{}\" would do",
                    topology.all_cpus(),
                    suggested_cpus(topology)
                );
                finding("reservedSystemCPUs", error, remedy)
            }
        },
    }
}

pub(super) fn on_memory(
    error: &MemoryPolicyError,
    machine: &Machine,
    config: &KubeletConfig,
    kept: &Quantity,
) -> Finding {
    const POLICY: &str = "memoryManagerPolicy";
    const RESERVED: &str = "reservedMemory";
    let topology = &machine.topology;
    match error {
        MemoryPolicyError::UnknownPolicy(_) => {
            let right = memory_policy_of(machine.os);
            finding(POLICY, error, format!("write None or {right}"))
        }
        MemoryPolicyError::WrongOs { instead, .. } => {
            finding(POLICY, error, format!("write memoryManagerPolicy: {instead}"))
        }
        MemoryPolicyError::Reserve(ReserveError::UnknownNode(id)) => {
            let at = config.reserved_memory.iter().position(|e| i64::from(e.numa_node) == *id);
            let path = FieldPath::of(RESERVED).index(at.unwrap_or(0)).child("numaNode");
            let ids: Vec<String> = topology.nodes().iter().map(|n| n.id.to_string()).collect();
            let remedy = format!("the machine has NUMA nodes {}", ids.join(", "));
            Finding { path, message: error.to_string(), remedy: Some(remedy) }
        }
        MemoryPolicyError::Reserve(ReserveError::NotEqual { kind, .. }) => {
            let remedy = match kind.as_str() {
                resources::MEMORY => right_shares(machine, config, kept),
                _ => format!("{kind} cannot be reserved: leave it out of reservedMemory"),
            };
            finding(RESERVED, error, remedy)
        }
        MemoryPolicyError::Reserve(ReserveError::NotExact) => {
            finding(RESERVED, error, "write whole bytes, such as 1Gi")
        }
        MemoryPolicyError::Static(StaticMemoryError::NothingReserved) => {
            let usual = Bytes(reservation::usual_memory(topology));
            let remedy =
                format!("write systemReserved: {{memory: {usual}}} and reservedMemory to match");
            finding(POLICY, error, remedy)
        }
    }
}

/// Returns the required sum and the exact text to write.
fn right_shares(machine: &Machine, config: &KubeletConfig, kept: &Quantity) -> String {
    let topology = &machine.topology;
    let total = total_memory(topology);
    let eviction = Bytes(config.memory_kept_for_eviction(machine.os, total));
    let reserved = config.reserved().remove(resources::MEMORY).unwrap_or_default();
    let sum = format!(
        "systemReserved and kubeReserved ({reserved}) and the hard eviction threshold ({eviction}) \
         make {kept}"
    );
    let bytes = kept.as_i64().and_then(|bytes| u64::try_from(bytes).ok());
    match bytes.and_then(|bytes| reservation::split_memory(topology, bytes)) {
        Some(shares) => format!("{sum}; write reservedMemory: {}", render_shares(&shares)),
        None => sum,
    }
}

/// Renders `[{numaNode: 0, limits: {memory: 1Gi}}, …]`.
fn render_shares(shares: &[(NumaId, u64)]) -> String {
    let entries: Vec<String> = shares
        .iter()
        .map(|(id, bytes)| format!("{{numaNode: {id}, limits: {{memory: {}}}}}", Bytes(*bytes)))
        .collect();
    format!("[{}]", entries.join(", "))
}

/// Reports shares larger than their node: the sum may be right and the machine still cannot provide
/// them.
pub(super) fn on_too_large_shares(
    entries: &[MemoryReservation],
    topology: &Topology,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let Some(position) = topology.node_position(NumaId(entry.numa_node)) else { continue };
        let room = reservation::ordinary_memory(&topology.nodes()[position]);
        let Some(amount) = entry.limits.get(resources::MEMORY) else { continue };
        let bytes = amount.checked_value().and_then(|n| u64::try_from(n).ok());
        if bytes.is_none_or(|bytes| bytes > room) {
            let limits = FieldPath::of("reservedMemory").index(index).child("limits");
            findings.push(Finding {
                path: limits.child(resources::MEMORY),
                message: format!("{amount} is more than NUMA node {} has", entry.numa_node),
                remedy: Some(format!(
                    "it has {} besides huge pages; share the rest out to other nodes",
                    Bytes(room)
                )),
            });
        }
    }
    findings
}

pub(super) fn on_alignment(error: &AlignmentError, topology: &Topology) -> Finding {
    const OPTIONS: &str = "topologyManagerPolicyOptions";
    let nodes = topology.nodes().len();
    match error {
        AlignmentError::UnknownPolicy(_) => finding(
            "topologyManagerPolicy",
            error,
            "write none, best-effort, restricted or single-numa-node",
        ),
        AlignmentError::UnknownScope(_) => {
            finding("topologyManagerScope", error, "write container or pod")
        }
        AlignmentError::UnknownOption(name) => {
            let remedy = format!("there are prefer-closest-numa-nodes and {MAX_NODES_OPTION}");
            option(OPTIONS, name, error, remedy)
        }
        AlignmentError::BadValue { option: name, .. } => {
            option(OPTIONS, name, error, "write \"true\" or \"false\"".to_owned())
        }
        AlignmentError::BadInteger { option: name, .. } => {
            option(OPTIONS, name, error, "write a whole number, 8 or more".to_owned())
        }
        AlignmentError::TooFewNodesAllowed(name) => {
            option(OPTIONS, name, error, "write a whole number, 8 or more".to_owned())
        }
        AlignmentError::TooManyNodes(_) => {
            let remedy = format!(
                "the machine has {nodes}; write \"{nodes}\" or leave the option out: Berth needs \
                 no limit"
            );
            option(OPTIONS, MAX_NODES_OPTION, error, remedy)
        }
        AlignmentError::NoDistances => {
            let remedy = "the machine tells no distances; leave the option out".to_owned();
            option(OPTIONS, crate::alignment::PREFER_CLOSEST, error, remedy)
        }
    }
}
