//! What pod workers work with: [`Hands`], the runtime, the API, the machine and the node's book.
//!
//! Every effect a worker has goes through here. Decides nothing about pods.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use client::Client;
use cri::{Capabilities, ClassSupport, v1};
use placement::demand::PodUid;
use tokio::sync::{Semaphore, mpsc, watch};

use crate::clock::Clock;
use crate::cpusets::reconcile::History;
use crate::cpusets::tracker::{Entry, NotMoved, Pool};
use crate::ledger::allocations::Allocations;
use crate::ledger::file::{Book, BookError};
use crate::observability::metrics::{CgroupWork, Counters, Work};
use crate::observability::recorder::Recorder;
use crate::pods::dependencies::Sources;
use crate::pods::static_pods::mirror::Mirrors;
use crate::runtime::cgroups::PodCgroups;
use crate::runtime::images::Images;
use crate::runtime::lower::env::Environment;
use crate::runtime::lower::{self, Mounted, NodeFacts, Placed, PodInput, Source};
use crate::runtime::probes::Probes;
use crate::spec::demand::placement_demand;
use crate::spec::{Container, Pod, Volume};
use crate::status::pod_cache::Board;
use crate::status::writer::Subject;
use crate::status::{self, Known, PodStatus};
use crate::volumes::{self, VolumeError, Volumes};

/// Shared by all workers.
#[derive(Debug)]
pub struct Hands {
    pub api: Client,
    pub runtime: cri::Client,
    pub recorder: Recorder,
    pub clock: Arc<dyn Clock>,
    pub images: Images,
    pub sources: Sources,
    pub probes: Probes,
    pub pool: Pool,
    /// What earlier truth checks found.
    pub truth: tokio::sync::Mutex<History>,
    /// How many pods start containers at a time, first come first served.
    pub starts: Arc<Semaphore>,
    pub book: Mutex<Book>,
    /// What pods were given of what can change while they run.
    pub allocations: Mutex<Allocations>,
    /// Gate `InPlacePodVerticalScalingExclusiveCPUs`.
    pub change_static_cpus: bool,
    /// Grows with everything the book hands out or takes back.
    pub booked: watch::Sender<u64>,
    pub facts: RwLock<Arc<NodeFacts>>,
    /// What the runtime can do, as far as it has said.
    pub capabilities: watch::Receiver<Option<Arc<Capabilities>>>,
    pub volumes: Volumes,
    /// `None` where pods have no cgroups.
    pub cgroups: Option<PodCgroups>,
    /// `podPidsLimit`.
    pub pids_limit: Option<u64>,
    /// Where links to containers' logs are; `/var/log/containers` on Linux.
    pub log_links: Option<PathBuf>,
    /// What is shown to whoever asks the agent.
    pub board: Board,
    pub counters: Counters,
    /// The pods that have something of the node.
    pub active: watch::Sender<Arc<Vec<Arc<Pod>>>>,
    /// The pods the agent has, by uid; `None` until all of them have been told of.
    pub known_pods: watch::Sender<Option<Arc<BTreeSet<String>>>>,
    /// What the API is to show of static pods, and what it shows.
    pub mirrors: watch::Sender<Arc<Mirrors>>,
    /// What becomes of pods.
    pub reports: mpsc::UnboundedSender<Report>,
}

/// What a worker has to say to the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// The pod, by uid, has given back what it had.
    Settled(String),
    /// Nothing is left of it.
    Over(String),
}

