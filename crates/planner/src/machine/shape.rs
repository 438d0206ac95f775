//! A machine in a line of words: `2 sockets x 2 numa x 8 cores x 2 threads mem=64Gi`.
//!
//! Main entry: [`parse`]. Counts are per parent: nodes per socket, cores per node, threads per
//! core; short as `2s 2n 8c 2t` or `2x2x8x2`. Machines that are not regular need another format.

use objects::pod::OsName;
use std::num::NonZeroU32;

use placement::cpuset::{CpuSet, MAX_CPU, ParseCpuSetError};
use placement::machine::{NAME, is_name, quantity};
use placement::numa::MAX_NODES;
use placement::topology::{Cpu, HugePages, NodeMemory, Parts, TopologyError};
use placement::windows::GROUP_SIZE;
use placement::{Bytes, CacheId, CoreId, CpuId, Machine, NumaId, SocketId};
use thiserror::Error;

/// An example of a shape, for errors and help.
pub const EXAMPLE: &str = "2 sockets x 2 numa x 8 cores x 2 threads mem=64Gi";

/// The options with their meaning, for errors and help.
pub const OPTIONS: &str = "l3=2 (L3 caches per NUMA node), mem=64Gi (per NUMA node), \
     hugepages-1Gi=4 (per NUMA node), distances=10,21 or 10,12,21, memory-nodes=2 (nodes without \
     CPUs), offline=3,7, numbering=linux|adjacent|windows, os=linux|windows, name=NAME";

