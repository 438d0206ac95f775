//! When the machine runs short: [`Eviction`] says under which pressure the node is and what is to be
//! reclaimed, [`victim`] which pod goes, [`over_limit`] which pods use more of the disk than they may.
//!
//! ```text
//!   amounts ──▶ thresholds met ──grace over──▶ reclaim ──▶ images, dead containers ──▶ one pod
//!                    │
//!                    └──▶ pressure, until it was gone for the transition period
//! ```
//!
//! Decides as upstream does and tells it in upstream's words. Ends nothing, and only [`measure()`],
//! [`watch()`] and [`collect`] look at the machine: amounts are values that come in, and time is an argument, in
//! milliseconds of a clock that only goes forward.

use std::collections::BTreeMap;
use std::time::Duration;

use objects::KubeletConfig;
use objects::Quantity;
use objects::kubelet_config::{Enforcement, EvictionSignal, Threshold};
use objects::pod::OsName;
use objects::quantity::Format;
use objects::resources::{EPHEMERAL_STORAGE, MEMORY};

use crate::node::Pressure;

mod measure;
mod messages;
mod rank;
mod storage;
mod usage;
mod watch;

pub use measure::{left_of_share, measure};
pub use rank::{ContainerUsage, Disk, PodUsage, Usage, Victim, victim};
pub use storage::over_limit;
pub use usage::{Asked, OnDisk, collect, usages};
pub use watch::{Places, watch};

pub type Millis = i64;

/// Seconds a pod is given that is evicted at once: upstream's figure.
pub const IMMEDIATE_GRACE: i64 = 1;

/// How much there is of something, and was at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Amount {
    pub available: u64,
    pub capacity: u64,
}

/// What was measured. What is not known is not in it, and evicts nobody.
pub type Amounts = BTreeMap<EvictionSignal, Amount>;

/// At how little of what something is done.
#[derive(Debug, Clone, PartialEq)]
pub struct Limit {
    pub signal: EvictionSignal,
    pub value: Threshold,
    /// How long it has to last; none for hard limits.
    pub grace: Duration,
    /// How much more than the limit there has to be again.
    pub minimum_reclaim: Option<Threshold>,
}

impl Limit {
    #[must_use]
    pub fn is_hard(&self) -> bool {
        self.grace.is_zero()
    }

    fn is_met(&self, amount: Amount, with_reclaim: bool) -> bool {
        let mut limit = self.value.of(amount.capacity);
        if with_reclaim && let Some(more) = &self.minimum_reclaim {
            limit = limit.saturating_add(more.of(amount.capacity));
        }
        amount.available < limit
    }
}

/// The limits of a configuration, hard ones first.
#[must_use]
pub fn limits(config: &KubeletConfig, os: OsName) -> Vec<Limit> {
    let limit = |signal: EvictionSignal, value: &Threshold, grace| Limit {
        signal,
        value: value.clone(),
        grace,
        minimum_reclaim: config.eviction_minimum_reclaim.get(&signal).cloned(),
    };
    let hard = config.hard_eviction(os);
    let mut limits: Vec<Limit> =
        hard.iter().map(|(signal, value)| limit(*signal, value, Duration::ZERO)).collect();
    // What pods have together is kept apart from what the machine has.
    if config.enforce_node_allocatable.contains(&Enforcement::Pods)
        && !hard.contains_key(&EvictionSignal::AllocatableMemoryAvailable)
        && let Some(value) = hard.get(&EvictionSignal::MemoryAvailable)
    {
        limits.push(Limit {
            signal: EvictionSignal::AllocatableMemoryAvailable,
            ..limit(EvictionSignal::MemoryAvailable, value, Duration::ZERO)
        });
    }
    for (signal, value) in &config.eviction_soft {
        // A soft limit without a time to last is refused when the configuration is read.
        let grace = config.eviction_soft_grace_period.get(signal).copied().unwrap_or_default();
        limits.push(limit(*signal, value, grace));
    }
    // A limit of nothing, or of everything, is none.
    limits.retain(|limit| match &limit.value {
        Threshold::Percentage(percent) => *percent > 0.0 && *percent < 100.0,
        Threshold::Quantity(quantity) => !quantity.is_zero(),
    });
    limits
}

/// What is to be reclaimed now.
#[derive(Debug, Clone, PartialEq)]
pub struct Reclaim {
    pub signal: EvictionSignal,
    /// In upstream's words: `memory`, `ephemeral-storage`, `inodes`, `pids`.
    pub resource: &'static str,
    pub hard: bool,
    /// Whether dead containers and images that are not in use are to go first.
    pub collect_garbage: bool,
    /// The limit and what was available, for words.
    limit: Quantity,
    available: Quantity,
}

/// What follows from one look at the machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Assessment {
    pub pressure: Pressure,
    pub reclaim: Option<Reclaim>,
}

/// Under which pressure the node is, from look to look.
#[derive(Debug, Clone)]
pub struct Eviction {
    limits: Vec<Limit>,
    /// For how long pressure is reported after it was last there.
    transition: Duration,
    /// Whether images have a file system of their own.
    image_disk: bool,
    /// By limit: since when it is met.
    since: BTreeMap<usize, Millis>,
    /// Limits that were met for as long as it takes, and of which not enough was reclaimed yet.
    unresolved: Vec<usize>,
    /// When each pressure was last there.
    last: BTreeMap<Kind, Millis>,
}

/// Which pressure a signal is a sign of.
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

/// What a signal is a lack of.
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
    pub fn new(limits: Vec<Limit>, transition: Duration, image_disk: bool) -> Eviction {
        Eviction {
            limits,
            transition,
            image_disk,
            since: BTreeMap::new(),
            unresolved: Vec::new(),
            last: BTreeMap::new(),
        }
    }

    /// Takes one look at the machine into account.
    pub fn assess(&mut self, amounts: &Amounts, now: Millis) -> Assessment {
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

    /// Memory first: its lack is what ends machines.
    fn reclaim(&self, amounts: &Amounts) -> Option<Reclaim> {
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
