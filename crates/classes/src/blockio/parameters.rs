//! The block I/O parameters of a class on one machine.
//!
//! Main type: [`Parameters`]; [`Parameters::oci`] is the form that OCI runtimes read.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::hardware::DeviceNumber;

/// A limit of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rate {
    ReadBps,
    WriteBps,
    ReadIops,
    WriteIops,
}

impl Rate {
    /// All limits, in the order in which they are written.
    pub const ALL: [Rate; 4] = [Rate::ReadBps, Rate::WriteBps, Rate::ReadIops, Rate::WriteIops];
}

/// Weights and limits. A limit of 0 means no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    pub weight: Option<Weight>,
    pub device_weights: BTreeMap<DeviceNumber, Weight>,
    pub rates: BTreeMap<(Rate, DeviceNumber), u64>,
}

/// A weight in the range of bfq and cgroup v1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Weight(u16);

impl Weight {
    pub const LEAST: i64 = 10;
    pub const MOST: i64 = 1000;

    #[must_use]
    pub fn new(value: i64) -> Option<Weight> {
        let in_range = (Weight::LEAST..=Weight::MOST).contains(&value);
        in_range.then(|| u16::try_from(value).ok()).flatten().map(Weight)
    }

    #[must_use]
    pub fn get(self) -> u16 {
        self.0
    }

    /// Returns the weight in the range 1 to 10000 of `io.weight`.
    #[must_use]
    pub fn for_io_weight(self) -> u64 {
        1 + (u64::from(self.0) - 10) * 9999 / 990
    }
}

/// The block I/O part of the OCI runtime configuration, `linux.resources.blockIO`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OciBlockIo {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<Weight>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub weight_device: Vec<OciWeight>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub throttle_read_bps_device: Vec<OciRate>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub throttle_write_bps_device: Vec<OciRate>,
    #[serde(rename = "throttleReadIOPSDevice", skip_serializing_if = "Vec::is_empty")]
    pub throttle_read_iops_device: Vec<OciRate>,
    #[serde(rename = "throttleWriteIOPSDevice", skip_serializing_if = "Vec::is_empty")]
    pub throttle_write_iops_device: Vec<OciRate>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OciWeight {
    pub major: u32,
    pub minor: u32,
    pub weight: Weight,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OciRate {
    pub major: u32,
    pub minor: u32,
    pub rate: u64,
}

impl Parameters {
    /// Returns the limits of one kind, by device.
    pub fn rates(&self, kind: Rate) -> impl Iterator<Item = (DeviceNumber, u64)> {
        let least = DeviceNumber { major: 0, minor: 0 };
        let most = DeviceNumber { major: u32::MAX, minor: u32::MAX };
        let rates = self.rates.range((kind, least)..=(kind, most));
        rates.map(|((_, device), rate)| (*device, *rate))
    }

    /// Returns the form of OCI. Devices are in order of their numbers.
    #[must_use]
    pub fn oci(&self) -> OciBlockIo {
        let rates = |kind| {
            let rate = |(DeviceNumber { major, minor }, rate)| OciRate { major, minor, rate };
            self.rates(kind).map(rate).collect()
        };
        let weights = self.device_weights.iter();
        OciBlockIo {
            weight: self.weight,
            weight_device: weights
                .map(|(DeviceNumber { major, minor }, weight)| OciWeight {
                    major: *major,
                    minor: *minor,
                    weight: *weight,
                })
                .collect(),
            throttle_read_bps_device: rates(Rate::ReadBps),
            throttle_write_bps_device: rates(Rate::WriteBps),
            throttle_read_iops_device: rates(Rate::ReadIops),
            throttle_write_iops_device: rates(Rate::WriteIops),
        }
    }

    /// Returns the parameters without limits of 0. Runtimes write those to `io.max` as `0`, which
    /// the kernel refuses.
    #[must_use]
    pub fn without_zero_rates(mut self) -> Parameters {
        self.rates.retain(|_, rate| *rate != 0);
        self
    }
}
