//! Berth's own class file, which names all QoS-class resources of a node.
//!
//! Main type: [`ClassFile`]; entry: [`ClassFile::parse`]. It holds or references the RDT and block
//! I/O files in goresctrl's format and defines resources of its own: resource limits, memory and
//! scheduling. [`crate::class_set`] checks it against a machine.
//!
//! ```yaml
//! apiVersion: berth.dev/v1alpha1
//! kind: ClassFile
//! rdt: {configFile: /etc/containers/rdt.yaml, default: silver, capacities: {gold: 2}}
//! blockio:
//!   config: {Classes: {slow: [{Devices: [/dev/sd*], ThrottleReadBps: 10M}]}}
//! resources:
//! - name: example.com/files
//!   classes:
//!   - {name: many, capacity: 4, rlimits: [{type: RLIMIT_NOFILE, soft: 65536, hard: 65536}]}
//! - name: example.com/memory
//!   mutable: true
//!   classes: [{name: protected, memory: {min: 1Gi, high: 4Gi}}]
//! - name: example.com/latency
//!   classes: [{name: batch, scheduling: {policy: SCHED_BATCH, nice: 5}}]
//! ```

use std::collections::BTreeMap;

use objects::yaml::YamlError;
use serde::Serialize;
use serde::ser::Serializer;

use crate::{blockio, rdt};

mod read;
#[cfg(test)]
mod tests;

pub const API_VERSION: &str = "berth.dev/v1alpha1";
pub const KIND: &str = "ClassFile";

/// A whole file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassFile {
    pub rdt: Option<Imported<rdt::Config>>,
    pub blockio: Option<Imported<blockio::Config>>,
    /// Resources of Berth's own, by name.
    pub resources: BTreeMap<String, Resource>,
}

/// An official resource, whose classes are defined in goresctrl's format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported<T> {
    pub definition: Definition<T>,
    pub default: Option<String>,
    pub mutable: bool,
    /// The capacity of classes; others are unlimited.
    pub capacities: BTreeMap<String, Capacity>,
}

/// The place of a definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Definition<T> {
    Inline(T),
    /// The path of a file.
    File(String),
}

/// The number of containers or pods that can have a class at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Capacity(pub u64);

impl Capacity {
    pub const UNLIMITED: Capacity = Capacity(0);
}

/// The entity that has a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Level {
    #[default]
    Container,
    Pod,
}

/// A resource of Berth's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resource {
    pub level: Level,
    pub mutable: bool,
    pub default: Option<String>,
    pub classes: BTreeMap<String, Class>,
}

/// A class of a resource of Berth's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    pub capacity: Capacity,
    pub effect: Effect,
}

/// The effect of a class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Effect {
    /// Resource limits of processes, one of each type.
    Rlimits(Vec<Rlimit>),
    Memory(Memory),
    Scheduling(Scheduling),
}

/// A resource limit of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Rlimit {
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub soft: Limit,
    pub hard: Limit,
}

/// The value of a resource limit; the largest one means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Limit(pub u64);

impl Limit {
    pub const UNLIMITED: Limit = Limit(u64::MAX);
}

/// The types of resource limits on Linux.
pub const RLIMIT_TYPES: &[&str] = &[
    "RLIMIT_AS",
    "RLIMIT_CORE",
    "RLIMIT_CPU",
    "RLIMIT_DATA",
    "RLIMIT_FSIZE",
    "RLIMIT_LOCKS",
    "RLIMIT_MEMLOCK",
    "RLIMIT_MSGQUEUE",
    "RLIMIT_NICE",
    "RLIMIT_NOFILE",
    "RLIMIT_NPROC",
    "RLIMIT_RSS",
    "RLIMIT_RTPRIO",
    "RLIMIT_RTTIME",
    "RLIMIT_SIGPENDING",
    "RLIMIT_STACK",
];

/// Memory protection and limits of a cgroup, and its behaviour when memory runs out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Memory {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_max: Option<Bytes>,
    /// The kernel kills all processes of the container, or a single one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_group: Option<bool>,
    /// The value of `oom_score_adj`, from -1000 to 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_score_adj: Option<i64>,
}

impl Memory {
    /// Returns the files of cgroup v2 and their values.
    #[must_use]
    pub fn unified(&self) -> BTreeMap<&'static str, String> {
        let bytes = [
            ("memory.min", self.min),
            ("memory.low", self.low),
            ("memory.high", self.high),
            ("memory.swap.max", self.swap_max),
        ];
        let bytes = bytes.into_iter().filter_map(|(file, of)| Some((file, of?.0.to_string())));
        let group = self.oom_group.map(|group| ("memory.oom.group", u8::from(group).to_string()));
        bytes.chain(group).collect()
    }
}

/// An amount of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// CPU and I/O scheduling of processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Scheduling {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_priority: Option<IoPriority>,
}

/// A scheduling policy with the parameter that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "policy")]
pub enum Policy {
    #[serde(rename = "SCHED_OTHER")]
    Other { nice: Nice },
    #[serde(rename = "SCHED_BATCH")]
    Batch { nice: Nice },
    #[serde(rename = "SCHED_IDLE")]
    Idle,
    #[serde(rename = "SCHED_FIFO")]
    Fifo { priority: RealTimePriority },
    #[serde(rename = "SCHED_RR")]
    RoundRobin { priority: RealTimePriority },
}

/// A nice value, from -20 to 19.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Nice(pub i8);

/// A priority of real-time policies, from 1 to 99.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct RealTimePriority(pub u8);

/// An I/O priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoPriority {
    /// With a level from 0, the highest, to 7.
    RealTime(u8),
    BestEffort(u8),
    Idle,
}

impl Serialize for IoPriority {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (class, priority) = match self {
            IoPriority::RealTime(level) => ("IOPRIO_CLASS_RT", *level),
            IoPriority::BestEffort(level) => ("IOPRIO_CLASS_BE", *level),
            IoPriority::Idle => ("IOPRIO_CLASS_IDLE", 0),
        };
        serde_json::json!({"class": class, "priority": priority}).serialize(serializer)
    }
}

impl ClassFile {
    /// Reads a file. All errors are returned, each with its line and field.
    pub fn parse(text: &str) -> Result<ClassFile, Vec<YamlError>> {
        read::class_file(text)
    }

    /// Returns the paths of referenced files.
    #[must_use]
    pub fn references(&self) -> Vec<&str> {
        let rdt = self.rdt.as_ref().and_then(|of| of.definition.path());
        let blockio = self.blockio.as_ref().and_then(|of| of.definition.path());
        rdt.into_iter().chain(blockio).collect()
    }
}

impl<T> Definition<T> {
    /// Returns the path of the referenced file; `None` for a definition in the class file itself.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        match self {
            Definition::Inline(_) => None,
            Definition::File(path) => Some(path),
        }
    }
}
