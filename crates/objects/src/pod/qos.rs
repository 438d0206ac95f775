//! The QoS class of a pod, computed as upstream computes it: from cpu and memory only, pod-level
//! resources before those of containers, init containers included.

use super::{PodSpec, QosClass};
use crate::resources::{self, CPU, MEMORY, ResourceList, ResourceRequirements};

impl PodSpec {
    /// The pod's QoS class. Defaults must have been set.
    #[must_use]
    pub fn qos_class(&self) -> QosClass {
        let mut requests = ResourceList::new();
        let mut limits = ResourceList::new();
        let mut every_limit_given = true;
        let mut count = |of: &ResourceRequirements, limits_may_lack: bool| {
            resources::add(&mut requests, &that_count(&of.requests));
            let counted = that_count(&of.limits);
            every_limit_given &= limits_may_lack || counted.len() == 2;
            resources::add(&mut limits, &counted);
        };
        match &self.resources {
            Some(pod_level) => count(pod_level, pod_level.limits.is_empty()),
            None => {
                for container in self.containers.iter().chain(&self.init_containers) {
                    count(&container.resources, false);
                }
            }
        }
        if requests.is_empty() && limits.is_empty() {
            QosClass::BestEffort
        } else if every_limit_given && requests == limits {
            QosClass::Guaranteed
        } else {
            QosClass::Burstable
        }
    }
}

/// The amounts above zero of the resources the class depends on.
fn that_count(list: &ResourceList) -> ResourceList {
    list.iter()
        .filter(|(name, amount)| (*name == CPU || *name == MEMORY) && amount.sign() > 0)
        .map(|(name, amount)| (name.clone(), amount.clone()))
        .collect()
}
