//! The texts of block I/O files: [`IoFile`] names them, [`IoSettings`] holds their values.
//!
//! Arithmetic and text only. One parser reads the forms that the kernel prints and those that
//! programs write.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use classes::hardware::DeviceNumber;
use thiserror::Error;

use super::super::Version;

/// A file of the block I/O controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IoFile {
    ReadBpsV1,
    WriteBpsV1,
    ReadIopsV1,
    WriteIopsV1,
    WeightV1,
    WeightDeviceV1,
    BfqWeightV1,
    BfqWeightDeviceV1,
    Max,
    Weight,
    BfqWeight,
    Latency,
}

const V1: [IoFile; 8] = [
    IoFile::ReadBpsV1,
    IoFile::WriteBpsV1,
    IoFile::ReadIopsV1,
    IoFile::WriteIopsV1,
    IoFile::WeightV1,
    IoFile::WeightDeviceV1,
    IoFile::BfqWeightV1,
    IoFile::BfqWeightDeviceV1,
];
const V2: [IoFile; 4] = [IoFile::Max, IoFile::Weight, IoFile::BfqWeight, IoFile::Latency];

/// The weight of a cgroup that has no setting, in all files but the first.
const DEFAULT_WEIGHT: u64 = 100;
/// That of `blkio.weight`, which kernels before 5.0 have.
const DEFAULT_WEIGHT_CFQ: u64 = 500;

impl IoFile {
    /// Returns the files of a version in write order.
    #[must_use]
    pub fn of_version(version: Version) -> &'static [IoFile] {
        match version {
            Version::V1 => &V1,
            Version::V2 => &V2,
        }
    }

    /// Returns the file of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<IoFile> {
        V1.into_iter().chain(V2).find(|file| file.name() == name)
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            IoFile::ReadBpsV1 => "blkio.throttle.read_bps_device",
            IoFile::WriteBpsV1 => "blkio.throttle.write_bps_device",
            IoFile::ReadIopsV1 => "blkio.throttle.read_iops_device",
            IoFile::WriteIopsV1 => "blkio.throttle.write_iops_device",
            IoFile::WeightV1 => "blkio.weight",
            IoFile::WeightDeviceV1 => "blkio.weight_device",
            IoFile::BfqWeightV1 => "blkio.bfq.weight",
            IoFile::BfqWeightDeviceV1 => "blkio.bfq.weight_device",
            IoFile::Max => "io.max",
            IoFile::Weight => "io.weight",
            IoFile::BfqWeight => "io.bfq.weight",
            IoFile::Latency => "io.latency",
        }
    }

    pub(super) fn controller(version: Version) -> &'static str {
        match version {
            Version::V1 => "blkio",
            Version::V2 => "io",
        }
    }

    /// Returns true for a file that holds weights, which depends on the scheduler.
    #[must_use]
    pub fn is_weight(self) -> bool {
        self.default_weight().is_some()
    }

    fn default_weight(self) -> Option<u64> {
        match self {
            IoFile::WeightV1 | IoFile::WeightDeviceV1 => Some(DEFAULT_WEIGHT_CFQ),
            IoFile::BfqWeightV1
            | IoFile::BfqWeightDeviceV1
            | IoFile::Weight
            | IoFile::BfqWeight => Some(DEFAULT_WEIGHT),
            _ => None,
        }
    }

    /// Returns true if the file has the weight of a cgroup for all devices.
    fn has_weight_for_all(self) -> bool {
        self.is_weight() && !matches!(self, IoFile::WeightDeviceV1 | IoFile::BfqWeightDeviceV1)
    }

    /// Returns the keys of a device's line; the empty key has its value without a name.
    fn keys(self) -> &'static [&'static str] {
        match self {
            IoFile::Max => &["rbps", "wbps", "riops", "wiops"],
            IoFile::Latency => &["target"],
            _ => &[""],
        }
    }
}

/// The place of a value: a device or all of them, and its key in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Setting {
    pub file: IoFile,
    /// `None` is the weight for all devices.
    pub device: Option<DeviceNumber>,
    key: &'static str,
}

/// The values of block I/O files that differ from their defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IoSettings {
    values: BTreeMap<Setting, u64>,
}

/// The reason why a text of a block I/O file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{file} has the line {line:?}, which is not {expected}")]
pub struct IoTextError {
    pub file: &'static str,
    pub line: String,
    pub expected: &'static str,
}

