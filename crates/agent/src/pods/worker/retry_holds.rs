//! Waiting between two attempts: [`Holds`], which keeps what failed from being tried again too soon.
//!
//! A worker is woken by every change of its pod, its own status writes included, and an error text that
//! differs each time is a change. Without holds such a worker would try again without a pause. Containers
//! that ran and ended have a back-off of their own ([`crate::pods::backoff`]), and so do pulls of images.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::status::Waiting;

/// The steps that are not to be tried again yet.
#[derive(Debug, Default)]
pub(super) struct Holds {
    /// Sandbox and volumes.
    pod: Option<Instant>,
    containers: BTreeMap<String, (Instant, Waiting)>,
}

impl Holds {
    /// The time for which neither sandbox nor volumes are to be made.
    pub(super) fn of_pod(&self) -> Option<Duration> {
        self.pod.and_then(left)
    }

    pub(super) fn hold_pod(&mut self, time: Duration) {
        self.pod = Instant::now().checked_add(time);
    }

    /// The time for which a container is not to be created, and the reason for which it waits.
    pub(super) fn of_container(&self, name: &str) -> Option<(Duration, Waiting)> {
        let (until, waiting) = self.containers.get(name)?;
        Some((left(*until)?, waiting.clone()))
    }

    pub(super) fn hold_container(&mut self, name: &str, time: Duration, waiting: Waiting) {
        if let Some(until) = Instant::now().checked_add(time) {
            self.containers.insert(name.to_owned(), (until, waiting));
        }
    }

    /// Ends all holds: something else is wanted.
    pub(super) fn release(&mut self) {
        *self = Holds::default();
    }
}

fn left(until: Instant) -> Option<Duration> {
    until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_held_until_its_time_or_until_something_else_is_wanted() {
        let waiting = Waiting { reason: "CreateContainerError".to_owned(), message: String::new() };
        let mut holds = Holds::default();
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
