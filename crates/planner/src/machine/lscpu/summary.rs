//! The summary of `lscpu`: `Thread(s) per core: 2`, `NUMA node0 CPU(s): 0-31,64-95` and so on.
//!
//! Main entry: [`machine`]. The summary has CPU lists of NUMA nodes, but only counts of threads, cores,
//! sockets and caches. Machines are taken to be regular: each node has whole cores, and nodes, sockets and
//! L3 caches follow each other. Which CPUs of a node share a core depends on how the machine numbers them:
//!
//! ```text
//!   0-31,64-95    or one node alone    first all first threads, then all second ones: 0 and 64 share a core
//!   0-15  16-31   several nodes        the threads of a core side by side: 0 and 1 share a core
//! ```
//!
//! A summary that does not add up to a regular machine is refused.

use std::collections::BTreeMap;

use objects::pod::OsName;
use placement::topology::{Cpu, Parts};
use placement::{CacheId, CoreId, CpuId, CpuSet, Machine, NumaId, SocketId};
use serde_json::Value;

use super::LscpuError;

/// The fields of a summary, named as `lscpu` names them without the colon.
pub type Fields = BTreeMap<String, String>;

const CPUS: &str = "On-line CPU(s) list";
const THREADS: &str = "Thread(s) per core";

/// Reports whether a text is a summary.
#[must_use]
pub fn is_one(head: &str) -> bool {
    let fields = of_text(head);
    fields.contains_key("CPU(s)") && (fields.contains_key(THREADS) || fields.contains_key(CPUS))
}

#[must_use]
pub fn of_text(text: &str) -> Fields {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect()
}

/// The list `[{"field": "CPU(s):", "data": "2", "children": […]}, …]` of `lscpu -J`.
#[must_use]
pub fn of_json(fields: &Value) -> Fields {
    let mut found = Fields::new();
    // Lists of fields that are still to be looked at: no recursion over nested input.
    let mut lists = vec![fields];
    while let Some(list) = lists.pop() {
        for field in list.as_array().into_iter().flatten() {
            if let (Some(name), Some(data)) = (field["field"].as_str(), field["data"].as_str()) {
                found.insert(name.trim_end_matches(':').trim().to_owned(), data.trim().to_owned());
            }
            lists.push(&field["children"]);
        }
    }
    found
}

/// Reports whether siblings had to be assumed, and an example of CPUs that were taken for siblings.
#[must_use]
pub fn assumed_siblings(machine: &Machine) -> Option<CpuSet> {
    let cores = machine.topology.cores().iter();
    cores.map(|core| &core.cpus).find(|cpus| cpus.len() > 1).cloned()
}

/// The machine that a summary describes.
pub fn machine(fields: &Fields) -> Result<Machine, LscpuError> {
    let wrong = |problem: String| LscpuError::Summary(problem);
    let threads = count(fields, THREADS)?.unwrap_or(1);
    let sockets = count(fields, "Socket(s)")?.unwrap_or(1);
    let nodes = nodes(fields)?;
    let all: usize = nodes.iter().map(|(_, cpus)| cpus.len()).sum();
    if let Some(per_socket) = count(fields, "Core(s) per socket")?
        && per_socket.checked_mul(sockets).and_then(|cores| cores.checked_mul(threads)) != Some(all)
    {
        return Err(wrong(format!(
            "has {sockets} sockets with {per_socket} cores of {threads} threads, which does not make \
             the {all} CPUs that are online"
        )));
    }
    let in_one_range = |cpus: &CpuSet| {
        let (first, last) = (cpus.first().map_or(0, |c| c.0), cpus.last().map_or(0, |c| c.0));
        (last - first) as usize + 1 == cpus.len()
    };
    let side_by_side = nodes.len() > 1 && nodes.iter().all(|(_, cpus)| in_one_range(cpus));
    // Cores in order, each with its node.
    let mut cores: Vec<(NumaId, Vec<CpuId>)> = Vec::new();
    for (node, cpus) in &nodes {
        let cpus: Vec<CpuId> = cpus.iter().collect();
        if !cpus.len().is_multiple_of(threads) {
            let count = cpus.len();
            return Err(wrong(format!(
                "has NUMA node {node} with {count} CPUs, which are no whole cores of {threads} threads"
            )));
        }
        let here = cpus.len() / threads;
        for core in 0..here {
            let cpu = |thread: usize| match side_by_side {
                true => core * threads + thread,
                false => thread * here + core,
            };
            cores.push((*node, (0..threads).map(|thread| cpus[cpu(thread)]).collect()));
        }
    }
    let caches =
        l3_caches(fields).filter(|caches| cores.len().is_multiple_of(*caches)).unwrap_or(sockets);
    if !cores.len().is_multiple_of(sockets) || !cores.len().is_multiple_of(caches) {
        let count = cores.len();
        return Err(wrong(format!(
            "has {count} cores, which {sockets} sockets cannot share evenly"
        )));
    }
    let (per_socket, per_cache) = (cores.len() / sockets, cores.len() / caches);
    let mut parts = Parts::default();
    for (number, (numa, cpus)) in cores.iter().enumerate() {
        // A core is named after its lowest CPU. There are at most 65,536 cores.
        let core = CoreId(cpus.iter().map(|cpu| cpu.0).min().unwrap_or(0));
        let socket = SocketId((number / per_socket) as u32);
        let cache = CacheId((number / per_cache) as u32);
        let numa = *numa;
        parts.cpus.extend(cpus.iter().map(|cpu| Cpu { cpu: *cpu, core, socket, numa, cache }));
    }
    Ok(Machine::new("", OsName::Linux, parts)?)
}

/// NUMA nodes with their CPUs; one node with all CPUs if the summary names none.
fn nodes(fields: &Fields) -> Result<Vec<(NumaId, CpuSet)>, LscpuError> {
    let list = |text: &str, field: &str| {
        CpuSet::parse(text).map_err(|error| {
            LscpuError::Summary(format!("has {field} {text:?}, which is not a CPU list: {error}"))
        })
    };
    let mut nodes = Vec::new();
    for (name, text) in fields {
        let id = name.strip_prefix("NUMA node").and_then(|rest| rest.strip_suffix(" CPU(s)"));
        // "NUMA node(s)" is the count of them.
        let Some(id) = id.and_then(|id| id.parse().ok()) else { continue };
        let cpus = list(text, name)?;
        if !cpus.is_empty() {
            nodes.push((NumaId(id), cpus));
        }
    }
    nodes.sort_by_key(|(id, _)| *id);
    if !nodes.is_empty() {
        return Ok(nodes);
    }
    match fields.get(CPUS) {
        Some(text) => Ok(vec![(NumaId(0), list(text, CPUS)?)]),
        None => Err(LscpuError::Summary(format!("lacks the line {CPUS:?}"))),
    }
}

fn count(fields: &Fields, name: &str) -> Result<Option<usize>, LscpuError> {
    match fields.get(name).map(String::as_str) {
        None | Some("-" | "") => Ok(None),
        Some(text) => match text.parse::<usize>() {
            Ok(count @ 1..=65_536) => Ok(Some(count)),
            _ => Err(LscpuError::Summary(format!("has {name} {text:?}, which is not a count"))),
        },
    }
}

/// The 4 of `L3 cache: 128 MiB (4 instances)`.
fn l3_caches(fields: &Fields) -> Option<usize> {
    let name = ["L3 cache", "L3"].into_iter().find(|name| fields.contains_key(*name))?;
    let (_, instances) = fields.get(name)?.split_once('(')?;
    instances.split_once(' ')?.0.parse().ok().filter(|count| *count > 0)
}
