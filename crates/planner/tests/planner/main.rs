//! Tests of the public interface: machine descriptions, ordinary and hostile.

#![allow(clippy::unwrap_used)]

mod configuration;
mod examples;
mod fleet;
mod hwloc;
mod lscpu;
mod picture;
mod round_trip;
mod scenes;
mod shape;
