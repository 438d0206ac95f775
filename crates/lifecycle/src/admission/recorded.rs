//! Replays every rejection of the recorded kubelet: same reason, same message.
//!
//! The state of the node and its pods is listed here for each line; the machine is the recorded one. A
//! rejected line without an entry fails the test.

use std::collections::BTreeMap;

use objects::Quantity;
use placement::alignment::{Alignment, AlignmentPolicy, NodeLimit};
use placement::demand::MemoryKind;
use placement::gates::Gates;
use placement::memory::reserve::ReservedMemory;
use placement::memory::{MemoryGuarantee, StaticMemory};
use placement::node::{CpuPolicy, MemoryPolicy};
use placement::topology::{Cpu, NodeMemory, Parts};
use placement::{Bytes, CacheId, CoreId, CpuId, CpuSet, NumaId, SocketId, Topology};
use serde_json::{Value, json};

use super::*;
use rig::golden_node::{defaulted, lines};

/// Allocatable memory of the recorded machine, for its placeholder.
const MEMORY: &str = "24068016Ki";
const MEMORY_BYTES: &str = "24645648384";

pub(super) fn pod(value: Value) -> Pod {
    serde_json::from_value(value).unwrap()
}

pub(super) fn amounts(list: &[(&str, &str)]) -> ResourceList {
    let each = list.iter().map(|(name, text)| ((*name).to_owned(), Quantity::parse(text).unwrap()));
    each.collect()
}

pub(super) fn node() -> Node {
    let labels = [("kubernetes.io/os", "linux"), ("kubernetes.io/hostname", "node-1")];
    Node {
        name: "node-1".to_owned(),
        labels: labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        allocatable: amounts(&[
            ("cpu", "1700m"),
            ("memory", MEMORY),
            ("ephemeral-storage", "266258206720"),
            ("hugepages-1Gi", "0"),
            ("hugepages-2Mi", "0"),
            ("pods", "150"),
        ]),
        os: Some(OsName::Linux),
        ..Node::default()
    }
}

/// The manifests by id, with the fields that admission plugins of the API server add.
struct Recorded {
    pods: BTreeMap<String, Pod>,
    rejected: BTreeMap<String, (String, String)>,
}

fn recorded() -> Recorded {
    let (mut pods, mut rejected) = (BTreeMap::new(), BTreeMap::new());
    for line in lines("pods.jsonl.gz") {
        let id = line["id"].as_str().unwrap().to_owned();
        let mut manifest = defaulted(&line["manifest"]);
        manifest["metadata"]["uid"] = json!(id);
        if manifest["spec"]["priorityClassName"] == "system-node-critical" {
            manifest["spec"]["priority"] = json!(2_000_001_000);
        }
        if line["family"] == "static" {
            manifest["metadata"]["annotations"] = json!({"kubernetes.io/config.source": "file"});
        }
        pods.insert(id.clone(), pod(manifest));
        for snapshot in line["snapshots"].as_array().into_iter().flatten() {
            let status = &snapshot["status"];
            let message = status["message"].as_str().unwrap_or_default();
            if let Some(bare) = message.strip_prefix("Pod was rejected: ") {
                let reason = status["reason"].as_str().unwrap().to_owned();
                rejected.insert(id.clone(), (reason, bare.to_owned()));
            }
        }
        // A rejected static pod has no object, only an event.
        for event in line["events"].as_array().into_iter().flatten() {
            if line["family"] == "static" && event["reason"] == "UnexpectedAdmissionError" {
                let text = |field: &str| event[field].as_str().unwrap().to_owned();
                rejected.insert(id.clone(), (text("reason"), text("message")));
            }
        }
    }
    Recorded { pods, rejected }
}

fn regular(nodes: u32, cores: u32, threads: u32, memory: u64) -> Topology {
    let all_cores = nodes * cores;
    let cpus = (0..all_cores * threads).map(|cpu| {
        let core = cpu % all_cores;
        Cpu {
            cpu: CpuId(cpu),
            core: CoreId(core),
            socket: SocketId(core / cores),
            numa: NumaId(core / cores),
            cache: CacheId(core / cores),
        }
    });
    let memory = (0..nodes).map(|n| NodeMemory {
        numa: NumaId(n),
        memory: Bytes(memory),
        huge_pages: Vec::new(),
    });
    let distance = |a: u32, b: u32| if a == b { 10 } else { 20 };
    let distances = (0..nodes).map(|a| (0..nodes).map(|b| distance(a, b)).collect()).collect();
    Topology::new(Parts { cpus: cpus.collect(), nodes: memory.collect(), distances }).unwrap()
}

