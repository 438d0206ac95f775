//! `topology_merge`: merging hints, and starting the topology manager.

use anyhow::{Context as _, Result};
use placement::affinity::{Family, Hint};
use placement::alignment::{Alignment, NodeLimit};
use placement::topology::{Cpu, NodeMemory, Parts};
use placement::{Bytes, CacheId, CoreId, CpuId, NumaId, SocketId, Topology};
use serde_json::Value;

use super::fields::{array, flag, hint, options, show_hint, string};
use super::{Difference, Vectors};

pub(super) fn check(_: &Vectors, line: &Value) -> Vec<Difference> {
    super::or_malformed(compare(line))
}

fn compare(line: &Value) -> Result<Vec<Difference>> {
    let topology = machine(line)?;
    let scope = line.get("scope").and_then(Value::as_str).unwrap_or_default();
    let merging = string(line, "kind")? == "merge";
    let alignment = Alignment::new(
        &string(line, "policy")?,
        if merging { "container" } else { scope },
        &options(line, "options")?,
        &topology,
        if merging { NodeLimit::None } else { NodeLimit::Kubelet },
    );
    if !merging {
        let got = alignment.map(|_| "ok".to_owned()).unwrap_or_else(|error| error.to_string());
        let expected = line.get("error").and_then(Value::as_str).unwrap_or("ok").to_owned();
        return Ok(Difference::between("start", &expected, &got).into_iter().collect());
    }
    let families = families(line, &topology)?;
    let families: Vec<_> = families.iter().map(|family| (family, 1)).collect();
    let (got, admit) = alignment?.decide(&families, &topology);
    let expected = hint(line.get("hint").context("no hint")?, &topology)?;
    let mut differences = Vec::new();
    differences.extend(Difference::between(
        "hint",
        &show_hint(expected, &topology),
        &show_hint(got, &topology),
    ));
    differences.extend(Difference::between("admit", &flag(line, "admit"), &admit));
    Ok(differences)
}

/// Returns a machine with only the NUMA nodes and distances that matter here.
fn machine(line: &Value) -> Result<Topology> {
    let ids: Vec<u32> = array(line, "numa_nodes")?
        .iter()
        .map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()).context("a node id"))
        .collect::<Result<_>>()?;
    let distances = match line.get("distances") {
        Some(rows) => serde_json::from_value(rows.clone())?,
        None => Vec::new(),
    };
    let nodes = ids.iter().map(|id| NodeMemory {
        numa: NumaId(*id),
        memory: Bytes::ZERO,
        huge_pages: Vec::new(),
    });
    let cpu = Cpu {
        cpu: CpuId(0),
        core: CoreId(0),
        socket: SocketId(0),
        numa: NumaId(*ids.first().context("no nodes")?),
        cache: CacheId(0),
    };
    Ok(Topology::new(Parts { cpus: vec![cpu], nodes: nodes.collect(), distances })?)
}

/// Returns the hints of all providers, as the kubelet reads them before merging.
fn families(line: &Value, topology: &Topology) -> Result<Vec<Family>> {
    let mut families = Vec::new();
    for provider in line.get("providers").and_then(Value::as_array).into_iter().flatten() {
        match provider.as_object().filter(|map| !map.is_empty()) {
            None => families.push(Family::anywhere(true)),
            Some(map) => {
                for list in map.values() {
                    families.push(family(list, topology)?);
                }
            }
        }
    }
    Ok(families)
}

fn family(list: &Value, topology: &Topology) -> Result<Family> {
    let Some(list) = list.as_array() else { return Ok(Family::anywhere(true)) };
    if list.is_empty() {
        return Ok(Family::anywhere(false));
    }
    let mut family = Family::default();
    for entry in list {
        match hint(entry, topology)? {
            Hint { nodes: Some(nodes), preferred } => family.listed.push((nodes, preferred)),
            Hint { nodes: None, preferred } => {
                family.anywhere = Some(family.anywhere.unwrap_or(false) || preferred);
            }
        }
    }
    Ok(family)
}
