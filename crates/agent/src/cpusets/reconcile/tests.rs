//! Differences, their suspected causes, and conflicts in the ledger.

use std::collections::BTreeMap;

use host::cgroups::ProcessAffinity;
use host::processes::Process;
use placement::Ledger;
use placement::demand::{ContainerName, PodUid};
use placement::windows::{GroupAffinity, GroupId};

use super::audit::held_twice;
use super::pass::{describe, pid};
use super::*;
use crate::cpusets::tracker::TrackedContainer;
use crate::observability::events::AgentEvent;

fn cpus(text: &str) -> CpuSet {
    CpuSet::parse(text).unwrap()
}

fn nodes(text: &str) -> BTreeSet<NumaId> {
    cpus(text).iter().map(|id| NumaId(id.0)).collect()
}

fn allocated(on: &str, mems: &str) -> ContainerAffinity {
    ContainerAffinity { cpus: cpus(on), exclusive: true, mems: nodes(mems), groups: Vec::new() }
}

/// Written and effective CPUs, written and effective memory nodes, and threads with both.
fn in_force(sets: [&str; 4], threads: &[(&str, &str)]) -> EffectiveLimits {
    let threads = threads.iter().zip(70..).map(|((on, mems), id)| ThreadAffinity {
        id,
        cpus: cpus(on),
        mems: nodes(mems),
    });
    EffectiveLimits {
        cgroups: BTreeMap::new(),
        cpus: cpus(sets[0]),
        effective_cpus: cpus(sets[1]),
        mems: nodes(sets[2]),
        effective_mems: nodes(sets[3]),
        cpu_share: None,
        cpu_quota: None,
        memory: None,
        pids: None,
        processes: vec![ProcessAffinity { pid: 70, threads: threads.collect() }],
    }
}

#[test]
fn differences_are_found_but_not_threads_restricted_by_the_container() {
    let table: &[(&str, ContainerAffinity, EffectiveLimits, &str)] = &[
        ("as told", allocated("2-3", "0"), in_force(["2-3", "2-3", "0", "0"], &[("2-3", "0")]), ""),
        (
            "threads of its own choice",
            allocated("2-3", "0"),
            in_force(["2-3", "2-3", "0", "0"], &[("2-3", "0"), ("3", "0")]),
            "",
        ),
        (
            "other CPUs were written",
            allocated("3", ""),
            in_force(["0-3", "0-3", "0", "0"], &[("0-3", "0")]),
            "CPUs 0-3 instead of 3",
        ),
        (
            "fewer CPUs were written",
            allocated("2-3", ""),
            in_force(["2", "2", "0", "0"], &[("2", "0")]),
            "CPUs 2 instead of 2-3",
        ),
        (
            "nothing was written: the runtime ignored it",
            allocated("3", "0"),
            in_force(["", "0-3", "", "0-1"], &[("0-3", "0-1")]),
            "CPUs 0-3 instead of 3 and memory nodes 0,1 instead of 0",
        ),
        (
            "a cgroup above has less",
            allocated("2-3", ""),
            in_force(["2-3", "2", "0", "0"], &[("2", "0")]),
            "CPUs 2 instead of 2-3",
        ),
        (
            "a thread that is elsewhere",
            allocated("2-3", "0"),
            in_force(["2-3", "2-3", "0", "0"], &[("2-3", "0"), ("1-2", "0"), ("2", "1")]),
            "thread 71 on CPUs 1-2 instead of 2-3 and thread 72 with memory nodes 1 instead of 0",
        ),
        (
            "a machine without cpusets",
            allocated("2-3", "0"),
            in_force(["", "", "", ""], &[("0-3", "0")]),
            "thread 70 on CPUs 0-3 instead of 2-3",
        ),
        (
            "version 1 with a CPU that is switched off",
            allocated("3-4", ""),
            in_force(["3", "3", "0", "0"], &[("3", "0")]),
            "",
        ),
        (
            "version 2 with a CPU that is switched off",
            allocated("3-4", ""),
            in_force(["3-4", "3", "0", "0"], &[("3", "0")]),
            "",
        ),
        (
            "told nothing",
            ContainerAffinity::default(),
            in_force(["0", "0", "0", "0"], &[("0", "0")]),
            "",
        ),
    ];
    let online = cpus("0-3");
    for (name, affinity, found, expected) in table {
        assert_eq!(describe(&findings(affinity, found, Some(&online))), *expected, "{name}");
    }
    let (_, affinity, found, _) = &table[9];
    assert_eq!(describe(&findings(affinity, found, None)), "CPUs 3 instead of 3-4");
}

