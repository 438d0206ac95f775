//! Memory QoS of a cgroup: [`MemoryKnobs`], written and read back.
//!
//! Version 2 has a file for each. Version 1 has a soft limit, which reclaims like `memory.low` from
//! the other side, and a limit of memory and swap together. A knob that a version does not have is an
//! error before anything is written. The hard limit is in [`super::Limits`].

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

use super::tree::{is_gone, read, write_existing};
use super::{Bound, CgroupError, Cgroups, Version, failed, names};

/// From here on a value of version 1 means "no limit": the kernel rounds 2⁶³ to pages.
const UNLIMITED: u64 = 1 << 62;

/// The largest page of any machine; the kernel rounds values down to pages.
const LARGEST_PAGE: u64 = 64 * 1024;

/// A knob of memory QoS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryKnob {
    /// Memory that is never reclaimed.
    Min,
    /// Memory that is reclaimed last.
    Low,
    /// Memory above which the processes are slowed down and reclaim.
    High,
    /// Swap without memory.
    SwapMax,
    /// One process out of memory ends all of them.
    OomGroup,
}

impl MemoryKnob {
    /// Returns the file of a version; `None` if it has none.
    fn file(self, version: Version) -> Option<&'static str> {
        match (version, self) {
            (Version::V2, MemoryKnob::Min) => Some("memory.min"),
            (Version::V2, MemoryKnob::Low) => Some("memory.low"),
            (Version::V2, MemoryKnob::High) => Some("memory.high"),
            (Version::V2, MemoryKnob::SwapMax) => Some("memory.swap.max"),
            (Version::V2, MemoryKnob::OomGroup) => Some("memory.oom.group"),
            (Version::V1, MemoryKnob::Low) => Some("memory.soft_limit_in_bytes"),
            (Version::V1, MemoryKnob::SwapMax) => Some("memory.memsw.limit_in_bytes"),
            (Version::V1, MemoryKnob::Min | MemoryKnob::High | MemoryKnob::OomGroup) => None,
        }
    }
}

/// The name in version 2.
impl fmt::Display for MemoryKnob {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.file(Version::V2).unwrap_or_default())
    }
}

/// Memory QoS to write. `None` is left unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryKnobs {
    /// Bytes.
    pub min: Option<Bound>,
    /// Bytes.
    pub low: Option<Bound>,
    /// Bytes.
    pub high: Option<Bound>,
    /// Bytes.
    pub swap_max: Option<Bound>,
    pub oom_group: Option<bool>,
}

impl MemoryKnobs {
    /// Returns the values to write, in an order in which none exceeds another for a moment.
    fn values(&self) -> Vec<(MemoryKnob, Bound)> {
        let group = self.oom_group.map(|on| Bound::At(on.into()));
        let values = [
            (MemoryKnob::High, self.high),
            (MemoryKnob::Min, self.min),
            (MemoryKnob::Low, self.low),
            (MemoryKnob::SwapMax, self.swap_max),
            (MemoryKnob::OomGroup, group),
        ];
        values.into_iter().filter_map(|(knob, value)| Some((knob, value?))).collect()
    }
}

/// The reason why memory QoS is not in force.
#[derive(Debug, Error)]
pub enum MemoryError {
    #[error("cgroup v1 has no {0}; it needs a machine with cgroup v2")]
    NotInVersion1(MemoryKnob),
    #[error("the kernel has no file {0}")]
    Missing(PathBuf),
    #[error("{path} has {found} after {wanted} was written")]
    NotInForce { path: PathBuf, wanted: Bound, found: Bound },
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
}

impl Cgroups {
    /// Writes memory QoS of an existing cgroup and reads it back.
    pub fn set_memory(&self, path: &str, knobs: &MemoryKnobs) -> Result<(), MemoryError> {
        let hierarchy = self.layout.of("memory").ok_or(CgroupError::NotMounted)?;
        let directory = hierarchy.directory(&names(path)?);
        let mut writes = Vec::new();
        for (knob, value) in knobs.values() {
            let file = knob.file(self.version()).ok_or(MemoryError::NotInVersion1(knob))?;
            let file = directory.join(file);
            if !file.exists() {
                return Err(MemoryError::Missing(file));
            }
            writes.push((knob, file, value));
        }
        for (knob, file, value) in writes {
            let value = match (self.version(), knob, value) {
                (Version::V1, MemoryKnob::SwapMax, Bound::At(swap)) => {
                    match bound(&read(&directory.join("memory.limit_in_bytes"))?) {
                        Some(Bound::At(memory)) => Bound::At(memory.saturating_add(swap)),
                        _ => Bound::Max,
                    }
                }
                (_, _, value) => value,
            };
            let text = match (self.version(), value) {
                (Version::V1, Bound::Max) => "-1".to_owned(),
                (_, value) => value.to_string(),
            };
            write_existing(&file, &text).map_err(failed("write", &file))?;
            self.check_memory(file, value)?;
        }
        Ok(())
    }

    fn check_memory(&self, path: PathBuf, wanted: Bound) -> Result<(), MemoryError> {
        let text = match read(&path) {
            Err(CgroupError::Io { source, .. }) if is_gone(&source) => {
                return Err(MemoryError::Missing(path));
            }
            text => text?,
        };
        let Some(found) = bound(&text) else {
            return Err(CgroupError::Text { path, text, expected: "number of bytes" }.into());
        };
        let is_rounded = |wanted: u64, found: u64| found <= wanted && wanted - found < LARGEST_PAGE;
        match (wanted, found) {
            (Bound::At(wanted), Bound::At(found)) if is_rounded(wanted, found) => Ok(()),
            (Bound::Max, Bound::Max) => Ok(()),
            _ => Err(MemoryError::NotInForce { path, wanted, found }),
        }
    }
}

/// Reads a bound in the form of either version.
fn bound(text: &str) -> Option<Bound> {
    match text {
        "max" | "-1" => Some(Bound::Max),
        number => number.parse().ok().map(|value| match value {
            UNLIMITED.. => Bound::Max,
            value => Bound::At(value),
        }),
    }
}
