//! Documents of a snapshot that is built by hand.

use host::cgroups::Bound;
use host::system::Traffic;
use serde_json::json;

use super::*;

fn snapshot() -> Snapshot {
    let usage = |cpu, memory| Usage {
        cpu: Some(cpu),
        memory: Some(memory),
        working_set: Some(memory / 2),
        memory_limit: Some(Bound::At(4096)),
        swap: Some(0),
        swap_limit: Some(Bound::Max),
        page_faults: Some(7),
        ..Usage::default()
    };
    let container = ContainerUsage {
        name: "c".to_owned(),
        id: "id".to_owned(),
        image: "busybox".to_owned(),
        started: Some(Timestamp::new(50, 0)),
        path: "/kubepods/podu/id".to_owned(),
        group: Group { usage: usage(1_500_000_000, 1000), cpu_rate: None },
        written: Some((10, Some(1))),
        logs: Some(20),
        log_files: Some(1),
    };
    let interface = Interface {
        name: "eth0".to_owned(),
        received: Traffic { bytes: 5, ..Traffic::default() },
        sent: Traffic::default(),
    };
    let pod = PodUsage {
        name: "p".to_owned(),
        namespace: "n".to_owned(),
        uid: "u".to_owned(),
        started: Some(Timestamp::new(40, 0)),
        path: "/kubepods/podu".to_owned(),
        group: Some(Group { usage: usage(2_000_000_000, 2000), cpu_rate: Some(3) }),
        interfaces: Some(vec![interface]),
        containers: vec![container],
        volumes: 100,
    };
    let node = NodeUsage {
        name: "node-1".to_owned(),
        memory: Some(Memory { total: 10_000, free: 4000, ..Memory::default() }),
        disk: Some(FileSystem { capacity: 1000, available: 600, inodes: None }),
        ..NodeUsage::default()
    };
    Snapshot { at: Timestamp::new(100, 5_000_000), node, pods: vec![pod], failed: false }
}

#[test]
fn the_summary_has_what_is_known_and_nothing_else() {
    let text = summary::render(&snapshot());
    let pod = &text["pods"][0];
    assert_eq!(pod["podRef"], json!({"name": "p", "namespace": "n", "uid": "u"}));
    let time = "1970-01-01T00:01:40Z";
    let cpu = json!({"time": time, "usageCoreNanoSeconds": 2_000_000_000_u64, "usageNanoCores": 3});
    assert_eq!(pod["cpu"], cpu);
    assert_eq!(pod["network"]["rxBytes"], 5);
    assert_eq!(pod["ephemeral-storage"]["usedBytes"], 130);
    let container = &pod["containers"][0];
    assert_eq!(container["memory"]["availableBytes"], 4096 - 500);
    assert!(container["cpu"].get("usageNanoCores").is_none());
    assert_eq!(container["swap"]["swapAvailableBytes"], 0);
    assert!(container.get("rootfs").is_none(), "nobody said how large the runtime's disk is");
    let node = &text["node"];
    assert_eq!(
        (&node["nodeName"], &node["memory"]["usageBytes"]),
        (&"node-1".into(), &6000.into())
    );
    assert!(node.get("cpu").is_none() && node.get("runtime").is_none(), "{node}");
}

#[test]
fn resource_figures_carry_the_time_at_which_they_were_true() {
    let text = metrics::text::render(&resource::families(&snapshot()));
    for line in [
        "container_cpu_usage_seconds_total{container=\"c\",namespace=\"n\",pod=\"p\"} 1.5 100005",
        "container_start_time_seconds{container=\"c\",namespace=\"n\",pod=\"p\"} 50",
        "pod_memory_working_set_bytes{namespace=\"n\",pod=\"p\"} 1000 100005",
        "node_memory_working_set_bytes 6000 100005",
        "resource_scrape_error 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
    }
    assert!(!text.contains("node_cpu_usage"), "{text}");
}

#[test]
fn cadvisors_figures_are_of_containers_and_of_pods() {
    let text = metrics::text::render(&cadvisor::families(&snapshot()));
    for line in [
        "container_cpu_usage_seconds_total{container=\"c\",cpu=\"total\",id=\"/kubepods/podu/id\",\
         image=\"busybox\",name=\"id\",namespace=\"n\",pod=\"p\"} 1.5 100005",
        "container_memory_working_set_bytes{container=\"\",id=\"/kubepods/podu\",image=\"\",name=\"\",\
         namespace=\"n\",pod=\"p\"} 1000 100005",
        "container_network_receive_bytes_total{container=\"\",id=\"/kubepods/podu\",image=\"\",\
         interface=\"eth0\",name=\"\",namespace=\"n\",pod=\"p\"} 5 100005",
        "container_scrape_error 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
    }
    assert!(!text.contains("container_memory_cache"), "{text}");
}

#[test]
fn rates_need_two_samples_that_are_apart() {
    let first = next_rate(None, 0, 100);
    assert_eq!(first.rate, None);
    let soon = next_rate(Some(first), 1_000_000, 200);
    assert_eq!((soon.rate, soon.used), (None, 100));
    let later = next_rate(Some(soon), 2_000_000_000, 1100);
    assert_eq!(later.rate, Some(500));
    let again = next_rate(Some(later), 2_100_000_000, 9999);
    assert_eq!(again.rate, Some(500));
}
