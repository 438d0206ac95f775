//! The crate from outside.

#![allow(clippy::unwrap_used, clippy::panic)]

mod basics;
