//! Options of the static CPU policy on a machine with hyper-threads: the physical cores of
//! containers, as the kernel numbers them.

use serde_json::{Value, json};

use crate::support::{SLEEP, machine, pod, set, two_nodes};

fn exclusive(name: &str, cpus: &str) -> Value {
    pod(name, SLEEP, &json!({"cpu": cpus, "memory": "32Mi"}))
}

#[test]
fn policy_options_select_physical_cores() {
    let config = |options: Value| {
        json!({
            "cpuManagerPolicy": "static",
            "cpuManagerPolicyOptions": options,
            "featureGates": {"CPUManagerPolicyAlphaOptions": true},
            "reservedSystemCPUs": "0",
            "evictionHard": {"memory.available": "50Mi"},
        })
    };
    let spread = config(json!({"distribute-cpus-across-cores": "true"}));
    let mut node = machine(&two_nodes()).up(&spread);
    let two = node.run(exclusive("two", "2"));
    let cpuset = node.cpuset_of(&two);
    assert_eq!((cpuset.cpus.len(), node.cores(&cpuset.cpus).len()), (2, 2), "{cpuset:?}");
    // The same for the remaining CPUs.
    let third = node.run(exclusive("third", "2"));
    let of_third = node.cpuset_of(&third);
    assert_eq!((of_third.cpus.len(), node.cores(&of_third.cpus).len()), (2, 2), "{of_third:?}");
    assert!(cpuset.cpus.is_disjoint(&of_third.cpus), "{cpuset:?} {of_third:?}");

    // Without the option running containers stay unchanged; new ones share the hyper-threads of a
    // core.
    node.delete("third");
    node.stop();
    node.start(&config(json!({})));
    let packed = node.run(exclusive("packed", "2"));
    let of_packed = node.cpuset_of(&packed);
    assert_eq!((of_packed.cpus.len(), node.cores(&of_packed.cpus).len()), (2, 1), "{of_packed:?}");
    let now = node.cpuset_of(&two);
    assert_eq!((&now.cpus, &now.pid), (&cpuset.cpus, &cpuset.pid));

    // Only whole cores, and no container on reserved CPUs.
    let whole = json!({"full-pcpus-only": "true", "strict-cpu-reservation": "true"});
    let mut whole = config(whole);
    whole["reservedSystemCPUs"] = "0-1".into();
    node.anew(&whole);
    let refused = node.refused(exclusive("half", "1"));
    assert_eq!(refused["reason"], "SMTAlignmentError", "{refused:#}");
    let message = refused["message"].as_str().unwrap_or_default();
    let expected = "SMT Alignment Error: requested 1 cpus not multiple cpus per core = 2";
    assert!(message.contains(expected), "{message}");
    let four = node.run(exclusive("four", "4"));
    let cpuset = node.cpuset_of(&four);
    assert_eq!((cpuset.cpus.len(), node.cores(&cpuset.cpus).len()), (4, 2), "{cpuset:?}");
    let mut shared = pod("shared", SLEEP, &json!({}));
    shared["spec"]["containers"][0]["resources"] = json!({});
    let shared = node.run(shared);
    let of_shared = node.cpuset_of(&shared);
    assert_eq!(of_shared.cpus, &set("2-7") - &cpuset.cpus);
}
