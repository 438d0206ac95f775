//! Benchmarks of the hot paths of placing a pod. Results are from 2 shared cores of a cloud
//! machine, 2026-11, next to those recorded for the kubelet (commit e81f39c0e03) on a machine of
//! the same kind. `cargo bench -p placement` prints current ones.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use objects::Quantity;
use objects::pod::OsName;
use objects::pod::resources::PodResources;
use placement::affinity::Family;
use placement::affinity::merge::merge;
use placement::affinity::search::Fit;
use placement::alignment::{Alignment, NodeLimit};
use placement::cpu::pick::{Picking, pick};
use placement::demand::{Demand, PodUid};
use placement::gates::Gates;
use placement::memory::reserve::Entry;
use placement::node::{CpuPolicy, MemoryPolicy};
use placement::topology::{Cpu, NodeMemory, Parts};
use placement::windows::AffinityMode;
use placement::{
    Bytes, CacheId, CoreId, CpuId, CpuSet, Ledger, Node, NumaId, NumaMask, SocketId, Topology, plan,
};
use serde_json::json;

fn topology(sockets: u32, nodes: u32, cores: u32, threads: u32) -> Topology {
    let all = sockets * nodes * cores;
    let cpus = (0..all * threads).map(|cpu| Cpu {
        cpu: CpuId(cpu),
        core: CoreId(cpu % all),
        socket: SocketId(cpu % all / (nodes * cores)),
        numa: NumaId(cpu % all / cores),
        cache: CacheId(cpu % all / 8),
    });
    let memory = (0..sockets * nodes).map(|n| NodeMemory {
        numa: NumaId(n),
        memory: Bytes::gib(64),
        huge_pages: Vec::new(),
    });
    let distance = |a: u32, b: u32| match (a == b, a / nodes == b / nodes) {
        (true, _) => 10,
        (_, true) => 12,
        _ => 32,
    };
    let n = sockets * nodes;
    let distances = (0..n).map(|a| (0..n).map(|b| distance(a, b)).collect()).collect();
    Topology::new(Parts { cpus: cpus.collect(), nodes: memory.collect(), distances }).unwrap()
}

fn node(topology: Topology, policy: &str, closest: bool) -> Node {
    let options: BTreeMap<String, String> = closest
        .then(|| ("prefer-closest-numa-nodes".to_owned(), "true".to_owned()))
        .into_iter()
        .collect();
    let alignment =
        Alignment::new(policy, "container", &options, &topology, NodeLimit::None).unwrap();
    let cpu = CpuPolicy::new(
        "static",
        &BTreeMap::new(),
        Some(&Quantity::parse("2").unwrap()),
        &CpuSet::new(),
        alignment.policy,
        &Gates::ALL,
        &topology,
    )
    .unwrap();
    let limits: BTreeMap<String, Quantity> =
        [("memory".to_owned(), Quantity::parse("1Gi").unwrap())].into();
    let entry = Entry { numa_node: 0, limits: limits.clone() };
    let memory = MemoryPolicy::new("Static", OsName::Linux, &[entry], &limits, &topology).unwrap();
    let affinity_mode = AffinityMode::Union;
    Node { topology, os: OsName::Linux, cpu, memory, alignment, affinity_mode }
}

fn pod(uid: &str, cpus: i64, gib: u64) -> Demand {
    let amounts = json!({"cpu": cpus.to_string(), "memory": format!("{gib}Gi")});
    let resources = json!({"requests": amounts, "limits": amounts});
    let spec = json!({"containers": [{"name": "c", "resources": resources}]});
    Demand::new(&PodUid::new(uid), &PodResources::of_spec(&spec))
}

/// A ledger about half full, with pods of different sizes, some of which have left again.
fn half_full(node: &Node) -> Ledger {
    let mut ledger = node.empty_ledger();
    let half = node.topology.cpus().len() / 2;
    let mut n = 0;
    while ledger.cpu.exclusive(None).len() < half {
        let demand = pod(&format!("p{n}"), 1 + n % 7, 1 + n as u64 % 5);
        match plan(node, &ledger, &demand) {
            Ok(placement) => ledger.commit(&placement),
            Err(_) => break,
        }
        n += 1;
    }
    for gone in (0..n).step_by(3) {
        ledger.release(&PodUid::new(&format!("p{gone}")));
    }
    ledger
}

