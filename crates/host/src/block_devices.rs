//! The block devices of this machine: [`BlockDevices`], read from `/sys` and `/dev`.
//!
//! Devices are those of `/sys/class/block`; `/dev` contributes the links by which class files name
//! them (`/dev/disk/by-id/…`). Both directories are fields, so tests use trees of their own on any
//! system. Patterns are matched in the crate `classes`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use classes::hardware::{BlockDevice, DeviceEntry, DeviceNumber, DeviceTree, Scheduler};

use crate::Anomaly;

/// The greatest depth of directories below `/dev`, for example `/dev/disk/by-id`.
const DEPTH: usize = 4;

/// The greatest number of entries. Machines with thousands of disks have some links for each.
const ENTRIES: usize = 100_000;

/// The block devices of a machine. All methods block.
#[derive(Clone, Debug)]
pub struct BlockDevices {
    pub sys: PathBuf,
    pub dev: PathBuf,
}

impl BlockDevices {
    /// Returns those of this machine.
    #[must_use]
    pub fn live() -> BlockDevices {
        BlockDevices { sys: "/sys".into(), dev: "/dev".into() }
    }

    /// Returns all block devices with the links to them, and anomalies for what could not be read.
    #[must_use]
    pub fn observe(&self) -> (DeviceTree, Vec<Anomaly>) {
        let (mut entries, mut anomalies) = (BTreeMap::new(), Vec::new());
        let class = self.sys.join("class/block");
        for name in names_in(&class) {
            let directory = class.join(&name);
            // A slash in the name of a device is an exclamation mark in sysfs: `cciss!c0d0`.
            let path = name.replace('!', "/");
            if !self.dev.join(&path).exists() {
                continue;
            }
            let file = directory.join("dev");
            let text = fs::read_to_string(&file);
            let Some(number) = text.as_deref().ok().and_then(DeviceNumber::parse) else {
                let found =
                    text.map_or_else(|error| error.to_string(), |text| text.trim().to_owned());
                let (path, expected) = (file.display().to_string(), "a device such as 8:0");
                anomalies.push(Anomaly::Malformed { path, found, expected });
                continue;
            };
            let scheduler = fs::read_to_string(directory.join("queue/scheduler"));
            let scheduler = scheduler.ok().as_deref().map(Scheduler::parse);
            let partition = directory.join("partition").exists();
            let device = BlockDevice { number, partition, scheduler };
            entries.insert(format!("/dev/{path}"), DeviceEntry::Block(device));
        }
        self.add_links(&self.dev, "/dev", DEPTH, &mut entries);
        (DeviceTree { entries }, anomalies)
    }

    /// Adds the symbolic links below a directory of `/dev`.
    fn add_links(
        &self,
        directory: &Path,
        shown: &str,
        depth: usize,
        entries: &mut BTreeMap<String, DeviceEntry>,
    ) {
        for name in names_in(directory) {
            let (path, shown) = (directory.join(&name), format!("{shown}/{name}"));
            let Ok(kind) = fs::symlink_metadata(&path).map(|data| data.file_type()) else {
                continue;
            };
            if entries.len() >= ENTRIES {
                return;
            }
            if kind.is_symlink() {
                let target =
                    fs::read_link(&path).ok().and_then(|to| to.to_str().map(str::to_owned));
                entries.extend(target.map(|target| (shown, DeviceEntry::Link(target))));
            } else if kind.is_dir() && depth > 1 {
                self.add_links(&path, &shown, depth - 1, entries);
            }
        }
    }

    /// Returns the disk that a device is or belongs to; `None` if it does not exist.
    #[must_use]
    pub fn disk_of(&self, device: DeviceNumber) -> Option<DeviceNumber> {
        let class = self.sys.join("class/block");
        let directory = names_in(&class)
            .into_iter()
            .map(|name| class.join(name))
            .find(|directory| number_in(directory) == Some(device))?;
        if !directory.join("partition").exists() {
            return Some(device);
        }
        // The entry is a link; the directory of a partition is inside that of its disk.
        number_in(fs::canonicalize(&directory).ok()?.parent()?)
    }
}

/// Returns the number of the device with this directory in sysfs.
fn number_in(directory: &Path) -> Option<DeviceNumber> {
    DeviceNumber::parse(&fs::read_to_string(directory.join("dev")).ok()?)
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}
