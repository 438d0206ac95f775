//! Tests of the public interface: recorded scenarios, properties and tables.
#![allow(clippy::unwrap_used, clippy::panic)] // Also outside #[test] functions: this is all test.
#![allow(clippy::needless_pass_by_value)] // `json!(…)` reads better than `&json!(…)`.

mod classes;
mod hostile;
mod machines;
mod queue;
mod recorded;
mod reference;
mod upstream;
mod worlds;