#[test]
fn runtime_status_is_compared_where_processes_cannot_be_read() {
    let group = |group: u64, mask: u64| GroupAffinity { group: GroupId::new(group).unwrap(), mask };
    let of_windows =
        ContainerAffinity { groups: vec![group(0, 3), group(1, 1)], ..allocated("0-1,64", "") };
    let windows = |of: &[(u64, u32)]| {
        let affinity_cpus = of
            .iter()
            .map(|&(cpu_mask, cpu_group)| v1::WindowsCpuGroupAffinity { cpu_mask, cpu_group });
        v1::ContainerResources {
            windows: Some(v1::WindowsContainerResources {
                affinity_cpus: affinity_cpus.collect(),
                ..Default::default()
            }),
            ..Default::default()
        }
    };
    let reported = |reported: &v1::ContainerResources| {
        describe(&reported_findings(OsName::Windows, &of_windows, reported))
    };
    assert_eq!(reported(&windows(&[(1, 1), (3, 0)])), "");
    let allocated_text = "group 0 mask 0x3, group 1 mask 0x1";
    assert_eq!(reported(&windows(&[])), format!("any processor instead of {allocated_text}"));
    assert_eq!(
        reported(&windows(&[(7, 0)])),
        format!("group 0 mask 0x7 instead of {allocated_text}")
    );
    assert_eq!(reported(&v1::ContainerResources::default()), "");
    let linux = |cpuset_cpus: &str, cpuset_mems: &str| v1::ContainerResources {
        linux: Some(v1::LinuxContainerResources {
            cpuset_cpus: cpuset_cpus.to_owned(),
            cpuset_mems: cpuset_mems.to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let reported = |of: &v1::ContainerResources| {
        describe(&reported_findings(OsName::Linux, &allocated("2-3", "0"), of))
    };
    assert_eq!(reported(&linux("2,3", "0")), "");
    assert_eq!(reported(&linux("", "")), "");
    assert_eq!(
        reported(&linux("0-3", "0-1")),
        "CPUs 0-3 instead of 2-3 and memory nodes 0,1 instead of 0"
    );
    assert_eq!(reported(&linux("nonsense", "x")), "");
}

#[test]
fn the_pid_is_read_from_the_verbose_status() {
    let of = |text: &str| pid(&BTreeMap::from([("info".to_owned(), text.to_owned())]));
    assert_eq!(of(r#"{"sandboxID": "s", "pid": 4711, "runtimeSpec": {}}"#), Some(4711));
    for text in [r#"{"pid": 0}"#, r#"{"pid": "1"}"#, "{}", "", "pid: 3"] {
        assert_eq!(of(text), None, "{text}");
    }
    assert_eq!(pid(&BTreeMap::new()), None);
}

#[test]
fn three_repairs_within_five_checks_are_a_fight() {
    let id = "c".to_owned();
    let mut history = ReconcileHistory::default();
    // The checks with a repair, and those after which it counts as contention.
    let table: [(&[u32], &[u32]); 3] =
        [(&[1, 2, 3, 4], &[3, 4]), (&[1, 3, 5], &[5]), (&[1, 4, 6, 9, 10], &[10])];
    for (repairs, fights) in table {
        history.begin([]);
        let mut history = ReconcileHistory::default();
        let mut seen = Vec::new();
        for check in 1..=10 {
            history.begin([&id]);
            if repairs.contains(&check) && history.repaired(&id).is_some() {
                seen.push(check);
            }
        }
        assert_eq!(seen, fights, "{repairs:?}");
    }
    assert!(!history.was_right(&id));
    assert!(history.stays(&id, "wrong") && !history.stays(&id, "wrong"));
    history.right(&id);
    assert!(history.was_right(&id) && history.stays(&id, "wrong"));
    history.set_pid(&id, Some(7));
    assert_eq!(history.pid(&id), Some(7));
    history.begin([]);
    assert_eq!(history.pid(&id), None);
}

#[test]
fn programs_that_set_cpusets_are_named() {
    let process = |pid: u32, name: &str, command: &[&str]| Process {
        pid,
        name: name.to_owned(),
        command: command.iter().map(|&word| word.to_owned()).collect(),
    };
    let quiet = HostObservation {
        own_pid: 10,
        processes: vec![
            process(1, "systemd", &["/sbin/init"]),
            process(10, "berth", &["berth", "up"]),
            process(11, "berth", &["berth", "plan", "up"]),
            process(12, "grep", &["grep", "kubelet"]),
        ],
        online: Some(cpus("0-3")),
        first: Some(cpus("0-7")),
        above: vec![("/".to_owned(), cpus("0-3")), ("/kubepods".to_owned(), cpus("0-3"))],
        changed_files: Vec::new(),
    };
    assert_eq!(contenders(&cpus("2-3"), &quiet), []);
    let mut loud = quiet;
    loud.processes.extend([
        process(20, "kubelet", &["/usr/bin/kubelet", "--config=x"]),
        process(21, "berth", &["/opt/berth", "agent", "--kubeconfig", "x"]),
        process(22, "nri-resource-po", &["nri-resource-policy-balloons"]),
    ]);
    loud.first = Some(cpus("0-1"));
    loud.above.insert(1, ("/system.slice".to_owned(), cpus("0-2")));
    loud.changed_files = vec!["state".into()];
    let named: Vec<String> =
        contenders(&cpus("2-3"), &loud).iter().map(ToString::to_string).collect();
    assert_eq!(
        named,
        [
            "a kubelet (process 20)",
            "another berth (process 21)",
            "the runtime's plugin nri-resource-po (process 22)",
            "whoever writes state",
            "cgroup /system.slice, which has CPUs 0-2 only (AllowedCPUs= of a slice?)",
            "the init process, which has CPUs 0-1 only (CPUAffinity= of systemd?)",
        ]
    );
    // A parent cgroup with enough CPUs is not a cause.
    loud.above.truncate(1);
    assert!(
        !contenders(&cpus("2-3"), &loud).iter().any(|of| matches!(of, Contender::Above { .. }))
    );
}

#[test]
fn events_name_the_container_the_difference_and_the_suspect() {
    let suspects = vec!["a kubelet (process 20)".to_owned()];
    let (container, found) = ("c".to_owned(), "CPUs 0-3 instead of 3".to_owned());
    let repaired = |fight: Option<Contention>, suspects: &[String]| {
        let (container, found) = (container.clone(), found.clone());
        AgentEvent::PlacementRepaired { container, found, fight, suspects: suspects.to_vec() }
    };
    let start = "Container c had CPUs 0-3 instead of 3 and was put back";
    assert_eq!(repaired(None, &[]).to_string(), start);
    let fight = Some(Contention { times: 3, checks: 5 });
    assert_eq!(
        repaired(fight, &suspects).to_string(),
        format!(
            "{start}, 3 times within 5 checks: somebody else sets it; suspected: a kubelet (process \
             20)"
        )
    );
    assert!(
        repaired(fight, &[]).to_string().ends_with("no kubelet or other agent was found running")
    );
    assert_eq!(repaired(None, &[]).severity().name(), "Warning");
    assert_eq!(repaired(None, &[]).reason(), "PlacementRepaired");
    let stays = |why: &str, ignored: bool| AgentEvent::PlacementNotInForce {
        container: container.clone(),
        found: found.clone(),
        why: why.to_owned(),
        ignored,
        suspects: Vec::new(),
    };
    let start = "Container c has CPUs 0-3 instead of 3 and cannot be put there";
    assert_eq!(
        stays("", true).to_string(),
        format!("{start}: the runtime ignores where it is to run")
    );
    assert_eq!(stays("no", false).to_string(), format!("{start}: no"));
    assert_eq!(stays("", false).to_string(), start);
}

#[test]
fn only_containers_that_exited_may_share_exclusive_cpus() {
    let assign = |ledger: &mut Ledger, pod: &str, container: &str, on: &str| {
        let containers = ledger.cpu.assignments.entry(PodUid::new(pod)).or_default();
        containers.insert(ContainerName::new(container), cpus(on));
    };
    let mut ledger = Ledger::default();
    ledger.cpu.shared = cpus("0-1");
    assign(&mut ledger, "a", "init", "2-3");
    assign(&mut ledger, "a", "app", "2");
    assign(&mut ledger, "b", "app", "4");
    let entry = |pod: &str, container: &str, on: &str, exclusive: bool| TrackedContainer {
        pod_uid: pod.to_owned(),
        container: container.to_owned(),
        affinity: ContainerAffinity { exclusive, ..allocated(on, "") },
    };
    let app = entry("a", "app", "2", true);
    let shared = entry("s", "c", "0-1", false);
    assert_eq!(held_twice(&ledger, &[app.clone(), shared.clone(), shared]), []);
    let held = |ledger: &Ledger, running: &[TrackedContainer]| -> Vec<String> {
        let twice = held_twice(ledger, running);
        twice.iter().map(|of| format!("{}: {}", of.cpu, of.holders.join(", "))).collect()
    };
    let both = [entry("a", "init", "2-3", true), app.clone()];
    assert_eq!(held(&ledger, &both), ["2: a/app, a/init"]);
    assert_eq!(held(&ledger, &[app, entry("s", "c", "0-2", false)]), ["2: a/app, s/c"]);
    assign(&mut ledger, "b", "app", "3-4");
    ledger.cpu.shared = cpus("0-1,4");
    assert_eq!(held(&ledger, &[]), ["3: a/init, b/app", "4: b/app, the shared pool"]);
}
