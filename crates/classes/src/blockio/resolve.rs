//! Turns a block I/O class file into parameters for the devices of a machine.
//!
//! Main entry: [`resolve`]. Later items of a class override earlier ones, value by value.

use std::collections::BTreeMap;

use objects::Quantity;
use objects::YamlError;
use thiserror::Error;

use super::config::{Config, Item};
use super::glob::BadPattern;
use super::parameters::{Parameters, Rate, Weight};
use super::paths::{self, PathError};
use crate::go_text::quoted;
use crate::hardware::{DeviceEntry, DeviceNumber, DeviceTree, Scheduler};

/// The reason why a file is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BlockIoError {
    #[error("{0}")]
    Text(#[from] YamlError),
    #[error("{}", lines(.faults))]
    Class { class: String, faults: Vec<Fault> },
}

/// A wrong value of a class.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    #[error("syntax error in \"{field}\" ({})", quoted(.value))]
    Syntax { field: &'static str, value: String },
    #[error("value of \"{field}\" ({value}) smaller than minimum ({least})")]
    TooSmall { field: &'static str, value: i64, least: i64 },
    #[error("value of \"{field}\" ({value}) bigger than maximum ({most})")]
    TooLarge { field: &'static str, value: String, most: i64 },
    #[error(
        "ignoring throttling (rbps={} wbps={} riops={} wiops={}): Devices not listed",
        quoted(&.item.throttle_read_bps), quoted(&.item.throttle_write_bps),
        quoted(&.item.throttle_read_iops), quoted(&.item.throttle_write_iops)
    )]
    NoDevices { item: Box<Item> },
}

/// A part of a file that has no effect on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Warning {
    #[error("could not parse current scheduler path=/sys/block/{device}/queue/scheduler")]
    UnknownScheduler { device: String },
    #[error("failed to resolve block devices error={}", lines(.0))]
    Devices(Vec<DeviceProblem>),
    #[error("no match, parameters ignored devices=[{}]", .0.join(" "))]
    NoMatch(Vec<String>),
    #[error(
        "weight has no effect due to incompatible I/O scheduler (bfq or cfq required) path={path} scheduler={scheduler}"
    )]
    Scheduler { path: String, scheduler: String },
    #[error("partition left out, I/O limits apply to whole disks only path={path}")]
    Partition { path: String },
    #[error("ignoring blockio class className={class} error={}", lines(.faults))]
    Faulty { class: String, faults: Vec<Fault> },
}

impl Warning {
    /// Returns true if goresctrl logs this as an error.
    #[must_use]
    pub fn is_error(&self) -> bool {
        matches!(self, Warning::UnknownScheduler { .. })
    }
}

/// The reason why a name under `Devices` stands for no block device.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DeviceProblem {
    #[error("bad device wildcard {}: {source}", quoted(.wildcard))]
    Pattern { wildcard: String, source: BadPattern },
    #[error("device wildcard {} does not match any device nodes", quoted(.wildcard))]
    NoMatch { wildcard: String },
    #[error("cannot filepath.EvalSymlinks({}): {source}", quoted(.path))]
    Link { path: String, source: PathError },
    #[error("file {} is not a device{}", quoted(.path), shown_origin(.origin))]
    NotADevice { path: String, origin: String },
    #[error("file {} is a character device{}", quoted(.path), shown_origin(.origin))]
    Character { path: String, origin: String },
}

fn shown_origin(origin: &str) -> String {
    if origin.is_empty() { String::new() } else { format!(" (origin: {origin})") }
}

fn lines<T: ToString>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// Returns the parameters of every class. A class with a fault refuses the whole file; with `force`
/// it only gets a warning and keeps its other values. Warnings are returned with an error too.
pub fn resolve(
    config: &Config,
    devices: &DeviceTree,
    force: bool,
) -> (Result<BTreeMap<String, Parameters>, BlockIoError>, Vec<Warning>) {
    let unknown =
        devices.block_devices().filter(|(_, device)| device.scheduler == Some(Scheduler::Unknown));
    let mut warnings: Vec<Warning> = unknown
        .map(|(path, _)| Warning::UnknownScheduler {
            device: path.trim_start_matches("/dev/").to_owned(),
        })
        .collect();
    let mut classes = BTreeMap::new();
    for (name, items) in &config.classes {
        let mut class = ClassResolution { devices, warnings: &mut warnings, faults: Vec::new() };
        let parameters = class.parameters(items);
        let faults = class.faults;
        if !faults.is_empty() {
            let class = name.clone();
            if !force {
                return (Err(BlockIoError::Class { class, faults }), warnings);
            }
            warnings.push(Warning::Faulty { class, faults });
        }
        classes.insert(name.clone(), parameters);
    }
    (Ok(classes), warnings)
}

struct ClassResolution<'a> {
    devices: &'a DeviceTree,
    warnings: &'a mut Vec<Warning>,
    faults: Vec<Fault>,
}

