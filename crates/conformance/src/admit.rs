//! `admit`: whole nodes, from configuration through admissions, removals and restarts.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use objects::Quantity;
use objects::pod::OsName;
use placement::alignment::{Alignment, NodeLimit};
use placement::demand::{Demand, PodUid};
use placement::gates::Gates;
use placement::node::{CpuPolicy, MemoryPolicy};
use placement::plan::ledger_after_kubelet_rollback;
use placement::topology::Parts;
use placement::windows::AffinityMode;
use placement::{Ledger, Node, NumaMask, Placement, Topology, plan};
use serde_json::{Value, json};

use super::fields::{
    array, cpuset, demands, error_of, memory_nodes, options, string, with_container,
};
use super::memory_static::reserved_entries;
use super::{Difference, Vectors, cpu_static, memory_static};

pub(super) fn check(vectors: &Vectors, line: &Value) -> Vec<Difference> {
    super::or_malformed(compare(vectors, line))
}

fn compare(vectors: &Vectors, line: &Value) -> Result<Vec<Difference>> {
    let mut differences = Vec::new();
    let node = match node(vectors.topology(line)?, line)? {
        Ok(node) => node,
        Err(error) => {
            differences.extend(error_of(line, "new_error", Some(&error)));
            return Ok(differences);
        }
    };
    differences.extend(error_of(line, "new_error", None));
    let demands = demands(line)?;
    let mut ledger = node.empty_ledger();
    let mut active: Vec<String> = Vec::new();
    for (n, step) in array(line, "steps")?.iter().enumerate() {
        let op = string(step, "op")?;
        let at = |what: &str| format!("step {n} ({op}): {what}");
        match op.as_str() {
            "admit" => {
                let uid = string(step, "pod")?;
                let expected = step.get("result").context("result")?;
                let (got, admitted) = admit(&node, &mut ledger, &demands[&uid]);
                differences.extend(compare_result(&at("result"), expected, &got));
                if admitted && !active.contains(&uid) {
                    active.push(uid);
                }
            }
            "start_container" => {
                let (demand, container) = with_container(&demands, step)?;
                ledger.starting(&node, demand, container);
            }
            "remove_pod" => {
                let uid = string(step, "pod")?;
                ledger.release(&PodUid::new(&uid));
                active.retain(|pod| *pod != uid);
            }
            "restart" => {
                ledger = match node.restore(ledger) {
                    Ok(restored) => restored.ledger,
                    Err(error) => {
                        differences.push(Difference {
                            what: at("state"),
                            expected: "accepted".into(),
                            got: error.to_string(),
                        });
                        return Ok(differences);
                    }
                };
                let results = step.get("readmit").and_then(Value::as_array).into_iter().flatten();
                let mut kept = Vec::new();
                for (uid, expected) in active.iter().zip(results) {
                    let (got, admitted) = admit(&node, &mut ledger, &demands[uid]);
                    differences.extend(compare_result(&at("readmit"), expected, &got));
                    if admitted {
                        kept.push(uid.clone());
                    }
                }
                active = kept;
            }
            _ => anyhow::bail!("unknown step {op:?}"),
        }
        if let Some(state) = step.get("cpu_state") {
            differences.extend(cpu_static::compare_state(&at("CPU state"), state, &ledger.cpu)?);
        }
        if let Some(state) = step.get("memory_state") {
            differences.extend(memory_static::compare_state(
                &at("memory state"),
                state,
                &ledger.memory,
                &node.topology,
            )?);
        }
        if !differences.is_empty() {
            break; // Everything after the first difference follows from it.
        }
    }
    Ok(differences)
}

/// Builds the node, or returns the error with which a manager does not start.
fn node(cpus: &Topology, line: &Value) -> Result<std::result::Result<Node, String>> {
    let os = match string(line, "kind")?.as_str() {
        "windows" => OsName::Windows,
        _ => OsName::Linux,
    };
    let distances = match line.get("distances") {
        Some(rows) => serde_json::from_value(rows.clone())?,
        None => Vec::new(),
    };
    let parts = Parts { nodes: memory_nodes(line)?, distances, ..cpus.parts() };
    let topology = Topology::new(parts)?;
    let alignment = Alignment::new(
        &string(line, "topology_manager_policy")?,
        &string(line, "topology_manager_scope")?,
        &options(line, "topology_manager_options")?,
        &topology,
        NodeLimit::Kubelet,
    );
    let alignment = match alignment {
        Ok(alignment) => alignment,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let reserved = Quantity::parse(&string(line, "reserved_cpu_quantity")?)?;
    let cpu = CpuPolicy::new(
        &string(line, "cpu_manager_policy")?,
        &options(line, "cpu_manager_options")?,
        Some(&reserved),
        &cpuset(line, "reserved_cpus")?,
        alignment.policy,
        &Gates::ALL,
        &topology,
    );
    let cpu = match cpu {
        Ok(cpu) => cpu,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let entries = reserved_entries(line)?;
    let mut expected: BTreeMap<String, Quantity> = BTreeMap::new();
    for (name, amount) in entries.iter().flat_map(|entry| &entry.limits) {
        let sum = expected.entry(name.clone()).or_insert_with(Quantity::zero);
        *sum = sum.checked_add(amount).context("sum of reserved memory")?;
    }
    let policy = string(line, "memory_manager_policy")?;
    let memory = match MemoryPolicy::new(&policy, os, &entries, &expected, &topology) {
        Ok(memory) => memory,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let affinity_mode = AffinityMode::CpuOnly;
    Ok(Ok(Node { topology, os, cpu, memory, alignment, affinity_mode }))
}

/// Admits a pod if it can be placed, and renders the result in the form of the vectors.
fn admit(node: &Node, ledger: &mut Ledger, demand: &Demand) -> (Value, bool) {
    let uid = demand.uid.as_str();
    match plan(node, ledger, demand) {
        Ok(placement) => {
            ledger.commit(&placement);
            let containers = containers(node, ledger, &placement);
            (json!({"pod": uid, "admit": true, "containers": containers}), true)
        }
        Err(refusal) => {
            *ledger = ledger_after_kubelet_rollback(node, ledger, demand);
            let (reason, message) = (refusal.reason(), refusal.to_string());
            (json!({"pod": uid, "admit": false, "reason": reason, "message": message}), false)
        }
    }
}

fn containers(node: &Node, ledger: &Ledger, placement: &Placement) -> Value {
    let mut containers = serde_json::Map::new();
    for (index, placed) in placement.containers.iter().enumerate() {
        let mut entry = serde_json::Map::new();
        if let Some(cpus) = &placed.cpus {
            entry.insert("cpuset".into(), json!(cpus.to_string()));
        }
        if let Some(blocks) = &placed.memory {
            let nodes = blocks.iter().fold(NumaMask::EMPTY, |all, block| all | block.nodes);
            let ids: Vec<u32> = node.topology.node_ids(nodes).map(|id| id.0).collect();
            entry.insert("memory_numa".into(), json!(ids));
        }
        if node.os == OsName::Windows
            && let Some(affinity) = placement.affinity(node, ledger, index)
        {
            let groups: Vec<_> =
                affinity.groups().iter().map(|g| json!([g.group.get(), g.mask])).collect();
            entry.insert("group_affinity".into(), json!(groups));
        }
        containers.insert(placed.name.to_string(), Value::Object(entry));
    }
    Value::Object(containers)
}

fn compare_result(what: &str, expected: &Value, got: &Value) -> Option<Difference> {
    let shown = |value: &Value| value.to_string();
    Difference::between(what, &shown(expected), &shown(got))
}
