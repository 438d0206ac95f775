//! A Windows machine's topology from the raw bytes of `GetLogicalProcessorInformationEx`.
//!
//! Main types: [`Processors`] (the checked records) and the [`Topology`] built from it. The bytes
//! are parsed by hand as little-endian, so the module runs on every system, and no hostile length
//! can cause a read outside the buffer. The calls that fetch the bytes are in [`crate::os`]; the
//! writer for tests and recorded vectors is in [`buffer`].

use std::collections::BTreeMap;

use placement::topology::{Cpu, NodeMemory, Parts, TopologyError};
use placement::windows::{GroupAffinity, GroupId, GroupTooHigh};
use placement::{Bytes, CacheId, CoreId, CpuId, CpuSet, NumaId, SocketId, Topology, windows};
use thiserror::Error;

use crate::anomaly::Anomaly;

pub mod buffer;

/// The values of `LOGICAL_PROCESSOR_RELATIONSHIP` that are used here.
mod relation {
    pub(super) const CORE: u32 = 0;
    pub(super) const NUMA_NODE: u32 = 1;
    pub(super) const CACHE: u32 = 2;
    pub(super) const PACKAGE: u32 = 3;
    pub(super) const GROUP: u32 = 4;
    pub(super) const NUMA_NODE_EX: u32 = 6;
}

/// `Relationship` and `Size`, with which every record begins.
const HEADER: usize = 8;
/// The offset of `GroupCount` in a core, package or NUMA node record; the masks follow it.
const GROUP_COUNT: usize = 30;
/// The same offset in a cache record.
const CACHE_GROUP_COUNT: usize = 38;
/// `GROUP_AFFINITY`: a 64-bit mask, a 16-bit group and 6 bytes of padding.
const AFFINITY: usize = 16;
/// The offset of the group entries in a group record, the length of one, and the offset of its
/// mask.
const GROUP_INFO: usize = 32;
const GROUP_INFO_SIZE: usize = 48;
const GROUP_INFO_MASK: usize = 40;

/// The reason why a buffer is not one that Windows returns. Offsets are those of the record.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BufferError {
    // The text begins like the kubelet's.
    #[error(
        "remaining buffer too small while reading windows processor relationship: {left} bytes \
         are left at offset {offset}, the record needs {needed}"
    )]
    Truncated { offset: usize, left: usize, needed: usize },
    #[error(
        "the record at offset {offset} says it is {size} bytes long; a record of relationship \
         {relationship} has at least {least}"
    )]
    TooSmall { offset: usize, relationship: u32, size: usize, least: usize },
    #[error(
        "the record at offset {offset} counts {count} groups, which do not fit into its {size} bytes"
    )]
    GroupsOverrun { offset: usize, count: usize, size: usize },
    #[error("the record at offset {offset} names a group no machine has: {error}")]
    Group { offset: usize, error: GroupTooHigh },
    #[error("the record at offset {offset} describes NUMA node {node} a second time")]
    DuplicateNode { offset: usize, node: NumaId },
    #[error("the record at offset {offset} puts processors {cpus} into a second {what}")]
    Overlap { offset: usize, what: &'static str, cpus: Box<CpuSet> },
    #[error("the buffer has no record of a processor core")]
    NoCores,
    #[error("the records do not make a machine")]
    Topology(#[from] TopologyError),
}

/// A unified cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    pub level: u8,
    pub cpus: CpuSet,
}

/// The records of a buffer as sets of processors, in buffer order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processors {
    pub cores: Vec<CpuSet>,
    pub packages: Vec<CpuSet>,
    pub nodes: BTreeMap<NumaId, CpuSet>,
    pub caches: Vec<Cache>,
    /// The active processors of all groups; empty if the buffer has no group record.
    pub active: CpuSet,
}

