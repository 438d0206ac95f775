//! The node agent: makes the pods bound to this machine run where the brain puts them.
//!
//! [`spec`] is a pod as the agent reads it. What is decided is decided by pure functions over it and
//! over what the runtime was seen to do; everything that touches the world is at the rim.

pub mod admit;
pub mod agent;
pub mod allocations;
pub mod backoff;
pub mod board;
pub mod book;
pub mod cgroups;
pub mod clock;
pub mod counters;
mod demand;
pub mod events;
pub mod eviction;
pub mod facts;
mod fetch;
pub mod gc;
pub mod hands;
pub mod hooks;
pub mod housekeeping;
pub mod images;
pub mod logs;
pub mod look;
pub mod lower;
pub mod metrics;
pub mod node;
pub mod observed;
pub mod pod_resources;
pub mod pods;
pub mod pool;
pub mod probes;
pub mod record;
pub mod resize;
pub mod resource_claims;
pub mod server;
pub mod sources;
pub mod spec;
pub mod static_pods;
pub mod stats;
pub mod status;
pub mod steps;
pub mod teller;
#[cfg(test)]
mod test_machine;
pub mod truth;
pub mod volumes;
pub mod worker;

pub use demand::{limits, placement_demand, qos_class, requests};
