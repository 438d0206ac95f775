//! Which pod goes: [`victim`], by upstream's order.
//!
//! First pods that use more than they asked for, then those of lower priority, then those that use the
//! most beyond their requests. Critical pods stay.

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;

use objects::Quantity;
use objects::kubelet_config::EvictionSignal;
use objects::resources::{EPHEMERAL_STORAGE, MEMORY};

use super::{IMMEDIATE_GRACE, Reclaim, messages};
use crate::admission::is_critical;
use crate::spec::Pod;

/// A pod that runs, and what it uses.
#[derive(Debug, Clone)]
pub struct PodUsage<'a> {
    pub pod: &'a Pod,
    /// `None` if that is not known: such a pod goes first, as its consumption is in nobody's hands.
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
    /// What it wrote into its own file system.
    pub writable: Disk,
    pub logs: Disk,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Disk {
    pub bytes: u64,
    pub inodes: u64,
}

/// A pod that is to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Victim {
    pub pod_uid: String,
    /// Of its status and its Event; the reason of both is `Evicted`.
    pub message: String,
    /// Seconds it is given to end.
    pub grace_seconds: i64,
}

/// The pod to evict for `reclaim`, one at a time: what it frees is to be seen before another goes.
/// `max_grace` is `evictionMaxPodGracePeriod`, and for soft limits only.
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

/// By what pods are compared.
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

    /// Who has the least key goes first.
    fn key(self, of: &PodUsage<'_>) -> (bool, bool, i32, Reverse<i128>) {
        let known = of.usage.is_some();
        let (used, asked) = match self {
            Measure::Memory => {
                (of.usage.as_ref().map_or(0, |usage| usage.memory), requested(of.pod, MEMORY))
            }
            Measure::Processes => (of.usage.as_ref().map_or(0, |usage| usage.processes), 0),
            Measure::Disk { writable, rest, inodes } => {
                let asked = if inodes { 0 } else { requested(of.pod, EPHEMERAL_STORAGE) };
                let used = of.usage.as_ref().map_or(0, |usage| {
                    let pick = |disk: &Disk| if inodes { disk.inodes } else { disk.bytes };
                    usage.disk(writable, rest, pick)
                });
                (used, asked)
            }
        };
        // Nobody asks for processes, so nobody has more of them than asked for.
        let exceeds = !matches!(self, Measure::Processes) && used > asked;
        let priority = of.pod.spec.priority.unwrap_or(0);
        (known, !exceeds, priority, Reverse(i128::from(used) - i128::from(asked)))
    }
}

impl Usage {
    pub(super) fn disk(&self, writable: bool, rest: bool, pick: impl Fn(&Disk) -> u64) -> u64 {
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

fn message(reclaim: &Reclaim, of: &PodUsage<'_>) -> String {
    let mut message = messages::low(reclaim);
    let resource = reclaim.resource;
    for used in of.usage.iter().flat_map(|usage| &usage.containers) {
        let Some((_, container)) = of.pod.container(&used.name) else { continue };
        let bytes = match resource {
            MEMORY => used.memory,
            EPHEMERAL_STORAGE => used.writable.bytes.saturating_add(used.logs.bytes),
            // Of inodes and processes nobody can ask for some.
            _ => continue,
        };
        let asked = container.resources.requests.get(resource).cloned();
        let asked = asked.unwrap_or_else(Quantity::zero);
        let bytes = Quantity::from_bytes(bytes);
        if bytes.cmp(&asked) == Ordering::Greater {
            message.push_str(&messages::larger(&container.name, &bytes, &asked, resource));
        }
    }
    message
}
