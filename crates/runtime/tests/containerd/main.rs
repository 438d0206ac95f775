//! The class layer over a real containerd.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "clippy.toml allows them in tests, not helpers"
)]

mod layer;
mod support;
