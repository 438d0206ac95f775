//! Waiting for something to be so, with an end.

use std::time::{Duration, Instant};

/// Between two looks. What is waited for takes milliseconds.
const PAUSE: Duration = Duration::from_millis(5);

/// It was not so in time.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("not so after {0:?}")]
pub struct TooLate(Duration);

/// Looks until there is something to be seen.
pub fn wait_until<T>(
    patience: Duration,
    mut look: impl FnMut() -> Option<T>,
) -> Result<T, TooLate> {
    let started = Instant::now();
    loop {
        if let Some(seen) = look() {
            return Ok(seen);
        }
        if started.elapsed() >= patience {
            return Err(TooLate(patience));
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_so_at_last_is_seen_and_what_never_is_ends() {
        let mut looks = 0;
        let seen = wait_until(Duration::from_secs(60), || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(seen.unwrap(), 3);
        assert!(wait_until(Duration::ZERO, || None::<()>).is_err());
    }
}
