//! `memory_manager_state`: reads versions 1 to 3, writes version 3.
//!
//! Main type: [`MemoryState`]. It does not check that the numbers add up.

use std::collections::BTreeMap;

use crate::ids::{Bytes, NumaId};

use super::checkpoint::{Body, Checkpoint, Hashed};
use super::go_json::{
    Decode, DecodeError, Faults, Json, Map, Pointer, Slice, decode_fields, is_empty, map, object,
    slice, string,
};
use super::spew::{Dump, Field, Spew};
use super::{Gates, Manager, PerContainer, PerPod, StateFileError};

/// The state of the memory manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryState {
    /// Name of the policy that made the assignments: `None`, `Static` or `BestEffort`.
    pub policy: String,
    pub nodes: BTreeMap<NumaId, NodeState>,
    /// Memory containers have for themselves, in the order it was assigned.
    pub entries: PerContainer<Vec<Block>>,
    /// Memory pods have as a whole (gate `PodLevelResourceManagers`).
    pub pod_blocks: PerPod<Vec<Block>>,
}

/// One NUMA node's part in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeState {
    /// How many blocks lie on this node, alone or with others.
    pub assignments: i64,
    /// The nodes this one is grouped with, itself included.
    pub cells: Vec<NumaId>,
    /// Resource name (`memory`, `hugepages-2Mi`) → how it is used.
    pub memory: BTreeMap<String, MemoryTable>,
}

/// How one kind of memory on one node is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryTable {
    pub total: Bytes,
    pub system_reserved: Bytes,
    pub allocatable: Bytes,
    pub reserved: Bytes,
    pub free: Bytes,
}

/// An amount of one kind of memory on one or several nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub numa: Vec<NumaId>,
    /// Resource name: `memory`, `hugepages-2Mi`.
    pub resource: String,
    pub size: Bytes,
}

impl MemoryState {
    /// The state before anything was assigned, which is also that of a missing file.
    #[must_use]
    pub fn empty(policy: impl Into<String>) -> MemoryState {
        MemoryState { policy: policy.into(), ..MemoryState::default() }
    }

    /// Reads a file. `policy` is the configured one; a file made by another is refused.
    pub fn parse(
        content: &[u8],
        policy: &str,
        gates: Gates,
    ) -> Result<MemoryState, StateFileError> {
        let body: MemoryBody = Checkpoint::open(content, policy, gates)?;
        let nodes = body
            .nodes
            .unwrap_or_default()
            .into_iter()
            .map(|(id, node)| {
                let node = node.ok_or(StateFileError::NullNode(id))?;
                Ok((node_id(id)?, node.into_state(id)?))
            })
            .collect::<Result<_, _>>()?;
        let mut entries = PerContainer::new();
        for (pod, containers) in body.entries.unwrap_or_default() {
            let own = entries.entry(pod).or_insert_with(BTreeMap::new);
            for (container, blocks) in containers.unwrap_or_default() {
                own.insert(container, into_blocks(blocks)?);
            }
        }
        let mut pod_blocks = PerPod::new();
        if gates.pod_level_resource_managers {
            for (pod, entry) in body.pods.unwrap_or_default() {
                pod_blocks.insert(pod, into_blocks(entry.blocks)?);
            }
        }
        Ok(MemoryState { policy: policy.to_owned(), nodes, entries, pod_blocks })
    }

    /// Renders the file as a kubelet writes it.
    #[must_use]
    pub fn render(&self) -> String {
        self.checkpoint().render()
    }

    /// Returns the text whose hash is `checksum` in the rendered file.
    #[must_use]
    pub fn checksum_preimage(&self) -> String {
        self.checkpoint().checksum_preimage()
    }

    /// Returns the text whose hash is `dataChecksum` in the rendered file.
    #[must_use]
    pub fn data_checksum_preimage(&self) -> String {
        self.checkpoint().data_checksum_preimage()
    }

    fn checkpoint(&self) -> Checkpoint<MemoryBody> {
        let containers = |own: &PerPod<Vec<Block>>| {
            Some(own.iter().map(|(name, blocks)| (name.clone(), wire_blocks(blocks))).collect())
        };
        let nodes = self.nodes.iter();
        let pods = self.pod_blocks.iter();
        let body = MemoryBody {
            nodes: Some(
                nodes.map(|(id, node)| (id.0.into(), Some(Box::new(node.into())))).collect(),
            ),
            entries: Some(
                self.entries.iter().map(|(pod, own)| (pod.clone(), containers(own))).collect(),
            ),
            pods: Some(
                pods.map(|(pod, blocks)| (pod.clone(), PodEntry { blocks: wire_blocks(blocks) }))
                    .collect(),
            ),
        };
        Checkpoint::new(&self.policy, body)
    }
}

fn node_id(id: i64) -> Result<NumaId, StateFileError> {
    u32::try_from(id).map(NumaId).map_err(|_| StateFileError::NoSuchNode(id))
}

