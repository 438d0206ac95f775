//! Spreads CPUs across cores: in the proposal's order on the proposal's machine, and over different
//! cores while there are any.

use placement::cpu::pick::{Picking, pick};
use placement::topology::{Cpu, Parts};
use placement::{CacheId, CoreId, CpuId, CpuSet, NumaId, SocketId, Topology};
use proptest::prelude::*;

use crate::machines::regular;

/// The machine of the enhancement proposal: two sockets, six cores, twelve CPUs, even ones on the
/// first socket.
fn proposal() -> Topology {
    let cpus = (0..12).map(|cpu| Cpu {
        cpu: CpuId(cpu),
        core: CoreId(cpu % 6),
        socket: SocketId(cpu % 2),
        numa: NumaId(cpu % 2),
        cache: CacheId(cpu % 2),
    });
    Topology::new(Parts { cpus: cpus.collect(), ..Parts::default() }).unwrap()
}

/// The order in which CPUs go, one container after the other.
fn order(picking: Picking, each: usize) -> Vec<String> {
    let topology = proposal();
    let mut free = topology.all_cpus().clone();
    let mut order = Vec::new();
    while !free.is_empty() {
        let cpus = pick(&topology, &free, each, picking).unwrap();
        free.subtract(&cpus);
        order.push(cpus.to_string());
    }
    order
}

#[test]
fn the_proposals_machine_is_taken_in_the_proposals_order() {
    assert_eq!(
        order(Picking::Spread, 1),
        ["0", "2", "4", "6", "8", "10", "1", "3", "5", "7", "9", "11"]
    );
    assert_eq!(
        order(Picking::Packed { align_uncore: false }, 1),
        ["0", "6", "2", "8", "4", "10", "1", "7", "3", "9", "5", "11"]
    );
}

#[test]
fn a_container_of_two_cpus_gets_two_cores() {
    assert_eq!(order(Picking::Spread, 2)[0], "0,2");
    assert_eq!(order(Picking::Packed { align_uncore: false }, 2)[0], "0,6");
}

#[test]
fn siblings_with_adjacent_ids_are_spread_too() {
    let cpus = (0..8).map(|cpu| Cpu {
        cpu: CpuId(cpu),
        core: CoreId(cpu / 2 * 2),
        socket: SocketId(0),
        numa: NumaId(0),
        cache: CacheId(0),
    });
    let topology = Topology::new(Parts { cpus: cpus.collect(), ..Parts::default() }).unwrap();
    let cpus = pick(&topology, topology.all_cpus(), 4, Picking::Spread).unwrap();
    assert_eq!(cpus.to_string(), "0,2,4,6");
}

#[test]
fn impossible_spreading_falls_back_to_packing() {
    let topology = proposal();
    let one_core = CpuSet::parse("0,6").unwrap();
    assert_eq!(pick(&topology, &one_core, 2, Picking::Spread).unwrap(), one_core);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn no_core_gives_a_second_cpu_before_all_gave_one(
        bits in any::<u64>(), cores in 1..8u32, threads in 1..4u32, share in 0.0..1.0f64,
    ) {
        let topology = regular(1, 1, cores, threads);
        let free: CpuSet =
            topology.all_cpus().iter().filter(|c| bits >> (c.0 % 64) & 1 == 1).collect();
        let count = (free.len() as f64 * share) as usize;
        let taken = pick(&topology, &free, count, Picking::Spread).unwrap();
        prop_assert_eq!(taken.len(), count);
        // A whole idle socket is taken at once, without a choice.
        if count < topology.cpus().len() {
            let per_core = |set: &CpuSet| -> Vec<usize> {
                topology.cores().iter().map(|c| c.cpus.count_common(set)).collect()
            };
            let (given, had) = (per_core(&taken), per_core(&free));
            let most = given.iter().max().copied().unwrap_or(0);
            for (given, had) in given.iter().zip(had) {
                prop_assert!(*given + 1 >= most || *given == had, "{given} of {had}, most {most}");
            }
        }
    }
}
