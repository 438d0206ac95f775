//! Vectors recorded from goresctrl.

use std::io::Read as _;
use std::path::Path;

use classes::hardware::DeviceTree;
use classes::vectors::{self, Machines};
use serde_json::Value;

pub(crate) fn lines(stem: &str) -> Vec<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden-classes");
    let compressed = std::fs::read(folder.join(format!("{stem}.jsonl.gz"))).unwrap();
    let mut text = String::new();
    flate2::read::GzDecoder::new(compressed.as_slice()).read_to_string(&mut text).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(crate) fn machines() -> Machines {
    let mut machines = Machines::default();
    for line in lines("shapes").iter().chain(&lines("sysfs")) {
        machines.add(line);
    }
    machines
}

pub(crate) fn devices() -> Vec<DeviceTree> {
    lines("sysfs").iter().map(vectors::devices).collect()
}

fn check(stem: &str, count: usize) {
    let machines = machines();
    let lines = lines(stem);
    assert_eq!(lines.len(), count);
    let mut different = Vec::new();
    for line in &lines {
        let comparison = vectors::check(&machines, stem, line);
        for difference in comparison.differences {
            different.push(format!(
                "{} {}: {}\n    expected {}\n    got      {}",
                line["id"], line["quirk"], difference.what, difference.expected, difference.got
            ));
        }
        let marked = line.get("quirk").is_some();
        if !marked && !comparison.deliberate.is_empty() {
            different.push(format!("{}: a deliberate difference without a reason", line["id"]));
        }
    }
    assert!(different.is_empty(), "{} differences:\n{}", different.len(), different.join("\n"));
}

#[test]
fn rdt_files_give_the_recorded_schemata() {
    check("rdt", 1116);
}

#[test]
fn rdt_classes_are_looked_up_as_recorded() {
    check("rdt_class", 232);
}

#[test]
fn block_io_files_give_the_recorded_writes() {
    check("blockio", 209);
}
