//! A machine whose memory really runs out: who took it goes, and who has what was promised stays.

use serde_json::json;

use crate::support::{SLEEP, is_over, machine, phase, pod, two_nodes, with_memory_volume};

/// Less than this is too little for the node.
const LEAST_MIB: u64 = 400;
/// What is left is below that by so much, and far from what would have the kernel kill somebody.
const MISSING_MIB: u64 = 120;

/// MiB of what eviction goes by: what is free, and files that were not used lately. `MemAvailable` is less
/// by what the kernel keeps for itself.
const AVAILABLE: &str = "/^MemFree:|^Inactive\\(file\\):/ {sum += $2} END {print int(sum / 1024)}";

#[test]
fn a_pod_that_takes_the_last_memory_is_evicted_and_others_run_on() {
    let config = json!({"evictionHard": {"memory.available": format!("{LEAST_MIB}Mi")}});
    let mut node = machine(&two_nodes()).up(&config);
    let modest = node.run(pod("modest", SLEEP, &json!({"cpu": "100m", "memory": "64Mi"})));
    let before = node.cpuset_of(&modest);

    let available = node.sh(&format!("awk '{AVAILABLE}' /proc/meminfo"));
    let taken = available.trim().parse::<u64>().unwrap() - (LEAST_MIB - MISSING_MIB);
    let script = format!("dd if=/dev/zero of=/memory/file bs=1M count={taken}; {SLEEP}");
    node.create(with_memory_volume(pod("greedy", &script, &json!({}))));
    let greedy = node.until("greedy", is_over);
    let status = &greedy["status"];
    assert_eq!((phase(&greedy), &status["reason"]), ("Failed", &json!("Evicted")), "{greedy:#}");
    let message = status["message"].as_str().unwrap_or_default();
    let expected = format!(
        "The node was low on resource: memory. Threshold quantity: {LEAST_MIB}Mi, available: "
    );
    assert!(message.starts_with(&expected), "{message}");
    assert!(message.contains("Container c was using ") && message.contains("request is 0"));

    let object = node.object();
    let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    let pressure = conditions.find(|condition| condition["type"] == "MemoryPressure").unwrap();
    assert_eq!(pressure["status"], "True", "{object:#}");
    // Nobody else comes who asks for nothing.
    let late = node.refused(pod("late", SLEEP, &json!({})));
    assert_eq!(late["reason"], "Evicted", "{late:#}");
    let message = late["message"].as_str().unwrap_or_default();
    assert!(message.ends_with("The node had condition: [MemoryPressure]. "), "{message}");

    let after = node.cpuset_of(&modest);
    assert_eq!((&before.pid, &before.cpus), (&after.pid, &after.cpus));
    // What it held is the machine's again.
    let enough = format!("[ $(awk '{AVAILABLE}' /proc/meminfo) -gt {LEAST_MIB} ] && echo enough");
    node.until_output(&format!("{enough} || true"), "enough\n");
}
