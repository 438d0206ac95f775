//! Eviction signals and thresholds: the amounts below which a kubelet evicts pods.

use std::collections::BTreeMap;
use std::fmt;

use super::keywords::Keywords;
use crate::pod::OsName;
use crate::quantity::Quantity;

/// Signal → threshold.
pub type Thresholds = BTreeMap<EvictionSignal, Threshold>;

/// A signal that eviction watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EvictionSignal {
    MemoryAvailable,
    AllocatableMemoryAvailable,
    NodefsAvailable,
    NodefsInodesFree,
    ImagefsAvailable,
    ImagefsInodesFree,
    ContainerfsAvailable,
    ContainerfsInodesFree,
    PidAvailable,
}

pub(super) const SIGNALS: Keywords<EvictionSignal> = &[
    ("memory.available", EvictionSignal::MemoryAvailable),
    ("allocatableMemory.available", EvictionSignal::AllocatableMemoryAvailable),
    ("nodefs.available", EvictionSignal::NodefsAvailable),
    ("nodefs.inodesFree", EvictionSignal::NodefsInodesFree),
    ("imagefs.available", EvictionSignal::ImagefsAvailable),
    ("imagefs.inodesFree", EvictionSignal::ImagefsInodesFree),
    ("containerfs.available", EvictionSignal::ContainerfsAvailable),
    ("containerfs.inodesFree", EvictionSignal::ContainerfsInodesFree),
    ("pid.available", EvictionSignal::PidAvailable),
];

impl fmt::Display for EvictionSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = SIGNALS.iter().find(|(_, signal)| signal == self).map_or("", |(word, _)| word);
        f.write_str(word)
    }
}

/// An amount, or a percentage of the machine's capacity.
#[derive(Debug, Clone, PartialEq)]
pub enum Threshold {
    Quantity(Quantity),
    /// Percent, 0 to 100. Both ends mean "never".
    Percentage(f64),
}

impl Threshold {
    /// Reads `100Mi` or `10%`; the error states the problem.
    pub(super) fn parse(text: &str) -> Result<Threshold, String> {
        if let Some(number) = text.strip_suffix('%') {
            let percent: f64 =
                number.parse().map_err(|_| format!("{text:?} is not a percentage such as 10%"))?;
            return if (0.0..=100.0).contains(&percent) {
                Ok(Threshold::Percentage(percent))
            } else {
                Err(format!("{text:?} must be between 0% and 100%"))
            };
        }
        let quantity = Quantity::parse(text).map_err(|error| {
            format!(
                "{text:?} is neither a quantity such as 100Mi nor a percentage such as 10%: {error}"
            )
        })?;
        Ok(Threshold::Quantity(quantity))
    }

    /// Returns the threshold in units of `capacity`, at least 0; no threshold counts as zero.
    #[must_use]
    pub fn of(&self, capacity: u64) -> u64 {
        match self {
            Threshold::Quantity(quantity) => {
                quantity.checked_value().and_then(|n| u64::try_from(n).ok()).unwrap_or(0)
            }
            Threshold::Percentage(percent) if *percent <= 0.0 || *percent >= 100.0 => 0,
            // Upstream computes the share in 32-bit floating point; the sums must be equal.
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_precision_loss,
                clippy::cast_sign_loss
            )]
            Threshold::Percentage(percent) => {
                let share = (*percent as f32) / 100.0;
                (f64::from(share) * capacity as f64) as u64
            }
        }
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Threshold::Quantity(quantity) => quantity.fmt(f),
            Threshold::Percentage(percent) => write!(f, "{percent}%"),
        }
    }
}

/// The hard thresholds of a kubelet whose file gives none.
pub(super) fn default_hard(os: OsName) -> Thresholds {
    let mebibytes = |n: u64| Threshold::Quantity(Quantity::from_bytes(n << 20));
    let mut thresholds =
        Thresholds::from([(EvictionSignal::NodefsAvailable, Threshold::Percentage(10.0))]);
    match os {
        OsName::Linux => thresholds.extend([
            (EvictionSignal::MemoryAvailable, mebibytes(100)),
            (EvictionSignal::ImagefsAvailable, Threshold::Percentage(15.0)),
            (EvictionSignal::NodefsInodesFree, Threshold::Percentage(5.0)),
            (EvictionSignal::ImagefsInodesFree, Threshold::Percentage(5.0)),
        ]),
        // Windows has no inodes, its runtimes report no image file system, and its own processes
        // need more memory.
        OsName::Windows => {
            thresholds.insert(EvictionSignal::MemoryAvailable, mebibytes(500));
        }
    }
    thresholds
}
