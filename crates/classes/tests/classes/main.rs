//! Integration tests of the class definitions.

#![allow(clippy::unwrap_used)]

mod mutations;
mod recorded;
