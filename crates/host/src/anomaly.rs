//! Irregularities that discovery found, and the assumptions it made.
//!
//! Main type: [`Anomaly`]. An anomaly is not an error: the topology returned with it is usable. If
//! a machine is unusable, the observing module returns an error.

use placement::{CacheId, CoreId, CpuId, CpuSet, NumaId, SocketId};
use thiserror::Error;

/// An irregularity in a machine's description; its text contains the finding and the assumption.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Anomaly {
    #[error("{path} cannot be read ({reason}); it was ignored")]
    Unreadable { path: String, reason: String },
    #[error("{path} contains {found:?} instead of {expected}; it was ignored")]
    Malformed { path: String, found: String, expected: &'static str },
    #[error("{path} is missing; CPUs were found by their directories instead")]
    NoOnlineList { path: String },
    #[error(
        "CPUs {cpus} are listed as online but their own files say otherwise; they were left out"
    )]
    NotReallyOnline { cpus: CpuSet },
    #[error("CPUs {cpus} name no package; socket {assumed} was assumed")]
    NoPackage { cpus: CpuSet, assumed: SocketId },
    #[error(
        "CPUs {cpus} have no sibling list; those with the same core id in a package were taken \
         for one core"
    )]
    NoSiblingList { cpus: CpuSet },
    #[error("CPUs {cpus} have neither a sibling list nor a core id; each was taken for a core")]
    NoCore { cpus: CpuSet },
    #[error(
        "CPUs {cpus} name CPUs {others} as siblings, which do not name the same siblings; they \
         were taken for different cores"
    )]
    SiblingsDisagree { cpus: CpuSet, others: CpuSet },
    #[error(
        "the siblings {cpus} of core {core} lie in different sockets or NUMA nodes; the core was \
         split there"
    )]
    CoreSplit { core: CoreId, cpus: CpuSet },
    #[error("the machine does not report NUMA nodes; everything was put into node {assumed}")]
    NoNumaNodes { assumed: NumaId },
    #[error("CPUs {cpus} belong to no NUMA node; node {assumed} was assumed")]
    NoNode { cpus: CpuSet, assumed: NumaId },
    #[error("CPU {cpu} belongs to NUMA nodes {first} and {second}; node {first} was taken")]
    InTwoNodes { cpu: CpuId, first: NumaId, second: NumaId },
    #[error("the memory of NUMA node {node} is not known ({reason}); {assumed}")]
    NoMemory { node: NumaId, reason: String, assumed: &'static str },
    #[error("the distance table is not usable ({reason}); distances were left out")]
    NoDistances { reason: String },
    #[error("CPUs {cpus} name no shared cache; each socket was taken for one")]
    NoCache { cpus: CpuSet },
    #[error("cache id {id} names several caches; the one of CPUs {cpus} was given id {given}")]
    CacheIdTaken { id: CacheId, cpus: CpuSet, given: CacheId },
    #[error("processors {cpus} are active but belong to no core record; they were left out")]
    ActiveWithoutCore { cpus: CpuSet },
}
