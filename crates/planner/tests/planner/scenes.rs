//! Shipped machines with made-up owners, for drawing.

use std::fs;
use std::path::PathBuf;

use placement::Machine;
use placement::demand::MemoryKind;
use placement::{Bytes, CpuSet, NumaId};
use planner::picture::{CpuAssignment, CpuOwner, MemoryShare, Picture};

pub(crate) const NAMES: [&str; 8] = [
    "edge",
    "epyc-2s-nps4",
    "gb200",
    "hybrid-offline",
    "intel-2s-snc2",
    "large-64-nodes",
    "windows-2-groups",
    "windows-4-groups",
];

pub(crate) fn machine(name: &str) -> Machine {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join(format!("../../examples/machines/{name}.yaml"));
    planner::machine::parse(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Label, container, CPUs, then node and Gi of memory.
type Row = (&'static str, &'static str, &'static str, &'static [(u32, u64)]);

fn cpus(list: &str) -> CpuSet {
    CpuSet::parse(list).unwrap()
}

fn memory(shares: &[(u32, u64)]) -> Vec<MemoryShare> {
    let share = |(node, gi): &(u32, u64)| MemoryShare {
        node: NumaId(*node),
        kind: MemoryKind::Memory,
        amount: Bytes::gib(*gi),
    };
    shares.iter().map(share).collect()
}

fn picture(name: &str, exclusive: &[Row], reserved: Row, shared: &[Row]) -> Picture {
    let mut picture = Picture::new(&machine(name));
    let mut add = |row: &Row, assignment: CpuAssignment| {
        let mut owner = CpuOwner::new(row.0, assignment);
        owner.detail = row.1.to_owned();
        owner.memory = memory(row.3);
        picture.owners.push(owner);
    };
    for row in exclusive {
        add(row, CpuAssignment::Exclusive(cpus(row.2)));
    }
    add(&reserved, CpuAssignment::Reserved(cpus(reserved.2)));
    for row in shared {
        add(row, CpuAssignment::SharedPool(cpus(row.2)));
    }
    picture
}

pub(crate) fn scene(name: &str) -> Picture {
    match name {
        "edge" => picture(
            name,
            &[
                ("plant/vision", "inference", "1-2,5-6", &[(0, 6)]),
                ("plant/plc", "loop", "3", &[(0, 1)]),
            ],
            ("system", "", "0,4", &[(0, 1)]),
            &[("plant/dashboard", "web", "7", &[]), ("monitoring/exporter", "", "7", &[])],
        ),
        "epyc-2s-nps4" => {
            let mut picture = picture(
                name,
                &[
                    ("shop/orders-db", "postgres", "2-9,130-137", &[(0, 64)]),
                    ("shop/cache", "redis", "10-11,138-139", &[(0, 16)]),
                    ("telco/upf-0", "dataplane", "16-27,144-155", &[(1, 32)]),
                    ("telco/upf-0", "control", "28-29,156-157", &[(1, 8)]),
                    ("search/index-3", "elastic", "32-47,160-175", &[(2, 90)]),
                    ("ml/train-7", "worker", "64-95,192-223", &[(4, 80), (5, 80)]),
                    ("media/encode-a", "ffmpeg", "96-103,224-231", &[(6, 24)]),
                    ("media/encode-b", "ffmpeg", "104-111,232-239", &[(6, 24)]),
                    ("bank/matcher", "engine", "112-115,240-243", &[(7, 32)]),
                ],
                ("system", "", "0-1,128-129", &[(0, 2)]),
                &[
                    (
                        "shop/web",
                        "nginx",
                        "12-15,30-31,48-63,116-127,140-143,158-159,176-191,244-255",
                        &[],
                    ),
                    (
                        "shop/api",
                        "",
                        "12-15,30-31,48-63,116-127,140-143,158-159,176-191,244-255",
                        &[],
                    ),
                ],
            );
            picture.owners[2].memory.push(MemoryShare {
                node: NumaId(1),
                kind: MemoryKind::HugePages(Bytes::gib(1)),
                amount: Bytes::gib(3),
            });
            picture
        }
        "gb200" => picture(
            name,
            &[
                ("llm/serve-0", "prefill", "4-35", &[(0, 240), (2, 23), (3, 23)]),
                ("llm/serve-0", "decode", "36-63", &[(0, 180)]),
                ("llm/serve-1", "prefill", "72-103", &[(1, 240), (18, 23), (19, 23)]),
            ],
            ("system", "", "0-3", &[(0, 8)]),
            &[("llm/router", "", "64-71,104-143", &[])],
        ),
        "hybrid-offline" => picture(
            name,
            &[
                ("studio/daw", "engine", "2-3,6-9", &[(0, 24)]),
                ("studio/indexer", "", "16-19", &[(0, 4)]),
            ],
            ("system", "", "0-1", &[(0, 2)]),
            &[],
        ),
        "intel-2s-snc2" => picture(
            name,
            &[
                ("ran/du-0", "l1", "4-19,116-131", &[(0, 64)]),
                ("ran/du-1", "l1", "28-43,140-155", &[(1, 64)]),
                ("ran/cu", "f1", "56-59,168-171", &[(2, 16)]),
            ],
            ("system", "", "0-3,112-115", &[(0, 8)]),
            &[("ran/oam", "", "20-27,44-55", &[])],
        ),
        "large-64-nodes" => picture(
            name,
            &[
                ("hpc/solver", "rank-0", "16-127", &[(1, 60), (2, 60), (3, 60), (4, 60)]),
                ("hpc/solver", "rank-1", "128-255", &[(8, 60), (9, 60), (10, 60), (11, 60)]),
                ("erp/hana", "db", "512-767", &[(32, 64), (33, 64), (34, 64), (35, 64)]),
                ("erp/app", "tomcat", "900-903", &[(56, 8)]),
            ],
            ("system", "", "0-7", &[(0, 4)]),
            &[],
        ),
        "windows-2-groups" => picture(
            name,
            &[
                ("erp/sql-server", "mssql", "4-27", &[(0, 128)]),
                ("erp/reporting", "ssrs", "64-71", &[(1, 32)]),
                ("cad/render", "farm", "72-95", &[(1, 96)]),
            ],
            ("system", "", "0-3", &[(0, 4)]),
            &[("web/iis", "", "28-35,96-99", &[])],
        ),
        _ => picture(
            name,
            &[
                ("erp/sql-server", "mssql", "4-39,64-87", &[(0, 160)]),
                ("cad/render", "farm", "128-167", &[(1, 96)]),
            ],
            ("system", "", "0-3", &[(0, 4)]),
            &[("web/iis", "", "88-103,192-231", &[])],
        ),
    }
}
