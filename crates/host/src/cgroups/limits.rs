//! The limits of a cgroup: [`Limits`], and the files of each version that hold them.
//!
//! Arithmetic and text only.

use std::collections::BTreeMap;
use std::fmt;

use super::Version;

/// An upper bound, or no limit, which is the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bound {
    At(u64),
    Max,
}

/// The form of version 2, and of `pids.max` in both versions.
impl fmt::Display for Bound {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::At(value) => write!(to, "{value}"),
            Bound::Max => to.write_str("max"),
        }
    }
}

/// CPU time in microseconds per period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    pub time: Bound,
    pub period: u64,
}

/// Limits to write. `None` or missing values are left unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Relative weight, in the unit of version 1 (1024 per CPU).
    pub cpu_shares: Option<u64>,
    pub cpu_quota: Option<Quota>,
    /// Bytes.
    pub memory: Option<Bound>,
    /// Processes and threads.
    pub pids: Option<Bound>,
    /// Bytes by page size, in the form of file names: `2MB`.
    pub huge_pages: BTreeMap<String, Bound>,
    /// Version 2: further files by name, for example `memory.min`.
    pub unified: BTreeMap<String, String>,
}

/// The smallest and largest shares of version 1, and weights of version 2.
const SHARES: (u64, u64) = (2, 262_144);
const WEIGHTS: (u64, u64) = (1, 10_000);
/// From here on a value of version 1 means "no limit": the kernel rounds 2⁶³ to pages.
const UNLIMITED: u64 = 1 << 62;

/// Converts shares of version 1 to a weight of version 2: 10 to the power of a parabola over their
/// binary logarithm, which maps the minimum, the default (1024 to 100) and the maximum onto each
/// other. Runtimes do the same for containers (runc from 1.3.2, crun from 1.23; older ones map
/// linearly).
#[must_use]
pub fn weight_of_shares(shares: u64) -> u64 {
    if shares <= SHARES.0 {
        return WEIGHTS.0;
    }
    if shares >= SHARES.1 {
        return WEIGHTS.1;
    }
    let log = (shares as f64).log2();
    let exponent = (log * log + 125.0 * log) / 612.0 - 7.0 / 34.0;
    // The default must convert exactly, regardless of rounding in the logarithm.
    let weight = (10_f64.powf(exponent) - 1e-9).ceil();
    (weight as u64).clamp(WEIGHTS.0, WEIGHTS.1)
}

/// A file to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Write {
    pub controller: &'static str,
    pub file: String,
    pub value: String,
    /// A kernel without this file has nothing to limit.
    pub optional: bool,
}

impl Limits {
    /// Returns the files of a version in write order.
    pub(super) fn writes(&self, version: Version) -> Vec<Write> {
        let mut writes = Vec::new();
        let mut put = |controller: &'static str, file: &str, value: String, optional: bool| {
            writes.push(Write { controller, file: file.to_owned(), value, optional });
        };
        match version {
            Version::V1 => {
                if let Some(shares) = self.cpu_shares {
                    let shares = shares.clamp(SHARES.0, SHARES.1);
                    put("cpu", "cpu.shares", shares.to_string(), false);
                }
                if let Some(Quota { time, period }) = self.cpu_quota {
                    put("cpu", PERIOD_V1, period.to_string(), true);
                    put("cpu", QUOTA_V1, signed(time), true);
                }
                if let Some(memory) = self.memory {
                    put("memory", "memory.limit_in_bytes", signed(memory), false);
                }
            }
            Version::V2 => {
                if let Some(shares) = self.cpu_shares {
                    put("cpu", "cpu.weight", weight_of_shares(shares).to_string(), false);
                }
                if let Some(Quota { time, period }) = self.cpu_quota {
                    put("cpu", "cpu.max", format!("{time} {period}"), true);
                }
                if let Some(memory) = self.memory {
                    put("memory", "memory.max", memory.to_string(), false);
                }
            }
        }
        if let Some(pids) = self.pids {
            put("pids", "pids.max", pids.to_string(), true);
        }
        for (size, bound) in &self.huge_pages {
            match version {
                Version::V1 => {
                    put("hugetlb", &format!("hugetlb.{size}.limit_in_bytes"), signed(*bound), true);
                }
                Version::V2 => {
                    put("hugetlb", &format!("hugetlb.{size}.max"), bound.to_string(), true);
                }
            }
        }
        if version == Version::V2 {
            for (file, value) in &self.unified {
                put("memory", file, value.clone(), true);
            }
        }
        writes
    }
}

/// The two files of version 1 that correspond to one of version 2.
pub(super) const PERIOD_V1: &str = "cpu.cfs_period_us";
pub(super) const QUOTA_V1: &str = "cpu.cfs_quota_us";

/// Renders a bound in the form of version 1.
fn signed(bound: Bound) -> String {
    match bound {
        Bound::At(value) => value.to_string(),
        Bound::Max => "-1".to_owned(),
    }
}

/// Parses a bound in the form of either version.
pub(super) fn parse_bound(text: &str) -> Option<Bound> {
    match text {
        "max" | "-1" => Some(Bound::Max),
        number => match number.parse().ok()? {
            unlimited if unlimited >= UNLIMITED => Some(Bound::Max),
            value => Some(Bound::At(value)),
        },
    }
}
