//! `memory_static`: the memory manager, from its reservations to sequences of allocations.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use objects::Quantity;
use placement::demand::{MemoryKind, PodUid};
use placement::memory::reserve::{Entry, ReservedMemory};
use placement::memory::{MemoryGuarantee, MemoryHints, MemoryLedger, StaticMemory};
use placement::topology::{Cpu, Parts};
use placement::{CacheId, CoreId, CpuId, SocketId, Topology};
use serde_json::Value;

use super::fields::{
    array, demands, error_of, flag, hint, hint_lists, memory_nodes, memory_state, options,
    show_blocks, show_memory, string, with_container,
};
use super::{Difference, Vectors};

pub(super) fn check(_: &Vectors, line: &Value) -> Vec<Difference> {
    super::or_malformed(compare(line))
}

fn compare(line: &Value) -> Result<Vec<Difference>> {
    let topology = machine(line)?;
    let mut differences = Vec::new();
    if string(line, "kind")? == "reserved" {
        let reserved = ReservedMemory::new(
            &topology,
            &reserved_entries(line)?,
            &quantities(line, "node_allocatable_reservation")?,
        );
        let error = reserved.as_ref().err().map(ToString::to_string);
        differences.extend(error_of(line, "new_error", error.as_deref()));
        if let (Ok(got), Some(_)) = (reserved, line.get("system_reserved")) {
            let expected = system_reserved(line, &topology)?;
            for (position, node) in topology.nodes().iter().enumerate() {
                for kind in kinds(&topology) {
                    differences.extend(Difference::between(
                        format!("{kind} reserved on node {}", node.id),
                        &expected.get(position, kind),
                        &got.get(position, kind),
                    ));
                }
            }
        }
        return Ok(differences);
    }
    let promise = match string(line, "policy")?.as_str() {
        "BestEffort" => MemoryGuarantee::BestEffort,
        _ => MemoryGuarantee::Strict,
    };
    let policy = match StaticMemory::new(system_reserved(line, &topology)?, promise) {
        Ok(policy) => policy,
        Err(error) => {
            differences.extend(error_of(line, "new_error", Some(&error.to_string())));
            return Ok(differences);
        }
    };
    differences.extend(error_of(line, "new_error", None));
    let mut ledger = match line.get("initial_state") {
        Some(state) => match memory_state(state, &topology) {
            Ok(ledger) => ledger,
            // The state of another machine cannot be expressed with this machine's nodes.
            Err(error) => {
                let message = error.to_string();
                differences.extend(error_of(line, "start_error", Some(&message)));
                return Ok(differences);
            }
        },
        None => MemoryLedger::default(),
    };
    if let Err(error) = policy.check(&topology, &mut ledger) {
        differences.extend(error_of(line, "start_error", Some(&error.to_string())));
        return Ok(differences);
    }
    differences.extend(error_of(line, "start_error", None));
    if let Some(state) = line.get("state_after_start") {
        differences.extend(compare_state("state after start", state, &ledger, &topology)?);
    }
    if line.get("steps").is_some() {
        steps(&topology, &policy, &mut ledger, line, &mut differences)?;
    }
    Ok(differences)
}

/// Returns a machine with only the memory that matters here.
fn machine(line: &Value) -> Result<Topology> {
    let nodes = memory_nodes(line)?;
    let cpu = Cpu {
        cpu: CpuId(0),
        core: CoreId(0),
        socket: SocketId(0),
        numa: nodes.first().context("no nodes")?.numa,
        cache: CacheId(0),
    };
    Ok(Topology::new(Parts { cpus: vec![cpu], nodes, distances: Vec::new() })?)
}

fn kinds(topology: &Topology) -> Vec<MemoryKind> {
    let huge = topology.nodes().iter().flat_map(|n| &n.huge_pages);
    let mut kinds: Vec<_> = huge.map(|pages| MemoryKind::HugePages(pages.page_size)).collect();
    kinds.push(MemoryKind::Memory);
    kinds.sort();
    kinds.dedup();
    kinds
}

pub(super) fn quantities(line: &Value, key: &str) -> Result<BTreeMap<String, Quantity>> {
    options(line, key)?.into_iter().map(|(name, q)| Ok((name, Quantity::parse(&q)?))).collect()
}

