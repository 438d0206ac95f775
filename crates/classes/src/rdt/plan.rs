//! Plans the control groups of a class file on one machine, as a whole and before anything changes.
//!
//! Main entry: [`plan`]; main type: [`Plan`]. The plan is carried out by `host`: stale groups are
//! removed, missing ones created, and schemata written. An error leaves the machine as it is.

use std::collections::BTreeMap;

use objects::YamlError;
use thiserror::Error;

use super::bandwidth::{self, BandwidthRequestError, UNLIMITED_MBPS};
use super::cache::{self, CacheRequestError, CacheRequests, OverlayError};
use super::config::{Class, Config, Kubernetes, Options, Request};
use super::names::{self, Group, Prefix};
use super::partitions::{DivisionError, Grant, Requests, divide};
use super::tree::Tree;
use crate::go_text::quoted;
use crate::hardware::resctrl::{
    BandwidthUnit, CacheAllocation, CacheControl, CacheLevel, CacheUse,
};
use crate::hardware::{CacheId, CapacityMask, Resctrl};
use crate::schemata::{Control, Line, Schemata};

/// The changes that give a machine the classes of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Directories of stale control groups, which are removed first.
    pub remove: Vec<String>,
    /// Directories of control groups that are created next.
    pub create: Vec<String>,
    /// Schemata that are written then. A class without any control has none.
    pub write: Vec<(Group, Schemata)>,
    /// Monitoring groups without tasks, which are removed last.
    pub prune: Vec<(Group, String)>,
    pub classes: BTreeMap<String, PlannedClass>,
}

/// A class on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedClass {
    pub partition: String,
    pub group: Group,
    pub schemata: Schemata,
    pub kubernetes: Kubernetes,
}

/// A part of a file that has no effect.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Warning {
    #[error("unrecognized MBA allocation unit value={value}")]
    BandwidthUnit { value: String },
}

/// The reason why a file cannot be used on a machine.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    #[error("failed to parse configuration data: {0}")]
    Text(#[from] YamlError),
    #[error("invalid configuration: {0}")]
    Invalid(#[from] InvalidConfig),
    #[error("resctrl configuration failed: {0}")]
    Machine(#[from] Obstacle),
}

/// The reason why a file is wrong by itself.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InvalidConfig {
    #[error("failed to parse {level} allocation request for partition {}: {source}", quoted(.partition))]
    PartitionCache { level: CacheLevel, partition: String, source: CacheRequestError },
    #[error(transparent)]
    Division(#[from] DivisionError),
    #[error("failed to resolve MB allocation for partition {}: {source}", quoted(.partition))]
    PartitionBandwidth { partition: String, source: BandwidthRequestError },
    #[error(
        "unqualified class name {} (must not be '.' or '..' and must not contain '/' or newline)",
        quoted(.0)
    )]
    ClassName(String),
    #[error("class names must be unique, {} defined multiple times", quoted(.0))]
    ClassTwice(String),
    #[error("failed to resolve {level} allocation for class {}: {source}", quoted(.class))]
    ClassCache { level: CacheLevel, class: String, source: CacheRequestError },
    #[error("failed to resolve MB allocation for class {}: {source}", quoted(.class))]
    ClassBandwidth { class: String, source: BandwidthRequestError },
    #[error(
        "{resource} allocation missing from partition {} but class {} specifies {resource} schema",
        quoted(.partition), quoted(.class)
    )]
    PartitionLacks { resource: &'static str, partition: String, class: String },
}

