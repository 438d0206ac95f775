//! What the cgroups of pods are given: [`memory_limit`] of one.
//!
//! Pure.

use objects::QosClass;
use objects::Quantity;
use objects::resources::MEMORY;

use crate::lower::qos;
use crate::spec::Pod;

/// The bytes all containers of a pod may use together; `None` if one of them has no limit.
#[must_use]
pub fn memory_limit(pod: &Pod) -> Option<i64> {
    let limit = crate::limits(pod).get(MEMORY).map(Quantity::value)?;
    match qos::class(pod) {
        QosClass::Guaranteed => Some(limit),
        QosClass::Burstable if all_have_limit(pod, MEMORY) => Some(limit),
        QosClass::Burstable | QosClass::BestEffort => None,
    }
}

/// Whether every container has a limit of its own, or the pod as a whole.
fn all_have_limit(pod: &Pod, name: &str) -> bool {
    let is_set = |limits: &crate::spec::Amounts| limits.get(name).is_some_and(|of| !of.is_zero());
    let mut containers = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    qos::pod_level(pod).is_some_and(|whole| is_set(&whole.limits))
        || containers.all(|container| is_set(&container.resources.limits))
}
