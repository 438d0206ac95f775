//! Metrics, usage and events.
//!
//! - [`metrics`]: the agent's own metrics.
//! - [`stats`]: usage of the node and its pods, for `/stats/summary` and two metrics endpoints.
//! - [`pod_resources`]: the kubelet's Pod Resources API.
//! - [`events`]: all events with their texts, pure; [`recorder`] writes them to the API.

pub mod metrics;

pub mod stats;

pub mod pod_resources;

pub mod events;

pub mod recorder;
