//! Linux discovery on artificial trees: normal, irregular and hostile ones.

use host::sysfs::{ObserveError, observe};
use host::tree::Directory;
use host::{Anomaly, Capture, capture};
use placement::{Bytes, CacheId, CoreId, CpuId, CpuSet, NumaId, SocketId};
use proptest::prelude::*;

use crate::fake::{CPU, Fake, NODE};

fn set(text: &str) -> CpuSet {
    CpuSet::parse(text).unwrap()
}

#[test]
fn a_two_socket_smt_machine_is_read_without_anomalies() {
    let (topology, anomalies) = Fake::new(2, 2, 4, 2).observe();
    assert_eq!(anomalies, []);
    assert_eq!(topology.all_cpus().to_string(), "0-31");
    let shape = (topology.cores().len(), topology.sockets().len(), topology.caches().len());
    assert_eq!(shape, (16, 2, 4));
    assert_eq!(topology.cores()[5].cpus, set("5,21"));
    let node = &topology.nodes()[3];
    assert_eq!((node.cpus.to_string().as_str(), node.memory), ("12-15,28-31", Bytes::gib(16)));
    let pages: Vec<_> = node.huge_pages.iter().map(|p| (p.page_size, p.count)).collect();
    // A size without pages is listed too.
    assert_eq!(pages, [(Bytes::mib(2), 0), (Bytes::gib(1), 2)]);
    assert_eq!(topology.distances().unwrap()[1], [12, 10, 21, 21]);
}

#[test]
fn a_core_is_named_after_its_lowest_online_cpu() {
    let mut fake = Fake::new(1, 1, 4, 2);
    fake.offline(1);
    fake.offline(6);
    let (topology, anomalies) = fake.observe();
    assert_eq!(anomalies, []);
    assert_eq!(topology.all_cpus().to_string(), "0,2-5,7");
    assert_eq!(topology.cpu(CpuId(5)).unwrap().core, CoreId(5));
    let siblings: Vec<_> = topology.cores().iter().map(|c| c.cpus.to_string()).collect();
    assert_eq!(siblings, ["0,4", "2", "3,7", "5"]);
}

#[test]
fn hybrid_cores_keep_their_siblings_and_caches() {
    // Two cores with two threads and an L3, and four without threads that share an L2.
    let mut fake = Fake::new(1, 1, 6, 1);
    for cpu in 0..6 {
        let (siblings, level, id, sharers) = match cpu {
            0 | 1 => ("0-1", 3, 0, "0-3"),
            2 | 3 => ("2-3", 3, 0, "0-3"),
            4 => ("4", 2, 0, "4-5"),
            _ => ("5", 2, 0, "4-5"),
        };
        fake.set(format!("{CPU}/cpu{cpu}/topology/core_cpus_list"), siblings);
        fake.remove(&format!("{CPU}/cpu{cpu}/cache"));
        let cache = format!("{CPU}/cpu{cpu}/cache/index2");
        fake.set(format!("{cache}/level"), level);
        fake.set(format!("{cache}/type"), "Unified");
        fake.set(format!("{cache}/id"), id);
        fake.set(format!("{cache}/shared_cpu_list"), sharers);
    }
    let (topology, anomalies) = fake.observe();
    let cores: Vec<_> = topology.cores().iter().map(|c| c.cpus.to_string()).collect();
    assert_eq!(cores, ["0-1", "2-3", "4", "5"]);
    let caches: Vec<_> = topology.caches().iter().map(|c| (c.id.0, c.cpus.to_string())).collect();
    assert_eq!(caches, [(0, "0-3".into()), (4, "4-5".into())]);
    let taken = Anomaly::CacheIdTaken { id: CacheId(0), cpus: set("4-5"), given: CacheId(4) };
    assert_eq!(anomalies, [taken]);
}

#[test]
fn nodes_without_cpus_and_nodes_without_memory_are_kept() {
    let mut fake = Fake::new(1, 2, 2, 1);
    fake.set(format!("{NODE}/online"), "0-1,5");
    fake.set(format!("{NODE}/node5/cpulist"), "");
    fake.set(format!("{NODE}/node5/meminfo"), "Node 5 MemTotal: 1048576 kB");
    fake.set(format!("{NODE}/node1/meminfo"), "Node 1 MemTotal: 0 kB");
    for (node, row) in [(0, "10 12 80"), (1, "12 10 80"), (5, "80 80 10")] {
        fake.set(format!("{NODE}/node{node}/distance"), row);
    }
    let (topology, anomalies) = fake.observe();
    assert_eq!(anomalies, []);
    let nodes: Vec<_> = topology.nodes().iter().map(|n| (n.id.0, n.cpus.len(), n.memory)).collect();
    assert_eq!(nodes, [(0, 2, Bytes::gib(16)), (1, 2, Bytes::ZERO), (5, 0, Bytes::gib(1))]);
    assert_eq!(topology.distances().unwrap()[2], [80, 80, 10]);
}

