//! The status of pods.
//!
//! ```text
//!   spec, runtime, worker's state ──▶ generate ──▶ merge ──▶ the status in the API
//! ```
//!
//! [`generate`] computes a status, [`merge`] combines it with the status in the API. Phase, conditions and
//! container statuses equal upstream's. Time, termination messages and resources in force are arguments.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::observed::{RuntimeId, RuntimePod};
use crate::spec::{Pod, QosResourceRequest};

mod conditions;
mod containers;
mod merge;
mod message;
mod model;
mod phase;

pub use merge::{IllegalRestart, carry, is_overwritten, merge, rejected, terminate};
pub use message::{FILE_BYTES, LOG_BYTES, LOG_LINES, TerminationOutput, compose, needs_log};
pub use model::{
    Condition, ContainerStatus, Ip, MountStatus, Phase, PodStatus, Resources, Running, State,
    Terminated, Waiting,
};
pub use phase::is_static;

/// Inputs of a status that are neither in the API nor in the runtime.
#[derive(Debug, Clone, Default)]
pub struct StatusInputs {
    /// The runtime's name, as it stands before ids: `containerd`.
    pub runtime: String,
    /// True if the runtime supports recursive read-only mounts.
    pub recursive_read_only: bool,
    /// The node's addresses, the primary one first.
    pub host_ips: Vec<String>,
    /// The reason why the last start of a container failed, by name.
    pub waiting: BTreeMap<String, Waiting>,
    /// Last results of readiness and startup probes. Absent until the first result.
    pub readiness: BTreeMap<RuntimeId, bool>,
    pub startup: BTreeMap<RuntimeId, bool>,
    /// Allocated resources by container name, where they differ from the spec.
    pub allocated: BTreeMap<String, Resources>,
    /// Effective resources, where they differ from the allocated ones.
    pub actual: BTreeMap<RuntimeId, Resources>,
    /// The same for the pod as a whole.
    pub pod_allocated: Option<Resources>,
    pub pod_actual: Option<Resources>,
    /// `allocatedResourcesStatus` by container name.
    pub devices: BTreeMap<String, Value>,
    /// The effective classes of QoS resources: the pod's, and by container name.
    pub pod_classes: Vec<QosResourceRequest>,
    pub classes: BTreeMap<String, Vec<QosResourceRequest>>,
    pub resize: Resize,
    /// Set if the agent itself terminates the pod.
    pub termination: Option<TerminationCause>,
    /// True if nothing of the pod runs or will run.
    pub finished: bool,
    pub restarting_all: RestartingAll,
}

/// The reason why the agent terminates a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TerminationCause {
    /// `Evicted`, `DeadlineExceeded`, `Preempting`.
    pub reason: String,
    pub message: String,
    /// The message of the condition `DisruptionTarget`, if the pod did not cause its termination.
    pub disruption: Option<String>,
}

/// The progress of a resize.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resize {
    /// Requested and not allocated: `Deferred` or `Infeasible`, with a message.
    pub pending: Option<ResizeOutcome>,
    /// Allocated and not in effect; with the reason `Error` if that failed.
    pub in_progress: Option<ResizeOutcome>,
}

/// The result of a resize, and the generation of the pod that requested it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResizeOutcome {
    pub reason: String,
    pub message: String,
    pub generation: i64,
}

/// The progress of a restart of all containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RestartingAll {
    #[default]
    No,
    /// Containers are being stopped.
    Stopping,
    /// Containers are removed and not started again yet.
    Removed,
}

impl RestartingAll {
    fn is_under_way(self) -> bool {
        self != RestartingAll::No
    }
}

/// Computes the status of a pod. `pod.status` is the last written one.
#[must_use]
pub fn generate(pod: &Pod, observed: &RuntimePod, inputs: &StatusInputs) -> PodStatus {
    let old = PodStatus::read(&pod.status);
    let mut new = PodStatus {
        observed_generation: pod.metadata.generation,
        qos_class: crate::qos_class(pod).to_string(),
        ..PodStatus::default()
    };
    containers::of(pod, &old, observed, inputs, &mut new);
    new.phase = phase::of(pod, &new, observed, inputs.finished);
    settle_phase(&old, inputs, &mut new);
    new.conditions = conditions::of(pod, &old, observed, inputs, &new);
    addresses(pod, &old, observed, inputs, &mut new);
    let allocated = inputs.pod_allocated.clone().unwrap_or_else(|| Resources {
        limits: crate::limits(pod),
        requests: crate::requests(pod),
    });
    new.allocated_resources.clone_from(&allocated.requests);
    new.resources = Some(inputs.pod_actual.clone().unwrap_or(allocated));
    new.other.extend(class_field(&inputs.pod_classes));
    new
}

/// Returns the field `qosResources`, if there are any.
fn class_field(classes: &[QosResourceRequest]) -> Option<(String, Value)> {
    let each = classes
        .iter()
        .map(|QosResourceRequest { name, class }| json!({"name": name, "class": class}));
    (!classes.is_empty()).then(|| ("qosResources".to_owned(), each.collect()))
}

/// A terminal phase stays, with its reason. Otherwise a termination by the agent decides.
fn settle_phase(old: &PodStatus, inputs: &StatusInputs, new: &mut PodStatus) {
    if old.phase.is_terminal() {
        new.phase = old.phase;
    }
    if new.phase == old.phase {
        new.reason.clone_from(&old.reason);
        new.message.clone_from(&old.message);
    }
    if let Some(cause) = inputs.termination.as_ref().filter(|_| !old.phase.is_terminal()) {
        // Even if its containers succeeded: they did not exit by themselves.
        new.phase = Phase::Failed;
        new.reason.clone_from(&cause.reason);
        new.message.clone_from(&cause.message);
    }
}

fn addresses(
    pod: &Pod,
    old: &PodStatus,
    observed: &RuntimePod,
    inputs: &StatusInputs,
    new: &mut PodStatus,
) {
    let as_list = |ips: &[String]| ips.iter().map(|ip| Ip { ip: ip.clone() }).collect::<Vec<_>>();
    new.host_ips = as_list(&inputs.host_ips);
    new.host_ip = inputs.host_ips.first().cloned().unwrap_or_default();
    let found = observed.newest_sandbox().filter(|sandbox| sandbox.ready).map(|s| s.ips.as_slice());
    new.pod_ips = match found {
        Some(ips) if !ips.is_empty() => as_list(ips),
        // A pod keeps its addresses until it is gone.
        _ => old.pod_ips.clone(),
    };
    if pod.spec.host_network {
        if new.pod_ips.is_empty() {
            new.pod_ips = as_list(&inputs.host_ips[..inputs.host_ips.len().min(1)]);
        }
        // A node may get its address of the other family later.
        if let ([own], [_, second]) = (new.pod_ips.as_slice(), inputs.host_ips.as_slice())
            && own.ip.contains(':') != second.contains(':')
        {
            new.pod_ips.push(Ip { ip: second.clone() });
        }
    }
    new.pod_ip = new.pod_ips.first().map(|first| first.ip.clone()).unwrap_or_default();
}

#[cfg(test)]
mod replay;
#[cfg(test)]
mod tests;
