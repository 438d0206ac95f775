//! A Linux machine's topology from its `/sys/devices/system` files.
//!
//! Main entry: [`observe`]. Sibling lists are read, never computed. Offline CPUs, gaps in
//! numbering, nodes without CPUs or memory, and machines without NUMA or cache files are normal.
//! Contents are not trusted: nonsense becomes an [`Anomaly`], and the rest is used. All reads go
//! through [`Tree`], never directly to the running machine.

use std::collections::{BTreeMap, BTreeSet};

use placement::numa::MAX_NODES;
use placement::topology::{Cpu, HugePages, NodeMemory, Parts, TopologyError};
use placement::{Bytes, CacheId, CoreId, CpuId, CpuSet, NumaId, SocketId, Topology};
use thiserror::Error;

use crate::anomaly::Anomaly;
use crate::tree::{ReadError, Tree};

mod text;

use text::{parse_list, parse_number, parse_row, total_memory};

const CPU: &str = "sys/devices/system/cpu";
const NODE: &str = "sys/devices/system/node";

/// The largest number of CPUs of a Linux kernel (x86's `NR_CPUS`). A longer list is not a real
/// machine, and reading twenty files per CPU would take minutes.
pub const MAX_CPUS: usize = 8192;

/// The reason why a tree does not describe a machine.
#[derive(Debug, Error)]
pub enum ObserveError {
    #[error("{CPU}/online and {CPU}/cpu0 are missing: this is not the sysfs of a Linux machine")]
    NotSysfs,
    #[error("{found} CPUs are listed as online; Linux supports at most {MAX_CPUS}")]
    TooManyCpus { found: usize },
    #[error("the machine's description contradicts itself")]
    Topology(#[from] TopologyError),
}

/// Reads the topology from the tree; the anomalies name missing and wrong files.
pub fn observe(tree: &impl Tree) -> Result<(Topology, Vec<Anomaly>), ObserveError> {
    let mut observer = Observer { tree, anomalies: Vec::new() };
    let online = observer.online()?;
    let sockets = observer.sockets(&online);
    let nodes = observer.nodes(&online)?;
    let cores = observer.cores(&online, &sockets, &nodes.of_cpu);
    let caches = observer.caches(&online, &cores, &sockets);
    let cpus = online
        .iter()
        .map(|cpu| Cpu {
            cpu,
            core: cores[&cpu],
            socket: sockets[&cpu],
            numa: nodes.of_cpu[&cpu],
            cache: caches[&cpu],
        })
        .collect();
    let parts = Parts { cpus, nodes: nodes.memory, distances: nodes.distances };
    Ok((Topology::new(parts)?, observer.anomalies))
}

struct Nodes {
    of_cpu: BTreeMap<CpuId, NumaId>,
    memory: Vec<NodeMemory>,
    distances: Vec<Vec<u32>>,
}

/// The key by which CPUs are grouped into cores.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum CoreKey {
    /// The online siblings that the kernel lists.
    Siblings(CpuSet),
    /// Package, die and core id, if there is no sibling list.
    Number(SocketId, i64, i64),
    /// Nothing is known.
    Alone(CpuId),
}

struct Observer<'a, T> {
    tree: &'a T,
    anomalies: Vec<Anomaly>,
}