/// Returns a machine with the policies of a group of lines.
fn machine(group: &str) -> placement::Node {
    let (topology, reserved, options, policy) = match group {
        "numa" => {
            let options = [("full-pcpus-only".to_owned(), "true".to_owned())].into();
            (regular(2, 4, 2, 12 << 30), "0,8", options, "single-numa-node")
        }
        "memstatic" => (regular(1, 2, 1, 14_588_383_232), "0", BTreeMap::new(), "none"),
        _ => (regular(1, 2, 1, 14_588_383_232), "0", BTreeMap::new(), "single-numa-node"),
    };
    let none = BTreeMap::new();
    let limit = NodeLimit::Kubelet;
    let alignment = Alignment::new(policy, "container", &none, &topology, limit).unwrap();
    let cpus: CpuSet = CpuSet::parse(reserved).unwrap();
    let count = Quantity::parse(&cpus.len().to_string()).unwrap();
    let kind = AlignmentPolicy::parse(policy).unwrap();
    let gates = Gates::default();
    let cpu =
        CpuPolicy::new("static", &options, Some(&count), &cpus, kind, &gates, &topology).unwrap();
    let kept = ReservedMemory::from_bytes([(0, MemoryKind::Memory, 629_145_600)]);
    let memory = MemoryPolicy::Static(StaticMemory::new(kept, MemoryGuarantee::Strict).unwrap());
    placement::Node {
        cpu,
        memory,
        alignment,
        ..placement::Node::unmanaged(topology, OsName::Linux)
    }
}

/// Plans a pod after others, all of which must fit.
fn plan(group: &str, before: &[&Pod], pod: &Pod) -> Result<(), Rejection> {
    let machine = machine(group);
    let mut ledger = machine.empty_ledger();
    for other in before {
        let placed = placement::plan(&machine, &ledger, &crate::placement_demand(other)).unwrap();
        ledger.commit(&placed);
    }
    let planned = placement::plan(&machine, &ledger, &crate::placement_demand(pod));
    planned.map(|_| ()).map_err(Rejection::Placement)
}

/// The result of placement and devices for a pod.
type Allocate = Box<dyn Fn(&Recorded, &Pod) -> Result<(), Rejection>>;

/// The state of a line's node.
struct RecordedCase {
    node: Node,
    /// Recorded pods on the node.
    others: Vec<&'static str>,
    /// Resources of pods that are not recorded.
    used: ResourceList,
    allocate: Allocate,
}

