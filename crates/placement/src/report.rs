//! The report of a node in annotations of its Node object: its machine, the part of its
//! configuration that decides placement, and its allocations.
//!
//! Main type: [`NodeReport`]. The agent renders one and the scheduler parses it; both use the same
//! planning code. Every annotation has an existing format: the machine file, the kubelet's
//! configuration file, the kubelet's state files. Parsing applies the checks of an agent that
//! restarts with these files. Nothing here calls an API.

use std::collections::BTreeMap;

use objects::{Gate, KubeletConfig, YamlError, kubelet_config};
use thiserror::Error;

use crate::configured::{Configured, Finding};
use crate::ledger::Ledger;
use crate::machine::Machine;
use crate::machine::file::{self, FileError};
use crate::node::{Node, StateError};
use crate::restore::{restore, states_of};
use crate::state_file::{CpuState, Gates, MemoryState, StateFileError};

mod configuration;

/// The machine file, without the name: that is the node's.
pub const MACHINE: &str = "berth.dev/machine";
/// The part of the KubeletConfiguration that decides placement.
pub const CONFIGURATION: &str = "berth.dev/kubelet-configuration";
/// The text of `cpu_manager_state`.
pub const CPU_STATE: &str = "berth.dev/cpu-manager-state";
/// The text of `memory_manager_state`.
pub const MEMORY_STATE: &str = "berth.dev/memory-manager-state";

/// All annotations of a report.
pub const ANNOTATIONS: [&str; 4] = [MACHINE, CONFIGURATION, CPU_STATE, MEMORY_STATE];

/// The reason why annotations are not a usable report. The texts appear in events, so each is
/// complete.
#[derive(Debug, Error)]
pub enum ReportError {
    #[error("annotation {missing} is missing; a node with {given} has it too")]
    Missing { missing: &'static str, given: &'static str },
    #[error("annotation {MACHINE} is not a machine file: {0}")]
    Machine(FileError),
    #[error("annotation {CONFIGURATION} is not a KubeletConfiguration: {}", listed(.0))]
    Configuration(Vec<YamlError>),
    #[error("annotation {CONFIGURATION} does not suit the machine of {MACHINE}: {}", listed(.0))]
    Unsuitable(Vec<Finding>),
    #[error("annotation {annotation} cannot be read as a state file: {cause}")]
    State { annotation: &'static str, cause: StateFileError },
    #[error("annotation {} does not fit the machine and its configuration: {cause}", whose(.cause))]
    Ledger { cause: StateError },
}

fn listed<T: ToString>(findings: &[T]) -> String {
    findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn whose(error: &StateError) -> &'static str {
    match error {
        StateError::Cpu(_) => CPU_STATE,
        StateError::Memory(_) => MEMORY_STATE,
    }
}

/// The report of a node. Machine, configuration and ledger fit each other.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeReport {
    machine: Machine,
    /// Only fields that decide placement; the others have their defaults.
    config: KubeletConfig,
    configured: Configured,
    ledger: Ledger,
}

impl NodeReport {
    /// Builds a report to render. Reusable resources of init containers are not in it, as after a
    /// restart.
    pub fn new(
        machine: &Machine,
        config: &KubeletConfig,
        ledger: Ledger,
    ) -> Result<NodeReport, ReportError> {
        let mut report = NodeReport::without_ledger(
            Machine { name: String::new(), ..machine.clone() },
            configuration::deciding(config),
        )?;
        report.set_ledger(ledger)?;
        Ok(report)
    }

    fn without_ledger(machine: Machine, config: KubeletConfig) -> Result<NodeReport, ReportError> {
        let configured = Configured::new(&machine, &config).map_err(ReportError::Unsuitable)?;
        let ledger = configured.node.empty_ledger();
        Ok(NodeReport { machine, config, configured, ledger })
    }

    /// Replaces the ledger.
    pub fn set_ledger(&mut self, ledger: Ledger) -> Result<(), ReportError> {
        self.ledger = self
            .configured
            .node
            .restore(ledger)
            .map_err(|cause| ReportError::Ledger { cause })?
            .ledger;
        Ok(())
    }

    /// Renders the annotations.
    #[must_use]
    pub fn render(&self) -> BTreeMap<String, String> {
        let (cpu, memory) = states_of(&self.configured.node, &self.ledger);
        BTreeMap::from([
            (MACHINE.to_owned(), file::render_compact(&self.machine)),
            (CONFIGURATION.to_owned(), configuration::render(&self.config)),
            (CPU_STATE.to_owned(), cpu.render()),
            (MEMORY_STATE.to_owned(), memory.render()),
        ])
    }

    /// Parses the annotations of a node; `None` if none of them belongs to a report. A missing
    /// state means the same as a missing state file in a kubelet: nothing is allocated.
    pub fn parse(
        annotations: &BTreeMap<String, String>,
    ) -> Result<Option<NodeReport>, ReportError> {
        let text = |name: &str| annotations.get(name).map(String::as_str);
        let Some(given) = ANNOTATIONS.into_iter().find(|name| text(name).is_some()) else {
            return Ok(None);
        };
        let required = |missing| text(missing).ok_or(ReportError::Missing { missing, given });
        let machine = file::parse(required(MACHINE)?).map_err(ReportError::Machine)?;
        let (config, _) = kubelet_config::read(required(CONFIGURATION)?)
            .map_err(|findings| ReportError::Configuration(findings.errors))?;
        let mut report = NodeReport::without_ledger(
            Machine { name: String::new(), ..machine },
            configuration::deciding(&config),
        )?;
        report.read_states(text(CPU_STATE), text(MEMORY_STATE))?;
        Ok(Some(report))
    }

    fn read_states(&mut self, cpu: Option<&str>, memory: Option<&str>) -> Result<(), ReportError> {
        let on = |gate: Gate| self.config.feature_gates.enabled(gate);
        let gates = Gates {
            pod_level_resource_managers: on(Gate::PodLevelResourceManagers),
            in_place_scaling_of_exclusive_cpus: on(Gate::InPlacePodVerticalScalingExclusiveCpus),
        };
        let node = &self.configured.node;
        let policy = node.cpu.policy_name();
        let cpu = match cpu {
            None => CpuState::empty(policy),
            Some(text) => CpuState::parse(text.as_bytes(), policy, gates)
                .map_err(|cause| ReportError::State { annotation: CPU_STATE, cause })?,
        };
        let policy = node.memory.policy_name();
        let memory = match memory {
            None => MemoryState::empty(policy),
            Some(text) => MemoryState::parse(text.as_bytes(), policy, gates)
                .map_err(|cause| ReportError::State { annotation: MEMORY_STATE, cause })?,
        };
        self.ledger =
            restore(node, &cpu, &memory).map_err(|cause| ReportError::Ledger { cause })?.ledger;
        Ok(())
    }

    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Returns the machine with its checked configuration.
    #[must_use]
    pub fn configured(&self) -> &Configured {
        &self.configured
    }

    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Returns the parts that planning a pod on this node needs.
    #[must_use]
    pub fn into_parts(self) -> (Node, Ledger) {
        (self.configured.node, self.ledger)
    }
}

#[cfg(test)]
mod tests;
