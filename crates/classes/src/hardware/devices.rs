//! Block devices and the names under `/dev` by which class files refer to them.
//!
//! Main type: [`DeviceTree`], the part of `/dev` that device globs can match. Matching itself is in
//! the block I/O classes.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Serialize, Serializer};

/// The number of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber {
    pub major: u32,
    pub minor: u32,
}

impl DeviceNumber {
    /// Parses `MAJOR:MINOR` in decimal.
    #[must_use]
    pub fn parse(text: &str) -> Option<DeviceNumber> {
        let (major, minor) = text.trim().split_once(':')?;
        let number = |digits: &str| {
            let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            plain.then(|| digits.parse().ok()).flatten()
        };
        Some(DeviceNumber { major: number(major)?, minor: number(minor)? })
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl Serialize for DeviceNumber {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A block device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockDevice {
    pub number: DeviceNumber,
    /// The device is a partition of another. The kernel accepts no I/O limits for those.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub partition: bool,
    /// Absent if the device has no queue of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<Scheduler>,
}

/// One path under `/dev`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum DeviceEntry {
    Block(BlockDevice),
    Character,
    File,
    Directory,
    /// A symbolic link with its target as written, relative to the link or absolute.
    Link(String),
}

/// Entries under `/dev` by absolute path. Directories that hold an entry need none of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct DeviceTree {
    pub entries: BTreeMap<String, DeviceEntry>,
}

impl DeviceTree {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns all block devices with their paths.
    pub fn block_devices(&self) -> impl Iterator<Item = (&str, &BlockDevice)> {
        self.entries.iter().filter_map(|(path, entry)| match entry {
            DeviceEntry::Block(device) => Some((path.as_str(), device)),
            _ => None,
        })
    }
}

/// The I/O scheduler of a block device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Scheduler {
    Active(String),
    /// The file of the kernel names none as active.
    Unknown,
}

impl Scheduler {
    /// Parses the text of `/sys/block/*/queue/scheduler`: the active one is the word in brackets,
    /// or the only word.
    #[must_use]
    pub fn parse(text: &str) -> Scheduler {
        let text = text.trim_matches('\n');
        let name = match (text.contains(' '), text.find('['), text.find(']')) {
            (false, ..) => text,
            (true, Some(open), Some(close)) if open < close => &text[open + 1..close],
            _ => "",
        };
        if name.is_empty() { Scheduler::Unknown } else { Scheduler::Active(name.to_owned()) }
    }

    /// Returns true if the scheduler uses per-cgroup weights.
    #[must_use]
    pub fn weighs(&self) -> bool {
        matches!(self, Scheduler::Active(name) if name == "bfq" || name == "cfq")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_active_scheduler_is_in_brackets_or_alone() {
        let active = |name: &str| Scheduler::Active(name.to_owned());
        for (text, expected) in [
            ("mq-deadline kyber [bfq] none\n", active("bfq")),
            ("\nnone\n", active("none")),
            ("mq-deadline none\n", Scheduler::Unknown),
            ("\n", Scheduler::Unknown),
            ("]bfq[ none", Scheduler::Unknown),
        ] {
            assert_eq!(Scheduler::parse(text), expected, "{text:?}");
        }
    }

    #[test]
    fn device_numbers_are_two_decimals() {
        let number = |major, minor| Some(DeviceNumber { major, minor });
        assert_eq!(DeviceNumber::parse("259:300\n"), number(259, 300));
        for text in ["8", "8:", "+8:0", "8:0:1", "8:99999999999"] {
            assert_eq!(DeviceNumber::parse(text), None, "{text}");
        }
    }
}
