//! CPUs that are offline, or go offline and online while the agent does not run.

use rig::guest::Shape;
use serde_json::{Value, json};

use crate::support::{Node, SLEEP, cgroup_of, machine, phase, pod, set, two_nodes};

fn exclusive(name: &str, cpus: &str) -> Value {
    pod(name, SLEEP, &json!({"cpu": cpus, "memory": "32Mi"}))
}

fn uid(pod: &Value) -> &str {
    pod["metadata"]["uid"].as_str().unwrap()
}

fn state(node: &mut Node) -> Value {
    let data = node.data();
    serde_json::from_str(&node.sh(&format!("cat {data}/agent/cpu_manager_state"))).unwrap()
}

/// Restarts the node after a change of its machine and of the reserved CPUs, and returns its log.
fn restart(node: &mut Node, reserved: &str, change: impl FnOnce(&mut Node)) -> String {
    node.stop();
    change(node);
    node.start(&config(reserved));
    let log = node.log();
    let remedy = |line: &str| line.contains("state file") && line.contains("delete");
    assert!(!log.lines().any(remedy), "{log}");
    log
}

fn config(reserved: &str) -> Value {
    json!({
        "cpuManagerPolicy": "static",
        "reservedSystemCPUs": reserved,
        "evictionHard": {"memory.available": "50Mi"},
    })
}

#[test]
fn offline_cpus_are_released_and_replaced() {
    let mut machine = machine(&Shape { absent: 1, ..two_nodes() });
    machine.sh("echo 0 >/sys/devices/system/cpu/cpu3/online");
    let mut node = machine.up(&config("0"));
    let capacity = |node: &Node| node.object()["status"]["capacity"]["cpu"].clone();
    assert_eq!(capacity(&node), "6");
    assert_eq!(state(&mut node)["defaultCpuSet"], "0-2,4-6");

    let mut shared = pod("shared", SLEEP, &json!({}));
    shared["spec"]["containers"][0]["resources"] = json!({});
    let shared = node.run(shared);
    let three = node.run(exclusive("three", "3"));
    assert_eq!(node.cpuset_of(&three).cpus, set("4-6"));
    let two = node.run(exclusive("two", "2"));
    assert_eq!(node.cpuset_of(&two).cpus, set("1-2"));
    node.until_on(&shared, "0");
    let processes = [&shared, &three, &two].map(|pod| node.cpuset_of(pod).pid);

    // One allocated CPU goes offline, one goes online, and one is plugged in.
    let log = restart(&mut node, "0", |node| {
        node.switch(1, false);
        node.switch(3, true);
        node.plug(7);
    });
    let message = "its CPUs 1-2 are released: the machine has no CPU 1 (any more)";
    assert!(log.contains(message), "{log}");
    node.until_on(&two, "2-3");
    node.until_on(&three, "4-6");
    node.until_on(&shared, "0,7");
    assert_eq!(state(&mut node)["entries"][uid(&two)]["c"], "2-3");
    assert_eq!(capacity(&node), "7");
    let one = node.run(exclusive("one", "1"));
    assert_eq!(node.cpuset_of(&one).cpus, set("7"));

    // It returns, and one allocated CPU becomes reserved.
    let log = restart(&mut node, "0,4", |node| node.switch(1, true));
    assert!(log.contains("CPU 4 is reserved for the system now"), "{log}");
    node.until_on(&three, "1,5-6");
    node.until_on(&two, "2-3");
    node.until_on(&one, "7");
    node.until_on(&shared, "0,4");
    assert_eq!([&shared, &three, &two].map(|pod| node.cpuset_of(pod).pid), processes);
    assert_eq!(capacity(&node), "8");

    // Without this CPU one of the pods does not fit. It is reported, and the others keep running.
    restart(&mut node, "0,4", |node| node.switch(6, false));
    let ended = node.until("three", |pod| phase(pod) == "Failed");
    assert_eq!(ended["status"]["reason"], "UnexpectedAdmissionError", "{ended:#}");
    node.sh(&format!("while [ -e {} ]; do usleep 50000; done", cgroup_of(&three)));
    node.until_on(&shared, "0-1,4-5");
    assert_eq!(node.until_on(&two, "2-3").pid, processes[2]);
    let last = node.run(exclusive("last", "2"));
    assert_eq!(node.cpuset_of(&last).cpus, set("1,5"));
}
