//! The life of a pod on its node, as decisions: what the node agent does next, and what it reports.
//!
//! ```text
//!   spec ──▶ admission ──▶ sync_plan ◀── observed
//!                             │             │
//!                             ▼             ▼
//!                    actions of the agent   status
//! ```
//!
//! - [`spec`] is a pod as the agent reads it, with the resources that it asks for.
//! - [`admission`] decides whether the node accepts a pod.
//! - [`resource_claims`] reports missing dynamic resources.
//! - [`observed`] is a pod in the container runtime.
//! - [`worker_state`] is the state machine of a pod's worker.
//! - [`sync_plan`] decides the next actions for a pod.
//! - [`status`] computes the status of a pod.
//! - [`eviction`] decides which pod is evicted when the node runs short of a resource.
//!
//! Pure: time, amounts and the state of the runtime are arguments. The crate `agent` observes, executes and
//! reports.

pub mod spec;

pub mod admission;

pub mod resource_claims;

pub mod observed;

pub mod worker_state;

pub mod sync_plan;

pub mod status;

pub mod eviction;

pub use spec::demand::{limits, placement_demand, qos_class, requests};
