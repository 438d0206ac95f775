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
    /// The active I/O scheduler; absent if the device has no queue of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<String>,
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

/// Returns the active scheduler of the text of `/sys/block/*/queue/scheduler`: the word in brackets,
/// or the only word.
#[must_use]
pub fn active_scheduler(text: &str) -> Option<&str> {
    let text = text.trim();
    if let Some((_, rest)) = text.split_once('[')
        && let Some((name, _)) = rest.split_once(']')
    {
        return Some(name);
    }
    (!text.is_empty() && !text.contains(char::is_whitespace)).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_active_scheduler_is_in_brackets_or_alone() {
        let check = |text: &str, expected| assert_eq!(active_scheduler(text), expected, "{text:?}");
        check("mq-deadline kyber [bfq] none\n", Some("bfq"));
        check("none\n", Some("none"));
        check("mq-deadline none\n", None);
        check("\n", None);
        check("]bfq[ none", None);
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
