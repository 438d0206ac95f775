//! Defaulting: what a pod means where it says nothing. As upstream does it before anything else
//! looks at a pod.

use super::resources::Side;
use super::{Container, Pod};
use crate::resources::{self, ResourceList, ResourceRequirements};

impl Pod {
    /// Fills in what upstream fills in and planning looks at: amounts rounded up to a thousandth,
    /// requests taken from limits, pod-level requests from containers or pod-level limits.
    pub fn set_defaults(&mut self) {
        for container in self.spec.init_containers.iter_mut().chain(&mut self.spec.containers) {
            let Container { resources, .. } = container;
            round_up(resources);
            requests_from_limits(resources);
        }
        round_up_list(&mut self.spec.overhead);
        let amounts = self.spec.resources();
        let requests = amounts.of_containers(Side::Requests);
        let limits = amounts.of_containers(Side::Limits);
        let limited_by_all = |name: &str| {
            let mut containers = self.spec.init_containers.iter().chain(&self.spec.containers);
            containers.all(|container| container.resources.limits.contains_key(name))
        };
        let limited: Vec<String> =
            limits.keys().filter(|name| limited_by_all(name)).cloned().collect();
        if let Some(pod_level) = &mut self.spec.resources {
            round_up(pod_level);
            default_pod_level(pod_level, &requests, &limits, &limited);
        }
    }
}

fn round_up(resources: &mut ResourceRequirements) {
    round_up_list(&mut resources.requests);
    round_up_list(&mut resources.limits);
}

fn round_up_list(list: &mut ResourceList) {
    for amount in list.values_mut() {
        *amount = std::mem::take(amount).round_up_to_milli();
    }
}

fn requests_from_limits(resources: &mut ResourceRequirements) {
    for (name, limit) in &resources.limits {
        resources.requests.entry(name.clone()).or_insert_with(|| limit.clone());
    }
}

/// Fills in pod-level amounts from those of the containers, as `rules::pod::defaults` does. `limited` are the
/// resources that every container has a limit for.
fn default_pod_level(
    pod_level: &mut ResourceRequirements,
    requests: &ResourceList,
    limits: &ResourceList,
    limited: &[String],
) {
    if pod_level.limits.is_empty() && pod_level.requests.is_empty() {
        return;
    }
    // Huge pages cannot be overcommitted, so what the containers may have the pod must have.
    for (name, limit) in limits.iter().filter(|(name, _)| resources::is_huge_pages(name)) {
        if !pod_level.requests.contains_key(name) {
            pod_level.limits.entry(name.clone()).or_insert_with(|| limit.clone());
        }
    }
    let may_differ =
        |name: &str| resources::is_pod_level(name) && resources::may_be_overcommitted(name);
    if pod_level.limits.is_empty() {
        for name in limited.iter().filter(|name| may_differ(name)) {
            pod_level.limits.insert(name.clone(), limits[name].clone());
        }
        return;
    }
    for (name, amount) in requests.iter().filter(|(name, _)| may_differ(name)) {
        pod_level.requests.entry(name.clone()).or_insert_with(|| amount.clone());
    }
    for (name, limit) in &pod_level.limits {
        if resources::is_pod_level(name) {
            pod_level.requests.entry(name.clone()).or_insert_with(|| limit.clone());
        }
    }
}
