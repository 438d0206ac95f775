//! Our own machine file.

use objects::pod::OsName;
use placement::machine::file::{parse, render_compact, render_json, render_yaml};
use placement::machine::name_of;
use placement::topology::{Cpu, HugePages, NodeMemory, Parts};
use placement::{Bytes, CacheId, CoreId, CpuId, Machine, NumaId, SocketId, Topology};
use proptest::prelude::*;

fn with(fields: &str) -> String {
    format!(r#"{{"apiVersion": "berth.dev/v1alpha1", "kind": "Machine", {fields}}}"#)
}

#[test]
fn cpu_lists_group_cpus() {
    let machine = parse(&with(
        r#""metadata": {"name": "small"}, "os": "windows", "cores": ["0,2", "1,3"],
           "sockets": [{"id": 1, "cpus": "0-3"}],
           "nodes": [{"id": 0, "cpus": "0,2", "memory": "16Gi"},
                     {"id": 1, "cpus": "1,3", "memory": 1024,
                      "hugePages": [{"pageSize": "1Gi", "count": 2}]},
                     {"id": 9, "memory": "1Ti"}],
           "uncoreCaches": [{"id": 7, "cpus": "0-3"}],
           "distances": [[10, 20, 30], [20, 10, 30], [30, 30, 10]]"#,
    ))
    .unwrap();
    let t = &machine.topology;
    assert_eq!((machine.name.as_str(), machine.os), ("small", OsName::Windows));
    assert_eq!(t.cores()[1].cpus.to_string(), "1,3");
    assert_eq!((t.sockets()[0].id.0, t.caches()[0].id.0), (1, 7));
    let memory: Vec<_> = t.nodes().iter().map(|n| n.memory).collect();
    assert_eq!(memory, [Bytes::gib(16), Bytes::kib(1), Bytes(1 << 40)]);
    assert_eq!(parse(&render_json(&machine)).unwrap(), machine);
}

#[test]
fn the_short_forms_have_defaults() {
    let machine = parse(&with(r#""threads": 2, "nodes": [{"id": 0, "cpus": "0-4"}]"#)).unwrap();
    let cores: Vec<_> = machine.topology.cores().iter().map(|c| c.cpus.to_string()).collect();
    assert_eq!(cores, ["0-1", "2-3", "4"]);
    assert_eq!(machine.topology.sockets().len(), 1);
    assert_eq!(machine.topology.caches().len(), 1);
}

#[test]
fn common_yaml_spellings_are_parsed() {
    let text = "
# A small machine.
apiVersion: berth.dev/v1alpha1
kind: Machine
metadata:
  name: small
threads: 2
nodes:
- id: 0
  cpus: 0-1
  memory: 16Gi
  hugePages:
  - {pageSize: 2Mi, count: 512}
- id: 1
  cpus: 3        # a single CPU
  memory: 1073741824
distances:
- [10, 20]
- [20, 10]
";
    let machine = parse(text).unwrap();
    assert_eq!(machine.topology.all_cpus().to_string(), "0-1,3");
    assert_eq!(machine.topology.nodes()[1].memory, Bytes::gib(1));
}

#[test]
fn errors_name_the_location_and_a_valid_value() {
    let check = |text: &str, part: &str| {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    };
    let node = r#""nodes": [{"id": 0, "cpus": "0-3"}]"#;
    check("{", "line 1");
    check(&with(r#""socket": []"#), "unknown field \"socket\"; did you mean \"sockets\"?");
    check(&with(r#""nodes": [{"id": 0, "cpu": "0"}]"#), "nodes[0].cpu: unknown field \"cpu\"");
    check(&with(r#""nodes": [{"id": 0, "memory": "64GB"}]"#), "nodes[0].memory: expected bytes");
    check(&with(r#""nodes": [{"id": 0, "memory": -1}]"#), "like 68719476736 or 64Gi");
    check(&with(r#""nodes": [{"id": 0, "cpus": "3-1"}]"#), "invalid range \"3-1\"");
    check(&with(r#""nodes": [{"cpus": "0"}]"#), "nodes[0]: the field \"id\" is missing");
    check(&with(r#""metadata": {"name": "a b"}"#), "metadata.name: expected a name of up to 253");
    check(&with(r#""os": "plan9""#), "os: expected linux or windows");
    check(
        "kind: Machine\napiVersion: berth.dev/v1alpha1\nnodes:\n- {id: 0, cpus: 0-3}\n- {id: x}",
        "line 5, column 8: nodes[1].id",
    );
    check("kind: Machine\napiVersion: berth.dev/v1alpha1\n---\na: 1", "a second document");
    check(&with(r#""nodes": []"#), "the machine would have no CPU");
    check(&with(&format!(r#"{node}, "cores": ["0-1", "1-3"]"#)), "CPU 1 is in two cores");
    check(&with(&format!(r#"{node}, "cores": ["0-1"]"#)), "CPUs 2-3 are in none of the cores");
    check(&with(&format!(r#"{node}, "cores": ["0-3", "9"]"#)), "CPUs 9 are in no node");
    check(&with(&format!(r#"{node}, "cores": ["0-3", ""]"#)), "a core is empty");
    check(&with(&format!(r#"{node}, "threads": 0"#)), "from 1 to 64");
    check(&with(&format!(r#"{node}, "threads": 2, "cores": ["0-3"]"#)), "both cores and threads");
    check(&with(&format!(r#"{node}, "sockets": [{{"id": 0, "cpus": "0"}}]"#)), "1-3 are in none");
    let cpu = r#""cpus": [{"cpu": 0, "core": 0, "socket": 0, "numa": 0, "uncoreCache": 0}]"#;
    check(&with(&format!("{cpu}, {node}")), "both cpus and nodes' cpus");
    check(&with(&format!(r#"{cpu}, "threads": 2"#)), "both cpus and threads");
    check(&with(&format!(r#"{cpu}, "distances": [[10, 20]]"#)), "distance table");
    check(r#"{"apiVersion": "v1", "kind": "Node"}"#, "a machine file says \"berth.dev/v1alpha1\"");
}

#[test]
fn the_largest_machine_round_trips() {
    // Neighbours are in different nodes, so that every CPU list names its CPUs one by one.
    let cpu = |cpu: u32| Cpu {
        cpu: CpuId(cpu),
        core: CoreId(cpu),
        socket: SocketId(cpu % 2),
        numa: NumaId(cpu % 2),
        cache: CacheId(cpu % 2),
    };
    let parts = Parts { cpus: (0..65_536).map(cpu).collect(), ..Parts::default() };
    let machine = Machine::new("striped", OsName::Linux, parts).unwrap();
    for text in [render_json(&machine), render_yaml(&machine)] {
        assert_eq!(parse(&text).unwrap(), machine);
    }
}

fn machine() -> impl Strategy<Value = Machine> {
    let cpu = (0u32..4, 0u32..6, 0u32..3);
    let pages = prop_oneof![Just(0), any::<u64>()];
    let node = (any::<u64>(), prop::collection::btree_map(0u32..40, pages, 0..3));
    // Numbers that look like others to YAML, words and paths: whatever a machine may be called by.
    let name = prop_oneof![
        "[a-zA-Z][a-zA-Z0-9._-]{0,8}|",
        "[0-9.eExo_-]{1,6}",
        "null|true|yes|off|~|---|\\.\\.\\.|- a|a: b|#a|/sys/a b|[0-9] sockets x [0-9] cores",
        ".{0,300}",
    ];
    (
        prop::collection::btree_map(prop_oneof![0u32..200, 0u32..65_536], cpu, 1..20),
        prop::collection::btree_map(0u32..12, node, 0..6),
        name,
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(cpus, nodes, name, windows, shift)| {
            // A core is in one socket and node: number it by them.
            let mut lowest = std::collections::BTreeMap::new();
            let cpus = cpus
                .into_iter()
                .map(|(cpu, (place, cache, smt))| {
                    let own = *lowest.entry((place, smt)).or_insert(cpu);
                    Cpu {
                        cpu: CpuId(cpu),
                        core: CoreId(if shift { own + 1000 } else { own }),
                        socket: SocketId(place / 2),
                        numa: NumaId(place),
                        cache: CacheId(cache),
                    }
                })
                .collect();
            let nodes = nodes
                .into_iter()
                .map(|(numa, (memory, pages))| NodeMemory {
                    numa: NumaId(numa),
                    memory: Bytes(memory),
                    huge_pages: pages
                        .into_iter()
                        .map(|(shift, count)| {
                            // Three sizes together fit into 64 bits.
                            let count = count >> (shift + 2);
                            HugePages { page_size: Bytes(1 << shift), count }
                        })
                        .collect(),
                })
                .collect();
            let topology = Topology::new(Parts { cpus, nodes, distances: Vec::new() }).unwrap();
            Machine { name, os: if windows { OsName::Windows } else { OsName::Linux }, topology }
        })
}

proptest! {
    #[test]
    fn written_machines_are_parsed_back(machine in machine()) {
        let named = Machine { name: name_of(&machine.name), ..machine.clone() };
        for text in [render_json(&machine), render_yaml(&machine), render_compact(&machine)] {
            prop_assert_eq!(&parse(&text).unwrap(), &named, "{}", text);
        }
    }

    #[test]
    fn no_text_makes_it_panic(text in ".{0,200}") {
        let _ = parse(&text);
        let _ = parse(&with(&text));
    }
}
