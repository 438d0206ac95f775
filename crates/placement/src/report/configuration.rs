//! The part of a KubeletConfiguration that decides placement, and its text.
//!
//! Main entries: [`deciding`] and [`render`], whose text is a configuration file in compact JSON.
//! Whatever is as by default is left out. Reading it is `objects`' business, as with every other
//! configuration file; what is in it is checked where it meets a machine.

use std::collections::BTreeMap;

use objects::kubelet_config::{API_VERSION, EvictionSignal, KIND, KubeletConfig};
use objects::resources::{self, ResourceList};
use objects::{FeatureGates, Gate};
use serde_json::{Map, Value, json};

/// The gates that change what is decided, or what of a state is read.
const GATES: [Gate; 5] = [
    Gate::CpuManagerPolicyAlphaOptions,
    Gate::CpuManagerPolicyBetaOptions,
    Gate::WindowsCpuAndMemoryAffinity,
    Gate::PodLevelResourceManagers,
    Gate::InPlacePodVerticalScalingExclusiveCpus,
];

/// A configuration with everything as by default that decides nothing here.
pub(super) fn deciding(config: &KubeletConfig) -> KubeletConfig {
    let mut feature_gates = FeatureGates::default();
    for gate in GATES {
        let on = config.feature_gates.enabled(gate);
        if on != gate.default() {
            // Only gates of a stage that is on for good can be refused, and none of these is.
            let _ = feature_gates.set(gate, on);
        }
    }
    let reserved = |list: &ResourceList| -> ResourceList {
        let decides = |name: &str| {
            matches!(name, resources::CPU | resources::MEMORY) || resources::is_huge_pages(name)
        };
        let some = list.iter().filter(|(name, _)| decides(name));
        some.map(|(name, amount)| (name.clone(), amount.clone())).collect()
    };
    KubeletConfig {
        cpu_manager_policy: config.cpu_manager_policy,
        cpu_manager_policy_options: config.cpu_manager_policy_options.clone(),
        memory_manager_policy: config.memory_manager_policy,
        topology_manager_policy: config.topology_manager_policy,
        topology_manager_scope: config.topology_manager_scope,
        topology_manager_policy_options: config.topology_manager_policy_options.clone(),
        reserved_system_cpus: config.reserved_system_cpus.clone().filter(|cpus| !cpus.is_empty()),
        system_reserved: reserved(&config.system_reserved),
        kube_reserved: reserved(&config.kube_reserved),
        reserved_memory: config.reserved_memory.clone(),
        eviction_hard: config.eviction_hard.as_ref().map(|thresholds| {
            let memory = thresholds.get(&EvictionSignal::MemoryAvailable);
            memory.map(|t| (EvictionSignal::MemoryAvailable, t.clone())).into_iter().collect()
        }),
        merge_default_eviction_settings: config.merge_default_eviction_settings,
        feature_gates,
        max_pods: config.max_pods,
        pods_per_core: config.pods_per_core,
        windows_affinity: config.windows_affinity,
        ..KubeletConfig::default()
    }
}

/// The file of a configuration that has only what decides.
pub(super) fn render(config: &KubeletConfig) -> String {
    let usual = KubeletConfig::default();
    let mut file = Map::new();
    let mut put = |name: &str, is_usual: bool, value: Value| {
        if !is_usual {
            file.insert(name.to_owned(), value);
        }
    };
    put("apiVersion", false, API_VERSION.into());
    put("kind", false, KIND.into());
    macro_rules! string_fields {
        ($($name:literal, $field:ident;)*) => {
            $(put($name, config.$field == usual.$field, config.$field.to_string().into());)*
        };
    }
    string_fields! {
        "cpuManagerPolicy", cpu_manager_policy;
        "memoryManagerPolicy", memory_manager_policy;
        "topologyManagerPolicy", topology_manager_policy;
        "topologyManagerScope", topology_manager_scope;
        "windowsAffinity", windows_affinity;
    }
    let options = |options: &BTreeMap<String, String>| (options.is_empty(), json!(options));
    let (none, value) = options(&config.cpu_manager_policy_options);
    put("cpuManagerPolicyOptions", none, value);
    let (none, value) = options(&config.topology_manager_policy_options);
    put("topologyManagerPolicyOptions", none, value);
    let cpus = config.reserved_system_cpus.as_deref();
    put("reservedSystemCPUs", cpus.is_none(), cpus.into());
    put("systemReserved", config.system_reserved.is_empty(), amounts(&config.system_reserved));
    put("kubeReserved", config.kube_reserved.is_empty(), amounts(&config.kube_reserved));
    let shares = config.reserved_memory.iter();
    let shares = shares.map(|s| json!({"numaNode": s.numa_node, "limits": amounts(&s.limits)}));
    put("reservedMemory", config.reserved_memory.is_empty(), shares.collect());
    let thresholds = config.eviction_hard.iter().flatten();
    let thresholds = thresholds.map(|(signal, at)| (signal.to_string(), at.to_string().into()));
    put("evictionHard", config.eviction_hard.is_none(), Value::Object(thresholds.collect()));
    let merge = config.merge_default_eviction_settings;
    put("mergeDefaultEvictionSettings", !merge, merge.into());
    let gates = GATES.iter().map(|gate| (*gate, config.feature_gates.enabled(*gate)));
    let gates = gates.filter(|(gate, on)| *on != gate.default());
    let gates: Map<String, Value> = gates.map(|(g, on)| (g.to_string(), on.into())).collect();
    put("featureGates", gates.is_empty(), gates.into());
    put("maxPods", config.max_pods == usual.max_pods, config.max_pods.into());
    put("podsPerCore", config.pods_per_core == usual.pods_per_core, config.pods_per_core.into());
    Value::Object(file).to_string()
}

fn amounts(list: &ResourceList) -> Value {
    Value::Object(list.iter().map(|(name, n)| (name.clone(), n.to_string().into())).collect())
}
