//! The clock of the controllers. No other file reads the time; functions take it as an argument.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use objects::timestamp::Timestamp;
use tokio::time::Instant;

/// Milliseconds since the controllers started. It never goes back.
pub(crate) type Millis = i64;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    started: Instant,
}

impl Clock {
    pub(crate) fn start() -> Clock {
        Clock { started: Instant::now() }
    }

    pub(crate) fn millis(&self) -> Millis {
        i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    pub(crate) fn at(&self, millis: Millis) -> Instant {
        self.started + Duration::from_millis(u64::try_from(millis).unwrap_or(0))
    }

    /// Returns the wall-clock time.
    pub(crate) fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::new(i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos())
    }
}
