//! Decides whether the node accepts a pod: [`admit`], with the kubelet's order, reasons and messages.
//!
//! ```text
//!   pressure ─▶ sysctls ─▶ placement, devices, classes ─▶ operating system ─▶ resources, selectors,
//!   ports, taints (a critical pod may preempt others) ─▶ AppArmor ─▶ shutdown
//! ```
//!
//! The first rejection counts. Pure: nothing is committed and no pod is killed.

use objects::QosClass;
use objects::pod::OsName;
use serde::Deserialize as _;
use serde_json::Value;
use thiserror::Error;

use crate::qos_class;
use crate::spec::{Labels, Pod, ResourceList, Sysctl};

mod fit;
mod preempt;
mod qos_resources;
mod taints;

pub use fit::amount;

pub use preempt::{NoVictims, Requirement, is_critical, victims};
pub use qos_resources::{ClassOffer, Offered};
pub use taints::{Taint, Toleration};

/// The reason why the runtime would run host-process containers as ordinary containers.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct NoHostProcesses(pub String);

/// The state of the node that admission depends on.
#[derive(Debug, Clone, Default)]
pub struct Node {
    pub name: String,
    pub labels: Labels,
    pub taints: Vec<Taint>,
    pub allocatable: ResourceList,
    pub os: Option<OsName>,
    /// Pressure conditions of the node, such as `MemoryPressure`, in the order of their reports.
    pub pressures: Vec<String>,
    /// Sysctls that the administrator allows in addition to the safe ones. A trailing `*` matches any
    /// suffix.
    pub allowed_sysctls: Vec<String>,
    pub app_armor: bool,
    /// True if the runtime supports `supplementalGroupsPolicy: Strict`.
    pub supplemental_groups_policy: bool,
    /// True if host-process containers may be started.
    pub host_process: bool,
    /// Set if the runtime would run them as ordinary containers.
    pub no_host_processes: Option<NoHostProcesses>,
    pub classes: ClassOffer,
    pub shutting_down: bool,
    /// Gate `TaintTolerationComparisonOperators`.
    pub compare_taints: bool,
}

impl Node {
    /// Copies labels, taints and allocatable resources from the Node object.
    pub fn observe(&mut self, object: &Value) {
        let text =
            |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_owned();
        let taints = object["spec"]["taints"].as_array().into_iter().flatten();
        let taint = |taint: &Value| Taint {
            key: text(taint, "key"),
            value: text(taint, "value"),
            effect: text(taint, "effect"),
        };
        self.labels = Labels::deserialize(&object["metadata"]["labels"]).unwrap_or_default();
        self.taints = taints.map(taint).collect();
        self.allocatable =
            ResourceList::deserialize(&object["status"]["allocatable"]).unwrap_or_default();
    }
}

/// A pod that is already on the node.
#[derive(Debug, Clone)]
pub struct AdmittedPod<'a> {
    pub pod: &'a Pod,
    /// Its allocated resources: its requests, or the requests before a resize that is pending.
    pub requests: ResourceList,
}

impl<'a> AdmittedPod<'a> {
    #[must_use]
    pub fn new(pod: &'a Pod) -> AdmittedPod<'a> {
        AdmittedPod { pod, requests: crate::requests(pod) }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Admission {
    Admitted,
    /// Admitted after the pods with these UIDs are gone.
    AfterPreempting(Vec<String>),
    Rejected(Rejection),
}

/// The reason for rejecting a pod. Display is the kubelet's message.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Rejection {
    #[error("The node had condition: [{}]. ", .pressures.join(" "))]
    Pressure { pressures: Vec<String> },
    #[error("forbidden sysctl: \"{sysctl}\" not allowlisted")]
    Sysctl { sysctl: String },
    #[error("forbidden sysctl: \"{sysctl}\" not allowed with host {namespace} enabled")]
    SysctlOfHost { sysctl: String, namespace: &'static str },
    #[error(transparent)]
    Placement(placement::Refusal),
    #[error("Allocate failed due to {error}, which is unexpected")]
    Device { error: String },
    #[error("Resources cannot be allocated with Topology locality")]
    DevicesNotAligned,
    #[error("Node has no QoS resource \"{resource}\"")]
    NoClassResource { resource: String },
    #[error("QoS resource \"{resource}\" of the node has no class \"{class}\"; it has {offered:?}")]
    NoClass { resource: String, class: String, offered: Vec<String> },
    #[error(
        "Node didn't have enough of class \"{class}\" of QoS resource \"{resource}\", requested: \
         {requested}, used: {used}, capacity: {capacity}"
    )]
    OutOfClass { resource: String, class: String, requested: u64, used: u64, capacity: u64 },
    #[error("Failed to admit pod as the `kubernetes.io/os` label doesn't match node label")]
    OsLabel,
    #[error("Failed to admit pod as the OS field doesn't match node OS")]
    Os,
    #[error("SupplementalGroupsPolicy=Strict is not supported in this node")]
    SupplementalGroupsPolicy,
    #[error("pod must not contain both HostProcess and non-HostProcess containers")]
    HostProcessMixed,
    #[error("hostNetwork is required if Pod contains HostProcess containers")]
    HostProcessNetwork,
    #[error("HostProcess containers are disabled on this node")]
    HostProcessDisabled,
    #[error(transparent)]
    HostProcessRuntime(NoHostProcesses),
    #[error(
        "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, \
         capacity: {capacity}"
    )]
    Insufficient { resource: String, requested: i64, used: i64, capacity: i64 },
    #[error("Predicate {name} failed: {why}")]
    Predicate { name: &'static str, why: &'static str },
    #[error(
        "Unexpected error while attempting to recover from admission failure: preemption: error \
         finding a set of pods to preempt: {0}"
    )]
    NoVictims(NoVictims),
    #[error("Cannot enforce AppArmor: AppArmor is not enabled on the host")]
    AppArmor,
    #[error("Pod was rejected as the node is shutting down.")]
    Shutdown,
}

