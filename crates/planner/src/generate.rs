//! Generates a kubelet configuration with consistent reservations for a machine.
//!
//! Main entry: [`generate`], from a machine and [`GenerateOptions`] to commented YAML that has been
//! parsed and checked on that machine. The default options give the settings that Berth recommends,
//! which `berth plan` uses if no configuration is given.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use objects::kubelet_config::{
    self, CPU_POLICY_OPTIONS, CpuManagerPolicy, MemoryManagerPolicy, TOPOLOGY_POLICY_OPTIONS,
    TopologyManagerPolicy, TopologyManagerScope,
};
use objects::pod::OsName;
use objects::{Gate, KubeletConfig, YamlError};
use placement::configured::{Configured, Finding, total_memory};
use placement::cpu::options::{ACROSS_CORES, ALIGN_BY_SOCKET};
use placement::{Bytes, CpuSet, Machine, Topology, reservation};
use thiserror::Error;

use crate::report::rounded;

/// The CPUs to reserve for the system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReserveCpus {
    /// At least this many, as whole cores.
    Count(usize),
    List(CpuSet),
}

/// The desired settings. The default is Berth's recommendation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GenerateOptions {
    pub cpu_manager: CpuManagerPolicy,
    /// `None`: on, with the policy of the machine's operating system, if its memory is known.
    pub memory_manager: Option<MemoryManagerPolicy>,
    pub topology_manager: TopologyManagerPolicy,
    pub scope: TopologyManagerScope,
    /// Options of the CPU and the topology manager, by name.
    pub policy_options: BTreeMap<String, String>,
    /// `None`: a core for every 64 CPUs.
    pub reserved_cpus: Option<ReserveCpus>,
    /// Bytes for the system, without the eviction threshold. `None`: a 64th of the machine.
    pub reserved_memory: Option<u64>,
    pub max_pods: Option<u32>,
}

impl Default for GenerateOptions {
    fn default() -> GenerateOptions {
        GenerateOptions {
            cpu_manager: CpuManagerPolicy::Static,
            memory_manager: None,
            topology_manager: TopologyManagerPolicy::BestEffort,
            scope: TopologyManagerScope::Container,
            policy_options: BTreeMap::new(),
            reserved_cpus: None,
            reserved_memory: None,
            max_pods: None,
        }
    }
}

/// A checked configuration with its text.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    pub text: String,
    pub config: KubeletConfig,
    pub configured: Configured,
}

/// The reason why no configuration is possible.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum GenerateError {
    #[error(
        "there is no option {name:?}; there are {}",
        [CPU_POLICY_OPTIONS.join(", "), TOPOLOGY_POLICY_OPTIONS.join(", ")].join(", ")
    )]
    UnknownOption { name: String },
    #[error("{wanted} CPUs cannot be reserved: the machine has {has} and pods need at least one")]
    TooManyCpus { wanted: usize, has: usize },
    #[error("{} of memory cannot be reserved: the machine has {}", Bytes(*.wanted), Bytes(*.has))]
    TooMuchMemory { wanted: u64, has: u64 },
    #[error("the machine's memory is not known, so none can be reserved; describe it (mem=64Gi)")]
    MemoryUnknown,
    #[error("{}", lines(.0))]
    Refused(Vec<Finding>),
    #[error("{}", lines(.0))]
    Unreadable(Vec<YamlError>),
}

fn lines<T: ToString>(list: &[T]) -> String {
    list.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// Generates a configuration for this machine.
pub fn generate(machine: &Machine, options: &GenerateOptions) -> Result<Generated, GenerateError> {
    let text = Writer { machine, topology: &machine.topology, options }.text()?;
    let (config, _) =
        kubelet_config::read(&text).map_err(|found| GenerateError::Unreadable(found.errors))?;
    let configured = Configured::new(machine, &config).map_err(GenerateError::Refused)?;
    Ok(Generated { text, config, configured })
}

struct Writer<'a> {
    machine: &'a Machine,
    topology: &'a Topology,
    options: &'a GenerateOptions,
}

