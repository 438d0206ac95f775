//! A pod's QoS class, and what its containers ask for together: `objects` does the arithmetic, here
//! is its view of a pod.

use objects::QosClass;
use objects::pod::{self, RestartPolicy};
use objects::resources::{ResourceRequirements, is_pod_level};

use super::input::{Origin, PodInput};
use crate::spec::{self, Amounts, Container, Pod, Requirements};

/// Priority from which on a pod is critical, whoever it is.
const CRITICAL_PRIORITY: i32 = 2_000_000_000;
const NODE_CRITICAL: &str = "system-node-critical";
const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";

/// The pod as placement plans it: who there is and what they ask for.
#[must_use]
pub fn planned(pod: &Pod) -> pod::PodSpec {
    view(pod, Requirements::clone)
}

#[must_use]
pub fn class(pod: &Pod) -> QosClass {
    planned(pod).qos_class()
}

/// What the containers request at the worst moment, or what the pod as a whole does. Without overhead.
#[must_use]
pub fn requests(pod: &Pod) -> Amounts {
    planned(pod).effective_requests()
}

/// The same of limits.
#[must_use]
pub fn limits(pod: &Pod) -> Amounts {
    view(pod, |of| Requirements { requests: of.limits.clone(), ..Requirements::default() })
        .effective_requests()
}

/// What the containers request at the worst moment, whatever is asked for the pod as a whole.
pub(super) fn requests_of_containers(pod: &Pod) -> Amounts {
    let mut planned = planned(pod);
    planned.resources = None;
    planned.effective_requests()
}

/// Resources of the pod as a whole, if any are given.
#[must_use]
pub fn pod_level(pod: &Pod) -> Option<&Requirements> {
    pod.spec.resources.as_ref().filter(|resources| {
        resources.requests.keys().chain(resources.limits.keys()).any(|name| is_pod_level(name))
    })
}

/// Whether the node does not work without it.
#[must_use]
pub fn is_node_critical(input: &PodInput<'_>) -> bool {
    is_critical(input) && input.pod.spec.priority_class_name == NODE_CRITICAL
}

/// Whether it is not to suffer for others: static and mirror pods, and those of the highest priority.
#[must_use]
pub fn is_critical(input: &PodInput<'_>) -> bool {
    let pod = input.pod;
    input.source.origin != Origin::Api
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
