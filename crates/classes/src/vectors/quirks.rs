//! Defects of goresctrl that its vectors are marked with, and what Berth does instead.

/// A defect of goresctrl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quirk {
    pub name: &'static str,
    /// The different behaviour of Berth, with its reason.
    pub reason: &'static str,
    pub(super) right: Right,
}

/// The result that is right for a line with a quirk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Right {
    /// An error; nothing is changed.
    Error,
    /// The recorded error, but nothing is changed.
    ErrorWithoutChange,
    /// No error.
    Accepted,
    /// A result that is derived from the recorded one.
    Derived,
    /// The recorded result.
    AsRecorded,
}

/// Returns the quirk of a name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Quirk> {
    QUIRKS.iter().find(|quirk| quirk.name == name)
}

const fn quirk(name: &'static str, right: Right, reason: &'static str) -> Quirk {
    Quirk { name, reason, right }
}

/// All quirks.
#[rustfmt::skip] // One a line.
pub const QUIRKS: &[Quirk] = &[
    quirk("divide-by-zero", Right::Error, "percentages that give no bit are an error, not a crash"),
    quirk("mask-outside-cbm", Right::Error, "masks outside the cache are refused before anything changes, because the kernel refuses them"),
    quirk("class-mask-shifted-out", Right::Error, "mask bits that leave the 64-bit word do not fit"),
    quirk("mb-over-100", Right::Error, "more than 100 % of the bandwidth is refused, because the kernel refuses it"),
    quirk("overlapping-cache-ids", Right::Error, "a cache with two different values is an error, not chance"),
    quirk("unquoted-number", Right::Error, "a number without quotes is not a share of a cache"),
    quirk("unknown-field-ignored", Right::Error, "the file is strict everywhere"),
    quirk("cdp-cross-overlap", Right::Error, "the code mask of a partition may not overlap the data mask of another, because partitions are exclusive"),
    quirk("closids-unchecked", Right::Error, "classes are counted against the CLOSIDs of the machine before anything changes"),
    quirk("reserved-name", Right::Error, "a class cannot have the name of a resctrl file"),
    quirk("min-bandwidth-zero", Right::Error, "AMD has memory bandwidth, but not in percent"),
    quirk("quantity-overflow", Right::Error, "values over 2^63-1 are refused instead of being cut off"),
    quirk("bare-suffix", Right::Error, "a suffix without digits is a typing error"),
    quirk("case-duplicate", Right::Error, "a field in two cases is given twice"),
    quirk("partial-apply", Right::ErrorWithoutChange, "the whole file is checked before anything changes"),
    quirk("partial-removal", Right::ErrorWithoutChange, "all stale groups are checked before one is removed"),
    quirk("failed-config-clears", Right::ErrorWithoutChange, "a refused file leaves the classes that are in effect"),
    quirk("cache-id-over-127", Right::Accepted, "cache ids above 127 exist"),
    quirk("yaml-merge-strict", Right::Accepted, "a field may override one from `<<`"),
    quirk("empty-mon-features", Right::Derived, "an empty list of features has none"),
    quirk("empty-class-creates-group", Right::Derived, "the empty class is the root group, which exists"),
    quirk("lookup-path", Right::Derived, "a path is not the name of a class"),
    quirk("partition-device", Right::Derived, "partitions are left out, because the kernel has no I/O limits for them"),
    quirk("zero-rate-v2", Right::Derived, "no limit is `max` in io.max; the kernel refuses 0"),
    quirk("partial-override", Right::AsRecorded, "later items override single values, as goresctrl does"),
];
