//! Exponential back-off: [`Backoff`], for containers that exit and images that cannot be pulled.
//!
//! Upstream's values: 10 s, doubled up to 5 minutes, reset after twice the longest wait without a failure.
//! Times are nanoseconds since 1970.

use std::collections::BTreeMap;
use std::time::Duration;

const FIRST: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    wait: Duration,
    /// The time of the last attempt.
    at: i64,
}

/// Back-off times by key.
#[derive(Debug, Clone)]
pub struct Backoff {
    longest: Duration,
    entries: BTreeMap<String, Entry>,
}

impl Backoff {
    #[must_use]
    pub fn new(longest: Duration) -> Backoff {
        Backoff { longest, entries: BTreeMap::new() }
    }

    /// Returns the remaining wait after a failure at `since`, or `None` if it can be retried.
    #[must_use]
    pub fn remaining(&self, key: &str, since: i64, now: i64) -> Option<Duration> {
        let entry = self.entries.get(key).filter(|entry| !self.is_forgotten(entry, since))?;
        let left = nanos(entry.wait).saturating_sub(now.saturating_sub(since));
        (left > 0).then(|| Duration::from_nanos(left.unsigned_abs()))
    }

    /// Returns the current total wait.
    #[must_use]
    pub fn wait(&self, key: &str) -> Duration {
        self.entries.get(key).map_or(Duration::ZERO, |entry| entry.wait)
    }

    /// Records a new attempt: doubles the wait, or resets it after a long time without a failure.
    pub fn next(&mut self, key: &str, since: i64, now: i64) {
        let wait = match self.entries.get(key) {
            Some(entry) if !self.is_forgotten(entry, since) => (entry.wait * 2).min(self.longest),
            _ => FIRST.min(self.longest),
        };
        self.entries.insert(key.to_owned(), Entry { wait, at: now });
        let oldest = now.saturating_sub(nanos(self.longest).saturating_mul(2));
        self.entries.retain(|_, entry| entry.at >= oldest);
    }

    /// Returns true if the time before the failure was long enough for a reset.
    fn is_forgotten(&self, entry: &Entry, since: i64) -> bool {
        since.saturating_sub(entry.at) > nanos(self.longest).saturating_mul(2)
    }

    pub fn forget(&mut self, key: &str) {
        self.entries.remove(key);
    }
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    #[test]
    fn waits_double_up_to_the_longest_and_are_reset() {
        let mut backoff = Backoff::new(Duration::from_secs(300));
        let mut waits = Vec::new();
        let mut now = 0;
        for _ in 0..7 {
            assert_eq!(backoff.remaining("c", now, now).is_none(), waits.is_empty());
            now += nanos(backoff.wait("c"));
            assert_eq!(backoff.remaining("c", now - nanos(backoff.wait("c")), now), None);
            backoff.next("c", now, now);
            waits.push(backoff.wait("c").as_secs());
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 300, 300]);
        // It ran for more than ten minutes before it failed.
        let later = now + 601 * SECOND;
        assert_eq!(backoff.remaining("c", later, later), None);
        backoff.next("c", later, later);
        assert_eq!(backoff.wait("c").as_secs(), 10);
    }

    #[test]
    fn remaining_wait_counts_from_the_failure() {
        let mut backoff = Backoff::new(Duration::from_secs(300));
        backoff.next("c", 0, 5 * SECOND);
        let left = backoff.remaining("c", 6 * SECOND, 9 * SECOND);
        assert_eq!(left, Some(Duration::from_secs(7)));
        assert_eq!(backoff.remaining("other", 6 * SECOND, 9 * SECOND), None);
    }
}