impl Writer<'_> {
    fn text(&self) -> Result<String, GenerateError> {
        let mut out = self.headline();
        for part in [
            self.gates(),
            self.cpus()?,
            self.memory()?,
            self.alignment(),
            self.options.max_pods.map(|most| format!("maxPods: {most}\n")).unwrap_or_default(),
        ] {
            if !part.is_empty() {
                out.push('\n');
                out.push_str(&part);
            }
        }
        Ok(out)
    }

    fn headline(&self) -> String {
        let topology = self.topology;
        let memory = match total_memory(topology) {
            0 => "memory unknown".to_owned(),
            total => format!("{} of memory", rounded(Bytes(total))),
        };
        let name = match self.machine.name.as_str() {
            "" => "For a machine".to_owned(),
            name => format!("For {name}"),
        };
        format!(
            "# {name} with {}: {}, {}, {}, {memory}.\n\
             apiVersion: {}\nkind: {}\n",
            self.machine.os,
            counted(topology.cpus().len(), "CPU"),
            counted(topology.cores().len(), "core"),
            counted(topology.nodes().len(), "NUMA node"),
            kubelet_config::API_VERSION,
            kubelet_config::KIND,
        )
    }

    fn memory_policy(&self) -> MemoryManagerPolicy {
        let usual = match self.machine.os {
            OsName::Linux => MemoryManagerPolicy::Static,
            OsName::Windows => MemoryManagerPolicy::BestEffort,
        };
        let known = total_memory(self.topology) > 0;
        self.options.memory_manager.unwrap_or(if known { usual } else { MemoryManagerPolicy::None })
    }

    fn gates(&self) -> String {
        let options = self.options;
        let mut gates = String::new();
        let manages = options.cpu_manager != CpuManagerPolicy::None
            || self.memory_policy() != MemoryManagerPolicy::None;
        if self.machine.os == OsName::Windows && manages {
            let _ = writeln!(
                gates,
                "  # Without this gate the managers do nothing on Windows.\n  {}: true",
                Gate::WindowsCpuAndMemoryAffinity
            );
        }
        if [ALIGN_BY_SOCKET, ACROSS_CORES]
            .iter()
            .any(|name| options.policy_options.contains_key(*name))
        {
            let _ = writeln!(
                gates,
                "  # For options of the CPU manager that are not settled yet.\n  {}: true",
                Gate::CpuManagerPolicyAlphaOptions
            );
        }
        if gates.is_empty() { gates } else { format!("featureGates:\n{gates}") }
    }

    fn cpus(&self) -> Result<String, GenerateError> {
        let options = self.options;
        let mut out = String::new();
        let managed = options.cpu_manager == CpuManagerPolicy::Static;
        if managed {
            out += "# Containers of Guaranteed pods that ask for whole CPUs get CPUs of their own.\n\
                    cpuManagerPolicy: static\n";
            out += &self.policy_options("cpuManagerPolicyOptions", &CPU_POLICY_OPTIONS)?;
        }
        let reserved = match &options.reserved_cpus {
            Some(ReserveCpus::List(cpus)) => cpus.clone(),
            Some(ReserveCpus::Count(0)) if !managed => CpuSet::new(),
            Some(ReserveCpus::Count(count)) => {
                if *count >= self.topology.cpus().len() {
                    let has = self.topology.cpus().len();
                    return Err(GenerateError::TooManyCpus { wanted: *count, has });
                }
                reservation::whole_cores(self.topology, (*count).max(1))
            }
            None if !managed => CpuSet::new(),
            None => {
                let usual = reservation::usual_cpus(self.topology);
                reservation::whole_cores(self.topology, usual)
            }
        };
        // Reserving whole cores is optional; a machine with one core must still have CPUs for pods.
        let reserved = if reserved.len() == self.topology.cpus().len()
            && !matches!(options.reserved_cpus, Some(ReserveCpus::List(_)))
        {
            let half = reserved.len() / 2;
            if half == 0 {
                return Err(GenerateError::TooManyCpus { wanted: 1, has: reserved.len() });
            }
            reserved.iter().take(half).collect()
        } else {
            reserved
        };
        if !reserved.is_empty() {
            let cores = self.topology.cores().iter();
            let whole = cores.filter(|core| core.cpus.is_subset(&reserved)).count();
            let cpus = counted(reserved.len(), "CPU");
            let note = match whole {
                0 => cpus,
                _ => format!("{cpus} ({})", counted(whole, "whole core")),
            };
            let _ = write!(
                out,
                "# Kept for the system and the kubelet: {note}.\nreservedSystemCPUs: \"{reserved}\"\n"
            );
        }
        Ok(out)
    }

    fn memory(&self) -> Result<String, GenerateError> {
        let policy = self.memory_policy();
        let managed = policy != MemoryManagerPolicy::None;
        let total = total_memory(self.topology);
        if total == 0 && (managed || self.options.reserved_memory.is_some()) {
            return Err(GenerateError::MemoryUnknown);
        }
        let eviction = KubeletConfig::default().memory_kept_for_eviction(self.machine.os, total);
        let too_much = |wanted: u64| GenerateError::TooMuchMemory { wanted, has: total };
        let mut out = String::new();
        if !managed {
            if let Some(bytes) = self.options.reserved_memory {
                if bytes.saturating_add(eviction) > total {
                    return Err(too_much(bytes));
                }
                let _ = write!(out, "systemReserved:\n  memory: {}\n", Bytes(bytes));
            }
            return Ok(out);
        }
        let usual = || reservation::usual_memory(self.topology);
        let reserved = self.options.reserved_memory.unwrap_or_else(usual);
        let sum = reserved.checked_add(eviction).ok_or_else(|| too_much(reserved))?;
        let shares =
            reservation::split_memory(self.topology, sum).ok_or_else(|| too_much(reserved))?;
        let what = match policy {
            MemoryManagerPolicy::BestEffort => "are placed by their memory as far as Windows can",
            _ => "get memory from NUMA nodes of their own choice",
        };
        let _ = write!(
            out,
            "# Containers of Guaranteed pods {what}.\n\
             memoryManagerPolicy: {policy}\n\
             systemReserved:\n  memory: {}\n\
             # Adds up to systemReserved and the hard eviction threshold ({} unless evictionHard\n\
             # says otherwise): {} in all.\n\
             reservedMemory:\n",
            Bytes(reserved),
            Bytes(eviction),
            Bytes(sum),
        );
        for (id, bytes) in shares {
            let _ = writeln!(out, "- numaNode: {id}\n  limits: {{memory: {}}}", Bytes(bytes));
        }
        Ok(out)
    }

    fn alignment(&self) -> String {
        let options = self.options;
        let what = match options.topology_manager {
            TopologyManagerPolicy::None => return String::new(),
            TopologyManagerPolicy::BestEffort => {
                "CPUs and memory come from the same NUMA nodes where that is possible."
            }
            TopologyManagerPolicy::Restricted => {
                "CPUs and memory come from the fewest NUMA nodes that can hold them, or not at all."
            }
            TopologyManagerPolicy::SingleNumaNode => {
                "CPUs and memory come from one NUMA node, or not at all."
            }
        };
        let mut out = format!("# {what}\ntopologyManagerPolicy: {}\n", options.topology_manager);
        if options.scope != TopologyManagerScope::Container {
            let _ = writeln!(out, "topologyManagerScope: {}", options.scope);
        }
        out += &self
            .policy_options("topologyManagerPolicyOptions", &TOPOLOGY_POLICY_OPTIONS)
            .unwrap_or_default();
        out
    }

    fn policy_options(&self, field: &str, names: &[&str]) -> Result<String, GenerateError> {
        let known = |name: &str| {
            CPU_POLICY_OPTIONS.contains(&name) || TOPOLOGY_POLICY_OPTIONS.contains(&name)
        };
        if let Some(name) = self.options.policy_options.keys().find(|name| !known(name)) {
            return Err(GenerateError::UnknownOption { name: name.clone() });
        }
        let mut out = String::new();
        for (name, value) in
            self.options.policy_options.iter().filter(|(n, _)| names.contains(&n.as_str()))
        {
            // A JSON string is a valid YAML string.
            let value = serde_json::Value::from(value.as_str());
            let _ = writeln!(out, "  {name}: {value}");
        }
        Ok(if out.is_empty() { out } else { format!("{field}:\n{out}") })
    }
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
