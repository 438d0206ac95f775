//! The parser of processor records on normal, old and hostile buffers.

use std::collections::BTreeMap;

use host::Anomaly;
use host::windows_topology::buffer::BufferWriter;
use host::windows_topology::{BufferError, Processors};
use placement::windows::{GroupAffinity, GroupId, groups_of};
use placement::{Bytes, CpuId, CpuSet, NumaId, SocketId, Topology};
use proptest::prelude::*;

fn set(text: &str) -> CpuSet {
    CpuSet::parse(text).unwrap()
}

fn mask(group: u64, mask: u64) -> GroupAffinity {
    GroupAffinity { group: GroupId::new(group).unwrap(), mask }
}

fn cpus(text: &str) -> Vec<GroupAffinity> {
    groups_of(&set(text))
}

/// Two groups of 36 processors, each with a node, a package and an L3, with SMT.
fn two_groups() -> BufferWriter {
    let mut buffer = BufferWriter::new();
    for group in 0..2 {
        let all = mask(group, (1 << 36) - 1);
        buffer.node(group as u32, &[all]).package(&[all]).cache(3, &[all]);
        for core in 0..18 {
            buffer.core(&[mask(group, 3 << (2 * core))]).cache(2, &[mask(group, 3 << (2 * core))]);
        }
    }
    buffer.groups(&[(1 << 36) - 1, (1 << 36) - 1]);
    buffer
}

fn observe(buffer: BufferWriter) -> (Topology, Vec<Anomaly>) {
    let memory = BTreeMap::from([(NumaId(0), Bytes::gib(1)), (NumaId(1), Bytes::gib(2))]);
    Processors::parse(&buffer.into_bytes(), None).unwrap().topology(&memory).unwrap()
}

fn refuse(bytes: &[u8]) -> BufferError {
    Processors::parse(bytes, None).unwrap_err()
}