impl IoSettings {
    /// Adds the values of a text, as the kernel prints it or as a program writes it. A later value
    /// of the same setting replaces an earlier one.
    pub fn read(&mut self, file: IoFile, text: &str) -> Result<(), IoTextError> {
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let error = |expected| {
                let line = line.chars().take(200).collect();
                IoTextError { file: file.name(), line, expected }
            };
            let mut words = line.split_ascii_whitespace();
            let first = words.next().unwrap_or_default();
            let (device, words): (_, Vec<&str>) = match DeviceNumber::parse(first) {
                Some(device) => (Some(device), words.collect()),
                None if first == "default" => (None, words.collect()),
                None => (None, vec![first]),
            };
            match device {
                None if !file.is_weight() => {
                    return Err(error("a device such as \"8:0\" and its limits"));
                }
                // This file repeats the weight of the cgroup, which has a file of its own.
                None if !file.has_weight_for_all() => continue,
                _ => {}
            }
            for word in words {
                let (key, value) = word.split_once('=').unwrap_or(("", word));
                let keys = file.keys().iter().find(|known| **known == key);
                let key = keys.ok_or_else(|| error("a list of the limits of the file"))?;
                let value = match value {
                    "max" | "default" => None,
                    number => Some(number.parse::<u64>().map_err(|_| error("a number"))?),
                };
                self.put(Setting { file, device, key }, value);
            }
        }
        Ok(())
    }

    /// Sets a value; one that means "no limit" or is the default is not kept.
    fn put(&mut self, setting: Setting, value: Option<u64>) {
        let is_default = |value: u64| match (setting.file.default_weight(), setting.device) {
            (Some(default), None) => value == default,
            (Some(_), Some(_)) => value == 0,
            // Version 1 removes a limit by writing 0, and so does the latency of version 2.
            (None, _) => value == 0 && setting.file != IoFile::Max,
        };
        match value.filter(|value| !is_default(*value)) {
            Some(value) => self.values.insert(setting, value),
            None => self.values.remove(&setting),
        };
    }

    /// Returns the settings of the writes of a class, as the crate `classes` lowers it.
    pub fn of_writes(
        writes: &[classes::blockio::cgroup::Write],
    ) -> Result<IoSettings, IoTextError> {
        let mut settings = IoSettings::default();
        for write in writes {
            let file = IoFile::parse(write.file).ok_or_else(|| {
                let expected = "a line of a block I/O file";
                IoTextError { file: write.file, line: write.data.clone(), expected }
            })?;
            settings.read(file, &write.data)?;
        }
        Ok(settings)
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Returns the settings with their values.
    pub fn iter(&self) -> impl Iterator<Item = (Setting, u64)> + '_ {
        self.values.iter().map(|(setting, value)| (*setting, *value))
    }

    /// Returns the devices of all settings.
    #[must_use]
    pub fn devices(&self) -> BTreeSet<DeviceNumber> {
        self.values.keys().filter_map(|setting| setting.device).collect()
    }

    pub(super) fn files(&self) -> impl Iterator<Item = IoFile> + '_ {
        self.values.keys().map(|setting| setting.file)
    }

    /// Returns the settings of one file.
    #[must_use]
    pub fn of(&self, file: IoFile) -> IoSettings {
        let values = self.values.iter().filter(|(setting, _)| setting.file == file);
        IoSettings { values: values.map(|(setting, value)| (*setting, *value)).collect() }
    }

    /// Returns true if both have the same values. A weight of a device that equals the weight of the
    /// cgroup is not printed by all kernels.
    pub(super) fn is_same(&self, wanted: &IoSettings) -> bool {
        let without = |of: &IoSettings| -> BTreeMap<Setting, u64> {
            let is_plain = |setting: &Setting, value: u64| {
                let all = Setting { device: None, ..*setting };
                let default = setting.file.default_weight();
                let all = wanted.values.get(&all).copied().or(default);
                setting.device.is_some() && all == Some(value)
            };
            let kept = of.values.iter().filter(|(setting, value)| !is_plain(setting, **value));
            kept.map(|(setting, value)| (*setting, *value)).collect()
        };
        without(self) == without(wanted)
    }

    /// Returns the texts to write to a file, each by itself, that turn its settings `found` into
    /// these: first the defaults of those that are not wanted, then the wanted ones that differ.
    pub(super) fn writes_from(&self, found: &IoSettings) -> Vec<String> {
        let mut writes = Vec::new();
        for setting in found.values.keys().filter(|setting| !self.values.contains_key(setting)) {
            writes.push(reset(setting));
        }
        let changed =
            |(setting, value): &(&Setting, &u64)| found.values.get(setting) != Some(*value);
        writes.extend(
            self.values
                .iter()
                .filter(changed)
                .map(|(setting, value)| line(setting, &value.to_string())),
        );
        writes
    }
}

/// Returns the text that sets a value.
fn line(setting: &Setting, value: &str) -> String {
    let value = match setting.key {
        "" => value.to_owned(),
        key => format!("{key}={value}"),
    };
    match setting.device {
        Some(device) => format!("{device} {value}"),
        None => value,
    }
}

/// Returns the text that gives a setting its default.
fn reset(setting: &Setting) -> String {
    let default = match (setting.file, setting.device) {
        (IoFile::Max, _) => "max".to_owned(),
        (file, None) => file.default_weight().unwrap_or(DEFAULT_WEIGHT).to_string(),
        // The scheduler CFQ of old kernels takes 0, bfq and io.cost the word.
        (IoFile::WeightDeviceV1, Some(_)) => "0".to_owned(),
        (file, Some(_)) if file.is_weight() => "default".to_owned(),
        _ => "0".to_owned(),
    };
    line(setting, &default)
}

