//! Tests of the public API: against a model, under load, and with killed processes.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "clippy.toml allows them in tests, not helpers"
)]

mod basics;
mod compaction;
mod concurrency;
mod damage;
mod full;
mod kill;
mod model;
mod salvage;
mod support;
mod watchers;
