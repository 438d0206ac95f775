//! Real pods in a real containerd, through the API. Needs root, Linux and Debian's packages; see
//! crates/rig.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "clippy.toml allows them in tests, not helpers"
)]

mod access;
mod accounts;
mod classes;
mod hooks;
mod kills;
mod life;
mod parses;
mod placement;
mod resize;
mod retries;
mod runtimes;
mod static_pods;
mod support;
mod takeover;
