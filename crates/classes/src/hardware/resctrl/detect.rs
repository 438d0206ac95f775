//! Makes a [`Resctrl`] of the texts of a resctrl file system.
//!
//! Main entries: [`find_mount`] for `/proc/mounts`, and [`Resctrl::detect`] for the files under
//! `info/` with the root group's `schemata`. The caller reads the files. Error texts are
//! goresctrl's.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use super::{
    Bandwidth, CacheAllocation, CacheControl, CacheId, CacheLevel, CacheUse, CapacityMask,
    Monitoring, Resctrl,
};
use crate::go_text::{NumberError, parse_uint};

/// A mounted resctrl file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub path: String,
    pub options: BTreeSet<String>,
}

/// Finds the resctrl file system in the text of `/proc/mounts`. The first one counts.
#[must_use]
pub fn find_mount(mounts: &str) -> Option<Mount> {
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (path, kind, options) = (words.next()?, words.next()?, words.next()?);
        (kind == "resctrl").then(|| Mount {
            path: path.to_owned(),
            options: options.split(',').map(str::to_owned).collect(),
        })
    })
}

/// The texts of a resctrl file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InfoTexts {
    /// The files of each directory under `info/` by name; `None` if there is no such directory.
    pub info: Option<BTreeMap<String, BTreeMap<String, String>>>,
    /// The root group's `schemata`, if it can be read.
    pub schemata: Option<String>,
}

/// The files that [`Resctrl::detect`] uses of each directory under `info/`.
pub const INFO_FILES: &[&str] = &[
    "cbm_mask",
    "min_cbm_bits",
    "shareable_bits",
    "num_closids",
    "bandwidth_gran",
    "delay_linear",
    "min_bandwidth",
    "num_rmids",
    "mon_features",
];

/// The reason why a resctrl file system cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DetectError {
    #[error("failed to detect resctrl mount point: resctrl not found in /proc/mounts")]
    NotMounted,
    #[error("failed to read RDT info from {path:?}: stat {path}: no such file or directory")]
    NoInfo { path: String },
    #[error("failed to get {control} info from {path:?}: {problem}")]
    Info { control: String, path: String, problem: FileProblem },
    #[error("failed to get {control} cache IDs: {problem}")]
    CacheIds { control: String, problem: SchemataProblem },
}

/// The reason why a file under `info/` cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FileProblem {
    #[error("open {path}: no such file or directory")]
    Missing { path: String },
    #[error(transparent)]
    NotANumber(#[from] NumberError),
}

/// The reason why the root group's `schemata` names no caches.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SchemataProblem {
    #[error("failed to read root schemata: open {path}: no such file or directory")]
    Missing { path: String },
    #[error("looks like an invalid schema {line:?}")]
    Entry { line: String },
    #[error("failed to parse cache id in {line:?}: {source}")]
    Id { line: String, source: NumberError },
    #[error("no {control} resources in root schemata")]
    NoLine { control: &'static str },
}

impl Resctrl {
    /// Makes the value of a mounted file system's texts.
    pub fn detect(mount: &Mount, texts: &InfoTexts) -> Result<Resctrl, DetectError> {
        let info_path = format!("{}/info", mount.path);
        let Some(info) = &texts.info else {
            return Err(DetectError::NoInfo { path: info_path });
        };
        let detection = Detection { mount, info_path, info, schemata: texts.schemata.as_deref() };
        Ok(Resctrl {
            path: mount.path.clone(),
            mount_options: mount.options.clone(),
            l2: detection.cache(CacheLevel::L2)?,
            l3: detection.cache(CacheLevel::L3)?,
            monitoring: detection.monitoring()?,
            mb: detection.bandwidth()?,
        })
    }
}

struct Detection<'a> {
    mount: &'a Mount,
    info_path: String,
    info: &'a BTreeMap<String, BTreeMap<String, String>>,
    schemata: Option<&'a str>,
}

/// One directory under `info/`.
struct Directory<'a> {
    path: String,
    files: &'a BTreeMap<String, String>,
}

impl Directory<'_> {
    fn text(&self, file: &str) -> Result<&str, FileProblem> {
        let missing = || FileProblem::Missing { path: format!("{}/{file}", self.path) };
        self.files.get(file).map(|text| text.trim()).ok_or_else(missing)
    }

    fn number(&self, file: &str) -> Result<u64, FileProblem> {
        Ok(parse_uint(self.text(file)?, 10, 64)?)
    }

    fn mask(&self, file: &str) -> Result<CapacityMask, FileProblem> {
        Ok(CapacityMask(parse_uint(self.text(file)?, 16, 64)?))
    }
}

