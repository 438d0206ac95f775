//! Parses common parts of vectors: machines, CPU lists. Vectors are trusted data of the project, so
//! a malformed line is only reported as an error of that line.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use placement::affinity::Hint;
use placement::cpu::CpuLedger;
use placement::demand::{ContainerName, Demand, MemoryKind, PodUid};
use placement::memory::{Block, Blocks, MemoryLedger, MemoryStateError, MemoryTable, NodeState};
use placement::topology::{Cpu, HugePages, NodeMemory, Parts};
use placement::{Bytes, CacheId, CoreId, CpuId, CpuSet, NumaId, NumaMask, SocketId, Topology};
use serde_json::{Value, json};
use smallvec::SmallVec;

use super::Difference;

/// Parses a machine of `topologies.jsonl`.
pub(super) fn topology(line: &Value) -> Result<(String, Topology)> {
    let name = string(line, "name")?;
    let cpus = array(line, "cpus")?
        .iter()
        .map(|c| {
            Ok(Cpu {
                cpu: CpuId(number(c, "cpu")?),
                core: CoreId(number(c, "core")?),
                socket: SocketId(number(c, "socket")?),
                numa: NumaId(number(c, "numa")?),
                cache: CacheId(number(c, "uncore_cache")?),
            })
        })
        .collect::<Result<_>>()?;
    let topology = Topology::new(Parts { cpus, ..Parts::default() })
        .with_context(|| format!("machine {name}"))?;
    Ok((name, topology))
}

pub(super) fn string(line: &Value, key: &str) -> Result<String> {
    line.get(key).and_then(Value::as_str).map(str::to_owned).with_context(|| missing(key))
}

pub(super) fn array<'a>(line: &'a Value, key: &str) -> Result<&'a Vec<Value>> {
    line.get(key).and_then(Value::as_array).with_context(|| missing(key))
}

pub(super) fn number(line: &Value, key: &str) -> Result<u32> {
    let number = line.get(key).and_then(Value::as_u64).with_context(|| missing(key))?;
    u32::try_from(number).with_context(|| format!("{key} is out of range: {number}"))
}

pub(super) fn flag(line: &Value, key: &str) -> bool {
    line.get(key).and_then(Value::as_bool).unwrap_or(false)
}

pub(super) fn cpuset(line: &Value, key: &str) -> Result<CpuSet> {
    let text = string(line, key)?;
    CpuSet::parse(&text).with_context(|| format!("{key}: {text:?}"))
}

/// Parses a map of option names to values.
pub(super) fn options(line: &Value, key: &str) -> Result<BTreeMap<String, String>> {
    match line.get(key) {
        Some(map) => serde_json::from_value(map.clone()).with_context(|| missing(key)),
        None => Ok(BTreeMap::new()),
    }
}

/// Parses a hint `[affinity, preferred]`; the affinity is a mask of node ids.
pub(super) fn hint(value: &Value, topology: &Topology) -> Result<Hint> {
    let pair = value.as_array().filter(|pair| pair.len() == 2).context("not a hint")?;
    let nodes = match &pair[0] {
        Value::Null => None,
        ids => Some(mask_of_ids(ids.as_u64().context("not a mask")?, topology)?),
    };
    Ok(Hint { nodes, preferred: pair[1].as_bool().context("not a hint")? })
}

fn mask_of_ids(ids: u64, topology: &Topology) -> Result<NumaMask> {
    NumaMask(ids)
        .iter()
        .map(|id| topology.node_position(NumaId(id as u32)).with_context(|| format!("node {id}")))
        .collect()
}

/// Renders a hint: `0,1 preferred`.
pub(super) fn show_hint(hint: Hint, topology: &Topology) -> String {
    let nodes = match hint.nodes {
        None => "anywhere".to_owned(),
        Some(mask) => {
            let ids: Vec<_> = topology.node_ids(mask).map(|id| id.to_string()).collect();
            ids.join(",")
        }
    };
    if hint.preferred { format!("{nodes} preferred") } else { nodes }
}

/// Parses a CPU manager state.
pub(super) fn cpu_state(state: &Value) -> Result<CpuLedger> {
    let mut ledger = CpuLedger { shared: cpuset(state, "default_cpuset")?, ..CpuLedger::default() };
    for (pod, containers) in
        state.get("assignments").and_then(Value::as_object).into_iter().flatten()
    {
        let entry = ledger.assignments.entry(PodUid::new(pod)).or_default();
        for name in containers.as_object().context("assignments")?.keys() {
            entry.insert(ContainerName::new(name), cpuset(containers, name)?);
        }
    }
    Ok(ledger)
}

