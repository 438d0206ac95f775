//! Tests of the crate's public interface: encoded messages, and a client and a server over this
//! system's kind of endpoint. Tests that need a containerd are in `tests/containerd`.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "clippy.toml allows them in tests, not helpers"
)]

mod calls;
mod description;
mod endpoints;
mod logs;
mod probing;
mod recorded;
mod support;
mod wire;
