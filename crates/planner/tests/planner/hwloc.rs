//! hwloc's XML, versions 1 and 2, and texts that resemble it.

use objects::pod::OsName;
use placement::Bytes;
use planner::machine::hwloc::{HwlocError, parse};
use proptest::prelude::*;

const VERSION_2: &str = include_str!("../data/hwloc-v2.xml");
const VERSION_1: &str = include_str!("../data/hwloc-v1.xml");
const MEMORY_ONLY: &str = include_str!("../data/hwloc-v2-memory-only.xml");

#[test]
fn both_versions_of_one_machine_agree() {
    let machine = parse(VERSION_2).unwrap();
    let t = &machine.topology;
    assert_eq!(machine.os, OsName::Linux);
    assert_eq!(t.all_cpus().to_string(), "0-7");
    let cores: Vec<_> = t.cores().iter().map(|c| c.cpus.to_string()).collect();
    assert_eq!(cores, ["0,4", "1,5", "2,6", "3,7"]);
    let nodes: Vec<_> = t.nodes().iter().map(|n| (n.id.0, n.cpus.to_string(), n.memory)).collect();
    assert_eq!(nodes, [(0, "0-1,4-5".into(), Bytes::gib(4)), (1, "2-3,6-7".into(), Bytes::gib(4))]);
    // Sizes without pages are kept: the kubelet's state file lists them.
    let counts: Vec<_> = t.nodes()[0].huge_pages.iter().map(|pages| pages.count).collect();
    assert_eq!(counts, [0, 3]);
    assert_eq!(t.distances().unwrap(), [[10, 21], [21, 10]]);
    assert_eq!((t.sockets().len(), t.caches().len()), (2, 2));
    assert_eq!(parse(VERSION_1).unwrap(), machine);
    assert_eq!(planner::machine::parse(VERSION_1).unwrap(), machine);
}

#[test]
fn memory_only_node_has_no_cpus() {
    let machine = parse(MEMORY_ONLY).unwrap();
    let nodes: Vec<_> =
        machine.topology.nodes().iter().map(|n| (n.id.0, n.cpus.to_string())).collect();
    assert_eq!(nodes, [(0, "0-1".into()), (1, "2-3".into()), (2, String::new())]);
    // The bandwidth table of the file is not a distance table.
    assert_eq!(machine.topology.distances(), None);
}

#[test]
fn errors_name_the_line() {
    let check = |text: &str, part: &str| {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    };
    let topology = |inside: &str| format!("<topology>\n{inside}</topology>");
    check("<svg/>", "hwloc writes \"topology\"");
    check("<topology>", "");
    check(&topology(""), "no processing unit");
    check(&topology("<object type=\"PU\"/>"), "line 2: PU has no os_index");
    check(
        &topology("<object type=\"PU\" os_index=\"x\"/>"),
        "os_index=\"x\"; it should be a number",
    );
    check(&topology("<object type=\"PU\" os_index=\"70000\"/>"), "up to 65535");
    check(
        &topology("<object type=\"NUMANode\" os_index=\"0\" cpuset=\"0xzz\"/>"),
        "it should be a bit map",
    );
    check(
        &topology("<object type=\"NUMANode\" os_index=\"0\" cpuset=\"0xf...f\"/>"),
        "it should be a bit map",
    );
    let nodes = "<object type=\"NUMANode\" os_index=\"1\"/>".repeat(65);
    check(&topology(&nodes), "65 NUMA nodes");
    let deep = format!("{}{}", "<object>".repeat(500), "</object>".repeat(500));
    check(&topology(&deep), "nested more than 200 deep");
}

#[test]
fn entities_are_not_expanded() {
    let bomb = "<!DOCTYPE topology [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;&a;\">]>\
                <topology>&b;</topology>";
    assert!(matches!(parse(bomb), Err(HwlocError::Definitions)));
}

#[test]
fn windows_is_detected_by_the_os_name() {
    let text = "<topology><object type=\"Machine\"><info name=\"OSName\" value=\"Windows NT\"/>\
                <object type=\"PU\" os_index=\"0\"/></object></topology>";
    assert_eq!(parse(text).unwrap().os, OsName::Windows);
}

proptest! {
    #[test]
    fn no_text_panics(text in ".{0,100}") {
        let _ = parse(&text);
        let _ = parse(&format!("<topology>{text}</topology>"));
    }

    #[test]
    fn damaged_files_do_not_panic(
        at in any::<prop::sample::Index>(), length in 0usize..40, put in "[ -~]{0,12}",
    ) {
        let mut text = VERSION_2.to_owned();
        let start = at.index(text.len() - 40);
        text.replace_range(start..start + length, &put);
        let _ = parse(&text);
    }
}
