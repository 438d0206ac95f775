//! Requests, limits and QoS class of a pod ([`requests`], [`limits`], [`qos_class`]), and its
//! [`placement_demand`].
//!
//! Adapts the agent's pod, in which the API server has set the defaults, to `objects`, which does the
//! arithmetic.

use objects::QosClass;
use objects::pod::resources::{ContainerResources, PodResources, Side};
use placement::demand::{Demand, PodUid, Role};

use crate::spec::{self, Pod, Requirements, ResourceList};

/// Returns the resources of a pod. The class in its status takes precedence over its amounts.
#[must_use]
pub fn resources(pod: &Pod) -> PodResources<'_> {
    fn of(of: &Requirements) -> objects::pod::resources::Requirements<'_> {
        objects::pod::resources::Requirements::new(&of.requests, &of.limits)
    }
    let containers = pod.containers().filter_map(|(role, container)| {
        let role = match role {
            spec::Role::Init => Role::Init,
            spec::Role::Sidecar => Role::Sidecar,
            spec::Role::App => Role::App,
            // They use what their pod has.
            spec::Role::Ephemeral => return None,
        };
        let requirements = of(&container.resources);
        Some(ContainerResources { name: &container.name, role, requirements })
    });
    let reported = pod.status.get("qosClass").and_then(serde_json::Value::as_str);
    PodResources::new(containers)
        .with_pod_level(pod.spec.resources.as_ref().map(of))
        .with_overhead(&pod.spec.overhead)
        .with_reported_class(reported.and_then(QosClass::parse))
}

/// Returns what the node must have for the pod.
#[must_use]
pub fn requests(pod: &Pod) -> ResourceList {
    resources(pod).effective(Side::Requests)
}

/// Returns the limits of the pod, where there are any.
#[must_use]
pub fn limits(pod: &Pod) -> ResourceList {
    resources(pod).effective(Side::Limits)
}

#[must_use]
pub fn qos_class(pod: &Pod) -> QosClass {
    resources(pod).qos_class()
}

/// Returns what placement has to know of the pod.
#[must_use]
pub fn placement_demand(pod: &Pod) -> Demand {
    Demand::new(&PodUid::new(&pod.metadata.uid), &resources(pod))
}
