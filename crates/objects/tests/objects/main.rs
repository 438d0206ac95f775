//! Recorded answers of a Kubernetes API server, held against what this crate says about objects.

#![allow(clippy::panic, clippy::unwrap_used)]

mod discovery;
mod openapi;
mod recorded;
mod schema;
mod writes;
