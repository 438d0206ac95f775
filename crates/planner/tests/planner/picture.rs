//! Drawing: golden pictures, hostile labels, random machines.

use objects::pod::OsName;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use placement::demand::MemoryKind;
use placement::topology::{Cpu, HugePages, NodeMemory, Parts};
use placement::{Bytes, CacheId, CoreId, CpuId, CpuSet, NumaId, SocketId, Topology};
use planner::picture::layout::{Inside, Kind, Layout, Region, Use};
use planner::picture::{
    ContainerRow, CpuAssignment, CpuOwner, Ink, MemoryShare, OwnerRef, Page, Picture, RefusedRow,
    TextOptions, render_html, render_svg, render_svg_sheet, render_text,
};
use proptest::prelude::*;

use crate::scenes::{NAMES, machine, scene};

fn text(picture: &Picture) -> String {
    render_text(picture, TextOptions { width: 100, ink: Ink::Unicode, colours: false })
}

fn check_golden(name: &str, found: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/expected").join(name);
    if std::env::var_os("BERTH_BLESS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, found).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default().replace("\r\n", "\n");
    assert!(found == expected, "{name} differs; BERTH_BLESS=1 rewrites it. Found:\n{found}");
}

fn parsed(svg: &str) -> roxmltree::Document<'_> {
    roxmltree::Document::parse(svg).unwrap_or_else(|e| unreachable!("{e}\n{svg}"))
}

fn shape(words: &str) -> Picture {
    Picture::new(&planner::machine::parse(words).unwrap())
}

#[test]
fn every_shipped_machine_matches_its_golden_picture() {
    for name in NAMES {
        check_golden(&format!("{name}.txt"), &text(&scene(name)));
        check_golden(&format!("{name}-empty.txt"), &text(&Picture::new(&machine(name))));
    }
}

#[test]
fn pictures_match_their_golden_files() {
    for name in ["edge", "epyc-2s-nps4", "windows-2-groups"] {
        check_golden(&format!("{name}.svg"), &render_svg(&scene(name)));
    }
}

#[test]
fn lines_fit_the_terminal_if_possible() {
    for name in NAMES {
        for width in [80, 100, 140] {
            let options = TextOptions { width, ink: Ink::Unicode, colours: false };
            for line in render_text(&scene(name), options).lines() {
                assert!(line.chars().count() <= width, "{name} at {width}: {line}");
            }
        }
    }
}

#[test]
fn plain_ascii_means_plain_ascii() {
    for name in NAMES {
        let options = TextOptions { width: 100, ink: Ink::Ascii, colours: false };
        let text = render_text(&scene(name), options);
        assert!(text.is_ascii(), "{text}");
    }
}

#[test]
fn colours_change_nothing_but_colour() {
    let picture = scene("epyc-2s-nps4");
    let options = TextOptions { width: 100, ink: Ink::Unicode, colours: true };
    let mut stripped = String::new();
    for (at, piece) in render_text(&picture, options).split('\u{1b}').enumerate() {
        stripped.push_str(if at == 0 { piece } else { piece.split_once('m').unwrap().1 });
    }
    assert_eq!(stripped, text(&picture));
}

#[test]
fn every_svg_is_well_formed_and_has_each_cpu_once() {
    for name in NAMES {
        let picture = scene(name);
        let svg = render_svg(&picture);
        let document = parsed(&svg);
        let root = document.root_element();
        assert_eq!(root.attribute("role"), Some("img"));
        let mut told = CpuSet::new();
        for title in document.descendants().filter(|node| node.has_tag_name("title")) {
            let words = title.text().unwrap_or_default();
            if let Some(rest) = words.strip_prefix("CPU ") {
                let id: u32 = rest.split_whitespace().next().unwrap().parse().unwrap();
                assert!(!told.contains(CpuId(id)), "{name}: CPU {id} twice");
                told.insert(CpuId(id));
            }
        }
        assert_eq!(&told, picture.topology.all_cpus(), "{name}");
        for reference in ["http://", "https://", "@import", "<script", "href"] {
            let svg = svg.replace("http://www.w3.org/2000/svg", "");
            assert!(!svg.contains(reference), "{name} refers to something outside: {reference}");
        }
    }
}

