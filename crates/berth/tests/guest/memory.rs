//! The memory of a container is on its NUMA node, page by page, and a pod that would be spread over
//! NUMA nodes is rejected if the policy forbids it. Two NUMA nodes.

use placement::CpuSet;
use serde_json::{Value, json};

use crate::support::{
    Node, SLEEP, cgroup_of, cpus, machine, pod, pod_cgroup, set, two_nodes, with_memory_volume,
};

const MIB: u64 = 1 << 20;

/// Memory that a container writes: a memory-backed volume, and its own.
const TOUCHED_MIB: u64 = 48;
const OWN_MIB: u64 = 12;

/// Fills a memory-backed volume and a shell variable, and prints a line when done.
fn touch() -> String {
    format!(
        "dd if=/dev/zero of=/memory/file bs=1M count={TOUCHED_MIB} 2>/dev/null\n\
         own=$(head -c {} /dev/zero | tr '\\0' x)\n\
         echo ${{#own}} >/memory/done\n\
         {SLEEP}",
        OWN_MIB * MIB
    )
}

/// Parses a row of `memory.numa_stat`: bytes by NUMA node.
fn row(stat: &str, name: &str) -> Vec<u64> {
    let line = stat.lines().find(|line| line.split(' ').next() == Some(name));
    let line = line.unwrap_or_else(|| panic!("no {name} in {stat}"));
    let bytes = line.split(' ').skip(1).filter_map(|word| word.split_once('='));
    bytes.map(|(_, bytes)| bytes.parse().unwrap()).collect()
}

/// Counts the pages of a process by NUMA node, without file pages, which other processes may have
/// loaded.
fn anonymous_pages(maps: &str) -> Vec<u64> {
    let mut pages = vec![0, 0];
    for line in maps.lines().filter(|line| !line.contains("file=")) {
        for (node, count) in pages.iter_mut().enumerate() {
            let start = format!("N{node}=");
            let counts = line.split(' ').filter_map(|word| word.strip_prefix(&start));
            *count += counts.map(|count| count.parse::<u64>().unwrap()).sum::<u64>();
        }
    }
    pages
}

/// Asserts that all memory written by a container is on one node.
fn assert_lies_on(node: &mut Node, pod: &Value, on: usize) {
    let uid = pod["metadata"]["uid"].as_str().unwrap();
    let done = format!(
        "until [ -s {}/agent/pods/{uid}/volumes/kubernetes.io~empty-dir/memory/done ]; do \
         usleep 50000; done; cat {}/memory.numa_stat",
        node.data(),
        cgroup_of(pod)
    );
    let stat = node.sh(&done);
    let other = 1 - on;
    let volume = row(&stat, "shmem");
    assert!(volume[on] >= TOUCHED_MIB * MIB && volume[other] == 0, "{stat}");
    let own = row(&stat, "anon");
    assert!(own[on] >= OWN_MIB * MIB && own[other] == 0, "{stat}");
    let pid = node.cpuset_of(pod).pid;
    let maps = node.sh(&format!("cat /proc/{pid}/numa_maps"));
    let pages = anonymous_pages(&maps);
    assert!(pages[on] * 4096 >= OWN_MIB * MIB && pages[other] == 0, "{maps}");
}

