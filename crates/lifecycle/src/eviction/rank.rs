//! Chooses the pod to evict: [`victim`], in upstream's order.
//!
//! First come pods that use more than their requests, then those of lower priority, then those whose usage exceeds
//! their requests the most. Critical pods are not evicted.

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;

use objects::Quantity;
use objects::kubelet_config::EvictionSignal;
use objects::resources::{EPHEMERAL_STORAGE, MEMORY};

use super::{IMMEDIATE_GRACE, Reclaim, messages};
use crate::admission::is_critical;
use crate::spec::Pod;

/// A running pod and its usage.
#[derive(Debug, Clone)]
pub struct PodUsage<'a> {
    pub pod: &'a Pod,
    /// `None` if it is unknown. Such a pod is evicted first.
    pub usage: Option<Usage>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Usage {
    /// Bytes of the working set.
    pub memory: u64,
    pub processes: u64,
    pub containers: Vec<ContainerUsage>,
    /// Volumes on the node's own disk, by name.
    pub volumes: BTreeMap<String, Disk>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContainerUsage {
    pub name: String,
    pub memory: u64,
    /// The size of its writable layer.
    pub writable: Disk,
    pub logs: Disk,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Disk {
    pub bytes: u64,
    pub inodes: u64,
}

/// A pod to evict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Victim {
    pub pod_uid: String,
    /// The message of its status and its Event. The reason of both is `Evicted`.
    pub message: String,
    /// Grace period in seconds.
    pub grace_seconds: i64,
}

/// Returns the pod to evict for `reclaim`. Pods are evicted one at a time, so that the effect is measured
/// before the next. `max_grace` is `evictionMaxPodGracePeriod`, which applies to soft thresholds.
#[must_use]
pub fn victim(
    reclaim: &Reclaim,
    pods: &[PodUsage<'_>],
    image_disk: bool,
    max_grace: i64,
) -> Option<Victim> {
    let measure = Measure::of(reclaim.signal, image_disk);
    let candidates = pods.iter().filter(|usage| !is_critical(usage.pod));
    let chosen = candidates.min_by_key(|usage| measure.key(usage))?;
    let own_grace = chosen.pod.spec.termination_grace_period_seconds;
    Some(Victim {
        pod_uid: chosen.pod.metadata.uid.clone(),
        message: message(reclaim, chosen),
        grace_seconds: if reclaim.hard {
            IMMEDIATE_GRACE
        } else {
            own_grace.map_or(max_grace, |own| own.min(max_grace))
        },
    })
}

/// The resource by which pods are compared.
#[derive(Debug, Clone, Copy)]
enum Measure {
    Memory,
    Processes,
    Disk { writable: bool, rest: bool, inodes: bool },
}

impl Measure {
    fn of(signal: EvictionSignal, image_disk: bool) -> Measure {
        let disk = |on_images: bool, inodes| Measure::Disk {
            writable: !image_disk || on_images,
            rest: !image_disk || !on_images,
            inodes,
        };
        match signal {
            EvictionSignal::MemoryAvailable | EvictionSignal::AllocatableMemoryAvailable => {
                Measure::Memory
            }
            EvictionSignal::PidAvailable => Measure::Processes,
            EvictionSignal::NodefsAvailable => disk(false, false),
            EvictionSignal::NodefsInodesFree => disk(false, true),
            EvictionSignal::ImagefsAvailable | EvictionSignal::ContainerfsAvailable => {
                disk(true, false)
            }
            EvictionSignal::ImagefsInodesFree | EvictionSignal::ContainerfsInodesFree => {
                disk(true, true)
            }
        }
    }

    /// The pod with the least key is evicted first.
    fn key(self, usage: &PodUsage<'_>) -> (bool, bool, i32, Reverse<i128>) {
        let known = usage.usage.is_some();
        let (used, request) = match self {
            Measure::Memory => {
                (usage.usage.as_ref().map_or(0, |usage| usage.memory), requested(usage.pod, MEMORY))
            }
            Measure::Processes => (usage.usage.as_ref().map_or(0, |usage| usage.processes), 0),
            Measure::Disk { writable, rest, inodes } => {
                let request = if inodes { 0 } else { requested(usage.pod, EPHEMERAL_STORAGE) };
                let used = usage.usage.as_ref().map_or(0, |usage| {
                    let pick = |disk: &Disk| if inodes { disk.inodes } else { disk.bytes };
                    usage.disk(writable, rest, pick)
                });
                (used, request)
            }
        };
        // Processes cannot be requested, so no pod exceeds its request.
        let exceeds = !matches!(self, Measure::Processes) && used > request;
        let priority = usage.pod.spec.priority.unwrap_or(0);
        (known, !exceeds, priority, Reverse(i128::from(used) - i128::from(request)))
    }
}

impl Usage {
    #[must_use]
    pub fn disk(&self, writable: bool, rest: bool, pick: impl Fn(&Disk) -> u64) -> u64 {
        let mut sum = 0_u64;
        for container in &self.containers {
            if writable {
                sum = sum.saturating_add(pick(&container.writable));
            }
            if rest {
                sum = sum.saturating_add(pick(&container.logs));
            }
        }
        if rest {
            sum = self.volumes.values().fold(sum, |sum, disk| sum.saturating_add(pick(disk)));
        }
        sum
    }
}

fn requested(pod: &Pod, resource: &str) -> u64 {
    let amount = crate::requests(pod).get(resource).and_then(Quantity::checked_value);
    amount.and_then(|amount| u64::try_from(amount).ok()).unwrap_or(0)
}

fn message(reclaim: &Reclaim, usage: &PodUsage<'_>) -> String {
    let mut message = messages::low(reclaim);
    let resource = reclaim.resource;
    for used in usage.usage.iter().flat_map(|usage| &usage.containers) {
        let Some((_, container)) = usage.pod.container(&used.name) else { continue };
        let bytes = match resource {
            MEMORY => used.memory,
            EPHEMERAL_STORAGE => used.writable.bytes.saturating_add(used.logs.bytes),
            // Inodes and processes cannot be requested.
            _ => continue,
        };
        let request = container.resources.requests.get(resource).cloned();
        let request = request.unwrap_or_else(Quantity::zero);
        let bytes = Quantity::from_bytes(bytes);
        if bytes.cmp(&request) == Ordering::Greater {
            message.push_str(&messages::larger(&container.name, &bytes, &request, resource));
        }
    }
    message
}
