//! Checks of the repository itself: crate walls, licences, language, names in documents. The checks are
//! the tests in `tests/`. The program generates the structures of `objects` ([`types`]).
//!
//! [`source`] reads Rust source as needed for a text search, [`licence`] evaluates licence expressions,
//! [`prose`] finds lines that are not plain English, and [`files`] reads the repository. No crate depends
//! on this one.

pub mod files;
pub mod licence;
pub mod prose;
pub mod source;
pub mod types;