fn scene(id: &str) -> RecordedCase {
    let mut scene = RecordedCase {
        node: node(),
        others: Vec::new(),
        used: ResourceList::new(),
        allocate: Box::new(|_, _| Ok(())),
    };
    match id {
        "cpu-pinned-second" => {
            scene.others = vec!["cpu-shared", "cpu-pinned"];
            scene.allocate = Box::new(|all, pod| {
                let before = [&all.pods["cpu-shared"], &all.pods["cpu-pinned"]];
                plan("cpustatic", &before, pod)
            });
        }
        "memory-does-not-fit-no-topology-manager" => {
            scene.allocate = Box::new(|_, pod| plan("memstatic", &[], pod));
        }
        _ if id.starts_with("numa-") => {
            scene.allocate = Box::new(|_, pod| plan("numa", &[], pod));
        }
        // The answers of the devices.
        "device-too-many" => {
            scene.allocate = Box::new(|_, _| Err(Rejection::DevicesNotAligned));
        }
        "device-allocate-fails" => {
            let error = "rpc error: code = Internal desc = no widgets today";
            scene.allocate =
                Box::new(move |_, _| Err(Rejection::Device { error: error.to_owned() }));
        }
        "preempt-critical-too-big" => {
            scene.others = vec!["preempt-critical", "preempt-bystander-guaranteed"];
        }
        "memory-pressure-burstable-under" => {
            scene.node.pressures = vec!["MemoryPressure".to_owned()];
            scene.node.allocatable.extend(amounts(&[("memory", "54444032")]));
            scene.used = amounts(&[("memory", "8388608")]);
        }
        _ if id.starts_with("disk-pressure") => {
            scene.node.pressures = vec!["DiskPressure".to_owned()];
        }
        _ if id.starts_with("pid-pressure") => {
            scene.node.pressures = vec!["PIDPressure".to_owned()];
        }
        _ if id.starts_with("memory-pressure") => {
            scene.node.pressures = vec!["MemoryPressure".to_owned()];
        }
        "maxpods-3" => {
            scene.node.allocatable.extend(amounts(&[("pods", "3")]));
            scene.others = vec!["maxpods-0", "maxpods-1", "maxpods-2"];
        }
        "reject-hostport-second" => scene.others = vec!["reject-hostport-first"],
        "reject-outofcpu" => scene.used = amounts(&[("cpu", "200m")]),
        "reject-outofmemory" => scene.used = amounts(&[("memory", "64Mi")]),
        "taint-noexecute" | "taint-tolerated" => {
            let text = |text: &str| text.to_owned();
            let (key, value, effect) = (text("k"), text("v"), text("NoExecute"));
            scene.node.taints = vec![Taint { key, value, effect }];
        }
        "reject-hugepages"
        | "reject-multiple"
        | "reject-os-selector-windows"
        | "reject-os-windows"
        | "reject-outofephemeral"
        | "sec-apparmor-localhost"
        | "sec-apparmor-runtimedefault"
        | "sec-sysctl-unsafe" => {}
        // A static pod is critical, so its insufficient resources are reported as a failed preemption.
        "static-outofcpu-node-1" => {}
        _ => panic!("{id}: rejected, and nothing is given for it"),
    }
    scene
}

fn admission(all: &Recorded, id: &str) -> Admission {
    let scene = scene(id);
    let pod = &all.pods[id];
    let unknown = Pod::default();
    let mut others: Vec<AdmittedPod<'_>> =
        scene.others.iter().map(|other| AdmittedPod::new(&all.pods[*other])).collect();
    if !scene.used.is_empty() {
        others.push(AdmittedPod { pod: &unknown, requests: scene.used.clone() });
    }
    admit(pod, &scene.node, &others, || (scene.allocate)(all, pod))
}

#[test]
fn recorded_rejections_have_the_same_reasons_and_messages() {
    let all = recorded();
    for (id, (reason, message)) in &all.rejected {
        let Admission::Rejected(rejection) = admission(&all, id) else {
            panic!("{id}: not rejected");
        };
        let message = message.replace("<NODE_ALLOCATABLE_MEMORY>", MEMORY_BYTES);
        assert_eq!((rejection.reason(), rejection.to_string()), (reason.clone(), message), "{id}");
    }
    assert_eq!(all.rejected.len(), 34);
}

#[test]
fn pods_that_ran_with_the_rejected_ones_are_admitted() {
    let all = recorded();
    let admitted = [
        "taint-tolerated",
        "disk-pressure-new-critical",
        "pid-pressure-new-critical",
        "memory-pressure-new-tolerating",
        "disk-pressure-critical",
    ];
    for id in admitted {
        assert_eq!(admission(&all, id), Admission::Admitted, "{id}");
    }
}

#[test]
fn the_recorded_victims_are_preempted_and_the_bystanders_are_not() {
    let all = recorded();
    let names = ["preempt-victim-exit0", "preempt-victim-killed", "preempt-bystander-guaranteed"];
    let best_effort = pod(json!({
        "metadata": {"uid": "preempt-bystander-besteffort"}, "spec": {"containers": [{"name": "c"}]},
    }));
    let mut others: Vec<AdmittedPod<'_>> =
        names.iter().map(|name| AdmittedPod::new(&all.pods[*name])).collect();
    others.push(AdmittedPod::new(&best_effort));
    let admission = admit(&all.pods["preempt-critical"], &node(), &others, || Ok(()));
    let Admission::AfterPreempting(mut victims) = admission else { panic!("{admission:?}") };
    victims.sort();
    assert_eq!(victims, ["preempt-victim-exit0", "preempt-victim-killed"]);
}