fn admission(c: &mut Criterion) {
    let mut group = c.benchmark_group("admit one container");
    for (name, shape, policy, closest, cpus) in [
        // 10 µs. The kubelet: 30 ms. Aim: at most 0.1 ms.
        ("8 nodes, 256 CPUs, single-numa-node", (2, 4, 16, 2), "single-numa-node", false, 4),
        // 12 µs. The kubelet: 30-50 ms.
        ("8 nodes, 256 CPUs, best-effort", (2, 4, 16, 2), "best-effort", false, 4),
        ("8 nodes, 256 CPUs, best-effort, closest", (2, 4, 16, 2), "best-effort", true, 48),
        // 93, 88, 268 and 948 µs. The kubelet: refuses more than 8 nodes. Aim: at most 1 ms.
        ("64 nodes, 1024 CPUs, single-numa-node", (4, 16, 16, 1), "single-numa-node", false, 4),
        ("64 nodes, 1024 CPUs, best-effort", (4, 16, 16, 1), "best-effort", false, 4),
        ("64 nodes, 1024 CPUs, best-effort, 5 nodes", (4, 16, 16, 1), "best-effort", false, 70),
        ("64 nodes, 1024 CPUs, best-effort, closest", (4, 16, 16, 1), "best-effort", true, 70),
    ] {
        let (sockets, nodes, cores, threads) = shape;
        let node = node(topology(sockets, nodes, cores, threads), policy, closest);
        let demand = pod("new", cpus, 8);
        for (state, ledger) in [("empty", node.empty_ledger()), ("half full", half_full(&node))] {
            group.bench_function(format!("{name}, {state}"), |b| {
                b.iter(|| plan(black_box(&node), black_box(&ledger), black_box(&demand)));
            });
        }
    }
    group.finish();
}

fn hints(c: &mut Criterion) {
    // CPU 1.6, 2.5 and 21 µs; memory 2.1, 4.2 and 40 µs. The kubelet: CPU hints 20 ms on 8 nodes and
    // 256 CPUs, memory hints 313 ms on 16 nodes.
    for (name, shape) in [
        ("8 nodes, 256 CPUs", (2, 4, 16, 2)),
        ("16 nodes, 256 CPUs", (2, 8, 8, 2)),
        ("64 nodes, 1024 CPUs", (4, 16, 16, 1)),
    ] {
        let (sockets, nodes, cores, threads) = shape;
        let node = node(topology(sockets, nodes, cores, threads), "best-effort", false);
        let ledger = half_full(&node);
        let demand = pod("new", 8, 8);
        if let CpuPolicy::Static(policy) = &node.cpu {
            c.bench_function(&format!("CPU hints, {name}"), |b| {
                b.iter(|| policy.hints(&node.topology, black_box(&ledger.cpu), &demand, 0));
            });
        }
        if let MemoryPolicy::Static(policy) = &node.memory {
            c.bench_function(&format!("memory hints, {name}"), |b| {
                b.iter(|| policy.hints(black_box(&ledger.memory), &demand, 0));
            });
        }
    }
}

fn merging(c: &mut Criterion) {
    // 0.5 and 7.4 ms. The kubelet: 4-8 s on 8 nodes; on 10 nodes not within a minute.
    for nodes in [8, 10] {
        let all = NumaMask::first(nodes);
        // No two lists share a preferred set, so that every combination counts.
        let list = |odd: u32| {
            Family::listed((1..1u64 << nodes).map(|m| (NumaMask(m), m.count_ones() % 3 == odd)))
        };
        let lists = [list(0), list(1), list(2)];
        let families: Vec<(&Family, usize)> = lists.iter().map(|f| (f, 1)).collect();
        c.bench_function(&format!("merge three full hint lists, {nodes} nodes"), |b| {
            b.iter(|| merge(black_box(&families), all, Fit::Lowest));
        });
    }
}

fn choosing(c: &mut Criterion) {
    let machine = topology(2, 4, 16, 2);
    // Every third CPU is taken.
    let free: CpuSet = machine.all_cpus().iter().filter(|cpu| cpu.0 % 3 != 0).collect();
    for (name, picking) in [
        // 8, 53, 6 and 28 µs. The kubelet: 2-17 ms.
        ("packed", Picking::Packed { align_uncore: false }),
        ("by uncore cache", Picking::Packed { align_uncore: true }),
        ("spread", Picking::Spread),
        ("across NUMA", Picking::AcrossNuma { group: 1, align_by_socket: false }),
    ] {
        c.bench_function(&format!("choose 64 of 256 CPUs, {name}"), |b| {
            b.iter(|| pick(&machine, black_box(&free), 64, picking));
        });
    }
    // 14 and 21 µs. The kubelet: 36-284 ms.
    let machine = topology(4, 4, 4, 2);
    let free: CpuSet = machine.all_cpus().iter().filter(|cpu| cpu.0 % 5 != 0).collect();
    let picking = Picking::AcrossNuma { group: 1, align_by_socket: false };
    for (name, free) in [("idle", machine.all_cpus()), ("broken up", &free)] {
        c.bench_function(&format!("distribute 24 CPUs over 16 nodes, {name}"), |b| {
            b.iter(|| pick(&machine, black_box(free), 24, picking));
        });
    }
    let machine = topology(4, 16, 16, 1);
    let free: CpuSet = machine.all_cpus().iter().filter(|cpu| cpu.0 * 7 % 11 > 3).collect();
    c.bench_function("distribute 200 CPUs over 64 nodes, broken up", |b| {
        b.iter(|| pick(&machine, black_box(&free), 200, picking));
    });
}

criterion_group!(benches, admission, hints, merging, choosing);
criterion_main!(benches);
