//! Four NUMA nodes at unequal distances, and huge pages on one of them.

use serde_json::{Value, json};

use crate::support::{SLEEP, cgroup_of, cpus, four_nodes, machine, pod, pod_cgroup, set};

const HUGE: &str = "hugepages/hugepages-2048kB";

/// More than one node has, and less than two have.
const TWO_NODES_OF_MEMORY: &str = "600Mi";

fn exclusive(name: &str, cpus: &str, memory: &str) -> Value {
    pod(name, SLEEP, &json!({"cpu": cpus, "memory": memory}))
}

/// Returns a pod that uses huge pages through a mount.
fn on_huge_pages(name: &str) -> Value {
    let script = format!("fallocate -l 16777216 /huge/file\n{SLEEP}");
    let amounts = json!({"cpu": "1", "memory": "32Mi", "hugepages-2Mi": "16Mi"});
    let mut pod = pod(name, &script, &amounts);
    pod["spec"]["volumes"] = json!([{"name": "huge", "emptyDir": {"medium": "HugePages-2Mi"}}]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "huge", "mountPath": "/huge"}]);
    pod
}

#[test]
fn nearest_nodes_are_chosen_and_huge_pages_stay_local() {
    let mut machine = machine(&four_nodes());
    // Only the last node has huge pages.
    let each = "/sys/devices/system/node";
    machine.sh(&format!("echo 16 >{each}/node3/{HUGE}/nr_hugepages"));
    let had = machine.sh(&format!("cat {each}/node*/{HUGE}/nr_hugepages"));
    assert_eq!(had.split_whitespace().collect::<Vec<_>>(), ["0", "0", "0", "16"]);

    let topology = machine.topology();
    assert_eq!(cpus(&topology["nodes"]), ["0-1", "2-3", "4-5", "6-7"], "{topology:#}");
    assert_eq!(topology["distances"], json!(four_nodes().distances), "{topology:#}");

    // Node 0 is reserved. Of the three pairs with four free CPUs, nodes 2 and 3 are nearest.
    let config = json!({
        "cpuManagerPolicy": "static",
        "memoryManagerPolicy": "Static",
        "topologyManagerPolicy": "restricted",
        "topologyManagerPolicyOptions": {"prefer-closest-numa-nodes": "true"},
        "reservedSystemCPUs": "0-1",
        "systemReserved": {"memory": "150Mi"},
        "evictionHard": {"memory.available": "50Mi"},
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "200Mi"}}],
    });
    let mut node = machine.up(&config);
    assert_eq!(node.object()["status"]["capacity"]["hugepages-2Mi"], "32Mi");
    let four = node.run(exclusive("four", "4", TWO_NODES_OF_MEMORY));
    let cpuset = node.cpuset_of(&four);
    assert_eq!((&cpuset.cpus, &cpuset.mems), (&set("4-7"), &set("2-3")), "{cpuset:?}");
    node.delete("four");

    let huge = node.run(on_huge_pages("huge"));
    let cpuset = node.cpuset_of(&huge);
    assert_eq!((cpuset.cpus.len(), &cpuset.mems), (1, &set("3")), "{cpuset:?}");
    assert!(cpuset.cpus.is_subset(&set("6-7")), "{cpuset:?}");
    let free = format!(
        "until [ $(cat {each}/node3/{HUGE}/free_hugepages) = 8 ]; do usleep 50000; done\n\
         cat {}/hugetlb.2MB.current {}/hugetlb.2MB.max",
        cgroup_of(&huge),
        // containerd sets a limit on the container itself only on request.
        pod_cgroup(&huge)
    );
    let held = node.sh(&free);
    assert_eq!(held.split_whitespace().collect::<Vec<_>>(), ["16777216", "16777216"]);

    // With this memory on one node, node 3 is in no pair.
    let three = node.run(exclusive("three", "3", TWO_NODES_OF_MEMORY));
    let of_three = node.cpuset_of(&three);
    assert_eq!((of_three.cpus.len(), &of_three.mems), (3, &set("1-2")), "{of_three:?}");
    assert!(of_three.cpus.is_subset(&set("2-5")), "{of_three:?}");

    // Two CPUs must come from one node, and no node has two free. Under best-effort they come from
    // several.
    let refused = node.refused(exclusive("strict", "2", "32Mi"));
    assert_eq!(refused["reason"], "TopologyAffinityError", "{refused:#}");
    let mut best = config;
    best["topologyManagerPolicy"] = "best-effort".into();
    node.stop();
    node.start(&best);
    let lax = node.run(exclusive("lax", "2", "32Mi"));
    let of_lax = node.cpuset_of(&lax);
    assert_eq!(of_lax.cpus, &(&set("2-7") - &cpuset.cpus) - &of_three.cpus);
    for (pod, before) in [(&huge, &cpuset), (&three, &of_three)] {
        let now = node.cpuset_of(pod);
        assert_eq!((&now.cpus, &now.mems, &now.pid), (&before.cpus, &before.mems, &before.pid));
    }
}
