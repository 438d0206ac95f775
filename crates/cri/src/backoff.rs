//! Connection back-off: [`Backoff`], a value that gets the time as an argument.
//!
//! A runtime's socket is on this machine, so an attempt is cheap, and a restarted runtime is back
//! within a second. The pauses are therefore short. They keep a node without a runtime from busy
//! polling.

use std::time::Duration;

use tokio::time::Instant;

/// The first pause; doubled after each failure.
const FIRST: Duration = Duration::from_millis(20);

/// The longest pause; bounds the time until a restarted runtime is noticed.
const LONGEST: Duration = Duration::from_secs(1);

/// The state between two attempts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Backoff(Option<Pause>);

#[derive(Clone, Debug)]
struct Pause {
    length: Duration,
    until: Instant,
    /// The reason of the last failure.
    reason: String,
}

impl Backoff {
    /// Returns the reason of the last failure if the pause is not over yet.
    pub(crate) fn holds(&self, now: Instant) -> Option<&str> {
        self.0.as_ref().filter(|pause| now < pause.until).map(|pause| pause.reason.as_str())
    }

    /// Returns the time of the next attempt; `None` if it may be made at once.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.0.as_ref().map(|pause| pause.until)
    }

    /// Returns the state after a failure.
    pub(crate) fn failed(&self, now: Instant, reason: String) -> Self {
        let length = match &self.0 {
            None => FIRST,
            Some(pause) => (pause.length * 2).min(LONGEST),
        };
        Self(Some(Pause { length, until: now + length, reason }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_second_and_reset_on_success() {
        let mut now = Instant::now();
        let mut backoff = Backoff::default();
        let mut pauses = Vec::new();
        for _ in 0..9 {
            assert_eq!(backoff.holds(now), None);
            backoff = backoff.failed(now, "gone".to_owned());
            assert_eq!(backoff.holds(now), Some("gone"));
            let until = backoff.until().unwrap();
            assert_eq!(backoff.holds(until - Duration::from_nanos(1)), Some("gone"));
            pauses.push((until - now).as_millis());
            now = until;
        }
        assert_eq!(pauses, [20, 40, 80, 160, 320, 640, 1000, 1000, 1000]);
        assert_eq!(Backoff::default().until(), None);
    }
}
