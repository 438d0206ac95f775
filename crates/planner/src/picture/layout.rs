//! The nesting of a machine, computed once for every renderer.
//!
//! Main type: [`Layout`]: regions (Windows processor groups, sockets, NUMA nodes, L3 caches) that
//! contain regions or cores, and the use of each CPU. Every CPU is in it exactly once, whatever the
//! machine: the larger region is outside (a cache over two nodes contains the nodes, a node over
//! two sockets contains the sockets), kinds that coincide share one region, and regions that
//! overlap without nesting are shown in parts. It has no pixels or columns.

use objects::pod::OsName;
use std::collections::BTreeMap;

use placement::demand::MemoryKind;
use placement::topology::Cpu;
use placement::windows::GroupId;
use placement::{Bytes, CoreId, CpuId, CpuSet, NumaId};

use super::{CpuAssignment, Picture};

/// The kind of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A Windows processor group.
    Group,
    Socket,
    Node,
    Cache,
}

/// One object that a region represents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    pub kind: Kind,
    pub id: u32,
    /// The part of how many, if it does not lie within one region.
    pub part: Option<(usize, usize)>,
}

/// A frame of the drawing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// At least one; several if, for example, a socket has just one node.
    pub names: Vec<Name>,
    pub cpus: CpuSet,
    /// The position of the node whose memory is shown here: with its first part only.
    pub memory: Option<usize>,
    pub inside: Inside,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inside {
    Regions(Vec<Region>),
    Cores(Vec<Core>),
}

/// A core and those of its threads that lie in the region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Core {
    pub id: CoreId,
    pub cpus: Vec<CpuId>,
}

/// The use of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Use {
    Free,
    Shared,
    Reserved,
    /// By the exclusive owner with this number; see [`Layout::number_of`].
    Exclusive(usize),
}

/// Memory of one node that has an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnedMemory {
    pub owner: usize,
    pub by: Use,
    pub kind: MemoryKind,
    pub amount: Bytes,
}

/// Memory of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeMemory {
    pub total: Bytes,
    /// Part of the total: page size and bytes.
    pub huge: Vec<(Bytes, Bytes)>,
    pub owned: Vec<OwnedMemory>,
}

/// A piece of a node's memory, for a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub start: Bytes,
    pub length: Bytes,
    /// The size of the pages, if they are huge.
    pub huge: Option<Bytes>,
    /// `None` if free.
    pub owned: Option<OwnedMemory>,
}

/// Nodes without CPUs that look the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryNodes {
    pub ids: Vec<NumaId>,
    /// The position of the first; the others are like it.
    pub node: usize,
}

/// The arrangement of a picture.
#[derive(Clone, Debug)]
pub struct Layout {
    pub regions: Vec<Region>,
    /// The nesting depth; all branches are equally deep.
    pub depth: usize,
    pub without_cpus: Vec<MemoryNodes>,
    /// By node position.
    pub memory: Vec<NodeMemory>,
    /// By CPU id.
    uses: Vec<Use>,
    /// By owner: the number of an exclusive owner.
    numbers: Vec<Option<usize>>,
}

impl Layout {
    #[must_use]
    pub fn new(picture: &Picture) -> Layout {
        let topology = &picture.topology;
        let numbers = number(picture);
        let uses = uses(picture, &numbers);
        let tiers = tiers(picture);
        let mut cpus: Vec<&Cpu> = topology.cpus().iter().collect();
        cpus.sort_by_key(|cpu| {
            let place: Vec<u32> = tiers.iter().map(|tier| id(tier[0], cpu)).collect();
            (place, cpu.core, cpu.cpu)
        });
        let mut regions = nest(&cpus, &tiers);
        let mut parts = Parts::new();
        count_parts(&regions, &mut parts);
        name_parts(&mut regions, picture, &parts, &mut Parts::new());
        let memory = memory(picture, &numbers);
        let without_cpus = without_cpus(picture, &memory);
        Layout { regions, depth: tiers.len(), without_cpus, memory, uses, numbers }
    }

    #[must_use]
    pub fn use_of(&self, cpu: CpuId) -> Use {
        self.uses.get(cpu.0 as usize).copied().unwrap_or(Use::Free)
    }

    /// Returns the number that selects colour, letter and pattern of an owner; `None` for members
    /// of a pool.
    #[must_use]
    pub fn number_of(&self, owner: usize) -> Option<usize> {
        self.numbers.get(owner).copied().flatten()
    }

    /// Returns the CPUs with the given use.
    #[must_use]
    pub fn cpus(&self, wanted: Use) -> CpuSet {
        let cpus = self.regions.iter().flat_map(|region| region.cpus.iter());
        cpus.filter(|cpu| self.use_of(*cpu) == wanted).collect()
    }
}

impl NodeMemory {
    /// Returns the owned memory of all kinds.
    #[must_use]
    pub fn used(&self) -> Bytes {
        Bytes(self.owned.iter().fold(0, |sum, owned| sum.saturating_add(owned.amount.0)))
    }