impl Hands {
    #[must_use]
    pub fn facts(&self) -> Arc<NodeFacts> {
        Arc::clone(&self.facts.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn allocations(&self) -> MutexGuard<'_, Allocations> {
        self.allocations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the runtime makes of a sandbox what it is asked for; why not, if it would make something
    /// else of it without a word.
    pub fn check_sandbox(&self, config: &v1::PodSandboxConfig) -> Result<(), String> {
        let capabilities = self.capabilities.borrow();
        let runtime = capabilities.as_ref().map(|of| (&*of.runtime_name, &*of.runtime_version));
        lower::sandbox::check_runtime(config, runtime)
    }

    /// Which form of QoS-class resources the runtime understands.
    #[must_use]
    pub fn classes(&self) -> ClassSupport {
        let capabilities = self.capabilities.borrow();
        capabilities.as_ref().map(|of| of.classes.clone()).unwrap_or_default()
    }

    #[must_use]
    pub fn recursive_read_only(&self) -> bool {
        let capabilities = self.capabilities.borrow();
        let handlers = capabilities.as_ref().map(|of| of.handlers.clone()).unwrap_or_default();
        handlers.iter().any(|of| of.name.is_empty() && of.recursive_read_only_mounts)
    }

    /// What is the same in the statuses of all pods.
    #[must_use]
    pub fn known(&self) -> Known {
        let runtime = self.capabilities.borrow().as_ref().map(|of| of.runtime_name.clone());
        Known {
            runtime: runtime.unwrap_or_default(),
            recursive_read_only: self.recursive_read_only(),
            host_ips: self.facts().ips.clone(),
            ..Known::default()
        }
    }

    /// Where the containers of a pod are to be now.
    #[must_use]
    pub fn placed(&self, pod: &Pod) -> BTreeMap<String, Placed> {
        self.book().placed(pod)
    }

    /// Where a container of the pool is to be now.
    #[must_use]
    pub fn place(&self, entry: &Entry) -> Placed {
        self.book().place(&PodUid::new(&entry.pod_uid), &entry.container)
    }

    /// Every container without CPUs of its own leaves those that are somebody's by now.
    pub async fn follow_pool(&self) -> Result<usize, NotMoved> {
        let place = |entry: &Entry| self.place(entry);
        let moved = self.pool.follow(&self.runtime, self.facts().os, place).await?;
        self.counters.moved.add(&[], u64::try_from(moved).unwrap_or(0));
        Ok(moved)
    }

    /// Something was handed out or taken back.
    pub fn note_booked(&self) {
        let (shared, exclusive, by_node) = {
            let book = self.book();
            let exclusive = book.ledger().cpu.exclusive(None);
            let by_node: Vec<(String, usize)> = book
                .node()
                .topology
                .nodes()
                .iter()
                .map(|node| (node.id.0.to_string(), node.cpus.count_common(&exclusive)))
                .collect();
            (book.shared().len(), exclusive.len(), by_node)
        };
        for (node, count) in by_node {
            self.counters.exclusive_cpus_by_node.set(&[&node], count as f64);
        }
        self.counters.shared_pool.set(&[], (shared * 1000) as f64);
        self.counters.exclusive_cpus.set(&[], exclusive as f64);
        self.booked.send_modify(|count| *count += 1);
    }

    /// A container is about to start.
    pub fn starting(&self, pod: &Pod, container: &str) -> Result<(), BookError> {
        self.book().starting(&placement_demand(pod), container)
    }

    /// The pod's place is free again.
    pub async fn release(&self, pod: &Pod) -> Result<(), String> {
        let uid = PodUid::new(&pod.metadata.uid);
        let released = self.book().release(&uid).map_err(|error| error.to_string())?;
        let _ = self.reports.send(Report::Settled(pod.metadata.uid.clone()));
        if released {
            self.note_booked();
            // Nothing depends on a larger pool; who could not be moved is found by the next check.
            let _ = self.follow_pool().await;
        }
        Ok(())
    }

    /// What requests are made from.
    #[must_use]
    pub fn input<'a>(
        pod: &'a Pod,
        facts: &'a NodeFacts,
        source: &'a Source,
        placed: &'a BTreeMap<String, Placed>,
    ) -> PodInput<'a> {
        PodInput { pod, facts, source, placed, user_namespace: None, volume_groups: &[] }
    }

    pub async fn make_cgroups(&self, pod: &Pod, source: &Source) -> Result<(), String> {
        let Some(cgroups) = self.cgroups.clone() else { return Ok(()) };
        let (pod, source, facts) = (pod.clone(), source.clone(), self.facts());
        let (placed, pids) = (self.placed(&pod), self.pids_limit);
        let work = self.counters.work.clone();
        blocking(move || {
            let input = Hands::input(&pod, &facts, &source, &placed);
            measured(&work, CgroupWork::Create, || cgroups.ensure_pod(&input, pids))
        })
        .await
    }

    /// Gives the pod's cgroup other limits.
    pub async fn limit_pod(&self, pod: &Pod, limits: host::cgroups::Limits) -> Result<(), String> {
        let Some(cgroups) = self.cgroups.clone() else { return Ok(()) };
        let (pod, work) = (pod.clone(), self.counters.work.clone());
        blocking(move || measured(&work, CgroupWork::Update, || cgroups.limit_pod(&pod, &limits)))
            .await
    }

    /// Bytes that all of the pod uses, where that can be known.
    pub async fn memory_usage(&self, pod: &Pod) -> Option<u64> {
        let cgroups = self.cgroups.clone()?;
        let path = cgroups.path(pod);
        let read = move || cgroups.host().memory_usage(&path).ok().flatten();
        tokio::task::spawn_blocking(read).await.ok().flatten()
    }

