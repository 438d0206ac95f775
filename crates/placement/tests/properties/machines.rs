//! Machines for tests: regular ones by shape, and arbitrary small ones.

use placement::topology::{Cpu, HugePages, NodeMemory, Parts};
use placement::{Bytes, CacheId, CoreId, CpuId, NumaId, SocketId, Topology};

/// A regular machine; siblings are numbered after all first threads, as Linux does.
pub(crate) fn regular(sockets: u32, nodes: u32, cores: u32, threads: u32) -> Topology {
    let all_cores = sockets * nodes * cores;
    let cpus = (0..all_cores * threads).map(|cpu| {
        let core = cpu % all_cores;
        Cpu {
            cpu: CpuId(cpu),
            core: CoreId(core),
            socket: SocketId(core / (nodes * cores)),
            numa: NumaId(core / cores),
            cache: CacheId(core / cores),
        }
    });
    let memory = (0..sockets * nodes).map(|n| NodeMemory {
        numa: NumaId(n),
        memory: Bytes::gib(16),
        huge_pages: vec![HugePages { page_size: Bytes::gib(1), count: 2 }],
    });
    let distances = (0..sockets * nodes)
        .map(|a| {
            (0..sockets * nodes)
                .map(|b| match (a == b, a / nodes == b / nodes) {
                    (true, _) => 10,
                    (false, true) => 12,
                    (false, false) => 32,
                })
                .collect()
        })
        .collect();
    Topology::new(Parts { cpus: cpus.collect(), nodes: memory.collect(), distances }).unwrap()
}

/// A machine with so many single-thread cores on each node; nodes are dealt to sockets in turn
/// from the lowest. Nodes may have no CPUs, but one must.
pub(crate) fn with_cores(cores: &[u32], sockets: u32, distances: Vec<Vec<u32>>) -> Topology {
    let mut cpus = Vec::new();
    for (node, count) in (0u32..).zip(cores) {
        for _ in 0..*count {
            let id = cpus.len() as u32;
            cpus.push(Cpu {
                cpu: CpuId(id),
                core: CoreId(id),
                socket: SocketId(node * sockets / cores.len() as u32),
                numa: NumaId(node),
                cache: CacheId(node),
            });
        }
    }
    let nodes = (0..cores.len() as u32).map(|n| NodeMemory {
        numa: NumaId(n),
        memory: Bytes::gib(16),
        huge_pages: Vec::new(),
    });
    Topology::new(Parts { cpus, nodes: nodes.collect(), distances }).unwrap()
}
