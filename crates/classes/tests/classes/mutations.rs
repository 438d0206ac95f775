//! Mutated class files: each is refused, or gives a plan that the kernel accepts.

use classes::hardware::resctrl::{InfoTexts, find_mount};
use classes::hardware::{CapacityMask, DeviceTree, Resctrl};
use classes::rdt::names::Prefix;
use classes::rdt::{Config, Group, Plan, Tree, plan};
use classes::schemata::Control;
use classes::{blockio, rdt};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config as Runs, TestRunner};
use serde_json::Value;

use crate::recorded::lines;

/// The number of mutations of each kind of file.
const RUNS: u32 = 10_000;

/// Texts that change the meaning of what is around them.
const PIECES: &[&str] = &[
    "0",
    "1",
    "100",
    "128",
    "%",
    "-",
    ",",
    "0x",
    "ff",
    "99999999999999999999",
    "\"",
    "'",
    ":",
    ": ",
    "{",
    "}",
    "[",
    "]",
    "\n",
    "  ",
    "&a ",
    "*a",
    "<<: ",
    "null",
    "~",
    "true",
    "all",
    "unified",
    "code",
    "data",
    "MBps",
    "\0",
    "\u{feff}",
    "ä",
    "/dev/*",
    "[^",
    "\\",
    "---\n",
    "...\n",
    "!!str ",
];

fn configs(stem: &str) -> Vec<String> {
    let own = |line: &Value| line["config"].as_str().map(str::to_owned);
    let texts = lines(stem).into_iter().flat_map(|line| {
        let steps = line["steps"].as_array().cloned().unwrap_or_default();
        own(&line).into_iter().chain(steps.iter().filter_map(own)).collect::<Vec<_>>()
    });
    texts.filter(|text| text.len() < 2_000).collect()
}

/// Replaces parts of a text, by a piece or by a part of another text.
fn mutated(texts: Vec<String>) -> impl Strategy<Value = String> {
    let edit = (any::<prop::sample::Index>(), 0..8_usize, select(PIECES), any::<bool>());
    let edits = prop::collection::vec(edit, 1..4);
    (select(texts.clone()), select(texts), edits).prop_map(|(text, other, edits)| {
        let mut chars: Vec<char> = text.chars().collect();
        let other: Vec<char> = other.chars().collect();
        for (at, width, piece, splice) in edits {
            let start = at.index(chars.len() + 1);
            let end = (start + width).min(chars.len());
            let inserted: Vec<char> = if splice && !other.is_empty() {
                other.iter().copied().skip(at.index(other.len())).take(40).collect()
            } else {
                piece.chars().collect()
            };
            chars.splice(start..end, inserted);
        }
        chars.into_iter().collect()
    })
}

fn shapes() -> Vec<Resctrl> {
    let lines = lines("shapes");
    let read = |line: &Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let options = text(&line["mount_options"]);
        let mount = find_mount(&format!("resctrl /sys/fs/resctrl resctrl {options} 0 0\n"))?;
        let info = line["info"].as_object()?.iter().map(|(directory, files)| {
            let files = files.as_object().into_iter().flatten();
            (directory.clone(), files.map(|(name, of)| (name.clone(), text(of))).collect())
        });
        let schemata = line["root_schemata"].as_str().map(str::to_owned);
        Resctrl::detect(&mount, &InfoTexts { info: Some(info.collect()), schemata }).ok()
    };
    lines.iter().filter_map(read).collect()
}

/// Checks that the kernel accepts every step of a plan.
fn assert_valid(plan: &Plan, hardware: &Resctrl, tree: &Tree) {
    for (group, schemata) in &plan.write {
        assert!(schemata.to_string().ends_with('\n'));
        for line in &schemata.lines {
            for (id, value) in &line.values {
                match line.control {
                    Control::Cache(level, of) => {
                        let cache = hardware.cache(level).unwrap();
                        let control = *cache.control(of).or(cache.base()).unwrap();
                        let mask = CapacityMask(*value);
                        assert!(mask.is_contiguous(), "{group} {id}");
                        assert!(control.cbm_mask.contains(mask), "{group} {id}");
                        assert!(u64::from(mask.count()) >= control.min_cbm_bits, "{group} {id}");
                    }
                    Control::MemoryBandwidth => {
                        let mb = hardware.mb.as_ref().unwrap();
                        assert!(
                            mb.mbps || (mb.min_bandwidth..=100).contains(value),
                            "{group} {id}"
                        );
                    }
                }
            }
        }
    }
    let mut after = tree.clone();
    after.apply(plan);
    let groups = after.groups.len() as u64 + 1;
    assert!(plan.create.is_empty() || hardware.num_closids().is_none_or(|most| groups <= most));
    for class in plan.classes.values() {
        assert!(class.group == Group::Root || after.group(&class.group).is_some());
    }
}

fn run(strategy: impl Strategy<Value = String>, check: impl Fn(String)) {
    let mut runner =
        TestRunner::new(Runs { cases: RUNS, failure_persistence: None, ..Runs::default() });
    let result = runner.run(&strategy, |text| {
        check(text);
        Ok(())
    });
    result.unwrap();
}

#[test]
fn mutated_rdt_files_are_refused_or_valid() {
    let shapes: Vec<Resctrl> = shapes()
        .into_iter()
        // The kernel has one mask for code and data; machines that differ are broken on purpose.
        .filter(|shape| {
            [&shape.l2, &shape.l3].into_iter().flatten().all(|cache| cache.code == cache.data)
        })
        .collect();
    let mut tree = Tree::default();
    tree.groups.insert("other".to_owned(), rdt::tree::ControlGroup::default());
    run(mutated(configs("rdt")), |text| {
        let Ok(config) = Config::parse(&text) else { return };
        for (hardware, prefix) in shapes.iter().zip(["", "berth."].into_iter().cycle()) {
            let prefix = Prefix(prefix.to_owned());
            if let (Ok(plan), _) = plan(&config, hardware, &tree, &prefix, true) {
                assert_valid(&plan, hardware, &tree);
            }
        }
    });
}

#[test]
fn mutated_block_io_files_are_refused_or_valid() {
    let devices = crate::recorded::devices();
    run(mutated(configs("blockio")), |text| {
        let Ok(Some(config)) = blockio::Config::parse(&text) else { return };
        for (tree, force) in devices.iter().zip([true, false].into_iter().cycle()) {
            let (Ok(classes), _) = blockio::resolve(&config, tree, force) else { continue };
            for parameters in classes.values() {
                assert_valid_devices(parameters, tree);
            }
        }
    });
}

fn assert_valid_devices(parameters: &blockio::Parameters, tree: &DeviceTree) {
    let numbers = parameters.rates.keys().map(|(_, number)| number);
    for number in numbers.chain(parameters.device_weights.keys()) {
        let mut devices = tree.block_devices().filter(|(_, device)| device.number == *number);
        assert!(devices.any(|(_, device)| !device.partition), "{number}");
    }
}