/// Parses the pods of a line, by uid.
pub(super) fn demands(line: &Value) -> Result<BTreeMap<String, Demand>> {
    array(line, "pods")?.iter().map(|pod| Ok((string(pod, "uid")?, demand(pod)?))).collect()
}

/// The demand of a recorded pod, made of it by the agent as of every other pod.
fn demand(recorded: &Value) -> Result<Demand> {
    let containers = |key: &str, init: bool| -> Result<Vec<Value>> {
        let list = recorded.get(key).and_then(Value::as_array).into_iter().flatten();
        let container = |container: &Value| {
            let mut made = json!({
                "name": string(container, "name")?,
                "resources": {"requests": options(container, "requests")?},
            });
            if init && flag(container, "restartable") {
                made["restartPolicy"] = "Always".into();
            }
            Ok(made)
        };
        list.map(container).collect()
    };
    let mut pod = json!({
        "metadata": {"uid": string(recorded, "uid")?},
        "spec": {
            "initContainers": containers("init_containers", true)?,
            "containers": containers("containers", false)?,
        },
        // Limits are not recorded; the class that the API server reports stands for them.
        "status": {"qosClass": string(recorded, "qos")?},
    });
    if let Some(pod_level) = recorded.get("pod_level_resources") {
        pod["spec"]["resources"] = pod_level.clone();
    }
    let pod: lifecycle::spec::Pod = serde_json::from_value(pod).context("pod")?;
    Ok(lifecycle::placement_demand(&pod))
}

/// Returns the pod and container of a step.
pub(super) fn with_container<'a>(
    demands: &'a BTreeMap<String, Demand>,
    step: &Value,
) -> Result<(&'a Demand, usize)> {
    let demand = demands.get(&string(step, "pod")?).with_context(|| missing("pod"))?;
    let name = string(step, "container")?;
    let container = demand.containers.iter().position(|c| c.name.as_str() == name);
    Ok((demand, container.with_context(|| missing("container"))?))
}

/// Compares an error with the one recorded under `key`, a text or an object with a `message`. The
/// text of Go's number or JSON parser after its prefix is not compared.
pub(super) fn error_of(line: &Value, key: &str, got: Option<&str>) -> Option<Difference> {
    let expected = line.get(key).map(|e| e.get("message").unwrap_or(e));
    let expected = expected.and_then(Value::as_str).unwrap_or("none");
    Difference::between(key, &expected, &got.unwrap_or("none"))
}

/// Compares lists of hints by resource with those of a step; `None` is an absent map.
pub(super) fn hint_lists(
    what: String,
    step: &Value,
    got: Option<&BTreeMap<String, Vec<Hint>>>,
    topology: &Topology,
) -> Result<Option<Difference>> {
    let show = |hints: &[Hint]| -> Vec<String> {
        // Upstream reads a list with only a nil affinity as an empty list.
        hints.iter().filter(|h| h.nodes.is_some()).map(|h| show_hint(*h, topology)).collect()
    };
    let expected = match step.get("hints").and_then(Value::as_object) {
        None => None,
        Some(map) => {
            let mut lists = BTreeMap::new();
            for (resource, list) in map {
                let hints = list.as_array().into_iter().flatten().map(|h| hint(h, topology));
                lists.insert(resource.clone(), show(&hints.collect::<Result<Vec<_>>>()?));
            }
            Some(lists)
        }
    };
    let got = got.map(|lists| lists.iter().map(|(r, hints)| (r.clone(), show(hints))).collect());
    Ok(Difference::between(what, &expected, &got))
}

/// Parses the memory of a machine's nodes.
pub(super) fn memory_nodes(line: &Value) -> Result<Vec<NodeMemory>> {
    array(line, "numa_nodes")?
        .iter()
        .map(|node| {
            let huge_pages = node.get("hugepages").and_then(Value::as_array).into_iter().flatten();
            let huge_pages = huge_pages.map(|pages| {
                let kib = pages.get("page_size_kb").and_then(Value::as_u64).context("page size")?;
                let count = pages.get("num_pages").and_then(Value::as_u64).context("pages")?;
                Ok(HugePages { page_size: Bytes::kib(kib), count })
            });
            Ok(NodeMemory {
                numa: NumaId(number(node, "id")?),
                memory: Bytes(node.get("memory").and_then(Value::as_u64).context("memory")?),
                huge_pages: huge_pages.collect::<Result<_>>()?,
            })
        })
        .collect()
}

