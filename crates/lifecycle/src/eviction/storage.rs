//! Pods that exceed their disk limits: [`over_limit`], whatever the node has available.
//!
//! In upstream's order: a volume over its `sizeLimit`, the pod over the sum of its containers' limits, a container
//! over its own limit.

use objects::Quantity;
use objects::resources::EPHEMERAL_STORAGE;

use super::rank::{Disk, PodUsage, Usage, Victim};
use super::{IMMEDIATE_GRACE, messages};
use crate::admission::is_critical;
use crate::spec::Pod;

/// Returns all pods over a limit.
#[must_use]
pub fn over_limit(pods: &[PodUsage<'_>], image_disk: bool) -> Vec<Victim> {
    let candidates = pods.iter().filter(|candidate| !is_critical(candidate.pod));
    let over = candidates.filter_map(|candidate| {
        let usage = candidate.usage.as_ref()?;
        Some(Victim {
            pod_uid: candidate.pod.metadata.uid.clone(),
            message: broken(candidate.pod, usage, image_disk)?,
            grace_seconds: IMMEDIATE_GRACE,
        })
    });
    over.collect()
}

/// Returns the message of the first limit that a pod exceeds.
fn broken(pod: &Pod, usage: &Usage, image_disk: bool) -> Option<String> {
    empty_dirs(pod, usage)
        .or_else(|| whole(pod, usage))
        .or_else(|| containers(pod, usage, image_disk))
}

fn exceeds(used: u64, limit: &Quantity) -> bool {
    limit.sign() > 0 && Quantity::from_bytes(used) > *limit
}

fn empty_dirs(pod: &Pod, usage: &Usage) -> Option<String> {
    pod.spec.volumes.iter().find_map(|volume| {
        let limit = volume.empty_dir.as_ref()?.size_limit.as_ref()?;
        let used = usage.volumes.get(&volume.name)?;
        exceeds(used.bytes, limit).then(|| messages::empty_dir(&volume.name, limit))
    })
}

/// A container without a limit may use that of the others, as upstream.
fn whole(pod: &Pod, usage: &Usage) -> Option<String> {
    let limit = crate::limits(pod).remove(EPHEMERAL_STORAGE)?;
    let used = usage.disk(true, true, |disk: &Disk| disk.bytes);
    exceeds(used, &limit).then(|| messages::pod_storage(&limit))
}

fn containers(pod: &Pod, usage: &Usage, image_disk: bool) -> Option<String> {
    usage.containers.iter().find_map(|used| {
        let (_, container) = pod.container(&used.name)?;
        let limit = container.resources.limits.get(EPHEMERAL_STORAGE)?;
        // Data on the image file system does not count for the node's own disk.
        let writable = if image_disk { 0 } else { used.writable.bytes };
        let bytes = used.logs.bytes.saturating_add(writable);
        exceeds(bytes, limit).then(|| messages::container_storage(&container.name, limit))
    })
}
