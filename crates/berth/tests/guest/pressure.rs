//! A machine that runs out of memory: the pod that took it is evicted, and pods within their
//! requests stay.

use serde_json::json;

use crate::support::{SLEEP, is_over, machine, phase, pod, two_nodes, with_memory_volume};

/// The eviction threshold.
const LEAST_MIB: u64 = 400;
/// The free memory is this much below the threshold, and far above the kernel's OOM limit.
const MISSING_MIB: u64 = 120;

/// MiB of the eviction signal: free memory and inactive files. `MemAvailable` is lower by the
/// kernel's own reserve.
const AVAILABLE: &str = "/^MemFree:|^Inactive\\(file\\):/ {sum += $2} END {print int(sum / 1024)}";

#[test]
fn only_the_pod_that_exhausts_memory_is_evicted() {
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
    // No other best-effort pod is admitted.
    let late = node.refused(pod("late", SLEEP, &json!({})));
    assert_eq!(late["reason"], "Evicted", "{late:#}");
    let message = late["message"].as_str().unwrap_or_default();
    assert!(message.ends_with("The node had condition: [MemoryPressure]. "), "{message}");

    let after = node.cpuset_of(&modest);
    assert_eq!((&before.pid, &before.cpus), (&after.pid, &after.cpus));
    // Its memory is free again.
    let enough = format!("[ $(awk '{AVAILABLE}' /proc/meminfo) -gt {LEAST_MIB} ] && echo enough");
    node.until_output(&format!("{enough} || true"), "enough\n");
}
