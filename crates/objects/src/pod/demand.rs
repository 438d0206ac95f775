//! What a pod as a whole needs of a node: the sum of what runs at once, the largest moment of
//! starting up, and overhead. Placement of single containers does not use this; capacity does.

use super::{Container, PodSpec};
use crate::resources::{self, ResourceList};

impl PodSpec {
    /// What the pod needs of a node: pod-level requests where they are given, otherwise those of
    /// its containers, plus overhead. Defaults must have been set.
    #[must_use]
    pub fn effective_requests(&self) -> ResourceList {
        let mut requests = self.container_requests();
        if let Some(pod_level) = &self.resources {
            for (name, amount) in &pod_level.requests {
                if resources::is_pod_level(name) {
                    requests.insert(name.clone(), amount.clone());
                }
            }
        }
        resources::add(&mut requests, &self.overhead);
        requests
    }

    /// What the containers need together at the worst moment: all containers with all sidecars, or
    /// one init container with the sidecars started before it.
    pub(super) fn container_requests(&self) -> ResourceList {
        self.worst_moment(|container| container.resources.requests.clone())
    }

    /// The limits of the containers at the worst moment, for the resources named.
    pub(super) fn container_limits_of(&self, wanted: fn(&str) -> bool) -> ResourceList {
        self.worst_moment(|container| {
            let limits = container.resources.limits.iter().filter(|(name, _)| wanted(name));
            limits.map(|(name, amount)| (name.clone(), amount.clone())).collect()
        })
    }

    fn worst_moment(&self, of: impl Fn(&Container) -> ResourceList) -> ResourceList {
        let mut running = ResourceList::new();
        for container in &self.containers {
            resources::add(&mut running, &of(container));
        }
        let mut sidecars = ResourceList::new();
        let mut starting = ResourceList::new();
        for container in &self.init_containers {
            let own = of(container);
            if container.is_sidecar() {
                resources::add(&mut running, &own);
                resources::add(&mut sidecars, &own);
                resources::raise(&mut starting, &sidecars);
            } else {
                let mut together = sidecars.clone();
                resources::add(&mut together, &own);
                resources::raise(&mut starting, &together);
            }
        }
        resources::raise(&mut running, &starting);
        running
    }
}
