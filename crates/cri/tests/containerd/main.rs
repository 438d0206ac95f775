//! The client against a real containerd, each test with one of its own. Needs root and Debian's
//! packages; `./test` runs it as the stage "containerd".
//!
//! A machine that cannot run it makes these tests fail, not pass: they are built only when asked for.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "clippy.toml allows them in tests, not helpers"
)]

mod failures;
mod leftovers;
mod life;
mod lists;
mod support;
