//! Lines of the file `blockio`: block devices, and class files for them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::quirks::{self, Right};
use super::{Comparison, Difference, Machines, errors, list, sorted_log, text, texts};
use crate::blockio::cgroup::{WeightFile, writes};
use crate::blockio::{BlockIoError, Config, Parameters, Warning, resolve};
use crate::hardware::{CgroupVersion, DeviceTree};

pub(super) fn check(machines: &Machines, line: &Value) -> Comparison {
    let none = DeviceTree::default();
    let mut session = Session {
        devices: machines.devices.get(text(&line["sysfs"])).unwrap_or(&none),
        quirks: super::quirks_of(line),
        classes: BTreeMap::new(),
        comparison: Comparison::default(),
        refused: false,
    };
    if line.get("config").is_some() {
        session.step(line, "config");
    }
    for (number, step) in list(&line["steps"]).iter().enumerate() {
        session.step(step, &format!("step {}", number + 1));
    }
    session.finish()
}

struct Session<'a> {
    devices: &'a DeviceTree,
    quirks: Vec<&'a str>,
    classes: BTreeMap<String, Parameters>,
    comparison: Comparison,
    /// A file was refused, or a class of it.
    refused: bool,
}

impl Session<'_> {
    fn has(&self, right: Right) -> bool {
        self.quirks.iter().any(|name| quirks::find(name).is_some_and(|quirk| quirk.right == right))
    }

    fn is_marked(&self, quirk: &str) -> bool {
        self.quirks.contains(&quirk)
    }

    fn finish(mut self) -> Comparison {
        if self.has(Right::Error) && !self.refused {
            self.comparison.differ("the line", json!("an error"), json!("no error"));
        }
        self.comparison
    }

    fn step(&mut self, step: &Value, at: &str) {
        let force = step["force"].as_bool().unwrap_or(false);
        let result = &step["result"];
        let (error, warnings) = match Config::parse(text(&step["config"])) {
            Err(error) => (Some(BlockIoError::Text(error)), Vec::new()),
            Ok(None) => {
                self.classes.clear();
                (None, Vec::new())
            }
            Ok(Some(config)) => match resolve(&config, self.devices, force) {
                (Ok(classes), warnings) => {
                    self.classes = classes;
                    (None, warnings)
                }
                (Err(error), warnings) => (Some(error), warnings),
            },
        };
        self.refused |= error.is_some();
        let recorded = errors(result);
        let same_error = match &error {
            Some(error) => recorded.iter().any(|recorded| same(recorded, error)),
            None => recorded.is_empty(),
        };
        if !same_error {
            let (expected, got) = (json!(recorded), json!(error.as_ref().map(ToString::to_string)));
            // With force, the fault is a warning.
            return self.differ(at, expected, got, error.is_some() && self.has(Right::Error));
        }
        let faulty = warnings.iter().any(|warning| matches!(warning, Warning::Faulty { .. }));
        if faulty && self.has(Right::Error) {
            self.refused = true;
        }
        self.check_log(result, &warnings, at);
        self.check_classes(result, at, error.is_some());
        for (class, expected) in super::fields(&result["lookup_errors"]) {
            let known = self.classes.contains_key(class);
            let got = (!known).then(|| format!("no OCI BlockIO parameters for class {class:?}"));
            if *expected != json!(got) {
                let kept = error.is_some() && self.is_marked("failed-config-clears");
                self.differ(
                    &format!("{at}: lookup of {class:?}"),
                    expected.clone(),
                    json!(got),
                    kept,
                );
            }
        }
    }

    fn differ(&mut self, what: &str, expected: Value, got: Value, explained: bool) {
        let difference = Difference { what: what.to_owned(), expected, got };
        if explained {
            self.refused = true;
            self.comparison.deliberate.push(difference);
        } else {
            self.comparison.differences.push(difference);
        }
    }

    fn check_log(&mut self, result: &Value, warnings: &[Warning], at: &str) {
        let level = |warning: &Warning| if warning.is_error() { "ERROR" } else { "WARN" };
        let left_out = |warning: &&Warning| matches!(warning, Warning::Partition { .. });
        let log: Vec<String> = warnings
            .iter()
            .filter(|warning| !left_out(warning))
            .map(|warning| format!("{}: {warning}", level(warning)))
            .collect();
        let recorded = texts(&result["log"]);
        // Before an error, chance decides which classes were looked at.
        if errors(result).is_empty() && sorted_log(&recorded) != sorted_log(&log) {
            let (expected, got) = (json!(sorted_log(&recorded)), json!(sorted_log(&log)));
            self.differ(&format!("{at}: log"), expected, got, false);
        }
        if warnings.iter().any(|warning| left_out(&warning)) != self.is_marked("partition-device")
            && errors(result).is_empty()
            && !self.is_marked("partition-device")
        {
            let got = warnings.iter().map(ToString::to_string).collect::<Vec<_>>();
            self.differ(&format!("{at}: partitions"), Value::Null, json!(got), false);
        }
    }

    fn check_classes(&mut self, result: &Value, at: &str, refused: bool) {
        if result.get("classes_after").is_some() {
            return;
        }
        let recorded = &result["classes"];
        let names = |classes: &Value| {
            super::fields(classes).map(|(name, _)| name.clone()).collect::<BTreeSet<_>>()
        };
        let ours: BTreeSet<String> = self.classes.keys().cloned().collect();
        if names(recorded) != ours {
            let kept = refused && self.is_marked("failed-config-clears");
            let what = format!("{at}: classes");
            return self.differ(&what, json!(names(recorded)), json!(ours), kept);
        }
        let classes: Vec<(String, Value)> = self
            .classes
            .iter()
            .map(|(name, parameters)| (name.clone(), describe(parameters)))
            .collect();
        for (name, got) in classes {
            let expected = &recorded[&name];
            let derived = self.derive(expected);
            if derived != *expected {
                let what = format!("{at}: class {name:?}");
                let difference = Difference { what, expected: expected.clone(), got: got.clone() };
                self.comparison.deliberate.push(difference);
            }
            if derived != got {
                self.differ(&format!("{at}: class {name:?}"), derived, got, false);
            }
        }
    }

    /// Returns the right values of a class: without partitions, and `max` for no limit on v2.
    fn derive(&self, class: &Value) -> Value {
        let mut class = class.clone();
        let partition = |number: &str| {
            let devices = self.devices.block_devices();
            let mut same = devices.filter(|(_, device)| device.number.to_string() == number);
            same.any(|(_, device)| device.partition)
        };
        if self.is_marked("partition-device")
            && let Some(oci) = class["oci"].as_object_mut()
        {
            for devices in oci.values_mut().filter_map(Value::as_array_mut) {
                devices.retain(|device| {
                    !partition(&format!("{}:{}", device["major"], device["minor"]))
                });
            }
            oci.retain(|_, devices| devices.as_array().is_none_or(|list| !list.is_empty()));
        }
        let Some(sets) = class["cgroup_writes"].as_object_mut() else { return class };
        for (set, writes) in sets.iter_mut() {
            let Some(writes) = writes.as_array_mut() else { continue };
            if self.is_marked("partition-device") {
                writes.retain(|write| !partition(text(&write[1]).split(' ').next().unwrap_or("")));
            }
            for write in writes.iter_mut() {
                if self.is_marked("zero-rate-v2") && set.starts_with("v2") && write[0] == "io.max" {
                    let data = text(&write[1]);
                    let unlimited = data.strip_suffix("=0").map(|start| format!("{start}=max"));
                    write[1] = unlimited.unwrap_or_else(|| data.to_owned()).into();
                }
            }
        }
        class
    }
}

