//! The errors of a pod's syncs: [`SyncErrors`] collects those of one sync, and logs the error of a step when it
//! differs from the last one of that step.

use std::collections::BTreeMap;
use std::fmt::Display;

use tracing::{info, warn};

use super::Next;
use crate::supervisor::millis;
use client::ErrorLog;
use lifecycle::spec::Pod;

/// The errors of the current sync, and the last ones by step.
#[derive(Debug, Default)]
pub(super) struct SyncErrors {
    current: BTreeMap<String, String>,
    /// True if the current sync left out a step that has to wait.
    postponed: bool,
    steps: BTreeMap<String, ErrorLog>,
    failed_syncs: u32,
}

impl SyncErrors {
    /// Adds an error of the current sync.
    pub(super) fn add(&mut self, step: impl Display, error: impl Display) {
        let errors = self.current.entry(step.to_string()).or_default();
        *errors = match errors.as_str() {
            "" => error.to_string(),
            before => format!("{before}; {error}"),
        };
    }

    /// Notes that a step waits for its back-off, so that a sync without errors does not count as a recovery.
    pub(super) fn postpone(&mut self) {
        self.postponed = true;
    }

    /// Ends the current sync.
    pub(super) fn finish(&mut self, pod: &Pod, next: Next) {
        let current = std::mem::take(&mut self.current);
        let postponed = std::mem::take(&mut self.postponed);
        let (name, uid) = (pod.full_name(), &pod.metadata.uid);
        if !current.is_empty() {
            self.failed_syncs = self.failed_syncs.saturating_add(1);
            let retry_in_ms = match next {
                Next::After(wait) => millis(wait),
                Next::Now | Next::Done => 0,
            };
            for (step, error) in current {
                if self.steps.entry(step.clone()).or_default().failed(&error) {
                    warn!(pod = name, uid, step, error, retry_in_ms, "failed to sync the pod");
                }
            }
        // If something was done, the next step may fail again.
        } else if !postponed && next != Next::Now && !self.steps.is_empty() {
            self.steps.clear();
            let failures = std::mem::take(&mut self.failed_syncs);
            info!(pod = name, uid, failures, "synced the pod after failures");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use lifecycle::spec::Metadata;
    use rig::logs::capture;

    fn pod() -> Pod {
        let metadata = Metadata {
            name: "p".to_owned(),
            namespace: "n".to_owned(),
            uid: "u".to_owned(),
            ..Metadata::default()
        };
        Pod { metadata, ..Pod::default() }
    }

    #[test]
    fn errors_of_a_sync_are_logged_when_they_change() {
        let log = capture("agent");
        let (pod, mut errors) = (pod(), SyncErrors::default());
        let later = Next::After(Duration::from_secs(10));
        for _ in 0..2 {
            errors.add("mount volumes", "no such secret");
            errors.finish(&pod, later);
        }
        errors.postpone();
        errors.finish(&pod, later);
        errors.finish(&pod, Next::Now);
        errors.add("mount volumes", "no such secret");
        errors.add("start container c", "no image");
        errors.finish(&pod, later);
        errors.finish(&pod, later);
        errors.finish(&pod, later);
        assert_eq!(
            log.lines(),
            [
                "WARN failed to sync the pod pod=\"n/p\" uid=\"u\" step=\"mount volumes\" \
                 error=\"no such secret\" retry_in_ms=10000",
                "WARN failed to sync the pod pod=\"n/p\" uid=\"u\" step=\"start container c\" \
                 error=\"no image\" retry_in_ms=10000",
                "INFO synced the pod after failures pod=\"n/p\" uid=\"u\" failures=3",
            ]
        );
    }
}