#[test]
fn a_kernel_without_numa_has_one_node_with_all_memory() {
    let mut fake = Fake::new(1, 1, 2, 1);
    fake.remove(NODE);
    fake.set("proc/meminfo", "MemTotal: 2097152 kB\nMemFree: 5 kB");
    fake.set("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", 7);
    let (topology, anomalies) = fake.observe();
    assert_eq!(anomalies, [Anomaly::NoNumaNodes { assumed: NumaId(0) }]);
    let node = &topology.nodes()[0];
    assert_eq!((node.memory, node.huge_pages[0].count), (Bytes::gib(2), 7));
    fake.remove("proc/meminfo");
    let (topology, anomalies) = fake.observe();
    assert_eq!(topology.nodes()[0].memory, Bytes::ZERO);
    assert!(matches!(anomalies[1], Anomaly::NoMemory { .. }), "{anomalies:?}");
}

#[test]
fn missing_packages_and_caches_fall_back_to_the_socket() {
    let mut fake = Fake::new(1, 1, 4, 1);
    fake.remove("/cache/");
    for cpu in 0..4 {
        fake.set(format!("{CPU}/cpu{cpu}/topology/physical_package_id"), -1);
    }
    let (topology, anomalies) = fake.observe();
    assert_eq!(topology.sockets()[0].id, SocketId(0));
    assert_eq!(topology.caches().len(), 1);
    let expected = [
        Anomaly::NoPackage { cpus: set("0-3"), assumed: SocketId(0) },
        Anomaly::NoCache { cpus: set("0-3") },
    ];
    assert_eq!(anomalies, expected);
}

#[test]
fn a_private_l2_does_not_count_as_uncore_cache() {
    let mut fake = Fake::new(2, 1, 2, 2);
    fake.remove("/index3/");
    let (topology, anomalies) = fake.observe();
    let caches: Vec<_> = topology.caches().iter().map(|c| (c.id.0, c.cpus.to_string())).collect();
    assert_eq!(caches, [(0, "0-1,4-5".into()), (1, "2-3,6-7".into())]);
    assert_eq!(anomalies, [Anomaly::NoCache { cpus: set("0-7") }]);
}

#[test]
fn caches_without_an_id_get_their_lowest_cpu() {
    let mut fake = Fake::new(2, 1, 4, 1);
    fake.remove("/index3/id");
    let (topology, anomalies) = fake.observe();
    assert_eq!(anomalies, []);
    assert_eq!(topology.caches().iter().map(|c| c.id.0).collect::<Vec<_>>(), [0, 4]);
}

#[test]
fn core_ids_replace_missing_sibling_lists() {
    let mut fake = Fake::new(2, 1, 2, 2);
    fake.remove("core_cpus_list");
    let (topology, anomalies) = fake.observe();
    assert_eq!((topology.cores().len(), anomalies), (4, vec![]));
    fake.remove("thread_siblings_list");
    let (topology, anomalies) = fake.observe();
    assert_eq!(topology.cores().len(), 4);
    assert_eq!(anomalies, [Anomaly::NoSiblingList { cpus: set("0-7") }]);
    fake.remove("core_id");
    let (topology, anomalies) = fake.observe();
    assert_eq!(topology.cores().len(), 8);
    assert_eq!(anomalies, [Anomaly::NoCore { cpus: set("0-7") }]);
}

#[test]
fn contradictions_are_resolved_and_reported() {
    let mut fake = Fake::new(2, 1, 2, 1);
    // CPUs 0 and 1 disagree; 2 and 3 agree to be one core but are in different nodes and packages.
    fake.set(format!("{CPU}/cpu0/topology/core_cpus_list"), "0-1");
    fake.set(format!("{CPU}/cpu2/topology/core_cpus_list"), "2-3");
    fake.set(format!("{CPU}/cpu3/topology/core_cpus_list"), "2-3");
    fake.set(format!("{CPU}/cpu3/topology/physical_package_id"), 0);
    fake.set(format!("{NODE}/node0/cpulist"), "0-1,3");
    let (topology, anomalies) = fake.observe();
    assert_eq!(topology.cores().len(), 4);
    assert_eq!(
        anomalies,
        [
            Anomaly::InTwoNodes { cpu: CpuId(3), first: NumaId(0), second: NumaId(1) },
            Anomaly::SiblingsDisagree { cpus: set("0"), others: set("1") },
            Anomaly::CoreSplit { core: CoreId(2), cpus: set("2-3") },
        ]
    );
}

