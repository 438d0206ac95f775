//! Tests of the ledger on disk: assignments survive a restart, and those that no longer fit are reported.

use objects::KubeletConfig;
use objects::kubelet_config::CpuManagerPolicy;
use objects::pod::OsName;
use placement::configured::Configured;
use placement::demand::ContainerName;

use super::*;
use crate::test_machine::machine;
use lifecycle::placement_demand;

/// Returns a machine with the given CPUs, some of them reserved for the system.
fn node(cpus: u32, reserved: &str) -> Node {
    let machine = machine(OsName::Linux, cpus, &[8 << 30]);
    let config = KubeletConfig {
        cpu_manager_policy: CpuManagerPolicy::Static,
        reserved_system_cpus: Some(reserved.to_owned()),
        ..KubeletConfig::default()
    };
    Configured::new(&machine, &config).unwrap().node
}

/// Returns a pod with the given number of exclusive CPUs.
fn pod(uid: &str, cpus: u32) -> Pod {
    let resources = serde_json::json!({"cpu": cpus.to_string(), "memory": "1Gi"});
    let pod = serde_json::json!({
        "metadata": {"uid": uid},
        "spec": {"containers": [
            {"name": "c", "resources": {"requests": resources, "limits": resources}},
        ]},
    });
    serde_json::from_value(pod).unwrap()
}

fn hand_out(ledger: &mut LedgerFile, pod: &Pod) -> CpuSet {
    let placement = ledger.plan(&placement_demand(pod)).unwrap();
    ledger.commit(placement).unwrap();
    ledger.affinities(pod)["c"].cpus.clone()
}

fn text(set: &CpuSet) -> String {
    set.to_string()
}

#[test]
fn assignments_survive_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let (mut ledger, found) = LedgerFile::open(directory.path(), node(4, "0")).unwrap();
    assert_eq!(found, []);
    assert_eq!(text(&hand_out(&mut ledger, &pod("a", 2))), "1-2");
    assert_eq!(text(&ledger.shared()), "0,3");
    drop(ledger);

    let (mut ledger, found) = LedgerFile::open(directory.path(), node(4, "0")).unwrap();
    assert_eq!(found, []);
    assert!(ledger.holds(&PodUid::new("a")));
    // No other pod gets them, and the pod gets the same CPUs again.
    assert_eq!(text(&hand_out(&mut ledger, &pod("b", 1))), "3");
    assert_eq!(text(&hand_out(&mut ledger, &pod("a", 2))), "1-2");
    assert!(ledger.plan(&placement_demand(&pod("c", 1))).is_err());
    assert!(ledger.release(&PodUid::new("a")).unwrap());
    assert!(!ledger.release(&PodUid::new("a")).unwrap());
    drop(ledger);

    let (ledger, _) = LedgerFile::open(directory.path(), node(4, "0")).unwrap();
    assert_eq!(text(&ledger.shared()), "0-2");
}

#[test]
fn plan_of_a_changed_ledger_is_stale() {
    let directory = tempfile::tempdir().unwrap();
    let (mut ledger, _) = LedgerFile::open(directory.path(), node(4, "0")).unwrap();
    hand_out(&mut ledger, &pod("a", 2));
    let planned = ledger.plan(&placement_demand(&pod("b", 1))).unwrap();
    ledger.release(&PodUid::new("a")).unwrap();
    assert!(matches!(ledger.commit(planned), Err(LedgerError::Stale)));
    assert!(!ledger.holds(&PodUid::new("b")));
    // Released CPUs return to the shared pool.
    assert_eq!(text(&hand_out(&mut ledger, &pod("b", 1))), "1");
    assert_eq!(text(&ledger.shared()), "0,2-3");
}

#[test]
fn running_pod_keeps_its_placement_before_it_is_admitted_again() {
    let directory = tempfile::tempdir().unwrap();
    let (mut ledger, _) = LedgerFile::open(directory.path(), node(4, "0")).unwrap();
    hand_out(&mut ledger, &pod("a", 2));
    let before = ledger.affinity(&PodUid::new("a"), "c");
    drop(ledger);
    let (ledger, _) = LedgerFile::open(directory.path(), node(4, "0")).unwrap();
    assert_eq!(ledger.affinity(&PodUid::new("a"), "c"), before);
    assert!(before.exclusive && text(&before.cpus) == "1-2");
    let shared = ledger.affinity(&PodUid::new("b"), "c");
    assert!(!shared.exclusive && text(&shared.cpus) == "0,3");
}