impl Processors {
    /// Parses the result of `RelationAll` and, if available, of `RelationNumaNodeEx`: the latter
    /// has all groups of a node, the former may have only its first.
    pub fn parse(all: &[u8], full_nodes: Option<&[u8]>) -> Result<Processors, BufferError> {
        let mut processors = Processors::default();
        let mut full = BTreeMap::new();
        let mut named = NamedProcessors::default();
        for record in Records::of(all) {
            let record = record?;
            match record.relationship {
                relation::CORE => {
                    let cpus = record.cpus(GROUP_COUNT)?;
                    named.cores.add(&record, "core", &cpus)?;
                    processors.cores.push(cpus);
                }
                relation::PACKAGE => {
                    let cpus = record.cpus(GROUP_COUNT)?;
                    named.packages.add(&record, "package", &cpus)?;
                    processors.packages.push(cpus);
                }
                relation::NUMA_NODE => {
                    record.node(&mut processors.nodes, &mut named.nodes)?;
                }
                relation::NUMA_NODE_EX => record.node(&mut full, &mut named.full_nodes)?,
                relation::CACHE => processors.caches.extend(record.unified_cache()?),
                relation::GROUP => processors.active.union_with(&record.active()?),
                // Dies, modules, and records of later versions.
                _ => {}
            }
        }
        for record in Records::of(full_nodes.unwrap_or_default()) {
            let record = record?;
            // The result has either relationship, depending on the version.
            if matches!(record.relationship, relation::NUMA_NODE | relation::NUMA_NODE_EX) {
                record.node(&mut full, &mut named.full_nodes)?;
            }
        }
        processors.nodes.extend(full);
        if processors.cores.is_empty() {
            return Err(BufferError::NoCores);
        }
        Ok(processors)
    }

    /// Builds the topology. `memory` is the available memory of each node; a missing node has none.
    pub fn topology(
        &self,
        memory: &BTreeMap<NumaId, Bytes>,
    ) -> Result<(Topology, Vec<Anomaly>), BufferError> {
        let mut anomalies = Vec::new();
        let mut all = CpuSet::new();
        self.cores.iter().for_each(|core| all.union_with(core));
        let idle = &self.active - &all;
        if !idle.is_empty() {
            anomalies.push(Anomaly::ActiveWithoutCore { cpus: idle });
        }

        let mut socket_of = BTreeMap::new();
        for (index, cpus) in self.packages.iter().enumerate() {
            // Packages have no number; the kubelet counts them from 1.
            let socket = SocketId(u32::try_from(index + 1).unwrap_or(u32::MAX));
            socket_of.extend(cpus.iter().map(|cpu| (cpu, socket)));
        }
        let assumed = SocketId(1);
        let cpus = missing(&all, &socket_of);
        if !cpus.is_empty() {
            anomalies.push(Anomaly::NoPackage { cpus, assumed });
        }

        let mut node_of = BTreeMap::new();
        for (node, cpus) in &self.nodes {
            for cpu in cpus {
                let first = *node_of.entry(cpu).or_insert(*node);
                if first != *node {
                    anomalies.push(Anomaly::InTwoNodes { cpu, first, second: *node });
                }
            }
        }
        let fallback = self.nodes.keys().next().copied().unwrap_or(NumaId(0));
        let cpus = missing(&all, &node_of);
        if self.nodes.is_empty() {
            anomalies.push(Anomaly::NoNumaNodes { assumed: fallback });
        } else if !cpus.is_empty() {
            anomalies.push(Anomaly::NoNode { cpus, assumed: fallback });
        }

        let mut core_of: BTreeMap<CpuId, CoreId> = BTreeMap::new();
        for cpus in &self.cores {
            let mut parts: BTreeMap<(SocketId, NumaId), CoreId> = BTreeMap::new();
            for cpu in cpus {
                let seat = (
                    socket_of.get(&cpu).copied().unwrap_or(assumed),
                    node_of.get(&cpu).copied().unwrap_or(fallback),
                );
                core_of.insert(cpu, *parts.entry(seat).or_insert(CoreId(cpu.0)));
            }
            if let (true, Some(first)) = (parts.len() > 1, cpus.first()) {
                anomalies.push(Anomaly::CoreSplit { core: CoreId(first.0), cpus: cpus.clone() });
            }
        }
        let cache_of = self.uncore_caches(&all, &socket_of, assumed, &mut anomalies);

        let seat = |(cpu, core): (&CpuId, &CoreId)| Cpu {
            cpu: *cpu,
            core: *core,
            socket: socket_of.get(cpu).copied().unwrap_or(assumed),
            numa: node_of.get(cpu).copied().unwrap_or(fallback),
            cache: cache_of.get(cpu).copied().unwrap_or(CacheId(0)),
        };
        let cpus = core_of.iter().map(seat).collect();
        let mut nodes: Vec<NumaId> = self.nodes.keys().copied().collect();
        if nodes.is_empty() {
            nodes.push(fallback);
        }
        let nodes = nodes
            .into_iter()
            .map(|numa| NodeMemory {
                numa,
                memory: memory.get(&numa).copied().unwrap_or(Bytes::ZERO),
                huge_pages: Vec::new(),
            })
            .collect();
        let topology = Topology::new(Parts { cpus, nodes, distances: Vec::new() })?;
        Ok((topology, anomalies))
    }

