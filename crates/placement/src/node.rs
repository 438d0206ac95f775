//! One configured machine: its topology and the checked policies of its managers.
//!
//! Main types: [`CpuManager`], [`MemoryManager`] and [`Node`], which holds both and the alignment
//! policy. Built once from configuration; planning only reads it.

use std::collections::BTreeMap;

use objects::Quantity;
use thiserror::Error;

use crate::alignment::AlignmentPolicy;
use crate::cpu::options::CpuOptions;
use crate::cpu::{Reservation, StaticCpus, StaticCpusError};
use crate::cpuset::CpuSet;
use crate::gates::Gates;
use crate::topology::Topology;

/// The CPU manager with its policy.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum CpuManager {
    #[default]
    None,
    Static(StaticCpus),
}

/// Why the CPU manager cannot start. The texts are the kubelet's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CpuManagerError {
    #[error("unknown policy: \"{0}\"")]
    UnknownPolicy(String),
    #[error("[cpumanager] unable to determine reserved CPU resources for static policy")]
    ReservationUnknown,
    #[error(
        "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be \
         greater than zero"
    )]
    NothingReserved,
    #[error("new static policy error: {0}")]
    Static(#[from] StaticCpusError),
}

impl CpuManager {
    pub const POLICIES: [&str; 2] = ["none", "static"];

    /// Checks a configuration in the kubelet's order. `reserved` is what the node reserves in
    /// CPUs altogether, if known; fractions are rounded up.
    pub fn new(
        policy: &str,
        options: &BTreeMap<String, String>,
        reserved: Option<&Quantity>,
        reserved_cpus: &CpuSet,
        alignment: AlignmentPolicy,
        gates: &Gates,
        topology: &Topology,
    ) -> Result<CpuManager, CpuManagerError> {
        match policy {
            "none" => Ok(CpuManager::None),
            "static" => {
                let reserved = reserved.ok_or(CpuManagerError::ReservationUnknown)?;
                if reserved.is_zero() {
                    return Err(CpuManagerError::NothingReserved);
                }
                let milli = usize::try_from(reserved.milli_value()).unwrap_or(0);
                let reservation =
                    Reservation { count: milli.div_ceil(1000), cpus: reserved_cpus.clone() };
                let options =
                    CpuOptions::parse(options, gates).map_err(StaticCpusError::Options)?;
                let policy = StaticCpus::new(topology, options, &reservation, alignment)?;
                Ok(CpuManager::Static(policy))
            }
            _ => Err(CpuManagerError::UnknownPolicy(policy.to_owned())),
        }
    }
}
