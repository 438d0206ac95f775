//! Our own machine file: what `berth topology -o json|yaml` writes and `--from FILE` reads.
//!
//! Main entries: [`parse`], [`render_json`], [`render_yaml`]. CPUs are given one by one (`cpus`)
//! or, shorter, as CPU lists of cores, sockets, nodes and caches:
//!
//! ```yaml
//! apiVersion: berth.dev/v1alpha1
//! kind: Machine
//! metadata: {name: small}
//! os: linux
//! cores: ["0,2", "1,3"]                       # left out: each CPU is a core
//! sockets: [{id: 0, cpus: 0-3}]               # left out: one socket
//! nodes: [{id: 0, cpus: 0-3, memory: 16Gi}]
//! uncoreCaches: [{id: 0, cpus: 0-3}]          # left out: one per socket
//! ```
//!
//! `threads: 2` is short for cores of adjacent CPUs: 0-1, 2-3, ….

use std::collections::BTreeMap;

use objects::YamlError;
use objects::pod::OsName;
use serde::{Serialize, Serializer};
use thiserror::Error;

use super::{Machine, name_of};
use crate::topology::{Cpu, HugePages, NodeMemory, Parts, TopologyError};
use crate::{Bytes, CacheId, CoreId, CpuId, CpuSet, NumaId, SocketId};
use objects::yaml::write;

mod read;

pub const API_VERSION: &str = "berth.dev/v1alpha1";
pub const KIND: &str = "Machine";

