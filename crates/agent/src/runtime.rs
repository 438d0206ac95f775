//! The container runtime, and the resources of pods on this machine: [`Runtime`].
//!
//! In the order in which they are used for a pod:
//!
//! - [`relist`] lists pods of the runtime and inspects one.
//! - [`cgroups`] creates the cgroups of pods.
//! - [`images`] finds and pulls images.
//! - [`lower`] turns a pod with its placement into CRI requests. Pure.
//! - [`hooks`] runs lifecycle hooks, [`probes`] runs probes; both use `fetch` for HTTP.
//! - [`logs`] reads and rotates container logs.
//!
//! [`Runtime`] has no state of pods and decides nothing: it applies what its callers decided.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use cri::{Capabilities, ClassSupport, v1};
use host::cgroups::CgroupError;
use thiserror::Error;
use tokio::sync::{Semaphore, watch};

use crate::blocking::{self, BlockingError};
use crate::observability::metrics::{CgroupOperation, SyncMetrics};
use crate::volumes::{self, Contents, VolumeError, Volumes};
use lifecycle::spec::{Container, Metadata, Pod};

pub mod relist;

pub mod cgroups;

pub mod images;

pub mod lower;

pub mod hooks;

pub mod probes;

pub(crate) mod fetch;

pub mod logs;

use cgroups::PodCgroups;
use images::Images;
use lower::env::Environment;
use lower::sandbox::HostProcessError;
use lower::{ContainerAffinity, LowerError, MountedVolumes, NodeEnvironment, PodInput, PodSource};
use probes::Probes;

/// The container runtime and the resources of pods that the agent creates around it.
#[derive(Debug)]
pub struct Runtime {
    pub cri: cri::Client,
    /// Capabilities of the runtime, once it has reported them.
    pub capabilities: watch::Receiver<Option<Arc<Capabilities>>>,
    pub images: Images,
    pub probes: Probes,
    pub volumes: Volumes,
    /// `None` if pods have no cgroups.
    pub cgroups: Option<PodCgroups>,
    /// `podPidsLimit`.
    pub pids_limit: Option<u64>,
    /// Directory of the links to containers' logs; `/var/log/containers` on Linux.
    pub log_links: Option<PathBuf>,
    /// Limits how many pods start containers at a time, in the order of arrival.
    pub starts: Arc<Semaphore>,
    pub metrics: SyncMetrics,
}

/// The error of an operation on a pod's cgroups.
pub type PodCgroupError = BlockingError<CgroupError>;

