//! What people are told of evictions, in upstream's words. Every sentence ends with a space there, and
//! so it does here.

use objects::Quantity;

use super::Reclaim;

/// Why a pod is evicted: what the node lacked.
pub(super) fn low(reclaim: &Reclaim) -> String {
    let Reclaim { resource, limit, available, .. } = reclaim;
    format!(
        "The node was low on resource: {resource}. Threshold quantity: {limit}, available: \
         {available}. "
    )
}

/// A container that uses more than it asked for.
pub(super) fn larger(container: &str, used: &Quantity, asked: &Quantity, resource: &str) -> String {
    format!(
        "Container {container} was using {used}, request is {asked}, has larger consumption of \
         {resource}. "
    )
}

pub(super) fn empty_dir(volume: &str, limit: &Quantity) -> String {
    format!("Usage of EmptyDir volume \"{volume}\" exceeds the limit \"{limit}\". ")
}

pub(super) fn pod_storage(limit: &Quantity) -> String {
    format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. ")
}

pub(super) fn container_storage(container: &str, limit: &Quantity) -> String {
    format!("Container {container} exceeded its local ephemeral storage limit \"{limit}\". ")
}
