//! The container runtime and the containers in it.
//!
//! In the order in which they are used for a pod:
//!
//! - [`relist`] lists pods of the runtime and inspects one; [`observed`] is the result.
//! - [`cgroups`] creates the cgroups of pods.
//! - [`images`] finds and pulls images.
//! - [`lower`] turns a pod with its placement into CRI requests. Pure.
//! - [`hooks`] runs lifecycle hooks, [`probes`] runs probes; both use `fetch` for HTTP.
//! - [`logs`] reads and rotates container logs.

pub mod relist;

pub mod observed;

pub mod cgroups;

pub mod images;

pub mod lower;

pub mod hooks;

pub mod probes;

pub(crate) mod fetch;

pub mod logs;
