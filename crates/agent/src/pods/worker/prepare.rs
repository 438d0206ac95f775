//! Creates the resources that a pod needs before it starts, and removes them when it no longer runs: cgroups,
//! directories, volumes, the pod's placement in the ledger.

use std::time::Duration;

use super::{RETRY, Worker};
use crate::observability::events::AgentEvent;
use crate::spec::Pod;
use crate::volumes::VolumeError;

/// The shortest and the longest wait between two attempts to mount volumes. Upstream's values.
const FIRST_MOUNT_RETRY: Duration = Duration::from_millis(500);
const LONGEST_MOUNT_RETRY: Duration = Duration::from_secs(122);

impl Worker {
    /// Creates cgroups and mounts volumes, unless that is done. The error is the time to wait before the next
    /// attempt.
    pub(super) async fn prepare(&mut self, pod: &Pod) -> Result<(), Duration> {
        if self.mounted.is_some() {
            return Ok(());
        }
        // Containers on shared CPUs leave those of this pod before any of its containers runs.
        if let Err(error) = self.context.rebalance().await {
            self.sync_errors.add("move running containers off the pod's CPUs", &error);
            self.context.recorder.pod(pod, AgentEvent::SyncFailed { error: error.to_string() });
            return Err(RETRY);
        }
        if let Err(error) = self.context.make_cgroups(pod, &self.source).await {
            self.sync_errors.add("create the pod's cgroups", &error);
            self.context.recorder.pod(pod, AgentEvent::SyncFailed { error });
            return Err(RETRY);
        }
        self.limits = Some(self.limits_of(pod));
        match self.context.mount(pod, &self.source).await {
            Ok(mounted) => {
                self.mounted = Some(mounted);
                self.mount_failures = 0;
                Ok(())
            }
            Err(failures) => {
                for failure in failures {
                    self.sync_errors.add("mount volumes", &failure);
                    self.context.recorder.pod(pod, mount_event(failure));
                }
                let wait = FIRST_MOUNT_RETRY * 2u32.saturating_pow(self.mount_failures.min(16));
                self.mount_failures += 1;
                Err(wait.min(LONGEST_MOUNT_RETRY))
            }
        }
    }

    /// Updates volumes whose sources have changed.
    pub(super) async fn refresh(&mut self, pod: &Pod) -> Result<(), ()> {
        if !self.context.may_change(pod) {
            return Ok(());
        }
        match self.context.mount(pod, &self.source).await {
            Ok(mounted) => {
                self.mounted = Some(mounted);
                Ok(())
            }
            // Mounted volumes keep their contents.
            Err(failures) => {
                for failure in failures {
                    self.sync_errors.add("update volumes", failure);
                }
                Err(())
            }
        }
    }

    /// Removes the resources that only a running pod needs.
    pub(super) async fn clean_up(&mut self, pod: &Pod) -> Result<(), String> {
        self.context.unmount(pod).await?;
        self.mounted = None;
        self.limits = None;
        self.context.remove_cgroups(pod).await?;
        self.context.release(pod).await
    }
}

fn mount_event(failure: VolumeError) -> AgentEvent {
    match failure {
        VolumeError::SetUp { volume, problem } => {
            AgentEvent::MountFailed { volume, error: problem.to_string() }
        }
        VolumeError::Claim { volume, problem } => AgentEvent::VolumesMissing {
            unmounted: vec![volume.clone()],
            unattached: Vec::new(),
            failed: vec![volume],
            error: problem.to_string(),
        },
        other => AgentEvent::SyncFailed { error: other.to_string() },
    }
}
