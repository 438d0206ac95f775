//! The node agent: runs the pods bound to this machine where placement puts them.
//!
//! ```text
//!   API, manifests ──▶ pods ──▶ lifecycle ──▶ ledger ──▶ pods::worker ──▶ runtime, volumes ──▶ status
//!                                                                └──▶ cpusets
//! ```
//!
//! In the order of flow:
//!
//! - [`agent`] starts everything and runs until it is stopped; [`supervisor`] watches its tasks.
//! - [`node_state`] is the state that the tasks share, [`publications`] is the state of pods that other tasks
//!   read.
//! - [`pods`] is the set of pods, with a worker for each; static pods are read here too.
//! - [`ledger`] keeps on disk what pods were given.
//! - [`cpusets`] keeps containers on the CPUs that the ledger names.
//! - [`runtime`] talks to the container runtime and to containers.
//! - [`volumes`] makes the directories, files and mounts of pods.
//! - [`status`] writes the status of pods to the API.
//! - [`node`] maintains the Node object.
//! - [`reclaim`] frees memory and disk.
//! - [`observability`] has metrics, usage and events.
//! - [`server`] is the agent's HTTPS server.
//!
//! Decisions about a pod are the pure functions of the crate [`lifecycle`]; effects are in the workers and
//! loops around them.

pub mod agent;
pub mod blocking;
pub mod supervisor;

pub mod node_state;
pub mod publications;

pub mod pods;

pub mod ledger;

pub mod cpusets;

pub mod runtime;

pub mod volumes;

pub mod status;

pub mod node;

pub mod reclaim;

pub mod observability;

pub mod server;

#[cfg(test)]
mod test_machine;