/// The reason why a machine cannot have the classes of a file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Obstacle {
    #[error("refusing to remove non-empty resctrl group {}", quoted(.0))]
    Busy(String),
    #[error("mkdir {path}: file name too long")]
    NameTooLong { path: String },
    #[error("{level} cache allocation for {} specified in configuration but not supported by system", quoted(.class))]
    NoCacheControl { level: CacheLevel, class: String },
    #[error("memory bandwidth allocation for {} specified in configuration but not supported by system", quoted(.class))]
    NoBandwidthControl { class: String },
    #[error(transparent)]
    Overlay(#[from] OverlayError),
    #[error(
        "memory bandwidth of class {} is in percent, but this machine takes it in units of 1/8 GB/s",
        quoted(.class)
    )]
    NotPercent { class: String },
    #[error(
        "memory bandwidth of class {} is {value}% of cache id {id}; at most 100% can be set",
        quoted(.class)
    )]
    BandwidthOver100 { class: String, id: CacheId, value: u64 },
    #[error(
        "{control} mask {mask:#x} of class {} for cache id {id} is outside the mask {whole:#x} of the cache",
        quoted(.class)
    )]
    OutsideCache {
        control: Control,
        class: String,
        id: CacheId,
        mask: CapacityMask,
        whole: CapacityMask,
    },
    #[error(
        "{level} code mask of class {} overlaps the data mask of class {} in another partition for cache id {id}",
        quoted(.code), quoted(.data)
    )]
    CodeOverlapsData { level: CacheLevel, id: CacheId, code: String, data: String },
    #[error("class name {} is the name of an entry of resctrl; choose another", quoted(.0))]
    ReservedName(String),
    #[error(
        "{classes} classes need {needed} control groups with {others} that exist and the root group, but the machine has {available} CLOSIDs"
    )]
    TooFewClosids { classes: usize, others: usize, needed: usize, available: u64 },
}

/// Plans a class file. Groups in `tree` with the prefix but without a class in the file are removed;
/// those with tasks only if `force` is set. Warnings are returned with an error too.
pub fn plan(
    config: &Config,
    hardware: &Resctrl,
    tree: &Tree,
    prefix: &Prefix,
    force: bool,
) -> (Result<Plan, PlanError>, Vec<Warning>) {
    let mut warnings = Vec::new();
    let plan = Resolved::new(config, hardware, &mut warnings)
        .map_err(PlanError::Invalid)
        .and_then(|resolved| Ok(resolved.plan(tree, prefix, force)?));
    (plan, warnings)
}

/// Returns the request for a cache level as written.
fn request_of(
    request: &Request,
    level: CacheLevel,
) -> Option<&super::config::PerCache<super::config::CacheShare>> {
    match level {
        CacheLevel::L2 => request.l2.as_ref(),
        CacheLevel::L3 => request.l3.as_ref(),
    }
}

/// A value for each cache level.
#[derive(Clone, Debug, Default)]
struct ByLevel<T> {
    l2: T,
    l3: T,
}

impl<T> ByLevel<T> {
    fn get(&self, level: CacheLevel) -> &T {
        match level {
            CacheLevel::L2 => &self.l2,
            CacheLevel::L3 => &self.l3,
        }
    }

    fn try_new<E>(mut of: impl FnMut(CacheLevel) -> Result<T, E>) -> Result<ByLevel<T>, E> {
        Ok(ByLevel { l2: of(CacheLevel::L2)?, l3: of(CacheLevel::L3)? })
    }
}

/// A file whose texts are read for one machine.
struct Resolved<'a> {
    hardware: &'a Resctrl,
    options: Options,
    grants: ByLevel<BTreeMap<String, BTreeMap<CacheId, Grant>>>,
    /// Bandwidth of partitions; empty for one that does not mention it.
    bandwidth: BTreeMap<String, BTreeMap<CacheId, u64>>,
    classes: BTreeMap<String, ResolvedClass>,
}

struct ResolvedClass {
    partition: String,
    caches: ByLevel<Requests>,
    bandwidth: Option<BTreeMap<CacheId, u64>>,
    kubernetes: Kubernetes,
}