#[test]
fn processors_of_a_second_group_are_numbered_from_64() {
    let (topology, anomalies) = observe(two_groups());
    assert_eq!(anomalies, []);
    assert_eq!(topology.all_cpus().to_string(), "0-35,64-99");
    assert_eq!(topology.cores().len(), 36);
    assert_eq!(topology.sockets().iter().map(|s| s.id.0).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(topology.caches()[1].cpus.to_string(), "64-99");
    let node = &topology.nodes()[1];
    assert_eq!((node.cpus.to_string().as_str(), node.memory), ("64-99", Bytes::gib(2)));
}

#[test]
fn a_node_may_span_groups() {
    let mut buffer = BufferWriter::new();
    for core in ["0-1", "2-3", "64-65", "66-67"] {
        buffer.core(&cpus(core));
    }
    buffer.package(&cpus("0-3,64-67")).node(0, &cpus("0-3,64-67")).cache(3, &cpus("0-3,64-67"));
    let (topology, anomalies) = observe(buffer);
    assert_eq!(anomalies, []);
    assert_eq!(topology.nodes()[0].cpus.to_string(), "0-3,64-67");
    assert_eq!(topology.caches().len(), 1);
}

#[test]
fn the_full_affinity_of_a_node_replaces_its_first_group() {
    let mut all = BufferWriter::new();
    all.core(&cpus("0")).core(&cpus("64")).package(&cpus("0,64")).node(0, &cpus("0"));
    let all = all.into_bytes();
    let partial = Processors::parse(&all, None).unwrap();
    assert_eq!(partial.nodes[&NumaId(0)], set("0"));
    // The result for full affinities may have either relationship.
    let mut plain = BufferWriter::new();
    plain.node(0, &cpus("0,64"));
    let mut extended = BufferWriter::new();
    extended.node_ex(0, &cpus("0,64"));
    for full in [plain, extended] {
        let full = Processors::parse(&all, Some(&full.into_bytes())).unwrap();
        assert_eq!(full.nodes[&NumaId(0)], set("0,64"));
    }
}

#[test]
fn a_group_count_of_zero_means_one() {
    let mut buffer = BufferWriter::new();
    buffer.core(&cpus("0-1")).package(&cpus("0-1")).uncounted_node(3, mask(0, 3));
    let (topology, _) = observe(buffer);
    assert_eq!(topology.nodes()[0].id, NumaId(3));
}

#[test]
fn a_node_without_processors_is_kept() {
    let mut buffer = BufferWriter::new();
    buffer.core(&cpus("0")).package(&cpus("0")).node(0, &cpus("0")).node(1, &[mask(0, 0)]);
    let (topology, _) = observe(buffer);
    assert_eq!(topology.nodes()[1].memory, Bytes::gib(2));
}

#[test]
fn missing_records_are_assumed_and_reported() {
    let mut buffer = BufferWriter::new();
    buffer.core(&cpus("0-1")).groups(&[7]);
    let (topology, anomalies) = observe(buffer);
    assert_eq!(topology.nodes()[0].memory, Bytes::gib(1));
    assert_eq!(
        anomalies,
        [
            Anomaly::ActiveWithoutCore { cpus: set("2") },
            Anomaly::NoPackage { cpus: set("0-1"), assumed: SocketId(1) },
            Anomaly::NoNumaNodes { assumed: NumaId(0) },
            Anomaly::NoCache { cpus: set("0-1") },
        ]
    );
}

#[test]
fn unknown_relationships_are_ignored() {
    let mut buffer = two_groups();
    buffer.other(5, &cpus("0-3")).other(7, &cpus("0-3")).other(4_000_000_000, &cpus("0-3"));
    assert_eq!(observe(buffer), observe(two_groups()));
}

#[test]
fn every_truncation_is_an_error_or_a_smaller_machine() {
    let bytes = two_groups().into_bytes();
    for length in 0..bytes.len() {
        if let Ok(processors) = Processors::parse(&bytes[..length], None) {
            processors.topology(&BTreeMap::new()).unwrap();
        }
    }
    let error = refuse(&bytes[..bytes.len() - 20]).to_string();
    let upstream = "remaining buffer too small while reading windows processor relationship";
    assert!(error.starts_with(upstream), "{error}");
}

#[test]
fn wrong_sizes_are_rejected() {
    let mut core = BufferWriter::new();
    core.core(&cpus("0"));
    let core = core.into_bytes();
    let with_size = |size: u32| {
        let mut bytes = core.clone();
        bytes[4..8].copy_from_slice(&size.to_le_bytes());
        bytes
    };
    for size in [0, 1, 7, 8, 31] {
        let error = refuse(&with_size(size));
        assert!(matches!(error, BufferError::TooSmall { .. }), "{size}: {error}");
    }
    for size in [32, 47] {
        let error = refuse(&with_size(size));
        assert!(matches!(error, BufferError::GroupsOverrun { .. }), "{size}: {error}");
    }
    for size in [49, 1 << 20, u32::MAX] {
        let error = refuse(&with_size(size));
        assert!(matches!(error, BufferError::Truncated { .. }), "{size}: {error}");
    }
    for count in [2u16, u16::MAX] {
        let mut bytes = core.clone();
        bytes[30..32].copy_from_slice(&count.to_le_bytes());
        assert!(matches!(refuse(&bytes), BufferError::GroupsOverrun { .. }));
    }
    assert_eq!(refuse(&[]), BufferError::NoCores);
}

#[test]
fn contradictory_records_are_rejected() {
    let check = |build: &dyn Fn(&mut BufferWriter) -> &mut BufferWriter, what: &str| {
        let mut buffer = BufferWriter::new();
        buffer.core(&cpus("0-1"));
        build(&mut buffer);
        let error = refuse(&buffer.into_bytes()).to_string();
        assert!(error.contains(what), "{error}");
    };
    check(&|b| b.core(&cpus("1-2")), "puts processors 1 into a second core");
    check(&|b| b.package(&cpus("0")).package(&cpus("0")), "a second package");
    check(&|b| b.node(0, &cpus("0")).node(1, &cpus("0-1")), "a second NUMA node");
    check(&|b| b.node(0, &cpus("0")).node(0, &cpus("1")), "NUMA node 0 a second time");
    let mut high = BufferWriter::new();
    high.core(&cpus("0"));
    let mut bytes = high.into_bytes();
    bytes[40..42].copy_from_slice(&1024u16.to_le_bytes());
    assert!(matches!(refuse(&bytes), BufferError::Group { .. }));
}

#[test]
fn a_core_that_spans_nodes_is_split() {
    let mut buffer = BufferWriter::new();
    buffer.core(&cpus("0-1")).package(&cpus("0-1")).node(0, &cpus("0")).node(1, &cpus("1"));
    buffer.cache(3, &cpus("0-1"));
    let (topology, anomalies) = observe(buffer);
    assert_eq!(topology.cores().len(), 2);
    assert!(matches!(anomalies[..], [Anomaly::CoreSplit { .. }]), "{anomalies:?}");
}

/// Generates a partition of CPUs into cores, and of the cores into packages and nodes.
fn machine() -> impl Strategy<Value = (Vec<CpuSet>, Vec<usize>, Vec<usize>)> {
    (1usize..20).prop_flat_map(|cores| {
        let sets = prop::collection::vec(1u32..4, cores).prop_map(|sizes| {
            let mut next = 0;
            let mut core = |size: u32| {
                // Groups of 40 leave gaps; a core never crosses into the next group.
                if next % 64 + size > 40 {
                    next = (next / 64 + 1) * 64;
                }
                next += size;
                CpuSet::range(next - size, next - 1)
            };
            sizes.into_iter().map(&mut core).collect::<Vec<_>>()
        });
        let labels = || prop::collection::vec(0usize..4, cores);
        (sets, labels(), labels())
    })
}

fn labelled(cores: &[CpuSet], labels: &[usize], label: usize) -> CpuSet {
    let of_label = cores.iter().zip(labels).filter(|(_, l)| **l == label);
    of_label.fold(CpuSet::new(), |all, (core, _)| &all | core)
}

proptest! {
    #[test]
    fn written_buffers_are_parsed_back((cores, packages, nodes) in machine()) {
        let mut buffer = BufferWriter::new();
        for core in &cores {
            buffer.core(&groups_of(core));
        }
        for label in 0..4 {
            let package = labelled(&cores, &packages, label);
            if !package.is_empty() {
                buffer.package(&groups_of(&package));
            }
            let node = labelled(&cores, &nodes, label);
            if !node.is_empty() {
                buffer.node_ex(label as u32, &groups_of(&node));
            }
        }
        let processors = Processors::parse(&buffer.into_bytes(), None).unwrap();
        prop_assert_eq!(&processors.cores, &cores);
        let (topology, _) = processors.topology(&BTreeMap::new()).unwrap();
        for (core, label) in cores.iter().zip(&nodes) {
            let first: CpuId = core.first().unwrap();
            prop_assert_eq!(topology.cpu(first).unwrap().numa, NumaId(*label as u32));
            prop_assert_eq!(&topology.whole_cores(&CpuSet::from_iter([first])), core);
        }
    }

    #[test]
    fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Processors::parse(&bytes, Some(&bytes));
    }

    #[test]
    fn no_damaged_buffer_makes_the_parser_panic(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = two_groups().into_bytes();
        for (index, byte) in damage {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(processors) = Processors::parse(&bytes, Some(&bytes)) {
            let _ = processors.topology(&BTreeMap::new());
        }
    }
}
