//! The time: [`Clock`], which tests can control.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use objects::timestamp::Timestamp;

pub trait Clock: fmt::Debug + Send + Sync {
    fn now(&self) -> Timestamp;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        // Times before 1970 do not occur.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::new(i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos())
    }
}

/// Returns nanoseconds since 1970, as the CRI does.
#[must_use]
pub fn nanos(at: Timestamp) -> i64 {
    at.seconds().saturating_mul(1_000_000_000).saturating_add(i64::from(at.nanos()))
}