impl Detection<'_> {
    fn directory(&self, name: &str) -> Option<Directory<'_>> {
        let files = self.info.get(name)?;
        Some(Directory { path: format!("{}/{name}", self.info_path), files })
    }

    fn cache(&self, level: CacheLevel) -> Result<Option<CacheAllocation>, DetectError> {
        let mut cache = CacheAllocation::default();
        for of in CacheUse::ALL {
            let control = format!("{level}{}", of.suffix());
            let Some(directory) = self.directory(&control) else { continue };
            let read = cache_control(&directory).map_err(|problem| {
                let path = directory.path.clone();
                DetectError::Info { control, path, problem }
            })?;
            // A cache without any bit cannot be allocated.
            let usable = (!read.cbm_mask.is_empty()).then_some(read);
            match of {
                CacheUse::Unified => cache.unified = usable,
                CacheUse::Code => cache.code = usable,
                CacheUse::Data => cache.data = usable,
            }
        }
        if cache.base().is_none() {
            return Ok(None);
        }
        cache.cache_ids = self.cache_ids(level.name()).map_err(|problem| {
            DetectError::CacheIds { control: format!("{level} CAT"), problem }
        })?;
        Ok(Some(cache))
    }

    fn bandwidth(&self) -> Result<Option<Bandwidth>, DetectError> {
        let Some(directory) = self.directory("MB") else { return Ok(None) };
        let mut mb = bandwidth(&directory).map_err(|problem| DetectError::Info {
            control: "MBA".to_owned(),
            path: directory.path.clone(),
            problem,
        })?;
        mb.mbps = self.mount.options.contains("mba_MBps");
        mb.cache_ids = self
            .cache_ids("MB")
            .map_err(|problem| DetectError::CacheIds { control: "MBA".to_owned(), problem })?;
        Ok(Some(mb))
    }

    fn monitoring(&self) -> Result<Option<Monitoring>, DetectError> {
        let Some(directory) = self.directory("L3_MON") else { return Ok(None) };
        let monitoring = monitoring(&directory).map_err(|problem| DetectError::Info {
            control: "L3_MON".to_owned(),
            path: directory.path.clone(),
            problem,
        })?;
        let usable = monitoring.num_rmids != 0 && !monitoring.features.is_empty();
        Ok(usable.then_some(monitoring))
    }

    /// Reads the caches of a control from the first line of `schemata` that begins with its name.
    fn cache_ids(&self, control: &'static str) -> Result<Vec<CacheId>, SchemataProblem> {
        let Some(schemata) = self.schemata else {
            return Err(SchemataProblem::Missing { path: format!("{}/schemata", self.mount.path) });
        };
        for line in schemata.lines().map(str::trim) {
            let Some((name, values)) = line.split_once(':') else { continue };
            if !name.starts_with(control) {
                continue;
            }
            return values
                .split(';')
                .map(|value| match value.split('=').collect::<Vec<_>>()[..] {
                    [id, _] => parse_uint(id, 10, 64)
                        .map(CacheId)
                        .map_err(|source| SchemataProblem::Id { line: line.to_owned(), source }),
                    _ => Err(SchemataProblem::Entry { line: line.to_owned() }),
                })
                .collect();
        }
        Err(SchemataProblem::NoLine { control })
    }
}

fn cache_control(directory: &Directory<'_>) -> Result<CacheControl, FileProblem> {
    Ok(CacheControl {
        cbm_mask: directory.mask("cbm_mask")?,
        min_cbm_bits: directory.number("min_cbm_bits")?,
        shareable_bits: directory.mask("shareable_bits")?,
        num_closids: directory.number("num_closids")?,
    })
}

fn bandwidth(directory: &Directory<'_>) -> Result<Bandwidth, FileProblem> {
    Ok(Bandwidth {
        cache_ids: Vec::new(),
        bandwidth_gran: directory.number("bandwidth_gran")?,
        delay_linear: directory.number("delay_linear")? != 0,
        min_bandwidth: directory.number("min_bandwidth")?,
        num_closids: directory.number("num_closids")?,
        mbps: false,
    })
}

fn monitoring(directory: &Directory<'_>) -> Result<Monitoring, FileProblem> {
    let num_rmids = directory.number("num_rmids")?;
    let features = directory.text("mon_features")?.lines().filter(|line| !line.is_empty());
    Ok(Monitoring { num_rmids, features: features.map(str::to_owned).collect() })
}