#[test]
fn foreign_changes_of_state_files_are_detected_and_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let (mut ledger, _) = LedgerFile::open(directory.path(), node(4, "0")).unwrap();
    hand_out(&mut ledger, &pod("a", 2));
    assert_eq!(ledger.altered(), [] as [PathBuf; 0]);
    let [cpu, memory] = FILES.map(|manager| directory.path().join(manager.file_name()));
    let text = fs::read_to_string(&cpu).unwrap();
    fs::write(&cpu, "{}").unwrap();
    fs::remove_file(&memory).unwrap();
    assert_eq!(ledger.altered(), [cpu.clone(), memory]);
    ledger.rewrite().unwrap();
    assert_eq!(ledger.altered(), [] as [PathBuf; 0]);
    assert_eq!(fs::read_to_string(&cpu).unwrap(), text);
}

#[test]
fn assignments_that_no_longer_fit_are_reported_and_backed_up() {
    let directory = tempfile::tempdir().unwrap();
    let (mut ledger, _) = LedgerFile::open(directory.path(), node(4, "0")).unwrap();
    hand_out(&mut ledger, &pod("a", 1));
    hand_out(&mut ledger, &pod("b", 1));
    drop(ledger);
    let before = fs::read_to_string(directory.path().join("cpu_manager_state")).unwrap();

    // CPU 1, which pod a has, is reserved for the system now.
    let (ledger, found) = LedgerFile::open(directory.path(), node(4, "0-1")).unwrap();
    let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert!(lines.iter().any(|line| line.contains("pod a, container c")), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("pod b")), "{lines:?}");
    assert!(!ledger.holds(&PodUid::new("a")) && ledger.holds(&PodUid::new("b")));
    let kept: Vec<&String> = found
        .iter()
        .filter_map(|found| match found {
            StateFileNotice::Kept(path) => Some(path),
            _ => None,
        })
        .collect();
    assert!(kept.iter().any(|path| fs::read_to_string(path).unwrap() == before), "{kept:?}");
}

/// KEP-4885: disabling the gate does not affect running pods, and the old file is not trusted after
/// re-enabling it.
#[test]
fn windows_affinity_ignores_a_stale_file_when_enabled_again() {
    let directory = tempfile::tempdir().unwrap();
    let open = |gate: bool| {
        let machine = machine(OsName::Windows, 4, &[8 << 30]);
        let written = format!(
            "{{apiVersion: kubelet.config.k8s.io/v1beta1, kind: KubeletConfiguration, \
             cpuManagerPolicy: static, reservedSystemCPUs: '0', \
             featureGates: {{WindowsCPUAndMemoryAffinity: {gate}}}}}"
        );
        let (config, _) = objects::kubelet_config::read(&written).unwrap();
        let node = Configured::new(&machine, &config).unwrap().node;
        let (ledger, found) = LedgerFile::open(directory.path(), node).unwrap();
        (ledger, found.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let named = |lines: &[String], word: &str| lines.iter().any(|line| line.contains(word));

    let (mut ledger, found) = open(true);
    assert_eq!(found, [""; 0]);
    let own = hand_out(&mut ledger, &pod("a", 1));
    assert_eq!(text(&own), "1");
    drop(ledger);

    // Disabled: running pods are not changed, and new pods get no affinity.
    let (mut ledger, found) = open(false);
    assert!(
        named(&found, "was \"static\" and is \"none\"") && named(&found, "backup-1"),
        "{found:?}"
    );
    let running = ledger.affinity(&PodUid::new("a"), "c");
    assert!(running.cpus.is_empty() && running.groups.is_empty(), "{running:?}");
    assert_eq!(text(&hand_out(&mut ledger, &pod("b", 2))), "");
    assert!(ledger.affinities(&pod("b", 2))["c"].groups.is_empty());
    drop(ledger);

    // Enabled again: the file was written without affinity. Running pods are placed when they are admitted
    // again, and no CPU is assigned twice.
    let (mut ledger, found) = open(true);
    assert!(named(&found, "was \"none\" and is \"static\""), "{found:?}");
    let places = [hand_out(&mut ledger, &pod("b", 2)), hand_out(&mut ledger, &pod("a", 1))];
    assert!(places.iter().all(|place| !place.is_empty()), "{places:?}");
    assert!(places[0].is_disjoint(&places[1]), "{places:?}");
    assert!(ledger.plan(&placement_demand(&pod("c", 1))).is_err());
}

#[test]
fn unusable_file_does_not_block_startup() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("cpu_manager_state"), "{\"policyName\":\"static\"").unwrap();
    let (mut ledger, found) = LedgerFile::open(directory.path(), node(4, "0")).unwrap();
    assert!(matches!(found.first(), Some(StateFileNotice::UnusableFile { .. })), "{found:?}");
    assert_eq!(text(&hand_out(&mut ledger, &pod("a", 1))), "1");
    let (_, found) = LedgerFile::open(directory.path(), node(4, "0")).unwrap();
    assert_eq!(found, []);
}

