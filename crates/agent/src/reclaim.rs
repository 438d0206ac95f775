//! Frees memory and disk.
//!
//! - [`eviction`] decides from thresholds which pressure the node is under and which pod is evicted.
//! - [`gc`] chooses unused images and dead sandboxes. Pure.
//! - [`housekeeping`] removes what pods left behind that are gone.

pub mod eviction;

pub mod gc;

pub mod housekeeping;
