//! The cgroup version of a machine and the block I/O files that its kernel offers.
//!
//! Main type: [`Cgroups`]. Values of the files are not here.

use serde::Serialize;

/// The version of the cgroup hierarchy that holds the block I/O controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum CgroupVersion {
    V1,
    V2,
}

/// The block I/O controller of a machine. A file counts as present if a cgroup that is not the root
/// has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cgroups {
    pub version: CgroupVersion,
    /// `io.max` on v2, `blkio.throttle.*` on v1.
    pub throttle: bool,
    /// `io.weight` on v2, which the kernel has with `CONFIG_BLK_CGROUP_IOCOST`; `blkio.weight` on v1.
    pub weight: bool,
    /// `io.bfq.weight` on v2, `blkio.bfq.weight` on v1. The kernel creates it with the module bfq.
    pub bfq_weight: bool,
    /// `io.latency`, on v2 only.
    pub latency: bool,
}
