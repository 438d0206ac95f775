//! Properties of the node that all pods share: [`gather`], from its configuration and its machine.
//!
//! Read once when the agent starts. The node status loop updates addresses and allocatable resources.

use std::path::Path;

use host::os::system as os;
use objects::kubelet_config::{CgroupDriver as ConfiguredDriver, SwapBehavior as ConfiguredSwap};
use objects::pod::OsName;
use objects::{Gate, KubeletConfig};
use placement::Machine;
use serde_json::Value;

use crate::node::Description;
use crate::runtime::lower::{
    CgroupDriver, CgroupVersion, Cgroups, Dns, NodeEnvironment, SwapBehavior,
};
use lifecycle::spec::ResourceList;

/// Directories of this node.
#[derive(Debug, Clone)]
pub struct Places<'a> {
    pub root: &'a Path,
    pub logs: &'a Path,
}

/// Reads the properties of this machine.
#[must_use]
pub fn gather(
    config: &KubeletConfig,
    machine: &Machine,
    places: &Places<'_>,
    kernel: Option<&host::cgroups::Cgroups>,
    node: &Description,
) -> NodeEnvironment {
    let memory = os::memory().unwrap_or_default();
    let version = match kernel.map(host::cgroups::Cgroups::version) {
        Some(host::cgroups::Version::V1) => CgroupVersion::V1,
        Some(host::cgroups::Version::V2) | None => CgroupVersion::V2,
    };
    let bytes = |amount: u64| i64::try_from(amount).unwrap_or(i64::MAX);
    let text = |path: &Path| path.display().to_string();
    let period = i64::try_from(config.cpu_cfs_quota_period.as_micros()).unwrap_or(100_000);
    NodeEnvironment {
        os: machine.os,
        ips: node.addresses.iter().map(ToString::to_string).collect(),
        // Set from the Node object.
        allocatable: ResourceList::new(),
        memory_capacity: bytes(memory.total),
        swap_capacity: bytes(memory.swap_total),
        cpu_count: i64::try_from(machine.topology.all_cpus().len()).unwrap_or(i64::MAX),
        root_dir: text(places.root),
        log_dir: text(places.logs),
        cgroups: Cgroups {
            driver: match config.cgroup_driver {
                ConfiguredDriver::Cgroupfs => CgroupDriver::Cgroupfs,
                ConfiguredDriver::Systemd => CgroupDriver::Systemd,
            },
            version,
            root: config.cgroup_root.clone().unwrap_or_default(),
            swap_controller: kernel.is_some_and(host::cgroups::Cgroups::counts_swap),
        },
        cpu_quota_period: config.cpu_cfs_quota.then_some(period),
        huge_page_sizes: os::huge_page_sizes().into_iter().map(bytes).collect(),
        page_size: os::page_size().map_or(4096, bytes),
        dns: dns(config, machine.os),
        seccomp_default: config.untyped.get("seccompDefault") == Some(&Value::Bool(true)),
        single_process_oom_kill: config
            .single_process_oom_kill
            .unwrap_or(version == CgroupVersion::V1),
        swap: match config.memory_swap {
            ConfiguredSwap::NoSwap => SwapBehavior::NoSwap,
            ConfiguredSwap::LimitedSwap => SwapBehavior::LimitedSwap,
        },
        memory_throttling: config
            .feature_gates
            .enabled(Gate::MemoryQos)
            .then_some(config.memory_throttling_factor),
        selinux: false,
        qos_classes: config.feature_gates.enabled(Gate::QosResources),
        host_process: config.feature_gates.enabled(Gate::WindowsHostProcessContainers),
        masked_paths: match machine.os {
            OsName::Linux => host::os::system::masked_cpu_paths(),
            OsName::Windows => Vec::new(),
        },
    }
}

fn dns(config: &KubeletConfig, os: OsName) -> Dns {
    let text = |name: &str| config.untyped.get(name).and_then(Value::as_str);
    let path = match text("resolvConf") {
        None if os == OsName::Linux => "/etc/resolv.conf",
        None => "",
        Some(path) => path,
    };
    let servers = config.untyped.get("clusterDNS").and_then(Value::as_array);
    let servers = servers.into_iter().flatten().filter_map(Value::as_str);
    Dns {
        resolv_conf: match path {
            "" => None,
            path => std::fs::read_to_string(path).ok(),
        },
        cluster_servers: servers.map(str::to_owned).collect(),
        cluster_domain: text("clusterDomain").unwrap_or_default().to_owned(),
    }
}
