//! Tests of the agent's server with a real containerd, one for each test: logs, exec, attach and port-forward
//! of real containers. They need root and Debian's packages; `./test` runs them as the stage "containerd".
//!
//! On a machine that cannot run them these tests fail instead of passing: they are built only on request.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "clippy.toml allows them in tests, not helpers"
)]

mod logs;
mod node;
mod streams;
mod websocket;
