//! Chooses CPUs: the topology-aware best fit of the static policy.
//!
//! Main entry: [`pick`], with the [`Picking`] rules. Everything is ordered by (free CPUs ascending,
//! id ascending), so that partly used parts of the machine are used up first. Whole NUMA nodes and
//! sockets come before whole caches, those before whole cores, those before single CPUs.
//! Distribution over NUMA nodes is in [`super::distribute`]. Eligibility for exclusive CPUs is
//! decided elsewhere, and nothing is stored here.

use smallvec::SmallVec;

use crate::cpuset::CpuSet;
use crate::ids::CpuId;
use crate::topology::Topology;

use super::distribute;

/// How single CPUs are taken once no whole piece of the machine fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Core after core: siblings end up together.
    Packed,
    /// Round-robin over the cores of a socket: siblings are taken last.
    Spread,
    /// A socket's CPUs by id, whatever cores they belong to.
    Lowest,
}

/// The rules of one choice. Pairs that contradict each other cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Picking {
    Packed {
        align_uncore: bool,
    },
    Spread,
    Lowest,
    /// Evenly over as few NUMA nodes as possible, in multiples of `group` CPUs.
    AcrossNuma {
        group: usize,
        align_by_socket: bool,
    },
}

/// Fewer CPUs are free than wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not enough cpus available to satisfy request: requested={requested}, available={available}"
)]
pub struct NotEnoughCpus {
    pub requested: usize,
    pub available: usize,
}

/// Chooses `count` of the `free` CPUs.
pub fn pick(
    topology: &Topology,
    free: &CpuSet,
    count: usize,
    picking: Picking,
) -> Result<CpuSet, NotEnoughCpus> {
    match picking {
        Picking::Packed { align_uncore } => {
            packed(topology, free, count, Order::Packed, align_uncore)
        }
        Picking::Spread => packed(topology, free, count, Order::Spread, false),
        Picking::Lowest => packed(topology, free, count, Order::Lowest, false),
        Picking::AcrossNuma { group, align_by_socket } => {
            distribute::across_numa(topology, free, count, group, align_by_socket)
        }
    }
}

pub(super) fn packed(
    topology: &Topology,
    free: &CpuSet,
    count: usize,
    order: Order,
    align_uncore: bool,
) -> Result<CpuSet, NotEnoughCpus> {
    let mut selection = Selection::new(topology, free, count);
    if selection.needed == 0 {
        return Ok(selection.taken);
    }
    if selection.free.len() < count {
        return Err(NotEnoughCpus { requested: count, available: free.len() });
    }
    if selection.numa_first {
        selection.take_whole_nodes();
        selection.take_whole_sockets();
    } else {
        selection.take_whole_sockets();
        selection.take_whole_nodes();
    }
    if align_uncore {
        selection.take_uncore_caches();
    }
    match order {
        Order::Packed => {
            selection.take_whole_cores();
            selection.take_single_cpus();
        }
        Order::Spread => selection.take_round_robin(),
        Order::Lowest => selection.take_lowest(),
    }
    Ok(selection.taken)
}

/// Positions in a list of the topology, few enough to live on the stack.
type Positions = SmallVec<[u16; 64]>;
type Counts = SmallVec<[u16; 64]>;

/// A selection in progress: the free and taken CPUs, and the number still needed.
pub(super) struct Selection<'a> {
    topology: &'a Topology,
    pub(super) free: CpuSet,
    pub(super) taken: CpuSet,
    pub(super) needed: usize,
    /// True if NUMA nodes contain sockets (at least as many sockets as nodes), false for the
    /// reverse.
    numa_first: bool,
    free_in_core: SmallVec<[u16; 256]>,
    free_in_socket: Counts,
    free_in_node: Counts,
    free_in_cache: Counts,
}

