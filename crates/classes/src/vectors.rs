//! Plays vectors recorded from goresctrl and compares its results with ours.
//!
//! Main entries: [`Machines::add`] for the files `shapes` and `sysfs`, and [`check`] for a line of
//! the others. `testdata/golden-classes/README.md` describes the format. A line with a `quirk`
//! records a defect of goresctrl, and [`quirks`] has what is right instead. The tests and
//! `berth conformance` run the same code.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::hardware::resctrl::{DetectError, InfoTexts, find_mount};
use crate::hardware::{BlockDevice, DeviceEntry, DeviceNumber, DeviceTree, Resctrl, Scheduler};

mod blockio;
pub mod quirks;
mod rdt;

/// A difference between our result and the recorded one.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    pub what: String,
    pub expected: Value,
    pub got: Value,
}

/// The result of one line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    pub differences: Vec<Difference>,
    /// Differences that a quirk of the line explains.
    pub deliberate: Vec<Difference>,
}

impl Comparison {
    fn differ(&mut self, what: &str, expected: Value, got: Value) {
        self.differences.push(Difference { what: what.to_owned(), expected, got });
    }
}

/// The machines that lines refer to by name.
#[derive(Clone, Debug, Default)]
pub struct Machines {
    shapes: BTreeMap<String, Value>,
    devices: BTreeMap<String, DeviceTree>,
}

impl Machines {
    /// Adds a machine of the file `shapes` or `sysfs`.
    pub fn add(&mut self, line: &Value) {
        let id = text(&line["id"]).to_owned();
        if line.get("nodes").is_some() {
            self.devices.insert(id, devices(line));
        } else {
            self.shapes.insert(id, line.clone());
        }
    }

    fn resctrl(&self, line: &Value) -> Result<Resctrl, DetectError> {
        let shape = self.shapes.get(text(&line["hardware"])).unwrap_or(&Value::Null);
        let options = line.get("mount_options").unwrap_or(&shape["mount_options"]);
        let usual = format!("resctrl /sys/fs/resctrl resctrl {} 0 0\n", text(options));
        let mounts = shape["mounts"].as_str().unwrap_or(&usual);
        let mount = find_mount(mounts).ok_or(DetectError::NotMounted)?;
        let directories = &shape["info"];
        let missing = shape["no_info_dir"].as_bool().unwrap_or(false);
        let info = fields(directories).map(|(name, files)| {
            let files =
                fields(files).map(|(file, content)| (file.clone(), text(content).to_owned()));
            (name.clone(), files.collect())
        });
        let info = (!missing).then(|| info.collect());
        let schemata = shape["root_schemata"].as_str().map(str::to_owned);
        Resctrl::detect(&mount, &InfoTexts { info, schemata })
    }
}

/// Compares one line. `kind` is the stem of its file: `rdt`, `rdt_class` or `blockio`.
#[must_use]
pub fn check(machines: &Machines, kind: &str, line: &Value) -> Comparison {
    match kind {
        "rdt" | "rdt_class" => rdt::check(machines, line),
        _ => blockio::check(machines, line),
    }
}

/// Returns the quirks of a line.
#[must_use]
pub fn quirks_of(line: &Value) -> Vec<&str> {
    text(&line["quirk"]).split(',').filter(|quirk| !quirk.is_empty()).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn fields(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn texts(value: &Value) -> Vec<String> {
    list(value).iter().map(|item| text(item).to_owned()).collect()
}

fn text_map(value: &Value) -> BTreeMap<String, String> {
    fields(value).map(|(key, value)| (key.clone(), text(value).to_owned())).collect()
}

/// Returns the lines of a log in an order that does not depend on chance.
fn sorted_log(log: &[String]) -> Vec<String> {
    let sorted_lines = |entry: &String| {
        let (start, rest) = entry.split_once("error=").unwrap_or((entry, ""));
        let lines: BTreeSet<&str> = rest.lines().collect();
        format!("{start}error={}", lines.into_iter().collect::<Vec<_>>().join("\n"))
    };
    let mut log: Vec<String> = log.iter().map(sorted_lines).collect();
    log.sort();
    log
}

/// Returns the devices of a line of the file `sysfs`. The recorder's machines have these partitions.
#[must_use]
pub fn devices(line: &Value) -> DeviceTree {
    const PARTITIONS: &[&str] = &["sda1", "sda2", "nvme0n1p1", "vda1"];
    let mut tree = DeviceTree::default();
    for (name, node) in fields(&line["nodes"]) {
        let number = |at: usize| u32::try_from(node[at].as_u64().unwrap_or_default()).unwrap_or(0);
        let entry = match text(&node[0]) {
            "b" => DeviceEntry::Block(BlockDevice {
                number: DeviceNumber { major: number(1), minor: number(2) },
                partition: PARTITIONS.contains(&name.as_str()),
                scheduler: line["schedulers"][name].as_str().map(Scheduler::parse),
            }),
            "c" => DeviceEntry::Character,
            "d" => DeviceEntry::Directory,
            _ => DeviceEntry::File,
        };
        tree.entries.insert(format!("/dev/{name}"), entry);
    }
    for (name, target) in fields(&line["links"]) {
        tree.entries.insert(format!("/dev/{name}"), DeviceEntry::Link(text(target).to_owned()));
    }
    for (name, _) in fields(&line["schedulers"]) {
        tree.entries.insert(format!("/sys/block/{name}/queue/scheduler"), DeviceEntry::File);
    }
    tree
}

/// Returns the recorded alternatives of a result.
fn alternatives(line: &Value) -> Vec<&Value> {
    match line.get("result_any_of") {
        Some(any_of) => list(any_of).iter().collect(),
        None => vec![&line["result"]],
    }
}

/// Returns the recorded error texts; empty if there was no error.
fn errors(result: &Value) -> Vec<&str> {
    match result.get("error_any_of") {
        Some(any_of) => list(any_of).iter().map(text).collect(),
        None => result["error"].as_str().into_iter().collect(),
    }
}

/// Describes the recorded result of detection as ours is described.
fn detected(resctrl: &Resctrl) -> Value {
    let mut info = Map::new();
    for (name, cache) in [("l2", &resctrl.l2), ("l3", &resctrl.l3)] {
        if let Some((cache, base)) = cache.as_ref().and_then(|cache| Some((cache, cache.base()?))) {
            let described = json!({
                "cache_ids": cache.cache_ids, "cdp": cache.cdp(),
                "cbm_mask": format!("{:#x}", base.cbm_mask), "min_cbm_bits": base.min_cbm_bits,
                "shareable_bits": format!("{:#x}", base.shareable_bits),
                "num_closids": base.num_closids,
            });
            info.insert(name.to_owned(), described);
        }
    }
    if let Some(mb) = &resctrl.mb {
        let described = json!({
            "cache_ids": mb.cache_ids, "num_closids": mb.num_closids,
            "bandwidth_gran": mb.bandwidth_gran, "min_bandwidth": mb.min_bandwidth,
            "delay_linear": u8::from(mb.delay_linear), "mbps": mb.mbps,
        });
        info.insert("mb".to_owned(), described);
    }
    info.insert("mon_supported".to_owned(), resctrl.monitoring.is_some().into());
    info.insert("num_closids".to_owned(), resctrl.num_closids().unwrap_or(0).into());
    if let Some(monitoring) = &resctrl.monitoring {
        info.insert("mon_features".to_owned(), json!({"l3": monitoring.features}));
        info.insert("num_rmids".to_owned(), monitoring.num_rmids.into());
    }
    Value::Object(info)
}
