//! Scheduling from the outside: recorded scenarios, properties and tables.
#![allow(clippy::unwrap_used, clippy::panic)] // Also outside #[test] functions: this is all test.

mod queue;
mod recorded;
mod reference;
mod worlds;
