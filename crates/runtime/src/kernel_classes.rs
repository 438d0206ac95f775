//! Classes that the kernel of this machine enforces: [`KernelClasses`].
//!
//! ```text
//!   class files ──► classes::ClassSet ──► catalog (advertised, assigned)
//!   machine ─────►        │
//!                         └──► resctrl groups, cgroup files, resource limits, scheduling
//! ```
//!
//! Files are read and checked as a whole against the machine; a file with an error changes nothing. Everything is applied
//! by level: what is in force already is not written again.
//!
//! Block I/O and memory on cgroup v2 are in force from the creation of a container. RDT, resource limits, scheduling, and
//! everything on cgroup v1 are in force when its start returns, shortly after its first instruction.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::classes::blockio::cgroup::{self as block_io, WeightFile};
use ::classes::class_file::{self, ClassFile, Effect};
use ::classes::class_set::{ClassSet, ClassSetError, Imports, Lowered};
use ::classes::hardware::{CgroupVersion, Hardware};
use ::classes::rdt::names::{Group, Prefix};
use ::classes::{blockio, rdt};
use host::block_devices::BlockDevices;
use host::cgroups::{Cgroups, IoFile, IoSettings, Version};
use host::resctrl::{self, ControlGroup, Desired, GroupName, Resctrl, Workload};
use host::tuning::Tuning;
use parking_lot::RwLock;
use tracing::{info, warn};

use crate::class_layer::catalog::{Assignments, ClassCatalog, ClassResource, Level};
use crate::class_layer::{Adjustment, Enforce, EnforceError, Subject};

/// The files with definitions of classes. At least one is given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClassFiles {
    /// Berth's own file.
    pub classes: Option<PathBuf>,
    /// A file in goresctrl's format, as containerd's `rdt_config_file`.
    pub rdt: Option<PathBuf>,
    /// A file in goresctrl's format, as containerd's `blockio_config_file`.
    pub blockio: Option<PathBuf>,
}

