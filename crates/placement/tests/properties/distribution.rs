//! Distribution over NUMA nodes gives what trying all combinations gives, and always ends.

use placement::cpu::pick::{Picking, pick};
use placement::{CpuId, CpuSet, Topology};
use proptest::prelude::*;

use crate::exhaustive;
use crate::machines::regular;

/// How many CPUs each node gave.
fn given(topology: &Topology, cpus: &CpuSet) -> Vec<usize> {
    topology.nodes().iter().map(|node| node.cpus.count_common(cpus)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn distribution_is_that_of_an_exhaustive_search(
        sockets in 1..=3u32,
        nodes in 1..=3u32,
        threads in 1..=2u32,
        bits in any::<u64>(),
        sparse in any::<u64>(),
        share in 0.0..1.0f64,
        group in 1..=3usize,
        align_by_socket in any::<bool>(),
    ) {
        let topology = regular(sockets, nodes, 3, threads);
        let bits = bits | sparse;
        let free: CpuSet = topology.all_cpus().iter().filter(|c| bits >> (c.0 % 64) & 1 == 1).collect();
        let count = (free.len() as f64 * share) as usize / group * group;
        if count == 0 {
            return Ok(());
        }

        let picking = Picking::AcrossNuma { group, align_by_socket };
        let got = pick(&topology, &free, count, picking).unwrap();
        prop_assert_eq!(got.len(), count);
        prop_assert!(got.is_subset(&free));

        let order = order_of(&topology, &free);
        let free_in: Vec<i64> = order
            .iter()
            .map(|n| topology.nodes()[*n].cpus.count_common(&free) as i64)
            .collect();
        let socket_of: Vec<usize> = order.iter().map(|n| n / nodes as usize).collect();
        let groups = topology.cpus().len().div_ceil(group);
        let per_node = groups.div_ceil(topology.nodes().len());
        let needed = count.div_ceil(group);
        let sizes = needed.div_ceil(per_node)..=needed.min(order.len());
        let expected = exhaustive::distribute(
            &free_in, &socket_of, count as i64, group as i64, align_by_socket, sizes,
        );
        if let Some(expected) = expected {
            let mut by_node = vec![0; topology.nodes().len()];
            for (position, n) in order.iter().enumerate() {
                by_node[*n] = expected[position] as usize;
            }
            prop_assert_eq!(given(&topology, &got), by_node);
        }
    }
}

/// Nodes in the order in which they are tried: by socket with the fewest free CPUs, then by free
/// CPUs, unless nodes are the larger pieces.
fn order_of(topology: &Topology, free: &CpuSet) -> Vec<usize> {
    let free_in = |cpus: &CpuSet| cpus.count_common(free);
    let mut nodes: Vec<usize> =
        (0..topology.nodes().len()).filter(|n| free_in(&topology.nodes()[*n].cpus) > 0).collect();
    if topology.sockets().len() >= topology.nodes().len() {
        nodes.sort_by_key(|n| (free_in(&topology.nodes()[*n].cpus), *n));
        return nodes;
    }
    let per_socket = topology.nodes().len() / topology.sockets().len();
    nodes.sort_by_key(|n| {
        let socket = n / per_socket;
        let in_socket = free_in(&topology.sockets()[socket].cpus);
        (in_socket, socket, free_in(&topology.nodes()[*n].cpus), *n)
    });
    nodes
}

#[test]
fn whole_cores_over_nodes_with_odd_free_counts_ends() {
    // 80 CPUs on 4 nodes, one CPU of each node reserved: the kubelet never returns from this.
    let topology = regular(2, 2, 10, 2);
    let mut free = topology.all_cpus().clone();
    for cpu in [0, 10, 20, 30] {
        free.remove(CpuId(cpu));
    }
    let picking = Picking::AcrossNuma { group: 2, align_by_socket: false };
    let cpus = pick(&topology, &free, 70, picking).unwrap();
    assert_eq!(cpus.len(), 70);
    assert_eq!(given(&topology, &cpus), [18, 18, 18, 16]);
}
