//! `checkpoint`: the state files of the CPU and the memory manager, read and written again.

use anyhow::{Context as _, Result, bail};
use placement::state_file::{
    Block, CpuState, Gates, Manager, MemoryState, MemoryTable, NodeState, PerContainer, PerPod,
    RestoreError,
};
use placement::{Bytes, CpuSet, NumaId};
use serde_json::{Map, Value};

use super::fields::{array, cpuset, flag, number, string};
use super::{Difference, Vectors};

/// The vectors' placeholder for the directory of the file.
const STATE_DIR: &str = "<STATE_DIR>";

/// The start of a quotation of Go's JSON decoder or number parser in upstream's text. The quotation
/// may differ; the text before and after it may not.
const QUOTATIONS: &[&str] =
    &["json: ", "invalid character ", "unexpected end of JSON input", "strconv."];

/// The end of a quotation.
const REMEDY: &str = ", please drain this node";

pub(super) fn check(_: &Vectors, line: &Value) -> Vec<Difference> {
    super::or_malformed(compare(line))
}

fn compare(line: &Value) -> Result<Vec<Difference>> {
    let policy = string(line, "policy")?;
    let content = line.get("content").and_then(Value::as_str);
    let gate = |name: &str| line.get("feature_gates").is_some_and(|gates| flag(gates, name));
    let gates = Gates {
        pod_level_resource_managers: gate("PodLevelResourceManagers"),
        in_place_scaling_of_exclusive_cpus: gate("InPlacePodVerticalScalingExclusiveCPUs"),
    };
    let manager = match string(line, "manager")?.as_str() {
        "cpu" => Manager::Cpu,
        "memory" => Manager::Memory,
        other => bail!("no such manager: {other}"),
    };
    let path = format!("{STATE_DIR}/{}", manager.file_name());
    let refused = |cause| RestoreError { manager, path, cause };
    let mut differences = Vec::new();
    match manager {
        Manager::Cpu => {
            let restored = match content {
                Some(content) => CpuState::parse(content.as_bytes(), &policy, gates),
                None => Ok(CpuState::empty(policy.clone())),
            };
            if let Some(state) =
                restored_or_differ(line, restored.map_err(refused), &mut differences)
            {
                let expected = cpu_state(line, policy)?;
                differences.extend(Difference::between("state", &expected, &state));
                differences.extend(compare_file(
                    line,
                    &state.render(),
                    &state.checksum_preimage(),
                    &state.data_checksum_preimage(),
                )?);
            }
        }
        Manager::Memory => {
            let restored = match content {
                Some(content) => MemoryState::parse(content.as_bytes(), &policy, gates),
                None => Ok(MemoryState::empty(policy.clone())),
            };
            if let Some(state) =
                restored_or_differ(line, restored.map_err(refused), &mut differences)
            {
                let expected = memory_state(line, policy)?;
                let mut sorted = state.clone();
                sorted.entries.values_mut().flat_map(|c| c.values_mut()).for_each(|blocks| {
                    blocks.sort_by(|a, b| a.resource.cmp(&b.resource));
                });
                // The vectors show pod-level blocks only in the rewritten file.
                sorted.pod_blocks.clear();
                differences.extend(Difference::between("state", &expected, &sorted));
                differences.extend(compare_file(
                    line,
                    &state.render(),
                    &state.checksum_preimage(),
                    &state.data_checksum_preimage(),
                )?);
            }
        }
    }
    Ok(differences)
}

/// Returns the restored state if it was expected and restored.
fn restored_or_differ<T: std::fmt::Debug>(
    line: &Value,
    restored: Result<T, RestoreError>,
    differences: &mut Vec<Difference>,
) -> Option<T> {
    match (restored, line.get("restore_error").and_then(Value::as_str)) {
        (Ok(state), None) => Some(state),
        (Ok(state), Some(expected)) => {
            differences.push(Difference {
                what: "restore_error".into(),
                expected: expected.into(),
                got: format!("none, but {state:?}"),
            });
            None
        }
        (Err(error), expected) => {
            let got = error.to_string();
            if !expected.is_some_and(|expected| same_error(expected, &got)) {
                differences.push(Difference {
                    what: "restore_error".into(),
                    expected: expected.unwrap_or("none").into(),
                    got,
                });
            }
            None
        }
    }
}

