//! Block I/O of a cgroup: probes the files that the kernel has, writes the settings of a class, reads
//! them back, and resets what an earlier class left.
//!
//! Main type: [`IoSettings`]. Which values a class has is decided in the crate `classes`; this module
//! takes its writes as file names and texts. A missing file for weights is never an error, because
//! kernels without the scheduler bfq or without `io.cost` have none.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use classes::hardware::{CgroupVersion, DeviceNumber};
use thiserror::Error;

use super::layout::Version;
use super::tree::{is_gone, write_existing};
use super::{CgroupError, Cgroups, failed, names};
use crate::block_devices::BlockDevices;

mod files;

pub use files::{IoFile, IoSettings, IoTextError, Setting};

/// The reason why block I/O settings are not in force.
#[derive(Debug, Error)]
pub enum IoError {
    #[error("{0:?} is not a block I/O file of cgroup {1}")]
    UnknownFile(String, &'static str),
    #[error(transparent)]
    Text(#[from] IoTextError),
    #[error(
        "device {device} is a partition, which the kernel cannot limit by itself; use its disk {disk}"
    )]
    Partition { device: DeviceNumber, disk: DeviceNumber },
    #[error("device {0} does not exist")]
    NoDevice(DeviceNumber),
    #[error("the kernel has no file {file} for cgroup {cgroup}")]
    Missing { file: &'static str, cgroup: String },
    #[error("{file} of cgroup {cgroup} has {found} after {wanted} was written")]
    NotInForce { file: &'static str, cgroup: String, wanted: String, found: String },
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
}

impl Cgroups {
    /// Returns the block I/O files that the cgroups of this machine have; `None` without the
    /// controller. The root cgroup has none of them, so `path` is any other cgroup.
    #[must_use]
    pub fn io_files(&self, path: &str) -> Option<classes::hardware::Cgroups> {
        let names = names(path).ok()?;
        let directory = self.layout.of(IoFile::controller(self.version()))?.directory(&names);
        let has = |file: IoFile| directory.join(file.name()).exists();
        let found = match self.version() {
            Version::V1 => classes::hardware::Cgroups {
                version: CgroupVersion::V1,
                throttle: has(IoFile::ReadBpsV1),
                weight: has(IoFile::WeightV1),
                bfq_weight: has(IoFile::BfqWeightV1),
                latency: false,
            },
            Version::V2 => classes::hardware::Cgroups {
                version: CgroupVersion::V2,
                throttle: has(IoFile::Max),
                weight: has(IoFile::Weight),
                bfq_weight: has(IoFile::BfqWeight),
                latency: has(IoFile::Latency),
            },
        };
        (found.throttle || found.weight || found.bfq_weight).then_some(found)
    }

    /// Returns the block I/O settings of a cgroup.
    pub fn io_settings(&self, path: &str) -> Result<IoSettings, IoError> {
        let mut settings = IoSettings::default();
        for file in IoFile::of_version(self.version()) {
            if let Some(text) = self.io_text(path, *file)? {
                settings.read(*file, &text)?;
            }
        }
        Ok(settings)
    }

    /// Gives a cgroup exactly these settings: other devices and weights get their defaults. All
    /// devices are checked before anything is written. Settings of weight files that the kernel does
    /// not have are left out, and their files returned.
    pub fn set_io(
        &self,
        path: &str,
        wanted: &IoSettings,
        devices: &BlockDevices,
    ) -> Result<BTreeSet<IoFile>, IoError> {
        for device in wanted.devices() {
            match devices.disk_of(device) {
                None => return Err(IoError::NoDevice(device)),
                Some(disk) if disk != device => return Err(IoError::Partition { device, disk }),
                Some(_) => {}
            }
        }
        let files = IoFile::of_version(self.version());
        if let Some(file) = wanted.files().find(|file| !files.contains(file)) {
            return Err(IoError::UnknownFile(file.name().to_owned(), self.version_name()));
        }
        let mut left_out = BTreeSet::new();
        for file in files {
            let (file, wanted) = (*file, wanted.of(*file));
            let Some(text) = self.io_text(path, file)? else {
                if !wanted.is_empty() && !file.is_weight() {
                    return Err(IoError::Missing { file: file.name(), cgroup: path.to_owned() });
                }
                left_out.extend((!wanted.is_empty()).then_some(file));
                continue;
            };
            let mut found = IoSettings::default();
            found.read(file, &text)?;
            let target = self.directory_of_io(path)?.join(file.name());
            for line in wanted.writes_from(&found) {
                write_existing(&target, &line).map_err(failed("write", &target))?;
            }
            self.check(path, file, &wanted)?;
        }
        Ok(left_out)
    }

    /// Reads a file back.
    fn check(&self, path: &str, file: IoFile, wanted: &IoSettings) -> Result<(), IoError> {
        let mut found = IoSettings::default();
        found.read(file, &self.io_text(path, file)?.unwrap_or_default())?;
        if found.is_same(wanted) {
            return Ok(());
        }
        let (wanted, found) = (wanted.to_string(), found.to_string());
        Err(IoError::NotInForce { file: file.name(), cgroup: path.to_owned(), wanted, found })
    }

    fn directory_of_io(&self, path: &str) -> Result<std::path::PathBuf, IoError> {
        let hierarchy = self.layout.of(IoFile::controller(self.version()));
        let hierarchy = hierarchy.ok_or(CgroupError::NotMounted)?;
        Ok(hierarchy.directory(&names(path)?))
    }

    /// Returns the text of a file; `None` if the kernel does not have it.
    fn io_text(&self, path: &str, file: IoFile) -> Result<Option<String>, IoError> {
        let file = self.directory_of_io(path)?.join(file.name());
        read_if_there(&file).map_err(IoError::from)
    }

    fn version_name(&self) -> &'static str {
        match self.version() {
            Version::V1 => "v1",
            Version::V2 => "v2",
        }
    }
}

/// Returns the text of a file; `None` if it is missing.
fn read_if_there(path: &Path) -> Result<Option<String>, CgroupError> {
    match fs::read_to_string(path) {
        Err(error) if is_gone(&error) => Ok(None),
        text => text.map(Some).map_err(failed("read", path)),
    }
}