impl Rejection {
    /// Returns the `reason` of the failed pod.
    #[must_use]
    pub fn reason(&self) -> String {
        let text = match self {
            Rejection::Pressure { .. } => "Evicted",
            Rejection::Sysctl { .. } | Rejection::SysctlOfHost { .. } => "SysctlForbidden",
            Rejection::Placement(refusal) => refusal.reason(),
            Rejection::DevicesNotAligned => "TopologyAffinityError",
            Rejection::Device { .. } | Rejection::NoVictims(_) => "UnexpectedAdmissionError",
            Rejection::NoClassResource { .. } | Rejection::NoClass { .. } => {
                "QOSResourceUnavailable"
            }
            Rejection::OutOfClass { .. } => "OutOfQOSResource",
            Rejection::OsLabel => "PodOSSelectorNodeLabelDoesNotMatch",
            Rejection::Os => "PodOSNotSupported",
            Rejection::SupplementalGroupsPolicy => "SupplementalGroupsPolicyNotSupported",
            Rejection::HostProcessMixed
            | Rejection::HostProcessNetwork
            | Rejection::HostProcessDisabled
            | Rejection::HostProcessRuntime(_) => "HostProcessNotSupported",
            Rejection::Insufficient { resource, .. } => return format!("OutOf{resource}"),
            Rejection::Predicate { name, .. } => name,
            Rejection::AppArmor => "AppArmor",
            Rejection::Shutdown => "NodeShutdown",
        };
        text.to_owned()
    }
}

