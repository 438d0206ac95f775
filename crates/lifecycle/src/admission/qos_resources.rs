//! Checks that the node offers the QoS-class resources that a pod requests, and that they have capacity left.
//!
//! Every container in a class counts one, at the pod's worst moment; a pod-level resource counts one
//! for the pod. The class that a pod names for a container-level resource is the default of its containers.

use std::collections::BTreeMap;

use objects::rules::pod::class_resources::full_name;

use super::{AdmittedPod, Rejection};
use crate::spec::{Container, Pod, QosResourceRequest};

/// The offers of a runtime, by the full name of the resource.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClassOffer {
    pub resources: BTreeMap<String, Offered>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Offered {
    /// True for a pod-level resource, false for a container-level one.
    pub for_pods: bool,
    /// Classes with their capacity. Zero is unlimited.
    pub classes: BTreeMap<String, u64>,
}

type Uses = BTreeMap<(String, String), u64>;

pub(super) fn check(
    pod: &Pod,
    offer: &ClassOffer,
    others: &[AdmittedPod<'_>],
) -> Result<(), Rejection> {
    let needs = uses(pod, offer);
    if needs.is_empty() {
        return Ok(());
    }
    let mut used = Uses::new();
    for other in others {
        for (class, count) in uses(other.pod, offer) {
            *used.entry(class).or_default() += count;
        }
    }
    for ((resource, class), requested) in needs {
        let Some(offered) = offer.resources.get(&resource) else {
            return Err(Rejection::NoClassResource { resource });
        };
        let Some(capacity) = offered.classes.get(&class).copied() else {
            let offered = offered.classes.keys().cloned().collect();
            return Err(Rejection::NoClass { resource, class, offered });
        };
        let used = used.get(&(resource.clone(), class.clone())).copied().unwrap_or(0);
        if capacity > 0 && used.saturating_add(requested) > capacity {
            return Err(Rejection::OutOfClass { resource, class, requested, used, capacity });
        }
    }
    Ok(())
}

/// Returns how often a pod uses each class at the same time.
fn uses(pod: &Pod, offer: &ClassOffer) -> Uses {
    let for_pods = |resource: &str| offer.resources.get(resource).is_none_or(|o| o.for_pods);
    let mut uses = Uses::new();
    let mut defaults = BTreeMap::new();
    for QosResourceRequest { name, class } in &pod.spec.qos_resources {
        let resource = full_name(name);
        if for_pods(resource) {
            uses.insert((resource.to_owned(), class.clone()), 1);
        } else {
            defaults.insert(resource, class.as_str());
        }
    }
    let (mut sidecars, mut starting) = (Uses::new(), Uses::new());
    for container in &pod.spec.init_containers {
        let mut moment = sidecars.clone();
        join(&mut moment, container, &defaults);
        if container.is_sidecar() {
            sidecars.clone_from(&moment);
        }
        raise(&mut starting, moment);
    }
    let mut running = sidecars;
    for container in &pod.spec.containers {
        join(&mut running, container, &defaults);
    }
    raise(&mut running, starting);
    uses.extend(running);
    uses
}

/// Counts one container.
fn join(uses: &mut Uses, container: &Container, defaults: &BTreeMap<&str, &str>) {
    let mut classes = defaults.clone();
    let own = container.resources.qos_resources.iter();
    classes.extend(own.map(|named| (full_name(&named.name), named.class.as_str())));
    for (resource, class) in classes {
        *uses.entry((resource.to_owned(), class.to_owned())).or_default() += 1;
    }
}

fn raise(uses: &mut Uses, other: Uses) {
    for (class, count) in other {
        let most = uses.entry(class).or_default();
        *most = (*most).max(count);
    }
}
