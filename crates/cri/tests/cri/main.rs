//! The crate from outside: what it puts on the wire, and a client and a server that speak over this
//! system's kind of endpoint. What needs a containerd is in `tests/containerd`.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "clippy.toml allows them in tests, not helpers"
)]

mod calls;
mod description;
mod endpoints;
mod probing;
mod recorded;
mod support;
mod wire;
