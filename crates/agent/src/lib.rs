//! The node agent: makes the pods bound to this machine run where the brain puts them.
//!
//! [`spec`] is a pod as the agent reads it. What is decided is decided by pure functions over it and
//! over what the runtime was seen to do; everything that touches the world is at the rim.

pub mod admit;
mod demand;
pub mod events;
pub mod eviction;
mod fetch;
pub mod gc;
pub mod hooks;
pub mod lower;
pub mod node;
pub mod observed;
pub mod probes;
pub mod spec;
pub mod status;
pub mod steps;

pub use demand::{limits, placement_demand, qos_class, requests};
