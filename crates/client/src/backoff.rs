//! Exponential back-off with jitter: [`backoff`]. Does not sleep.

use std::hash::{Hash as _, Hasher as _};

/// Returns the wait after a number of failures: doubling from `first` to `longest`, plus up to a
/// fifth. The jitter differs by key, so that simultaneous failures are not retried together.
#[must_use]
pub fn backoff(key: &str, failures: u32, first: i64, longest: i64) -> i64 {
    let doublings = failures.saturating_sub(1).min(30);
    let wait = first.saturating_mul(1 << doublings).min(longest);
    let mut hasher = std::hash::DefaultHasher::new();
    (key, failures).hash(&mut hasher);
    let fifth = u64::try_from(wait / 5).unwrap_or(0).max(1);
    wait.saturating_add(i64::try_from(hasher.finish() % fifth).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_to_its_end() {
        for (failures, low, high) in
            [(1, 100, 120), (2, 200, 240), (8, 10_000, 12_000), (99, 10_000, 12_000)]
        {
            let wait = backoff("x", failures, 100, 10_000);
            assert!((low..=high).contains(&wait), "{failures}: {wait}");
        }
    }
}
