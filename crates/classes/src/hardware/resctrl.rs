//! Cache and memory-bandwidth controls of a machine, as its resctrl file system offers them.
//!
//! Main type: [`Resctrl`]. [`detect`] makes it of the texts of the file system. Control groups are
//! not part of it.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Serialize, Serializer};

pub mod detect;

pub use detect::{DetectError, InfoTexts, Mount, find_mount};

/// A cache as resctrl numbers them; each level has numbers of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct CacheId(pub u64);

impl fmt::Display for CacheId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A capacity bitmask: one bit for each unit of a cache that can be allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CapacityMask(pub u64);

impl CapacityMask {
    /// Returns a mask with the bits `lowest..lowest + count`; bits above 63 are left out.
    #[must_use]
    pub fn block(lowest: u32, count: u32) -> CapacityMask {
        let ones = if count >= 64 { u64::MAX } else { (1 << count) - 1 };
        CapacityMask(ones.checked_shl(lowest).unwrap_or(0))
    }

    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the number of the lowest set bit; 64 for the empty mask.
    #[must_use]
    pub fn lowest(self) -> u32 {
        self.0.trailing_zeros()
    }

    /// Returns the number of the lowest bit that is not set; 64 for the full mask.
    #[must_use]
    pub fn lowest_zero(self) -> u32 {
        self.0.trailing_ones()
    }

    #[must_use]
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Returns true if the set bits are adjacent. The empty mask is not.
    #[must_use]
    pub fn is_contiguous(self) -> bool {
        !self.is_empty() && (self.0 >> self.lowest()).trailing_ones() == self.count()
    }

    #[must_use]
    pub fn overlaps(self, other: CapacityMask) -> bool {
        self.0 & other.0 != 0
    }

    #[must_use]
    pub fn contains(self, other: CapacityMask) -> bool {
        self.0 & other.0 == other.0
    }
}

impl fmt::LowerHex for CapacityMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

impl fmt::Display for CapacityMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl Serialize for CapacityMask {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A level of cache that resctrl can partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CacheLevel {
    L2,
    L3,
}

impl CacheLevel {
    pub const ALL: [CacheLevel; 2] = [CacheLevel::L2, CacheLevel::L3];

    /// Returns the name of the level in resctrl.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            CacheLevel::L2 => "L2",
            CacheLevel::L3 => "L3",
        }
    }
}

impl fmt::Display for CacheLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The resctrl file system of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Resctrl {
    /// The mount point.
    pub path: String,
    /// The mount options that change the interface: `cdp`, `cdpl2`, `mba_MBps`, `debug`.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub mount_options: BTreeSet<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l2: Option<CacheAllocation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub l3: Option<CacheAllocation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mb: Option<Bandwidth>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub monitoring: Option<Monitoring>,
}

impl Resctrl {
    #[must_use]
    pub fn cache(&self, level: CacheLevel) -> Option<&CacheAllocation> {
        match level {
            CacheLevel::L2 => self.l2.as_ref(),
            CacheLevel::L3 => self.l3.as_ref(),
        }
    }

    /// Returns the number of control groups that can exist, including the root group: the smallest
    /// number of any control. `None` if the machine has no control.
    #[must_use]
    pub fn num_closids(&self) -> Option<u64> {
        let caches = [&self.l2, &self.l3].into_iter().flatten();
        let caches = caches.filter_map(CacheAllocation::num_closids);
        caches.chain(self.mb.as_ref().map(|mb| mb.num_closids)).min()
    }
}

/// Cache allocation (CAT) of one level. The kernel offers either one mask for everything, or with
/// CDP one for code and one for data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CacheAllocation {
    pub cache_ids: Vec<CacheId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unified: Option<CacheControl>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<CacheControl>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<CacheControl>,
}

/// One set of capacity masks of a cache level: a directory under `info/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CacheControl {
    /// The mask of the whole cache.
    pub cbm_mask: CapacityMask,
    pub min_cbm_bits: u64,
    /// Bits that other devices of the machine use too.
    pub shareable_bits: CapacityMask,
    /// The number of control groups of this level, including the root group.
    pub num_closids: u64,
}

/// The use of a capacity mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CacheUse {
    Unified,
    Code,
    Data,
}

impl CacheUse {
    pub const ALL: [CacheUse; 3] = [CacheUse::Unified, CacheUse::Code, CacheUse::Data];

    /// Returns the suffix of resource names in resctrl.
    #[must_use]
    pub fn suffix(self) -> &'static str {
        match self {
            CacheUse::Unified => "",
            CacheUse::Code => "CODE",
            CacheUse::Data => "DATA",
        }
    }

    /// Returns the name in class files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            CacheUse::Unified => "unified",
            CacheUse::Code => "code",
            CacheUse::Data => "data",
        }
    }
}

impl fmt::Display for CacheUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl CacheAllocation {
    /// Returns true if code and data have masks of their own.
    #[must_use]
    pub fn cdp(&self) -> bool {
        self.code.is_some() || self.data.is_some()
    }

    #[must_use]
    pub fn control(&self, of: CacheUse) -> Option<&CacheControl> {
        match of {
            CacheUse::Unified => self.unified.as_ref(),
            CacheUse::Code => self.code.as_ref(),
            CacheUse::Data => self.data.as_ref(),
        }
    }

    /// Returns the control that masks are computed with: that of code, else of data, else the only
    /// one. `None` if the level cannot be allocated.
    #[must_use]
    pub fn base(&self) -> Option<&CacheControl> {
        self.code.as_ref().or(self.data.as_ref()).or(self.unified.as_ref())
    }

    /// Returns the uses that `schemata` has a line for.
    #[must_use]
    pub fn uses(&self) -> &'static [CacheUse] {
        match (&self.unified, self.cdp()) {
            (Some(_), _) => &[CacheUse::Unified],
            (None, true) => &[CacheUse::Code, CacheUse::Data],
            (None, false) => &[],
        }
    }

    /// Returns the number of control groups of this level, including the root group.
    #[must_use]
    pub fn num_closids(&self) -> Option<u64> {
        let controls = [&self.unified, &self.code, &self.data];
        controls.into_iter().flatten().map(|control| control.num_closids).min()
    }
}

/// The unit of memory-bandwidth values in `schemata`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BandwidthUnit {
    Percent,
    /// Megabytes per second, with the mount option `mba_MBps`.
    MegabytesPerSecond,
    /// Eighths of a gigabyte per second, on AMD.
    EighthsOfGigabyte,
}

/// Memory-bandwidth allocation (MBA).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Bandwidth {
    pub cache_ids: Vec<CacheId>,
    pub num_closids: u64,
    pub min_bandwidth: u64,
    pub bandwidth_gran: u64,
    pub delay_linear: bool,
    /// Mounted with `mba_MBps`.
    #[serde(rename = "mbps", skip_serializing_if = "std::ops::Not::not")]
    pub mbps: bool,
}

impl Bandwidth {
    /// Returns the unit of values. AMD has no smallest percentage: its `min_bandwidth` is 0.
    #[must_use]
    pub fn unit(&self) -> BandwidthUnit {
        match (self.mbps, self.min_bandwidth) {
            (true, _) => BandwidthUnit::MegabytesPerSecond,
            (false, 0) => BandwidthUnit::EighthsOfGigabyte,
            (false, _) => BandwidthUnit::Percent,
        }
    }
}

/// Monitoring of cache occupancy and memory bandwidth.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Monitoring {
    /// The number of groups that can be monitored at a time.
    pub num_rmids: u64,
    pub features: BTreeSet<String>,
}

#[cfg(test)]
mod tests;