/// Describes a class like the recorder. Writes that only Berth makes are left out, except limits.
fn describe(parameters: &Parameters) -> Value {
    let mut sets = Map::new();
    for (set, version, file) in [
        ("v1_goresctrl_bfq", CgroupVersion::V1, WeightFile::Bfq),
        ("v1_goresctrl_plain", CgroupVersion::V1, WeightFile::Plain),
        ("v1_runc_bfq", CgroupVersion::V1, WeightFile::Bfq),
        ("v1_runc_plain", CgroupVersion::V1, WeightFile::Plain),
        ("v2_runc_bfq", CgroupVersion::V2, WeightFile::Bfq),
        ("v2_runc_plain", CgroupVersion::V2, WeightFile::Plain),
    ] {
        let writes = writes(parameters, version, Some(file)).into_iter();
        let writes = writes.filter(|write| write.by_runc || write.file == "io.max");
        let writes = writes.map(|write| json!([write.file, write.data]));
        sets.insert(set.to_owned(), writes.collect());
    }
    json!({"oci": parameters.oci(), "cgroup_writes": sets})
}

/// Compares an error text. Texts of the YAML and JSON decoders are informative only.
fn same(recorded: &str, got: &BlockIoError) -> bool {
    let decoder = ["error converting YAML to JSON: ", "error unmarshaling JSON: "];
    match got {
        BlockIoError::Text(_) => decoder.iter().any(|start| recorded.starts_with(start)),
        got => recorded == got.to_string(),
    }
}
