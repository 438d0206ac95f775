//! The status of pods.
//!
//! ```text
//!   spec, runtime, worker's state ──▶ generate ──▶ merge ──▶ writer ──▶ API
//!                                                    └──▶ pod_cache ──▶ the agent's server
//! ```
//!
//! - [`generate`] computes a status, [`merge`] combines it with the status in the API.
//! - [`writer`] writes it to the API.
//! - [`pod_cache`] holds pods with their newest status for the agent's server.
//!
//! Phase, conditions and container statuses equal upstream's. `generate` and `merge` are pure: time,
//! termination messages and resources in force are arguments.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::runtime::observed::{PodSeen, RuntimeId};
use crate::spec::{Pod, QosResourceRequest};

mod conditions;
mod containers;
mod merge;
mod message;
mod model;
mod phase;
pub mod pod_cache;
pub mod writer;

pub use merge::{IllegalRestart, carry, is_overwritten, merge, rejected, terminate};
pub use message::{FILE_BYTES, LOG_BYTES, LOG_LINES, Left, compose, needs_log};
pub use model::{
    Condition, ContainerStatus, Ip, MountStatus, Phase, PodStatus, Resources, Running, State,
    Terminated, Waiting,
};
pub use phase::is_static;

/// What the worker of a pod knows that neither the API nor the runtime tell.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// The runtime's name, as it stands before ids: `containerd`.
    pub runtime: String,
    /// Whether the runtime can make everything below a mount read-only.
    pub recursive_read_only: bool,
    /// The node's addresses, the first one first.
    pub host_ips: Vec<String>,
    /// Why a container could not be started when it was last tried, by name.
    pub waiting: BTreeMap<String, Waiting>,
    /// What readiness and startup probes last said; nothing while they have not said anything.
    pub readiness: BTreeMap<RuntimeId, bool>,
    pub startup: BTreeMap<RuntimeId, bool>,
    /// What was allocated by container name, where it is not what the spec says.
    pub allocated: BTreeMap<String, Resources>,
    /// What is in force, where it is not what was allocated.
    pub actual: BTreeMap<RuntimeId, Resources>,
    /// The same for the pod as a whole.
    pub pod_allocated: Option<Resources>,
    pub pod_actual: Option<Resources>,
    /// `allocatedResourcesStatus` by container name.
    pub devices: BTreeMap<String, Value>,
    /// The classes of QoS resources that are in force: the pod's, and by container name.
    pub pod_classes: Vec<QosResourceRequest>,
    pub classes: BTreeMap<String, Vec<QosResourceRequest>>,
    pub resize: Resize,
    /// That the agent itself ends the pod, and why.
    pub end: Option<End>,
    /// Nothing of the pod runs, and nothing will.
    pub finished: bool,
    pub restarting_all: RestartingAll,
}

/// Why the agent ends a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct End {
    /// `Evicted`, `DeadlineExceeded`, `Preempting`.
    pub reason: String,
    pub message: String,
    /// The message of the condition `DisruptionTarget`, if the pod is not to blame.
    pub disruption: Option<String>,
}

/// How far a change of resources has come.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resize {
    /// Wanted and not allocated: `Deferred` or `Infeasible`, with a message.
    pub pending: Option<ResizeSaid>,
    /// Allocated and not in force; with a reason, `Error`, if that failed.
    pub in_progress: Option<ResizeSaid>,
}

/// What came of a change of resources, and which generation of the pod asked for it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResizeSaid {
    pub reason: String,
    pub message: String,
    pub generation: i64,
}

/// How far a restart of all containers has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RestartingAll {
    #[default]
    No,
    /// Containers are being stopped.
    Stopping,
    /// They are gone, and not started again yet.
    Removed,
}

impl RestartingAll {
    fn is_under_way(self) -> bool {
        self != RestartingAll::No
    }
}

/// What is to be said of a pod. `pod.status` is what was last written.
#[must_use]
pub fn generate(pod: &Pod, seen: &PodSeen, known: &Known) -> PodStatus {
    let old = PodStatus::read(&pod.status);
    let mut new = PodStatus {
        observed_generation: pod.metadata.generation,
        qos_class: crate::qos_class(pod).to_string(),
        ..PodStatus::default()
    };
    containers::of(pod, &old, seen, known, &mut new);
    new.phase = phase::of(pod, &new, seen, known.finished);
    settle_phase(&old, known, &mut new);
    new.conditions = conditions::of(pod, &old, seen, known, &new);
    addresses(pod, &old, seen, known, &mut new);
    let allocated = known.pod_allocated.clone().unwrap_or_else(|| Resources {
        limits: crate::limits(pod),
        requests: crate::requests(pod),
    });
    new.allocated_resources.clone_from(&allocated.requests);
    new.resources = Some(known.pod_actual.clone().unwrap_or(allocated));
    new.other.extend(class_field(&known.pod_classes));
    new
}

/// `qosResources`, where there are any.
fn class_field(classes: &[QosResourceRequest]) -> Option<(String, Value)> {
    let each = classes
        .iter()
        .map(|QosResourceRequest { name, class }| json!({"name": name, "class": class}));
    (!classes.is_empty()).then(|| ("qosResources".to_owned(), each.collect()))
}

/// A phase that is over stays, with its reason; and the agent has the last word.
fn settle_phase(old: &PodStatus, known: &Known, new: &mut PodStatus) {
    if old.phase.is_terminal() {
        new.phase = old.phase;
    }
    if new.phase == old.phase {
        new.reason.clone_from(&old.reason);
        new.message.clone_from(&old.message);
    }
    if let Some(end) = known.end.as_ref().filter(|_| !old.phase.is_terminal()) {
        // Also if its containers ended well: they did not end by themselves.
        new.phase = Phase::Failed;
        new.reason.clone_from(&end.reason);
        new.message.clone_from(&end.message);
    }
}

fn addresses(pod: &Pod, old: &PodStatus, seen: &PodSeen, known: &Known, new: &mut PodStatus) {
    let as_list = |ips: &[String]| ips.iter().map(|ip| Ip { ip: ip.clone() }).collect::<Vec<_>>();
    new.host_ips = as_list(&known.host_ips);
    new.host_ip = known.host_ips.first().cloned().unwrap_or_default();
    let found = seen.newest_sandbox().filter(|sandbox| sandbox.ready).map(|s| s.ips.as_slice());
    new.pod_ips = match found {
        Some(ips) if !ips.is_empty() => as_list(ips),
        // What a pod had, it is known by until it is gone.
        _ => old.pod_ips.clone(),
    };
    if pod.spec.host_network {
        if new.pod_ips.is_empty() {
            new.pod_ips = as_list(&known.host_ips[..known.host_ips.len().min(1)]);
        }
        // A node may get its address of the other family later.
        if let ([own], [_, second]) = (new.pod_ips.as_slice(), known.host_ips.as_slice())
            && own.ip.contains(':') != second.contains(':')
        {
            new.pod_ips.push(Ip { ip: second.clone() });
        }
    }
    new.pod_ip = new.pod_ips.first().map(|first| first.ip.clone()).unwrap_or_default();
}

#[cfg(test)]
pub(crate) mod replay;
#[cfg(test)]
mod tests;