impl<'a> Resolved<'a> {
    fn new(
        config: &Config,
        hardware: &'a Resctrl,
        warnings: &mut Vec<Warning>,
    ) -> Result<Resolved<'a>, InvalidConfig> {
        let grants = ByLevel::try_new(|level| {
            let mut requests: BTreeMap<String, Requests> = BTreeMap::new();
            for (name, partition) in &config.partitions {
                let written = request_of(&partition.request, level);
                let read = written.map(|written| cache::requests(written, hardware.cache(level)));
                let read = read.transpose().map_err(|source| InvalidConfig::PartitionCache {
                    level,
                    partition: name.clone(),
                    source,
                })?;
                requests.insert(name.clone(), read);
            }
            divide(level, hardware.cache(level), &requests).map_err(InvalidConfig::Division)
        })?;
        let mut shares = BTreeMap::new();
        for (name, partition) in &config.partitions {
            let mut share = BTreeMap::new();
            if let Some(written) = &partition.request.mb {
                share = bandwidth::requests(written, hardware.mb.as_ref(), warnings).map_err(
                    |source| InvalidConfig::PartitionBandwidth { partition: name.clone(), source },
                )?;
            }
            shares.insert(name.clone(), share);
        }
        let mut classes = BTreeMap::new();
        for (partition, name, class) in config.classes() {
            let name = names::canonical(name);
            if !names::is_qualified(name) {
                return Err(InvalidConfig::ClassName(name.to_owned()));
            }
            if classes.contains_key(name) {
                return Err(InvalidConfig::ClassTwice(name.to_owned()));
            }
            let request = &config.partitions[partition].request;
            let resolved = resolve_class(name, class, partition, request, hardware, warnings)?;
            classes.insert(name.to_owned(), resolved);
        }
        let options = config.options;
        Ok(Resolved { hardware, options, grants, bandwidth: shares, classes })
    }

    fn plan(self, tree: &Tree, prefix: &Prefix, force: bool) -> Result<Plan, Obstacle> {
        let mut plan = Plan::default();
        for (directory, group) in &tree.groups {
            match prefix.class(directory) {
                Some(class) if !self.classes.contains_key(class) => {
                    if !force && !group.tasks.is_empty() {
                        return Err(Obstacle::Busy(directory.clone()));
                    }
                    plan.remove.push(directory.clone());
                }
                _ => {}
            }
        }
        for (name, class) in &self.classes {
            let group = prefix.group(name);
            if let Group::Named(directory) = &group {
                if directory.len() > names::LONGEST_NAME {
                    return Err(Obstacle::NameTooLong { path: group.path(&self.hardware.path) });
                }
                if !tree.groups.contains_key(directory) {
                    plan.create.push(directory.clone());
                }
            }
            let schemata = self.schemata(name, class)?;
            if !schemata.is_empty() {
                plan.write.push((group.clone(), schemata.clone()));
            }
            let partition = class.partition.clone();
            let planned = PlannedClass { partition, group, schemata, kubernetes: class.kubernetes };
            plan.classes.insert(name.clone(), planned);
        }
        self.check(&plan, tree)?;
        plan.prune = stale_mon_groups(&plan, tree, prefix);
        Ok(plan)
    }

    fn schemata(&self, name: &str, class: &ResolvedClass) -> Result<Schemata, Obstacle> {
        let mut schemata = Schemata::default();
        for level in CacheLevel::ALL {
            let requests = class.caches.get(level).as_ref();
            let hardware = self.hardware.cache(level);
            let Some((hardware, control)) = hardware.and_then(|of| Some((of, of.base()?))) else {
                let optional = match level {
                    CacheLevel::L2 => self.options.l2_optional,
                    CacheLevel::L3 => self.options.l3_optional,
                };
                if requests.is_some() && !optional {
                    return Err(Obstacle::NoCacheControl { level, class: name.to_owned() });
                }
                continue;
            };
            let grants = self.grants.get(level).get(&class.partition);
            for of in hardware.uses() {
                let values = masks(hardware, control, *of, grants, requests)?;
                schemata.lines.push(Line { control: Control::Cache(level, *of), values });
            }
        }
        schemata.lines.extend(self.bandwidth_line(name, class)?);
        Ok(schemata)
    }

    fn bandwidth_line(&self, name: &str, class: &ResolvedClass) -> Result<Option<Line>, Obstacle> {
        let asked = class.bandwidth.as_ref();
        let Some(hardware) = &self.hardware.mb else {
            return match asked {
                Some(_) if !self.options.mb_optional => {
                    Err(Obstacle::NoBandwidthControl { class: name.to_owned() })
                }
                _ => Ok(None),
            };
        };
        let unit = hardware.unit();
        let partition = self.bandwidth.get(&class.partition);
        if unit == BandwidthUnit::EighthsOfGigabyte {
            let mentioned = asked.is_some() || partition.is_some_and(|of| !of.is_empty());
            return match mentioned {
                true => Err(Obstacle::NotPercent { class: name.to_owned() }),
                false => Ok(None),
            };
        }
        let whole = if unit == BandwidthUnit::Percent { 100 } else { UNLIMITED_MBPS };
        let mut ids = hardware.cache_ids.clone();
        ids.sort_unstable();
        let value = |id: CacheId| {
            let base = partition.and_then(|of| of.get(&id)).copied().unwrap_or(whole);
            let share = asked.and_then(|of| of.get(&id)).copied().unwrap_or(whole);
            if unit == BandwidthUnit::MegabytesPerSecond {
                return Ok((id, share.min(base)));
            }
            if let Some(value) = [base, share].into_iter().find(|percent| *percent > 100) {
                return Err(Obstacle::BandwidthOver100 { class: name.to_owned(), id, value });
            }
            let base = base.max(hardware.min_bandwidth);
            Ok((id, (share * base / 100).max(hardware.min_bandwidth)))
        };
        let values = ids.into_iter().map(value).collect::<Result<_, _>>()?;
        Ok(Some(Line { control: Control::MemoryBandwidth, values }))
    }

    /// Checks what the kernel would refuse, or what would break the promise of partitions.
    fn check(&self, plan: &Plan, tree: &Tree) -> Result<(), Obstacle> {
        for (name, class) in &plan.classes {
            if let Group::Named(directory) = &class.group
                && names::is_reserved(directory)
            {
                return Err(Obstacle::ReservedName(name.clone()));
            }
            for line in &class.schemata.lines {
                self.check_masks(name, line)?;
            }
        }
        for level in CacheLevel::ALL {
            // Partitions that do not mention the level share all of it.
            if self.grants.get(level).values().any(|grants| !grants.is_empty()) {
                check_code_and_data(level, plan)?;
            }
        }
        let stay = tree.groups.len() - plan.remove.len();
        let needed = 1 + stay + plan.create.len();
        match self.hardware.num_closids() {
            Some(available) if needed as u64 > available && !plan.create.is_empty() => {
                let classes = plan.classes.len();
                let named =
                    plan.classes.values().filter(|class| class.group != Group::Root).count();
                let others = needed - 1 - named;
                Err(Obstacle::TooFewClosids { classes, others, needed, available })
            }
            _ => Ok(()),
        }
    }

    fn check_masks(&self, class: &str, line: &Line) -> Result<(), Obstacle> {
        let Control::Cache(level, of) = line.control else { return Ok(()) };
        let Some(hardware) = self.hardware.cache(level) else { return Ok(()) };
        let Some(control) = hardware.control(of).or(hardware.base()) else { return Ok(()) };
        for (id, mask) in &line.values {
            let mask = CapacityMask(*mask);
            if !control.cbm_mask.contains(mask) {
                return Err(Obstacle::OutsideCache {
                    control: line.control,
                    class: class.to_owned(),
                    id: *id,
                    mask,
                    whole: control.cbm_mask,
                });
            }
        }
        Ok(())
    }
}

