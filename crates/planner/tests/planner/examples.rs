//! The machines shipped in `examples/machines`.

use objects::pod::OsName;
use std::fs;
use std::path::PathBuf;

use placement::machine::file::render_yaml;
use planner::machine::shape;

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/machines")
}

/// Name, the shape it is written from if it is regular, and its sockets, nodes, L3 caches, cores
/// and CPUs.
type Example = (&'static str, Option<&'static str>, [usize; 5]);

const EXAMPLES: [Example; 8] = [
    (
        "epyc-2s-nps4",
        Some("2s 4n 16c 2t l3=2 mem=96Gi hugepages-1Gi=4 distances=10,12,32"),
        [2, 8, 16, 128, 256],
    ),
    ("intel-2s-snc2", Some("2s 2n 28c 2t mem=128Gi distances=10,12,21"), [2, 4, 4, 112, 224]),
    ("edge", Some("4c 2t mem=16Gi"), [1, 1, 1, 4, 8]),
    ("windows-2-groups", Some("2s 18c 2t os=windows mem=192Gi"), [2, 2, 2, 36, 72]),
    ("windows-4-groups", Some("2s 40c 2t os=windows mem=256Gi"), [2, 2, 2, 80, 160]),
    ("gb200", None, [2, 34, 2, 144, 144]),
    (
        "large-64-nodes",
        Some("8s 8n 16c l3=2 mem=64Gi distances=10,16,32"),
        [8, 64, 128, 1024, 1024],
    ),
    ("hybrid-offline", None, [1, 1, 1, 16, 22]),
];

#[test]
fn every_shipped_machine_matches_its_name() {
    for (name, shape, counts) in EXAMPLES {
        let path = directory().join(format!("{name}.yaml"));
        if std::env::var_os("BERTH_BLESS").is_some() {
            let machine = match shape {
                Some(words) => shape::parse(&format!("{words} name={name}")).unwrap(),
                None => planner::machine::parse(&fs::read_to_string(&path).unwrap()).unwrap(),
            };
            fs::write(&path, render_yaml(&machine)).unwrap();
        }
        let text = fs::read_to_string(&path).unwrap_or_else(|e| unreachable!("{name}: {e}"));
        let machine =
            planner::machine::parse(&text).unwrap_or_else(|e| unreachable!("{name}: {e:?}"));
        assert_eq!(machine.name, name);
        assert_eq!(machine.os == OsName::Windows, name.contains("windows"), "{name}");
        let t = &machine.topology;
        let domains = [t.sockets().len(), t.nodes().len(), t.caches().len()];
        let found = [domains[0], domains[1], domains[2], t.cores().len(), t.cpus().len()];
        assert_eq!(found, counts, "{name}");
        assert!(t.nodes().iter().all(|node| node.memory.0 > 0), "{name}");
        if let Some(words) = shape {
            let regular = shape::parse(&format!("{words} name={name}")).unwrap();
            assert_eq!(machine, regular, "{name}: set BERTH_BLESS=1 to rewrite");
        }
    }
}

#[test]
fn no_shipped_machine_is_left_untested() {
    let mut names: Vec<_> = fs::read_dir(directory())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.ends_with(".md"))
        .collect();
    names.sort();
    let mut expected: Vec<_> = EXAMPLES.iter().map(|(name, ..)| format!("{name}.yaml")).collect();
    expected.sort();
    assert_eq!(names, expected);
}