#[test]
fn several_pictures_fit_on_one_sheet() {
    let sheet = render_svg_sheet(&NAMES.map(scene));
    let document = parsed(&sheet);
    let mut ids = std::collections::BTreeSet::new();
    for id in document.descendants().filter_map(|node| node.attribute("id")) {
        assert!(ids.insert(id), "{id} twice");
    }
    let titles = |node: &roxmltree::Node<'_, '_>| node.attribute("class") == Some("ti tx");
    assert_eq!(document.descendants().filter(titles).count(), NAMES.len());
    parsed(&render_svg_sheet(&[]));
}

#[test]
fn long_pool_lists_are_counted() {
    let mut picture = shape("4 cores");
    for n in 0..200 {
        let assignment = CpuAssignment::SharedPool(CpuSet::range(0, 3));
        picture.owners.push(CpuOwner::new(format!("shop/web-{n}"), assignment));
    }
    let drawn = text(&picture);
    assert!(drawn.contains("shop/web-0, ") && drawn.contains("more"), "{drawn}");
    assert!(drawn.lines().count() < 16, "{drawn}");
    assert!(drawn.lines().all(|line| line.chars().count() <= 100), "{drawn}");
}

#[test]
fn svg_of_a_large_machine_stays_below_a_megabyte() {
    let mut picture = Picture::new(&machine("large-64-nodes"));
    for n in 0..100 {
        let name = format!("{}/{n}", "n".repeat(250));
        picture
            .owners
            .push(CpuOwner::new(name, CpuAssignment::Exclusive(CpuSet::range(n * 10, n * 10 + 9))));
    }
    let svg = render_svg(&picture);
    assert!(svg.len() < 1_000_000, "{}", svg.len());
    parsed(&svg);
}

#[test]
fn identical_nodes_of_a_large_machine_are_drawn_once() {
    let drawn = text(&Picture::new(&machine("large-64-nodes")));
    assert!(drawn.contains("socket 0-7 × 8") && drawn.contains("8 in each"), "{drawn}");
    assert!(drawn.lines().count() < 12, "{drawn}");
}

#[test]
fn nodes_without_cpus_take_one_line() {
    let drawn = text(&Picture::new(&machine("gb200")));
    assert!(drawn.contains("NUMA 2-33 × 32  no CPUs  mem 23Gi each"), "{drawn}");
}

#[test]
fn larger_region_is_outside() {
    let kinds = |picture: &Picture| {
        let mut kinds: Vec<Vec<Kind>> = Vec::new();
        let layout = Layout::new(picture);
        let mut regions = &layout.regions;
        loop {
            kinds.push(regions[0].names.iter().map(|name| name.kind).collect());
            match &regions[0].inside {
                Inside::Regions(inner) => regions = inner,
                Inside::Cores(_) => return kinds,
            }
        }
    };
    use Kind::{Cache, Group, Node, Socket};
    let group_in_node = [vec![Socket, Node, Cache], vec![Group]];
    assert_eq!(kinds(&Picture::new(&machine("windows-4-groups"))), group_in_node);
    let node_in_group = [vec![Group], vec![Socket, Node, Cache]];
    assert_eq!(kinds(&Picture::new(&machine("windows-2-groups"))), node_in_group);
    assert_eq!(kinds(&shape("2s 2n 4c l3=2")), [vec![Socket], vec![Node], vec![Cache]]);
    assert_eq!(kinds(&shape("4 cores")), [vec![Socket, Node, Cache]]);

    // One cache over two nodes, and one node over two sockets.
    let cpus = |place: fn(u32) -> (u32, u32, u32)| {
        let cpu = |n: u32| {
            let (socket, numa, cache) = place(n);
            Cpu {
                cpu: CpuId(n),
                core: CoreId(n),
                socket: SocketId(socket),
                numa: NumaId(numa),
                cache: CacheId(cache),
            }
        };
        let parts = Parts { cpus: (0..8).map(cpu).collect(), ..Parts::default() };
        let topology = Topology::new(parts).unwrap();
        Picture { title: String::new(), os: OsName::Linux, topology, owners: Vec::new() }
    };
    assert_eq!(kinds(&cpus(|n| (0, n / 4, 0))), [vec![Socket, Cache], vec![Node]]);
    assert_eq!(kinds(&cpus(|n| (n / 4, 0, n / 2))), [vec![Node], vec![Socket], vec![Cache]]);
}