/// Checks that no class shares bits between its code and the data of a class in another partition.
fn check_code_and_data(level: CacheLevel, plan: &Plan) -> Result<(), Obstacle> {
    let masks = |of: CacheUse| {
        let control = Control::Cache(level, of);
        let lines = plan.classes.iter().flat_map(move |(name, class)| {
            let lines = class.schemata.lines.iter().filter(move |line| line.control == control);
            lines.map(move |line| (name, &class.partition, &line.values))
        });
        lines.flat_map(|(name, partition, values)| {
            values.iter().map(move |(id, mask)| (*id, CapacityMask(*mask), name, partition))
        })
    };
    let mut data: BTreeMap<CacheId, Vec<_>> = BTreeMap::new();
    for (id, mask, name, partition) in masks(CacheUse::Data) {
        data.entry(id).or_default().push((mask, name, partition));
    }
    for (id, mask, code, partition) in masks(CacheUse::Code) {
        let others = data.get(&id).into_iter().flatten();
        let mut others = others.filter(|(_, _, other)| *other != partition);
        if let Some((_, data, _)) = others.find(|(other, ..)| other.overlaps(mask)) {
            let (code, data) = (code.clone(), (*data).clone());
            return Err(Obstacle::CodeOverlapsData { level, id, code, data });
        }
    }
    Ok(())
}

