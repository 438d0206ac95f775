//! What the requests are made from, beside the pod: [`NodeFacts`], [`PodInput`], [`ContainerInput`].
//!
//! Values only; whoever fills them in reads the machine, the configuration and the API.

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
use crate::runtime::observed::RuntimeId;
use crate::spec::{Amounts, Container, Pod, Role};

/// What is true of the node, whatever the pod.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeFacts {
    pub os: OsName,
    /// Addresses of the node, the preferred family first.
    pub ips: Vec<String>,
    pub allocatable: Amounts,
    /// All the memory of the machine, in bytes.
    pub memory_capacity: i64,
    pub swap_capacity: i64,
    /// Logical processors.
    pub cpu_count: i64,
    /// Where pods have their directories, `/var/lib/kubelet` on Linux.
    pub root_dir: String,
    /// Where pods have their logs, `/var/log/pods` on Linux.
    pub log_dir: String,
    pub cgroups: Cgroups,
    /// The period of CPU limits in microseconds; `None` if limits are not enforced.
    pub cpu_quota_period: Option<i64>,
    /// Sizes of huge pages the kernel has, in bytes and in its order.
    pub huge_page_sizes: Vec<i64>,
    pub page_size: i64,
    pub dns: Dns,
    /// Whether containers without a seccomp profile get the runtime's.
    pub seccomp_default: bool,
    /// Whether an OOM kills one process instead of the whole container (cgroup v2).
    pub single_process_oom_kill: bool,
    pub swap: SwapBehavior,
    /// The throttling factor of the gate `MemoryQoS`; `None` if it is off.
    pub memory_throttling: Option<f64>,
    pub selinux: bool,
    /// Whether classes of QoS resources mean anything: the gate `QOSResources`.
    pub qos_classes: bool,
    /// Whether host-process containers may be started: the gate `WindowsHostProcessContainers`.
    pub host_process: bool,
    /// Paths to hide from containers beside the usual ones: `thermal_throttle` of each CPU that has
    /// one.
    pub masked_paths: Vec<String>,
}

/// How pods are kept apart on Linux.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroups {
    pub driver: CgroupDriver,
    pub version: CgroupVersion,
    /// Below which `kubepods` is.
    pub root: String,
    /// Whether the kernel counts swap.
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

/// Where names are resolved.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Dns {
    /// Text of the host's `resolv.conf`; `None` if the node is told to have none.
    pub resolv_conf: Option<String>,
    /// `clusterDNS`.
    pub cluster_servers: Vec<String>,
    /// `clusterDomain`.
    pub cluster_domain: String,
}

/// Where the pod came from, and when: annotations that tools read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Source {
    pub origin: Origin,
    /// When the agent first saw it, in RFC 3339 with nanoseconds.
    pub seen: String,
}

/// Who told us of a pod. All but the API's are static pods, which nobody else can stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Origin {
    #[default]
    Api,
    File,
    Http,
}

impl Origin {
    /// As annotations have it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Origin::Api => "api",
            Origin::File => "file",
            Origin::Http => "http",
        }
    }
}

/// What the placement means for one container.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Placed {
    /// CPUs to run on: its own or the shared pool; empty if any will do.
    pub cpus: CpuSet,
    /// Whether nobody else runs there. Its CPU limit is then not enforced by time.
    pub exclusive: bool,
    /// Memory nodes; empty if any will do.
    pub mems: BTreeSet<NumaId>,
    /// Windows: the CPUs by processor group; empty if any will do.
    pub groups: Vec<GroupAffinity>,
}

impl Placed {
    /// From a placement that is committed to `ledger`. Who has no CPUs of its own gets the shared
    /// pool, if there is one.
    #[must_use]
    pub fn of(placement: &ContainerPlacement, node: &Node, ledger: &Ledger) -> Placed {
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
        Placed {
            cpus,
            exclusive: placement.cpus.is_some(),
            mems: node.topology.node_ids(mems).collect(),
            groups: affinity.map(|affinity| affinity.groups()).unwrap_or_default(),
        }
    }

    /// From a ledger alone: of a container whose placement nobody remembers.
    #[must_use]
    pub fn booked(pod: &PodUid, container: &str, node: &Node, ledger: &Ledger) -> Placed {
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
        Placed {
            exclusive: own.is_some(),
            mems: node.topology.node_ids(nodes.unwrap_or_default()).collect(),
            groups: affinity.map(|affinity| affinity.groups()).unwrap_or_default(),
            cpus,
        }
    }
}

/// The ids of the host that a pod with a user namespace has as its own, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    pub host_id: u32,
    pub length: u32,
}

/// A pod, and what is known of it.
#[derive(Debug, Clone, Copy)]
pub struct PodInput<'a> {
    pub pod: &'a Pod,
    pub facts: &'a NodeFacts,
    pub source: &'a Source,
    /// By the names of the containers; those that are missing are not placed.
    pub placed: &'a BTreeMap<String, Placed>,
    /// For pods with `hostUsers: false`, where the runtime can do it.
    pub user_namespace: Option<IdRange>,
    /// Groups that its volumes need.
    pub volume_groups: &'a [i64],
}

impl PodInput<'_> {
    pub(super) fn is_windows(&self) -> bool {
        self.facts.os == OsName::Windows
    }
}

/// A file of variables, on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvFile {
    pub path: String,
    /// `None` if it cannot be read.
    pub text: Option<String>,
}

/// Config maps and secrets of the pod's namespace, as far as they exist.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Configs {
    /// Files that variables of the container come from, by volume and path in it.
    pub files: BTreeMap<(String, String), EnvFile>,
    pub config_maps: BTreeMap<String, BTreeMap<String, String>>,
    /// `binaryData` of the config maps: for files only, a variable cannot have it.
    pub binary: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    pub secrets: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
}

/// The volumes of a pod, mounted on the host.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Mounted {
    /// By name.
    pub volumes: BTreeMap<String, MountedVolume>,
    /// What was made of a sub-path, by the position of the mount in the container.
    pub sub_paths: BTreeMap<usize, String>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum MountedVolume {
    Path {
        host_path: String,
        /// Whatever the mount says.
        read_only: bool,
        /// Whether SELinux labels are to be set on it.
        relabel: bool,
    },
    /// An image as a volume.
    Image(v1::ImageSpec),
}

/// Who the image says it runs as.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImageUser {
    pub uid: Option<i64>,
    /// If it has no number.
    pub name: String,
}

/// What device plugins have for a container. Comes before the container's own.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Attached {
    pub devices: Vec<v1::Device>,
    pub cdi_devices: Vec<String>,
    pub mounts: Vec<v1::Mount>,
    pub env: Vec<(String, String)>,
    pub annotations: BTreeMap<String, String>,
}

/// A container, and what is known when it is made.
#[derive(Debug, Clone, Copy)]
pub struct ContainerInput<'a> {
    pub container: &'a Container,
    pub role: Role,
    /// How many there were before.
    pub attempt: u32,
    /// The image's id in the runtime.
    pub image: &'a str,
    pub image_user: &'a ImageUser,
    /// The pod's addresses; the node's for pods on its network.
    pub pod_ips: &'a [String],
    pub mounted: &'a Mounted,
    pub configs: &'a Configs,
    pub services: &'a [Service],
    /// File of the host that takes the termination message.
    pub termination_log: Option<&'a str>,
    /// Ephemeral containers: whose processes are seen.
    pub target: Option<&'a RuntimeId>,
    pub attached: &'a Attached,
    /// Whether the runtime can make mounts read-only all the way down.
    pub recursive_read_only: bool,
}
