//! Hints and merged hints equal those of an exhaustive search.

use objects::ResourceList;
use objects::pod::resources::{ContainerResources, PodResources, Requirements};
use placement::affinity::{Family, Hint};
use placement::alignment::{Alignment, AlignmentPolicy, Scope};
use placement::cpu::options::CpuOptions;
use placement::cpu::{CpuLedger, Reservation, StaticCpus};
use placement::demand::{Demand, MemoryKind, PodUid, QosClass, Role};
use placement::memory::reserve::ReservedMemory;
use placement::memory::{
    MemoryGuarantee, MemoryHints, MemoryLedger, MemoryTable, NodeState, StaticMemory,
};
use placement::{Bytes, CpuSet, NumaMask, Topology};
use proptest::prelude::*;

use crate::exhaustive;
use crate::machines::with_cores;

const HUGE: MemoryKind = MemoryKind::HugePages(Bytes::gib(1));

/// A machine in some state and a container that wants something of it.
#[derive(Clone, Debug)]
struct Case {
    cores: Vec<u32>,
    sockets: u32,
    align_by_socket: bool,
    distances: Vec<Vec<u32>>,
    /// Shared CPUs, as bits.
    shared: u64,
    /// CPUs left by an init container, as bits.
    reuse: u64,
    /// Per node: allocatable and used memory and huge pages.
    memory: Vec<[u64; 4]>,
    /// Per node: 0 unused, 1 used alone, 2.. member of that group.
    groups: Vec<u8>,
    cpus: i64,
    wanted: Vec<u64>,
}

impl Case {
    fn topology(&self) -> Topology {
        with_cores(&self.cores, self.sockets, self.distances.clone())
    }

    fn demand(&self) -> Demand {
        let mut requests: ResourceList = [("memory"), ("hugepages-1Gi")]
            .into_iter()
            .zip(&self.wanted)
            .map(|(name, bytes)| (name.to_owned(), bytes.to_string().parse().unwrap()))
            .collect();
        requests.insert("cpu".to_owned(), self.cpus.to_string().parse().unwrap());
        let container = ContainerResources {
            name: "c",
            role: Role::App,
            requirements: Requirements::new(&requests, &requests),
        };
        let pod = PodResources::new([container]).with_reported_class(Some(QosClass::Guaranteed));
        Demand::new(&PodUid::new("pod"), &pod)
    }

    fn cpu_ledger(&self, topology: &Topology) -> CpuLedger {
        let bits = |bits: u64| -> CpuSet {
            topology.all_cpus().iter().filter(|c| bits >> c.0 & 1 == 1).collect()
        };
        let reuse = bits(self.reuse);
        let shared = &bits(self.shared) - &reuse;
        CpuLedger { shared, reuse: Some((PodUid::new("pod"), reuse)), ..CpuLedger::default() }
    }

    fn memory_ledger(&self) -> MemoryLedger {
        let nodes = (0..self.memory.len()).map(|n| {
            let [memory, used, huge, huge_used] = self.memory[n];
            let table = |allocatable: u64, used: u64| {
                let reserved = used.min(allocatable);
                let free = allocatable - reserved;
                let total = allocatable;
                MemoryTable { total, system_reserved: 0, allocatable, reserved, free }
            };
            let tables =
                [(HUGE, table(huge, huge_used)), (MemoryKind::Memory, table(memory, used))];
            let members: NumaMask = match self.groups[n] {
                0 | 1 => NumaMask::single(n),
                g => (0..self.groups.len()).filter(|m| self.groups[*m] == g).collect(),
            };
            NodeState {
                assignments: u64::from(self.groups[n] != 0),
                cells: members,
                tables: tables.into_iter().collect(),
            }
        });
        MemoryLedger { nodes: nodes.collect(), ..MemoryLedger::default() }
    }

    fn policy(&self, topology: &Topology) -> StaticCpus {
        let options = CpuOptions { align_by_socket: self.align_by_socket, ..CpuOptions::default() };
        let reservation = Reservation { count: 0, cpus: CpuSet::new() };
        StaticCpus::new(topology, options, &reservation, AlignmentPolicy::BestEffort).unwrap()
    }

