//! The cost of machine reports: parsing a report, and applying it with the pods of the node.
//!
//! | machine, 110 pods of two containers | annotations | read | take in |
//! |---|---|---|---|
//! | 8 NUMA nodes, 256 CPUs | 65 KiB | 6.7 ms | 2.4 ms |
//! | 64 NUMA nodes, 1,024 CPUs | 112 KiB | 24 ms | 11 ms |
//!
//! Memory and CPUs are committed for each container. The figures are from the test profile
//! (`opt-level` 1), on 2 shared cores of a cloud machine that was busy with other work, 2026-11: a
//! release build is faster. `cargo bench -p scheduling --bench machines` prints current ones.

#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeMap;
use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use objects::kubelet_config;
use objects::pod::OsName;
use objects::pod::resources::PodResources;
use placement::demand::{Demand, PodUid};
use placement::report::NodeReport;
use placement::topology::{Cpu, NodeMemory, Parts};
use placement::{Bytes, CacheId, CoreId, CpuId, Ledger, Machine, NumaId, SocketId, Topology, plan};
use scheduling::{MachineView, Scheduler, Settings};
use serde_json::{Value, json};

const PODS: usize = 110;

const CONFIG: &str = "
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
reservedSystemCPUs: \"0-1\"
memoryManagerPolicy: Static
reservedMemory: [{numaNode: 0, limits: {memory: 100Mi}}]
topologyManagerPolicy: best-effort
";

fn machine(sockets: u32, nodes: u32, cores: u32) -> Machine {
    let all = sockets * nodes * cores;
    let cpus = (0..all * 2).map(|cpu| Cpu {
        cpu: CpuId(cpu),
        core: CoreId(cpu % all),
        socket: SocketId(cpu % all / (nodes * cores)),
        numa: NumaId(cpu % all / cores),
        cache: CacheId(cpu % all / 8),
    });
    let n = sockets * nodes;
    let memory = (0..n).map(|n| NodeMemory {
        numa: NumaId(n),
        memory: Bytes::gib(64),
        huge_pages: Vec::new(),
    });
    let distances = (0..n).map(|a| (0..n).map(|b| if a == b { 10 } else { 32 }).collect());
    let parts =
        Parts { cpus: cpus.collect(), nodes: memory.collect(), distances: distances.collect() };
    Machine { name: String::new(), os: OsName::Linux, topology: Topology::new(parts).unwrap() }
}

fn uid(n: usize) -> String {
    format!("3e1c5e0a-6f4b-4c4e-9a58-{n:012x}")
}

/// Returns the report of a node that is full of pods, and the CPUs of each container.
fn full(machine: &Machine) -> (BTreeMap<String, String>, [i64; 2]) {
    let (config, _) = kubelet_config::read(CONFIG).unwrap();
    let mut report = NodeReport::new(machine, &config, Ledger::default()).unwrap();
    let mut ledger = report.ledger().clone();
    let each = (machine.topology.cpus().len() - 2) / PODS;
    let cpus = [each.div_ceil(2) as i64, (each / 2) as i64];
    for n in 0..PODS {
        let pod = pod(n, cpus);
        let resources = PodResources::of_spec(&pod["spec"]);
        let demand = Demand::new(&PodUid::new(&uid(n)), &resources);
        ledger.commit(&plan(&report.configured().node, &ledger, &demand).unwrap());
    }
    report.set_ledger(ledger).unwrap();
    (report.render(), cpus)
}

fn pod(n: usize, cpus: [i64; 2]) -> Value {
    let container = |(at, cpus): (usize, i64)| {
        let amounts = json!({"cpu": cpus.to_string(), "memory": "1Gi"});
        json!({
            "name": format!("container-{at}"), "image": "i",
            "resources": {"requests": amounts, "limits": amounts},
        })
    };
    let containers: Vec<Value> = cpus.into_iter().enumerate().map(container).collect();
    json!({
        "metadata": {"name": format!("p{n}"), "namespace": "default", "uid": uid(n)},
        "spec": {"nodeName": "n1", "containers": containers},
    })
}

fn reports(c: &mut Criterion) {
    for (name, machine) in [
        ("8 NUMA nodes, 256 CPUs", machine(2, 4, 16)),
        ("64 NUMA nodes, 1,024 CPUs", machine(4, 16, 8)),
    ] {
        let (annotations, cpus) = full(&machine);
        let length: usize = annotations.iter().map(|(key, text)| key.len() + text.len()).sum();
        println!("{name}: {} KiB of annotations", length >> 10);
        c.bench_function(&format!("read a report, {name}"), |b| {
            b.iter(|| MachineView::parse(black_box(&annotations)).unwrap());
        });
        let view = MachineView::parse(&annotations).unwrap();
        let mut scheduler = Scheduler::new(&Settings::default()).unwrap();
        let cluster = scheduler.cluster_mut();
        cluster.apply_node(&json!({"metadata": {"name": "n1"}})).unwrap();
        for n in 0..PODS {
            cluster.apply_pod(&pod(n, cpus)).unwrap();
        }
        c.bench_function(&format!("take in a report, {name}"), |b| {
            b.iter(|| cluster.set_machine("n1", black_box(view.clone())));
        });
    }
}

criterion_group!(benches, reports);
criterion_main!(benches);
