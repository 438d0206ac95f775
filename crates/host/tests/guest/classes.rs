//! Classes are created, changed in place and removed; containers enter them with all their tasks.

use serde_json::{Value, json};

use crate::support::machine;

const GOLD: &str = "L3:0=ffc00;1=ffc00\nMB:0=100;1=100\n";
const BRONZE: &str = "L2:0=3;1=3;2=3;3=3\nL3:0=f;1=3ff\nMB:0=33;1=20\n";

fn workload(cgroup: &str, class: &str) -> Value {
    json!({"cgroup": cgroup, "class": class, "container": cgroup.trim_start_matches('/')})
}

#[test]
fn classes_are_in_force_for_all_tasks_of_containers() {
    let mut machine = machine();
    let hardware = machine.resctrl("hardware");
    assert_eq!(hardware["anomalies"], json!([]), "{hardware:#}");
    assert_eq!(hardware["hardware"]["l3"]["unified"]["cbmMask"], "fffff", "{hardware:#}");
    assert_eq!(hardware["hardware"]["l3"]["cacheIds"], json!([0, 1]), "{hardware:#}");
    assert_eq!(hardware["hardware"]["monitoring"]["numRmids"], 128, "{hardware:#}");

    // A container that forks all the time, and one that sleeps.
    machine.cgroup("/quiet");
    machine.sh("mkdir /sys/fs/cgroup/forking\n\
         (echo 0 >/sys/fs/cgroup/forking/cgroup.procs\n\
          while :; do (true; sleep 0.05) & (sleep 0.1) & wait; done) >/dev/null 2>&1 &");
    let classes = json!({"gold": GOLD, "bronze": BRONZE});
    let workloads = json!([workload("/quiet", "gold"), workload("/forking", "bronze")]);
    machine.write("/tmp/classes", &json!({"classes": classes, "workloads": workloads}));
    let applied = machine.resctrl("apply /tmp/classes");
    assert_eq!((&applied["left"], &applied["unmonitored"]), (&json!([]), &json!([])));
    let groups = [
        "berth.bronze",
        "berth.bronze/mon_groups/berth.pod.forking",
        "berth.gold",
        "berth.gold/mon_groups/berth.pod.quiet",
    ];
    assert_eq!(machine.groups(), groups);
    assert!(machine.is_in("/quiet", "berth.gold"));
    assert!(machine.is_in("/quiet", "berth.gold/mon_groups/berth.pod.quiet"));
    // Children inherit the class, so no task is outside at any later time.
    assert_eq!(machine.resctrl("drift /tmp/classes"), json!([]));
    // The kernel rounds bandwidth up.
    let schemata = machine.sh("tr -d ' ' </sys/fs/resctrl/berth.bronze/schemata | sort");
    assert_eq!(schemata, "L2:0=00003;1=00003;2=00003;3=00003\nL3:0=0000f;1=003ff\nMB:0=40;1=20");

    let figures = machine.resctrl("figures");
    let containers: Vec<&Value> =
        figures.as_array().unwrap().iter().map(|of| &of["container"]).collect();
    assert_eq!(containers, ["forking", "quiet"], "{figures:#}");
    let counters = &figures[1]["figures"]["caches"]["1"]["events"];
    assert_eq!(counters["llc_occupancy"], json!({"bytes": 0}), "{figures:#}");
    assert_eq!(counters["mbm_local_bytes"], json!({"bytes": 0}), "{figures:#}");

    // Both containers change their class, and a class changes its schemata.
    let classes = json!({"gold": GOLD, "bronze": "L3:0=3f;1=3f\n"});
    let workloads = json!([workload("/quiet", "bronze"), workload("/forking", "gold")]);
    machine.write("/tmp/classes", &json!({"classes": classes, "workloads": workloads}));
    assert_eq!(machine.resctrl("apply /tmp/classes")["left"], json!([]));
    assert!(machine.is_in("/quiet", "berth.bronze/mon_groups/berth.pod.quiet"));
    assert_eq!(machine.resctrl("drift /tmp/classes"), json!([]));
    let groups = [
        "berth.bronze",
        "berth.bronze/mon_groups/berth.pod.quiet",
        "berth.gold",
        "berth.gold/mon_groups/berth.pod.forking",
    ];
    assert_eq!(machine.groups(), groups);

    // Another program removes every group but its own, as containerd with an RDT file does.
    machine.sh("cd /sys/fs/resctrl; mkdir runtime; rmdir berth.*");
    let drift = machine.resctrl("drift /tmp/classes").to_string();
    assert!(drift.contains("resctrl group berth.gold is missing"), "{drift}");
    assert!(drift.contains("of cgroup /quiet are in resctrl group /, not in"), "{drift}");
    assert_eq!(machine.resctrl("apply /tmp/classes")["left"], json!([]));
    assert!(machine.is_in("/quiet", "berth.bronze"));

    // A class is removed with its last task; groups of other programs stay.
    let workloads = json!([workload("/quiet", "")]);
    machine.write("/tmp/classes", &json!({"classes": {"gold": GOLD}, "workloads": workloads}));
    let left = &machine.resctrl("apply /tmp/classes")["left"];
    assert_eq!(
        machine.groups().join(" "),
        "berth.gold berth.gold/mon_groups/berth.pod.forking runtime"
    );
    assert!(left.to_string().contains("berth.pod.forking in resctrl group berth.gold"), "{left}");
}

