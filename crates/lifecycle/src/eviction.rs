//! Decides about evictions: [`Eviction`] computes the pressure of the node and what is to be reclaimed,
//! [`victim`] chooses the pod to evict, [`over_limit`] finds pods that exceed their disk limits.
//!
//! ```text
//!   amounts ──▶ thresholds met ──grace over──▶ reclaim ──▶ images, dead containers ──▶ one pod
//!                    │
//!                    └──▶ pressure, until it was gone for the transition period
//! ```
//!
//! Decisions and messages are upstream's. Stops no pod. Amounts and time are arguments, in milliseconds of a
//! monotonic clock.

use std::collections::BTreeMap;
use std::time::Duration;

use objects::KubeletConfig;
use objects::Quantity;
use objects::kubelet_config::{Enforcement, EvictionSignal, Threshold};
use objects::pod::OsName;
use objects::quantity::Format;
use objects::resources::{EPHEMERAL_STORAGE, MEMORY};

mod messages;
mod rank;
mod storage;

pub use rank::{ContainerUsage, Disk, PodUsage, Usage, Victim, victim};
pub use storage::over_limit;

pub type Millis = i64;

/// The pressures of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pressure {
    pub memory: bool,
    pub disk: bool,
    pub pids: bool,
}

/// Grace period in seconds of a pod that is evicted at once. Upstream's value.
pub const IMMEDIATE_GRACE: i64 = 1;

/// The available amount of a resource and its capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignalObservation {
    pub available: u64,
    pub capacity: u64,
}

/// The measured amounts. A signal that cannot be measured is absent and evicts no pod.
pub type SignalObservations = BTreeMap<EvictionSignal, SignalObservation>;

/// An eviction threshold.
#[derive(Debug, Clone, PartialEq)]
pub struct EvictionThreshold {
    pub signal: EvictionSignal,
    pub value: Threshold,
    /// Time for which it must be met; zero for hard thresholds.
    pub grace: Duration,
    /// Amount above the threshold that must be available again.
    pub minimum_reclaim: Option<Threshold>,
}

impl EvictionThreshold {
    #[must_use]
    pub fn is_hard(&self) -> bool {
        self.grace.is_zero()
    }

    fn is_met(&self, amount: SignalObservation, with_reclaim: bool) -> bool {
        let mut limit = self.value.of(amount.capacity);
        if with_reclaim && let Some(more) = &self.minimum_reclaim {
            limit = limit.saturating_add(more.of(amount.capacity));
        }
        amount.available < limit
    }
}

/// Returns the thresholds of a configuration, hard ones first.
#[must_use]
pub fn limits(config: &KubeletConfig, os: OsName) -> Vec<EvictionThreshold> {
    let limit = |signal: EvictionSignal, value: &Threshold, grace| EvictionThreshold {
        signal,
        value: value.clone(),
        grace,
        minimum_reclaim: config.eviction_minimum_reclaim.get(&signal).cloned(),
    };
    let hard = config.hard_eviction(os);
    let mut limits: Vec<EvictionThreshold> =
        hard.iter().map(|(signal, value)| limit(*signal, value, Duration::ZERO)).collect();
    // The share of all pods is measured apart from the machine.
    if config.enforce_node_allocatable.contains(&Enforcement::Pods)
        && !hard.contains_key(&EvictionSignal::AllocatableMemoryAvailable)
        && let Some(value) = hard.get(&EvictionSignal::MemoryAvailable)
    {
        limits.push(EvictionThreshold {
            signal: EvictionSignal::AllocatableMemoryAvailable,
            ..limit(EvictionSignal::MemoryAvailable, value, Duration::ZERO)
        });
    }
    for (signal, value) in &config.eviction_soft {
        // A soft threshold without a grace period is refused when the configuration is read.
        let grace = config.eviction_soft_grace_period.get(signal).copied().unwrap_or_default();
        limits.push(limit(*signal, value, grace));
    }
    // A threshold of 0 % or 100 % disables the signal.
    limits.retain(|limit| match &limit.value {
        Threshold::Percentage(percent) => *percent > 0.0 && *percent < 100.0,
        Threshold::Quantity(quantity) => !quantity.is_zero(),
    });
    limits
}

/// A request to reclaim a resource now.
#[derive(Debug, Clone, PartialEq)]
pub struct Reclaim {
    pub signal: EvictionSignal,
    /// Upstream's name: `memory`, `ephemeral-storage`, `inodes`, `pids`.
    pub resource: &'static str,
    pub hard: bool,
    /// True if dead containers and unused images are to be removed first.
    pub collect_garbage: bool,
    /// The threshold and the available amount, for messages.
    limit: Quantity,
    available: Quantity,
}

/// The result of one measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct Assessment {
    pub pressure: Pressure,
    pub reclaim: Option<Reclaim>,
}

