//! `cpuset`: the kernel's CPU list notation and set operations.

use anyhow::Result;
use placement::{CpuId, CpuSet};
use serde_json::Value;

use super::fields::{array, cpuset, flag, string};
use super::{Difference, Vectors};

pub(super) fn check(_: &Vectors, line: &Value) -> Vec<Difference> {
    super::or_malformed(compare(line))
}

fn compare(line: &Value) -> Result<Vec<Difference>> {
    let mut differences = Vec::new();
    match string(line, "kind")?.as_str() {
        "parse" => match (CpuSet::parse(&string(line, "input")?), line.get("error")) {
            (Err(error), Some(expected)) => {
                let expected = expected.as_str().unwrap_or_default().to_owned();
                differences.extend(Difference::between("error", &expected, &error.to_string()));
            }
            (Err(error), None) => differences.push(Difference {
                what: "error".into(),
                expected: "none".into(),
                got: error.to_string(),
            }),
            (Ok(set), Some(error)) => differences.push(Difference {
                what: "error".into(),
                expected: error.to_string(),
                got: format!("none, but {set}"),
            }),
            (Ok(set), None) => {
                differences.extend(Difference::between("elements", &elements(line)?, &set));
                differences.extend(Difference::between(
                    "canonical",
                    &string(line, "canonical")?,
                    &set.to_string(),
                ));
            }
        },
        "format" => differences.extend(Difference::between(
            "canonical",
            &string(line, "canonical")?,
            &elements(line)?.to_string(),
        )),
        _ => {
            let (a, b) = (cpuset(line, "a")?, cpuset(line, "b")?);
            for (what, got) in
                [("union", &a | &b), ("intersection", &a & &b), ("difference", &a - &b)]
            {
                differences.extend(Difference::between(what, &cpuset(line, what)?, &got));
            }
            differences.extend(Difference::between(
                "a_subset_of_b",
                &flag(line, "a_subset_of_b"),
                &a.is_subset(&b),
            ));
            differences.extend(Difference::between("equal", &flag(line, "equal"), &(a == b)));
        }
    }
    Ok(differences)
}

fn elements(line: &Value) -> Result<CpuSet> {
    Ok(array(line, "elements")?
        .iter()
        .filter_map(Value::as_u64)
        .filter_map(|n| u32::try_from(n).ok())
        .map(CpuId)
        .collect())
}