/// The error of removing a pod's files.
#[derive(Debug, Error)]
pub enum RemoveFilesError {
    #[error("{path}: {cause}")]
    Logs { path: String, cause: std::io::Error },
    #[error(transparent)]
    Volumes(#[from] VolumeError),
}

/// The reason why the mounts of a container could not be prepared.
#[derive(Debug, Error)]
pub enum MountPathError {
    #[error("{path}: {cause}")]
    HostsFile { path: &'static str, cause: std::io::Error },
    #[error(transparent)]
    Hostname(#[from] LowerError),
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

impl Runtime {
    /// Returns an error if the runtime would silently ignore part of a sandbox configuration.
    pub fn check_sandbox(&self, config: &v1::PodSandboxConfig) -> Result<(), HostProcessError> {
        let capabilities = self.capabilities.borrow();
        let runtime =
            capabilities.as_ref().map(|found| (&*found.runtime_name, &*found.runtime_version));
        lower::sandbox::check_runtime(config, runtime)
    }

    /// Returns the form of QoS-class resources that the runtime supports.
    #[must_use]
    pub fn classes(&self) -> ClassSupport {
        let capabilities = self.capabilities.borrow();
        capabilities.as_ref().map(|found| found.classes.clone()).unwrap_or_default()
    }

    /// Returns the name of the runtime, or an empty name until it is known.
    #[must_use]
    pub fn name(&self) -> String {
        let capabilities = self.capabilities.borrow();
        capabilities.as_ref().map(|found| found.runtime_name.clone()).unwrap_or_default()
    }

    #[must_use]
    pub fn recursive_read_only(&self) -> bool {
        let capabilities = self.capabilities.borrow();
        let handlers =
            capabilities.as_ref().map(|found| found.handlers.clone()).unwrap_or_default();
        handlers.iter().any(|handler| handler.name.is_empty() && handler.recursive_read_only_mounts)
    }

    /// Creates the cgroups of a pod with its limits.
    pub async fn ensure_cgroups(
        &self,
        pod: &Pod,
        source: &PodSource,
        node_env: Arc<NodeEnvironment>,
        affinities: BTreeMap<String, ContainerAffinity>,
    ) -> Result<(), PodCgroupError> {
        let Some(cgroups) = self.cgroups.clone() else { return Ok(()) };
        let (pod, source, pids) = (pod.clone(), source.clone(), self.pids_limit);
        self.timed(CgroupOperation::Create, move || {
            let input = PodInput::new(&pod, &node_env, &source, &affinities);
            cgroups.ensure_pod(&input, pids)
        })
        .await
    }

    /// Changes the limits of the pod's cgroup.
    pub async fn limit_pod(
        &self,
        pod: &Pod,
        limits: host::cgroups::Limits,
    ) -> Result<(), PodCgroupError> {
        let Some(cgroups) = self.cgroups.clone() else { return Ok(()) };
        let pod = pod.clone();
        self.timed(CgroupOperation::Update, move || cgroups.limit_pod(&pod, &limits)).await
    }

    pub async fn remove_cgroups(&self, uid: &str) -> Result<(), PodCgroupError> {
        let Some(cgroups) = self.cgroups.clone() else { return Ok(()) };
        let uid = uid.to_owned();
        self.timed(CgroupOperation::Destroy, move || cgroups.remove_pod(&uid)).await
    }

    /// Runs a cgroup operation and records its duration.
    async fn timed(
        &self,
        operation: CgroupOperation,
        work: impl FnOnce() -> Result<(), CgroupError> + Send + 'static,
    ) -> Result<(), PodCgroupError> {
        let metrics = self.metrics.clone();
        blocking::run(move || {
            let begun = Instant::now();
            let done = work();
            metrics.cgroup(operation, begun.elapsed());
            done
        })
        .await
    }

    /// Returns the memory usage of the pod in bytes, if it can be read.
    pub async fn memory_usage(&self, pod: &Pod) -> Option<u64> {
        let cgroups = self.cgroups.clone()?;
        let path = cgroups.path(pod);
        blocking::run(move || cgroups.host().memory_usage(&path)).await.ok().flatten()
    }

    /// Mounts or updates the pod's volumes. Returns the errors of all that failed.
    pub async fn mount_volumes(
        &self,
        pod: &Pod,
        contents: Contents,
    ) -> Result<MountedVolumes, Vec<VolumeError>> {
        let (volumes, pod) = (self.volumes.clone(), pod.clone());
        match blocking::run(move || volumes.set_up(&pod, &contents)).await {
            Ok(mounted) => Ok(mounted),
            Err(BlockingError::Failed(failures)) => Err(failures),
            Err(BlockingError::Lost(error)) => Err(vec![VolumeError::Io {
                step: "set up",
                path: "volumes".to_owned(),
                why: error.to_string(),
            }]),
        }
    }

    pub async fn unmount_volumes(&self, uid: &str) -> Result<(), BlockingError<VolumeError>> {
        let (volumes, uid) = (self.volumes.clone(), uid.to_owned());
        blocking::run(move || volumes.tear_down(&uid)).await
    }

    /// Removes the pod's directories and logs.
    pub async fn remove_files(
        &self,
        node_env: &NodeEnvironment,
        metadata: &Metadata,
    ) -> Result<(), BlockingError<RemoveFilesError>> {
        let (volumes, metadata) = (self.volumes.clone(), metadata.clone());
        let logs = lower::sandbox::log_directory_of(node_env, &metadata);
        let links = self.log_links.clone();
        blocking::run(move || {
            if let Some(links) = &links {
                remove_links(links, &format!("{}_{}_", metadata.name, metadata.namespace), &logs);
            }
            match std::fs::remove_dir_all(&logs) {
                Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
                    return Err(RemoveFilesError::Logs { path: logs, cause });
                }
                _ => {}
            }
            Ok(volumes.remove(&metadata.uid)?)
        })
        .await
    }

    /// Writes the hosts file and makes the paths that the container mounts from volumes.
    pub fn make_mount_paths(
        &self,
        input: &PodInput<'_>,
        container: &Container,
        mounted: Option<&MountedVolumes>,
        environment: &Environment,
        pod_ips: &[String],
    ) -> Result<MountedVolumes, MountPathError> {
        let pod = input.pod;
        let aliases = &pod.spec.host_aliases;
        let hosts = if pod.spec.host_network {
            let path = lower::mounts::hosts_file(input.node_env.os);
            let text = std::fs::read_to_string(path);
            let text = text.map_err(|cause| MountPathError::HostsFile { path, cause })?;
            volumes::hosts::of_host(&text, aliases)
        } else {
            let name = lower::hostname::name(pod, &input.node_env.dns.cluster_domain)?;
            volumes::hosts::of_pod(pod_ips, &name, aliases)
        };
        self.volumes.write_hosts_file(&pod.metadata.uid, &hosts)?;
        let mut mounted = mounted.cloned().unwrap_or_default();
        mounted.sub_paths = self.volumes.sub_paths(pod, container, &mounted, environment)?;
        Ok(mounted)
    }

    /// Links the log of a container where log collectors expect it.
    pub fn link_log(&self, pod: &Pod, container: &str, log: &Path, id: &str) {
        let Some(directory) = &self.log_links else { return };
        let metadata = &pod.metadata;
        let name = format!("{}_{}_{container}-{id}.log", metadata.name, metadata.namespace);
        // Only log collectors miss it.
        let _ = host::os::owners::link(log, &directory.join(name), false);
    }
}

/// Removes the links of a pod that point into its log directory.
fn remove_links(links: &Path, start: &str, logs: &str) {
    for entry in std::fs::read_dir(links).into_iter().flatten().flatten() {
        let named = entry.file_name().to_str().is_some_and(|name| name.starts_with(start));
        let leads = std::fs::read_link(entry.path()).is_ok_and(|to| to.starts_with(logs));
        if named && leads {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
