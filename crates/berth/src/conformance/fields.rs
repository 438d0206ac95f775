//! Reading the common pieces of vectors: machines, CPU lists. Vectors are trusted data of the
//! project, so a malformed line is reported as an error of that line, with no further kindness.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use placement::affinity::Hint;
use placement::topology::{Cpu, Parts};
use placement::{CacheId, CoreId, CpuId, CpuSet, NumaId, NumaMask, SocketId, Topology};
use serde_json::Value;

/// A machine of `topologies.jsonl`.
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

/// A map of option names to values.
pub(super) fn options(line: &Value, key: &str) -> Result<BTreeMap<String, String>> {
    match line.get(key) {
        Some(map) => serde_json::from_value(map.clone()).with_context(|| missing(key)),
        None => Ok(BTreeMap::new()),
    }
}

/// A hint `[affinity, preferred]`; the affinity is a mask of node ids.
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

/// A hint as people read it: `0,1 preferred`.
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

fn missing(key: &str) -> String {
    format!("the line has no usable {key:?}")
}