/// Returns the resources that are insufficient for a pod, given the `others` on the node.
#[must_use]
pub fn lacking(pod: &Pod, node: &Node, others: &[AdmittedPod<'_>]) -> Vec<Rejection> {
    fit::insufficient(pod, node, others)
}

/// Checks the capacity of the classes that a pod requests.
pub fn check_classes(pod: &Pod, node: &Node, others: &[AdmittedPod<'_>]) -> Result<(), Rejection> {
    qos_resources::check(pod, &node.classes, others)
}

/// Decides whether the node accepts a pod, given the `others` on it. `allocate` runs placement and device
/// allocation. It is called only if no earlier check rejects the pod.
pub fn admit(
    pod: &Pod,
    node: &Node,
    others: &[AdmittedPod<'_>],
    allocate: impl FnOnce() -> Result<(), Rejection>,
) -> Admission {
    match decide(pod, node, others, allocate) {
        Ok(victims) if victims.is_empty() => Admission::Admitted,
        Ok(victims) => Admission::AfterPreempting(victims),
        Err(rejection) => Admission::Rejected(rejection),
    }
}

fn decide(
    pod: &Pod,
    node: &Node,
    others: &[AdmittedPod<'_>],
    allocate: impl FnOnce() -> Result<(), Rejection>,
) -> Result<Vec<String>, Rejection> {
    check_pressure(pod, node)?;
    check_sysctls(pod, &node.allowed_sysctls)?;
    allocate()?;
    qos_resources::check(pod, &node.classes, others)?;
    check_platform(pod, node)?;
    let victims = preempt::recover(pod, others, fit::check(pod, node, others))?;
    if asks_for_app_armor(pod) && !node.app_armor {
        return Err(Rejection::AppArmor);
    }
    if node.shutting_down {
        return Err(Rejection::Shutdown);
    }
    Ok(victims)
}

const MEMORY_PRESSURE: &str = "MemoryPressure";

/// A node under pressure accepts only critical pods. Under memory pressure alone it also accepts pods
/// with memory requests and pods that tolerate the pressure.
fn check_pressure(pod: &Pod, node: &Node) -> Result<(), Rejection> {
    if node.pressures.is_empty() || is_critical(pod) {
        return Ok(());
    }
    if node.pressures == [MEMORY_PRESSURE] {
        let taint = Taint {
            key: "node.kubernetes.io/memory-pressure".to_owned(),
            value: String::new(),
            effect: "NoSchedule".to_owned(),
        };
        if qos_class(pod) != QosClass::BestEffort
            || taints::is_tolerated(pod, &taint, node.compare_taints)
        {
            return Ok(());
        }
    }
    Err(Rejection::Pressure { pressures: node.pressures.clone() })
}

/// Namespaced sysctls that cannot affect other pods.
const SAFE_SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

fn check_sysctls(pod: &Pod, allowed: &[String]) -> Result<(), Rejection> {
    for Sysctl { name, .. } in &pod.spec.security_context.sysctls {
        let sysctl = dotted(name);
        let fits = |pattern: &str| match pattern.strip_suffix('*') {
            Some(start) => sysctl.starts_with(&dotted(start)),
            None => sysctl == dotted(pattern),
        };
        let safe = SAFE_SYSCTLS.contains(&sysctl.as_str());
        if !safe && !allowed.iter().any(|pattern| fits(pattern)) {
            return Err(Rejection::Sysctl { sysctl });
        }
        let (namespace, of_host) = match sysctl.starts_with("net.") {
            true => ("Net", pod.spec.host_network),
            false => ("IPC", pod.spec.host_ipc),
        };
        if of_host {
            return Err(Rejection::SysctlOfHost { sysctl, namespace });
        }
    }
    Ok(())
}

/// Converts `net/ipv4/x` to `net.ipv4.x`. The first separator decides what dots and slashes mean.
fn dotted(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(at) if name[at..].starts_with('/') => {
            let swap = |c: char| match c {
                '/' => '.',
                '.' => '/',
                other => other,
            };
            name.chars().map(swap).collect()
        }
        _ => name.to_owned(),
    }
}

/// Checks for which preemption cannot help.
fn check_platform(pod: &Pod, node: &Node) -> Result<(), Rejection> {
    let Some(os) = node.os else { return Ok(()) };
    let os_name = os.to_string();
    if pod.metadata.labels.get("kubernetes.io/os").is_some_and(|wanted| *wanted != os_name) {
        return Err(Rejection::OsLabel);
    }
    if pod.spec.os.as_ref().is_some_and(|wanted| wanted.name != os_name) {
        return Err(Rejection::Os);
    }
    let policy = pod.spec.security_context.supplemental_groups_policy.as_deref();
    if policy == Some("Strict") && !node.supplemental_groups_policy {
        return Err(Rejection::SupplementalGroupsPolicy);
    }
    if os == OsName::Windows { check_host_process(pod, node) } else { Ok(()) }
}

/// Checked again here, because the API server does not validate static pods.
fn check_host_process(pod: &Pod, node: &Node) -> Result<(), Rejection> {
    let of_pod = pod.spec.security_context.windows_options.as_ref().and_then(|w| w.host_process);
    let mut settings = pod.containers().map(|(_, container)| {
        let own = container.security_context.windows_options.as_ref();
        own.and_then(|own| own.host_process).or(of_pod).unwrap_or(false)
    });
    let first = settings.next().unwrap_or(false);
    if settings.any(|other| other != first) {
        return Err(Rejection::HostProcessMixed);
    }
    match (first, &node.no_host_processes) {
        (true, _) if !pod.spec.host_network => Err(Rejection::HostProcessNetwork),
        (true, _) if !node.host_process => Err(Rejection::HostProcessDisabled),
        (true, Some(runtime)) => Err(Rejection::HostProcessRuntime(runtime.clone())),
        _ => Ok(()),
    }
}

fn asks_for_app_armor(pod: &Pod) -> bool {
    const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
    let of_pod = pod.spec.security_context.app_armor_profile.as_ref();
    pod.containers().any(|(_, container)| {
        let annotation = pod.metadata.annotations.get(&format!("{ANNOTATION}{}", container.name));
        match container.security_context.app_armor_profile.as_ref().or(of_pod) {
            Some(profile) => profile.kind != "Unconfined",
            None => annotation.is_some_and(|profile| profile != "unconfined"),
        }
    })
}

#[cfg(test)]
mod recorded;
#[cfg(test)]
mod tests;