/// The reason why class files are not in effect. The classes that were in effect before stay.
#[derive(Debug, thiserror::Error)]
pub enum ClassFilesError {
    #[error("failed to read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{}", list(path, problems))]
    Invalid { path: PathBuf, problems: Vec<String> },
    #[error("the classes do not fit this machine: {}", .0.join("; "))]
    Machine(Vec<String>),
    #[error("failed to read cgroups")]
    Cgroups(#[from] host::cgroups::CgroupError),
    #[error("failed to create the RDT classes")]
    Resctrl(#[source] Box<dyn std::error::Error + Send + Sync>),
}

fn list(path: &Path, problems: &[String]) -> String {
    let lines: Vec<String> =
        problems.iter().map(|problem| format!("{}: {problem}", path.display())).collect();
    lines.join("\n")
}

/// Classes of this machine.
#[derive(Debug)]
pub struct KernelClasses {
    files: ClassFiles,
    cgroups: Cgroups,
    tuning: Tuning,
    loaded: RwLock<Loaded>,
}

#[derive(Debug, Clone)]
struct Loaded {
    set: Arc<ClassSet>,
    catalog: Arc<ClassCatalog>,
    hardware: Arc<Hardware>,
    resctrl: Option<Resctrl>,
}

impl KernelClasses {
    /// Reads the files and puts the definitions of the classes in force.
    pub fn load(files: ClassFiles) -> Result<KernelClasses, ClassFilesError> {
        let cgroups = Cgroups::observe()?;
        let loaded = load(&files, &cgroups)?;
        let tuning = Tuning::new(cgroups.clone(), "/proc");
        Ok(KernelClasses { files, cgroups, tuning, loaded: RwLock::new(loaded) })
    }

    /// Reads the files again. If one of them has an error, nothing changes.
    pub fn reload(&self) -> Result<(), ClassFilesError> {
        let loaded = load(&self.files, &self.cgroups)?;
        *self.loaded.write() = loaded;
        Ok(())
    }

    /// Returns the files whose changes matter, those that the class file references included.
    #[must_use]
    pub fn watched_files(&self) -> Vec<PathBuf> {
        let ClassFiles { classes, rdt, blockio } = &self.files;
        let mut files: Vec<PathBuf> =
            [classes, rdt, blockio].into_iter().flatten().cloned().collect();
        if let Some(path) = classes
            && let Ok(text) = std::fs::read_to_string(path)
            && let Ok(file) = ClassFile::parse(&text)
        {
            files.extend(file.references().into_iter().map(|referenced| beside(path, referenced)));
        }
        files
    }

    fn lowered(&self, resource: &str, class: &str) -> Option<Lowered> {
        let set = Arc::clone(&self.loaded.read().set);
        Some(set.resources.get(resource)?.classes.get(class)?.lowered.clone())
    }

    /// Puts one class of a cgroup in force.
    fn put(
        &self,
        cgroup: &str,
        lowered: &Lowered,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        match lowered {
            Lowered::Rdt { group, .. } => {
                let Some(resctrl) = self.loaded.read().resctrl.clone() else {
                    return Err("the resctrl file system is no longer mounted".into());
                };
                let group = match group {
                    Group::Root => ControlGroup::Root,
                    Group::Named(directory) => ControlGroup::Named(GroupName::own(directory)?),
                };
                let workload = Workload { cgroup: cgroup.to_owned(), group, monitor: None };
                resctrl.settle(&self.cgroups, &workload)?;
            }
            Lowered::BlockIo(parameters) => {
                let files = self.cgroups.io_files(cgroup);
                let mut wanted = IoSettings::default();
                for write in block_io::writes(
                    &parameters.clone().without_zero_rates(),
                    self.version(),
                    files.as_ref().and_then(WeightFile::of),
                ) {
                    let file = IoFile::parse(write.file)
                        .ok_or_else(|| format!("{} is not a file of block I/O", write.file))?;
                    wanted.read(file, &write.data)?;
                }
                let left_out = self.cgroups.set_io(cgroup, &wanted, &BlockDevices::live())?;
                for file in left_out {
                    warn!(
                        cgroup,
                        file = file.name(),
                        "the kernel has no file for a weight of the class"
                    );
                }
            }
            Lowered::Own(Effect::Rlimits(limits)) => {
                self.tuning.limit(cgroup, &lower::rlimits(limits)?)?;
            }
            Lowered::Own(Effect::Memory(memory)) => {
                self.cgroups.set_memory(cgroup, &lower::memory(memory))?;
            }
            Lowered::Own(Effect::Scheduling(scheduling)) => {
                self.tuning.schedule(cgroup, &lower::scheduling(scheduling)?)?;
            }
        }
        Ok(())
    }

    fn version(&self) -> CgroupVersion {
        match self.cgroups.version() {
            Version::V1 => CgroupVersion::V1,
            Version::V2 => CgroupVersion::V2,
        }
    }

    /// Returns the cgroup of a process.
    fn cgroup(&self, pid: u32) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
        let found = self.cgroups.of_process(pid)?;
        let controllers: &[&str] = match self.cgroups.version() {
            Version::V1 => &["memory", "cpu"],
            Version::V2 => &[""],
        };
        let path = controllers.iter().find_map(|&controller| found.get(controller));
        path.cloned().ok_or_else(|| format!("process {pid} has no cgroup of its own").into())
    }
}

impl Enforce for KernelClasses {
    fn catalog(&self) -> Arc<ClassCatalog> {
        Arc::clone(&self.loaded.read().catalog)
    }

    fn adjust(&self, classes: &Assignments) -> Result<Adjustment, EnforceError> {
        let mut unified = BTreeMap::<String, String>::new();
        if self.version() == CgroupVersion::V2 {
            let weights = self.loaded.read().hardware.cgroups.as_ref().and_then(WeightFile::of);
            for (resource, class) in classes {
                match self.lowered(resource, class) {
                    Some(Lowered::BlockIo(parameters)) => {
                        let parameters = parameters.without_zero_rates();
                        for write in block_io::writes(&parameters, CgroupVersion::V2, weights) {
                            let text = unified.entry(write.file.to_owned()).or_default();
                            if !text.is_empty() {
                                text.push('\n');
                            }
                            text.push_str(&write.data);
                        }
                    }
                    Some(Lowered::Own(Effect::Memory(memory))) => {
                        let files = memory.unified().into_iter();
                        unified.extend(files.map(|(file, value)| (file.to_owned(), value)));
                    }
                    _ => {}
                }
            }
        }
        Ok(Adjustment { annotations: Vec::new(), unified: unified.into_iter().collect() })
    }