fn same_error(expected: &str, got: &str) -> bool {
    let Some(quotation) = QUOTATIONS.iter().filter_map(|q| expected.find(q)).min() else {
        return expected == got;
    };
    let remedy = expected.rfind(REMEDY).unwrap_or(expected.len());
    got.starts_with(&expected[..quotation]) && got.ends_with(&expected[remedy..])
}

fn compare_file(
    line: &Value,
    rendered: &str,
    preimage: &str,
    data_preimage: &str,
) -> Result<Vec<Difference>> {
    let mut differences = Vec::new();
    for (key, got) in [
        ("rewritten", rendered),
        ("checksum_preimage", preimage),
        ("data_checksum_preimage", data_preimage),
    ] {
        differences.extend(Difference::between(key, &string(line, key)?, &got.to_owned()));
    }
    Ok(differences)
}

fn cpu_state(line: &Value, policy: String) -> Result<CpuState> {
    let state = line.get("cpu_state").context("the line has no cpu_state")?;
    Ok(CpuState {
        policy,
        default_cpus: cpuset(state, "default_cpuset")?,
        entries: per_container(state.get("assignments"), cpus)?,
        pod_cpus: per_pod(line.get("pod_cpus"), cpus)?,
        baselines: per_container(line.get("baselines"), cpus)?,
    })
}

fn cpus(value: &Value) -> Result<CpuSet> {
    Ok(CpuSet::parse(value.as_str().context("a CPU list is not a text")?)?)
}

fn memory_state(line: &Value, policy: String) -> Result<MemoryState> {
    let state = line.get("memory_state").context("the line has no memory_state")?;
    let nodes = members(state.get("nodes"))
        .map(|(id, node)| Ok((NumaId(id.parse()?), node_state(node)?)))
        .collect::<Result<_>>()?;
    let entries = per_container(state.get("assignments"), |blocks| {
        blocks.as_array().context("blocks are not a list")?.iter().map(block).collect()
    })?;
    Ok(MemoryState { policy, nodes, entries, pod_blocks: PerPod::new() })
}

fn node_state(node: &Value) -> Result<NodeState> {
    let memory = members(node.get("memory"))
        .map(|(resource, table)| {
            let table = table.as_array().context("a memory table is not a list")?;
            let amount = |n: usize| -> Result<Bytes> {
                let amount = table.get(n).and_then(Value::as_u64);
                Ok(Bytes(amount.context("a memory table has five amounts")?))
            };
            let table = MemoryTable {
                total: amount(0)?,
                system_reserved: amount(1)?,
                allocatable: amount(2)?,
                reserved: amount(3)?,
                free: amount(4)?,
            };
            Ok((resource.clone(), table))
        })
        .collect::<Result<_>>()?;
    Ok(NodeState {
        assignments: number(node, "assignments")?.into(),
        cells: numa_nodes(node, "cells")?,
        memory,
    })
}

fn block(block: &Value) -> Result<Block> {
    Ok(Block {
        numa: numa_nodes(block, "numa")?,
        resource: string(block, "type")?,
        size: Bytes(block.get("size").and_then(Value::as_u64).context("a block has no size")?),
    })
}

fn numa_nodes(value: &Value, key: &str) -> Result<Vec<NumaId>> {
    array(value, key)?
        .iter()
        .map(|id| Ok(NumaId(u32::try_from(id.as_u64().context("a node id is not a number")?)?)))
        .collect()
}

fn members(object: Option<&Value>) -> impl Iterator<Item = (&String, &Value)> {
    object.and_then(Value::as_object).into_iter().flat_map(Map::iter)
}

fn per_pod<T>(object: Option<&Value>, read: impl Fn(&Value) -> Result<T>) -> Result<PerPod<T>> {
    members(object).map(|(name, value)| Ok((name.clone(), read(value)?))).collect()
}

fn per_container<T>(
    object: Option<&Value>,
    read: impl Fn(&Value) -> Result<T>,
) -> Result<PerContainer<T>> {
    per_pod(object, |containers| per_pod(Some(containers), &read))
}