#[test]
fn exhausted_closids_and_wrong_masks_are_refused_with_numbers() {
    let mut machine = machine();
    // The L3 has 16 CLOSIDs, the other levels 8.
    machine.sh("mkdir /sys/fs/resctrl/other");
    let class = |count: usize| -> Value {
        (1..=count).map(|number| (format!("c{number}"), json!(GOLD))).collect()
    };
    machine.write("/tmp/seven", &json!({"classes": class(7)}));
    let (status, output) = machine.attempt("apply /tmp/seven");
    let expected = "cannot apply classes to resctrl: cannot create resctrl groups berth.c1, berth.c2, \
                    berth.c3, berth.c4, berth.c5, berth.c6, berth.c7: the machine has 8 classes of \
                    service (CLOSIDs); the root group uses 1, Berth 0, other programs 1 (other)";
    assert_eq!((status, output.as_str()), (1, expected));
    assert_eq!(machine.groups(), ["other"]);

    machine.write("/tmp/six", &json!({"classes": class(6)}));
    assert_eq!(machine.resctrl("apply /tmp/six")["left"], json!([]));
    assert_eq!(machine.groups().len(), 7);

    // The error of the kernel, and nothing of the schemata in force.
    let classes = json!({"c1": "L2:0=3\nL3:0=5\n"});
    machine.write("/tmp/wrong", &json!({"classes": classes}));
    let (status, output) = machine.attempt("apply /tmp/wrong");
    assert_eq!(status, 1, "{output}");
    assert!(output.contains("non-consecutive 1-bits"), "{output}");
    let schemata = machine.sh("tr -d ' ' </sys/fs/resctrl/berth.c1/schemata | sort | tail -n 2");
    assert_eq!(schemata, "L3:0=ffc00;1=ffc00\nMB:0=100;1=100");

    // All RMIDs are in use: the container has its class without being monitored.
    machine.cgroup("/pod");
    machine.sh("cd /sys/fs/resctrl/mon_groups; i=0\n\
         while mkdir x$i 2>/dev/null; do i=$((i + 1)); done");
    let workloads = json!([workload("/pod", "c1")]);
    machine.write("/tmp/pod", &json!({"classes": class(6), "workloads": workloads}));
    let applied = machine.resctrl("apply /tmp/pod");
    let unmonitored = applied["unmonitored"].to_string();
    assert!(unmonitored.contains("the machine has 128 monitoring ids (RMIDs)"), "{applied:#}");
    assert!(machine.is_in("/pod", "berth.c1"));
}