    /// Returns the L3 cache of each CPU, named after its lowest CPU, because Windows gives caches
    /// no id. A CPU without an L3 gets its socket, as on Linux.
    fn uncore_caches(
        &self,
        all: &CpuSet,
        socket_of: &BTreeMap<CpuId, SocketId>,
        assumed: SocketId,
        anomalies: &mut Vec<Anomaly>,
    ) -> BTreeMap<CpuId, CacheId> {
        let mut cache_of = BTreeMap::new();
        for cache in self.caches.iter().filter(|cache| cache.level >= 3) {
            let cpus = &cache.cpus & all;
            let Some(first) = cpus.first() else { continue };
            for cpu in &cpus {
                cache_of.entry(cpu).or_insert(CacheId(first.0));
            }
        }
        let without = missing(all, &cache_of);
        if without.is_empty() {
            return cache_of;
        }
        let by_socket = cache_of.is_empty();
        let mut lowest = BTreeMap::new();
        for cpu in &without {
            let socket = socket_of.get(&cpu).copied().unwrap_or(assumed);
            // The CPUs of a socket without an L3 form one cache, named after the lowest of them.
            let stand_in = *lowest.entry(socket).or_insert(cpu);
            cache_of.insert(cpu, CacheId(if by_socket { socket.0 } else { stand_in.0 }));
        }
        anomalies.push(Anomaly::NoCache { cpus: without });
        cache_of
    }
}

fn missing<V>(all: &CpuSet, known: &BTreeMap<CpuId, V>) -> CpuSet {
    all.iter().filter(|cpu| !known.contains_key(cpu)).collect()
}

/// The processors named so far, to detect duplicates.
#[derive(Default)]
struct NamedProcessors {
    cores: DisjointCpus,
    packages: DisjointCpus,
    nodes: DisjointCpus,
    full_nodes: DisjointCpus,
}

#[derive(Default)]
struct DisjointCpus(CpuSet);

impl DisjointCpus {
    fn add(
        &mut self,
        record: &Record<'_>,
        what: &'static str,
        cpus: &CpuSet,
    ) -> Result<(), BufferError> {
        if !self.0.is_disjoint(cpus) {
            let cpus = Box::new(&self.0 & cpus);
            return Err(BufferError::Overlap { offset: record.offset, what, cpus });
        }
        self.0.union_with(cpus);
        Ok(())
    }
}

/// The records of a buffer; ends after the first unreadable one.
struct Records<'a> {
    buffer: &'a [u8],
    offset: usize,
}

impl<'a> Records<'a> {
    fn of(buffer: &'a [u8]) -> Records<'a> {
        Records { buffer, offset: 0 }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, BufferError>;

    fn next(&mut self) -> Option<Self::Item> {
        let offset = self.offset;
        let rest = self.buffer.get(offset..).filter(|rest| !rest.is_empty())?;
        // In case of an error, the next call must not return the same record again.
        self.offset = self.buffer.len();
        let (Some(relationship), Some(size)) = (u32_at(rest, 0), u32_at(rest, 4)) else {
            let left = rest.len();
            return Some(Err(BufferError::Truncated { offset, left, needed: HEADER }));
        };
        let size = size as usize;
        // A size of 0 would loop for ever.
        if size < HEADER {
            let least = HEADER;
            return Some(Err(BufferError::TooSmall { offset, relationship, size, least }));
        }
        let Some(bytes) = rest.get(..size) else {
            let left = rest.len();
            return Some(Err(BufferError::Truncated { offset, left, needed: size }));
        };
        self.offset = offset + size;
        Some(Ok(Record { offset, relationship, bytes }))
    }
}

/// One record: exactly the bytes that its size claims, all inside the buffer.
struct Record<'a> {
    offset: usize,
    relationship: u32,
    bytes: &'a [u8],
}

impl Record<'_> {
    fn too_small(&self, least: usize) -> BufferError {
        BufferError::TooSmall {
            offset: self.offset,
            relationship: self.relationship,
            size: self.bytes.len(),
            least,
        }
    }