#[test]
fn memory_stays_on_the_chosen_node() {
    // The first core is reserved, so that node 0 has one free core and node 1 two.
    let config = json!({
        "cpuManagerPolicy": "static",
        "memoryManagerPolicy": "Static",
        "topologyManagerPolicy": "single-numa-node",
        "reservedSystemCPUs": "0-1",
        "systemReserved": {"memory": "150Mi"},
        "evictionHard": {"memory.available": "50Mi"},
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "200Mi"}}],
    });
    let mut machine = machine(&two_nodes());
    let topology = machine.topology();
    assert_eq!(topology["cores"], json!(["0-1", "2-3", "4-5", "6-7"]), "{topology:#}");
    assert_eq!(cpus(&topology["sockets"]), ["0-3", "4-7"], "{topology:#}");
    assert_eq!(cpus(&topology["nodes"]), ["0-3", "4-7"], "{topology:#}");
    let mut node = machine.up(&config);

    let amounts = |cpu: &str, memory: &str| json!({"cpu": cpu, "memory": memory});
    // More memory than a node has, and less than both.
    let refused = node.refused(pod("large", SLEEP, &amounts("1", "800Mi")));
    assert_eq!(refused["phase"], "Failed");
    assert_eq!(refused["reason"], "TopologyAffinityError", "{refused:#}");
    let message = refused["message"].as_str().unwrap_or_default();
    assert!(message.contains("Resources cannot be allocated with Topology locality"), "{message}");

    let three = with_memory_volume(pod("three", &touch(), &amounts("3", "200Mi")));
    let three = node.run(three);
    let cpuset = node.cpuset_of(&three);
    assert_eq!((cpuset.cpus.len(), &cpuset.mems), (3, &set("1")), "{cpuset:?}");
    assert!(cpuset.cpus.is_subset(&set("4-7")), "{cpuset:?}");
    assert_lies_on(&mut node, &three, 1);

    let two = with_memory_volume(pod("two", &touch(), &amounts("2", "100Mi")));
    let two = node.run(two);
    let of_two = node.cpuset_of(&two);
    assert_eq!((&of_two.cpus, &of_two.mems), (&set("2-3"), &set("0")));
    assert_lies_on(&mut node, &two, 0);

    // All other pods share the remaining CPUs of any node.
    let requests = json!({"cpu": "100m", "memory": "32Mi"});
    let resources =
        |cpu: &str, memory: &str| json!({"requests": requests, "limits": amounts(cpu, memory)});
    let mut shared = pod("shared", SLEEP, &json!({}));
    shared["spec"]["containers"][0]["resources"] = resources("1", "64Mi");
    let shared = node.run(shared);
    let left: CpuSet = &set("0-7") - &(&cpuset.cpus | &of_two.cpus);
    let of_shared = node.cpuset_of(&shared);
    assert_eq!((&of_shared.cpus, &of_shared.mems), (&left, &set("0-1")));

    // Enough CPUs are free, but on two nodes.
    node.delete("two");
    let refused = node.refused(pod("wide", SLEEP, &amounts("3", "50Mi")));
    assert_eq!(refused["reason"], "TopologyAffinityError", "{refused:#}");

    // The cgroup hierarchy, and a limit that changes while a container runs.
    let of_pods = "/sys/fs/cgroup/kubepods";
    let files = node.sh(&format!(
        "cat {of_pods}/cgroup.controllers {}/memory.max {}/cpu.max {}/memory.max {of_pods}/burstable/cpu.weight",
        pod_cgroup(&three),
        pod_cgroup(&three),
        cgroup_of(&three),
    ));
    let lines: Vec<&str> = files.lines().collect();
    for controller in ["cpuset", "cpu", "memory", "hugetlb", "pids"] {
        assert!(lines[0].split(' ').any(|one| one == controller), "{files}");
    }
    let limit = (200 * MIB).to_string();
    // Exclusive CPUs need no quota; a tenth of a CPU is 102 shares, which are a weight of 17.
    assert_eq!(lines[1..], [&limit, "max 100000", &limit, "17"], "{files}");
    let larger = resources("2", "96Mi");
    let larger = json!({"spec": {"containers": [{"name": "c", "resources": larger}]}});
    node.patch("shared", "resize", &larger);
    // Wait for both, in any order.
    let limits = format!("cd {}; cat memory.max cpu.max", cgroup_of(&shared));
    node.until_output(&limits, "100663296\n200000 100000\n");
    assert_eq!(node.cpuset_of(&shared).pid, of_shared.pid);
}
