//! Cache ids, and plans on one machine.

use super::names::Prefix;
use super::*;
use crate::hardware::resctrl::{CacheAllocation, CacheControl};
use crate::hardware::{Bandwidth, CapacityMask, Resctrl};

/// A machine with two caches of 12 bits and room for four groups.
fn machine(min_bandwidth: u64) -> Resctrl {
    let control = CacheControl {
        cbm_mask: CapacityMask(0xfff),
        min_cbm_bits: 1,
        shareable_bits: CapacityMask(0),
        num_closids: 4,
    };
    let cache_ids = vec![CacheId(0), CacheId(1)];
    Resctrl {
        path: "/sys/fs/resctrl".to_owned(),
        l3: Some(CacheAllocation {
            cache_ids: cache_ids.clone(),
            unified: Some(control),
            ..CacheAllocation::default()
        }),
        mb: Some(Bandwidth {
            cache_ids,
            num_closids: 4,
            min_bandwidth,
            bandwidth_gran: 10,
            delay_linear: true,
            mbps: false,
        }),
        ..Resctrl::default()
    }
}

fn planned(text: &str, machine: &Resctrl, tree: &Tree) -> Result<Plan, String> {
    let config = Config::parse(text).map_err(|error| error.to_string())?;
    let prefix = Prefix("berth.".to_owned());
    plan(&config, machine, tree, &prefix, true).0.map_err(|error| error.to_string())
}

const FILE: &str = "
partitions:
  exclusive: {l3Allocation: \"50%\", classes: {gold: {}}}
  shared: {l3Allocation: \"50%\", classes: {silver: {l3Allocation: \"50%\"}, system/default: {}}}
";

#[test]
fn cache_id_lists_are_ranges() {
    let list = CacheIdList::parse("0,2-300").unwrap();
    let contained = [0, 1, 2, 300, 301].map(|id| list.contains(CacheId(id)));
    assert_eq!(contained, [true, false, true, true, false]);
    for text in ["x", "1-1", "-1", "2-1", "1,", "99999999999999999999"] {
        assert!(CacheIdList::parse(text).is_err(), "{text}");
    }
}

#[test]
fn a_plan_creates_and_removes_only_groups_with_the_prefix() {
    let mut tree = Tree::default();
    for directory in ["berth.gold", "berth.stale", "foreign"] {
        tree.groups.insert(directory.to_owned(), tree::ControlGroup::default());
    }
    let plan = planned(FILE, &machine(10), &tree).unwrap();
    assert_eq!(plan.remove, ["berth.stale"]);
    assert_eq!(plan.create, ["berth.silver"]);
    let written: Vec<String> =
        plan.write.iter().map(|(group, schemata)| format!("{group} {schemata}")).collect();
    assert_eq!(
        written,
        [
            "berth.gold L3:0=3f;1=3f\nMB:0=100;1=100\n",
            "berth.silver L3:0=1c0;1=1c0\nMB:0=100;1=100\n",
            ". L3:0=fc0;1=fc0\nMB:0=100;1=100\n",
        ]
    );
    tree.apply(&plan);
    let groups: Vec<&str> = tree.groups.keys().map(String::as_str).collect();
    assert_eq!(groups, ["berth.gold", "berth.silver", "foreign"]);
}

#[test]
fn classes_beyond_the_closids_are_refused_with_numbers() {
    let mut tree = Tree::default();
    for directory in ["foreign-1", "foreign-2"] {
        tree.groups.insert(directory.to_owned(), tree::ControlGroup::default());
    }
    let error = planned(FILE, &machine(10), &tree).unwrap_err();
    assert_eq!(
        error,
        "resctrl configuration failed: 3 classes need 5 control groups with 2 that exist and the \
         root group, but the machine has 4 CLOSIDs"
    );
}

#[test]
fn amd_bandwidth_in_percent_is_refused() {
    let text = "{partitions: {p: {mbAllocation: [50%], classes: {c: {}}}}}";
    let error = planned(text, &machine(0), &Tree::default()).unwrap_err();
    assert!(error.contains("1/8 GB/s"), "{error}");
    let text = "{partitions: {p: {classes: {c: {}}}}}";
    let plan = planned(text, &machine(0), &Tree::default()).unwrap();
    assert_eq!(plan.write[0].1.to_string(), "L3:0=fff;1=fff\n");
}

#[test]
fn a_failed_write_is_described_by_the_kernel() {
    use super::plan::write_failure;
    assert_eq!(write_failure("Mask out of range\n", "invalid argument"), "Mask out of range");
    assert_eq!(write_failure("ok\n", "invalid argument"), "invalid argument");
}
