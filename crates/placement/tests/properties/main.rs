//! Properties of the placement core: same answers as plain exhaustive search, and invariants that
//! hold over long random walks.
#![allow(clippy::unwrap_used, clippy::panic)] // Also outside #[test] functions: this is all test.

mod allocations;
mod distribution;
mod exhaustive;
mod machine_file;
mod machines;
mod merging;
mod replan;
mod report;
mod restore;
mod spreading;
mod walks;
