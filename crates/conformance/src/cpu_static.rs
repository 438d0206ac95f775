//! `cpu_static`: the static CPU policy, from its options to sequences of allocations.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use objects::Quantity;
use placement::Topology;
use placement::alignment::AlignmentPolicy;
use placement::cpu::options::CpuOptions;
use placement::cpu::{CpuLedger, Reservation, StaticCpus};
use placement::gates::Gates;
use placement::node::{CpuPolicy, CpuPolicyError};
use serde_json::Value;

use super::fields::{
    array, cpu_state, cpuset, demands, error_of, hint, hint_lists, number, options, string,
    with_container,
};
use super::{Difference, Vectors};

pub(super) fn check(vectors: &Vectors, line: &Value) -> Vec<Difference> {
    super::or_malformed(compare(vectors, line))
}

fn compare(vectors: &Vectors, line: &Value) -> Result<Vec<Difference>> {
    let topology = vectors.topology(line)?;
    if string(line, "kind")? == "new_manager" {
        return new_manager(topology, line);
    }
    let mut differences = Vec::new();
    let policy = match new_policy(topology, line) {
        Ok(policy) => policy,
        Err(error) => {
            differences.extend(error_of(line, "new_error", Some(&error.to_string())));
            return Ok(differences);
        }
    };
    differences.extend(error_of(line, "new_error", None));
    if line.get("effective_reserved_cpus").is_some() {
        differences.extend(Difference::between(
            "reserved CPUs",
            &cpuset(line, "effective_reserved_cpus")?,
            policy.reserved(),
        ));
    }
    let mut ledger = match line.get("initial_state") {
        Some(state) => cpu_state(state)?,
        None => CpuLedger::default(),
    };
    if let Err(error) = policy.check(topology, &mut ledger) {
        differences.extend(error_of(line, "start_error", Some(&error.to_string())));
        return Ok(differences);
    }
    differences.extend(error_of(line, "start_error", None));
    if line.get("allocatable_cpus").is_some() {
        differences.extend(Difference::between(
            "allocatable CPUs",
            &cpuset(line, "allocatable_cpus")?,
            &policy.allocatable(topology),
        ));
    }
    if let Some(state) = line.get("state_after_start") {
        differences.extend(compare_state("state after start", state, &ledger)?);
    }
    if line.get("steps").is_some() {
        steps(topology, &policy, &mut ledger, line, &mut differences)?;
    }
    Ok(differences)
}

fn gates(line: &Value) -> Gates {
    let gate = |name: &str| line.get("feature_gates").and_then(|g| g.get(name)?.as_bool());
    Gates {
        cpu_policy_alpha_options: gate("CPUManagerPolicyAlphaOptions").unwrap_or(true),
        cpu_policy_beta_options: gate("CPUManagerPolicyBetaOptions").unwrap_or(true),
        ..Gates::ALL
    }
}

fn new_policy(topology: &Topology, line: &Value) -> Result<StaticCpus> {
    let options = CpuOptions::parse(&options(line, "options")?, &gates(line))?;
    let reservation = Reservation {
        count: number(line, "reserved_count")? as usize,
        cpus: cpuset(line, "reserved_cpus")?,
    };
    let name = string(line, "topology_manager_policy")?;
    let alignment = AlignmentPolicy::parse(&name).context("topology manager policy")?;
    Ok(StaticCpus::new(topology, options, &reservation, alignment)?)
}

fn new_manager(topology: &Topology, line: &Value) -> Result<Vec<Difference>> {
    let reserved = line.get("reserved_cpu_quantity").and_then(Value::as_str);
    let reserved = reserved.map(Quantity::parse).transpose()?;
    let name = string(line, "topology_manager_policy")?;
    let manager: Result<CpuPolicy, CpuPolicyError> = CpuPolicy::new(
        line.get("policy").and_then(Value::as_str).unwrap_or_default(),
        &options(line, "options")?,
        reserved.as_ref(),
        &cpuset(line, "reserved_cpus")?,
        AlignmentPolicy::parse(&name).context("topology manager policy")?,
        &gates(line),
        topology,
    );
    let error = manager.err().map(|error| error.to_string());
    Ok(error_of(line, "new_error", error.as_deref()).into_iter().collect())
}

fn steps(
    topology: &Topology,
    policy: &StaticCpus,
    ledger: &mut CpuLedger,
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
                let (got, error) =
                    match policy.allocate(topology, ledger, demand, container, affinity) {
                        Ok(Some(cpus)) => (cpus.to_string(), None),
                        Ok(None) => ("shared".to_owned(), None),
                        Err(error) => (String::new(), Some(error.to_string())),
                    };
                let expected = step.get("cpuset").and_then(Value::as_str);
                let expected = match (expected, step.get("error")) {
                    (Some(cpus), _) => cpus,
                    (None, None) => "shared",
                    (None, Some(_)) => "",
                };
                differences.extend(Difference::between(at("CPUs"), &expected, &got.as_str()));
                differences.extend(error_of(step, "error", error.as_deref()));
            }
            "remove" => {
                let pod = placement::demand::PodUid::new(&string(step, "pod")?);
                ledger.release(&pod, &string(step, "container")?);
            }
            "hints" | "pod_hints" => {
                let family = if op == "hints" {
                    let (demand, container) = with_container(&demands, step)?;
                    policy.hints(topology, ledger, demand, container)
                } else {
                    let uid = string(step, "pod")?;
                    policy.pod_hints(topology, ledger, demands.get(&uid).context("pod")?)
                };
                let lists = family.map(|family| {
                    BTreeMap::from([("cpu".to_owned(), family.enumerate(topology.nodes().len()))])
                });
                differences.extend(hint_lists(at("hints"), step, lists.as_ref(), topology)?);
            }
            "restart" => {
                ledger.reuse = None;
                if let Err(error) = policy.check(topology, ledger) {
                    differences.push(Difference {
                        what: at("state"),
                        expected: "accepted".into(),
                        got: error.to_string(),
                    });
                }
            }
            _ => anyhow::bail!("unknown step {op:?}"),
        }
        if let Some(state) = step.get("state") {
            differences.extend(compare_state(&at("state"), state, ledger)?);
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
    ledger: &CpuLedger,
) -> Result<Vec<Difference>> {
    let expected = cpu_state(expected)?;
    let mut differences = Vec::new();
    differences.extend(Difference::between(
        format!("{what}: shared pool"),
        &expected.shared,
        &ledger.shared,
    ));
    differences.extend(Difference::between(
        format!("{what}: assignments"),
        &expected.assignments,
        &ledger.assignments,
    ));
    Ok(differences)
}
