//! One configured machine: its topology and the checked policies of its managers.
//!
//! Main types: [`CpuPolicy`], [`MemoryPolicy`] and [`Node`], which holds both and the alignment
//! policy. Built once from configuration; planning only reads it.

use std::collections::BTreeMap;

use objects::Quantity;
use objects::pod::OsName;
use thiserror::Error;

use crate::alignment::{Alignment, AlignmentPolicy};
use crate::cpu::options::CpuOptions;
use crate::cpu::{CpuLedger, CpuStateError, Reservation, StaticCpus, StaticCpusError};
use crate::cpuset::CpuSet;
use crate::gates::Gates;
use crate::go_strconv;
use crate::ledger::Ledger;
use crate::memory::reserve::{Entry, ReserveError, ReservedMemory};
use crate::memory::{
    MemoryGuarantee, MemoryLedger, MemoryStateError, StaticMemory, StaticMemoryError,
};
use crate::topology::Topology;
use crate::windows::AffinityMode;

/// The CPU manager with its policy.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum CpuPolicy {
    #[default]
    None,
    Static(StaticCpus),
}

/// Why the CPU manager cannot start. The texts are the kubelet's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CpuPolicyError {
    #[error("unknown policy: \"{0}\"")]
    UnknownPolicy(String),
    #[error("[cpumanager] unable to determine reserved CPU resources for static policy")]
    ReservationUnknown,
    #[error(
        "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be \
         greater than zero"
    )]
    NothingReserved,
    #[error("new none policy error: None policy: received unsupported options={}", go_strconv::format_map(.0))]
    NoneWithOptions(BTreeMap<String, String>),
    #[error("new static policy error: {0}")]
    Static(#[from] StaticCpusError),
}

impl CpuPolicy {
    pub const POLICIES: [&str; 2] = ["none", "static"];

    /// Checks a configuration in the kubelet's order. `reserved` is the total CPU reservation of
    /// the node, if known; fractions are rounded up.
    pub fn new(
        policy: &str,
        options: &BTreeMap<String, String>,
        reserved: Option<&Quantity>,
        reserved_cpus: &CpuSet,
        alignment: AlignmentPolicy,
        gates: &Gates,
        topology: &Topology,
    ) -> Result<CpuPolicy, CpuPolicyError> {
        match policy {
            "none" if !options.is_empty() => Err(CpuPolicyError::NoneWithOptions(options.clone())),
            "none" => Ok(CpuPolicy::None),
            "static" => {
                let reserved = reserved.ok_or(CpuPolicyError::ReservationUnknown)?;
                if reserved.is_zero() {
                    return Err(CpuPolicyError::NothingReserved);
                }
                let milli = usize::try_from(reserved.milli_value()).unwrap_or(0);
                let reservation =
                    Reservation { count: milli.div_ceil(1000), cpus: reserved_cpus.clone() };
                let options =
                    CpuOptions::parse(options, gates).map_err(StaticCpusError::Options)?;
                let policy = StaticCpus::new(topology, options, &reservation, alignment)?;
                Ok(CpuPolicy::Static(policy))
            }
            _ => Err(CpuPolicyError::UnknownPolicy(policy.to_owned())),
        }
    }
}

/// The memory manager with its policy.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum MemoryPolicy {
    #[default]
    None,
    Static(StaticMemory),
}

/// Why the memory manager cannot start. Texts are the kubelet's where it has them.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MemoryPolicyError {
    #[error("unknown policy: \"{0}\"")]
    UnknownPolicy(String),
    #[error(
        "policy \"{policy}\" is not available on {os}: memoryManagerPolicy can be \"None\" or \
         \"{instead}\" there"
    )]
    WrongOs { policy: &'static str, os: &'static str, instead: &'static str },
    #[error(transparent)]
    Reserve(#[from] ReserveError),
    #[error(transparent)]
    Static(#[from] StaticMemoryError),
}

impl MemoryPolicy {
    pub const POLICIES: [&str; 3] = ["None", "Static", "BestEffort"];

    /// Checks a configuration. `expected` is the node's total reservation of memory and huge pages;
    /// `reserved` must split it over nodes.
    pub fn new(
        policy: &str,
        os: OsName,
        reserved: &[Entry],
        expected: &BTreeMap<String, Quantity>,
        topology: &Topology,
    ) -> Result<MemoryPolicy, MemoryPolicyError> {
        let guarantee = match (policy, os) {
            ("None", _) => return Ok(MemoryPolicy::None),
            ("Static", OsName::Linux) => MemoryGuarantee::Strict,
            ("BestEffort", OsName::Windows) => MemoryGuarantee::BestEffort,
            ("Static", OsName::Windows) => {
                let (policy, os, instead) = ("Static", "Windows", "BestEffort");
                return Err(MemoryPolicyError::WrongOs { policy, os, instead });
            }
            ("BestEffort", OsName::Linux) => {
                let (policy, os, instead) = ("BestEffort", "Linux", "Static");
                return Err(MemoryPolicyError::WrongOs { policy, os, instead });
            }
            _ => return Err(MemoryPolicyError::UnknownPolicy(policy.to_owned())),
        };
        let reserved = ReservedMemory::new(topology, reserved, expected)?;
        Ok(MemoryPolicy::Static(StaticMemory::new(reserved, guarantee)?))
    }
}

/// A machine with the checked policies of its managers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub topology: Topology,
    pub os: OsName,
    pub cpu: CpuPolicy,
    pub memory: MemoryPolicy,
    pub alignment: Alignment,
    /// Only matters on Windows.
    pub affinity_mode: AffinityMode,
}

/// Why recorded state does not fit a node.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StateError {
    #[error(transparent)]
    Cpu(#[from] CpuStateError),
    #[error(transparent)]
    Memory(#[from] MemoryStateError),
}

impl Node {
    /// Returns a machine without any policy.
    #[must_use]
    pub fn unmanaged(topology: Topology, os: OsName) -> Node {
        Node {
            topology,
            os,
            cpu: CpuPolicy::None,
            memory: MemoryPolicy::None,
            alignment: Alignment::default(),
            affinity_mode: AffinityMode::default(),
        }
    }

    /// Returns a ledger without allocations.
    #[must_use]
    pub fn empty_ledger(&self) -> Ledger {
        let cpu = match &self.cpu {
            CpuPolicy::None => CpuLedger::default(),
            CpuPolicy::Static(policy) => policy.empty_ledger(&self.topology),
        };
        let memory = match &self.memory {
            MemoryPolicy::None => MemoryLedger::default(),
            MemoryPolicy::Static(policy) => policy.empty_ledger(&self.topology),
        };
        Ledger { cpu, memory }
    }

    /// Checks recorded state against machine and policies, as on a restart: reusable resources of
    /// init containers are dropped.
    pub fn restore(&self, mut ledger: Ledger) -> Result<RestoredLedger, StateError> {
        ledger.cpu.reuse = None;
        ledger.memory.reuse = None;
        match &self.cpu {
            CpuPolicy::None => ledger.cpu = CpuLedger::default(),
            CpuPolicy::Static(policy) => policy.check(&self.topology, &mut ledger.cpu)?,
        }
        let memory_recounted = match &self.memory {
            MemoryPolicy::None => {
                ledger.memory = MemoryLedger::default();
                false
            }
            MemoryPolicy::Static(policy) => policy.restore(&self.topology, &mut ledger.memory)?,
        };
        Ok(RestoredLedger { ledger, memory_recounted })
    }
}

/// A ledger restored after a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredLedger {
    pub ledger: Ledger,
    /// Memory reservations did not add up and were recomputed from the blocks of containers.
    pub memory_recounted: bool,
}
