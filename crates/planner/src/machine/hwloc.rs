//! Machines from hwloc's XML (`lstopo machine.xml`), versions 1 and 2.
//!
//! Main entry: [`parse`]. Packages, L3 caches, cores and PUs come from the nesting of objects, NUMA
//! nodes from their CPU sets. Files of hwloc name a DTD but define nothing; a file that defines
//! entities is rejected, so that no text can expand while it is parsed.

use objects::pod::OsName;
use std::collections::BTreeMap;

use placement::cpuset::MAX_CPU;
use placement::numa::MAX_NODES;
use placement::topology::{Cpu, HugePages, NodeMemory, Parts, TopologyError};
use placement::{Bytes, CacheId, CoreId, CpuId, CpuSet, Machine, NumaId, SocketId};
use roxmltree::{Document, Node, ParsingOptions};
use thiserror::Error;

/// The most elements that are parsed; a machine of 1,024 CPUs has about 20,000.
const MAX_ELEMENTS: u32 = 4_000_000;

/// The deepest accepted nesting; real files have about ten levels.
const MAX_DEPTH: usize = 200;

/// The reason why an XML text does not describe a machine.
#[derive(Debug, Error)]
pub enum HwlocError {
    #[error("{0}")]
    Xml(#[from] roxmltree::Error),
    #[error("the file defines entities, which hwloc never does")]
    Definitions,
    #[error("the outermost element is {0:?}; hwloc writes \"topology\"")]
    NotHwloc(String),
    #[error("objects are nested more than {MAX_DEPTH} deep")]
    TooDeep,
    #[error("line {line}: {object} has {attribute}={found:?}; it should be {expected}")]
    Attribute {
        line: u32,
        object: String,
        attribute: &'static str,
        found: String,
        expected: &'static str,
    },
    #[error("line {line}: {object} has no {attribute}")]
    NoAttribute { line: u32, object: String, attribute: &'static str },
    #[error("the file describes no processing unit (PU)")]
    NoCpus,
    #[error("the description contradicts itself: {0}")]
    Topology(#[from] TopologyError),
}

/// The ancestors of a PU.
#[derive(Clone, Copy, Default)]
struct Place {
    socket: Option<u32>,
    cache: Option<u32>,
    core: Option<u32>,
}

/// A NUMA node of the file.
struct NumaObject {
    id: u32,
    /// The CPUs near it, which may belong to another node if it has none itself.
    near: CpuSet,
    /// Memory other than DRAM (HBM, accelerators, …), which does not decide the node of a CPU.
    special: bool,
    memory: NodeMemory,
    gp_index: Option<u64>,
}

#[derive(Default)]
struct Found {
    pus: BTreeMap<CpuId, Place>,
    nodes: Vec<NumaObject>,
    online: Option<CpuSet>,
    packages: u32,
    caches: u32,
    cores: u32,
    windows: bool,
}

pub fn parse(text: &str) -> Result<Machine, HwlocError> {
    if text.contains("<!ENTITY") {
        return Err(HwlocError::Definitions);
    }
    let options =
        ParsingOptions { allow_dtd: true, nodes_limit: MAX_ELEMENTS, ..ParsingOptions::default() };
    let document = Document::parse_with_options(text, options)?;
    let root = document.root_element();
    if root.tag_name().name() != "topology" {
        let name = root.tag_name().name().chars().take(40).collect();
        return Err(HwlocError::NotHwloc(name));
    }
    let mut found = Found::default();
    found.walk(root)?;
    let distances = distances(root, &found.nodes);
    found.machine(distances)
}

fn is_object(node: &Node<'_, '_>) -> bool {
    node.is_element() && node.tag_name().name() == "object"
}

impl Found {
    fn walk(&mut self, root: Node<'_, '_>) -> Result<(), HwlocError> {
        let mut stack: Vec<(Node<'_, '_>, Place, usize)> =
            root.children().filter(is_object).map(|object| (object, Place::default(), 0)).collect();
        stack.reverse();
        while let Some((object, mut place, depth)) = stack.pop() {
            if depth > MAX_DEPTH {
                return Err(HwlocError::TooDeep);
            }
            self.visit(object, &mut place)?;
            let first = stack.len();
            stack
                .extend(object.children().filter(is_object).map(|child| (child, place, depth + 1)));
            // Children are numbered in the order of the file.
            stack[first..].reverse();
        }
        Ok(())
    }

    fn visit(&mut self, object: Node<'_, '_>, place: &mut Place) -> Result<(), HwlocError> {
        let next = |counter: &mut u32| {
            *counter += 1;
            *counter - 1
        };
        match object.attribute("type").unwrap_or_default() {
            "Machine" => {
                self.online = match object.attribute("online_cpuset") {
                    Some(text) => Some(bitmap(object, "online_cpuset", text)?),
                    None => None,
                };
                self.windows = object.children().any(|info| {
                    info.attribute("name") == Some("OSName")
                        && info.attribute("value").is_some_and(|v| v.starts_with("Windows"))
                });
            }
            "Package" | "Socket" => {
                let position = next(&mut self.packages);
                place.socket = Some(os_index(object)?.unwrap_or(position));
            }
            "L3Cache" => place.cache = Some(next(&mut self.caches)),
            "Cache" if object.attribute("depth") == Some("3") => {
                place.cache = Some(next(&mut self.caches));
            }
            // A core's own os_index is unique only within its package.
            "Core" => place.core = Some(next(&mut self.cores)),
            "NUMANode" => {
                self.nodes.push(numa_node(object)?);
                if self.nodes.len() > MAX_NODES {
                    return Err(TopologyError::TooManyNodes(self.nodes.len()).into());
                }
            }
            "PU" => {
                let id = os_index(object)?.ok_or_else(|| missing(object, "os_index"))?;
                if id > MAX_CPU {
                    let found = id.to_string();
                    return Err(wrong(object, "os_index", &found, "a CPU id up to 65535"));
                }
                self.pus.insert(CpuId(id), *place);
            }
            _ => {}
        }
        Ok(())
    }

    fn machine(self, distances: Vec<Vec<u32>>) -> Result<Machine, HwlocError> {
        let mut pus = self.pus;
        if let Some(online) = &self.online {
            pus.retain(|cpu, _| online.contains(*cpu));
        }
        if pus.is_empty() {
            return Err(HwlocError::NoCpus);
        }
        let mut core_names: BTreeMap<u32, CoreId> = BTreeMap::new();
        let mut cpus = Vec::with_capacity(pus.len());
        for (cpu, place) in &pus {
            let own = CoreId(cpu.0);
            let core = place.core.map_or(own, |core| *core_names.entry(core).or_insert(own));
            let socket = place.socket.unwrap_or(0);
            // The node of a CPU is the nearest of ordinary memory, then the lowest.
            let node = self
                .nodes
                .iter()
                .filter(|node| node.near.contains(*cpu))
                .min_by_key(|node| (node.special, node.near.len(), node.id))
                .map_or_else(|| self.nodes.iter().map(|n| n.id).min().unwrap_or(0), |n| n.id);
            cpus.push(Cpu {
                cpu: *cpu,
                core,
                socket: SocketId(socket),
                numa: NumaId(node),
                cache: CacheId(place.cache.unwrap_or(socket)),
            });
        }
        let nodes = self.nodes.into_iter().map(|node| node.memory).collect();
        let os = if self.windows { OsName::Windows } else { OsName::Linux };
        Ok(Machine::new("", os, Parts { cpus, nodes, distances })?)
    }
}

fn numa_node(object: Node<'_, '_>) -> Result<NumaObject, HwlocError> {
    let id = os_index(object)?.unwrap_or(0);
    let near = match object.attribute("cpuset") {
        Some(text) => bitmap(object, "cpuset", text)?,
        None => CpuSet::new(),
    };
    let memory = match object.attribute("local_memory") {
        Some(text) => text
            .parse()
            .map(Bytes)
            .map_err(|_| wrong(object, "local_memory", text, "a number of bytes"))?,
        None => Bytes::ZERO,
    };
    let mut pages: BTreeMap<u64, u64> = BTreeMap::new();
    for page in object.children().filter(|c| c.tag_name().name() == "page_type") {
        let number = |name| page.attribute(name).and_then(|text| text.parse::<u64>().ok());
        if let (Some(size), Some(count)) = (number("size"), number("count")) {
            pages.insert(size, count);
        }
    }
    // The smallest are the ordinary pages.
    let huge_pages = pages
        .into_iter()
        .skip(1)
        .map(|(size, count)| HugePages { page_size: Bytes(size), count })
        .collect();
    let special = object.attribute("subtype").is_some_and(|subtype| subtype != "DRAM");
    Ok(NumaObject {
        id,
        near,
        special,
        memory: NodeMemory { numa: NumaId(id), memory, huge_pages },
        gp_index: object.attribute("gp_index").and_then(|text| text.parse().ok()),
    })
}

fn os_index(object: Node<'_, '_>) -> Result<Option<u32>, HwlocError> {
    let Some(text) = object.attribute("os_index") else { return Ok(None) };
    // hwloc writes an unknown index as the highest number.
    if matches!(text, "4294967295" | "-1") {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| wrong(object, "os_index", text, "a number"))
}

/// hwloc's bit maps: `0x00000001,0xffffffff`, 32 bits each, the highest first; an empty part is 0.
fn bitmap(object: Node<'_, '_>, attribute: &'static str, text: &str) -> Result<CpuSet, HwlocError> {
    let mut cpus = CpuSet::new();
    let refuse = || wrong(object, attribute, text, "a bit map like 0x000000ff of CPUs up to 65535");
    if text.contains("0xf...f") {
        return Err(refuse());
    }
    for (word, part) in text.trim().split(',').rev().enumerate() {
        if part.is_empty() {
            continue;
        }
        let digits = part.strip_prefix("0x").unwrap_or(part);
        let bits = u32::from_str_radix(digits, 16).map_err(|_| refuse())?;
        for bit in (0..32).filter(|bit| bits >> bit & 1 == 1) {
            let cpu = u32::try_from(word).ok().and_then(|word| word.checked_mul(32));
            let cpu = cpu.map(|first| first.saturating_add(bit)).filter(|cpu| *cpu <= MAX_CPU);
            cpus.insert(CpuId(cpu.ok_or_else(refuse)?));
        }
    }
    Ok(cpus)
}

/// The table of latencies between all NUMA nodes, in order of node id; empty if the file has none
/// that fits. Distances are a help to placement, so a file without them is still a machine.
fn distances(root: Node<'_, '_>, nodes: &[NumaObject]) -> Vec<Vec<u32>> {
    let table = root
        .children()
        .filter(|e| e.tag_name().name() == "distances2" && e.attribute("type") == Some("NUMANode"))
        .find_map(|e| table_of_version_2(e, nodes))
        .or_else(|| {
            let mut elements = root.descendants().filter(|e| e.tag_name().name() == "distances");
            elements.find_map(|e| table_of_version_1(e, nodes))
        });
    table.unwrap_or_default()
}

/// `kind` has bit 2 set if the values are latencies, bit 3 if they are bandwidths.
const MEANS_LATENCY: u32 = 4;

fn table_of_version_2(element: Node<'_, '_>, nodes: &[NumaObject]) -> Option<Vec<Vec<u32>>> {
    let kind: u32 = element.attribute("kind")?.parse().ok()?;
    if kind & MEANS_LATENCY == 0 {
        return None;
    }
    let numbers = |name: &str| -> Option<Vec<u64>> {
        let chunks = element.children().filter(|c| c.tag_name().name() == name);
        let words = chunks.filter_map(|c| c.text()).flat_map(str::split_ascii_whitespace);
        words.map(|word| word.parse().ok()).collect()
    };
    let by_gp = element.attribute("indexing") == Some("gp");
    let order: Option<Vec<u32>> = numbers("indexes")?
        .into_iter()
        .map(|index| {
            let node = nodes.iter().find(|node| {
                if by_gp { node.gp_index == Some(index) } else { u64::from(node.id) == index }
            });
            node.map(|node| node.id)
        })
        .collect();
    let values: Option<Vec<u32>> =
        numbers("u64values")?.into_iter().map(|value| u32::try_from(value).ok()).collect();
    square(&order?, &values?, nodes)
}

fn table_of_version_1(element: Node<'_, '_>, nodes: &[NumaObject]) -> Option<Vec<Vec<u32>>> {
    let count: usize = element.attribute("nbobjs")?.parse().ok()?;
    let base: f64 = element.attribute("latency_base")?.parse().ok()?;
    if count != nodes.len() {
        return None;
    }
    let latencies = element.children().filter(|c| c.tag_name().name() == "latency");
    let values: Option<Vec<u32>> = latencies
        .map(|latency| {
            let value: f64 = latency.attribute("value")?.parse().ok()?;
            let scaled = (value * base).round();
            // Also rejects NaN.
            (scaled >= 1.0 && scaled <= f64::from(u32::MAX)).then_some(scaled as u32)
        })
        .collect();
    let order: Vec<u32> = nodes.iter().map(|node| node.id).collect();
    square(&order, &values?, nodes)
}

/// The values as a table in order of node id, if there is one for each pair of nodes.
fn square(order: &[u32], values: &[u32], nodes: &[NumaObject]) -> Option<Vec<Vec<u32>>> {
    let count = nodes.len();
    let mut sorted: Vec<usize> = (0..order.len()).collect();
    sorted.sort_by_key(|position| order[*position]);
    sorted.dedup_by_key(|position| order[*position]);
    if sorted.len() != count || order.len() != count || values.len() != count * count {
        return None;
    }
    let row = |a: &usize| sorted.iter().map(|b| values[a * count + b]).collect();
    Some(sorted.iter().map(row).collect())
}

fn line(object: Node<'_, '_>) -> u32 {
    object.document().text_pos_at(object.range().start).row
}

fn name(object: Node<'_, '_>) -> String {
    object.attribute("type").unwrap_or("object").chars().take(40).collect()
}

fn wrong(
    object: Node<'_, '_>,
    attribute: &'static str,
    found: &str,
    expected: &'static str,
) -> HwlocError {
    HwlocError::Attribute {
        line: line(object),
        object: name(object),
        attribute,
        found: found.chars().take(60).collect(),
        expected,
    }
}

fn missing(object: Node<'_, '_>, attribute: &'static str) -> HwlocError {
    HwlocError::NoAttribute { line: line(object), object: name(object), attribute }
}
