//! Writes buffers like those of `GetLogicalProcessorInformationEx`.
//!
//! Main type: [`BufferWriter`]. Recorded vectors and tests describe machines by their relations;
//! this converts them to bytes for the real parser. The product does not use it.

use placement::windows::GroupAffinity;

use super::{GROUP_INFO, GROUP_INFO_MASK, GROUP_INFO_SIZE, relation};

/// `CacheUnified` of `PROCESSOR_CACHE_TYPE`.
pub(super) const UNIFIED: u32 = 0;

/// A buffer that grows by records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BufferWriter {
    bytes: Vec<u8>,
}

impl BufferWriter {
    #[must_use]
    pub fn new() -> BufferWriter {
        BufferWriter::default()
    }

    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    pub fn core(&mut self, groups: &[GroupAffinity]) -> &mut BufferWriter {
        self.record(relation::CORE, &[0; 22], count(groups), groups)
    }

    pub fn package(&mut self, groups: &[GroupAffinity]) -> &mut BufferWriter {
        self.record(relation::PACKAGE, &[0; 22], count(groups), groups)
    }

    /// Adds a `RelationNumaNode` record.
    pub fn node(&mut self, node: u32, groups: &[GroupAffinity]) -> &mut BufferWriter {
        self.record(relation::NUMA_NODE, &node_body(node), count(groups), groups)
    }

    /// Adds a `RelationNumaNodeEx` record.
    pub fn node_ex(&mut self, node: u32, groups: &[GroupAffinity]) -> &mut BufferWriter {
        self.record(relation::NUMA_NODE_EX, &node_body(node), count(groups), groups)
    }

    /// Adds a `RelationNumaNode` record in the old form, without a group count.
    pub fn uncounted_node(&mut self, node: u32, group: GroupAffinity) -> &mut BufferWriter {
        self.record(relation::NUMA_NODE, &node_body(node), 0, &[group])
    }

    /// Adds a unified cache.
    pub fn cache(&mut self, level: u8, groups: &[GroupAffinity]) -> &mut BufferWriter {
        let mut body = [0; 30];
        body[0] = level;
        body[8..12].copy_from_slice(&UNIFIED.to_le_bytes());
        self.record(relation::CACHE, &body, count(groups), groups)
    }

    /// Adds the group record: the active processors of groups 0, 1, ….
    pub fn groups(&mut self, active: &[u64]) -> &mut BufferWriter {
        let size = GROUP_INFO + active.len() * GROUP_INFO_SIZE;
        let mut record = vec![0; size];
        record[..4].copy_from_slice(&relation::GROUP.to_le_bytes());
        record[4..8].copy_from_slice(&(size as u32).to_le_bytes());
        let groups = (active.len() as u16).to_le_bytes();
        record[8..10].copy_from_slice(&groups);
        record[10..12].copy_from_slice(&groups);
        for (index, mask) in active.iter().enumerate() {
            let at = GROUP_INFO + index * GROUP_INFO_SIZE;
            record[at] = 64;
            record[at + 1] = mask.count_ones() as u8;
            let at = at + GROUP_INFO_MASK;
            record[at..at + 8].copy_from_slice(&mask.to_le_bytes());
        }
        self.bytes.extend(record);
        self
    }

    /// Adds a record of any relationship with a processor body, such as a die or an unknown one.
    pub fn other(&mut self, relationship: u32, groups: &[GroupAffinity]) -> &mut BufferWriter {
        self.record(relationship, &[0; 22], count(groups), groups)
    }

    /// Writes the header, `body`, the group count and the masks.
    fn record(
        &mut self,
        relationship: u32,
        body: &[u8],
        count: u16,
        groups: &[GroupAffinity],
    ) -> &mut BufferWriter {
        let size = 8 + body.len() + 2 + groups.len() * 16;
        self.bytes.extend(relationship.to_le_bytes());
        self.bytes.extend((size as u32).to_le_bytes());
        self.bytes.extend(body);
        self.bytes.extend(count.to_le_bytes());
        for affinity in groups {
            self.bytes.extend(affinity.mask.to_le_bytes());
            self.bytes.extend(affinity.group.get().to_le_bytes());
            self.bytes.extend([0; 6]);
        }
        self
    }
}

/// Returns the 16-bit group count. A longer list makes a record with a too small count, which the
/// parser must handle.
fn count(groups: &[GroupAffinity]) -> u16 {
    u16::try_from(groups.len()).unwrap_or(u16::MAX)
}

fn node_body(node: u32) -> [u8; 22] {
    let mut body = [0; 22];
    body[..4].copy_from_slice(&node.to_le_bytes());
    body
}
