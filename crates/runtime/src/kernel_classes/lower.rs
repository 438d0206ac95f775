//! Effects of classes in the terms of `host`. Pure.

use ::classes::class_file::{self, IoPriority, Limit, Memory, Policy, Scheduling};
use host::cgroups::{Bound, MemoryKnobs};
use host::tuning::{self, IoLevel, Nice, RealtimePriority, Rlimit, RlimitKind, Rlimits};

/// A value that the class file allows and the operating system does not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {value} is not supported on this system")]
pub(crate) struct Unsupported {
    what: &'static str,
    value: String,
}

pub(crate) fn rlimits(limits: &[class_file::Rlimit]) -> Result<Rlimits, Unsupported> {
    let limits = limits.iter().map(|limit| {
        let kind = RlimitKind::parse(limit.kind)
            .ok_or_else(|| Unsupported { what: "resource limit", value: limit.kind.to_owned() })?;
        let lowered = Rlimit::new(bound(limit.soft), bound(limit.hard));
        let lowered = lowered.ok_or_else(|| Unsupported {
            what: "a soft limit above the hard limit,",
            value: format!("{} of {}", limit.soft.0, limit.kind),
        })?;
        Ok((kind, lowered))
    });
    limits.collect()
}

fn bound(limit: Limit) -> Bound {
    if limit == Limit::UNLIMITED { Bound::Max } else { Bound::At(limit.0) }
}

pub(crate) fn memory(memory: &Memory) -> MemoryKnobs {
    let bytes = |value: Option<class_file::Bytes>| value.map(|bytes| Bound::At(bytes.0));
    MemoryKnobs {
        min: bytes(memory.min),
        low: bytes(memory.low),
        high: bytes(memory.high),
        swap_max: bytes(memory.swap_max),
        oom_group: memory.oom_group,
    }
}

pub(crate) fn scheduling(scheduling: &Scheduling) -> Result<tuning::Scheduling, Unsupported> {
    let nice = |nice: class_file::Nice| {
        Nice::new(nice.0.into())
            .ok_or_else(|| Unsupported { what: "nice value", value: nice.0.to_string() })
    };
    let priority = |priority: class_file::RealTimePriority| {
        RealtimePriority::new(priority.0.into())
            .ok_or_else(|| Unsupported { what: "priority", value: priority.0.to_string() })
    };
    let level = |level: u8| {
        IoLevel::new(level.into())
            .ok_or_else(|| Unsupported { what: "I/O level", value: level.to_string() })
    };
    let mut lowered = tuning::Scheduling::default();
    if let Some(policy) = scheduling.policy {
        let (policy, niceness) = match policy {
            Policy::Other { nice: value } => (tuning::Policy::Other, Some(nice(value)?)),
            Policy::Batch { nice: value } => (tuning::Policy::Batch, Some(nice(value)?)),
            Policy::Idle => (tuning::Policy::Idle, None),
            Policy::Fifo { priority: value } => (tuning::Policy::Fifo(priority(value)?), None),
            Policy::RoundRobin { priority: value } => {
                (tuning::Policy::RoundRobin(priority(value)?), None)
            }
        };
        lowered.policy = Some(policy);
        lowered.nice = niceness;
    }
    lowered.io_priority = match scheduling.io_priority {
        None => None,
        Some(IoPriority::RealTime(value)) => Some(tuning::IoPriority::Realtime(level(value)?)),
        Some(IoPriority::BestEffort(value)) => Some(tuning::IoPriority::BestEffort(level(value)?)),
        Some(IoPriority::Idle) => Some(tuning::IoPriority::Idle),
    };
    Ok(lowered)
}