#[test]
fn memory_from_other_numa_nodes_is_a_warning_on_windows() {
    // The node with free CPUs has little memory.
    let warnings = |os| {
        let machine = machine(os, 4, &[1 << 30, 8 << 30]);
        let written = format!(
            "{{apiVersion: kubelet.config.k8s.io/v1beta1, kind: KubeletConfiguration, \
             cpuManagerPolicy: static, reservedSystemCPUs: '4-7', memoryManagerPolicy: {}, \
             reservedMemory: [{{numaNode: 0, limits: {{memory: 100Mi}}}}], \
             evictionHard: {{memory.available: 100Mi}}, \
             featureGates: {{WindowsCPUAndMemoryAffinity: true}}}}",
            if os == OsName::Windows { "BestEffort" } else { "Static" },
        );
        let (config, _) = objects::kubelet_config::read(&written).unwrap();
        let node = Configured::new(&machine, &config).unwrap().node;
        let directory = tempfile::tempdir().unwrap();
        let (ledger, _) = LedgerFile::open(directory.path(), node).unwrap();
        let mut large = pod("a", 2);
        let resources = &mut large.spec.containers[0].resources;
        for list in [&mut resources.requests, &mut resources.limits] {
            list.insert("memory".to_owned(), "4Gi".parse().unwrap());
        }
        let placement = ledger.plan(&placement_demand(&large)).unwrap().placement;
        assert_eq!(placement.containers[0].cpus.as_ref().map(text), Some("0-1".to_owned()));
        ledger.memory_warnings(&placement)
    };
    let (container, warning) = warnings(OsName::Windows).pop().unwrap();
    assert_eq!(container, "c");
    assert!(warning.starts_with("memory may come from other NUMA nodes than planned"), "{warning}");
    assert_eq!(warnings(OsName::Linux), []);
}

