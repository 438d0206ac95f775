//! Which CPUs, memory nodes and classes a pod gets on one machine, and why.
//!
//! Pure: values in, values out; no clock, no files, no logging. One brain with three callers: the
//! agent for real, the scheduler as what-if, the planner offline.

pub mod affinity;
pub mod alignment;
pub mod configured;
pub mod cpu;
pub mod cpuset;
pub mod demand;
pub mod gates;
pub mod go_strconv;
pub mod ids;
pub mod ledger;
pub mod machine;
pub mod memory;
pub mod node;
pub mod numa;
pub mod plan;
pub mod rationale;
pub mod report;
pub mod reservation;
pub mod restore;
pub mod state_file;
pub mod topology;
pub mod windows;

pub use cpuset::CpuSet;
pub use ids::{Bytes, CacheId, CoreId, CpuId, NumaId, SocketId};
pub use ledger::Ledger;
pub use machine::Machine;
pub use node::Node;
pub use numa::NumaMask;
pub use plan::{Placement, plan};
pub use rationale::Refusal;
pub use topology::Topology;