/// The pressure of the node over time.
#[derive(Debug, Clone)]
pub struct Eviction {
    limits: Vec<EvictionThreshold>,
    /// Time for which a pressure is reported after it was last observed.
    transition: Duration,
    /// True if images have a file system of their own.
    image_disk: bool,
    /// Start time of each threshold that is met.
    since: BTreeMap<usize, Millis>,
    /// Thresholds whose grace period is over, until enough was reclaimed.
    unresolved: Vec<usize>,
    /// Time at which each pressure was last observed.
    last: BTreeMap<Kind, Millis>,
}

/// The kind of pressure of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Memory,
    Disk,
    Pids,
}

fn kind(signal: EvictionSignal) -> Kind {
    match signal {
        EvictionSignal::MemoryAvailable | EvictionSignal::AllocatableMemoryAvailable => {
            Kind::Memory
        }
        EvictionSignal::PidAvailable => Kind::Pids,
        EvictionSignal::NodefsAvailable
        | EvictionSignal::NodefsInodesFree
        | EvictionSignal::ImagefsAvailable
        | EvictionSignal::ImagefsInodesFree
        | EvictionSignal::ContainerfsAvailable
        | EvictionSignal::ContainerfsInodesFree => Kind::Disk,
    }
}

/// Returns the resource of a signal.
fn resource(signal: EvictionSignal) -> &'static str {
    match signal {
        EvictionSignal::MemoryAvailable | EvictionSignal::AllocatableMemoryAvailable => MEMORY,
        EvictionSignal::NodefsAvailable
        | EvictionSignal::ImagefsAvailable
        | EvictionSignal::ContainerfsAvailable => EPHEMERAL_STORAGE,
        EvictionSignal::NodefsInodesFree
        | EvictionSignal::ImagefsInodesFree
        | EvictionSignal::ContainerfsInodesFree => INODES,
        EvictionSignal::PidAvailable => "pids",
    }
}

const INODES: &str = "inodes";

impl Eviction {
    #[must_use]
    pub fn new(limits: Vec<EvictionThreshold>, transition: Duration, image_disk: bool) -> Eviction {
        Eviction {
            limits,
            transition,
            image_disk,
            since: BTreeMap::new(),
            unresolved: Vec::new(),
            last: BTreeMap::new(),
        }
    }

    /// Evaluates one measurement.
    pub fn assess(&mut self, amounts: &SignalObservations, now: Millis) -> Assessment {
        let met: Vec<usize> = (0..self.limits.len())
            .filter(|at| {
                let limit = &self.limits[*at];
                let unresolved = self.unresolved.contains(at);
                amounts.get(&limit.signal).is_some_and(|amount| limit.is_met(*amount, unresolved))
            })
            .collect();
        self.since.retain(|at, _| met.contains(at));
        for at in &met {
            self.since.entry(*at).or_insert(now);
            self.last.insert(kind(self.limits[*at].signal), now);
        }
        let lasted = |at: &usize| {
            let since = self.since.get(at).copied().unwrap_or(now);
            millis(self.limits[*at].grace) <= now - since
        };
        self.unresolved = met.into_iter().filter(lasted).collect();
        Assessment { pressure: self.pressure(now), reclaim: self.reclaim(amounts) }
    }

    fn pressure(&self, now: Millis) -> Pressure {
        let lately =
            |kind| self.last.get(&kind).is_some_and(|last| now - last <= millis(self.transition));
        Pressure {
            memory: lately(Kind::Memory),
            disk: lately(Kind::Disk),
            pids: lately(Kind::Pids),
        }
    }

    /// Memory comes first, because a lack of it can stop the machine.
    fn reclaim(&self, amounts: &SignalObservations) -> Option<Reclaim> {
        let limits = || self.unresolved.iter().map(|at| &self.limits[*at]);
        let limit = limits().find(|limit| kind(limit.signal) == Kind::Memory).or(limits().next())?;
        let amount = amounts.get(&limit.signal)?;
        let format = match resource(limit.signal) {
            MEMORY | EPHEMERAL_STORAGE => Format::BinarySi,
            _ => Format::DecimalSi,
        };
        let count = |n: u64| Quantity::from_i64(i64::try_from(n).unwrap_or(i64::MAX), format);
        let on_image_disk = matches!(
            limit.signal,
            EvictionSignal::ImagefsAvailable | EvictionSignal::ImagefsInodesFree
        );
        Some(Reclaim {
            signal: limit.signal,
            resource: resource(limit.signal),
            hard: limit.is_hard(),
            collect_garbage: kind(limit.signal) == Kind::Disk
                && (on_image_disk || !self.image_disk),
            limit: match &limit.value {
                Threshold::Quantity(quantity) => quantity.clone(),
                Threshold::Percentage(_) => Quantity::from_bytes(limit.value.of(amount.capacity)),
            },
            available: count(amount.available),
        })
    }
}

fn millis(duration: Duration) -> Millis {
    Millis::try_from(duration.as_millis()).unwrap_or(Millis::MAX)
}

#[cfg(test)]
mod tests;
