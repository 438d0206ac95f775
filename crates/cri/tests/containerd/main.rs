//! Tests the client against a real containerd, one per test. They need root and Debian's packages;
//! `./test` runs them as the stage "containerd".
//!
//! On a machine without these the tests fail and are not skipped; the feature `rig` builds them.

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
