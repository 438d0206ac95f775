//! Machines as a line of words.

use objects::pod::OsName;
use placement::Bytes;
use placement::Machine;
use planner::machine::shape::parse;
use proptest::prelude::*;

fn machine(text: &str) -> Machine {
    parse(text).unwrap_or_else(|error| unreachable!("{text}: {error}"))
}

/// Sockets, nodes, cores, CPUs.
fn counts(machine: &Machine) -> [usize; 4] {
    let t = &machine.topology;
    [t.sockets().len(), t.nodes().len(), t.cores().len(), t.cpus().len()]
}

#[test]
fn all_spellings_give_the_same_machine() {
    let long = machine("2 sockets x 2 numa x 8 cores x 2 threads");
    assert_eq!(counts(&long), [2, 4, 32, 64]);
    for short in [
        "2s 2n 8c 2t",
        "2s2n8c2t",
        "2x2x8x2",
        "2×2×8×2",
        "2 Sockets, 2 NUMA nodes, 8 Cores, 2 Threads",
        "8 cores x 2 threads x 2 sockets x 2 nodes",
        "2s*2n*8c*2t",
    ] {
        // "2 NUMA nodes" has two words for one count.
        let text = short.replace("NUMA nodes", "NUMA");
        assert_eq!(machine(&text), long, "{text}");
    }
}

#[test]
fn missing_counts_default_to_one() {
    assert_eq!(counts(&machine("4 cores")), [1, 1, 4, 4]);
    assert_eq!(counts(&machine("2 sockets x 4 cores")), [2, 2, 8, 8]);
}

#[test]
fn options_apply_to_each_node() {
    let m = machine(
        "2s 2n 8c 2t l3=4 mem=64Gi hugepages-1Gi=4 hugepages-2Mi=512 distances=10,12,21 name=big",
    );
    let t = &m.topology;
    assert_eq!((m.name.as_str(), t.caches().len()), ("big", 16));
    assert_eq!(t.caches()[1].cpus.to_string(), "2-3,34-35");
    let node = &t.nodes()[3];
    assert_eq!(node.memory, Bytes::gib(64));
    let pages: Vec<_> = node.huge_pages.iter().map(|p| (p.page_size, p.count)).collect();
    assert_eq!(pages, [(Bytes::mib(2), 512), (Bytes::gib(1), 4)]);
    assert_eq!(t.distances().unwrap()[0], [10, 12, 21, 21]);
}

#[test]
fn numberings_differ_in_where_siblings_are() {
    let siblings = |text: &str| {
        let m = machine(text);
        m.topology.cores().iter().map(|c| c.cpus.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(siblings("2c 2t"), ["0,2", "1,3"]);
    assert_eq!(siblings("2c 2t numbering=adjacent"), ["0-1", "2-3"]);
    assert_eq!(siblings("2c 2t os=windows"), ["0-1", "2-3"]);
}

#[test]
fn windows_groups_are_filled_with_whole_nodes() {
    let nodes = |text: &str| {
        let m = machine(text);
        assert_eq!(m.os, OsName::Windows);
        m.topology.nodes().iter().map(|n| n.cpus.to_string()).collect::<Vec<_>>()
    };
    // Two nodes fit into a group, or do not, or need more than one group.
    assert_eq!(nodes("2s 8c 2t os=windows"), ["0-15", "16-31"]);
    assert_eq!(nodes("2s 18c 2t os=windows"), ["0-35", "64-99"]);
    assert_eq!(nodes("2s 40c 2t os=windows"), ["0-39,64-103", "128-167,192-231"]);
    assert_eq!(nodes("3s 12c 2t os=windows"), ["0-23", "24-47", "64-87"]);
}

#[test]
fn offline_cpus_leave_their_core_to_its_other_threads() {
    let m = machine("2c 2t offline=0,3");
    let cores: Vec<_> = m.topology.cores().iter().map(|c| (c.id.0, c.cpus.len())).collect();
    assert_eq!(cores, [(1, 1), (2, 1)]);
}

#[test]
fn nodes_of_memory_alone_come_last() {
    let m = machine("2s 4c mem=1Gi memory-nodes=3 distances=10,40");
    assert_eq!(m.topology.nodes().len(), 5);
    assert!(m.topology.nodes()[4].cpus.is_empty());
}

#[test]
fn errors_name_the_wrong_word() {
    let check = |text: &str, part: &str| {
        // The debug text of a machine would bury the message.
        let error = parse(text).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(part), "{text}: {error}");
    };
    check("2 sokets x 4 cores", "\"sokets\" is not a part");
    check("2 sokets x 4 cores", "2 sockets x 2 numa");
    check("sockets x 4 cores", "\"sockets\" has no number");
    check("2 x 4 cores", "\"2\" is not followed by what it counts");
    check("4 cores 2", "\"2\" is not followed");
    check("2 sockets", "the number of cores is missing");
    check("2 cores 4 cores", "cores is given twice");
    check("2x8", "four numbers");
    check("0 cores", "\"0\" is not a valid count");
    check("1000000000 cores", "\"1000000000\" is not a valid count");
    check("99999999999999999999 cores", "is not a valid count");
    check("60000s 60000c 60000t", "more than the 65536 supported");
    check("65s 1c", "65 NUMA nodes are more than the 64");
    check("8c l3=3", "8 cores of a NUMA node cannot be shared out evenly to l3=3");
    check("8c l3=0", "at least 1");
    check("8c mem=lots", "mem=\"lots\" cannot be");
    check("8c ram=1Gi", "\"ram\" is not a valid option; use l3=");
    check("8c distances=10", "local,remote like 10,21");
    check("8c os=plan9", "linux or windows");
    check("8c numbering=odd", "linux, adjacent or windows");
    check("8c offline=9", "offline=9 names CPUs the machine does not have; it has 0-7");
    check("8c offline=x", "not a CPU list");
    check("8c offline=0-7", "at least one CPU");
    check("8c hugepages-0=1", "a size like 2Mi or 1Gi");
    check("1c 65t os=windows", "does not fit into a processor group");
    // Few enough CPUs, but groups of 62 leave holes in the numbering.
    check("64s 33c 31t os=windows", "more than the 65536 supported");
}

proptest! {
    #[test]
    fn valid_counts_give_that_machine(
        s in 1u32..5, n in 1u32..5, c in 1u32..70, t in 1u32..5,
        numbering in prop::sample::select(vec!["linux", "adjacent", "windows"]),
    ) {
        let m = machine(&format!("{s}x{n}x{c}x{t} numbering={numbering}"));
        let all = (s * n * c * t) as usize;
        prop_assert_eq!(counts(&m), [s as usize, (s * n) as usize, (s * n * c) as usize, all]);
        prop_assert!(m.topology.cores().iter().all(|core| core.cpus.len() == t as usize));
    }

    #[test]
    fn no_words_panic(text in "[0-9sncxt =,a-z-]{0,40}|.{0,60}") {
        let _ = parse(&text);
    }
}