fn node_ids(ids: Slice<i64>) -> Result<Vec<NumaId>, StateFileError> {
    ids.unwrap_or_default().into_iter().map(node_id).collect()
}

fn into_blocks(blocks: Slice<WireBlock>) -> Result<Vec<Block>, StateFileError> {
    blocks
        .unwrap_or_default()
        .into_iter()
        .map(|block| {
            Ok(Block {
                numa: node_ids(block.numa)?,
                resource: block.resource,
                size: Bytes(block.size),
            })
        })
        .collect()
}

/// The manager's fields in the file.
#[derive(Debug)]
pub(super) struct MemoryBody {
    nodes: Map<i64, Pointer<WireNode>>,
    entries: Map<String, Map<String, Slice<WireBlock>>>,
    pods: Map<String, PodEntry>,
}

impl Default for MemoryBody {
    /// Maps start out empty, not nil: a field that is missing counts as empty in the hash.
    fn default() -> MemoryBody {
        MemoryBody { nodes: Some([].into()), entries: Some([].into()), pods: Some([].into()) }
    }
}

impl Body for MemoryBody {
    const MANAGER: Manager = Manager::Memory;
    const FIELDS: [&'static str; 2] = ["machineState", "entries"];
    const DATA_FIELDS: &'static [&'static str] = &["podEntries"];

    fn decode(
        &mut self,
        field: &'static str,
        json: &Json,
        faults: &mut Faults,
    ) -> Result<(), DecodeError> {
        match field {
            "machineState" => self.nodes.decode(json, field, faults),
            "entries" => self.entries.decode(json, field, faults),
            _ => self.pods.decode(json, field, faults),
        }
    }

    fn type_names(_: Hashed, _: Gates) -> &'static [&'static str] {
        &["state.MemoryManagerCheckpoint"]
    }

    fn dumped(&self) -> [Field<'_>; 3] {
        [
            ("MachineState", "state.NUMANodeMap", &self.nodes),
            ("Entries", "state.ContainerMemoryAssignments", &self.entries),
            ("PodEntries", "state.PodMemoryAssignments", &self.pods),
        ]
    }

    fn members(&self) -> Vec<(&'static str, String)> {
        let node = |node: &Pointer<WireNode>| match node {
            None => "null".to_owned(),
            Some(node) => node.json(),
        };
        let mut members = vec![("machineState", map(&self.nodes, node))];
        if !is_empty(&self.entries) {
            let blocks = |blocks: &Slice<WireBlock>| slice(blocks, WireBlock::json);
            members.push(("entries", map(&self.entries, |c| map(c, blocks))));
        }
        members
    }

    fn data_members(&self) -> Vec<(&'static str, String)> {
        if is_empty(&self.pods) {
            return Vec::new();
        }
        vec![("podEntries", map(&self.pods, PodEntry::json))]
    }
}

fn wire_ids(ids: &[NumaId]) -> Slice<i64> {
    Some(ids.iter().map(|id| id.0.into()).collect())
}

fn wire_blocks(blocks: &[Block]) -> Slice<WireBlock> {
    let wire = |block: &Block| WireBlock {
        numa: wire_ids(&block.numa),
        resource: block.resource.clone(),
        size: block.size.0,
    };
    Some(blocks.iter().map(wire).collect())
}

/// [`NodeState`] as it stands in the file.
#[derive(Debug, Default)]
struct WireNode {
    assignments: i64,
    memory: Map<String, Pointer<WireTable>>,
    cells: Slice<i64>,
}

impl WireNode {
    fn into_state(self, id: i64) -> Result<NodeState, StateFileError> {
        let mut memory = BTreeMap::new();
        for (resource, table) in self.memory.unwrap_or_default() {
            match table {
                Some(table) => memory.insert(resource, (*table).into()),
                None => return Err(StateFileError::NullTable { node: id, resource }),
            };
        }
        Ok(NodeState { assignments: self.assignments, cells: node_ids(self.cells)?, memory })
    }

    fn json(&self) -> String {
        let table = |table: &Pointer<WireTable>| match table {
            None => "null".to_owned(),
            Some(table) => table.json(),
        };
        object([
            ("numberOfAssignments", self.assignments.to_string()),
            ("memoryMap", map(&self.memory, table)),
            ("cells", slice(&self.cells, i64::to_string)),
        ])
    }
}

impl From<&NodeState> for WireNode {
    fn from(node: &NodeState) -> WireNode {
        let tables = node.memory.iter();
        WireNode {
            assignments: node.assignments,
            memory: Some(
                tables.map(|(name, t)| (name.clone(), Some(Box::new((*t).into())))).collect(),
            ),
            cells: wire_ids(&node.cells),
        }
    }
}