/// The reason why words do not describe a machine.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ShapeError {
    #[error("{word:?} is not a part of a machine; write for example {EXAMPLE:?}")]
    Word { word: String },
    #[error("{word:?} has no number in front of it; write for example {EXAMPLE:?}")]
    NoNumber { word: String },
    #[error("{number:?} is not followed by what it counts; write for example {EXAMPLE:?}")]
    NoUnit { number: String },
    #[error(
        "{word:?} is not a valid count; a machine has at least 1 and at most 65536 of anything"
    )]
    Count { word: String },
    #[error("the number of {what} is given twice")]
    Twice { what: &'static str },
    #[error("the number of cores is missing; write for example {EXAMPLE:?}")]
    NoCores,
    #[error("{0:?} has to have four numbers: sockets x numa nodes x cores x threads, like 2x2x8x2")]
    NotFour(String),
    #[error("{found:?} is not a valid option; use {OPTIONS}")]
    Option { found: String },
    #[error("{option}={found:?} cannot be: it should be {expected}")]
    Value { option: String, found: String, expected: &'static str },
    #[error("{option}={found:?} cannot be: {problem}")]
    Amount { option: String, found: String, problem: String },
    #[error("offline={found:?} is not a CPU list: {error}")]
    Offline { found: String, error: ParseCpuSetError },
    #[error("offline={missing} names CPUs the machine does not have; it has {has}")]
    OfflineUnknown { missing: Box<CpuSet>, has: Box<CpuSet> },
    #[error("{cores} cores of a NUMA node cannot be shared out evenly to l3={caches} caches")]
    Uneven { cores: u32, caches: u32 },
    #[error("{sockets} x {nodes} x {cores} x {threads} CPUs are more than the {max} supported", max = MAX_CPU + 1)]
    TooManyCpus { sockets: u32, nodes: u32, cores: u32, threads: u32 },
    #[error("{0} NUMA nodes are more than the {MAX_NODES} supported")]
    TooManyNodes(u64),
    #[error("a core of {0} threads does not fit into a processor group of Windows, which has 64")]
    CoreTooWide(u32),
    #[error("the description contradicts itself: {0}")]
    Topology(#[from] TopologyError),
}

/// The numbering of CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Numbering {
    /// The first threads of all cores, then their second threads, as most Linux machines do.
    Linux,
    /// The threads of a core are adjacent.
    Adjacent,
    /// Adjacent and in groups of 64; a node that fits into one group is not split.
    Windows,
}

#[derive(Clone, Debug)]
struct Shape {
    name: String,
    os: OsName,
    sockets: u32,
    nodes: u32,
    cores: u32,
    threads: u32,
    caches: u32,
    memory: Bytes,
    memory_nodes: u32,
    huge_pages: Vec<HugePages>,
    distances: Vec<u32>,
    offline: CpuSet,
    numbering: Option<Numbering>,
}

/// The counts as they are found, in order: sockets, nodes, cores, threads.
#[derive(Default)]
struct Counts([Option<NonZeroU32>; 4]);

const COUNTED: [&str; 4] = ["sockets", "NUMA nodes", "cores", "threads"];

pub fn parse(text: &str) -> Result<Machine, ShapeError> {
    let (counts, options): (Vec<&str>, Vec<&str>) =
        text.split_whitespace().partition(|word| !word.contains('='));
    let [sockets, nodes, cores, threads] = parse_counts(&counts)?;
    let mut shape = Shape {
        name: String::new(),
        os: OsName::Linux,
        sockets,
        nodes,
        cores,
        threads,
        caches: 1,
        memory: Bytes::ZERO,
        memory_nodes: 0,
        huge_pages: Vec::new(),
        distances: Vec::new(),
        offline: CpuSet::new(),
        numbering: None,
    };
    for option in options {
        shape.apply(option)?;
    }
    shape.build()
}

fn parse_counts(words: &[&str]) -> Result<[u32; 4], ShapeError> {
    if let [word] = words
        && word.starts_with(|c: char| c.is_ascii_digit())
        && word.chars().all(|c| c.is_ascii_digit() || is_times(c))
    {
        return four_numbers(word);
    }
    let mut counts = Counts::default();
    let mut number: Option<(String, NonZeroU32)> = None;
    for token in words.iter().flat_map(|word| tokens(word)) {
        if token.starts_with(|c: char| c.is_ascii_digit()) {
            if let Some((number, _)) = number {
                return Err(ShapeError::NoUnit { number });
            }
            number = Some((token.clone(), count(&token)?));
        } else {
            let index = match token.to_lowercase().as_str() {
                "x" | "×" | "*" | "," | "and" => continue,
                "s" | "socket" | "sockets" | "package" | "packages" => 0,
                "n" | "numa" | "node" | "nodes" | "numas" => 1,
                "c" | "core" | "cores" => 2,
                "t" | "thread" | "threads" | "smt" => 3,
                _ => return Err(ShapeError::Word { word: shorten(&token) }),
            };
            let Some((_, count)) = number.take() else {
                return Err(ShapeError::NoNumber { word: token });
            };
            if counts.0[index].replace(count).is_some() {
                return Err(ShapeError::Twice { what: COUNTED[index] });
            }
        }
    }
    if let Some((number, _)) = number {
        return Err(ShapeError::NoUnit { number });
    }
    if counts.0[2].is_none() {
        return Err(ShapeError::NoCores);
    }
    Ok(counts.0.map(|count| count.map_or(1, NonZeroU32::get)))
}

fn four_numbers(word: &str) -> Result<[u32; 4], ShapeError> {
    let numbers: Vec<u32> = word
        .split(is_times)
        .map(|number| count(number).map(NonZeroU32::get))
        .collect::<Result<_, _>>()?;
    numbers.try_into().map_err(|_| ShapeError::NotFour(shorten(word)))
}

fn is_times(c: char) -> bool {
    matches!(c, 'x' | 'X' | '×' | '*')
}

/// Cuts `2s2n` into `2`, `s`, `2`, `n`.
fn tokens(word: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let kind = |c: char| match c {
        _ if c.is_ascii_digit() => 0,
        // A separator of its own, so that `2 sockets, 4 cores` and `2s*4c` are valid.
        ',' | '*' | '×' => 2,
        _ => 1,
    };
    let mut last = None;
    for c in word.chars() {
        match tokens.last_mut() {
            Some(token) if last == Some(kind(c)) && kind(c) != 2 => token.push(c),
            _ => tokens.push(c.to_string()),
        }
        last = Some(kind(c));
    }
    tokens
}

fn count(word: &str) -> Result<NonZeroU32, ShapeError> {
    let refused = || ShapeError::Count { word: shorten(word) };
    let number: u32 = word.parse().map_err(|_| refused())?;
    NonZeroU32::new(number).filter(|n| n.get() <= MAX_CPU + 1).ok_or_else(refused)
}

/// Shortens a word for an error message; the input may be a pasted megabyte.
fn shorten(word: &str) -> String {
    word.chars().take(40).collect()
}

impl Shape {
    fn apply(&mut self, word: &str) -> Result<(), ShapeError> {
        let (option, value) = word.split_once('=').unwrap_or((word, ""));
        let refuse = |expected: &'static str| ShapeError::Value {
            option: shorten(option),
            found: shorten(value),
            expected,
        };
        let small = |expected| {
            let number: Option<u32> = value.parse().ok();
            number.filter(|n| *n <= MAX_CPU).ok_or_else(|| refuse(expected))
        };
        match option.to_lowercase().as_str() {
            "l3" => {
                self.caches = small("the number of L3 caches of a NUMA node")?;
                if self.caches == 0 {
                    return Err(refuse("at least 1"));
                }
            }
            "mem" | "memory" => {
                self.memory = quantity::parse_typed(value).map_err(|problem| {
                    ShapeError::Amount { option: shorten(option), found: shorten(value), problem }
                })?;
            }
            "memory-nodes" => self.memory_nodes = small("a number of nodes without CPUs")?,
            "distances" | "distance" => {
                let distances: Option<Vec<u32>> =
                    value.split(',').take(4).map(|number| number.parse().ok()).collect();
                let usable = distances.filter(|d| matches!(d.len(), 2 | 3) && !d.contains(&0));
                self.distances = usable.ok_or_else(|| {
                    refuse(
                        "local,remote like 10,21 or local,same socket,other socket like 10,12,21",
                    )
                })?;
            }
            "numbering" => {
                self.numbering = Some(match value {
                    "linux" => Numbering::Linux,
                    "adjacent" => Numbering::Adjacent,
                    "windows" => Numbering::Windows,
                    _ => return Err(refuse("linux, adjacent or windows")),
                });
            }
            "os" => {
                self.os = match value {
                    "linux" => OsName::Linux,
                    "windows" => OsName::Windows,
                    _ => return Err(refuse("linux or windows")),
                };
            }
            "offline" => {
                self.offline = CpuSet::parse(value)
                    .map_err(|error| ShapeError::Offline { found: shorten(value), error })?;
            }
            "name" if is_name(value) => self.name = value.to_owned(),
            "name" => return Err(refuse(NAME)),
            _ => match word
                .split_once('=')
                .map(|(o, _)| o)
                .and_then(|o| o.strip_prefix("hugepages-"))
            {
                Some(size) => {
                    let page_size =
                        quantity::parse(size).filter(|size| size.0 > 0).ok_or_else(|| {
                            refuse("hugepages-SIZE=COUNT with a size like 2Mi or 1Gi")
                        })?;
                    let count = value
                        .parse()
                        .map_err(|_| refuse("the number of pages of each NUMA node"))?;
                    if self.huge_pages.iter().any(|pages| pages.page_size == page_size) {
                        return Err(refuse("given once for each size"));
                    }
                    self.huge_pages.push(HugePages { page_size, count });
                }
                None => return Err(ShapeError::Option { found: shorten(option) }),
            },
        }
        Ok(())
    }

    fn build(self) -> Result<Machine, ShapeError> {
        let Shape { sockets, nodes, cores, threads, caches, .. } = self;
        // Each factor is at most 65,536, so the nodes and the cores cannot overflow 64 bits.
        let all_nodes = u64::from(sockets) * u64::from(nodes) + u64::from(self.memory_nodes);
        let all_cores = u64::from(sockets) * u64::from(nodes) * u64::from(cores);
        let all_cpus = all_cores.checked_mul(threads.into());
        if all_cpus.is_none_or(|cpus| cpus > u64::from(MAX_CPU) + 1) {
            return Err(ShapeError::TooManyCpus { sockets, nodes, cores, threads });
        }
        if all_nodes > MAX_NODES as u64 {
            return Err(ShapeError::TooManyNodes(all_nodes));
        }
        if cores % caches != 0 {
            return Err(ShapeError::Uneven { cores, caches });
        }
        let ids = self.cpu_ids()?;

        let mut cpus = Vec::with_capacity(ids.len());
        for (core, threads) in ids.chunks(threads as usize).enumerate() {
            // There are at most 65,536 cores.
            let core = core as u32;
            let node = core / cores;
            let online = || threads.iter().filter(|cpu| !self.offline.contains(**cpu));
            let Some(lowest) = online().min() else { continue };
            cpus.extend(online().map(|cpu| Cpu {
                cpu: *cpu,
                core: CoreId(lowest.0),
                socket: SocketId(node / nodes),
                numa: NumaId(node),
                cache: CacheId(core / (cores / caches)),
            }));
        }
        let has: CpuSet = ids.iter().copied().collect();
        let missing = &self.offline - &has;
        if !missing.is_empty() {
            let (missing, has) = (Box::new(missing), Box::new(has));
            return Err(ShapeError::OfflineUnknown { missing, has });
        }
        let node = |numa: u32| NodeMemory {
            numa: NumaId(numa),
            memory: self.memory,
            huge_pages: self.huge_pages.clone(),
        };
        let all_nodes = all_nodes as u32;
        let parts = Parts {
            cpus,
            nodes: (0..all_nodes).map(node).collect(),
            distances: self.distance_table(all_nodes),
        };
        Ok(Machine::new(self.name, self.os, parts)?)
    }

    /// The id of every CPU, in order of core and thread.
    fn cpu_ids(&self) -> Result<Vec<CpuId>, ShapeError> {
        let threads = self.threads;
        let all_cores = self.sockets * self.nodes * self.cores;
        let numbering = self.numbering.unwrap_or(match self.os {
            OsName::Linux => Numbering::Linux,
            OsName::Windows => Numbering::Windows,
        });
        let by_core = |id: &dyn Fn(u32, u32) -> u32| {
            (0..all_cores)
                .flat_map(|core| (0..threads).map(move |thread| (core, thread)))
                .map(|(core, thread)| CpuId(id(core, thread)))
                .collect()
        };
        Ok(match numbering {
            Numbering::Linux => by_core(&|core, thread| thread * all_cores + core),
            Numbering::Adjacent => by_core(&|core, thread| core * threads + thread),
            Numbering::Windows => self.in_groups()?,
        })
    }

    /// Windows fills a group with whole nodes; a node with more CPUs than a group has gets groups
    /// of its own, filled evenly.
    fn in_groups(&self) -> Result<Vec<CpuId>, ShapeError> {
        let (cores, threads) = (self.cores, self.threads);
        if threads > GROUP_SIZE {
            return Err(ShapeError::CoreTooWide(threads));
        }
        let cores_per_group = GROUP_SIZE / threads;
        let groups_per_node = cores.div_ceil(cores_per_group);
        // As even as whole cores allow.
        let share = cores.div_ceil(groups_per_node);
        let mut ids = Vec::new();
        let (mut group, mut used) = (0u32, 0u32);
        for _ in 0..self.sockets * self.nodes {
            let mut left = cores;
            while left > 0 {
                let here = left.min(share) * threads;
                if used > 0 && (used + here > GROUP_SIZE || groups_per_node > 1) {
                    group += 1;
                    used = 0;
                }
                let first = group * GROUP_SIZE + used;
                // Half-filled groups leave holes, so ids can exceed the limit although the number
                // of CPUs does not.
                if first + here > MAX_CPU + 1 {
                    let Shape { sockets, nodes, .. } = *self;
                    return Err(ShapeError::TooManyCpus { sockets, nodes, cores, threads });
                }
                ids.extend((first..first + here).map(CpuId));
                used += here;
                left -= left.min(share);
            }
        }
        Ok(ids)
    }

    fn distance_table(&self, nodes: u32) -> Vec<Vec<u32>> {
        let (local, near, far) = match self.distances[..] {
            [local, remote] => (local, remote, remote),
            [local, near, far] => (local, near, far),
            _ => return Vec::new(),
        };
        let with_cpus = self.sockets * self.nodes;
        let socket = |node: u32| (node < with_cpus).then(|| node / self.nodes);
        let distance = |a: u32, b: u32| match () {
            () if a == b => local,
            () if socket(a).is_some() && socket(a) == socket(b) => near,
            () => far,
        };
        (0..nodes).map(|a| (0..nodes).map(|b| distance(a, b)).collect()).collect()
    }
}