impl ClassResolution<'_> {
    fn parameters(&mut self, items: &[Item]) -> Parameters {
        let mut parameters = Parameters::default();
        for item in items {
            let weight = self.quantity("Weight", &item.weight, Weight::LEAST, Weight::MOST);
            let weight = weight.and_then(Weight::new);
            let mut rates = Vec::new();
            for (rate, field, text) in [
                (Rate::ReadBps, "ThrottleReadBps", &item.throttle_read_bps),
                (Rate::WriteBps, "ThrottleWriteBps", &item.throttle_write_bps),
                (Rate::ReadIops, "ThrottleReadIOPS", &item.throttle_read_iops),
                (Rate::WriteIops, "ThrottleWriteIOPS", &item.throttle_write_iops),
            ] {
                let value = self.quantity(field, text, 0, i64::MAX);
                rates.extend(value.and_then(|value| Some((rate, u64::try_from(value).ok()?))));
            }
            let Some(names) = &item.devices else {
                parameters.weight = weight.or(parameters.weight);
                if !rates.is_empty() {
                    self.faults.push(Fault::NoDevices { item: Box::new(item.clone()) });
                }
                continue;
            };
            let (devices, partitions) = self.block_devices(names);
            if weight.is_some() || !rates.is_empty() {
                let left_out = partitions.into_iter().map(|path| Warning::Partition { path });
                self.warnings.extend(left_out);
            }
            for (path, device) in devices {
                if let Some(weight) = weight {
                    self.check_scheduler(&path);
                    parameters.device_weights.insert(device, weight);
                }
                parameters
                    .rates
                    .extend(rates.iter().map(|(rate, value)| ((*rate, device), *value)));
            }
        }
        parameters
    }

    /// Reads a quantity; `None` if it is absent or wrong.
    fn quantity(&mut self, field: &'static str, text: &str, least: i64, most: i64) -> Option<i64> {
        if text.is_empty() {
            return None;
        }
        let fault = match Quantity::parse(text) {
            // A suffix alone is zero for Kubernetes, but it is a typing error here.
            Ok(quantity) if text.bytes().any(|b| b.is_ascii_digit()) => {
                match quantity.checked_value() {
                    // A larger quantity is cut off at the largest number.
                    Some(i64::MAX) if text != i64::MAX.to_string() => {
                        Fault::TooLarge { field, value: text.to_owned(), most }
                    }
                    Some(value) if value < least => Fault::TooSmall { field, value, least },
                    Some(value) if value <= most => return Some(value),
                    Some(value) => Fault::TooLarge { field, value: value.to_string(), most },
                    None => Fault::TooLarge { field, value: text.to_owned(), most },
                }
            }
            _ => Fault::Syntax { field, value: text.to_owned() },
        };
        self.faults.push(fault);
        None
    }

    fn check_scheduler(&mut self, path: &str) {
        let Some(DeviceEntry::Block(device)) = self.devices.entries.get(path) else { return };
        if let Some(scheduler @ Scheduler::Active(name)) = &device.scheduler
            && !scheduler.weighs()
        {
            let (path, scheduler) = (path.to_owned(), name.clone());
            self.warnings.push(Warning::Scheduler { path, scheduler });
        }
    }

    /// Returns the whole disks that names and globs stand for, and the paths of partitions.
    fn block_devices(&mut self, names: &[String]) -> (Vec<(String, DeviceNumber)>, Vec<String>) {
        let mut problems = Vec::new();
        let matched = self.real_paths(names, &mut problems);
        let (mut found, mut partitions) = (Vec::new(), Vec::new());
        for (path, origin) in matched {
            match self.devices.entries.get(&path) {
                Some(DeviceEntry::Block(device)) if device.partition => partitions.push(path),
                Some(DeviceEntry::Block(device)) => found.push((path, device.number)),
                Some(DeviceEntry::Character) => {
                    problems.push(DeviceProblem::Character { path, origin });
                }
                _ => problems.push(DeviceProblem::NotADevice { path, origin }),
            }
        }
        if !problems.is_empty() {
            self.warnings.push(Warning::Devices(problems));
        }
        if found.is_empty() && partitions.is_empty() {
            self.warnings.push(Warning::NoMatch(names.to_vec()));
        }
        (found, partitions)
    }

    /// Returns the paths that names and globs lead to, each with a description of its origin.
    fn real_paths(
        &self,
        names: &[String],
        problems: &mut Vec<DeviceProblem>,
    ) -> BTreeMap<String, String> {
        let add = |origins: &mut BTreeMap<String, String>, path: String, origin: &str| {
            let before = origins.entry(path).or_default();
            *before = format!("{before} {origin}").trim().to_owned();
        };
        let mut matched = BTreeMap::new();
        for wildcard in names {
            let paths = match paths::expand(self.devices, wildcard) {
                Ok(paths) if paths.is_empty() => {
                    problems.push(DeviceProblem::NoMatch { wildcard: wildcard.clone() });
                    continue;
                }
                Ok(paths) => paths,
                Err(source) => {
                    let wildcard = wildcard.clone();
                    problems.push(DeviceProblem::Pattern { wildcard, source });
                    continue;
                }
            };
            for path in paths {
                let origin = format!("from wildcard {}", quoted(wildcard));
                let origin = if path == *wildcard { String::new() } else { origin };
                add(&mut matched, path, &origin);
            }
        }
        let mut real_paths = BTreeMap::new();
        for (path, origin) in matched {
            match paths::real_path(self.devices, &path) {
                Ok(real) if real == path => add(&mut real_paths, real, &origin),
                Ok(real) => {
                    let origin = format!("from symlink {} {origin}", quoted(&path));
                    add(&mut real_paths, real, &origin);
                }
                Err(source) => problems.push(DeviceProblem::Link { path, source }),
            }
        }
        real_paths
    }
}