    /// Returns the processors of a record with the group count at `at`, followed by the masks.
    fn cpus(&self, at: usize) -> Result<CpuSet, BufferError> {
        let count = u16_at(self.bytes, at).ok_or_else(|| self.too_small(at + 2 + AFFINITY))?;
        // Older versions reserve this field as 0 and have one mask.
        let count = usize::from(count.max(1));
        let masks =
            self.bytes.get(at + 2..).and_then(|masks| masks.get(..count * AFFINITY)).ok_or(
                BufferError::GroupsOverrun { offset: self.offset, count, size: self.bytes.len() },
            )?;
        let mut groups = Vec::with_capacity(count);
        for mask in masks.chunks_exact(AFFINITY) {
            let (Some(bits), Some(group)) = (u64_at(mask, 0), u16_at(mask, 8)) else { continue };
            groups.push(self.affinity(group, bits)?);
        }
        Ok(windows::cpus_of(&groups))
    }

    fn affinity(&self, group: u16, mask: u64) -> Result<GroupAffinity, BufferError> {
        let group = GroupId::new(group.into())
            .map_err(|error| BufferError::Group { offset: self.offset, error })?;
        Ok(GroupAffinity { group, mask })
    }

    fn node(
        &self,
        nodes: &mut BTreeMap<NumaId, CpuSet>,
        claimed: &mut DisjointCpus,
    ) -> Result<(), BufferError> {
        let cpus = self.cpus(GROUP_COUNT)?;
        let node = u32_at(self.bytes, HEADER).ok_or_else(|| self.too_small(GROUP_COUNT))?;
        let node = NumaId(node);
        if nodes.contains_key(&node) {
            return Err(BufferError::DuplicateNode { offset: self.offset, node });
        }
        claimed.add(self, "NUMA node", &cpus)?;
        nodes.insert(node, cpus);
        Ok(())
    }

    fn unified_cache(&self) -> Result<Option<Cache>, BufferError> {
        let cpus = self.cpus(CACHE_GROUP_COUNT)?;
        let least = CACHE_GROUP_COUNT + 2 + AFFINITY;
        let level = *self.bytes.get(HEADER).ok_or_else(|| self.too_small(least))?;
        let kind = u32_at(self.bytes, 16).ok_or_else(|| self.too_small(least))?;
        Ok((kind == buffer::UNIFIED).then_some(Cache { level, cpus }))
    }

    fn active(&self) -> Result<CpuSet, BufferError> {
        let count = u16_at(self.bytes, 10).ok_or_else(|| self.too_small(GROUP_INFO))?;
        let infos = self.bytes.get(GROUP_INFO..).ok_or_else(|| self.too_small(GROUP_INFO))?;
        let count = usize::from(count);
        let infos = infos.get(..count * GROUP_INFO_SIZE).ok_or(BufferError::GroupsOverrun {
            offset: self.offset,
            count,
            size: self.bytes.len(),
        })?;
        let mut groups = Vec::with_capacity(count);
        for (group, info) in infos.chunks_exact(GROUP_INFO_SIZE).enumerate() {
            let Some(mask) = u64_at(info, GROUP_INFO_MASK) else { continue };
            // There are at most 65,535 groups, because the count has 16 bits.
            groups.push(self.affinity(u16::try_from(group).unwrap_or(u16::MAX), mask)?);
        }
        Ok(windows::cpus_of(&groups))
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..)?.first_chunk().copied()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..)?.first_chunk().copied()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..)?.first_chunk().copied()?))
}
