//! The state and connections that pod workers share: [`AgentContext`] with the runtime, the API, the machine
//! and the ledger.
//!
//! Decides nothing about pods.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use client::Client;
use cri::{Capabilities, ClassSupport, v1};
use placement::demand::PodUid;
use tokio::sync::{Semaphore, mpsc, watch};

use crate::cpusets::reconcile::ReconcileHistory;
use crate::cpusets::tracker::{CpusetTracker, RebalanceError, TrackedContainer};
use crate::ledger::allocations::Allocations;
use crate::ledger::file::{LedgerError, LedgerFile};
use crate::observability::metrics::{AgentMetrics, CgroupOperation, SyncMetrics};
use crate::observability::recorder::Recorder;
use crate::pods::dependencies::PodDependencies;
use crate::pods::static_pods::mirror::Mirrors;
use crate::runtime::cgroups::PodCgroups;
use crate::runtime::images::Images;
use crate::runtime::lower::env::Environment;
use crate::runtime::lower::{
    self, ContainerAffinity, MountedVolumes, NodeEnvironment, PodInput, PodSource,
};
use crate::runtime::probes::Probes;
use crate::spec::demand::placement_demand;
use crate::spec::{Container, Pod, Volume};
use crate::status::pod_cache::PodCache;
use crate::status::writer::Subject;
use crate::status::{self, PodStatus, StatusInputs};
use crate::supervisor::RestartBackoff;
use crate::volumes::{self, VolumeError, Volumes};
use client::clock::Clock;

/// Shared by all workers.
#[derive(Debug)]
pub struct AgentContext {
    pub api: Client,
    pub runtime: cri::Client,
    pub recorder: Recorder,
    pub clock: Arc<dyn Clock>,
    pub images: Images,
    pub dependencies: PodDependencies,
    pub probes: Probes,
    pub cpuset_tracker: CpusetTracker,
    /// Results of earlier cpuset checks.
    pub reconcile_history: tokio::sync::Mutex<ReconcileHistory>,
    /// Limits how many pods start containers at a time, in the order of arrival.
    pub starts: Arc<Semaphore>,
    pub ledger: Mutex<LedgerFile>,
    /// Allocated resources of pods that can be resized.
    pub allocations: Mutex<Allocations>,
    /// Gate `InPlacePodVerticalScalingExclusiveCPUs`.
    pub change_static_cpus: bool,
    /// Incremented with every commit and release of the ledger.
    pub ledger_changed: watch::Sender<u64>,
    pub node_env: RwLock<Arc<NodeEnvironment>>,
    /// Capabilities of the runtime, once it has reported them.
    pub capabilities: watch::Receiver<Option<Arc<Capabilities>>>,
    pub volumes: Volumes,
    /// `None` if pods have no cgroups.
    pub cgroups: Option<PodCgroups>,
    /// `podPidsLimit`.
    pub pids_limit: Option<u64>,
    /// Directory of the links to containers' logs; `/var/log/containers` on Linux.
    pub log_links: Option<PathBuf>,
    /// Pods with their newest status, for the agent's server.
    pub pod_cache: PodCache,
    pub metrics: AgentMetrics,
    /// The pods that hold resources of the node.
    pub active: watch::Sender<Arc<Vec<Arc<Pod>>>>,
    /// UIDs of the agent's pods; `None` until the initial list is complete.
    pub known_pods: watch::Sender<Option<Arc<BTreeSet<String>>>>,
    /// Wanted and existing mirror pods of static pods.
    pub mirrors: watch::Sender<Arc<Mirrors>>,
    /// Reports of workers to the agent.
    pub reports: mpsc::UnboundedSender<WorkerReport>,
}

/// A report of a worker to the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerReport {
    /// The pod with this UID has released its resources.
    ResourcesReleased(String),
    /// The pod is gone.
    Removed(String),
    /// The worker of the pod with this UID panicked, and its back-off is over.
    Panicked(String, RestartBackoff),
}

