//! Real pods in a real containerd, through the API. Needs root, Linux and Debian's packages; see
//! crates/rig.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "clippy.toml allows them in tests, not helpers"
)]

mod accounts;
mod kills;
mod life;
mod placement;
mod resize;
mod runtimes;
mod static_pods;
mod support;
mod takeover;
mod together;
