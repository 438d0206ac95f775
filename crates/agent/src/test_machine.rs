//! Machines for tests.

use objects::pod::OsName;
use placement::machine::Machine;
use placement::topology::{Cpu, NodeMemory, Parts};
use placement::{Bytes, CacheId, CoreId, CpuId, NumaId, SocketId};

/// Returns a machine with one NUMA node for each of these amounts of memory, with this many CPUs on each.
pub(crate) fn machine(os: OsName, cpus_each: u32, memory: &[u64]) -> Machine {
    let numas = (0..).map(NumaId).take(memory.len());
    let cpus = numas.clone().flat_map(|numa| {
        (numa.0 * cpus_each..(numa.0 + 1) * cpus_each).map(move |n| Cpu {
            cpu: CpuId(n),
            core: CoreId(n),
            socket: SocketId(0),
            numa,
            cache: CacheId(numa.0),
        })
    });
    let nodes = numas.zip(memory).map(|(numa, memory)| NodeMemory {
        numa,
        memory: Bytes(*memory),
        huge_pages: Vec::new(),
    });
    let parts = Parts { cpus: cpus.collect(), nodes: nodes.collect(), distances: Vec::new() };
    Machine::new("", os, parts).unwrap()
}