    fn apply(&self, subject: &Subject, classes: &Assignments) -> Result<(), EnforceError> {
        for (resource, class) in classes {
            let failed =
                |source| EnforceError { resource: resource.clone(), class: class.clone(), source };
            let Some(lowered) = self.lowered(resource, class) else {
                return Err(failed("the class is no longer defined".into()));
            };
            let cgroup = self.cgroup(subject.pid).map_err(failed)?;
            let cgroup = match subject.level {
                Level::Container => cgroup,
                // The sandbox's own cgroup is inside the pod's.
                Level::Pod => match cgroup.rsplit_once('/') {
                    Some((pod, _)) if !pod.is_empty() => pod.to_owned(),
                    _ => {
                        return Err(failed(
                            format!("cgroup {cgroup} is not inside a pod's").into(),
                        ));
                    }
                },
            };
            self.put(&cgroup, &lowered).map_err(failed)?;
        }
        Ok(())
    }

    fn release(&self, _id: &str) {
        // The kernel releases cgroups and processes with the container; control groups belong to classes.
    }
}

fn load(files: &ClassFiles, cgroups: &Cgroups) -> Result<Loaded, ClassFilesError> {
    let (file, imports) = read_files(files)?;
    let resctrl = Resctrl::observe().ok();
    let hardware = observe(cgroups, resctrl.as_ref());
    let prefix = Prefix(resctrl::PREFIX.to_owned());
    let tree = resctrl.as_ref().map(tree).transpose()?.unwrap_or_default();
    let (set, warnings) = ClassSet::build(&file, &imports, &hardware, &tree, &prefix);
    for warning in &warnings {
        warn!(%warning, "a part of the class files has no effect");
    }
    let set = set.map_err(|errors| {
        ClassFilesError::Machine(errors.iter().map(ClassSetError::to_string).collect())
    })?;
    let ignored = without_effect(&set);
    if !ignored.is_empty() {
        return Err(ClassFilesError::Machine(ignored));
    }
    if let (Some(resctrl), Some(plan)) = (&resctrl, &set.rdt_plan) {
        let desired =
            Desired::of_plan(plan).map_err(|error| ClassFilesError::Resctrl(error.into()))?;
        resctrl.apply(cgroups, &desired).map_err(|error| ClassFilesError::Resctrl(error.into()))?;
    }
    let catalog = catalog(&set);
    info!(resources = set.resources.len(), "loaded QoS classes");
    Ok(Loaded {
        set: Arc::new(set),
        catalog: Arc::new(catalog),
        hardware: Arc::new(hardware),
        resctrl,
    })
}

/// Returns the parts of classes that are not applied. They are refused, so that no class is in force in part.
fn without_effect(set: &ClassSet) -> Vec<String> {
    let mut problems = Vec::new();
    for (name, resource) in &set.resources {
        for (class, definition) in &resource.classes {
            if let Lowered::Own(Effect::Memory(memory)) = &definition.lowered
                && memory.oom_score_adj.is_some()
            {
                problems.push(format!("{name}, class {class:?}: oomScoreAdj is not supported yet"));
            }
        }
    }
    problems
}

fn catalog(set: &ClassSet) -> ClassCatalog {
    let resources = set.resources.iter().map(|(name, resource)| ClassResource {
        name: name.clone(),
        level: match resource.level {
            class_file::Level::Pod => Level::Pod,
            class_file::Level::Container => Level::Container,
        },
        mutable: resource.mutable,
        default: resource.default.clone(),
        classes: resource
            .classes
            .iter()
            .map(|(name, class)| (name.clone(), class.capacity.0))
            .collect(),
    });
    ClassCatalog::new(resources.collect())
}

fn observe(cgroups: &Cgroups, resctrl: Option<&Resctrl>) -> Hardware {
    let resctrl = resctrl.and_then(|resctrl| match resctrl.hardware() {
        Ok((hardware, anomalies)) => {
            for anomaly in anomalies {
                warn!(%anomaly, "a part of resctrl cannot be read");
            }
            Some(hardware)
        }
        Err(error) => {
            warn!(%error, "the resctrl file system cannot be used");
            None
        }
    });
    let (devices, anomalies) = BlockDevices::live().observe();
    for anomaly in anomalies {
        warn!(%anomaly, "a block device cannot be read");
    }
    let own = cgroups.of_process(std::process::id()).unwrap_or_default();
    let own = own.values().find(|path| path.len() > 1);
    Hardware { resctrl, cgroups: own.and_then(|path| cgroups.io_files(path)), devices }
}

/// Returns the groups that exist, for the number of control groups that are left.
fn tree(resctrl: &Resctrl) -> Result<rdt::Tree, ClassFilesError> {
    let groups =
        resctrl.control_groups().map_err(|error| ClassFilesError::Resctrl(error.into()))?;
    let mut tree = rdt::Tree::default();
    for group in groups {
        tree.groups.insert(group.as_str().to_owned(), Default::default());
    }
    Ok(tree)
}

fn read_files(files: &ClassFiles) -> Result<(ClassFile, Imports), ClassFilesError> {
    let invalid = |path: &Path, problems: Vec<String>| ClassFilesError::Invalid {
        path: path.to_owned(),
        problems,
    };
    let (mut rdt, mut blockio) = (files.rdt.clone(), files.blockio.clone());
    let mut file = ClassFile::default();
    if let Some(path) = &files.classes {
        file = ClassFile::parse(&read(path)?)
            .map_err(|errors| invalid(path, errors.iter().map(ToString::to_string).collect()))?;
        let referenced = |definition: Option<&str>| definition.map(|named| beside(path, named));
        rdt = rdt.or(referenced(file.rdt.as_ref().and_then(|of| of.definition.path())));
        blockio = blockio.or(referenced(file.blockio.as_ref().and_then(|of| of.definition.path())));
    }
    let mut imports = Imports::default();
    if let Some(path) = rdt {
        let config = rdt::Config::parse(&read(&path)?);
        imports.rdt = Some(config.map_err(|error| invalid(&path, vec![error.to_string()]))?);
    }
    if let Some(path) = blockio {
        let config = blockio::Config::parse(&read(&path)?);
        imports.blockio = config.map_err(|error| invalid(&path, vec![error.to_string()]))?;
    }
    Ok((file, imports))
}

/// The largest class file; those of goresctrl have some kilobytes.
const LARGEST_FILE: u64 = 1 << 20;

fn read(path: &Path) -> Result<String, ClassFilesError> {
    let failed = |source| ClassFilesError::Read { path: path.to_owned(), source };
    let size = std::fs::metadata(path).map_err(failed)?.len();
    if size > LARGEST_FILE {
        let problem = format!("the file has {size} bytes; at most {LARGEST_FILE} are read");
        return Err(ClassFilesError::Invalid { path: path.to_owned(), problems: vec![problem] });
    }
    std::fs::read_to_string(path).map_err(failed)
}

/// Returns a path that a file names, which is relative to the directory of the file.
fn beside(file: &Path, named: &str) -> PathBuf {
    file.parent().unwrap_or(Path::new("")).join(named)
}

mod lower;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_class_with_an_oom_score_is_refused() {
        let file = ClassFile::parse(
            "apiVersion: berth.dev/v1alpha1\nkind: ClassFile\nresources:\n- name: example.com/m\n  classes:\n  \
             - {name: a, memory: {oomScoreAdj: 5}}\n  - {name: b, memory: {min: 1Gi}}\n",
        )
        .unwrap();
        let (set, _) = ClassSet::build(
            &file,
            &Imports::default(),
            &Hardware::default(),
            &rdt::Tree::default(),
            &Prefix(resctrl::PREFIX.to_owned()),
        );
        let problems = without_effect(&set.unwrap());
        assert_eq!(problems, ["example.com/m, class \"a\": oomScoreAdj is not supported yet"]);
    }
}