impl<'a> Selection<'a> {
    pub(super) fn new(topology: &'a Topology, free: &CpuSet, needed: usize) -> Selection<'a> {
        let mut selection = Selection {
            topology,
            free: free & topology.all_cpus(),
            taken: CpuSet::new(),
            needed,
            numa_first: topology.sockets().len() >= topology.nodes_with_cpus().len(),
            free_in_core: SmallVec::from_elem(0, topology.cores().len()),
            free_in_socket: SmallVec::from_elem(0, topology.sockets().len()),
            free_in_node: SmallVec::from_elem(0, topology.nodes().len()),
            free_in_cache: SmallVec::from_elem(0, topology.caches().len()),
        };
        for location in selection.free.iter().filter_map(|cpu| topology.location(cpu)) {
            selection.free_in_core[location.core as usize] += 1;
            selection.free_in_socket[location.socket as usize] += 1;
            selection.free_in_node[location.node as usize] += 1;
            selection.free_in_cache[location.cache as usize] += 1;
        }
        selection
    }

    pub(super) fn free_in_node(&self, node: usize) -> usize {
        self.free_in_node[node] as usize
    }

    /// Takes CPUs, all of which must be free.
    pub(super) fn take(&mut self, cpus: &CpuSet) {
        self.needed -= cpus.len();
        self.taken.union_with(cpus);
        self.free.subtract(cpus);
        for cpu in cpus {
            self.uncount(cpu);
        }
    }

    fn take_one(&mut self, cpu: CpuId) {
        self.needed -= 1;
        self.taken.insert(cpu);
        self.free.remove(cpu);
        self.uncount(cpu);
    }

    fn uncount(&mut self, cpu: CpuId) {
        if let Some(location) = self.topology.location(cpu) {
            self.free_in_core[location.core as usize] -= 1;
            self.free_in_socket[location.socket as usize] -= 1;
            self.free_in_node[location.node as usize] -= 1;
            self.free_in_cache[location.cache as usize] -= 1;
        }
    }

    /// NUMA nodes with free CPUs; below the sockets they belong to if those are the larger pieces.
    pub(super) fn nodes_in_order(&self) -> Positions {
        if self.numa_first {
            return by_free(0..self.topology.nodes().len(), &self.free_in_node);
        }
        let mut nodes = Positions::new();
        for socket in self.sockets_in_order() {
            let members = &self.topology.socket_members(socket as usize).nodes;
            for node in by_free(members.iter().map(|n| *n as usize), &self.free_in_node) {
                if !nodes.contains(&node) {
                    nodes.push(node);
                }
            }
        }
        nodes
    }

    /// Sockets with free CPUs; below the NUMA nodes they belong to if those are the larger pieces.
    fn sockets_in_order(&self) -> Positions {
        if !self.numa_first {
            return by_free(0..self.topology.sockets().len(), &self.free_in_socket);
        }
        let mut sockets = Positions::new();
        for node in by_free(0..self.topology.nodes().len(), &self.free_in_node) {
            let members = &self.topology.nodes()[node as usize].sockets;
            for socket in by_free(members.iter().map(|s| *s as usize), &self.free_in_socket) {
                if !sockets.contains(&socket) {
                    sockets.push(socket);
                }
            }
        }
        sockets
    }

    /// The smaller of the two large pieces, in order, with the cores of each.
    fn core_lists(&self) -> SmallVec<[&'a [u16]; 64]> {
        let topology = self.topology;
        if self.numa_first {
            let sockets = self.sockets_in_order();
            sockets.iter().map(|s| &*topology.socket_members(*s as usize).cores).collect()
        } else {
            let nodes = self.nodes_in_order();
            nodes.iter().map(|n| &*topology.nodes()[*n as usize].cores).collect()
        }
    }

    fn take_whole_nodes(&mut self) {
        if self.needed == 0 {
            return;
        }
        for node in self.nodes_in_order() {
            let cpus = &self.topology.nodes()[node as usize].cpus;
            let free = self.free_in_node[node as usize] as usize;
            if free == cpus.len() && self.needed >= free {
                self.take(cpus);
            }
        }
    }

    fn take_whole_sockets(&mut self) {
        if self.needed == 0 {
            return;
        }
        for socket in self.sockets_in_order() {
            let cpus = &self.topology.sockets()[socket as usize].cpus;
            let free = self.free_in_socket[socket as usize] as usize;
            if free == cpus.len() && self.needed >= free {
                self.take(cpus);
            }
        }
    }

    /// Whole caches while a cache's worth is needed, then one cache that holds exactly the rest.
    fn take_uncore_caches(&mut self) {
        if self.needed == 0 {
            return;
        }
        // The gate is the kubelet's: the average size, also where caches differ.
        let average = self.topology.cpus().len() / self.topology.caches().len();
        for cache in self.caches_in_order() {
            if self.needed >= average {
                self.take_whole_caches();
            }
            if self.needed == 0 {
                return;
            }
            self.take_part_of_cache(cache as usize);
            if self.needed == 0 {
                return;
            }
        }
    }

    fn caches_in_order(&self) -> Positions {
        let mut caches = Positions::new();
        for node in self.nodes_in_order() {
            let members = &self.topology.nodes()[node as usize].caches;
            for cache in by_free(members.iter().map(|c| *c as usize), &self.free_in_cache) {
                if !caches.contains(&cache) {
                    caches.push(cache);
                }
            }
        }
        caches
    }

    fn take_whole_caches(&mut self) {
        for cache in self.caches_in_order() {
            let cpus = &self.topology.caches()[cache as usize].cpus;
            let free = self.free_in_cache[cache as usize] as usize;
            if free == cpus.len() && self.needed >= free {
                self.take(cpus);
            }
        }
    }

    /// Takes the lowest cores of a cache if their free CPUs are exactly what is needed; for an odd
    /// need with several threads a core, one CPU of the last core may stay behind.
    fn take_part_of_cache(&mut self, cache: usize) {
        let threads = self.topology.cpus_per_core();
        let cores_needed = self.needed.div_ceil(threads);
        let free_here = &self.topology.caches()[cache].cpus & &self.free;
        let mut cores = SmallVec::<[u16; 64]>::new();
        for location in free_here.iter().filter_map(|cpu| self.topology.location(cpu)) {
            if let Err(at) = cores.binary_search(&location.core) {
                cores.insert(at, location.core);
            }
        }
        let mut cpus = CpuSet::new();
        for core in cores.iter().take(cores_needed) {
            cpus.union_with(&(&self.topology.cores()[*core as usize].cpus & &self.free));
        }
        if self.needed % 2 == 1
            && threads > 1
            && cpus.len() > self.needed
            && let Some(last) = cpus.last()
        {
            cpus.remove(last);
        }
        if cpus.len() == self.needed {
            self.take(&cpus);
        }
    }

    fn take_whole_cores(&mut self) {
        if self.needed == 0 {
            return;
        }
        for cores in self.core_lists() {
            for size in 1..=self.topology.largest_core() {
                for core in cores {
                    let cpus = &self.topology.cores()[*core as usize].cpus;
                    let free = self.free_in_core[*core as usize] as usize;
                    if free == size && cpus.len() == size && self.needed >= size {
                        self.take(cpus);
                    }
                    if self.needed == 0 {
                        return;
                    }
                }
            }
        }
    }

    /// Fills broken cores first: CPUs of the cores with the fewest free ones.
    fn take_single_cpus(&mut self) {
        if self.needed == 0 {
            return;
        }
        for cores in self.core_lists() {
            for size in 1..=self.topology.largest_core() {
                for core in cores {
                    if self.free_in_core[*core as usize] as usize != size {
                        continue;
                    }
                    let cpus = &self.topology.cores()[*core as usize].cpus & &self.free;
                    for cpu in &cpus {
                        self.take_one(cpu);
                        if self.needed == 0 {
                            return;
                        }
                    }
                }
            }
        }
    }

    fn take_lowest(&mut self) {
        for socket in self.sockets_in_order() {
            let cpus = &self.topology.sockets()[socket as usize].cpus & &self.free;
            for cpu in &cpus {
                if self.needed == 0 {
                    return;
                }
                self.take_one(cpu);
            }
        }
    }

    /// Passes over a socket's free CPUs in ascending order, each pass taking at most one CPU of a
    /// core, until the socket is used up.
    fn take_round_robin(&mut self) {
        if self.needed == 0 {
            return;
        }
        for socket in self.sockets_in_order() {
            let mut left = &self.topology.sockets()[socket as usize].cpus & &self.free;
            while !left.is_empty() {
                let mut seen =
                    SmallVec::<[u64; 16]>::from_elem(0, self.free_in_core.len() / 64 + 1);
                for cpu in &left.clone() {
                    let Some(location) = self.topology.location(cpu) else { continue };
                    let (word, bit) = (location.core as usize / 64, 1 << (location.core % 64));
                    if seen[word] & bit != 0 {
                        continue;
                    }
                    seen[word] |= bit;
                    left.remove(cpu);
                    self.take_one(cpu);
                    if self.needed == 0 {
                        return;
                    }
                }
            }
        }
    }
}

/// Those of `positions` with something free, by (free, position): position order is id order.
fn by_free(positions: impl Iterator<Item = usize>, free: &[u16]) -> Positions {
    let mut sorted: Positions = positions.filter(|p| free[*p] > 0).map(|p| p as u16).collect();
    sorted.sort_unstable_by_key(|p| (free[*p as usize], *p));
    sorted
}
