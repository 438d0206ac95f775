//! What has to be there before anything starts, and what is taken away when nothing runs any more:
//! cgroups, directories, volumes, the pod's place in the node's book.

use std::time::Duration;

use super::{RETRY, Worker};
use crate::observability::events::Told;
use crate::spec::Pod;
use crate::volumes::VolumeError;

/// Between two attempts to mount volumes, at least and at most. Upstream's figures.
const FIRST_MOUNT_RETRY: Duration = Duration::from_millis(500);
const LONGEST_MOUNT_RETRY: Duration = Duration::from_secs(122);

impl Worker {
    /// Makes cgroups and mounts volumes, unless that is done. The error is the time to wait before this is
    /// tried again.
    pub(super) async fn prepare(&mut self, pod: &Pod) -> Result<(), Duration> {
        if self.mounted.is_some() {
            return Ok(());
        }
        // Whoever shares CPUs leaves those of this pod before anything of it runs.
        if let Err(error) = self.hands.follow_pool().await {
            self.hands.recorder.pod(pod, Told::SyncFailed { error: error.to_string() });
            return Err(RETRY);
        }
        if let Err(error) = self.hands.make_cgroups(pod, &self.source).await {
            self.hands.recorder.pod(pod, Told::SyncFailed { error });
            return Err(RETRY);
        }
        self.limits = Some(self.limits_of(pod));
        match self.hands.mount(pod, &self.source).await {
            Ok(mounted) => {
                self.mounted = Some(mounted);
                self.mount_failures = 0;
                Ok(())
            }
            Err(failures) => {
                for failure in failures {
                    self.hands.recorder.pod(pod, told(failure));
                }
                let wait = FIRST_MOUNT_RETRY * 2u32.saturating_pow(self.mount_failures.min(16));
                self.mount_failures += 1;
                Err(wait.min(LONGEST_MOUNT_RETRY))
            }
        }
    }

    /// Brings volumes up to date whose sources have changed.
    pub(super) async fn refresh(&mut self, pod: &Pod) -> Result<(), ()> {
        if !self.hands.may_change(pod) {
            return Ok(());
        }
        match self.hands.mount(pod, &self.source).await {
            Ok(mounted) => {
                self.mounted = Some(mounted);
                Ok(())
            }
            // What is mounted stays as it is.
            Err(_) => Err(()),
        }
    }

    /// Takes away what only a running pod needs.
    pub(super) async fn clean_up(&mut self, pod: &Pod) -> Result<(), String> {
        self.hands.unmount(pod).await?;
        self.mounted = None;
        self.limits = None;
        self.hands.remove_cgroups(pod).await?;
        self.hands.release(pod).await
    }
}

fn told(failure: VolumeError) -> Told {
    match failure {
        VolumeError::SetUp { volume, problem } => {
            Told::MountFailed { volume, error: problem.to_string() }
        }
        VolumeError::Claim { volume, problem } => Told::VolumesMissing {
            unmounted: vec![volume.clone()],
            unattached: Vec::new(),
            failed: vec![volume],
            error: problem.to_string(),
        },
        other => Told::SyncFailed { error: other.to_string() },
    }
}
