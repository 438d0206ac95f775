//! Valid reservations: CPUs to keep for the system, and the split of reserved memory over NUMA
//! nodes.
//!
//! Main entries: [`whole_cores`] and [`split_memory`]. The generator and the errors of the checker
//! use them, so that an error recommends what the generator would write.

use crate::topology::NumaNode;
use crate::{CpuSet, NumaId, Topology};

const MEBIBYTE: u64 = 1 << 20;

/// At least `count` CPUs as whole cores, from the first node that has CPUs onwards; all CPUs if
/// the machine has fewer.
#[must_use]
pub fn whole_cores(topology: &Topology, count: usize) -> CpuSet {
    let mut reserved = CpuSet::new();
    for node in topology.nodes() {
        for core in topology.cores().iter().filter(|core| core.cpus.is_subset(&node.cpus)) {
            if reserved.len() >= count {
                return reserved;
            }
            reserved.union_with(&core.cpus);
        }
    }
    reserved
}

/// Returns the default number of reserved CPUs: a core for every 64 CPUs.
#[must_use]
pub fn usual_cpus(topology: &Topology) -> usize {
    topology.cpus().len().div_ceil(64) * topology.cpus_per_core().max(1)
}

/// Returns the default amount of reserved memory: a 64th, between 512Mi and 16Gi, but at most a
/// quarter of the machine. Whole mebibytes.
#[must_use]
pub fn usual_memory(topology: &Topology) -> u64 {
    let total: u64 = topology.nodes().iter().map(ordinary_memory).sum();
    let usual = (total / 64).clamp(512 * MEBIBYTE, 16 << 30).min(total / 4);
    usual / MEBIBYTE * MEBIBYTE
}

/// A node's memory that is not set aside for huge pages.
#[must_use]
pub fn ordinary_memory(node: &NumaNode) -> u64 {
    let pages = node.huge_pages.iter().map(|p| p.page_size.0.saturating_mul(p.count));
    node.memory.0.saturating_sub(pages.fold(0, u64::saturating_add))
}

/// Shares `total` bytes out to nodes as evenly as they can take it, in whole mebibytes with the
/// rest on the first; `None` if the machine has not got as much. Nodes that have CPUs come first:
/// the system runs there, and memory without CPUs is an accelerator's.
#[must_use]
pub fn split_memory(topology: &Topology, total: u64) -> Option<Vec<(NumaId, u64)>> {
    let room = |with_cpus: bool| -> Vec<(NumaId, u64)> {
        let nodes = topology.nodes().iter().filter(|node| node.cpus.is_empty() != with_cpus);
        nodes.map(|node| (node.id, ordinary_memory(node))).filter(|(_, room)| *room > 0).collect()
    };
    let mut shares: Vec<(NumaId, u64)> = Vec::new();
    let mut rest = total;
    for nodes in [room(true), room(false)] {
        rest = share_out(&nodes, rest, &mut shares);
        if rest == 0 {
            break;
        }
    }
    shares.retain(|(_, share)| *share > 0);
    (rest == 0 && total > 0).then_some(shares)
}

/// Adds shares of `nodes` to `shares`; returns the rest that they cannot take.
fn share_out(nodes: &[(NumaId, u64)], total: u64, shares: &mut Vec<(NumaId, u64)>) -> u64 {
    let mut rest = total;
    let mut taken = vec![0u64; nodes.len()];
    loop {
        let open = (0..nodes.len()).filter(|n| taken[*n] < nodes[*n].1).count() as u64;
        if open == 0 || rest == 0 {
            break;
        }
        let even = rest / open / MEBIBYTE * MEBIBYTE;
        for (taken, (_, room)) in taken.iter_mut().zip(nodes) {
            let share = even.min(room - *taken);
            *taken += share;
            rest -= share;
        }
        if even == 0 {
            for (taken, (_, room)) in taken.iter_mut().zip(nodes) {
                let share = rest.min(room - *taken);
                *taken += share;
                rest -= share;
            }
        }
    }
    shares.extend(nodes.iter().zip(&taken).map(|((id, _), share)| (*id, *share)));
    rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::file;

    fn topology(fields: &str) -> Topology {
        let head = "apiVersion: berth.dev/v1alpha1\nkind: Machine\n";
        file::parse(&format!("{head}{fields}")).unwrap().topology
    }

    #[test]
    fn reserved_cpus_are_whole_cores_of_the_first_node() {
        let topology = topology(
            "cores: [\"0,4\", \"1,5\", \"2,6\", \"3,7\"]\n\
             nodes: [{id: 0, cpus: \"0-1,4-5\"}, {id: 1, cpus: \"2-3,6-7\"}]",
        );
        let check = |count: usize, cpus: &str| {
            assert_eq!(whole_cores(&topology, count).to_string(), cpus, "{count}");
        };
        check(0, "");
        check(1, "0,4");
        check(3, "0-1,4-5");
        check(5, "0-2,4-6");
        check(99, "0-7");
    }

    #[test]
    fn shares_add_up_and_fit() {
        let topology = topology(
            "nodes: [{id: 0, cpus: 0-1, memory: 1Gi}, {id: 1, cpus: 2-3, memory: 1Gi}, \
             {id: 2, memory: 1Gi}]",
        );
        let check = |total: u64, shares: &[(u32, u64)]| {
            let expected: Vec<_> = shares.iter().map(|(id, share)| (NumaId(*id), *share)).collect();
            assert_eq!(split_memory(&topology, total), Some(expected), "{total}");
        };
        let mi = MEBIBYTE;
        check(100 * mi, &[(0, 50 * mi), (1, 50 * mi)]);
        check(101 * mi, &[(0, 51 * mi), (1, 50 * mi)]);
        check(1, &[(0, 1)]);
        check(2048 * mi + 1, &[(0, 1024 * mi), (1, 1024 * mi), (2, 1)]);
        assert_eq!(split_memory(&topology, 4096 * mi), None);
        assert_eq!(split_memory(&topology, 0), None);
    }
}
