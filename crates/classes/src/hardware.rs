//! The hardware of a machine that classes are planned against, as values.
//!
//! Main type: [`Hardware`]. [`resctrl`] has the cache and bandwidth controls and parses the texts of
//! the resctrl file system, [`devices`] has block devices, [`cgroups`] the files of the io controller.
//! Nothing here reads a machine; `host` does, and machine files carry the result.

use serde::Serialize;

pub mod cgroups;
pub mod devices;
pub mod resctrl;

pub use cgroups::{CgroupVersion, Cgroups};
pub use devices::{BlockDevice, DeviceEntry, DeviceNumber, DeviceTree, Scheduler};
pub use resctrl::{Bandwidth, CacheAllocation, CacheId, CapacityMask, Monitoring, Resctrl};

/// The parts of a machine that classes use. A part is absent if the machine does not have it or if
/// its description does not mention it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Hardware {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resctrl: Option<Resctrl>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroups: Option<Cgroups>,
    #[serde(skip_serializing_if = "DeviceTree::is_empty")]
    pub devices: DeviceTree,
}

impl Hardware {
    /// Returns true if nothing is known of the machine.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Hardware::default()
    }
}
