//! `cpu_assign`: one choice of CPUs among free ones.

use anyhow::{Context as _, Result};
use placement::cpu::pick::{Picking, pick};
use serde_json::Value;

use super::fields::{cpuset, flag, number, string};
use super::{Difference, Vectors};

pub(super) fn check(vectors: &Vectors, line: &Value) -> Vec<Difference> {
    super::or_malformed(compare(vectors, line))
}

fn compare(vectors: &Vectors, line: &Value) -> Result<Vec<Difference>> {
    let topology = vectors.topology(line)?;
    let picking = match (string(line, "algorithm")?.as_str(), string(line, "sort")?.as_str()) {
        ("distributed", _) => Picking::AcrossNuma {
            group: number(line, "cpu_group_size")? as usize,
            align_by_socket: flag(line, "align_by_socket"),
        },
        (_, "spread") => Picking::Spread,
        _ => Picking::Packed { align_uncore: flag(line, "prefer_align_by_uncore_cache") },
    };
    let free = cpuset(line, "available")?;
    let got = match pick(topology, &free, number(line, "num_cpus")? as usize, picking) {
        Ok(cpus) => cpus.to_string(),
        Err(error) => format!("error: {error}"),
    };
    let expected = match (line.get("right"), line.get("error")) {
        (Some(right), _) => right.as_str().context("right is not a CPU list")?.to_owned(),
        (None, Some(error)) => format!("error: {}", error.as_str().unwrap_or_default()),
        (None, None) => string(line, "result")?,
    };
    Ok(Difference::between("CPUs", &expected, &got).into_iter().collect())
}
