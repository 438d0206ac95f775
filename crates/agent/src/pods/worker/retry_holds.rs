//! Delays between two attempts: [`RetryHolds`] keeps a failed step from being retried too soon.
//!
//! Every change of its pod wakes a worker, its own status writes included, and an error text that differs
//! each time is a change. Without holds such a worker would retry without a pause. Containers that ran and
//! exited have their own back-off ([`crate::pods::backoff`]), and so do image pulls.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lifecycle::status::Waiting;

/// The steps that must not be retried yet.
#[derive(Debug, Default)]
pub(super) struct RetryHolds {
    /// Sandbox and volumes.
    pod: Option<Instant>,
    containers: BTreeMap<String, (Instant, Waiting)>,
}

impl RetryHolds {
    /// Returns the time for which neither sandbox nor volumes are created.
    pub(super) fn of_pod(&self) -> Option<Duration> {
        self.pod.and_then(left)
    }

    pub(super) fn hold_pod(&mut self, time: Duration) {
        self.pod = Instant::now().checked_add(time);
    }

    /// Returns the time for which a container is not created, and the reason.
    pub(super) fn of_container(&self, name: &str) -> Option<(Duration, Waiting)> {
        let (until, waiting) = self.containers.get(name)?;
        Some((left(*until)?, waiting.clone()))
    }

    pub(super) fn hold_container(&mut self, name: &str, time: Duration, waiting: Waiting) {
        if let Some(until) = Instant::now().checked_add(time) {
            self.containers.insert(name.to_owned(), (until, waiting));
        }
    }

    /// Ends all holds because the spec changed.
    pub(super) fn release(&mut self) {
        *self = RetryHolds::default();
    }
}

fn left(until: Instant) -> Option<Duration> {
    until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_end_with_their_time_or_on_release() {
        let waiting = Waiting { reason: "CreateContainerError".to_owned(), message: String::new() };
        let mut holds = RetryHolds::default();
        assert_eq!((holds.of_pod(), holds.of_container("c")), (None, None));
        holds.hold_container("c", Duration::from_secs(600), waiting.clone());
        let (left, why) = holds.of_container("c").unwrap();
        assert!(left > Duration::from_secs(500) && why == waiting, "{left:?}");
        assert_eq!(holds.of_container("other"), None);
        holds.hold_container("c", Duration::ZERO, waiting);
        assert_eq!(holds.of_container("c"), None);
        holds.hold_pod(Duration::from_secs(600));
        assert!(holds.of_pod().is_some());
        holds.release();
        assert_eq!(holds.of_pod(), None);
    }
}
