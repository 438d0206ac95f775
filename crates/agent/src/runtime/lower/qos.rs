//! A pod's QoS class, and what its containers ask for together: `objects` does the arithmetic.

use objects::QosClass;
use objects::pod::resources::{self, Side};

use super::input::{ConfigSource, PodInput};
use lifecycle::spec::demand;
use lifecycle::spec::{Pod, Requirements, ResourceList};

const NODE_CRITICAL: &str = "system-node-critical";

#[must_use]
pub fn class(pod: &Pod) -> QosClass {
    demand::resources(pod).qos_class()
}

/// Returns what the pod requests, without overhead.
#[must_use]
pub fn requests(pod: &Pod) -> ResourceList {
    demand::resources(pod).without_overhead().effective(Side::Requests)
}

/// Returns the limits of the pod, without overhead.
#[must_use]
pub fn limits(pod: &Pod) -> ResourceList {
    demand::resources(pod).without_overhead().effective(Side::Limits)
}

/// Returns what the containers request together, whatever is requested for the pod as a whole.
pub(super) fn requests_of_containers(pod: &Pod) -> ResourceList {
    demand::resources(pod).of_containers(Side::Requests)
}

/// Returns the resources of the pod as a whole, if they set anything.
#[must_use]
pub fn pod_level(pod: &Pod) -> Option<&Requirements> {
    let resources = pod.spec.resources.as_ref();
    resources.filter(|of| resources::Requirements::new(&of.requests, &of.limits).is_pod_level())
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
        || objects::pod::is_critical(&pod.metadata.annotations, pod.spec.priority)
}