#[test]
fn overlapping_assignments_draw_the_stronger_one() {
    let mut picture = shape("4 cores");
    let assignment = |first, last| CpuSet::range(first, last);
    picture.owners = vec![
        CpuOwner::new("pool", CpuAssignment::SharedPool(assignment(0, 3))),
        CpuOwner::new("system", CpuAssignment::Reserved(assignment(0, 1))),
        CpuOwner::new("first", CpuAssignment::Exclusive(assignment(1, 2))),
        CpuOwner::new("second", CpuAssignment::Exclusive(assignment(2, 2))),
    ];
    let layout = Layout::new(&picture);
    let uses: Vec<Use> = (0..4).map(|n| layout.use_of(CpuId(n))).collect();
    assert_eq!(uses, [Use::Reserved, Use::Exclusive(0), Use::Exclusive(0), Use::Shared]);
    assert!(picture.free().is_empty());
}

const HOSTILE: [&str; 6] = [
    "<script>alert(1)</script>",
    "\"><svg onload=alert(1)>",
    "]]></style><b>&amp;",
    "\u{1b}[2J\u{7}\nline",
    "\u{202e}gnp.exe",
    "é漢字👩‍🚀\u{0}\u{ffff}",
];

#[test]
fn labels_cannot_break_out() {
    let labelled = |label: &str| {
        let mut picture = scene("edge");
        picture.title = label.into();
        for owner in &mut picture.owners {
            owner.label = label.into();
            owner.detail = label.into();
            owner.note = label.into();
        }
        picture
    };
    for label in HOSTILE {
        let picture = labelled(label);
        let harmless = text(&labelled(&"x".repeat(label.chars().count())));
        let drawn = text(&picture);
        let controls = |text: &str| text.chars().any(|c| c.is_control() && c != '\n');
        assert!(!controls(&drawn) && !drawn.contains('\u{202e}'), "{drawn:?}");
        assert_eq!(drawn.lines().count(), harmless.lines().count(), "{drawn}");

        let svg = render_svg(&picture);
        parsed(&svg);
        let page = Page {
            title: label.into(),
            verdict: label.into(),
            containers: vec![ContainerRow {
                pod: label.into(),
                container: label.into(),
                machine: label.into(),
                cpus: label.into(),
                memory: label.into(),
                why: label.into(),
                owner: Some(OwnerRef { picture: 0, index: 0 }),
            }],
            refused: vec![RefusedRow {
                pod: label.into(),
                reason: label.into(),
                remedies: vec![label.into()],
            }],
        };
        let html = render_html(&[picture], &page);
        for text in [&svg, &html] {
            assert!(!text.contains("<script>alert") && !text.contains("<svg onload"), "{text}");
            assert!(!text.contains("<b>") && !controls(text), "{text}");
        }
        assert_eq!(html.matches("<script").count(), 1);
    }
}

#[test]
fn page_lists_all_rows_and_references_only_its_pictures() {
    let pictures = [scene("edge"), scene("windows-2-groups")];
    let row = |picture, owner| ContainerRow {
        pod: format!("pod-{picture}-{owner}"),
        owner: Some(OwnerRef { picture, index: owner }),
        ..ContainerRow::default()
    };
    let page = Page {
        title: "Two machines".into(),
        containers: vec![row(0, 0), row(1, 2), row(7, 0), row(0, 99)],
        refused: vec![RefusedRow {
            pod: "shop/huge".into(),
            reason: "needs 40 CPUs on one node".into(),
            remedies: vec!["let it span two nodes".into()],
        }],
        ..Page::default()
    };
    let html = render_html(&pictures, &page);
    for words in ["pod-0-0", "pod-7-0", "shop/huge", "let it span two nodes", "erp/sql-server"] {
        assert!(html.contains(words), "{words}");
    }
    assert!(html.contains("data-p=\"m1\" data-o=\"2\"") && !html.contains("data-p=\"m7\""));
    assert_eq!(html.matches("<pattern id=\"berth-shared\"").count(), 1);
    assert_eq!(render_html(&pictures, &page), html);
}

fn count(regions: &[Region], seen: &mut BTreeMap<u32, usize>) {
    for region in regions {
        assert!(!region.names.is_empty() && !region.cpus.is_empty());
        let within: CpuSet = region.cores().iter().flat_map(|c| c.cpus.iter().copied()).collect();
        assert_eq!(within, region.cpus);
        match &region.inside {
            Inside::Regions(inner) => count(inner, seen),
            Inside::Cores(cores) => {
                for cpu in cores.iter().flat_map(|core| &core.cpus) {
                    *seen.entry(cpu.0).or_default() += 1;
                }
            }
        }
    }
}

