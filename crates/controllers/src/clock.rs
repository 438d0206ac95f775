//! The clock of the controllers. No other file reads the time; functions take it as an argument.

use std::time::Duration;

use client::clock::{Clock as _, SystemClock};
use objects::timestamp::Timestamp;
use scheduling::Milliseconds;
use tokio::time::Instant;

/// The time since the controllers started, which never goes back, and the time of day.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    started: Instant,
}

impl Clock {
    pub(crate) fn start() -> Clock {
        Clock { started: Instant::now() }
    }

    /// Returns the time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns the time since the start in the unit of the crate `scheduling`.
    pub(crate) fn millis(&self) -> Milliseconds {
        Milliseconds::try_from(self.elapsed().as_millis()).unwrap_or(Milliseconds::MAX)
    }

    /// Returns the instant at a time since the start.
    pub(crate) fn at(&self, since_start: Duration) -> Instant {
        self.started + since_start
    }

    /// Returns the instant at a time since the start in the unit of the crate `scheduling`.
    pub(crate) fn at_millis(&self, since_start: Milliseconds) -> Instant {
        self.at(Duration::from_millis(u64::try_from(since_start).unwrap_or(0)))
    }

    /// Returns the time of day.
    pub(crate) fn now(&self) -> Timestamp {
        SystemClock.now()
    }
}
