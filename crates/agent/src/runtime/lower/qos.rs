//! QoS class and summed resources of a pod: converts the pod for `objects`, which does the arithmetic.

use objects::QosClass;
use objects::pod::{self, RestartPolicy};
use objects::resources::{ResourceRequirements, is_pod_level};

use super::input::{ConfigSource, PodInput};
use crate::spec::{self, Container, Pod, Requirements, ResourceList};

/// The priority from which on every pod is critical.
const CRITICAL_PRIORITY: i32 = 2_000_000_000;
const NODE_CRITICAL: &str = "system-node-critical";
const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";

/// Converts the pod for planning: its containers and their resources.
#[must_use]
pub fn planned(pod: &Pod) -> pod::PodSpec {
    view(pod, Requirements::clone)
}

#[must_use]
pub fn class(pod: &Pod) -> QosClass {
    planned(pod).qos_class()
}

/// Returns the effective requests of the containers, or the pod-level ones. Without overhead.
#[must_use]
pub fn requests(pod: &Pod) -> ResourceList {
    planned(pod).effective_requests()
}

/// Returns the effective limits likewise.
#[must_use]
pub fn limits(pod: &Pod) -> ResourceList {
    view(pod, |of| Requirements { requests: of.limits.clone(), ..Requirements::default() })
        .effective_requests()
}

/// Returns the effective requests of the containers, ignoring pod-level ones.
pub(super) fn requests_of_containers(pod: &Pod) -> ResourceList {
    let mut planned = planned(pod);
    planned.resources = None;
    planned.effective_requests()
}

/// Returns the pod-level resources, if any.
#[must_use]
pub fn pod_level(pod: &Pod) -> Option<&Requirements> {
    pod.spec.resources.as_ref().filter(|resources| {
        resources.requests.keys().chain(resources.limits.keys()).any(|name| is_pod_level(name))
    })
}

/// Returns true if the node does not work without the pod.
#[must_use]
pub fn is_node_critical(input: &PodInput<'_>) -> bool {
    is_critical(input) && input.pod.spec.priority_class_name == NODE_CRITICAL
}

/// Returns true if the pod is critical: static and mirror pods, and those of the highest priorities.
#[must_use]
pub fn is_critical(input: &PodInput<'_>) -> bool {
    let pod = input.pod;
    input.source.origin != ConfigSource::Api
        || pod.metadata.annotations.contains_key(CONFIG_MIRROR)
        || pod.spec.priority.is_some_and(|priority| priority >= CRITICAL_PRIORITY)
}

fn view(pod: &Pod, of: fn(&Requirements) -> Requirements) -> pod::PodSpec {
    let resources = |from: &Requirements| {
        let Requirements { requests, limits, .. } = of(from);
        ResourceRequirements { requests, limits, ..Default::default() }
    };
    let containers = |list: &[Container]| {
        let of_one = |container: &Container| pod::Container {
            name: container.name.clone(),
            resources: resources(&container.resources),
            restart_policy: container.restart_policy.map(|policy| match policy {
                spec::RestartPolicy::Always => RestartPolicy::Always,
                spec::RestartPolicy::OnFailure => RestartPolicy::OnFailure,
                spec::RestartPolicy::Never => RestartPolicy::Never,
            }),
            ..Default::default()
        };
        list.iter().map(of_one).collect()
    };
    pod::PodSpec {
        init_containers: containers(&pod.spec.init_containers),
        containers: containers(&pod.spec.containers),
        resources: pod_level(pod).map(resources),
        ..Default::default()
    }
}