/// CPUs in use, as `(pod, container, CPUs)`.
type InUse<'a> = &'a [(&'a str, &'a str, &'a str)];

fn in_use(list: InUse<'_>) -> CpusInUse {
    let mut in_use = CpusInUse::new();
    for (pod, container, cpus) in list {
        let of_pod = in_use.entry(PodUid::new(pod)).or_default();
        of_pod.insert(ContainerName::new(container), CpuSet::parse(cpus).unwrap());
    }
    in_use
}

#[test]
fn cpus_are_recovered_from_the_runtime_without_a_usable_file() {
    for broken in [None, Some("{\"policyName\":\"static\""), Some("{}"), Some("")] {
        let directory = tempfile::tempdir().unwrap();
        let (mut ledger, _) = LedgerFile::open(directory.path(), node(8, "0")).unwrap();
        hand_out(&mut ledger, &pod("a", 2));
        hand_out(&mut ledger, &pod("b", 1));
        drop(ledger);
        let file = directory.path().join("cpu_manager_state");
        let before = fs::read_to_string(&file).unwrap();
        match broken {
            None => fs::remove_file(&file).unwrap(),
            Some(text) => fs::write(&file, text).unwrap(),
        }
        let (mut ledger, _) = LedgerFile::open(directory.path(), node(8, "0")).unwrap();
        assert!(ledger.lost_cpus(), "{broken:?}");
        let running = in_use(&[("a", "c", "1-2"), ("b", "c", "3"), ("s", "c", "0,4-7")]);
        let recovered = ledger.recover(&running).unwrap();
        assert_eq!(recovered, in_use(&[("a", "c", "1-2"), ("b", "c", "3")]), "{broken:?}");
        // The file has its earlier contents again.
        assert_eq!(fs::read_to_string(&file).unwrap(), before, "{broken:?}");
        ledger.confirm(&placement_demand(&pod("a", 2))).unwrap();
        assert_eq!(text(&hand_out(&mut ledger, &pod("a", 2))), "1-2");
    }
    let directory = tempfile::tempdir().unwrap();
    let (ledger, _) = LedgerFile::open(directory.path(), node(8, "0")).unwrap();
    drop(ledger);
    let (ledger, _) = LedgerFile::open(directory.path(), node(8, "0")).unwrap();
    assert!(!ledger.lost_cpus());
}

#[test]
fn only_exclusive_cpus_are_recovered() {
    let table: &[(&str, InUse<'_>, InUse<'_>)] = &[
        ("any CPU", &[("a", "c", "0-7")], &[]),
        ("a reserved CPU", &[("a", "c", "0-1")], &[]),
        ("a CPU that the machine does not have", &[("a", "c", "7-8")], &[]),
        ("two pods on one CPU", &[("a", "c", "1-2"), ("b", "c", "2-3")], &[]),
        (
            "two containers of one pod on one CPU",
            &[("a", "init", "1-2"), ("a", "c", "2"), ("b", "c", "3")],
            &[("a", "init", "1-2"), ("a", "c", "2"), ("b", "c", "3")],
        ),
        ("one pod of two", &[("a", "c", "1"), ("b", "c", "0,2-7")], &[("a", "c", "1")]),
    ];
    for (name, running, expected) in table {
        let directory = tempfile::tempdir().unwrap();
        let (mut ledger, _) = LedgerFile::open(directory.path(), node(8, "0")).unwrap();
        assert_eq!(ledger.recover(&in_use(running)).unwrap(), in_use(expected), "{name}");
        let exclusive = ledger.contents().cpu.exclusive(None);
        assert!(exclusive.is_disjoint(&ledger.shared()), "{name}");
        assert_eq!(exclusive.len() + ledger.shared().len(), 8, "{name}");
    }
}

#[test]
fn recovered_cpus_that_the_pod_does_not_request_are_released() {
    let directory = tempfile::tempdir().unwrap();
    let (mut ledger, _) = LedgerFile::open(directory.path(), node(8, "0")).unwrap();
    ledger.recover(&in_use(&[("a", "c", "1-2"), ("b", "c", "3-4")])).unwrap();
    ledger.confirm(&placement_demand(&pod("a", 1))).unwrap();
    assert_eq!(text(&ledger.shared()), "0-2,5-7");
    assert_eq!(ledger.affinity(&PodUid::new("b"), "c").cpus, CpuSet::range(3, 4));
    // Only the first confirmation compares; later changes of requests are ignored.
    ledger.confirm(&placement_demand(&pod("b", 2))).unwrap();
    ledger.confirm(&placement_demand(&pod("b", 1))).unwrap();
    assert!(ledger.holds(&PodUid::new("b")));
}

#[test]
fn kubelet_state_files_stay_unchanged_byte_for_byte() {
    let recorded = rig::golden_node::lines("node.jsonl.gz");
    let line = recorded.iter().find(|line| line["id"] == "state-files-policy-none").unwrap();
    let machine = machine(OsName::Linux, 2, &[8 << 30]);
    let node = Configured::new(&machine, &KubeletConfig::default()).unwrap().node;
    let directory = tempfile::tempdir().unwrap();
    for manager in FILES {
        let text = line["with_pods"][manager.file_name()].as_str().unwrap();
        fs::write(directory.path().join(manager.file_name()), text).unwrap();
    }
    let (mut ledger, found) = LedgerFile::open(directory.path(), node).unwrap();
    assert_eq!(found, []);
    hand_out(&mut ledger, &pod("a", 1));
    for manager in FILES {
        let text = fs::read_to_string(directory.path().join(manager.file_name())).unwrap();
        assert_eq!(text, line["with_pods"][manager.file_name()].as_str().unwrap());
    }
}

/// The kubelet lists every page size of the machine, and rejects a file without one of them.
#[test]
fn huge_page_sizes_without_pages_are_written() {
    let mut machine = machine(OsName::Linux, 4, &[8 << 30]);
    let mut parts = machine.topology.parts();
    let page_size = placement::ids::Bytes::mib(2);
    parts.nodes[0].huge_pages = vec![placement::topology::HugePages { page_size, count: 0 }];
    machine.topology = placement::Topology::new(parts).unwrap();
    let written = "{apiVersion: kubelet.config.k8s.io/v1beta1, kind: KubeletConfiguration, \
                   memoryManagerPolicy: Static, \
                   reservedMemory: [{numaNode: 0, limits: {memory: 100Mi}}], \
                   evictionHard: {memory.available: 100Mi}}";
    let (config, _) = objects::kubelet_config::read(written).unwrap();
    let node = Configured::new(&machine, &config).unwrap().node;
    let directory = tempfile::tempdir().unwrap();
    LedgerFile::open(directory.path(), node.clone()).unwrap();
    let file = directory.path().join("memory_manager_state");
    let text = fs::read_to_string(&file).unwrap();
    let table =
        r#""hugepages-2Mi":{"total":0,"systemReserved":0,"allocatable":0,"reserved":0,"free":0}"#;
    assert!(text.contains(table), "{text}");
    let (_, found) = LedgerFile::open(directory.path(), node).unwrap();
    assert_eq!(found, []);
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
}