    /// Tells containers of a pod that run elsewhere to be where they are placed.
    pub async fn move_to(
        &self,
        pod: &Pod,
        placed: &BTreeMap<String, Placed>,
    ) -> Result<(), String> {
        let _still = self.pool.stand_still().await;
        for (id, entry) in self.pool.all() {
            if entry.pod_uid != pod.metadata.uid {
                continue;
            }
            let Some(to) = placed.get(&entry.container).filter(|to| **to != entry.placed) else {
                continue;
            };
            let moved = self.pool.put(&self.runtime, self.facts().os, id, to.clone()).await;
            moved.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    pub async fn remove_cgroups(&self, pod: &Pod) -> Result<(), String> {
        let Some(cgroups) = self.cgroups.clone() else { return Ok(()) };
        let (uid, work) = (pod.metadata.uid.clone(), self.counters.work.clone());
        blocking(move || measured(&work, CgroupWork::Destroy, || cgroups.remove_pod(&uid))).await
    }

    /// Whether what the pod's volumes hold can change while it runs.
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

    /// Makes the pod's volumes what they are to be; else which cannot be, and why.
    pub async fn mount(&self, pod: &Pod, source: &Source) -> Result<Mounted, Vec<VolumeError>> {
        let references = volumes::references(pod);
        let fetched = self.sources.fetch(pod, &references).await;
        let (configs, tokens, claims) = fetched.map_err(|error| {
            let why = error.to_string();
            vec![VolumeError::Io { step: "read", path: "the API".to_owned(), why }]
        })?;
        let contents = {
            let (facts, placed) = (self.facts(), self.placed(pod));
            let input = Hands::input(pod, &facts, source, &placed);
            let sources = volumes::Sources { configs: &configs, tokens: &tokens, claims: &claims };
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

    /// Removes the pod's directories, its logs included.
    pub async fn remove_files(&self, pod: &Pod) -> Result<(), String> {
        let (volumes, of) = (self.volumes.clone(), pod.metadata.clone());
        let logs = lower::sandbox::log_directory_of(&self.facts(), &of);
        let links = self.log_links.clone();
        blocking(move || {
            if let Some(links) = &links {
                remove_links(links, &format!("{}_{}_", of.name, of.namespace), &logs);
            }
            match std::fs::remove_dir_all(&logs) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(format!("{logs}: {error}"));
                }
                _ => {}
            }
            volumes.remove(&of.uid).map_err(|error| error.to_string())
        })
        .await
    }

    /// Addresses of a pod as they were last told.
    #[must_use]
    pub fn ip_told(&self, pod: &Pod) -> String {
        match PodStatus::read(&pod.status).pod_ip {
            ip if ip.is_empty() => self.facts().ips.first().cloned().unwrap_or_default(),
            ip => ip,
        }
    }

    /// Whose status the pod's is: its own, or that of the mirror of a static pod.
    #[must_use]
    pub fn subject(&self, pod: &Pod) -> Subject {
        let mirrors = status::is_static(pod).then(|| self.mirrors.subscribe());
        let of = pod.metadata.clone();
        let work = Some(self.counters.work.clone());
        Subject { namespace: of.namespace, name: of.name, uid: of.uid, mirrors, work }
    }

    /// Writes the file of host names, and makes what the container mounts from within volumes.
    pub fn mounts_of(
        &self,
        input: &PodInput<'_>,
        container: &Container,
        mounted: Option<&Mounted>,
        environment: &Environment,
        pod_ips: &[String],
    ) -> Result<Mounted, String> {
        let pod = input.pod;
        let aliases = &pod.spec.host_aliases;
        let hosts = if pod.spec.host_network {
            let path = lower::mounts::hosts_file(input.facts.os);
            let text = std::fs::read_to_string(path);
            let text = text.map_err(|error| format!("{path}: {error}"))?;
            volumes::hosts::of_host(&text, aliases)
        } else {
            let name = lower::hostname::name(pod, &input.facts.dns.cluster_domain);
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

    /// Links the log of a container where collectors of logs look for it.
    pub fn link_log(&self, pod: &Pod, container: &str, log: &Path, id: &str) {
        let Some(directory) = &self.log_links else { return };
        let of = &pod.metadata;
        let name = format!("{}_{}_{container}-{id}.log", of.name, of.namespace);
        // Only collectors miss it.
        let _ = host::os::owners::link(log, &directory.join(name), false);
    }
}

/// Links of a pod that lead into its directory of logs.
fn remove_links(links: &Path, start: &str, logs: &str) {
    for entry in std::fs::read_dir(links).into_iter().flatten().flatten() {
        let named = entry.file_name().to_str().is_some_and(|name| name.starts_with(start));
        let leads = std::fs::read_link(entry.path()).is_ok_and(|to| to.starts_with(logs));
        if named && leads {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Does something with a cgroup, and counts how long it takes.
fn measured<T>(work: &Work, about: CgroupWork, what: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = what();
    work.cgroup(about, begun.elapsed());
    done
}

/// Runs what blocks where it may.
async fn blocking<E: ToString + Send + 'static>(
    work: impl FnOnce() -> Result<(), E> + Send + 'static,
) -> Result<(), String> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}
