//! The time of day: [`Clock`], which tests can control. Certificates are checked against `https::Clock`.

use std::fmt;

use objects::timestamp::Timestamp;

pub trait Clock: fmt::Debug + Send + Sync {
    fn now(&self) -> Timestamp;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::since_epoch(https::unix_time())
    }
}
