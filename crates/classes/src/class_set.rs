//! The classes of a node: a class file checked as a whole against one machine.
//!
//! Main type: [`ClassSet`]; entry: [`ClassSet::build`]. It has what the node advertises and what
//! each class becomes. A file with any error gives no set, so that the one in effect stays.

use std::collections::BTreeMap;

use serde::Serialize;
use thiserror::Error;

use crate::blockio::cgroup::WeightFile;
use crate::blockio::{self, BlockIoError, Parameters};
use crate::class_file::{Capacity, ClassFile, Effect, Imported, Level};
use crate::hardware::{CgroupVersion, Hardware};
use crate::rdt::names::{Group, Prefix};
use crate::rdt::{self, Plan, PlanError, Tree};
use crate::schemata::Schemata;

/// The official resource of caches and memory bandwidth.
pub const RDT: &str = "k8s.io/rdt";
/// The official resource of block I/O.
pub const BLOCKIO: &str = "k8s.io/blockio";

/// All classes of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassSet {
    pub resources: BTreeMap<String, Resource>,
    /// The changes of resctrl that the RDT classes need.
    pub rdt_plan: Option<Plan>,
}

/// A resource with its classes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    pub level: Level,
    pub mutable: bool,
    pub default: Option<String>,
    pub classes: BTreeMap<String, Class>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    pub capacity: Capacity,
    pub lowered: Lowered,
}

/// A class in terms of the operating system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lowered {
    Rdt { group: Group, schemata: Schemata },
    BlockIo(Parameters),
    Own(Effect),
}

/// A resource as the node advertises it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advertised {
    pub name: String,
    pub mutable: bool,
    pub classes: Vec<AdvertisedClass>,
}

/// A class as the node advertises it; a capacity of 0 is unlimited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AdvertisedClass {
    pub name: String,
    pub capacity: Capacity,
}

/// The files in goresctrl's format that a class file refers to or that are given apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imports {
    pub rdt: Option<rdt::Config>,
    pub blockio: Option<blockio::Config>,
}

/// The reason why a class file cannot be used on a machine.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ClassSetError {
    #[error("RDT classes are defined, but the machine has no resctrl file system")]
    NoResctrl,
    #[error(transparent)]
    Rdt(#[from] PlanError),
    #[error("block I/O classes: {0}")]
    BlockIo(#[from] BlockIoError),
    #[error("{resource}: there is no class {class:?}, which {field} names")]
    NoSuchClass { resource: &'static str, field: &'static str, class: String },
    #[error("{resource}, class {class:?}: {file} needs cgroup v2, and the machine has v1")]
    NeedsCgroupV2 { resource: String, class: String, file: &'static str },
    #[error(
        "{BLOCKIO}, class {class:?}: the machine has no file for weights; load the module bfq or \
         enable io.cost"
    )]
    NoWeights { class: String },
}

/// A part of a class file that has no effect on a machine.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ClassSetWarning {
    #[error("{RDT}: {0}")]
    Rdt(rdt::Warning),
    #[error("{BLOCKIO}: {0}")]
    BlockIo(blockio::Warning),
}

impl ClassSet {
    /// Checks a class file as a whole. `imports` has the referenced files, which the caller reads.
    /// All errors are returned, and warnings in any case.
    pub fn build(
        file: &ClassFile,
        imports: &Imports,
        hardware: &Hardware,
        tree: &Tree,
        prefix: &Prefix,
    ) -> (Result<ClassSet, Vec<ClassSetError>>, Vec<ClassSetWarning>) {
        let mut build =
            Build { set: ClassSet::default(), errors: Vec::new(), warnings: Vec::new() };
        if let Some(config) = inline(file.rdt.as_ref()).or(imports.rdt.as_ref()) {
            build.rdt(config, file.rdt.as_ref(), hardware, (tree, prefix));
        }
        if let Some(config) = inline(file.blockio.as_ref()).or(imports.blockio.as_ref()) {
            build.blockio(config, file.blockio.as_ref(), hardware);
        }
        build.own(file, hardware);
        let Build { set, errors, warnings } = build;
        (if errors.is_empty() { Ok(set) } else { Err(errors) }, warnings)
    }

    /// Returns the resources that the node advertises at a level.
    #[must_use]
    pub fn advertised(&self, level: Level) -> Vec<Advertised> {
        let resources = self.resources.iter().filter(|(_, resource)| resource.level == level);
        let classes = |resource: &Resource| {
            let class = |(name, class): (&String, &Class)| AdvertisedClass {
                name: name.clone(),
                capacity: class.capacity,
            };
            resource.classes.iter().map(class).collect()
        };
        resources
            .map(|(name, resource)| Advertised {
                name: name.clone(),
                mutable: resource.mutable,
                classes: classes(resource),
            })
            .collect()
    }
}

