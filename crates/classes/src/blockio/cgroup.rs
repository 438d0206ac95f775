//! Lowers block I/O parameters to the files of a cgroup.
//!
//! Main entry: [`writes`]. Files and values are those of runc. Berth adds weights of single devices
//! in `io.weight`, which runc leaves out, and writes limits of 0 to `io.max` as `max`.

use serde::Serialize;

use super::parameters::{Parameters, Rate, Weight};
use crate::hardware::{CgroupVersion, Cgroups, DeviceNumber};

/// The file that takes weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightFile {
    /// `io.bfq.weight` or `blkio.bfq.weight*`.
    Bfq,
    /// `io.weight` or `blkio.weight*`.
    Plain,
}

impl WeightFile {
    /// Returns the file that a runtime uses: on v1 the plain one where it exists, on v2 that of bfq.
    #[must_use]
    pub fn of(cgroups: &Cgroups) -> Option<WeightFile> {
        let (first, second) = match cgroups.version {
            CgroupVersion::V1 => (WeightFile::Plain, WeightFile::Bfq),
            CgroupVersion::V2 => (WeightFile::Bfq, WeightFile::Plain),
        };
        let exists = |file: &WeightFile| match file {
            WeightFile::Bfq => cgroups.bfq_weight,
            WeightFile::Plain => cgroups.weight,
        };
        [first, second].into_iter().find(exists)
    }
}

/// One write to a file of a cgroup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Write {
    pub file: &'static str,
    pub data: String,
    /// runc makes the same write from the OCI form.
    pub by_runc: bool,
}

/// Returns the writes that put a cgroup into a class. Without a file for weights there are none for
/// them.
#[must_use]
pub fn writes(
    parameters: &Parameters,
    version: CgroupVersion,
    weights: Option<WeightFile>,
) -> Vec<Write> {
    match version {
        CgroupVersion::V1 => v1(parameters, weights),
        CgroupVersion::V2 => v2(parameters, weights),
    }
}

fn by_runc(file: &'static str, data: String) -> Write {
    Write { file, data, by_runc: true }
}

fn v1(parameters: &Parameters, weights: Option<WeightFile>) -> Vec<Write> {
    let mut writes = Vec::new();
    if let Some(file) = weights {
        let (all, device) = match file {
            WeightFile::Bfq => ("blkio.bfq.weight", "blkio.bfq.weight_device"),
            WeightFile::Plain => ("blkio.weight", "blkio.weight_device"),
        };
        writes.extend(parameters.weight.map(|weight| by_runc(all, weight.get().to_string())));
        writes.extend(
            parameters
                .device_weights
                .iter()
                .map(|(number, weight)| by_runc(device, format!("{number} {}", weight.get()))),
        );
    }
    for kind in Rate::ALL {
        let file = match kind {
            Rate::ReadBps => "blkio.throttle.read_bps_device",
            Rate::WriteBps => "blkio.throttle.write_bps_device",
            Rate::ReadIops => "blkio.throttle.read_iops_device",
            Rate::WriteIops => "blkio.throttle.write_iops_device",
        };
        let rates = parameters.rates(kind);
        writes.extend(rates.map(|(number, rate)| by_runc(file, format!("{number} {rate}"))));
    }
    writes
}

fn v2(parameters: &Parameters, weights: Option<WeightFile>) -> Vec<Write> {
    let mut writes = Vec::new();
    if let Some(file) = weights {
        let all = |weight: Weight| match file {
            WeightFile::Bfq => by_runc("io.bfq.weight", weight.get().to_string()),
            WeightFile::Plain => by_runc("io.weight", weight.for_io_weight().to_string()),
        };
        let device = |(number, weight): (&DeviceNumber, &Weight)| match file {
            WeightFile::Bfq => by_runc("io.bfq.weight", format!("{number} {}\n", weight.get())),
            WeightFile::Plain => Write {
                file: "io.weight",
                data: format!("{number} {}", weight.for_io_weight()),
                by_runc: false,
            },
        };
        writes.extend(parameters.weight.map(all));
        writes.extend(parameters.device_weights.iter().map(device));
    }
    for kind in Rate::ALL {
        let key = match kind {
            Rate::ReadBps => "rbps",
            Rate::WriteBps => "wbps",
            Rate::ReadIops => "riops",
            Rate::WriteIops => "wiops",
        };
        writes.extend(parameters.rates(kind).map(|(number, rate)| match rate {
            0 => Write { file: "io.max", data: format!("{number} {key}=max"), by_runc: false },
            rate => by_runc("io.max", format!("{number} {key}={rate}")),
        }));
    }
    writes
}
