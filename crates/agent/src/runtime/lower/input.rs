//! The inputs of requests, other than the pod: [`NodeEnvironment`], [`PodInput`], [`ContainerInput`].
//!
//! Values only; the caller reads them from the machine, the configuration and the API.

use std::collections::{BTreeMap, BTreeSet};

use cri::v1;
use objects::pod::OsName;
use placement::demand::PodUid;
use placement::node::CpuPolicy;
use placement::numa::NumaMask;
use placement::plan::ContainerPlacement;
use placement::windows::{AffinityDemand, GroupAffinity, plan_affinity};
use placement::{CpuSet, Ledger, Node, NumaId};

use super::Service;
use lifecycle::observed::RuntimeId;
use lifecycle::spec::{Container, Pod, ResourceList, Role};

/// The properties of the node that are the same for all pods.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeEnvironment {
    pub os: OsName,
    /// Addresses of the node, the preferred family first.
    pub ips: Vec<String>,
    pub allocatable: ResourceList,
    /// The total memory of the machine, in bytes.
    pub memory_capacity: i64,
    pub swap_capacity: i64,
    /// Logical processors.
    pub cpu_count: i64,
    /// The directory of pod directories, `/var/lib/kubelet` on Linux.
    pub root_dir: String,
    /// The directory of pod logs, `/var/log/pods` on Linux.
    pub log_dir: String,
    pub cgroups: Cgroups,
    /// The period of CPU limits in microseconds; `None` if limits are not enforced.
    pub cpu_quota_period: Option<i64>,
    /// Huge page sizes of the kernel, in bytes and in its order.
    pub huge_page_sizes: Vec<i64>,
    pub page_size: i64,
    pub dns: Dns,
    /// True if containers without a seccomp profile get the runtime's default.
    pub seccomp_default: bool,
    /// True if an OOM kills one process instead of the whole container (cgroup v2).
    pub single_process_oom_kill: bool,
    pub swap: SwapBehavior,
    /// The throttling factor of the gate `MemoryQoS`; `None` if disabled.
    pub memory_throttling: Option<f64>,
    pub selinux: bool,
    /// True if classes of QoS resources are supported: the gate `QOSResources`.
    pub qos_classes: bool,
    /// True if host-process containers may start: the gate `WindowsHostProcessContainers`.
    pub host_process: bool,
    /// Additional paths to mask in containers: `thermal_throttle` of each CPU that has one.
    pub masked_paths: Vec<String>,
}

/// The cgroup settings of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroups {
    pub driver: CgroupDriver,
    pub version: CgroupVersion,
    /// The parent of `kubepods`.
    pub root: String,
    /// True if the kernel accounts for swap.
    pub swap_controller: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupDriver {
    Cgroupfs,
    Systemd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupVersion {
    V1,
    V2,
}

/// `memorySwap.swapBehavior`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SwapBehavior {
    #[default]
    NoSwap,
    LimitedSwap,
}

/// The DNS settings of the node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Dns {
    /// The text of the host's `resolv.conf`; `None` if the node is configured to have none.
    pub resolv_conf: Option<String>,
    /// `clusterDNS`.
    pub cluster_servers: Vec<String>,
    /// `clusterDomain`.
    pub cluster_domain: String,
}

/// The source of the pod and the time when it was first seen, as annotations that tools read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodSource {
    pub origin: ConfigSource,
    /// The time when the agent first saw it, in RFC 3339 with nanoseconds.
    pub seen: String,
}

/// The source of a pod. Pods of all sources other than the API are static pods, which only their source can
/// stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ConfigSource {
    #[default]
    Api,
    File,
    Http,
}

impl ConfigSource {
    /// Returns the value of the annotation.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ConfigSource::Api => "api",
            ConfigSource::File => "file",
            ConfigSource::Http => "http",
        }
    }
}

/// The CPUs and memory nodes of one container.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContainerAffinity {
    /// The CPUs to run on, exclusive or shared; empty for any.
    pub cpus: CpuSet,
    /// True if no other container runs there. Its CPU quota is then not enforced.
    pub exclusive: bool,
    /// The memory nodes; empty for any.
    pub mems: BTreeSet<NumaId>,
    /// Windows: the CPUs by processor group; empty for any.
    pub groups: Vec<GroupAffinity>,
}

impl ContainerAffinity {
    /// Returns the affinity of a placement that is committed to `ledger`. A container without exclusive CPUs
    /// gets the shared pool, if the policy has one.
    #[must_use]
    pub fn of(placement: &ContainerPlacement, node: &Node, ledger: &Ledger) -> ContainerAffinity {
        let cpus = match (&placement.cpus, &node.cpu) {
            (Some(own), _) => own.clone(),
            (None, CpuPolicy::Static(_)) => ledger.cpu.shared.clone(),
            (None, CpuPolicy::None) => CpuSet::new(),
        };
        let mems = placement.memory_nodes().unwrap_or_default();
        let affinity = match node.os {
            OsName::Linux => None,
            OsName::Windows => placement.affinity(node, ledger),
        };
        ContainerAffinity {
            cpus,
            exclusive: placement.cpus.is_some(),
            mems: node.topology.node_ids(mems).collect(),
            groups: affinity.map(|affinity| affinity.groups()).unwrap_or_default(),
        }
    }

