//! Times of the scheduler. No function here reads the clock.

/// Milliseconds since 1970.
pub type Milliseconds = i64;