fn inline<T>(imported: Option<&Imported<T>>) -> Option<&T> {
    match &imported?.definition {
        crate::class_file::Definition::Inline(config) => Some(config),
        crate::class_file::Definition::File(_) => None,
    }
}

struct Build {
    set: ClassSet,
    errors: Vec<ClassSetError>,
    warnings: Vec<ClassSetWarning>,
}

impl Build {
    fn rdt(
        &mut self,
        config: &rdt::Config,
        imported: Option<&Imported<rdt::Config>>,
        hardware: &Hardware,
        (tree, prefix): (&Tree, &Prefix),
    ) {
        let Some(resctrl) = &hardware.resctrl else {
            self.errors.push(ClassSetError::NoResctrl);
            return;
        };
        let (plan, warnings) = rdt::plan(config, resctrl, tree, prefix, true);
        self.warnings.extend(warnings.into_iter().map(ClassSetWarning::Rdt));
        match plan {
            Err(error) => self.errors.push(error.into()),
            Ok(plan) => {
                let classes = plan.classes.iter().map(|(name, class)| {
                    let (group, schemata) = (class.group.clone(), class.schemata.clone());
                    (name.clone(), Lowered::Rdt { group, schemata })
                });
                self.add_imported(RDT, classes.collect(), imported);
                self.set.rdt_plan = Some(plan);
            }
        }
    }

    fn blockio(
        &mut self,
        config: &blockio::Config,
        imported: Option<&Imported<blockio::Config>>,
        hardware: &Hardware,
    ) {
        let (classes, warnings) = blockio::resolve(config, &hardware.devices, false);
        self.warnings.extend(warnings.into_iter().map(ClassSetWarning::BlockIo));
        let classes = match classes {
            Ok(classes) => classes,
            Err(error) => return self.errors.push(error.into()),
        };
        let no_weights = hardware.cgroups.is_some_and(|cgroups| WeightFile::of(&cgroups).is_none());
        for (class, parameters) in &classes {
            let weighs = parameters.weight.is_some() || !parameters.device_weights.is_empty();
            if no_weights && weighs {
                self.errors.push(ClassSetError::NoWeights { class: class.clone() });
            }
        }
        let classes = classes.into_iter().map(|(name, of)| (name, Lowered::BlockIo(of)));
        self.add_imported(BLOCKIO, classes.collect(), imported);
    }

    /// Adds an official resource with the settings of the class file.
    fn add_imported<T>(
        &mut self,
        name: &'static str,
        classes: BTreeMap<String, Lowered>,
        imported: Option<&Imported<T>>,
    ) {
        let capacities = imported.map(|of| &of.capacities);
        let default = imported.and_then(|of| of.default.clone());
        let named = capacities.into_iter().flatten().map(|(class, _)| ("capacities", class));
        for (field, class) in named.chain(default.iter().map(|class| ("default", class))) {
            if !classes.contains_key(class) {
                let class = class.clone();
                self.errors.push(ClassSetError::NoSuchClass { resource: name, field, class });
            }
        }
        let capacity = |class: &str| {
            capacities.and_then(|of| of.get(class)).copied().unwrap_or(Capacity::UNLIMITED)
        };
        let classes = classes.into_iter().map(|(class, lowered)| {
            let capacity = capacity(&class);
            (class, Class { capacity, lowered })
        });
        let resource = Resource {
            level: Level::Container,
            mutable: imported.is_some_and(|of| of.mutable),
            default,
            classes: classes.collect(),
        };
        self.set.resources.insert(name.to_owned(), resource);
    }

    fn own(&mut self, file: &ClassFile, hardware: &Hardware) {
        let v1 = hardware.cgroups.is_some_and(|cgroups| cgroups.version == CgroupVersion::V1);
        for (name, resource) in &file.resources {
            for (class, definition) in &resource.classes {
                if let Effect::Memory(memory) = &definition.effect
                    && let Some((file, _)) = memory.unified().first_key_value()
                    && v1
                {
                    self.errors.push(ClassSetError::NeedsCgroupV2 {
                        resource: name.clone(),
                        class: class.clone(),
                        file,
                    });
                }
            }
            let classes = resource.classes.iter().map(|(name, class)| {
                let (capacity, lowered) = (class.capacity, Lowered::Own(class.effect.clone()));
                (name.clone(), Class { capacity, lowered })
            });
            let resource = Resource {
                level: resource.level,
                mutable: resource.mutable,
                default: resource.default.clone(),
                classes: classes.collect(),
            };
            self.set.resources.insert(name.clone(), resource);
        }
    }
}
