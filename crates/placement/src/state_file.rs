//! The kubelet's state files, `cpu_manager_state` and `memory_manager_state`, as text.
//!
//! Main types: [`CpuState`] and [`MemoryState`], the contents as values; each has a `parse` that
//! reads every version a kubelet has written since 1.18 and a `render` that writes the newest one
//! byte for byte as a kubelet does, checksums included. Nothing here opens a file or knows
//! machines: the reader of a state checks that it fits.
//!
//! A file is taken in this order, and the first version whose checksum holds wins:
//!
//! ```text
//! cpu     v4 ─┬─ v3 ── v2      memory  v3 ─┬─ v2 ── v1
//!             └─ refused                   └─ refused
//! ```
//!
//! The newest version keeps its content in `data`, guarded by `dataChecksum`; the fields of an old
//! version next to it are for old kubelets and are not read. Once a file has either of these two
//! fields, an error in them is final: falling back would restore an outdated state.

mod checkpoint;
mod cpu;
mod go_json;
mod memory;
mod spew;

use std::collections::BTreeMap;

use objects::go::quoted;
use thiserror::Error;

pub use cpu::CpuState;
pub use go_json::DecodeError;
pub use memory::{Block, MemoryState, MemoryTable, NodeState};

use crate::cpuset::ParseCpuSetError;

/// Pod UID → container name → what that container has.
pub type PerContainer<T> = BTreeMap<String, BTreeMap<String, T>>;

/// Pod UID → what that pod has as a whole.
pub type PerPod<T> = BTreeMap<String, T>;

/// The manager whose state a file contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manager {
    Cpu,
    Memory,
}

impl Manager {
    /// The file's name in the kubelet's root directory.
    #[must_use]
    pub const fn file_name(self) -> &'static str {
        match self {
            Manager::Cpu => "cpu_manager_state",
            Manager::Memory => "memory_manager_state",
        }
    }

    const fn lower_case(self) -> &'static str {
        match self {
            Manager::Cpu => "cpu",
            Manager::Memory => "memory",
        }
    }

    const fn in_prose(self) -> &'static str {
        match self {
            Manager::Cpu => "CPU",
            Manager::Memory => "memory",
        }
    }

    const fn newest_version(self) -> &'static str {
        match self {
            Manager::Cpu => "v4",
            Manager::Memory => "v3",
        }
    }
}

/// The feature gates that decide what is read from a file. Content behind a disabled gate is not
/// restored, and is lost with the next save.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gates {
    /// `PodLevelResourceManagers`: restores the pod-level resources.
    pub pod_level_resource_managers: bool,
    /// `InPlacePodVerticalScalingExclusiveCPUs`: restores the CPUs that containers started with, or
    /// uses the current ones if the file has none.
    pub in_place_scaling_of_exclusive_cpus: bool,
}

/// Why a state could not be restored. The texts are the kubelet's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StateFileError {
    #[error("{0}")]
    Undecodable(DecodeError),
    #[error("failed to deserialize {} manager checkpoint: {cause}", .manager.lower_case())]
    UndecodableFile { manager: Manager, cause: DecodeError },
    #[error("failed to deserialize {} manager checkpoint data: {cause}", .manager.lower_case())]
    UndecodableData { manager: Manager, cause: DecodeError },
    #[error("checkpoint is corrupted")]
    Corrupted { stored: u64, computed: u64 },
    /// The file is of the newest version and broken, so no older one is looked for in it.
    #[error("could not load {} checkpoint: {cause}", .manager.newest_version())]
    NewestVersion { manager: Manager, cause: Box<StateFileError> },
    #[error(
        "{}configured policy {} differs from state checkpoint policy {}",
        if *.manager == Manager::Memory { "[memorymanager] " } else { "" },
        quoted(.configured),
        quoted(.stored)
    )]
    PolicyDiffers { manager: Manager, configured: String, stored: String },
    #[error("could not parse default CPU set {}: {cause}", quoted(.text))]
    DefaultCpus { text: String, cause: Box<ParseCpuSetError> },
    #[error(
        "could not parse cpuset {} for container {} in pod {}: {cause}",
        quoted(.text), quoted(.container), quoted(.pod)
    )]
    ContainerCpus { text: String, container: String, pod: String, cause: Box<ParseCpuSetError> },
    #[error(
        "could not parse Baseline cpuset {} for container {} in pod {}: {cause}",
        quoted(.text), quoted(.container), quoted(.pod)
    )]
    BaselineCpus { text: String, container: String, pod: String, cause: Box<ParseCpuSetError> },
    /// The kubelet would accept such a number; no machine has such a node.
    #[error("NUMA node {0} is not a number a node can have")]
    NoSuchNode(i64),
    /// The kubelet crashes on these two.
    #[error("the state of NUMA node {0} is null")]
    NullNode(i64),
    #[error("the table of {} on NUMA node {node} is null", quoted(.resource))]
    NullTable { node: i64, resource: String },
}

/// A [`StateFileError`] with the file it happened in, which is what a user gets to see.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "could not restore state from checkpoint: {cause}, please drain this node and delete the {} \
     manager checkpoint file {} before restarting Kubelet",
    .manager.in_prose(),
    quoted(.path)
)]
pub struct RestoreError {
    pub manager: Manager,
    pub path: String,
    pub cause: StateFileError,
}

/// 32-bit FNV-1a, the hash of all checksums in these files.
fn fnv1a(text: &str) -> u64 {
    let hash = text
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    u64::from(hash)
}

fn verify(stored: u64, preimage: &str) -> Result<(), StateFileError> {
    let computed = fnv1a(preimage);
    if stored == computed { Ok(()) } else { Err(StateFileError::Corrupted { stored, computed }) }
}

/// Returns the checksum of a text, as the kubelet's checkpoints store it for `data`.
#[must_use]
pub fn text_checksum(data: &str) -> u64 {
    fnv1a(&data_preimage(data))
}

/// Returns the text that `dataChecksum` hashes: the dump of a plain string.
fn data_preimage(data: &str) -> String {
    format!("(string){data}")
}

#[cfg(test)]
mod tests;
