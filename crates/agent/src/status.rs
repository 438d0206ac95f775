//! The status of pods on its way to the API and to clients of the agent.
//!
//! ```text
//!   lifecycle::status ──▶ writer ──▶ API
//!            └──▶ pod_cache ──▶ the agent's server
//! ```
//!
//! - [`writer`] writes statuses to the API.
//! - [`pod_cache`] holds pods with their newest status for the agent's server.
//!
//! The statuses are computed by [`lifecycle::status`].

pub mod pod_cache;
pub mod writer;
