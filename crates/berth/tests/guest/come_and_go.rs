//! CPUs that are off, go off and come on while the agent is away.

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

/// Starts the node again, after a change of its machine and of what is reserved. What it says at that.
fn restart(node: &mut Node, reserved: &str, change: impl FnOnce(&mut Node)) -> String {
    node.stop();
    change(node);
    node.start(&config(reserved));
    let log = node.log();
    assert!(!log.contains("delete"), "{log}");
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
fn cpus_that_are_off_are_nobodys_and_those_that_come_and_go_are_made_up_for() {
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

    // One goes that somebody has; one comes on, and one into the machine.
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

    // It comes back, and one that somebody has becomes the system's.
    let log = restart(&mut node, "0,4", |node| node.switch(1, true));
    assert!(log.contains("CPU 4 is reserved for the system now"), "{log}");
    node.until_on(&three, "1,5-6");
    node.until_on(&two, "2-3");
    node.until_on(&one, "7");
    node.until_on(&shared, "0,4");
    assert_eq!([&shared, &three, &two].map(|pod| node.cpuset_of(pod).pid), processes);
    assert_eq!(capacity(&node), "8");

    // One goes without which there is no room for one of the pods. It is told, and the others run on.
    restart(&mut node, "0,4", |node| node.switch(6, false));
    let ended = node.until("three", |pod| phase(pod) == "Failed");
    assert_eq!(ended["status"]["reason"], "UnexpectedAdmissionError", "{ended:#}");
    node.sh(&format!("while [ -e {} ]; do usleep 50000; done", cgroup_of(&three)));
    node.until_on(&shared, "0-1,4-5");
    assert_eq!(node.until_on(&two, "2-3").pid, processes[2]);
    let last = node.run(exclusive("last", "2"));
    assert_eq!(node.cpuset_of(&last).cpus, set("1,5"));
}
