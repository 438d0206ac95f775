//! The pods of the node and their workers.
//!
//! ```text
//!   API, static_pods ──▶ pod_set ──▶ worker ──▶ lifecycle::sync_plan ──▶ effects ──▶ status
//! ```
//!
//! - [`static_pods`] reads pods from manifests and mirrors them in the API.
//! - [`pod_set`] admits pods, starts a worker for each and forwards events to it.
//! - [`worker`] takes one pod from its first sync to its removal.
//! - [`resize`] decides on changes of resources of running pods. Pure.
//! - [`dependencies`] reads the objects that pods refer to: config maps, secrets, services.
//! - [`backoff`] delays restarts and image pulls.

pub mod static_pods;

pub mod pod_set;

pub mod worker;

pub mod resize;

pub mod dependencies;

pub mod backoff;
