//! Frees memory and disk.
//!
//! - [`eviction`] decides from thresholds which pressure the node is under and which pod is evicted.
//! - [`gc`] chooses unused images and dead sandboxes. Pure.
//! - [`housekeeping`] removes leftovers of pods.

pub mod eviction;

pub mod gc;

pub mod housekeeping;
