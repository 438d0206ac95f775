//! The captures in `tests/data`: one of a real machine, the others of artificial ones.

use host::sysfs::observe;
use host::{Anomaly, Capture};

use crate::fake::{CPU, Fake, NODE};

/// The captures: name, text, and the artificial machine from which it was written, if any.
fn shipped() -> Vec<(&'static str, &'static str, Option<Fake>)> {
    vec![
        ("vm-2-cpus", include_str!("../data/vm-2-cpus.json"), None),
        ("smt-offline", include_str!("../data/smt-offline.json"), Some(smt_offline())),
        ("memory-only", include_str!("../data/memory-only.json"), Some(memory_only())),
        ("arm-no-numa", include_str!("../data/arm-no-numa.json"), Some(arm_no_numa())),
    ]
}

fn smt_offline() -> Fake {
    let mut fake = Fake::new(2, 1, 4, 2);
    fake.offline(3);
    fake.offline(9);
    fake
}

/// Two nodes with CPUs and two with accelerator memory, with a gap in the numbering.
fn memory_only() -> Fake {
    let mut fake = Fake::new(2, 1, 4, 1);
    fake.set(format!("{NODE}/online"), "0-1,4-5");
    for node in [4, 5] {
        fake.set(format!("{NODE}/node{node}/cpulist"), "");
        fake.set(format!("{NODE}/node{node}/meminfo"), "Node 4 MemTotal: 100663296 kB");
    }
    let rows = [(0, "10 40 80 80"), (1, "40 10 80 80"), (4, "80 80 10 120"), (5, "80 80 120 10")];
    for (node, row) in rows {
        fake.set(format!("{NODE}/node{node}/distance"), row);
    }
    fake
}

/// A small board: no NUMA, no package ids, no L3.
fn arm_no_numa() -> Fake {
    let mut fake = Fake::new(1, 1, 4, 1);
    fake.remove(NODE);
    fake.remove("/index3/");
    fake.set("proc/meminfo", "MemTotal: 8388608 kB");
    for cpu in 0..4 {
        fake.set(format!("{CPU}/cpu{cpu}/topology/physical_package_id"), -1);
    }
    fake
}

#[test]
fn captures_equal_their_artificial_machines() {
    for (name, text, fake) in shipped() {
        let Some(fake) = fake else { continue };
        let written = host::capture::capture(&fake.capture()).render();
        if std::env::var_os("BERTH_BLESS").is_some() {
            let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
            std::fs::write(directory.join(format!("{name}.json")), &written).unwrap();
        } else {
            // A checkout may have changed the line ends.
            assert_eq!(text.replace('\r', ""), written, "{name}: set BERTH_BLESS=1 to rewrite");
        }
    }
}

#[test]
fn every_capture_describes_a_machine() {
    let facts: Vec<_> = shipped()
        .into_iter()
        .map(|(name, text, _)| {
            let (topology, anomalies) = observe(&Capture::parse(text).unwrap()).unwrap();
            let cpus = topology.all_cpus().to_string();
            (name, cpus, topology.cores().len(), topology.nodes().len(), anomalies.len())
        })
        .collect();
    let expected = [
        ("vm-2-cpus", "0-1", 2, 1, 0),
        ("smt-offline", "0-2,4-8,10-15", 8, 2, 0),
        ("memory-only", "0-7", 8, 4, 0),
        ("arm-no-numa", "0-3", 4, 1, 3),
    ];
    let expected: Vec<_> =
        expected.into_iter().map(|(n, c, k, m, a)| (n, c.to_owned(), k, m, a)).collect();
    assert_eq!(facts, expected);
}

#[test]
fn captures_contain_only_topology() {
    for (name, text, _) in shipped() {
        for path in Capture::parse(text).unwrap().files().keys() {
            let known = ["sys/devices/system/cpu/", "sys/devices/system/node/", "sys/kernel/mm/"];
            let fine = known.iter().any(|k| path.starts_with(k)) || path == "proc/meminfo";
            assert!(fine, "{name}: {path}");
        }
    }
}

#[test]
fn anomalies_of_a_board_are_rendered() {
    let text = include_str!("../data/arm-no-numa.json");
    let (_, anomalies) = observe(&Capture::parse(text).unwrap()).unwrap();
    let texts: Vec<_> = anomalies.iter().map(Anomaly::to_string).collect();
    assert_eq!(
        texts,
        [
            "CPUs 0-3 name no package; socket 0 was assumed",
            "the machine does not report NUMA nodes; everything was put into node 0",
            "CPUs 0-3 name no shared cache; each socket was taken for one",
        ]
    );
}
