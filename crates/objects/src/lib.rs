//! Kubernetes objects as Berth serves them: kinds, quantities, defaulting, validation.
//!
//! Everything here is a value or a pure function over text: no files, no clock, no log. Readers
//! ([`yaml`]) collect every problem with its place instead of stopping at the first.

pub mod quantity;

pub use quantity::{ParseQuantityError, Quantity};
