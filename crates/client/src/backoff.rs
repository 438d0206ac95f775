//! Exponential back-off: [`Backoff`]. Does not sleep and does not count failures.

use std::hash::{Hash as _, Hasher as _};
use std::time::Duration;

/// Waits that double from the first to the longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    pub first: Duration,
    pub longest: Duration,
}

impl Backoff {
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff { first, longest }
    }

    /// Returns the wait after a number of consecutive failures.
    #[must_use]
    pub fn wait(self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(30);
        self.first.saturating_mul(1 << doublings).min(self.longest)
    }

    /// Returns the wait plus up to a fifth. The jitter differs by key, so that simultaneous failures are not
    /// retried together.
    #[must_use]
    pub fn wait_with_jitter(self, key: &str, failures: u32) -> Duration {
        let wait = self.wait(failures);
        let mut hasher = std::hash::DefaultHasher::new();
        (key, failures).hash(&mut hasher);
        let fifth = u64::try_from(wait.as_millis() / 5).unwrap_or(u64::MAX).max(1);
        wait.saturating_add(Duration::from_millis(hasher.finish() % fifth))
    }

    /// Returns the wait that follows another one.
    #[must_use]
    pub fn next(self, wait: Duration) -> Duration {
        wait.saturating_mul(2).min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest() {
        let millis = Duration::from_millis;
        let backoff = Backoff::new(millis(100), millis(10_000));
        let mut wait = backoff.first;
        for (failures, expected) in
            [(0, 100), (1, 100), (2, 200), (3, 400), (8, 10_000), (u32::MAX, 10_000)]
        {
            assert_eq!(backoff.wait(failures), millis(expected), "{failures}");
            let jittered = backoff.wait_with_jitter("x", failures);
            let range = millis(expected)..=millis(expected * 6 / 5);
            assert!(range.contains(&jittered), "{failures}: {jittered:?}");
        }
        for expected in [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000] {
            assert_eq!(wait, millis(expected));
            wait = backoff.next(wait);
        }
    }

    #[test]
    fn jitter_differs_by_key() {
        let backoff = Backoff::new(Duration::from_secs(10), Duration::from_secs(10));
        let waits: std::collections::BTreeSet<Duration> =
            (0..20).map(|n| backoff.wait_with_jitter(&format!("key {n}"), 1)).collect();
        assert!(waits.len() > 10, "{waits:?}");
    }
}
