//! Integration tests of the class definitions.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "clippy.toml allows them in tests, not helpers"
)]

mod mutations;
mod recorded;