/// CPUs with arbitrary nesting; nodes without CPUs, memory or either; unusual owners.
fn any_picture() -> impl Strategy<Value = Picture> {
    let cores = prop::collection::vec((1u32..5, 0u32..3, 0u32..4, 0u32..4, any::<bool>()), 1..24);
    let nodes = prop::collection::btree_map(0u32..8, (0u64..1 << 40, 0u64..9), 0..8);
    let list = || prop::collection::btree_set(0u32..400, 0..20);
    let memory = || prop::collection::vec((0u32..9, any::<u64>(), any::<bool>()), 0..4);
    let owners = prop::collection::vec((".{0,12}", 0u8..3, list(), memory()), 0..20);
    (cores, nodes, owners, 1u32..7, any::<bool>()).prop_map(
        |(cores, nodes, owners, stride, windows)| {
            let mut cpus = Vec::new();
            for (threads, socket, numa, cache, mixed) in cores {
                let first = cpus.len() as u32;
                for thread in 0..threads {
                    cpus.push(Cpu {
                        cpu: CpuId((first + thread) * stride),
                        core: CoreId(first * stride),
                        socket: SocketId(socket),
                        numa: NumaId(numa),
                        cache: CacheId(if mixed { cache + thread } else { cache }),
                    });
                }
            }
            let nodes = nodes.into_iter().map(|(numa, (memory, pages))| NodeMemory {
                numa: NumaId(numa),
                memory: Bytes(memory),
                huge_pages: vec![HugePages { page_size: Bytes::gib(1), count: pages }],
            });
            let parts = Parts { cpus, nodes: nodes.collect(), distances: Vec::new() };
            let assignment = |kind: u8, cpus: CpuSet| match kind {
                0 => CpuAssignment::Exclusive(cpus),
                1 => CpuAssignment::SharedPool(cpus),
                _ => CpuAssignment::Reserved(cpus),
            };
            let owners = owners.into_iter().map(|(label, kind, cpus, memory)| {
                let mut owner =
                    CpuOwner::new(label, assignment(kind, cpus.into_iter().map(CpuId).collect()));
                owner.memory = memory
                    .into_iter()
                    .map(|(node, amount, huge)| MemoryShare {
                        node: NumaId(node),
                        kind: match huge {
                            true => MemoryKind::HugePages(Bytes::gib(1)),
                            false => MemoryKind::Memory,
                        },
                        amount: Bytes(amount),
                    })
                    .collect();
                owner
            });
            Picture {
                title: String::new(),
                os: if windows { OsName::Windows } else { OsName::Linux },
                topology: Topology::new(parts).unwrap(),
                owners: owners.collect(),
            }
        },
    )
}

proptest! {
    #[test]
    fn every_cpu_is_in_the_layout_exactly_once(picture in any_picture()) {
        let layout = Layout::new(&picture);
        let mut seen = BTreeMap::new();
        count(&layout.regions, &mut seen);
        prop_assert!(seen.values().all(|n| *n == 1));
        let all: CpuSet = seen.keys().map(|id| CpuId(*id)).collect();
        prop_assert_eq!(&all, picture.topology.all_cpus());
        let nodes = picture.topology.nodes();
        let mut shown = 0;
        let mut stack: Vec<&Region> = layout.regions.iter().collect();
        while let Some(region) = stack.pop() {
            shown += usize::from(region.memory.is_some());
            if let Inside::Regions(inner) = &region.inside {
                stack.extend(inner);
            }
        }
        let folded: usize = layout.without_cpus.iter().map(|kind| kind.ids.len()).sum();
        prop_assert_eq!(shown + folded, nodes.len());
        for memory in &layout.memory {
            let pieces = memory.pieces();
            let mut end = 0;
            for piece in &pieces {
                prop_assert_eq!(piece.start.0, end);
                end += piece.length.0;
            }
            prop_assert_eq!(end, memory.total.0);
        }
    }

    #[test]
    fn any_machine_can_be_drawn(picture in any_picture(), width in 0usize..150, colours: bool) {
        for ink in [Ink::Unicode, Ink::Ascii] {
            let options = TextOptions { width, ink, colours };
            let drawn = render_text(&picture, options);
            prop_assert_eq!(&drawn, &render_text(&picture, options));
        }
        let svg = render_svg(&picture);
        parsed(&svg);
        prop_assert_eq!(svg.matches("<title>CPU ").count(), picture.topology.cpus().len());
        let page = render_html(std::slice::from_ref(&picture), &Page::default());
        prop_assert!(page.ends_with("</html>\n"));
    }
}
