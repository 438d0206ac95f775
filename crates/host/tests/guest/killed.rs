//! The program is killed at random points while it changes classes; the next call continues.

use serde_json::{Value, json};

use crate::support::machine;

/// The number of kills.
const KILLS: u32 = 60;

/// Returns delays in microseconds, the same in every run.
fn delays() -> Vec<u32> {
    let mut state: u32 = 2_463_534_242;
    let delays = (0..KILLS).map(|_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state % 200_000
    });
    delays.collect()
}

#[test]
fn kills_at_random_points_leave_no_group_behind() {
    let mut machine = machine();
    machine.cgroup("/a");
    machine.cgroup("/b");
    let workload = |cgroup: &str, class: &str| json!({"cgroup": cgroup, "class": class, "container": cgroup.trim_start_matches('/')});
    let first = json!({
        "classes": {"gold": "L3:0=ffc00;1=ffc00\n", "bronze": "L3:0=3ff;1=3ff\n"},
        "workloads": [workload("/a", "gold"), workload("/b", "bronze")],
    });
    let second = json!({
        "classes": {"gold": "L3:0=ff000;1=ff000\n", "silver": "L3:0=ff;1=ff\nMB:0=50;1=50\n"},
        "workloads": [workload("/a", "silver"), workload("/b", "gold")],
    });
    machine.write("/tmp/first", &first);
    machine.write("/tmp/second", &second);
    let expected = [
        "berth.bronze",
        "berth.bronze/mon_groups/berth.pod.b",
        "berth.gold",
        "berth.gold/mon_groups/berth.pod.a",
    ];
    let mut interrupted = 0;
    for delay in delays() {
        // The delay begins in the first change, when the group of a class of the second file exists.
        machine.sh(&format!(
            "resctrl alternate /tmp/first /tmp/second >/dev/null 2>&1 & pid=$!\n\
             until [ -d /sys/fs/resctrl/berth.silver ]; do usleep 1000; done\n\
             usleep {delay}; kill -9 $pid; wait $pid; true"
        ));
        let is_between = |drift: &Value| drift.as_array().is_some_and(|drift| !drift.is_empty());
        let between = ["first", "second"].map(|of| machine.resctrl(&format!("drift /tmp/{of}")));
        interrupted += u32::from(between.iter().all(is_between));
        // RMIDs of removed groups are in limbo for up to a second.
        let applied = machine
            .sh("i=0; until resctrl apply /tmp/first >/tmp/out && ! grep -q RMID /tmp/out; do\n\
             i=$((i + 1)); [ $i -lt 100 ] || break; usleep 100000; done; cat /tmp/out");
        let applied: Value = serde_json::from_str(&applied).unwrap_or_else(|_| panic!("{applied}"));
        assert_eq!(applied["left"], json!([]), "{delay}: {applied:#}");
        assert_eq!(machine.groups(), expected, "{delay}: {between:#?}");
        assert!(machine.is_in("/a", "berth.gold/mon_groups/berth.pod.a"), "{delay}");
        assert!(machine.is_in("/b", "berth.bronze"), "{delay}");
    }
    eprintln!("{interrupted} of {KILLS} kills left a state between the two");
    // Without a kill between two steps the test would prove nothing.
    assert!(interrupted > 0);
}