#[test]
fn garbage_in_one_file_affects_only_that_file() {
    let mut fake = Fake::new(1, 2, 2, 1);
    fake.set(format!("{NODE}/node1/distance"), "ten");
    fake.set(format!("{NODE}/node0/meminfo"), "much");
    fake.set(format!("{CPU}/cpu1/cache/index3/shared_cpu_list"), "0-99999999999");
    let (topology, anomalies) = fake.observe();
    assert_eq!(topology.cpus().len(), 4);
    assert_eq!(topology.distances(), None);
    let texts: Vec<_> = anomalies.iter().map(ToString::to_string).collect();
    assert_eq!(texts.len(), 6, "{texts:#?}");
    assert!(texts[0].contains("node0/meminfo contains \"much\""), "{texts:#?}");
}

#[test]
fn trees_without_a_machine_are_rejected() {
    let check =
        |files: &[(&str, &str)]| observe(&Capture::from_files(files.iter().copied())).unwrap_err();
    assert!(matches!(check(&[]), ObserveError::NotSysfs));
    let online = "sys/devices/system/cpu/online";
    assert!(matches!(check(&[(online, "0-65535")]), ObserveError::TooManyCpus { found: 65536 }));
    let nodes = "sys/devices/system/node/online";
    assert!(matches!(check(&[(online, "0"), (nodes, "0-99")]), ObserveError::Topology(_)));
    let all_off = [(online, "0"), ("sys/devices/system/cpu/cpu0/online", "0")];
    assert!(matches!(check(&all_off), ObserveError::Topology(_)));
}

#[test]
fn a_missing_online_list_is_replaced_by_the_directories() {
    let mut fake = Fake::new(1, 1, 4, 1);
    fake.offline(2);
    fake.files.remove(&format!("{CPU}/online"));
    let (topology, anomalies) = fake.observe();
    assert_eq!(topology.all_cpus().to_string(), "0-1,3");
    assert_eq!(anomalies.len(), 2);
}

#[test]
fn a_directory_and_its_capture_describe_the_same_machine() {
    let fake = Fake::new(2, 2, 3, 2);
    let root = tempfile::tempdir().unwrap();
    for (path, text) in &fake.files {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let directory =
        Directory { sys: root.path().join("sys"), proc: Some(root.path().join("proc")) };
    let captured = capture::capture(&directory);
    let read_back = Capture::parse(&captured.render()).unwrap();
    assert_eq!(read_back, captured);
    assert_eq!(observe(&directory).unwrap(), observe(&read_back).unwrap());
    assert_eq!(observe(&read_back).unwrap(), fake.observe());
    // A capture of a capture equals it.
    assert_eq!(capture::capture(&read_back), read_back);
}

fn hostile_text() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        Just("0-8191".to_owned()),
        Just("-1".to_owned()),
        Just("18446744073709551615".to_owned()),
        "[0-9,-]{0,12}",
        "(Node 0 )?MemTotal: [0-9]{0,22} kB",
        "[ -~]{0,20}",
        ".{0,10}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_change_of_files_yields_a_machine_or_error(
        changes in prop::collection::vec((any::<prop::sample::Index>(), hostile_text()), 1..12),
        removals in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let mut fake = Fake::new(2, 1, 2, 2);
        let paths: Vec<String> = fake.files.keys().cloned().collect();
        for (index, text) in changes {
            fake.files.insert(index.get(&paths).clone(), text);
        }
        for index in removals {
            fake.files.remove(index.get(&paths));
        }
        if let Ok((topology, _)) = observe(&fake.capture()) {
            prop_assert!(!topology.cpus().is_empty());
            // In every case each core is named after its lowest CPU.
            for core in topology.cores() {
                prop_assert_eq!(core.cpus.first().map(|c| c.0), Some(core.id.0));
            }
        }
    }

    #[test]
    fn no_text_makes_the_capture_parser_panic(text in ".{0,200}") {
        let _ = Capture::parse(&text);
    }
}