    /// Returns the affinity of a container from the ledger alone, without its placement.
    #[must_use]
    pub fn from_ledger(
        pod: &PodUid,
        container: &str,
        node: &Node,
        ledger: &Ledger,
    ) -> ContainerAffinity {
        let own = ledger.cpu.assigned(pod, container);
        let cpus = match (own, &node.cpu) {
            (Some(own), _) => own.clone(),
            (None, CpuPolicy::Static(_)) => ledger.cpu.shared.clone(),
            (None, CpuPolicy::None) => CpuSet::new(),
        };
        let blocks = ledger.memory.assignments.get(pod).and_then(|of| of.get(container));
        let nodes = blocks
            .map(|blocks| blocks.iter().fold(NumaMask::EMPTY, |nodes, block| nodes | block.nodes));
        let near = nodes.map(|nodes| -> Vec<CpuSet> {
            nodes.iter().map(|n| node.topology.nodes()[n].cpus.clone()).collect()
        });
        let mut others = ledger.cpu.exclusive(None);
        if let Some(own) = own {
            others.subtract(own);
        }
        let affinity = match node.os {
            OsName::Linux => None,
            OsName::Windows => plan_affinity(AffinityDemand {
                cpus: &cpus,
                memory_nodes: near.as_deref(),
                exclusive_to_others: &others,
                mode: node.affinity_mode,
            }),
        };
        ContainerAffinity {
            exclusive: own.is_some(),
            mems: node.topology.node_ids(nodes.unwrap_or_default()).collect(),
            groups: affinity.map(|affinity| affinity.groups()).unwrap_or_default(),
            cpus,
        }
    }
}

/// The host's IDs that a pod with a user namespace sees as its own, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    pub host_id: u32,
    pub length: u32,
}

/// A pod with its inputs.
#[derive(Debug, Clone, Copy)]
pub struct PodInput<'a> {
    pub pod: &'a Pod,
    pub node_env: &'a NodeEnvironment,
    pub source: &'a PodSource,
    /// By container name; containers that are missing are not placed.
    pub affinities: &'a BTreeMap<String, ContainerAffinity>,
    /// Set for pods with `hostUsers: false`, if the runtime supports it.
    pub user_namespace: Option<IdRange>,
    /// Supplemental groups that its volumes need.
    pub volume_groups: &'a [i64],
}

impl<'a> PodInput<'a> {
    /// Returns the inputs of a pod without a user namespace and without groups of volumes.
    #[must_use]
    pub fn new(
        pod: &'a Pod,
        node_env: &'a NodeEnvironment,
        source: &'a PodSource,
        affinities: &'a BTreeMap<String, ContainerAffinity>,
    ) -> PodInput<'a> {
        PodInput { pod, node_env, source, affinities, user_namespace: None, volume_groups: &[] }
    }

    pub(super) fn is_windows(&self) -> bool {
        self.node_env.os == OsName::Windows
    }
}

/// A file of environment variables on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvFile {
    pub path: String,
    /// `None` if it cannot be read.
    pub text: Option<String>,
}

/// The existing config maps and secrets of the pod's namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Configs {
    pub config_maps: BTreeMap<String, BTreeMap<String, String>>,
    /// `binaryData` of the config maps: for files only, because a variable cannot contain it.
    pub binary: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    pub secrets: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
}

/// The volumes of a pod, mounted on the host.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MountedVolumes {
    /// By name.
    pub volumes: BTreeMap<String, MountedVolume>,
    /// The host paths of sub-paths, by the position of the mount in the container.
    pub sub_paths: BTreeMap<usize, String>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum MountedVolume {
    Path {
        host_path: String,
        /// Overrides the mount.
        read_only: bool,
        /// True if SELinux labels are set on it.
        relabel: bool,
    },
    /// An image as a volume.
    Image(v1::ImageSpec),
}

/// The user of the image.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImageUser {
    pub uid: Option<i64>,
    /// Set if it is not a number.
    pub name: String,
}

/// The contributions of device plugins to a container. They precede the container's own.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DeviceAttachments {
    pub devices: Vec<v1::Device>,
    pub cdi_devices: Vec<String>,
    pub mounts: Vec<v1::Mount>,
    pub env: Vec<(String, String)>,
    pub annotations: BTreeMap<String, String>,
}

/// A container with its inputs.
#[derive(Debug, Clone, Copy)]
pub struct ContainerInput<'a> {
    pub container: &'a Container,
    pub role: Role,
    /// The number of previous containers of this name.
    pub attempt: u32,
    /// The ID of the image in the runtime.
    pub image: &'a str,
    pub image_user: &'a ImageUser,
    /// The pod's addresses; the node's for pods with host networking.
    pub pod_ips: &'a [String],
    pub mounted: &'a MountedVolumes,
    pub configs: &'a Configs,
    /// Files of the container's environment variables, by volume and path in it.
    pub env_files: &'a BTreeMap<(String, String), EnvFile>,
    pub services: &'a [Service],
    /// The file of the host for the termination message.
    pub termination_log: Option<&'a str>,
    /// Ephemeral containers: the container whose processes are visible.
    pub target: Option<&'a RuntimeId>,
    pub attached: &'a DeviceAttachments,
    /// True if the runtime supports recursive read-only mounts.
    pub recursive_read_only: bool,
}