impl fmt::Display for IoSettings {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.values.is_empty() {
            return to.write_str("no settings");
        }
        let lines: Vec<String> =
            self.values.iter().map(|(setting, value)| line(setting, &value.to_string())).collect();
        to.write_str(&lines.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(file: IoFile, text: &str) -> IoSettings {
        let mut settings = IoSettings::default();
        settings.read(file, text).unwrap();
        settings
    }

    #[test]
    fn texts_of_all_files_are_read() {
        let check = |file, text: &str, expected: &str| {
            assert_eq!(read(file, text).to_string(), expected, "{text:?}");
        };
        check(IoFile::ReadBpsV1, "8:0 1048576\n7:1 5\n", "7:1 5, 8:0 1048576");
        check(IoFile::ReadBpsV1, "8:0 0\n", "no settings");
        check(IoFile::BfqWeightV1, "100\n", "no settings");
        check(IoFile::BfqWeightV1, "200\n", "200");
        check(IoFile::WeightV1, "500\n", "no settings");
        check(IoFile::BfqWeightDeviceV1, "default 200\n8:0 300\n", "8:0 300");
        let max = "8:0 rbps=1 wbps=max riops=max wiops=2\n7:0 rbps=max wbps=max\n";
        check(IoFile::Max, max, "8:0 rbps=1, 8:0 wiops=2");
        check(IoFile::Weight, "default 100\n8:0 50\n", "8:0 50");
        check(IoFile::BfqWeight, "70\n", "70");
        check(IoFile::Latency, "8:0 target=75\n7:0 target=0\n", "8:0 target=75");
    }

    #[test]
    fn only_differences_are_written_and_others_reset() {
        let check = |file, found: &str, wanted: &str, expected: &[&str]| {
            let (found, wanted) = (read(file, found), read(file, wanted));
            assert_eq!(wanted.writes_from(&found), expected, "{found} to {wanted}");
        };
        check(IoFile::ReadBpsV1, "8:0 9\n7:0 4\n", "7:0 4\n7:1 5\n", &["8:0 0", "7:1 5"]);
        let found = "8:0 rbps=1 wbps=2 riops=max wiops=max\n";
        check(IoFile::Max, found, "8:0 rbps=3\n", &["8:0 wbps=max", "8:0 rbps=3"]);
        check(IoFile::Weight, "default 70\n8:0 50\n", "", &["100", "8:0 default"]);
        check(IoFile::BfqWeightDeviceV1, "8:0 50\n", "8:1 60\n", &["8:0 default", "8:1 60"]);
        check(IoFile::WeightDeviceV1, "8:0 50\n", "", &["8:0 0"]);
        check(IoFile::Latency, "8:0 target=75\n", "", &["8:0 target=0"]);
        check(IoFile::BfqWeightV1, "200", "200", &[]);
    }

    #[test]
    fn writes_of_a_class_become_settings() {
        use classes::blockio::cgroup::{WeightFile, writes};
        use classes::blockio::parameters::{Parameters, Rate, Weight};
        use classes::hardware::CgroupVersion;
        let device = DeviceNumber { major: 8, minor: 0 };
        let parameters = Parameters {
            weight: Weight::new(80),
            device_weights: [(device, Weight::new(500).unwrap())].into(),
            rates: [((Rate::ReadBps, device), 7), ((Rate::WriteIops, device), 0)].into(),
        };
        let check = |version, weights, expected: &str| {
            let writes = writes(&parameters, version, weights);
            assert_eq!(IoSettings::of_writes(&writes).unwrap().to_string(), expected);
        };
        check(CgroupVersion::V1, Some(WeightFile::Bfq), "8:0 7, 80, 8:0 500");
        check(CgroupVersion::V2, Some(WeightFile::Plain), "8:0 rbps=7, 708, 8:0 4950");
        check(CgroupVersion::V2, None, "8:0 rbps=7");
    }

    #[test]
    fn malformed_lines_are_named_in_the_error() {
        for (file, text) in [
            (IoFile::ReadBpsV1, "100"),
            (IoFile::ReadBpsV1, "8:0 x"),
            (IoFile::ReadBpsV1, "8:0 -1"),
            (IoFile::Max, "8:0 bytes=3"),
            (IoFile::Max, "8:0 3"),
            (IoFile::Weight, "much"),
        ] {
            let error = IoSettings::default().read(file, text).unwrap_err();
            assert_eq!((error.file, error.line.as_str()), (file.name(), text));
        }
    }

    #[test]
    fn every_file_is_found_by_its_name() {
        for file in V1.into_iter().chain(V2) {
            assert_eq!(IoFile::parse(file.name()), Some(file));
        }
        assert_eq!(IoFile::parse("io.stat"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_rejected(text in "[0-9:a-z= \n]{0,40}") {
            for file in V1.into_iter().chain(V2) {
                let mut settings = IoSettings::default();
                if settings.read(file, &text).is_ok() {
                    let written: Vec<String> =
                        settings.writes_from(&IoSettings::default());
                    prop_assert_eq!(read(file, &written.join("\n")), settings);
                }
            }
        }
    }
}
