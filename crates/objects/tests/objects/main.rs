//! What this crate's pure functions make of the exchanges recorded from upstream's API server.

#![allow(clippy::panic, clippy::unwrap_used)]

mod answers;
mod bounds;
mod discovery;
mod kinds;
mod openapi;
mod pods;
mod protobuf;
mod recorded;
mod schema;
mod tables;
mod views;
mod writes;