    /// Compares hints and merged hints with those of an exhaustive search.
    fn check(&self) {
        let topology = self.topology();
        let demand = self.demand();
        let all = topology.all_nodes();

        let cpu_ledger = self.cpu_ledger(&topology);
        let cpu = self.policy(&topology).hints(&topology, &cpu_ledger, &demand, 0);
        let reuse = cpu_ledger.reuse.as_ref().map(|(_, r)| r.clone()).unwrap_or_default();
        let cpu_list = match demand.exclusive_cpus(0) {
            None => vec![Hint::ANYWHERE],
            Some(request) => {
                let list = exhaustive::cpu_hints(
                    &topology,
                    &cpu_ledger.shared,
                    &reuse,
                    request,
                    self.align_by_socket,
                );
                same_hints(cpu.as_ref().unwrap(), &list, topology.nodes().len());
                if list.is_empty() { vec![Hint::NOWHERE] } else { list }
            }
        };

        let memory_ledger = self.memory_ledger();
        let reserved = ReservedMemory::from_bytes([(0, MemoryKind::Memory, 1)]);
        let policy = StaticMemory::new(reserved, MemoryGuarantee::Strict).unwrap();
        let amounts = demand.containers[0].memory.clone().unwrap();
        let memory = policy.hints(&memory_ledger, &demand, 0);
        let list = exhaustive::memory_hints(&memory_ledger, &amounts);
        let anywhere = Family::anywhere(true);
        let (family, times, memory_lists) = match &memory {
            MemoryHints::Each(family, kinds) => {
                same_hints(family, &list, topology.nodes().len());
                (family, kinds.len(), vec![list; kinds.len()])
            }
            _ => {
                assert!(list.is_empty() || amounts.is_empty(), "{list:?}");
                (&anywhere, 1, vec![vec![Hint::ANYWHERE]])
            }
        };

        let families = [(cpu.as_ref().unwrap_or(&anywhere), 1), (family, times)];
        let mut lists = vec![cpu_list];
        lists.extend(memory_lists);
        for prefer_closest in [false, true] {
            let distances = topology.distances().filter(|_| prefer_closest);
            let expected = exhaustive::merge(&lists, all, distances);
            let (policy, scope) = (AlignmentPolicy::BestEffort, Scope::Container);
            let alignment = Alignment { policy, scope, prefer_closest: distances.is_some() };
            assert_eq!(alignment.decide(&families, &topology).0, expected, "best-effort");
            let alignment = Alignment { policy: AlignmentPolicy::Restricted, ..alignment };
            assert_eq!(
                alignment.decide(&families, &topology),
                (expected, expected.preferred),
                "restricted"
            );
        }
        let singles: Vec<Vec<Hint>> = lists
            .iter()
            .map(|list| {
                let keep = |h: &&Hint| h.preferred && h.nodes.is_none_or(|nodes| nodes.len() == 1);
                list.iter().filter(keep).copied().collect()
            })
            .collect();
        let expected = exhaustive::merge(&singles, all, None);
        let nodes = expected.nodes.filter(|nodes| *nodes != all);
        let policy = AlignmentPolicy::SingleNumaNode;
        let alignment = Alignment { policy, scope: Scope::Container, prefer_closest: false };
        assert_eq!(
            alignment.decide(&families, &topology),
            (Hint { nodes, ..expected }, expected.preferred),
            "single-numa-node"
        );
    }
}

fn same_hints(family: &Family, expected: &[Hint], nodes: usize) {
    let mut got: Vec<_> =
        family.enumerate(nodes).into_iter().filter(|h| h.nodes.is_some()).collect();
    let mut expected = expected.to_vec();
    let key = |hint: &Hint| hint.nodes.unwrap_or_default();
    got.sort_by_key(key);
    expected.sort_by_key(key);
    assert_eq!(got, expected);
    let fewest = expected.iter().filter_map(|h| h.nodes).map(NumaMask::len).min();
    assert_eq!(family.smallest().filter(|_| fewest.is_some()), fewest);
}

