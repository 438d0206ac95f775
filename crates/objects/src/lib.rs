//! Kubernetes objects as Berth serves them: kinds, quantities, defaulting, validation.
//!
//! Everything here is a value or a pure function over text: no files, no clock, no log. Readers
//! ([`yaml`]) collect every problem with its place instead of stopping at the first.

pub mod field;
pub mod quantity;
mod suggest;
pub mod yaml;

pub use field::{FieldError, FieldPath};
pub use quantity::{ParseQuantityError, Quantity};
pub use yaml::YamlError;