/// Parses a memory manager state, with the machine's node positions.
pub(super) fn memory_state(state: &Value, topology: &Topology) -> Result<MemoryLedger> {
    let mut ledger = MemoryLedger::default();
    let nodes = state.get("nodes").and_then(Value::as_object).context("nodes")?;
    let mut by_position: BTreeMap<usize, NodeState> = BTreeMap::new();
    for (id, node) in nodes {
        let position = topology.node_position(NumaId(id.parse()?));
        let position = position.context(MemoryStateError::OtherMachine)?;
        let mut tables = SmallVec::new();
        for (name, numbers) in node.get("memory").and_then(Value::as_object).context("memory")? {
            let n: [u64; 5] = serde_json::from_value(numbers.clone())?;
            let table = MemoryTable {
                total: n[0],
                system_reserved: n[1],
                allocatable: n[2],
                reserved: n[3],
                free: n[4],
            };
            tables.push((MemoryKind::parse(name).context("kind")?, table));
        }
        tables.sort_by_key(|(kind, _)| *kind);
        let cells = node_mask(node.get("cells").context("cells")?, topology)?;
        let assignments = node.get("assignments").and_then(Value::as_u64).context("assignments")?;
        by_position.insert(position, NodeState { assignments, cells, tables });
    }
    if !by_position.is_empty() && by_position.len() != topology.nodes().len() {
        return Err(MemoryStateError::OtherMachine.into());
    }
    ledger.nodes = by_position.into_values().collect();
    for (pod, containers) in
        state.get("assignments").and_then(Value::as_object).into_iter().flatten()
    {
        let entry = ledger.assignments.entry(PodUid::new(pod)).or_default();
        for (name, blocks) in containers.as_object().context("assignments")? {
            let container = ContainerName::new(name);
            let unknown = || MemoryStateError::UnknownNode {
                pod: PodUid::new(pod),
                container: container.clone(),
            };
            let mut list = Blocks::new();
            for block in blocks.as_array().context("blocks")? {
                list.push(Block {
                    nodes: node_mask(block.get("numa").context("numa")?, topology)
                        .map_err(|_| unknown())?,
                    kind: MemoryKind::parse(&string(block, "type")?).context("kind")?,
                    size: block.get("size").and_then(Value::as_u64).context("size")?,
                });
            }
            list.sort_by_key(|block| block.kind);
            entry.insert(container, list);
        }
    }
    Ok(ledger)
}

fn node_mask(ids: &Value, topology: &Topology) -> Result<NumaMask> {
    let ids: Vec<u32> = serde_json::from_value(ids.clone())?;
    ids.into_iter()
        .map(|id| topology.node_position(NumaId(id)).with_context(|| format!("node {id}")))
        .collect()
}

/// Renders blocks: `memory 1024 on 0,1`.
pub(super) fn show_blocks(blocks: &Blocks, topology: &Topology) -> String {
    let show = |block: &Block| {
        let ids: Vec<_> = topology.node_ids(block.nodes).map(|id| id.to_string()).collect();
        format!("{} {} on {}", block.kind, block.size, ids.join(","))
    };
    let mut shown: Vec<_> = blocks.iter().map(show).collect();
    shown.sort();
    shown.join("; ")
}

/// Renders recorded blocks in the same form.
pub(super) fn show_memory(blocks: &Value) -> Result<String> {
    let mut shown = Vec::new();
    for block in blocks.as_array().context("blocks")? {
        let ids: Vec<u32> = serde_json::from_value(block.get("numa").context("numa")?.clone())?;
        let ids: Vec<_> = ids.iter().map(u32::to_string).collect();
        let size = block.get("size").and_then(Value::as_u64).context("size")?;
        shown.push(format!("{} {size} on {}", string(block, "type")?, ids.join(",")));
    }
    shown.sort();
    Ok(shown.join("; "))
}

fn missing(key: &str) -> String {
    format!("the line has no usable {key:?}")
}