/// Why a file is not a machine of ours.
#[derive(Debug, Error)]
pub enum FileError {
    #[error("{}", one_per_line(.0))]
    Text(Vec<YamlError>),
    #[error("both cpus and {0} are given: describe each CPU in cpus, or use CPU lists, not both")]
    TwoForms(&'static str),
    #[error("neither cpus nor nodes with CPU lists are given: the machine would have no CPU")]
    NoCpus,
    #[error("CPU {cpu} is in two {what}, {first} and {second}")]
    Twice { cpu: CpuId, what: &'static str, first: u32, second: u32 },
    #[error("CPUs {cpus} are in no node but {what} names them; add them to a node's cpus")]
    Unknown { cpus: Box<CpuSet>, what: &'static str },
    #[error("CPUs {cpus} are in none of the {what}; add them or leave {what} out")]
    Missing { cpus: Box<CpuSet>, what: &'static str },
    #[error("both cores and threads are given; threads is short for cores with adjacent CPUs")]
    CoresAndThreads,
    #[error("threads is {0}; it is how many CPUs each core has, from 1 to 64")]
    Threads(u32),
    #[error("a core is empty; each entry of cores is the CPU list of one core")]
    EmptyCore,
    #[error("the description contradicts itself: {0}")]
    Topology(#[from] TopologyError),
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    api_version: String,
    kind: String,
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    metadata: Metadata,
    os: OsName,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cpus: Vec<Cpu>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cores: Vec<CpuSet>,
    #[serde(skip_serializing_if = "Option::is_none")]
    threads: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sockets: Vec<Listed>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nodes: Vec<Node>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    uncore_caches: Vec<Listed>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    distances: Vec<Vec<u32>>,
}

#[derive(Default, Serialize)]
struct Metadata {
    name: String,
}

impl Metadata {
    fn is_empty(&self) -> bool {
        self.name.is_empty()
    }
}

#[derive(Serialize)]
struct Listed {
    id: u32,
    cpus: CpuSet,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    id: u32,
    #[serde(skip_serializing_if = "CpuSet::is_empty")]
    cpus: CpuSet,
    #[serde(serialize_with = "with_unit")]
    memory: Bytes,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    huge_pages: Vec<Pages>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Pages {
    #[serde(serialize_with = "with_unit")]
    page_size: Bytes,
    count: u64,
}

fn with_unit<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(bytes)
}

/// Reads a machine file in YAML or JSON.
pub fn parse(text: &str) -> Result<Machine, FileError> {
    machine(read::document(text).map_err(FileError::Text)?)
}

fn one_per_line(errors: &[YamlError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// The file of a machine, as JSON without white space.
#[must_use]
pub fn render_compact(machine: &Machine) -> String {
    // The document has only string keys and finite numbers, so this cannot fail.
    serde_json::to_string(&document(machine)).unwrap_or_default()
}

/// The file of a machine, as pretty JSON.
#[must_use]
pub fn render_json(machine: &Machine) -> String {
    write::pretty_json(&render_compact(machine))
}

/// The file of a machine, as YAML.
#[must_use]
pub fn render_yaml(machine: &Machine) -> String {
    write::fields(&render_compact(machine))
}

/// The file of a machine as a value, for other notations.
#[must_use]
pub fn to_value(machine: &Machine) -> serde_json::Value {
    // Cannot fail, for the same reason.
    serde_json::to_value(document(machine)).unwrap_or_default()
}

fn document(machine: &Machine) -> Document {
    let topology = &machine.topology;
    // CPU lists name a core after its lowest CPU; other names need the long form.
    let short =
        topology.cores().iter().all(|core| core.cpus.first().map(|c| c.0) == Some(core.id.0));
    let list = |id: u32, cpus: &CpuSet| Listed { id, cpus: cpus.clone() };
    let mut document = Document {
        api_version: API_VERSION.to_owned(),
        kind: KIND.to_owned(),
        metadata: Metadata { name: name_of(&machine.name) },
        os: machine.os,
        cpus: Vec::new(),
        cores: Vec::new(),
        threads: None,
        sockets: Vec::new(),
        nodes: topology
            .nodes()
            .iter()
            .map(|node| Node {
                id: node.id.0,
                cpus: if short { node.cpus.clone() } else { CpuSet::new() },
                memory: node.memory,
                huge_pages: node
                    .huge_pages
                    .iter()
                    .map(|p| Pages { page_size: p.page_size, count: p.count })
                    .collect(),
            })
            .collect(),
        uncore_caches: Vec::new(),
        distances: topology.distances().map(<[_]>::to_vec).unwrap_or_default(),
    };
    if short {
        if topology.cores().len() < topology.cpus().len() {
            document.cores = topology.cores().iter().map(|core| core.cpus.clone()).collect();
        }
        document.sockets = topology.sockets().iter().map(|s| list(s.id.0, &s.cpus)).collect();
        document.uncore_caches = topology.caches().iter().map(|c| list(c.id.0, &c.cpus)).collect();
    } else {
        document.cpus = topology.cpus().to_vec();
    }
    document
}

fn machine(document: Document) -> Result<Machine, FileError> {
    let cpus = if document.cpus.is_empty() {
        from_lists(&document)?
    } else {
        let other = [
            ("cores", document.cores.is_empty()),
            ("threads", document.threads.is_none()),
            ("sockets", document.sockets.is_empty()),
            ("uncoreCaches", document.uncore_caches.is_empty()),
            ("nodes' cpus", document.nodes.iter().all(|n| n.cpus.is_empty())),
        ];
        if let Some((form, _)) = other.iter().find(|(_, absent)| !absent) {
            return Err(FileError::TwoForms(form));
        }
        document.cpus
    };
    let nodes = document
        .nodes
        .into_iter()
        .map(|node| NodeMemory {
            numa: NumaId(node.id),
            memory: node.memory,
            huge_pages: node
                .huge_pages
                .into_iter()
                .map(|p| HugePages { page_size: p.page_size, count: p.count })
                .collect(),
        })
        .collect();
    let parts = Parts { cpus, nodes, distances: document.distances };
    Ok(Machine::new(document.metadata.name, document.os, parts)?)
}

fn from_lists(document: &Document) -> Result<Vec<Cpu>, FileError> {
    let nodes = labels("nodes", document.nodes.iter().map(|n| (n.id, &n.cpus)))?;
    let all: CpuSet = nodes.keys().copied().collect();
    if all.is_empty() {
        return Err(FileError::NoCpus);
    }
    let core = cores(document, &all)?;
    let listed =
        |what: &'static str, lists: &[Listed]| -> Result<BTreeMap<CpuId, u32>, FileError> {
            let labels = labels(what, lists.iter().map(|l| (l.id, &l.cpus)))?;
            if !lists.is_empty() {
                covers(what, &all, &labels.keys().copied().collect())?;
            }
            Ok(labels)
        };
    let sockets = listed("sockets", &document.sockets)?;
    let caches = listed("uncoreCaches", &document.uncore_caches)?;
    let cpu = |cpu: CpuId| {
        let socket = sockets.get(&cpu).copied().unwrap_or(0);
        Cpu {
            cpu,
            core: core.get(&cpu).copied().unwrap_or(CoreId(cpu.0)),
            socket: SocketId(socket),
            numa: NumaId(nodes.get(&cpu).copied().unwrap_or(0)),
            cache: CacheId(caches.get(&cpu).copied().unwrap_or(socket)),
        }
    };
    Ok(all.iter().map(cpu).collect())
}

fn cores(document: &Document, all: &CpuSet) -> Result<BTreeMap<CpuId, CoreId>, FileError> {
    match document.threads {
        Some(_) if !document.cores.is_empty() => return Err(FileError::CoresAndThreads),
        Some(threads @ 1..=64) => {
            let mut cores: BTreeMap<u32, CoreId> = BTreeMap::new();
            // Aligned by number, so a core with an offline CPU keeps its other one.
            let core = |cpu: CpuId| (cpu, *cores.entry(cpu.0 / threads).or_insert(CoreId(cpu.0)));
            return Ok(all.iter().map(core).collect());
        }
        Some(threads) => return Err(FileError::Threads(threads)),
        None if document.cores.is_empty() => return Ok(BTreeMap::new()),
        None => {}
    }
    let first = |cpus: &CpuSet| cpus.first().ok_or(FileError::EmptyCore);
    let lists: Vec<(u32, &CpuSet)> = document
        .cores
        .iter()
        .map(|cpus| Ok((first(cpus)?.0, cpus)))
        .collect::<Result<_, FileError>>()?;
    let cores = labels("cores", lists.into_iter())?;
    covers("cores", all, &cores.keys().copied().collect())?;
    Ok(cores.into_iter().map(|(cpu, core)| (cpu, CoreId(core))).collect())
}

fn covers(what: &'static str, all: &CpuSet, listed: &CpuSet) -> Result<(), FileError> {
    let (unknown, missing) = (listed - all, all - listed);
    if !unknown.is_empty() {
        return Err(FileError::Unknown { cpus: Box::new(unknown), what });
    }
    if !missing.is_empty() {
        return Err(FileError::Missing { cpus: Box::new(missing), what });
    }
    Ok(())
}

/// CPU → the id of the list it is in.
fn labels<'a>(
    what: &'static str,
    lists: impl Iterator<Item = (u32, &'a CpuSet)>,
) -> Result<BTreeMap<CpuId, u32>, FileError> {
    let mut labels = BTreeMap::new();
    for (id, cpus) in lists {
        for cpu in cpus {
            if let Some(first) = labels.insert(cpu, id) {
                return Err(FileError::Twice { cpu, what, first, second: id });
            }
        }
    }
    Ok(labels)
}
