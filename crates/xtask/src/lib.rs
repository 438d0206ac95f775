//! Checks of the repository itself; the checks are the tests in `tests/walls.rs`.
//!
//! Here is what they stand on: [`source`] reads Rust source as far as a text search needs it, and
//! [`licence`] evaluates licence expressions. Both are pure. Nothing of Berth depends on this crate.

pub mod licence;
pub mod source;