impl<T: Tree> Observer<'_, T> {
    /// Returns the parsed value of a file. A malformed or unreadable file is `None` with an
    /// anomaly; a missing file is just `None`.
    fn value<V>(
        &mut self,
        path: &str,
        expected: &'static str,
        parse: impl Fn(&str) -> Option<V>,
    ) -> Option<V> {
        match self.tree.read(path) {
            Ok(text) => {
                let value = parse(&text);
                if value.is_none() {
                    // A long text is truncated.
                    let found = text.chars().take(60).collect();
                    self.anomalies.push(Anomaly::Malformed {
                        path: path.to_owned(),
                        found,
                        expected,
                    });
                }
                value
            }
            Err(ReadError::Missing) => None,
            Err(ReadError::Unreadable(reason)) => {
                self.anomalies.push(Anomaly::Unreadable { path: path.to_owned(), reason });
                None
            }
        }
    }

    fn list_value(&mut self, path: &str) -> Option<CpuSet> {
        self.value(path, "a list like 0-3,8", parse_list)
    }

    fn number(&mut self, path: &str) -> Option<i64> {
        self.value(path, "a number", parse_number)
    }

    /// Returns the numbers `N` of the entries `<prefix>N` of a directory, ascending.
    fn numbered(&self, directory: &str, prefix: &str) -> BTreeSet<u32> {
        let names = self.tree.list(directory);
        let number = |name: &String| {
            let digits = name.strip_prefix(prefix)?;
            digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
        };
        names.iter().filter_map(number).collect()
    }

    fn online(&mut self) -> Result<CpuSet, ObserveError> {
        let path = format!("{CPU}/online");
        let listed = self.list_value(&path).filter(|list| !list.is_empty());
        let candidates = match listed {
            Some(list) => list,
            None => {
                let present: CpuSet = self
                    .numbered(CPU, "cpu")
                    .into_iter()
                    .filter(|n| *n <= placement::cpuset::MAX_CPU)
                    .map(CpuId)
                    .collect();
                if present.is_empty() {
                    return Err(ObserveError::NotSysfs);
                }
                self.anomalies.push(Anomaly::NoOnlineList { path });
                present
            }
        };
        if candidates.len() > MAX_CPUS {
            return Err(ObserveError::TooManyCpus { found: candidates.len() });
        }
        let mut online = CpuSet::new();
        for cpu in &candidates {
            // CPU 0 often lacks this file because it cannot be taken offline.
            if self.number(&format!("{CPU}/cpu{cpu}/online")) != Some(0) {
                online.insert(cpu);
            }
        }
        let off = &candidates - &online;
        if !off.is_empty() {
            self.anomalies.push(Anomaly::NotReallyOnline { cpus: off });
        }
        Ok(online)
    }

    fn sockets(&mut self, online: &CpuSet) -> BTreeMap<CpuId, SocketId> {
        let mut sockets = BTreeMap::new();
        let mut unknown = CpuSet::new();
        for cpu in online {
            let package = self.number(&format!("{CPU}/cpu{cpu}/topology/physical_package_id"));
            // Some ARM firmware omits the package; the kernel then reports -1.
            match package.and_then(|id| u32::try_from(id).ok()) {
                Some(id) => {
                    sockets.insert(cpu, SocketId(id));
                }
                None => unknown.insert(cpu),
            }
        }
        if !unknown.is_empty() {
            let assumed = sockets.values().min().copied().unwrap_or(SocketId(0));
            sockets.extend(unknown.iter().map(|cpu| (cpu, assumed)));
            self.anomalies.push(Anomaly::NoPackage { cpus: unknown, assumed });
        }
        sockets
    }

    fn nodes(&mut self, online: &CpuSet) -> Result<Nodes, ObserveError> {
        let ids: BTreeSet<NumaId> = match self.list_value(&format!("{NODE}/online")) {
            Some(list) if !list.is_empty() => list.iter().map(|n| NumaId(n.0)).collect(),
            _ => self.numbered(NODE, "node").into_iter().map(NumaId).collect(),
        };
        if ids.is_empty() {
            return Ok(self.one_node(online));
        }
        if ids.len() > MAX_NODES {
            return Err(TopologyError::TooManyNodes(ids.len()).into());
        }
        let mut of_cpu = BTreeMap::new();
        let mut memory = Vec::new();
        let mut rows = Vec::new();
        for &id in &ids {
            let directory = format!("{NODE}/node{id}");
            let cpus = self.list_value(&format!("{directory}/cpulist")).unwrap_or_default();
            for cpu in &(&cpus & online) {
                let first = *of_cpu.entry(cpu).or_insert(id);
                if first != id {
                    self.anomalies.push(Anomaly::InTwoNodes { cpu, first, second: id });
                }
            }
            memory.push(NodeMemory {
                numa: id,
                memory: self.memory(id, &format!("{directory}/meminfo")),
                huge_pages: self.huge_pages(&format!("{directory}/hugepages")),
            });
            let row =
                self.value(&format!("{directory}/distance"), "distances like \"10 21\"", parse_row);
            rows.extend(row);
        }
        let homeless: CpuSet = online.iter().filter(|c| !of_cpu.contains_key(c)).collect();
        if let (false, Some(&assumed)) = (homeless.is_empty(), ids.first()) {
            of_cpu.extend(homeless.iter().map(|cpu| (cpu, assumed)));
            self.anomalies.push(Anomaly::NoNode { cpus: homeless, assumed });
        }
        Ok(Nodes { of_cpu, memory, distances: self.distances(rows, ids.len()) })
    }

    fn distances(&mut self, rows: Vec<Vec<u32>>, nodes: usize) -> Vec<Vec<u32>> {
        if rows.is_empty() {
            return rows;
        }
        let reason = match rows.iter().find(|row| row.len() != nodes) {
            _ if rows.len() != nodes => format!("{} of {nodes} nodes have a row", rows.len()),
            Some(row) => format!("a row has {} entries for {nodes} nodes", row.len()),
            None => return rows,
        };
        self.anomalies.push(Anomaly::NoDistances { reason });
        Vec::new()
    }

    /// Returns the single node of a kernel without NUMA support, which has no node directories.
    fn one_node(&mut self, online: &CpuSet) -> Nodes {
        let id = NumaId(0);
        self.anomalies.push(Anomaly::NoNumaNodes { assumed: id });
        let memory = NodeMemory {
            numa: id,
            memory: self.memory(id, "proc/meminfo"),
            huge_pages: self.huge_pages("sys/kernel/mm/hugepages"),
        };
        Nodes {
            of_cpu: online.iter().map(|cpu| (cpu, id)).collect(),
            memory: vec![memory],
            distances: Vec::new(),
        }
    }

    fn memory(&mut self, node: NumaId, path: &str) -> Bytes {
        self.value(path, "a line with MemTotal", total_memory).unwrap_or_else(|| {
            self.anomalies.push(Anomaly::NoMemory {
                node,
                reason: format!("{path} has no total"),
                assumed: "none was assumed",
            });
            Bytes::ZERO
        })
    }

    fn huge_pages(&mut self, directory: &str) -> Vec<HugePages> {
        let mut pages = BTreeMap::new();
        for name in self.tree.list(directory) {
            let size = name
                .strip_prefix("hugepages-")
                .and_then(|rest| rest.strip_suffix("kB"))
                .and_then(|kib| kib.parse::<u64>().ok())
                .and_then(|kib| kib.checked_mul(1024));
            let Some(size) = size.filter(|size| *size > 0) else { continue };
            let path = format!("{directory}/{name}/nr_hugepages");
            let count = self.value(&path, "a number of pages", |text| {
                let count: u64 = text.parse().ok()?;
                // A number of pages that overflows in bytes is ignored.
                count.checked_mul(size).filter(|sum| *sum <= u64::MAX / 64).map(|_| count)
            });
            // A size without pages is kept: the memory manager's file lists it, and the kubelet
            // compares it.
            if let Some(count) = count {
                pages.insert(Bytes(size), count);
            }
        }
        let page = |(page_size, count)| HugePages { page_size, count };
        // There are at most 64 sizes (powers of two), each below a 64th of the range: the sum
        // cannot overflow.
        pages.into_iter().take(64).map(page).collect()
    }

    fn cores(
        &mut self,
        online: &CpuSet,
        sockets: &BTreeMap<CpuId, SocketId>,
        nodes: &BTreeMap<CpuId, NumaId>,
    ) -> BTreeMap<CpuId, CoreId> {
        let mut keys: BTreeMap<CpuId, CoreKey> = BTreeMap::new();
        let (mut without_list, mut alone) = (CpuSet::new(), CpuSet::new());
        for cpu in online {
            let directory = format!("{CPU}/cpu{cpu}/topology");
            // The second name is the older one.
            let list = self
                .list_value(&format!("{directory}/core_cpus_list"))
                .or_else(|| self.list_value(&format!("{directory}/thread_siblings_list")))
                .filter(|list| list.contains(cpu));
            let key = if let Some(list) = list {
                CoreKey::Siblings(&list & online)
            } else if let Some(core) = self.number(&format!("{directory}/core_id")) {
                without_list.insert(cpu);
                let die = self.number(&format!("{directory}/die_id")).unwrap_or(-1);
                CoreKey::Number(sockets[&cpu], die, core)
            } else {
                alone.insert(cpu);
                CoreKey::Alone(cpu)
            };
            keys.insert(cpu, key);
        }
        if !without_list.is_empty() {
            self.anomalies.push(Anomaly::NoSiblingList { cpus: without_list });
        }
        if !alone.is_empty() {
            self.anomalies.push(Anomaly::NoCore { cpus: alone });
        }

        let mut members: BTreeMap<&CoreKey, CpuSet> = BTreeMap::new();
        for (cpu, key) in &keys {
            members.entry(key).or_default().insert(*cpu);
        }
        let mut cores = BTreeMap::new();
        for (key, cpus) in members {
            if let CoreKey::Siblings(list) = key
                && *list != cpus
            {
                let others = list - &cpus;
                self.anomalies.push(Anomaly::SiblingsDisagree { cpus: cpus.clone(), others });
            }
            let mut parts: BTreeMap<(SocketId, NumaId), CoreId> = BTreeMap::new();
            for cpu in &cpus {
                // In ascending order, so the first CPU of a part is its lowest and names the core.
                let location = (sockets[&cpu], nodes[&cpu]);
                cores.insert(cpu, *parts.entry(location).or_insert(CoreId(cpu.0)));
            }
            if let (true, Some(first)) = (parts.len() > 1, cpus.first()) {
                self.anomalies.push(Anomaly::CoreSplit { core: CoreId(first.0), cpus });
            }
        }
        cores
    }

    /// Returns the uncore cache of each CPU: the highest unified cache, if it is an L3 or shared
    /// between cores; otherwise the CPU's socket, as in the kubelet.
    fn caches(
        &mut self,
        online: &CpuSet,
        cores: &BTreeMap<CpuId, CoreId>,
        sockets: &BTreeMap<CpuId, SocketId>,
    ) -> BTreeMap<CpuId, CacheId> {
        // Level and sharers → the kernel's id, and the CPUs that report it.
        let mut found: BTreeMap<(i64, CpuSet), (Option<u32>, CpuSet)> = BTreeMap::new();
        let mut without: BTreeMap<SocketId, CpuSet> = BTreeMap::new();
        for cpu in online {
            match self.uncore_cache(cpu, online, cores) {
                Some((level, sharers, id)) => {
                    let (known, cpus) = found.entry((level, sharers)).or_default();
                    *known = known.or(id);
                    cpus.insert(cpu);
                }
                None => without.entry(sockets[&cpu]).or_default().insert(cpu),
            }
        }
        let mut caches = BTreeMap::new();
        if found.is_empty() {
            let all = without.values().fold(CpuSet::new(), |all, cpus| &all | cpus);
            self.anomalies.push(Anomaly::NoCache { cpus: all });
            for (socket, cpus) in without {
                caches.extend(cpus.iter().map(|cpu| (cpu, CacheId(socket.0))));
            }
            return caches;
        }
        let mut domains: Vec<(Option<u32>, CpuSet)> = found.into_values().collect();
        if !without.is_empty() {
            let all = without.values().fold(CpuSet::new(), |all, cpus| &all | cpus);
            self.anomalies.push(Anomaly::NoCache { cpus: all });
            domains.extend(without.into_values().map(|cpus| (None, cpus)));
        }
        domains.sort_by_key(|(_, cpus)| cpus.first());
        let mut taken: BTreeSet<u32> = BTreeSet::new();
        // The kernel's ids are assigned first, so that a generated id never replaces a real one.
        let (named, unnamed): (Vec<_>, Vec<_>) =
            domains.into_iter().partition(|(id, _)| id.is_some());
        for (id, cpus) in named.into_iter().chain(unnamed) {
            let lowest = cpus.first().map_or(0, |cpu| cpu.0);
            let wanted = id.unwrap_or(lowest);
            let mut given = wanted;
            if !taken.insert(given) {
                given = (lowest..).find(|id| !taken.contains(id)).unwrap_or(lowest);
                taken.insert(given);
                if id.is_some() {
                    self.anomalies.push(Anomaly::CacheIdTaken {
                        id: CacheId(wanted),
                        cpus: cpus.clone(),
                        given: CacheId(given),
                    });
                }
            }
            caches.extend(cpus.iter().map(|cpu| (cpu, CacheId(given))));
        }
        caches
    }

    fn uncore_cache(
        &mut self,
        cpu: CpuId,
        online: &CpuSet,
        cores: &BTreeMap<CpuId, CoreId>,
    ) -> Option<(i64, CpuSet, Option<u32>)> {
        let directory = format!("{CPU}/cpu{cpu}/cache");
        let mut best: Option<(i64, String)> = None;
        // No CPU has more than a handful of caches; longer lists are truncated.
        for index in self.numbered(&directory, "index").into_iter().take(16) {
            let path = format!("{directory}/index{index}");
            let unified = self.tree.read(&format!("{path}/type")).is_ok_and(|t| t == "Unified");
            if !unified {
                continue;
            }
            let Some(level) = self.number(&format!("{path}/level")) else { continue };
            if best.as_ref().is_none_or(|(highest, _)| level > *highest) {
                best = Some((level, path));
            }
        }
        let (level, path) = best?;
        let sharers = self.list_value(&format!("{path}/shared_cpu_list"))?;
        let sharers = &sharers & online;
        if !sharers.contains(cpu) {
            return None;
        }
        let between_cores = sharers.iter().any(|other| cores[&other] != cores[&cpu]);
        if level < 3 && !between_cores {
            return None;
        }
        let id = self.number(&format!("{path}/id")).and_then(|id| u32::try_from(id).ok());
        Some((level, sharers, id))
    }
}
