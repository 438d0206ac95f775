//! Replays the exchanges recorded from upstream's API server through the pure functions of this
//! crate.

#![allow(clippy::panic, clippy::unwrap_used)]

mod answers;
mod bounds;
mod depth;
mod discovery;
mod kinds;
mod memory;
mod openapi;
mod pods;
mod protobuf;
mod recorded;
mod scaling;
mod schema;
mod tables;
mod views;
mod writes;
