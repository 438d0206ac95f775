//! Creates the resources that a pod needs before it starts, and removes them when it no longer runs: cgroups,
//! directories, volumes, the pod's placement in the ledger.

use std::sync::Arc;
use std::time::Duration;

use placement::demand::PodUid;
use thiserror::Error;

use super::{PodContext, RETRY, Worker};
use crate::blocking::BlockingError;
use crate::ledger::file::LedgerError;
use crate::observability::events::AgentEvent;
use crate::publications::WorkerReport;
use crate::runtime::PodCgroupError;
use crate::runtime::lower::MountedVolumes;
use crate::volumes::VolumeError;
use lifecycle::spec::{Pod, Volume};

/// The shortest and the longest wait between two attempts to mount volumes. Upstream's values.
const FIRST_MOUNT_RETRY: Duration = Duration::from_millis(500);
const LONGEST_MOUNT_RETRY: Duration = Duration::from_secs(122);

/// The reason why the resources of a pod could not be released.
#[derive(Debug, Error)]
pub(super) enum ReleaseError {
    #[error(transparent)]
    Volumes(#[from] BlockingError<VolumeError>),
    #[error(transparent)]
    Cgroups(#[from] PodCgroupError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl Worker {
    /// Creates cgroups and mounts volumes, unless that is done. The error is the time to wait before the next
    /// attempt.
    pub(super) async fn prepare(&mut self, sync: &mut PodContext) -> Result<(), Duration> {
        if self.mounted.is_some() {
            return Ok(());
        }
        let pod = Arc::clone(&sync.pod);
        // Containers on shared CPUs leave those of this pod before any of its containers runs.
        if let Err(error) = self.context.state.rebalance(&self.context.runtime.cri).await {
            self.sync_errors.add("move running containers off the pod's CPUs", &error);
            self.context.recorder.pod(&pod, AgentEvent::SyncFailed { error: error.to_string() });
            return Err(RETRY);
        }
        sync.refresh(&self.context.state);
        let made = self.context.runtime.ensure_cgroups(
            &pod,
            &sync.source,
            Arc::clone(&sync.node_env),
            sync.affinities.clone(),
        );
        if let Err(error) = made.await {
            self.sync_errors.add("create the pod's cgroups", &error);
            self.context.recorder.pod(&pod, AgentEvent::SyncFailed { error: error.to_string() });
            return Err(RETRY);
        }
        self.limits = Some(self.limits_of(&pod));
        match self.mount(sync).await {
            Ok(mounted) => {
                self.mounted = Some(mounted);
                self.mount_failures = 0;
                Ok(())
            }
            Err(failures) => {
                for failure in failures {
                    self.sync_errors.add("mount volumes", &failure);
                    self.context.recorder.pod(&pod, mount_event(failure));
                }
                let wait = FIRST_MOUNT_RETRY * 2u32.saturating_pow(self.mount_failures.min(16));
                self.mount_failures += 1;
                Err(wait.min(LONGEST_MOUNT_RETRY))
            }
        }
    }

    /// Updates volumes whose sources have changed.
    pub(super) async fn refresh(&mut self, sync: &mut PodContext) -> Result<(), ()> {
        if !may_change(sync) {
            return Ok(());
        }
        match self.mount(sync).await {
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
    pub(super) async fn clean_up(&mut self, pod: &Pod) -> Result<(), ReleaseError> {
        let (context, uid) = (self.context.clone(), &pod.metadata.uid);
        context.runtime.unmount_volumes(uid).await?;
        self.mounted = None;
        self.limits = None;
        context.runtime.remove_cgroups(uid).await?;
        let released = context.state.ledger().release(&PodUid::new(uid))?;
        let _ = context.publications.reports.send(WorkerReport::ResourcesReleased(uid.clone()));
        if released {
            context.state.share_released_cpus(&context.runtime.cri).await;
        }
        Ok(())
    }

    /// Mounts or updates the pod's volumes. Returns the errors of all that failed.
    async fn mount(&self, sync: &mut PodContext) -> Result<MountedVolumes, Vec<VolumeError>> {
        let fetched = sync.dependencies(&self.context.dependencies).await;
        let dependencies = fetched.map_err(|error| {
            let why = error.to_string();
            vec![VolumeError::Io { step: "read", path: "the API".to_owned(), why }]
        })?;
        let contents = sync.volume_contents(&dependencies);
        self.context.runtime.mount_volumes(&sync.pod, contents).await
    }
}

/// Returns true if the contents of the pod's volumes can change while it runs.
fn may_change(sync: &PodContext) -> bool {
    let is_files = |volume: &Volume| {
        volume.config_map.is_some()
            || volume.secret.is_some()
            || volume.projected.is_some()
            || volume.downward_api.is_some()
    };
    sync.pod.spec.volumes.iter().any(is_files) || !sync.references().tokens.is_empty()
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