    /// Returns the node from its first to its last byte: ordinary memory, then huge pages by size,
    /// each with the owned part in front. Owned memory beyond the total has no piece.
    #[must_use]
    pub fn pieces(&self) -> Vec<Piece> {
        let huge = self.huge.iter().fold(0u64, |sum, (_, bytes)| sum.saturating_add(bytes.0));
        let ordinary = (None, self.total.0.saturating_sub(huge));
        let zones = self.huge.iter().map(|(size, bytes)| (Some(*size), bytes.0));
        let mut pieces = Vec::new();
        let mut start = 0;
        for (huge, room) in [ordinary].into_iter().chain(zones) {
            let mut left = room.min(self.total.0 - start);
            let kind = huge.map_or(MemoryKind::Memory, MemoryKind::HugePages);
            let owned = self.owned.iter().filter(|owned| owned.kind == kind);
            for (owned, wanted) in
                owned.map(|owned| (Some(*owned), owned.amount.0)).chain([(None, u64::MAX)])
            {
                let length = wanted.min(left);
                if length > 0 {
                    let (start, length) = (Bytes(start), Bytes(length));
                    pieces.push(Piece { start, length, huge, owned });
                }
                start += length;
                left -= length;
            }
        }
        pieces
    }
}

impl Region {
    /// Returns the cores of this region and all within it.
    pub fn cores(&self) -> Vec<&Core> {
        match &self.inside {
            Inside::Cores(cores) => cores.iter().collect(),
            Inside::Regions(regions) => regions.iter().flat_map(Region::cores).collect(),
        }
    }

    #[must_use]
    pub fn is(&self, kind: Kind) -> bool {
        self.names.iter().any(|name| name.kind == kind)
    }

    /// Returns true if it is drawn like another region, ignoring ids.
    #[must_use]
    pub fn looks_like(&self, other: &Region, layout: &Layout) -> bool {
        let memory = |region: &Region| region.memory.map(|node| &layout.memory[node]);
        let names = |region: &Region| -> Vec<_> {
            region.names.iter().map(|name| (name.kind, name.part)).collect()
        };
        let inside = match (&self.inside, &other.inside) {
            (Inside::Regions(a), Inside::Regions(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.looks_like(b, layout))
            }
            (Inside::Cores(a), Inside::Cores(b)) => {
                let uses = |core: &Core| -> Vec<Use> {
                    core.cpus.iter().map(|cpu| layout.use_of(*cpu)).collect()
                };
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| uses(a) == uses(b))
            }
            _ => false,
        };
        inside && names(self) == names(other) && memory(self) == memory(other)
    }
}

fn id(kind: Kind, cpu: &Cpu) -> u32 {
    match kind {
        Kind::Group => u32::from(GroupId::of(cpu.cpu).get()),
        Kind::Socket => cpu.socket.0,
        Kind::Node => cpu.numa.0,
        Kind::Cache => cpu.cache.0,
    }
}

/// Returns the kinds from the outside in; kinds that coincide on the whole machine are grouped.
fn tiers(picture: &Picture) -> Vec<Vec<Kind>> {
    let cpus = picture.topology.cpus();
    let mut order = vec![Kind::Socket, Kind::Node, Kind::Cache];
    if picture.os == OsName::Windows {
        order.insert(0, Kind::Group);
    }
    let within = |small: Kind, large: Kind| {
        let mut pairs: Vec<_> = cpus.iter().map(|cpu| (id(small, cpu), id(large, cpu))).collect();
        pairs.sort_unstable();
        pairs.dedup();
        pairs.windows(2).all(|pair| pair[0].0 != pair[1].0)
    };
    for _ in 0..order.len() {
        for at in 1..order.len() {
            let (outer, inner) = (order[at - 1], order[at]);
            if within(outer, inner) && !within(inner, outer) {
                order.swap(at - 1, at);
            }
        }
    }
    let mut tiers: Vec<Vec<Kind>> = Vec::new();
    for kind in order {
        match tiers.last_mut() {
            // Groups are separate frames: they belong to the operating system, not to the machine.
            Some(tier)
                if tier[0] != Kind::Group
                    && kind != Kind::Group
                    && within(tier[0], kind)
                    && within(kind, tier[0]) =>
            {
                tier.push(kind);
            }
            _ => tiers.push(vec![kind]),
        }
    }
    tiers
}

fn nest(cpus: &[&Cpu], tiers: &[Vec<Kind>]) -> Vec<Region> {
    let Some((tier, deeper)) = tiers.split_first() else { return Vec::new() };
    cpus.chunk_by(|a, b| id(tier[0], a) == id(tier[0], b))
        .map(|cpus| Region {
            names: tier
                .iter()
                .map(|k| Name { kind: *k, id: id(*k, cpus[0]), part: None })
                .collect(),
            cpus: cpus.iter().map(|cpu| cpu.cpu).collect(),
            memory: None,
            inside: match deeper {
                [] => Inside::Cores(cores(cpus)),
                _ => Inside::Regions(nest(cpus, deeper)),
            },
        })
        .collect()
}