impl AgentContext {
    #[must_use]
    pub fn node_env(&self) -> Arc<NodeEnvironment> {
        Arc::clone(&self.node_env.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn ledger(&self) -> MutexGuard<'_, LedgerFile> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn allocations(&self) -> MutexGuard<'_, Allocations> {
        self.allocations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an error if the runtime would silently ignore part of a sandbox configuration.
    pub fn check_sandbox(&self, config: &v1::PodSandboxConfig) -> Result<(), String> {
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

    #[must_use]
    pub fn recursive_read_only(&self) -> bool {
        let capabilities = self.capabilities.borrow();
        let handlers =
            capabilities.as_ref().map(|found| found.handlers.clone()).unwrap_or_default();
        handlers.iter().any(|handler| handler.name.is_empty() && handler.recursive_read_only_mounts)
    }

    /// Returns the part of the inputs that all pods share.
    #[must_use]
    pub fn status_inputs(&self) -> StatusInputs {
        let runtime = self.capabilities.borrow().as_ref().map(|found| found.runtime_name.clone());
        StatusInputs {
            runtime: runtime.unwrap_or_default(),
            recursive_read_only: self.recursive_read_only(),
            host_ips: self.node_env().ips.clone(),
            ..StatusInputs::default()
        }
    }

    /// Returns the current allocations of the containers of a pod.
    #[must_use]
    pub fn affinities(&self, pod: &Pod) -> BTreeMap<String, ContainerAffinity> {
        self.ledger().affinities(pod)
    }

    /// Returns the current allocation of a tracked container.
    #[must_use]
    pub fn affinity(&self, entry: &TrackedContainer) -> ContainerAffinity {
        self.ledger().affinity(&PodUid::new(&entry.pod_uid), &entry.container)
    }

    /// Moves every container without exclusive CPUs off the CPUs that are exclusive now.
    pub async fn rebalance(&self) -> Result<usize, RebalanceError> {
        let place = |entry: &TrackedContainer| self.affinity(entry);
        let moved = self.cpuset_tracker.rebalance(&self.runtime, self.node_env().os, place).await?;
        self.metrics.moved.add(&[], u64::try_from(moved).unwrap_or(0));
        Ok(moved)
    }

    /// Publishes that the ledger changed.
    pub fn note_ledger_change(&self) {
        let (shared, exclusive, by_node) = {
            let ledger = self.ledger();
            let exclusive = ledger.contents().cpu.exclusive(None);
            let by_node: Vec<(String, usize)> = ledger
                .node()
                .topology
                .nodes()
                .iter()
                .map(|node| (node.id.0.to_string(), node.cpus.count_common(&exclusive)))
                .collect();
            (ledger.shared().len(), exclusive.len(), by_node)
        };
        for (node, count) in by_node {
            self.metrics.exclusive_cpus_by_node.set(&[&node], count as f64);
        }
        self.metrics.shared_pool.set(&[], (shared * 1000) as f64);
        self.metrics.exclusive_cpus.set(&[], exclusive as f64);
        self.ledger_changed.send_modify(|count| *count += 1);
    }

    /// Marks a container as about to start.
    pub fn starting(&self, pod: &Pod, container: &str) -> Result<(), LedgerError> {
        self.ledger().starting(&placement_demand(pod), container)
    }

    /// Releases the allocation of the pod.
    pub async fn release(&self, pod: &Pod) -> Result<(), String> {
        let uid = PodUid::new(&pod.metadata.uid);
        let released = self.ledger().release(&uid).map_err(|error| error.to_string())?;
        let _ = self.reports.send(WorkerReport::ResourcesReleased(pod.metadata.uid.clone()));
        if released {
            self.note_ledger_change();
            // Nothing depends on a larger shared pool. A container that could not be moved is found by
            // the next check.
            let _ = self.rebalance().await;
        }
        Ok(())
    }

    /// Returns the inputs of the pod's CRI requests.
    #[must_use]
    pub fn input<'a>(
        pod: &'a Pod,
        node_env: &'a NodeEnvironment,
        source: &'a PodSource,
        affinities: &'a BTreeMap<String, ContainerAffinity>,
    ) -> PodInput<'a> {
        PodInput { pod, node_env, source, affinities, user_namespace: None, volume_groups: &[] }
    }

    pub async fn make_cgroups(&self, pod: &Pod, source: &PodSource) -> Result<(), String> {
        let Some(cgroups) = self.cgroups.clone() else { return Ok(()) };
        let (pod, source, node_env) = (pod.clone(), source.clone(), self.node_env());
        let (affinities, pids) = (self.affinities(&pod), self.pids_limit);
        let work = self.metrics.sync.clone();
        blocking(move || {
            let input = AgentContext::input(&pod, &node_env, &source, &affinities);
            measured(&work, CgroupOperation::Create, || cgroups.ensure_pod(&input, pids))
        })
        .await
    }

    /// Changes the limits of the pod's cgroup.
    pub async fn limit_pod(&self, pod: &Pod, limits: host::cgroups::Limits) -> Result<(), String> {
        let Some(cgroups) = self.cgroups.clone() else { return Ok(()) };
        let (pod, work) = (pod.clone(), self.metrics.sync.clone());
        blocking(move || {
            measured(&work, CgroupOperation::Update, || cgroups.limit_pod(&pod, &limits))
        })
        .await
    }

    /// Returns the memory usage of the pod in bytes, if it can be read.
    pub async fn memory_usage(&self, pod: &Pod) -> Option<u64> {
        let cgroups = self.cgroups.clone()?;
        let path = cgroups.path(pod);
        let read = move || cgroups.host().memory_usage(&path).ok().flatten();
        tokio::task::spawn_blocking(read).await.ok().flatten()
    }

    /// Moves running containers of a pod to their allocation.
    pub async fn move_to(
        &self,
        pod: &Pod,
        affinities: &BTreeMap<String, ContainerAffinity>,
    ) -> Result<(), String> {
        let _still = self.cpuset_tracker.lock().await;
        for (id, entry) in self.cpuset_tracker.all() {
            if entry.pod_uid != pod.metadata.uid {
                continue;
            }
            let Some(to) = affinities.get(&entry.container).filter(|to| **to != entry.affinity)
            else {
                continue;
            };
            let moved = self
                .cpuset_tracker
                .set_cpuset(&self.runtime, self.node_env().os, id, to.clone())
                .await;
            moved.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    pub async fn remove_cgroups(&self, pod: &Pod) -> Result<(), String> {
        let Some(cgroups) = self.cgroups.clone() else { return Ok(()) };
        let (uid, work) = (pod.metadata.uid.clone(), self.metrics.sync.clone());
        blocking(move || measured(&work, CgroupOperation::Destroy, || cgroups.remove_pod(&uid)))
            .await
    }

    /// Returns true if the contents of the pod's volumes can change while it runs.
    #[must_use]
    pub fn may_change(&self, pod: &Pod) -> bool {
        let references = volumes::references(pod);
        let is_files = |volume: &Volume| {
            volume.config_map.is_some()
                || volume.secret.is_some()
                || volume.projected.is_some()
                || volume.downward_api.is_some()
        };
        !references.tokens.is_empty() || pod.spec.volumes.iter().any(is_files)
    }

    /// Mounts or updates the pod's volumes. Returns the errors of all that failed.
    pub async fn mount(
        &self,
        pod: &Pod,
        source: &PodSource,
    ) -> Result<MountedVolumes, Vec<VolumeError>> {
        let references = volumes::references(pod);
        let fetched = self.dependencies.fetch(pod, &references).await;
        let (configs, tokens, claims) = fetched.map_err(|error| {
            let why = error.to_string();
            vec![VolumeError::Io { step: "read", path: "the API".to_owned(), why }]
        })?;
        let contents = {
            let (node_env, affinities) = (self.node_env(), self.affinities(pod));
            let input = AgentContext::input(pod, &node_env, source, &affinities);
            let sources =
                volumes::VolumeInputs { configs: &configs, tokens: &tokens, claims: &claims };
            volumes::contents(&input, &sources)
        };
        let (volumes, pod) = (self.volumes.clone(), pod.clone());
        match tokio::task::spawn_blocking(move || volumes.set_up(&pod, &contents)).await {
            Ok(done) => done,
            Err(error) => Err(vec![VolumeError::Io {
                step: "set up",
                path: "volumes".to_owned(),
                why: error.to_string(),
            }]),
        }
    }

    pub async fn unmount(&self, pod: &Pod) -> Result<(), String> {
        let (volumes, uid) = (self.volumes.clone(), pod.metadata.uid.clone());
        blocking(move || volumes.tear_down(&uid)).await
    }

    /// Removes the pod's directories and logs.
    pub async fn remove_files(&self, pod: &Pod) -> Result<(), String> {
        let (volumes, metadata) = (self.volumes.clone(), pod.metadata.clone());
        let logs = lower::sandbox::log_directory_of(&self.node_env(), &metadata);
        let links = self.log_links.clone();
        blocking(move || {
            if let Some(links) = &links {
                remove_links(links, &format!("{}_{}_", metadata.name, metadata.namespace), &logs);
            }
            match std::fs::remove_dir_all(&logs) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(format!("{logs}: {error}"));
                }
                _ => {}
            }
            volumes.remove(&metadata.uid).map_err(|error| error.to_string())
        })
        .await
    }

    /// Returns the last reported addresses of a pod.
    #[must_use]
    pub fn reported_ip(&self, pod: &Pod) -> String {
        match PodStatus::read(&pod.status).pod_ip {
            ip if ip.is_empty() => self.node_env().ips.first().cloned().unwrap_or_default(),
            ip => ip,
        }
    }

    /// Returns the target of the pod's status: the pod itself, or the mirror of a static pod.
    #[must_use]
    pub fn subject(&self, pod: &Pod) -> Subject {
        let mirrors = status::is_static(pod).then(|| self.mirrors.subscribe());
        let metadata = pod.metadata.clone();
        let work = Some(self.metrics.sync.clone());
        Subject {
            namespace: metadata.namespace,
            name: metadata.name,
            uid: metadata.uid,
            mirrors,
            work,
        }
    }

    /// Writes the hosts file and makes the paths that the container mounts from volumes.
    pub fn mounts_of(
        &self,
        input: &PodInput<'_>,
        container: &Container,
        mounted: Option<&MountedVolumes>,
        environment: &Environment,
        pod_ips: &[String],
    ) -> Result<MountedVolumes, String> {
        let pod = input.pod;
        let aliases = &pod.spec.host_aliases;
        let hosts = if pod.spec.host_network {
            let path = lower::mounts::hosts_file(input.node_env.os);
            let text = std::fs::read_to_string(path);
            let text = text.map_err(|error| format!("{path}: {error}"))?;
            volumes::hosts::of_host(&text, aliases)
        } else {
            let name = lower::hostname::name(pod, &input.node_env.dns.cluster_domain);
            let name = name.map_err(|error| error.to_string())?;
            volumes::hosts::of_pod(pod_ips, &name, aliases)
        };
        let written = self.volumes.write_hosts_file(&pod.metadata.uid, &hosts);
        written.map_err(|error| error.to_string())?;
        let mut mounted = mounted.cloned().unwrap_or_default();
        let made = self.volumes.sub_paths(pod, container, &mounted, environment);
        mounted.sub_paths = made.map_err(|error| error.to_string())?;
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

/// Runs a cgroup operation and records its duration.
fn measured<T>(work: &SyncMetrics, about: CgroupOperation, what: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = what();
    work.cgroup(about, begun.elapsed());
    done
}

/// Runs a blocking function on a thread for it.
async fn blocking<E: ToString + Send + 'static>(
    work: impl FnOnce() -> Result<(), E> + Send + 'static,
) -> Result<(), String> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}
