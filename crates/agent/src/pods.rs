//! The pods of the node and their workers.
//!
//! ```text
//!   API, static_pods ──▶ pod_set ──▶ worker ──▶ sync_plan ──▶ effects ──▶ status
//! ```
//!
//! - [`static_pods`] reads pods from manifests and mirrors them in the API.
//! - [`pod_set`] admits pods, starts a worker for each and forwards events to it.
//! - [`worker`] takes one pod from its first sync to its removal.
//! - [`worker_state`] is the state machine of a worker. Pure.
//! - [`sync_plan`] decides the next actions of a worker. Pure.
//! - [`resize`] decides on changes of resources of running pods. Pure.
//! - [`dependencies`] reads the objects that pods refer to: config maps, secrets, services.
//! - [`resource_claims`] reports missing dynamic resources. Pure.
//! - [`backoff`] delays restarts and image pulls.

pub mod static_pods;

pub mod pod_set;

pub mod worker;

pub mod worker_state;

pub mod sync_plan;

pub mod resize;

pub mod dependencies;

pub mod resource_claims;

pub mod backoff;
