//! The effective settings of a configuration on a machine.
//!
//! Main type: [`View`]. It shows the decisions of [`Configured`].

use std::collections::BTreeMap;
use std::fmt::Write as _;

use objects::pod::OsName;
use objects::yaml::write;
use objects::{KubeletConfig, Quantity, resources};
use placement::configured::{Configured, total_memory};
use placement::node::{CpuPolicy, MemoryPolicy};
use placement::{Bytes, CpuSet, Machine, NumaId};
use serde::Serialize;

/// The effective settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct View {
    pub machine: String,
    pub os: OsName,
    pub cpu_manager_policy: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub cpu_manager_policy_options: BTreeMap<String, String>,
    pub memory_manager_policy: String,
    pub topology_manager_policy: String,
    pub topology_manager_scope: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub topology_manager_policy_options: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub feature_gates: Option<String>,
    /// Reserved for the system by the CPU manager.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_cpus: Option<CpuSet>,
    pub hard_eviction_memory: String,
    pub max_pods: u64,
    /// The total requests available to pods.
    pub allocatable: BTreeMap<String, String>,
    pub numa_nodes: Vec<NodeView>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeView {
    pub numa_node: NumaId,
    pub cpus: CpuSet,
    /// CPUs that can be allocated exclusively.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exclusive_cpus: Option<usize>,
    /// Memory that the memory manager can allocate, by resource.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub memory: BTreeMap<String, String>,
}

impl View {
    #[must_use]
    pub fn new(machine: &Machine, config: &KubeletConfig, configured: &Configured) -> View {
        let node = &configured.node;
        let topology = &node.topology;
        let ledger = node.empty_ledger();
        let policy = match &node.cpu {
            CpuPolicy::Static(policy) => Some(policy),
            CpuPolicy::None => None,
        };
        let free = policy.map(|policy| policy.allocatable(topology));
        let all = &configured.allocatable;
        let milli = i64::try_from(all.milli_cpus).unwrap_or(i64::MAX);
        let mut allocatable =
            BTreeMap::from([(resources::CPU.to_owned(), Quantity::from_milli(milli).to_string())]);
        if all.memory != u64::MAX {
            allocatable.insert(resources::MEMORY.to_owned(), Bytes(all.memory).to_string());
        }
        allocatable.extend(all.others.iter().map(|(name, amount)| {
            let text = match resources::is_huge_pages(name) {
                true => Bytes(*amount).to_string(),
                false => amount.to_string(),
            };
            (name.clone(), text)
        }));
        let gates = config.feature_gates.render();
        let eviction = config.memory_kept_for_eviction(machine.os, total_memory(topology));
        let nodes = topology.nodes().iter().enumerate().map(|(position, numa)| NodeView {
            numa_node: numa.id,
            cpus: numa.cpus.clone(),
            exclusive_cpus: free.as_ref().map(|free| free.count_common(&numa.cpus)),
            memory: match &node.memory {
                MemoryPolicy::Static(_) => ledger.memory.nodes[position]
                    .tables
                    .iter()
                    .map(|(kind, table)| (kind.to_string(), Bytes(table.free).to_string()))
                    .collect(),
                MemoryPolicy::None => BTreeMap::new(),
            },
        });
        View {
            machine: machine.name.clone(),
            os: machine.os,
            cpu_manager_policy: match policy {
                Some(_) => "static".to_owned(),
                None => "none".to_owned(),
            },
            cpu_manager_policy_options: config.cpu_manager_policy_options.clone(),
            memory_manager_policy: match &node.memory {
                MemoryPolicy::Static(_) => config.memory_manager_policy.to_string(),
                MemoryPolicy::None => "None".to_owned(),
            },
            topology_manager_policy: node.alignment.policy.name().to_owned(),
            topology_manager_scope: node.alignment.scope.name().to_owned(),
            topology_manager_policy_options: config.topology_manager_policy_options.clone(),
            feature_gates: (!gates.is_empty()).then_some(gates),
            reserved_cpus: policy.map(|policy| policy.reserved().clone()),
            hard_eviction_memory: Bytes(eviction).to_string(),
            max_pods: all.pods,
            allocatable,
            numa_nodes: nodes.collect(),
        }
    }

    #[must_use]
    pub fn render_json(&self) -> String {
        // Keys are strings and numbers are integers, so this cannot fail.
        write::pretty_json(&serde_json::to_string(self).unwrap_or_default())
    }

    #[must_use]
    pub fn render_yaml(&self) -> String {
        write::blocks(&serde_json::to_string(self).unwrap_or_default())
    }

    #[must_use]
    pub fn render_text(&self) -> String {
        let mut out = String::new();
        let map = |map: &BTreeMap<String, String>, between: &str| -> String {
            let items: Vec<String> =
                map.iter().map(|(name, value)| format!("{name}{between}{value}")).collect();
            items.join(", ")
        };
        let mut line = |name: &str, value: &str| {
            if !value.is_empty() {
                let _ = writeln!(out, "{name:29} {value}");
            }
        };
        line("machine", &format!("{} ({})", self.machine, self.os));
        line("cpuManagerPolicy", &self.cpu_manager_policy);
        line("cpuManagerPolicyOptions", &map(&self.cpu_manager_policy_options, "="));
        line("memoryManagerPolicy", &self.memory_manager_policy);
        line("topologyManagerPolicy", &self.topology_manager_policy);
        line("topologyManagerScope", &self.topology_manager_scope);
        line("topologyManagerPolicyOptions", &map(&self.topology_manager_policy_options, "="));
        line("featureGates", self.feature_gates.as_deref().unwrap_or_default());
        if let Some(cpus) = &self.reserved_cpus {
            line("reserved CPUs", &cpus.to_string());
        }
        line("hard eviction threshold", &self.hard_eviction_memory);
        line("maxPods", &self.max_pods.to_string());
        line("allocatable", &map(&self.allocatable, " "));
        for node in &self.numa_nodes {
            let mut parts = Vec::new();
            if !node.cpus.is_empty() {
                let exclusive = match node.exclusive_cpus {
                    Some(count) => format!(" ({count} to hand out)"),
                    None => String::new(),
                };
                parts.push(format!("CPUs {}{exclusive}", node.cpus));
            }
            if !node.memory.is_empty() {
                parts.push(map(&node.memory, " "));
            }
            line(&format!("NUMA node {}", node.numa_node), &parts.join("; "));
        }
        out
    }
}
