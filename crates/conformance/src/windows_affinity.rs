//! `windows_affinity`: processor groups, the affinity sent to the runtime, and discovery.
//!
//! The relations of `machine_topology` are written into a raw buffer, which the real parser reads.
//! Affinities are those of mode `cpu-only`.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use host::windows_topology::Processors;
use host::windows_topology::buffer::BufferWriter;
use placement::windows::{
    AffinityDemand, AffinityMode, GroupAffinity, GroupId, cpus_of, groups_of, plan_affinity,
};
use placement::{Bytes, CpuId, CpuSet, NumaId, Topology};
use serde_json::{Value, json};

use super::fields::{array, cpuset, flag, number, string};
use super::{Difference, Vectors};

pub(super) fn check(_: &Vectors, line: &Value) -> Vec<Difference> {
    super::or_malformed(compare(line))
}

fn compare(line: &Value) -> Result<Vec<Difference>> {
    match string(line, "kind")?.as_str() {
        "processors" => processors(line),
        "cpus_to_groups" => {
            let cpus: CpuSet = ids(line, "cpus")?.into_iter().map(CpuId).collect();
            Ok(Difference::between("groups", &line["groups"], &show(&groups_of(&cpus)))
                .into_iter()
                .collect())
        }
        "final_affinity" => final_affinity(line),
        "machine_topology" => machine_topology(line),
        other => bail!("unknown kind {other:?}"),
    }
}

fn processors(line: &Value) -> Result<Vec<Difference>> {
    let affinity = affinity(line.get("group_affinity").context("no group_affinity")?)?;
    let cpus: Vec<u32> = affinity.cpus().map(|cpu| cpu.0).collect();
    Ok([
        Difference::between("cpus", &ids(line, "cpus")?, &cpus),
        Difference::between("mask_string", &string(line, "mask_string")?, &affinity.mask_string()),
    ]
    .into_iter()
    .flatten()
    .collect())
}

fn final_affinity(line: &Value) -> Result<Vec<Difference>> {
    let nodes = match line.get("memory_manager_numa_cpus") {
        Some(list) => {
            Some(affinities(list)?.into_iter().map(|a| cpus_of(&[a])).collect::<Vec<CpuSet>>())
        }
        None => None,
    };
    let plan = plan_affinity(AffinityDemand {
        cpus: &cpuset(line, "cpu_manager_cpus")?,
        memory_nodes: nodes.as_deref(),
        exclusive_to_others: &CpuSet::new(),
        mode: AffinityMode::CpuOnly,
    });
    let mut differences = Vec::new();
    differences.extend(Difference::between("nil", &flag(line, "final_nil"), &plan.is_none()));
    if let Some(plan) = plan
        && !flag(line, "final_nil")
    {
        differences.extend(Difference::between(
            "final_cpus",
            &cpuset(line, "final_cpus")?,
            &plan.cpus,
        ));
        differences.extend(Difference::between("groups", &line["groups"], &show(&plan.groups())));
    }
    Ok(differences)
}

fn machine_topology(line: &Value) -> Result<Vec<Difference>> {
    let mut buffer = BufferWriter::new();
    for relation in array(line, "relations")? {
        let groups = affinities(relation.get("groups").context("a relation without groups")?)?;
        match string(relation, "relation")?.as_str() {
            "core" => buffer.core(&groups),
            "package" => buffer.package(&groups),
            "numa" => buffer.node(number(relation, "node")?, &groups),
            "numa_ex" => buffer.node_ex(number(relation, "node")?, &groups),
            "cache" => buffer.cache(3, &groups),
            "group" => buffer.groups(&groups.iter().map(|g| g.mask).collect::<Vec<_>>()),
            "die" => buffer.other(5, &groups),
            "module" => buffer.other(7, &groups),
            other => bail!("unknown relation {other:?}"),
        };
    }
    let mut bytes = buffer.into_bytes();
    let cut = line.get("truncate_bytes").and_then(Value::as_u64).unwrap_or(0);
    bytes.truncate(bytes.len().saturating_sub(usize::try_from(cut)?));

    let mut memory = BTreeMap::new();
    for (node, bytes) in line["available_memory"].as_object().into_iter().flatten() {
        memory.insert(NumaId(node.parse()?), Bytes(bytes.as_u64().context("memory")?));
    }
    let answer = Processors::parse(&bytes, None)
        .and_then(|processors| Ok((processors.topology(&memory)?.0, processors)));
    Ok(match (answer, line.get("error").and_then(Value::as_str)) {
        // Our message adds the location and the amount.
        (Err(error), Some(expected)) if error.to_string().starts_with(expected) => Vec::new(),
        (Err(error), expected) => vec![Difference {
            what: "error".into(),
            expected: expected.unwrap_or("none").into(),
            got: error.to_string(),
        }],
        (Ok(_), Some(expected)) => {
            vec![Difference { what: "error".into(), expected: expected.into(), got: "none".into() }]
        }
        (Ok((topology, processors)), None) => compare_machine(line, &topology, &processors)?,
    })
}

/// Compares a machine. Upstream numbers cores and packages from 1 in the order of the records.
fn compare_machine(
    line: &Value,
    topology: &Topology,
    processors: &Processors,
) -> Result<Vec<Difference>> {
    let nodes: Vec<Value> = topology
        .nodes()
        .iter()
        .map(|node| {
            let cores: Vec<Value> = processors
                .cores
                .iter()
                .enumerate()
                .filter(|(_, cpus)| !cpus.is_empty() && cpus.is_subset(&node.cpus))
                .map(|(index, cpus)| {
                    let socket = cpus.first().and_then(|cpu| topology.cpu(cpu)).map(|c| c.socket.0);
                    let cpus: Vec<u32> = cpus.iter().map(|cpu| cpu.0).collect();
                    json!({"core": index + 1, "socket": socket, "cpus": cpus})
                })
                .collect();
            json!({"id": node.id.0, "memory": node.memory.0, "cores": cores})
        })
        .collect();
    Ok([
        Difference::between(
            "num_cores",
            &(number(line, "num_cores")? as usize),
            &processors.cores.len(),
        ),
        Difference::between(
            "num_sockets",
            &(number(line, "num_sockets")? as usize),
            &processors.packages.len(),
        ),
        Difference::between("nodes", array(line, "nodes")?, &nodes),
    ]
    .into_iter()
    .flatten()
    .collect())
}

fn affinity(value: &Value) -> Result<GroupAffinity> {
    let mask = value.get("mask").and_then(Value::as_u64).context("no usable mask")?;
    Ok(GroupAffinity { group: GroupId::new(number(value, "group")?.into())?, mask })
}

fn affinities(list: &Value) -> Result<Vec<GroupAffinity>> {
    list.as_array().context("not a list of masks")?.iter().map(affinity).collect()
}

fn ids(line: &Value, key: &str) -> Result<Vec<u32>> {
    array(line, key)?
        .iter()
        .map(|id| Ok(u32::try_from(id.as_u64().context("not an id")?)?))
        .collect()
}

fn show(groups: &[GroupAffinity]) -> Value {
    groups.iter().map(|g| json!([g.group.get(), g.mask])).collect()
}