/// Every machine of up to `nodes` nodes with these amounts of free CPUs and memory on each, and
/// every request up to all of it.
fn all_small_machines(nodes: usize, amounts: &[u64], groups: &[u8]) {
    let choices = |n: u64| n.pow(u32::try_from(nodes).unwrap());
    let digit = |value: u64, base: u64, at: usize| (value / base.pow(at as u32) % base) as usize;
    let base = amounts.len() as u64;
    for cpus in 0..choices(base) {
        for memory in 0..choices(base) {
            for group in 0..choices(groups.len() as u64) {
                let free: Vec<u64> = (0..nodes).map(|n| amounts[digit(cpus, base, n)]).collect();
                let bytes: Vec<u64> = (0..nodes).map(|n| amounts[digit(memory, base, n)]).collect();
                // Two CPUs a node, of which some are free.
                let shared =
                    (0..nodes).fold(0u64, |bits, n| bits | ((1 << free[n]) - 1) << (2 * n));
                for (request, wanted) in requests(free.iter().sum(), bytes.iter().sum()) {
                    Case {
                        cores: vec![2; nodes],
                        sockets: 1,
                        align_by_socket: false,
                        distances: Vec::new(),
                        shared,
                        reuse: 0,
                        memory: bytes.iter().map(|b| [2, 2 - b, 0, 0]).collect(),
                        groups: (0..nodes)
                            .map(|n| groups[digit(group, groups.len() as u64, n)])
                            .collect(),
                        cpus: i64::try_from(request).unwrap(),
                        wanted: vec![wanted],
                    }
                    .check();
                }
            }
        }
    }
}

fn requests(cpus: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..=cpus + 1).flat_map(move |c| (1..=bytes + 1).map(move |b| (c, b)))
}

#[test]
fn machines_of_up_to_three_nodes_match_exhaustive_search() {
    for nodes in 1..=3 {
        all_small_machines(nodes, &[0, 1, 2], &[0, 1, 2]);
    }
}

#[test]
fn machines_of_four_nodes_match_exhaustive_search() {
    all_small_machines(4, &[0, 2], &[0, 1]);
    all_small_machines(4, &[1, 2], &[0]);
}

#[test]
fn machines_of_five_and_six_nodes_match_exhaustive_search() {
    all_small_machines(5, &[0, 2], &[0]);
    all_small_machines(6, &[0, 1], &[0]);
}

fn case(nodes: std::ops::RangeInclusive<usize>, kinds: usize) -> impl Strategy<Value = Case> {
    nodes
        .prop_flat_map(move |n| {
            let amounts = prop::collection::vec((0..5u64, 0..5u64, 0..3u64, 0..3u64), n);
            (
                (prop::collection::vec(0..5u32, n), 1..=3u32, any::<bool>()),
                prop::collection::vec(prop::collection::vec(10..14u32, n), n),
                (any::<u64>(), any::<u64>(), any::<u64>(), any::<bool>()),
                amounts,
                prop::collection::vec(0..4u8, n),
                (0..16i64, prop::collection::vec(0..12u64, kinds)),
            )
        })
        .prop_map(
            |((mut cores, sockets, align), distances, bits, memory, groups, (cpus, wanted))| {
                cores[0] = cores[0].max(1);
                // A node without CPUs belongs to no socket; keep sockets no more than nodes.
                let with_cpus = cores.iter().filter(|c| **c > 0).count() as u32;
                let sockets = sockets.min(with_cpus);
                let (shared, reuse, sparse, has_reuse) = bits;
                Case {
                    align_by_socket: align && sockets_fit(&cores, sockets),
                    cores,
                    sockets,
                    distances,
                    shared,
                    reuse: if has_reuse { reuse & sparse & shared.rotate_left(7) } else { 0 },
                    memory: memory.into_iter().map(|(a, b, c, d)| [a, b, c, d]).collect(),
                    groups,
                    cpus,
                    wanted,
                }
            },
        )
}

fn sockets_fit(cores: &[u32], sockets: u32) -> bool {
    let topology = with_cores(cores, sockets, Vec::new());
    topology.sockets().len() <= topology.nodes_with_cpus().len()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn random_machines_of_six_nodes_match_exhaustive_search(case in case(1..=6, 2)) {
        case.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn random_machines_of_ten_nodes_match_exhaustive_search(case in case(7..=10, 1)) {
        case.check();
    }
}
