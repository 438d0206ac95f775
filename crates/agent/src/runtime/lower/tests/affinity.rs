//! From a plan to requests, on a machine with gaps in its NUMA node numbers.

use std::collections::BTreeMap;

use objects::Quantity;
use placement::alignment::{Alignment, NodeLimit};
use placement::demand::PodUid;
use placement::gates::Gates;
use placement::memory::reserve::Entry;
use placement::node::{CpuPolicy, MemoryPolicy};
use placement::topology::{Cpu, NodeMemory, Parts};
use placement::windows::AffinityMode;
use placement::{Bytes, CacheId, CoreId, CpuId, CpuSet, Node, NumaId, SocketId, Topology};

use super::*;
use lifecycle::placement_demand;

/// Returns NUMA nodes 0 and 2 with four CPUs each. CPU 0 and a gibibyte of each node are reserved for the
/// system.
fn machine(os: OsName, managed: bool) -> Node {
    let cpus = (0..8).map(|cpu| Cpu {
        cpu: CpuId(cpu),
        core: CoreId(cpu),
        socket: SocketId(cpu / 4),
        numa: NumaId(cpu / 4 * 2),
        cache: CacheId(cpu / 4),
    });
    let nodes = [0, 2].map(|numa| NodeMemory {
        numa: NumaId(numa),
        memory: Bytes::gib(16),
        huge_pages: Vec::new(),
    });
    let distances = vec![vec![10, 20], vec![20, 10]];
    let parts = Parts { cpus: cpus.collect(), nodes: nodes.into(), distances };
    let topology = Topology::new(parts).unwrap();
    if !managed {
        return Node::unmanaged(topology, os);
    }
    let none = BTreeMap::new();
    let limit = NodeLimit::default();
    let alignment =
        Alignment::new("single-numa-node", "container", &none, &topology, limit).unwrap();
    let quantity = |text: &str| Quantity::parse(text).unwrap();
    let cpu = CpuPolicy::new(
        "static",
        &none,
        Some(&quantity("1")),
        &CpuSet::new(),
        alignment.policy,
        &Gates::ALL,
        &topology,
    )
    .unwrap();
    let entry = |numa_node| Entry { numa_node, limits: amounts_of(&[("memory", "1Gi")]) };
    let policy = match os {
        OsName::Linux => "Static",
        OsName::Windows => "BestEffort",
    };
    let reserved = [entry(0), entry(2)];
    let expected = amounts_of(&[("memory", "2Gi")]);
    let memory = MemoryPolicy::new(policy, os, &reserved, &expected, &topology).unwrap();
    Node { topology, os, cpu, memory, alignment, affinity_mode: AffinityMode::default() }
}

/// Plans a pod after another that fills most of node 0, and returns its containers' affinity.
fn affinities(node: &Node, pod: &Pod) -> BTreeMap<String, ContainerAffinity> {
    let mut ledger = node.empty_ledger();
    let amounts = json!({"cpu": "3", "memory": "1Gi"});
    let first = pod_of(json!({"resources": {"limits": amounts, "requests": amounts}}));
    let mut containers = Vec::new();
    for (uid, pod) in [("first", &first), ("second", pod)] {
        let demand = placement_demand(pod).with_uid(PodUid::new(uid));
        let placement = placement::plan(node, &ledger, &demand).unwrap();
        ledger.commit(&placement);
        containers = placement.containers;
    }
    let of = |one: &placement::plan::ContainerPlacement| {
        (one.name.as_str().to_owned(), ContainerAffinity::of(one, node, &ledger))
    };
    containers.iter().map(of).collect()
}

fn guaranteed(cpus: &str) -> Pod {
    let amounts = json!({"cpu": cpus, "memory": "2Gi"});
    pod_of(json!({"resources": {"limits": amounts, "requests": amounts}}))
}

#[test]
fn plan_is_lowered_to_real_cpu_and_node_numbers() {
    let node = machine(OsName::Linux, true);
    let of = |pod: &Pod| {
        let mut world = World::new();
        world.affinities = affinities(&node, pod);
        let linux = world.made(pod).linux.unwrap().resources.unwrap();
        (linux.cpuset_cpus, linux.cpuset_mems, linux.cpu_quota)
    };
    let text = |cpus: &str, mems: &str, quota| (cpus.to_owned(), mems.to_owned(), quota);
    assert_eq!(of(&guaranteed("2")), text("4-5", "2", -1));
    // The pool that the first pod leaves, and a quota.
    assert_eq!(of(&guaranteed("1500m")).0, "0,4-7");
    assert_eq!(of(&guaranteed("1500m")).2, 150_000);
    assert_eq!(of(&pod_of(json!({}))), text("0,4-7", "", 0));
}

#[test]
fn containers_have_no_affinity_without_policies() {
    let node = machine(OsName::Linux, false);
    assert_eq!(affinities(&node, &guaranteed("2"))["c"], ContainerAffinity::default());
}

#[test]
fn windows_plan_is_lowered_to_processor_groups() {
    let affinities = affinities(&machine(OsName::Windows, true), &guaranteed("2"));
    let groups: Vec<_> =
        affinities["c"].groups.iter().map(|group| (group.group.get(), group.mask)).collect();
    assert_eq!(groups, [(0, 0b11_0000)]);
}

#[test]
fn container_can_read_its_affinity_as_an_annotation() {
    let mut world = World::new();
    let affinity = ContainerAffinity {
        cpus: CpuSet::parse("2-3,8").unwrap(),
        exclusive: true,
        mems: [NumaId(0), NumaId(1)].into(),
        groups: Vec::new(),
    };
    world.affinities.insert("c".to_owned(), affinity);
    let pod = pod(json!({"containers": [{"name": "c"}, {"name": "free"}]}));
    let input = world.input(&pod);
    let get = |key: &str| {
        downward::field(&input, &[], &format!("metadata.annotations['berth.dev/{key}']")).unwrap()
    };
    assert_eq!(get("assigned-cpus.c"), "2-3,8");
    assert_eq!(get("assigned-mems.c"), "0-1");
    assert_eq!(get("assigned-cpus.free"), "");
    assert_eq!(get("assigned-cpus.nobody"), "");
    assert!(!downward::field(&input, &[], "metadata.annotations").unwrap().contains("assigned"));
}
