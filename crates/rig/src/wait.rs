//! Polls for a condition with a timeout.

use std::time::{Duration, Instant};

/// The pause between two polls. Conditions take milliseconds.
const PAUSE: Duration = Duration::from_millis(5);

/// The condition was not met in time.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("condition not met after {0:?}")]
pub struct WaitTimeout(Duration);

/// Polls until `poll` returns a value.
pub fn wait_until<T>(
    timeout: Duration,
    mut poll: impl FnMut() -> Option<T>,
) -> Result<T, WaitTimeout> {
    let started = Instant::now();
    loop {
        if let Some(value) = poll() {
            return Ok(value);
        }
        if started.elapsed() >= timeout {
            return Err(WaitTimeout(timeout));
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_returns_on_success_or_timeout() {
        let mut polls = 0;
        let value = wait_until(Duration::from_secs(60), || {
            polls += 1;
            (polls == 3).then_some(polls)
        });
        assert_eq!(value.unwrap(), 3);
        assert!(wait_until(Duration::ZERO, || None::<()>).is_err());
    }
}