fn resolve_class(
    name: &str,
    class: &Class,
    partition: &str,
    request: &Request,
    hardware: &Resctrl,
    warnings: &mut Vec<Warning>,
) -> Result<ResolvedClass, InvalidConfig> {
    let lacks = |resource| InvalidConfig::PartitionLacks {
        resource,
        partition: partition.to_owned(),
        class: name.to_owned(),
    };
    let caches = ByLevel::try_new(|level| {
        let written = request_of(&class.request, level);
        let read = written.map(|written| cache::requests(written, hardware.cache(level)));
        let read = read.transpose().map_err(|source| InvalidConfig::ClassCache {
            level,
            class: name.to_owned(),
            source,
        })?;
        match (&read, request_of(request, level)) {
            (Some(_), None) => Err(lacks(level.name())),
            _ => Ok(read),
        }
    })?;
    let bandwidth = match &class.request.mb {
        Some(written) => {
            let read = bandwidth::requests(written, hardware.mb.as_ref(), warnings);
            Some(read.map_err(|source| InvalidConfig::ClassBandwidth {
                class: name.to_owned(),
                source,
            })?)
        }
        None => None,
    };
    if bandwidth.is_some() && request.mb.is_none() {
        return Err(lacks("MB"));
    }
    let kubernetes = class.kubernetes;
    Ok(ResolvedClass { partition: partition.to_owned(), caches, bandwidth, kubernetes })
}

/// Returns the masks of a class for one line of its schemata.
fn masks(
    hardware: &CacheAllocation,
    control: &CacheControl,
    of: CacheUse,
    grants: Option<&BTreeMap<CacheId, Grant>>,
    requests: Option<&BTreeMap<CacheId, CacheRequests>>,
) -> Result<Vec<(CacheId, u64)>, OverlayError> {
    let mut ids = hardware.cache_ids.clone();
    ids.sort_unstable();
    let mask = |id: CacheId| {
        let grant = grants.and_then(|grants| grants.get(&id)?.effective(of));
        let base = grant.unwrap_or(control.cbm_mask);
        let mask = match requests.and_then(|requests| requests.get(&id)) {
            Some(requests) => requests.effective(of).within(base, control.min_cbm_bits)?,
            None => base,
        };
        Ok((id, mask.0))
    };
    ids.into_iter().map(mask).collect()
}

/// Returns the monitoring groups of ours without tasks, in groups that stay.
fn stale_mon_groups(plan: &Plan, tree: &Tree, prefix: &Prefix) -> Vec<(Group, String)> {
    let ours = tree
        .groups
        .iter()
        .filter(|(directory, _)| {
            directory.starts_with(&prefix.0) && !plan.remove.contains(directory)
        })
        .map(|(directory, group)| (Group::Named(directory.clone()), group));
    let empty = |(name, group): (Group, &super::tree::ControlGroup)| {
        let stale = group
            .mon_groups
            .iter()
            .filter(|(mon_group, tasks)| mon_group.starts_with(&prefix.0) && tasks.is_empty())
            .map(|(mon_group, _)| (name.clone(), mon_group.clone()));
        stale.collect::<Vec<_>>()
    };
    ours.chain([(Group::Root, &tree.root)]).flat_map(empty).collect()
}

/// Returns the text of a failed write to resctrl: the content of `info/last_cmd_status`, unless it
/// gives no reason.
#[must_use]
pub fn write_failure<'a>(last_cmd_status: &'a str, system_error: &'a str) -> &'a str {
    match last_cmd_status.trim() {
        "" | "ok" => system_error,
        status => status,
    }
}
