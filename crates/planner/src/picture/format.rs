//! Short texts for ids and amounts in pictures.
//!
//! Main entries: [`amount`], [`ranges`], [`shares`], [`facts`]. The texts are not parsed again.

use objects::pod::OsName;
use placement::Bytes;
use placement::demand::MemoryKind;

use super::{MemoryShare, Picture};

/// Formats an amount of memory in about three digits: `96Gi`, `31.3Gi`.
pub(super) fn amount(bytes: Bytes) -> String {
    let units = [(50, "Pi"), (40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")];
    for (shift, unit) in units {
        let tenths = (u128::from(bytes.0) * 10) >> shift;
        if tenths < 10 {
            continue;
        }
        // Whole numbers of Gi up to 8Ti stay in Gi.
        if unit == "Ti" && bytes.0.trailing_zeros() < 40 && bytes.0 >> 43 == 0 {
            continue;
        }
        return match tenths % 10 {
            tenth if tenth != 0 && tenths < 1000 => format!("{}.{tenth}{unit}", tenths / 10),
            _ => format!("{}{unit}", tenths / 10),
        };
    }
    bytes.0.to_string()
}

/// Formats ascending ids with runs collapsed: `0-3,8`.
pub(super) fn ranges(ids: impl IntoIterator<Item = u32>) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for id in ids {
        match runs.last_mut() {
            Some((_, last)) if *last == id => {}
            Some((_, last)) if last.checked_add(1) == Some(id) => *last = id,
            _ => runs.push((id, id)),
        }
    }
    let run = |(first, last): (u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    runs.into_iter().map(run).collect::<Vec<_>>().join(",")
}

/// Formats memory by amount: `64Gi on NUMA 0-3, 2Gi in 1Gi pages on NUMA 0`.
pub(super) fn shares(shares: &[MemoryShare]) -> String {
    let mut nodes: Vec<((MemoryKind, Bytes), Vec<u32>)> = Vec::new();
    for share in shares {
        let what = (share.kind, share.amount);
        match nodes.iter_mut().find(|(known, _)| *known == what) {
            Some((_, ids)) => ids.push(share.node.0),
            None => nodes.push((what, vec![share.node.0])),
        }
    }
    let format = nodes.into_iter().map(|((kind, bytes), mut ids)| {
        ids.sort_unstable();
        let each = if ids.len() > 1 { " each" } else { "" };
        format!("{}{each} on NUMA {}", share(kind, bytes), ranges(ids))
    });
    format.collect::<Vec<_>>().join(", ")
}

/// Formats one amount of a kind: `64Gi`, `2Gi in 1Gi pages`.
pub(super) fn share(kind: MemoryKind, bytes: Bytes) -> String {
    match kind {
        MemoryKind::Memory => amount(bytes),
        MemoryKind::HugePages(size) => format!("{} in {} pages", amount(bytes), amount(size)),
    }
}

/// `1 socket`, `2 sockets`.
pub(super) fn count(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// Returns the facts of the machine's one-line summary: its system and its counts.
pub(super) fn facts(picture: &Picture) -> Vec<String> {
    let topology = &picture.topology;
    let memory = topology.nodes().iter().fold(0u64, |sum, n| sum.saturating_add(n.memory.0));
    let system = match picture.os {
        OsName::Linux => "Linux",
        OsName::Windows => "Windows",
    };
    let mut facts = vec![
        system.to_owned(),
        count(topology.sockets().len(), "socket", "sockets"),
        count(topology.nodes().len(), "NUMA node", "NUMA nodes"),
        count(topology.caches().len(), "L3 cache", "L3 caches"),
        count(topology.cores().len(), "core", "cores"),
        count(topology.cpus().len(), "CPU", "CPUs"),
    ];
    if picture.os == OsName::Windows {
        let groups = placement::windows::groups_of(topology.all_cpus()).len();
        facts.insert(1, count(groups, "processor group", "processor groups"));
    }
    if memory > 0 {
        facts.push(amount(Bytes(memory)));
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_short() {
        let check = |bytes: u64, text: &str| assert_eq!(amount(Bytes(bytes)), text);
        check(0, "0");
        check(1000, "1000");
        check(96 << 30, "96Gi");
        check((31 << 30) + (300 << 20), "31.2Gi");
        check(768 << 30, "768Gi");
        check(1104 << 30, "1104Gi");
        check(4 << 40, "4Ti");
        check(u64::MAX, "16383Pi");
        check(1536 << 10, "1.5Mi");
    }

    #[test]
    fn runs_are_collapsed() {
        assert_eq!(ranges([0, 1, 2, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(ranges([u32::MAX]), "4294967295");
        assert_eq!(ranges([]), "");
    }
}
