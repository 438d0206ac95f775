//! Responses as recorded from the kubelet, and over a real socket.

use std::time::Duration;

use objects::KubeletConfig;
use objects::kubelet_config::{CpuManagerPolicy, MemoryManagerPolicy};
use placement::Machine;
use placement::configured::Configured;
use placement::topology::{Cpu, NodeMemory, Parts};
use placement::{Bytes, CacheId, CoreId, CpuId, Node, NumaId, SocketId};
use serde_json::{Value, json};

use super::*;
use lifecycle::placement_demand;
use rig::golden_node::lines;

/// Two NUMA nodes of four CPUs; the first CPU is reserved for the system.
fn node(policies: bool) -> Node {
    let cpu = |n: u32| Cpu {
        cpu: CpuId(n),
        core: CoreId(n),
        socket: SocketId(n / 4),
        numa: NumaId(n / 4),
        cache: CacheId(n / 4),
    };
    let of = |n| NodeMemory { numa: NumaId(n), memory: Bytes(8 << 30), huge_pages: Vec::new() };
    let parts =
        Parts { cpus: (0..8).map(cpu).collect(), nodes: vec![of(0), of(1)], distances: Vec::new() };
    let machine = Machine::new("", OsName::Linux, parts).unwrap();
    let mut config = KubeletConfig::default();
    if policies {
        let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
                    cpuManagerPolicy: static\nmemoryManagerPolicy: Static\n\
                    topologyManagerPolicy: single-numa-node\n\
                    reservedSystemCPUs: \"0\"\nsystemReserved: {memory: 512Mi}\n\
                    evictionHard: {memory.available: 512Mi}\n\
                    reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]\n";
        config = objects::kubelet_config::read(text).unwrap().0;
        assert_eq!(config.cpu_manager_policy, CpuManagerPolicy::Static);
        assert_eq!(config.memory_manager_policy, MemoryManagerPolicy::Static);
    }
    Configured::new(&machine, &config).unwrap().node
}

fn pods(values: impl IntoIterator<Item = Value>) -> Vec<Arc<Pod>> {
    values.into_iter().map(|value| Arc::new(serde_json::from_value(value).unwrap())).collect()
}

#[test]
fn pods_without_exclusive_resources_are_listed_as_recorded() {
    let all = lines("node.jsonl.gz");
    let line = all.iter().find(|line| line["kind"] == "podresources").unwrap();
    let answers = &line["answers"];
    let node = node(false);
    let ledger = node.empty_ledger();
    let recorded = answers["List"]["pod_resources"].as_array().unwrap();
    for expected in recorded {
        let named = |container: &Value| json!({"name": container["name"]});
        let mut containers: Vec<Value> =
            expected["containers"].as_array().unwrap().iter().map(named).collect();
        let mut init = vec![json!({"name": "i"})];
        if expected["name"] == "cg-sidecar" {
            let mut sidecar = containers.remove(0);
            sidecar["restartPolicy"] = "Always".into();
            init.push(sidecar);
        }
        let manifest = json!({
            "metadata": {"name": expected["name"], "namespace": expected["namespace"], "uid": "u"},
            "spec": {"initContainers": init, "containers": containers},
        });
        let text = response::pod(&pods([manifest])[0], &node, &ledger);
        let containers: Vec<Value> =
            text.containers.iter().map(|of| json!({"name": of.name})).collect();
        assert_eq!(Value::from(containers), expected["containers"]);
        assert!(text.containers.iter().all(|of| of.cpu_ids.is_empty() && of.memory.is_empty()));
    }
    assert_eq!(answers["GetAllocatableResources"], json!({}));
    assert_eq!(response::allocatable(&node, &ledger), Default::default());
    let request =
        v1::GetPodResourcesRequest { pod_name: "nope".into(), pod_namespace: "lives2".into() };
    let refused = response::find(&[], &request).unwrap_err();
    let error = &answers["Get missing"]["error"];
    assert_eq!((refused.code(), error["code"].as_str()), (tonic::Code::Unknown, Some("UNKNOWN")));
    assert_eq!(refused.message(), error["message"]);
}

#[test]
fn exclusive_cpus_and_memory_are_listed_with_their_nodes() {
    let node = node(true);
    let mut ledger = node.empty_ledger();
    let amounts = json!({"cpu": "2", "memory": "1Gi"});
    let all = pods([json!({
        "metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {"containers": [
            {"name": "c", "resources": {"requests": amounts, "limits": amounts}},
        ]},
    })]);
    let placement = placement::plan(&node, &ledger, &placement_demand(&all[0])).unwrap();
    ledger.commit(&placement);
    let text = response::pod(&all[0], &node, &ledger);
    let [container] = text.containers.as_slice() else { panic!("{text:?}") };
    assert_eq!(container.cpu_ids.len(), 2);
    let home = container.cpu_ids[0] / 4;
    let [memory] = container.memory.as_slice() else { panic!("{text:?}") };
    assert_eq!((memory.memory_type.as_str(), memory.size), ("memory", 1 << 30));
    assert_eq!(memory.topology.as_ref().unwrap().nodes, [v1::NumaNode { id: home }]);
    let could = response::allocatable(&node, &ledger);
    assert_eq!(could.cpu_ids, [1, 2, 3, 4, 5, 6, 7]);
    let sizes: Vec<u64> = could.memory.iter().map(|block| block.size).collect();
    assert_eq!(sizes, [7 << 30, 8 << 30]);
}

#[test]
fn a_burst_is_answered_and_a_flood_is_not() {
    let begin = Instant::now();
    let mut bucket = TokenBucket::full(begin);
    let answered = (0..50).filter(|_| bucket.take(begin)).count();
    assert_eq!(answered, 10);
    assert!(bucket.take(begin + Duration::from_millis(11)));
    assert!(!bucket.take(begin + Duration::from_millis(12)));
    assert_eq!((0..50).filter(|_| bucket.take(begin + Duration::from_secs(9))).count(), 10);
}

#[test]
fn the_door_is_where_the_kubelet_has_it() {
    let here = endpoint(OsName::Linux, Path::new("/var/lib/kubelet")).unwrap();
    assert_eq!(here.to_string(), "unix:///var/lib/kubelet/pod-resources/kubelet.sock");
    let there = endpoint(OsName::Windows, Path::new("C:\\var\\lib\\kubelet")).unwrap();
    assert_eq!(there, Endpoint::parse("npipe:////./pipe/kubelet-pod-resources").unwrap());
}