pub(super) fn reserved_entries(line: &Value) -> Result<Vec<Entry>> {
    let entries = line.get("reserved_memory").and_then(Value::as_array).into_iter().flatten();
    entries
        .map(|entry| {
            let numa_node = entry.get("numa").and_then(Value::as_i64).context("numa")?;
            Ok(Entry { numa_node, limits: quantities(entry, "limits")? })
        })
        .collect()
}

fn system_reserved(line: &Value, topology: &Topology) -> Result<ReservedMemory> {
    let mut reserved = Vec::new();
    for (id, amounts) in
        line.get("system_reserved").and_then(Value::as_object).into_iter().flatten()
    {
        let id = id.parse().context("node id")?;
        // A reservation on a node that the machine lacks has no effect.
        let Some(position) = topology.node_position(placement::NumaId(id)) else { continue };
        for (name, bytes) in amounts.as_object().context("amounts")? {
            let kind = MemoryKind::parse(name).context("kind")?;
            reserved.push((position, kind, bytes.as_u64().context("bytes")?));
        }
    }
    Ok(ReservedMemory::from_bytes(reserved))
}

fn steps(
    topology: &Topology,
    policy: &StaticMemory,
    ledger: &mut MemoryLedger,
    line: &Value,
    differences: &mut Vec<Difference>,
) -> Result<()> {
    let demands = demands(line)?;
    for (n, step) in array(line, "steps")?.iter().enumerate() {
        let op = string(step, "op")?;
        let at = |what: &str| format!("step {n} ({op}): {what}");
        match op.as_str() {
            "allocate" => {
                let (demand, container) = with_container(&demands, step)?;
                let affinity = hint(step.get("affinity").context("affinity")?, topology)?;
                let binding = flag(step, "authoritative");
                let (got, error) =
                    match policy.allocate(ledger, demand, container, affinity, binding) {
                        Ok(Some(blocks)) => (show_blocks(&blocks, topology), None),
                        Ok(None) => ("none".to_owned(), None),
                        Err(error) => ("none".to_owned(), Some(error.to_string())),
                    };
                let expected = match step.get("blocks") {
                    Some(blocks) => show_memory(blocks)?,
                    None => "none".to_owned(),
                };
                differences.extend(Difference::between(at("blocks"), &expected, &got));
                differences.extend(error_of(step, "error", error.as_deref()));
            }
            "remove" => {
                ledger.release(&PodUid::new(&string(step, "pod")?), &string(step, "container")?);
            }
            "hints" | "pod_hints" => {
                let hints = if op == "hints" {
                    let (demand, container) = with_container(&demands, step)?;
                    policy.hints(ledger, demand, container)
                } else {
                    let uid = string(step, "pod")?;
                    policy.pod_hints(ledger, demands.get(&uid).context("pod")?)
                };
                let lists = match hints {
                    MemoryHints::None => None,
                    MemoryHints::Nowhere => Some(BTreeMap::new()),
                    MemoryHints::Each(family, kinds) => {
                        let list = family.enumerate(topology.nodes().len());
                        Some(kinds.iter().map(|k| (k.to_string(), list.clone())).collect())
                    }
                };
                differences.extend(hint_lists(at("hints"), step, lists.as_ref(), topology)?);
            }
            _ => anyhow::bail!("unknown step {op:?}"),
        }
        if let Some(state) = step.get("state") {
            differences.extend(compare_state(&at("state"), state, ledger, topology)?);
        }
        if !differences.is_empty() {
            break; // Everything after the first difference follows from it.
        }
    }
    Ok(())
}

pub(super) fn compare_state(
    what: &str,
    expected: &Value,
    ledger: &MemoryLedger,
    topology: &Topology,
) -> Result<Vec<Difference>> {
    let expected = memory_state(expected, topology)?;
    let mut differences = Vec::new();
    for (position, node) in topology.nodes().iter().enumerate() {
        differences.extend(Difference::between(
            format!("{what}: node {}", node.id),
            &expected.nodes.get(position),
            &ledger.nodes.get(position),
        ));
    }
    differences.extend(Difference::between(
        format!("{what}: assignments"),
        &expected.assignments,
        &ledger.assignments,
    ));
    Ok(differences)
}