fn cores(cpus: &[&Cpu]) -> Vec<Core> {
    cpus.chunk_by(|a, b| a.core == b.core)
        .map(|cpus| Core { id: cpus[0].core, cpus: cpus.iter().map(|cpu| cpu.cpu).collect() })
        .collect()
}

/// The number of regions of each object.
type Parts = BTreeMap<(Kind, u32), usize>;

fn count_parts(regions: &[Region], parts: &mut Parts) {
    for region in regions {
        for name in &region.names {
            *parts.entry((name.kind, name.id)).or_default() += 1;
        }
        if let Inside::Regions(regions) = &region.inside {
            count_parts(regions, parts);
        }
    }
}

/// Numbers the regions of objects that lie in several, and assigns each node's memory to its first.
fn name_parts(regions: &mut [Region], picture: &Picture, parts: &Parts, seen: &mut Parts) {
    for region in regions {
        for name in &mut region.names {
            let of = parts.get(&(name.kind, name.id)).copied().unwrap_or(1);
            let nth = seen.entry((name.kind, name.id)).or_default();
            *nth += 1;
            name.part = (of > 1).then_some((*nth, of));
            if name.kind == Kind::Node && *nth == 1 {
                region.memory = picture.topology.node_position(NumaId(name.id));
            }
        }
        if let Inside::Regions(regions) = &mut region.inside {
            name_parts(regions, picture, parts, seen);
        }
    }
}

/// Numbers the owners that are drawn in a colour of their own.
fn number(picture: &Picture) -> Vec<Option<usize>> {
    let mut next = 0;
    let mut take = || {
        next += 1;
        next - 1
    };
    let own = |owner: &super::CpuOwner| matches!(owner.assignment, CpuAssignment::Exclusive(_));
    picture.owners.iter().map(|owner| own(owner).then(&mut take)).collect()
}

fn uses(picture: &Picture, numbers: &[Option<usize>]) -> Vec<Use> {
    let all = picture.topology.all_cpus();
    let highest = all.last().map_or(0, |cpu| cpu.0 as usize);
    let mut uses = vec![Use::Free; highest + 1];
    // From the lowest to the highest precedence, and the earliest last, so that each may overwrite.
    for pass in 0..3 {
        for (owner, number) in picture.owners.iter().zip(numbers).rev() {
            let (turn, used) = match &owner.assignment {
                CpuAssignment::SharedPool(_) => (0, Use::Shared),
                CpuAssignment::Reserved(_) => (1, Use::Reserved),
                CpuAssignment::Exclusive(_) => (2, Use::Exclusive(number.unwrap_or(0))),
            };
            if turn == pass {
                for cpu in (owner.assignment.cpus() & all).iter() {
                    uses[cpu.0 as usize] = used;
                }
            }
        }
    }
    uses
}

fn memory(picture: &Picture, numbers: &[Option<usize>]) -> Vec<NodeMemory> {
    let topology = &picture.topology;
    let mut nodes: Vec<NodeMemory> = topology
        .nodes()
        .iter()
        .map(|node| NodeMemory {
            total: node.memory,
            huge: node
                .huge_pages
                .iter()
                .map(|pages| {
                    let bytes = pages.page_size.0.saturating_mul(pages.count);
                    (pages.page_size, Bytes(bytes))
                })
                .filter(|(_, bytes)| bytes.0 > 0)
                .collect(),
            owned: Vec::new(),
        })
        .collect();
    for (index, (owner, number)) in picture.owners.iter().zip(numbers).enumerate() {
        let by = match &owner.assignment {
            CpuAssignment::SharedPool(_) => Use::Shared,
            CpuAssignment::Reserved(_) => Use::Reserved,
            CpuAssignment::Exclusive(_) => Use::Exclusive(number.unwrap_or(0)),
        };
        for share in owner.memory.iter().filter(|share| share.amount.0 > 0) {
            if let Some(node) = topology.node_position(share.node) {
                let (kind, amount) = (share.kind, share.amount);
                nodes[node].owned.push(OwnedMemory { owner: index, by, kind, amount });
            }
        }
    }
    for node in &mut nodes {
        node.owned.sort_by_key(|owned| match owned.by {
            Use::Reserved => (0, 0),
            Use::Exclusive(number) => (1, number),
            Use::Shared | Use::Free => (2, 0),
        });
    }
    nodes
}

fn without_cpus(picture: &Picture, memory: &[NodeMemory]) -> Vec<MemoryNodes> {
    let mut kinds: Vec<MemoryNodes> = Vec::new();
    for (position, node) in picture.topology.nodes().iter().enumerate() {
        if !node.cpus.is_empty() {
            continue;
        }
        match kinds.iter_mut().find(|kind| memory[kind.node] == memory[position]) {
            Some(kind) => kind.ids.push(node.id),
            None => kinds.push(MemoryNodes { ids: vec![node.id], node: position }),
        }
    }
    kinds
}