impl Decode for WireNode {
    fn decode(&mut self, json: &Json, name: &str, faults: &mut Faults) -> Result<(), DecodeError> {
        let fields = &["numberOfAssignments", "memoryMap", "cells"];
        decode_fields(json, name, fields, faults, |field, json, faults| match field {
            "numberOfAssignments" => self.assignments.decode(json, field, faults),
            "memoryMap" => self.memory.decode(json, field, faults),
            _ => self.cells.decode(json, field, faults),
        })
    }
}

impl Dump for WireNode {
    fn dump(&self, spew: &mut Spew) {
        spew.structure(&[
            ("NumberOfAssignments", "int", &self.assignments),
            ("MemoryMap", "map[v1.ResourceName]*state.MemoryTable", &self.memory),
            ("Cells", "[]int", &self.cells),
        ]);
    }
}

/// [`MemoryTable`] as it stands in the file.
#[derive(Debug, Default)]
struct WireTable {
    total: u64,
    system_reserved: u64,
    allocatable: u64,
    reserved: u64,
    free: u64,
}

impl WireTable {
    fn json(&self) -> String {
        object([
            ("total", self.total.to_string()),
            ("systemReserved", self.system_reserved.to_string()),
            ("allocatable", self.allocatable.to_string()),
            ("reserved", self.reserved.to_string()),
            ("free", self.free.to_string()),
        ])
    }
}

impl From<WireTable> for MemoryTable {
    fn from(table: WireTable) -> MemoryTable {
        MemoryTable {
            total: Bytes(table.total),
            system_reserved: Bytes(table.system_reserved),
            allocatable: Bytes(table.allocatable),
            reserved: Bytes(table.reserved),
            free: Bytes(table.free),
        }
    }
}

impl From<MemoryTable> for WireTable {
    fn from(table: MemoryTable) -> WireTable {
        WireTable {
            total: table.total.0,
            system_reserved: table.system_reserved.0,
            allocatable: table.allocatable.0,
            reserved: table.reserved.0,
            free: table.free.0,
        }
    }
}

impl Decode for WireTable {
    fn decode(&mut self, json: &Json, name: &str, faults: &mut Faults) -> Result<(), DecodeError> {
        let fields = &["total", "systemReserved", "allocatable", "reserved", "free"];
        decode_fields(json, name, fields, faults, |field, json, faults| match field {
            "total" => self.total.decode(json, field, faults),
            "systemReserved" => self.system_reserved.decode(json, field, faults),
            "allocatable" => self.allocatable.decode(json, field, faults),
            "reserved" => self.reserved.decode(json, field, faults),
            _ => self.free.decode(json, field, faults),
        })
    }
}

impl Dump for WireTable {
    fn dump(&self, spew: &mut Spew) {
        spew.structure(&[
            ("TotalMemSize", "uint64", &self.total),
            ("SystemReserved", "uint64", &self.system_reserved),
            ("Allocatable", "uint64", &self.allocatable),
            ("Reserved", "uint64", &self.reserved),
            ("Free", "uint64", &self.free),
        ]);
    }
}

/// [`Block`] as it stands in the file.
#[derive(Debug, Default)]
struct WireBlock {
    numa: Slice<i64>,
    resource: String,
    size: u64,
}

impl WireBlock {
    fn json(&self) -> String {
        object([
            ("numaAffinity", slice(&self.numa, i64::to_string)),
            ("type", string(&self.resource)),
            ("size", self.size.to_string()),
        ])
    }
}

impl Decode for WireBlock {
    fn decode(&mut self, json: &Json, name: &str, faults: &mut Faults) -> Result<(), DecodeError> {
        let fields = &["numaAffinity", "type", "size"];
        decode_fields(json, name, fields, faults, |field, json, faults| match field {
            "numaAffinity" => self.numa.decode(json, field, faults),
            "type" => self.resource.decode(json, field, faults),
            _ => self.size.decode(json, field, faults),
        })
    }
}

impl Dump for WireBlock {
    fn dump(&self, spew: &mut Spew) {
        spew.structure(&[
            ("NUMAAffinity", "[]int", &self.numa),
            ("Type", "v1.ResourceName", &self.resource),
            ("Size", "uint64", &self.size),
        ]);
    }
}

/// The memory of a pod as a whole.
#[derive(Debug, Default)]
struct PodEntry {
    blocks: Slice<WireBlock>,
}

impl PodEntry {
    fn json(&self) -> String {
        let filled = self.blocks.as_ref().is_some_and(|blocks| !blocks.is_empty());
        object(filled.then(|| ("memoryBlocks", slice(&self.blocks, WireBlock::json))))
    }
}

impl Decode for PodEntry {
    fn decode(&mut self, json: &Json, name: &str, faults: &mut Faults) -> Result<(), DecodeError> {
        decode_fields(json, name, &["memoryBlocks"], faults, |field, json, faults| {
            self.blocks.decode(json, field, faults)
        })
    }
}

impl Dump for PodEntry {
    fn dump(&self, spew: &mut Spew) {
        spew.structure(&[("MemoryBlocks", "[]state.Block", &self.blocks)]);
    }
}
