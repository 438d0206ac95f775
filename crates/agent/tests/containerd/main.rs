//! The agent's server in front of a real containerd, each test with one of its own: logs, exec, attach
//! and port-forward of real containers. Needs root and Debian's packages; `./test` runs it as the stage
//! "containerd".
//!
//! A machine that cannot run it makes these tests fail, not pass: they are built only when asked for.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "clippy.toml allows them in tests, not helpers"
)]

mod logs;
mod node;
mod streams;
mod websocket;
