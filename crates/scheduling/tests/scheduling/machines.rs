//! Nodes that report their machine: pods that their agent would refuse are not sent to them.

use std::collections::BTreeMap;
use std::sync::Arc;

use objects::Quantity;
use objects::pod::OsName;
use placement::alignment::{Alignment, NodeLimit};
use placement::gates::Gates;
use placement::node::{CpuPolicy, MemoryPolicy};
use placement::topology::{Cpu, NodeMemory, Parts};
use placement::windows::AffinityMode;
use placement::{Bytes, CacheId, CoreId, CpuId, CpuSet, Node, NumaId, SocketId, Topology};
use scheduling::{Code, MachineView, Outcome, Plugin, Scheduler, Settings, Tie, Verdict};
use serde_json::{Value, json};

/// Two NUMA nodes of four CPUs, one CPU reserved for the system; containers must fit on one NUMA
/// node.
fn machine() -> Node {
    let cpus = (0..8).map(|cpu| Cpu {
        cpu: CpuId(cpu),
        core: CoreId(cpu),
        socket: SocketId(cpu / 4),
        numa: NumaId(cpu / 4),
        cache: CacheId(cpu / 4),
    });
    let nodes = (0..2).map(|n| NodeMemory {
        numa: NumaId(n),
        memory: Bytes::gib(16),
        huge_pages: Vec::new(),
    });
    let distances = vec![vec![10, 20], vec![20, 10]];
    let topology =
        Topology::new(Parts { cpus: cpus.collect(), nodes: nodes.collect(), distances }).unwrap();
    let none = BTreeMap::new();
    let limit = NodeLimit::default();
    let alignment =
        Alignment::new("single-numa-node", "container", &none, &topology, limit).unwrap();
    let reserved = Quantity::parse("1").unwrap();
    let gates = Gates::ALL;
    let cpu = CpuPolicy::new(
        "static",
        &none,
        Some(&reserved),
        &CpuSet::new(),
        alignment.policy,
        &gates,
        &topology,
    )
    .unwrap();
    let (os, memory) = (OsName::Linux, MemoryPolicy::None);
    Node { topology, os, cpu, memory, alignment, affinity_mode: AffinityMode::default() }
}

fn node(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "status": {"allocatable": {"cpu": "7", "memory": "32Gi", "pods": "110"}},
    })
}

fn pod(name: &str, cpus: u32, priority: i32) -> Value {
    let amounts = json!({"cpu": cpus.to_string(), "memory": "1Gi"});
    json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}")},
        "spec": {"priority": priority, "containers": [{
            "name": "c", "image": "img", "resources": {"requests": amounts, "limits": amounts},
        }]},
    })
}

/// The first of these nodes report a machine.
fn scheduler(nodes: &[&str], reporting: usize) -> Scheduler {
    let mut scheduler = Scheduler::new(&Settings::default()).unwrap();
    let machine = Arc::new(machine());
    let ledger = Arc::new(machine.empty_ledger());
    for (n, name) in nodes.iter().enumerate() {
        scheduler.cluster_mut().apply_node(&node(name)).unwrap();
        let view = MachineView { node: machine.clone(), ledger: ledger.clone() };
        scheduler.cluster_mut().set_machine(name, (n < reporting).then_some(view));
    }
    scheduler
}

fn place(scheduler: &mut Scheduler, pod: &Value) -> Outcome {
    scheduler.cluster_mut().apply_pod(pod).unwrap();
    let name = format!("default/{}", pod["metadata"]["name"].as_str().unwrap());
    let attempt = scheduler.attempt(&name, Tie::FirstByName).unwrap();
    scheduler.adopt(&attempt);
    attempt.outcome
}

fn node_of(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Scheduled(choice) => &choice.node,
        other => panic!("{other:?}"),
    }
}

#[test]
fn node_without_enough_cpus_on_one_numa_node_is_rejected() {
    let mut scheduler = scheduler(&["n1", "n2"], 1);
    // Three of seven CPUs are free, but not on one NUMA node.
    for (name, node) in [("a", "n1"), ("b", "n1")] {
        let mut there = pod(name, 2, 0);
        there["spec"]["nodeName"] = node.into();
        scheduler.cluster_mut().apply_pod(&there).unwrap();
    }
    scheduler.cluster_mut().apply_pod(&pod("p", 3, 0)).unwrap();
    let explained = scheduler.explain("default/p", Tie::FirstByName).unwrap();
    assert_eq!(explained.feasible, ["n2"]);
    let text = "node(s) would refuse the pod: TopologyAffinityError: Resources cannot be allocated \
                with Topology locality (CPUs need 2 NUMA nodes now, 1 on an empty machine)";
    let expected = Verdict {
        plugin: Some(Plugin::MachinePlacement),
        code: Code::Unschedulable,
        reasons: vec![text.to_owned()],
    };
    assert_eq!(explained.filtered["n1"], expected);
}

#[test]
fn pod_larger_than_a_numa_node_is_unresolvable() {
    let mut scheduler = scheduler(&["n1"], 1);
    scheduler.cluster_mut().apply_pod(&pod("p", 5, 100)).unwrap();
    let explained = scheduler.explain("default/p", Tie::FirstByName).unwrap();
    assert_eq!(explained.filtered["n1"].code, Code::UnschedulableAndUnresolvable);
}

#[test]
fn assumed_pods_count_before_the_agent_commits_them() {
    let mut scheduler = scheduler(&["n1", "n2"], 2);
    let nodes: Vec<String> = ["a", "b", "c", "d"]
        .iter()
        .map(|name| node_of(&place(&mut scheduler, &pod(name, 3, 0))).to_owned())
        .collect();
    assert_eq!(nodes, ["n1", "n2", "n1", "n2"]);
    // One of seven CPUs is free, but no pod requests a single one.
    let Outcome::Unschedulable(failure) = place(&mut scheduler, &pod("e", 3, 0)) else { panic!() };
    assert!(failure.message.starts_with("0/2 nodes are available: 2 Insufficient cpu."));
    // The CPUs of a removed pod are free again.
    scheduler.cluster_mut().remove_pod("default/a");
    assert_eq!(node_of(&place(&mut scheduler, &pod("f", 3, 0))), "n1");
}

#[test]
fn preemption_frees_cpus_on_one_numa_node() {
    let mut scheduler = scheduler(&["n1"], 1);
    for (name, cpus) in [("a", 2), ("b", 2)] {
        node_of(&place(&mut scheduler, &pod(name, cpus, 0)));
    }
    let Outcome::Unschedulable(failure) = place(&mut scheduler, &pod("p", 3, 10)) else { panic!() };
    let preemption = failure.preemption.unwrap();
    assert_eq!(preemption.victims.len(), 1, "{preemption:?}");
}

#[test]
fn shared_pods_and_nodes_without_report_are_unaffected() {
    let mut all = scheduler(&["n1"], 1);
    let mut shared = pod("p", 5, 0);
    shared["spec"]["containers"][0]["resources"]["limits"] = Value::Null;
    assert_eq!(node_of(&place(&mut all, &shared)), "n1");
    let mut none = scheduler(&["n1"], 0);
    assert_eq!(node_of(&place(&mut none, &pod("p", 5, 0))), "n1");
}
