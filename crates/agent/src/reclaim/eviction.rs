//! The part of evictions that touches the machine: [`measure()`] and [`watch()`] read amounts, [`collect`] reads the
//! usage of pods.
//!
//! Decides nothing: [`lifecycle::eviction`] does.

mod measure;
mod usage;
mod watch;

pub use measure::{left_of_share, measure};
pub use usage::{PodDiskUsage, UsageQuery, collect, usages};
pub use watch::{Places, watch};
