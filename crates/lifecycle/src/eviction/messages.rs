//! Messages of evictions. The texts are upstream's, including the space at the end of every sentence.

use objects::Quantity;

use super::Reclaim;

/// The resource of the node that was low.
pub(super) fn low(reclaim: &Reclaim) -> String {
    let Reclaim { resource, limit, available, .. } = reclaim;
    format!(
        "The node was low on resource: {resource}. Threshold quantity: {limit}, available: \
         {available}. "
    )
}

/// A container that uses more than its request.
pub(super) fn larger(
    container: &str,
    used: &Quantity,
    request: &Quantity,
    resource: &str,
) -> String {
    format!(
        "Container {container} was using {used}, request is {request}, has larger consumption of \
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
