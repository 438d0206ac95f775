//! Parsers of small sysfs texts: numbers, CPU lists, memory lines, distance rows.
//!
//! Pure functions that return `None` for anything a kernel would not write. They do not know paths.

use placement::{Bytes, CpuSet};

pub(super) fn parse_number(text: &str) -> Option<i64> {
    text.parse().ok()
}

/// Parses a list as the kernel writes it: ascending and without overlaps. This bounds the work by
/// the number of CPUs, regardless of the length of the text.
pub(super) fn parse_list(text: &str) -> Option<CpuSet> {
    let mut next = 0u64;
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        if first < next || last < first {
            return None;
        }
        next = last.checked_add(1)?;
    }
    CpuSet::parse(text).ok()
}

/// Parses `Node 0 MemTotal:  6644292 kB` or, in `/proc`, the same without the node.
pub(super) fn total_memory(text: &str) -> Option<Bytes> {
    let line = text.lines().find(|line| line.contains("MemTotal:"))?;
    let (_, amount) = line.split_once("MemTotal:")?;
    let kib: u64 = amount.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024).map(Bytes)
}

/// Parses a row of the distance table: `10 21`.
pub(super) fn parse_row(text: &str) -> Option<Vec<u32>> {
    let row: Option<Vec<u32>> =
        text.split_ascii_whitespace().map(|word| word.parse().ok()).collect();
    row.filter(|row| !row.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_parsed_only_in_kernel_form() {
        assert_eq!(parse_list("0-3,8").unwrap().to_string(), "0-3,8");
        assert_eq!(parse_list(""), Some(CpuSet::new()));
        for bad in ["0-3,2", "3-1", "0-4294967295", "1,1", "x", "0-", ",", "0,", "-1"] {
            assert_eq!(parse_list(bad), None, "{bad}");
        }
        // A megabyte of overlapping ranges must not cost a megabyte times 65,536 steps.
        assert_eq!(parse_list(&"0-65535,".repeat(100_000)), None);
    }

    #[test]
    fn memory_is_found_in_both_spellings() {
        assert_eq!(total_memory("MemTotal:  16 kB\nMemFree: 1 kB"), Some(Bytes::kib(16)));
        assert_eq!(total_memory("Node 3 MemTotal:       16 kB"), Some(Bytes::kib(16)));
        for bad in ["", "MemTotal:", "MemTotal: -1 kB", "MemTotal: 18446744073709551615 kB"] {
            assert_eq!(total_memory(bad), None, "{bad}");
        }
    }
}
