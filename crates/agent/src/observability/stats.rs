//! Usage of the node and its pods: [`Stats`], for `/stats/summary`, `/metrics/resource` and
//! `/metrics/cadvisor`.
//!
//! ```text
//!   pod cache    ─┐
//!   runtime       ├──read──▶ Snapshot ──▶ summary, resource, cadvisor
//!   kernel, disk ─┘
//! ```
//!
//! Nothing is measured until it is requested. Unknown values are left out, never reported as zero. Eviction
//! measures for itself.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cri::v1;
use host::cgroups::Usage;
use host::file_kind::disk_usage;
use host::os::system;
use host::system::{FileSystem, Interface, Memory, ProcessIds};
use metrics::{Family, Kind, Sample, UnixMillis};
use objects::timestamp::Timestamp;
use serde_json::Value;

use crate::node_state::NodeState;
use crate::publications::Publications;
use crate::runtime::Runtime;
use crate::runtime::cgroups::PodCgroups;
use crate::runtime::lower::cgroup;
use crate::server::Document;
use client::clock::Clock;

mod cadvisor;
mod resource;
mod summary;

/// Minimum time between two samples of a rate.
const APART: Duration = Duration::from_millis(500);

/// The parts of the agent that are measured.
#[derive(Debug, Clone)]
pub struct Sources {
    pub runtime: Arc<Runtime>,
    pub state: Arc<NodeState>,
    pub publications: Arc<Publications>,
}

/// Measures on request.
#[derive(Debug)]
pub struct Stats {
    sources: Sources,
    clock: Arc<dyn Clock>,
    root: PathBuf,
    node: String,
    began: Timestamp,
    /// CPU time by consumer, for rates.
    rates: Mutex<BTreeMap<String, Rate>>,
}

#[derive(Debug, Clone, Copy)]
struct Rate {
    /// Nanoseconds since 1970.
    at: i64,
    used: u64,
    /// Nanoseconds of CPU time per second, after two samples.
    rate: Option<u64>,
}

/// Selects whether volumes and logs are walked, which is slow with many files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Disk {
    Measured,
    Left,
}

/// Usage at one time.
#[derive(Debug, Clone)]
struct Snapshot {
    at: Timestamp,
    node: NodeUsage,
    pods: Vec<PodUsage>,
    /// True if a source did not answer.
    failed: bool,
}

#[derive(Debug, Clone, Default)]
struct NodeUsage {
    name: String,
    booted: Option<Timestamp>,
    agent_began: Option<Timestamp>,
    cpu: Option<u64>,
    cpu_rate: Option<u64>,
    memory: Option<Memory>,
    root: Usage,
    /// All pods together, and the name of their cgroup.
    pods: Option<(String, Group)>,
    disk: Option<FileSystem>,
    /// By device number.
    disk_names: BTreeMap<(u32, u32), String>,
    images: Option<Images>,
    processes: Option<ProcessIds>,
    interfaces: Vec<Interface>,
    default_interface: Option<String>,
    machine: Machine,
}

#[derive(Debug, Clone, Default)]
struct Machine {
    cpus: i64,
    cores: usize,
    sockets: usize,
    machine_id: String,
    system_uuid: String,
    boot_id: String,
}

#[derive(Debug, Clone, Copy, Default)]
struct Images {
    disk: FileSystem,
    used: Option<u64>,
    inodes: Option<u64>,
}

/// Usage of a cgroup, and its rate.
#[derive(Debug, Clone, Default)]
struct Group {
    usage: Usage,
    cpu_rate: Option<u64>,
}

#[derive(Debug, Clone, Default)]
struct PodUsage {
    name: String,
    namespace: String,
    uid: String,
    started: Option<Timestamp>,
    /// Its cgroup, where it has one.
    path: String,
    group: Option<Group>,
    interfaces: Option<Vec<Interface>>,
    containers: Vec<ContainerUsage>,
    volumes: u64,
}

#[derive(Debug, Clone, Default)]
struct ContainerUsage {
    name: String,
    id: String,
    image: String,
    started: Option<Timestamp>,
    path: String,
    group: Group,
    /// Size of its writable layer.
    written: Option<(u64, Option<u64>)>,
    logs: Option<u64>,
    log_files: Option<u64>,
}

/// Creates a family of the samples whose value is known.
fn known<'a, L: AsRef<[(&'static str, &'a str)]>>(
    kind: Kind,
    name: impl Into<Cow<'static, str>>,
    help: impl Into<Cow<'static, str>>,
    at: Option<Timestamp>,
    samples: impl IntoIterator<Item = (L, Option<f64>)>,
) -> Family {
    let samples = samples.into_iter().filter_map(|(labels, value)| {
        let sample = Sample::new(labels.as_ref(), value?);
        Some(match at {
            Some(at) => sample.at(UnixMillis(at.unix_millis())),
            None => sample,
        })
    });
    Family::new(kind, name, help, samples)
}

impl Stats {
    #[must_use]
    pub fn new(sources: Sources, clock: Arc<dyn Clock>, root: PathBuf, node: String) -> Stats {
        let began = clock.now();
        Stats { sources, clock, root, node, began, rates: Mutex::default() }
    }

    /// Returns the time at which the agent was started.
    #[must_use]
    pub fn began(&self) -> Timestamp {
        self.began
    }

    /// Returns the document of a path.
    pub async fn document(&self, path: &str) -> Option<Document> {
        Some(match path {
            "/stats/summary" => {
                Document::Json(summary::render(&self.snapshot(Disk::Measured).await))
            }
            "/metrics/resource" => {
                Document::Metrics(resource::families(&self.snapshot(Disk::Left).await))
            }
            "/metrics/cadvisor" => {
                Document::Metrics(cadvisor::families(&self.snapshot(Disk::Left).await))
            }
            _ => return None,
        })
    }

    async fn snapshot(&self, disk: Disk) -> Snapshot {
        let runtime = &self.sources.runtime.cri;
        let (stats, images) = tokio::join!(
            runtime.call(v1::ListContainerStatsRequest::default()),
            runtime.call(v1::ImageFsInfoRequest::default()),
        );
        let failed = stats.is_err();
        let stats = stats.map(|answer| answer.stats).unwrap_or_default();
        let images = images.ok().and_then(|answer| answer.image_filesystems.into_iter().next());
        let (sources, root, at) = (self.sources.clone(), self.root.clone(), self.clock.now());
        let task = tokio::task::spawn_blocking(move || {
            blocking(&sources, at, &root, &stats, images, disk)
        });
        let mut snapshot = match task.await {
            Ok(snapshot) => Snapshot { failed: failed || snapshot.failed, ..snapshot },
            Err(_) => Snapshot {
                at: self.clock.now(),
                node: NodeUsage::default(),
                pods: Vec::new(),
                failed: true,
            },
        };
        snapshot.node.name.clone_from(&self.node);
        snapshot.node.agent_began = Some(self.began);
        self.rate(&mut snapshot);
        snapshot
    }

    /// Computes rates from this sample and the ones before it.
    fn rate(&self, snapshot: &mut Snapshot) {
        let now = snapshot.at.unix_nanos();
        let mut before = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        let mut after = BTreeMap::new();
        let mut rate = |what: String, used: Option<u64>| -> Option<u64> {
            let used = used?;
            let next = next_rate(before.get(&what).copied(), now, used);
            after.insert(what, next);
            next.rate
        };
        snapshot.node.cpu_rate = rate("node".to_owned(), snapshot.node.cpu);
        if let Some((path, group)) = &mut snapshot.node.pods {
            group.cpu_rate = rate(path.clone(), group.usage.cpu);
        }
        for pod in &mut snapshot.pods {
            if let Some(group) = &mut pod.group {
                group.cpu_rate = rate(pod.path.clone(), group.usage.cpu);
            }
            for container in &mut pod.containers {
                let group = &mut container.group;
                // Some runtimes report the rate themselves.
                let own = rate(container.id.clone(), group.usage.cpu);
                group.cpu_rate = group.cpu_rate.or(own);
            }
        }
        *before = after;
    }
}

fn next_rate(before: Option<Rate>, at: i64, used: u64) -> Rate {
    let Some(before) = before else { return Rate { at, used, rate: None } };
    let passed = u64::try_from(at.saturating_sub(before.at)).unwrap_or(0);
    if u128::from(passed) < APART.as_nanos() {
        return before;
    }
    let more = u128::from(used.saturating_sub(before.used)) * 1_000_000_000;
    let rate = u64::try_from(more / u128::from(passed)).unwrap_or(u64::MAX);
    Rate { at, used, rate: Some(rate) }
}

/// Reads everything from the kernel and the disk.
fn blocking(
    sources: &Sources,
    at: Timestamp,
    root: &Path,
    stats: &[v1::ContainerStats],
    images: Option<v1::FilesystemUsage>,
    disk: Disk,
) -> Snapshot {
    let node_env = sources.state.node_env();
    let cgroups = sources.runtime.cgroups.as_ref();
    let paths = cgroups.and_then(|cgroups| cgroups.pods().ok()).unwrap_or_default();
    let by_id: BTreeMap<&str, &v1::ContainerStats> = stats
        .iter()
        .filter_map(|stats| Some((stats.attributes.as_ref()?.id.as_str(), stats)))
        .collect();
    let mut pods = Vec::new();
    for pod in sources.publications.pod_cache.pods() {
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        let path = paths.get(uid).cloned().unwrap_or_default();
        let mut usage = pod_usage(&pod, path, cgroups, &by_id);
        if disk == Disk::Measured {
            usage.measure_disk(&root.join("pods").join(uid), Path::new(&node_env.log_dir));
        }
        pods.push(usage);
    }
    let group = |path: String| {
        let usage = cgroups?.host().usage(&path).ok().flatten()?;
        Some((path, Group { usage, cpu_rate: None }))
    };
    let identity = system::identity();
    let (cores, sockets) = {
        let ledger = sources.state.ledger();
        let topology = &ledger.node().topology;
        (topology.cores().len(), topology.sockets().len())
    };
    let booted = system::uptime().ok().map(|up| before(at, up));
    let node = NodeUsage {
        name: String::new(),
        booted,
        agent_began: None,
        cpu: system::busy().ok(),
        cpu_rate: None,
        memory: system::memory().ok(),
        root: cgroups.and_then(|of| of.host().usage("/").ok().flatten()).unwrap_or_default(),
        pods: group(cgroup::of_all_pods(&node_env.cgroups)),
        disk: system::file_system(root).ok(),
        disk_names: cgroups.map(|of| of.host().disks()).unwrap_or_default(),
        images: images.and_then(|images| of_images(&images)),
        processes: system::process_ids().ok().flatten(),
        interfaces: system::interfaces(None).unwrap_or_default(),
        default_interface: system::default_interface(),
        machine: Machine {
            cpus: node_env.cpu_count,
            cores,
            sockets,
            machine_id: identity.machine_id,
            system_uuid: identity.system_uuid,
            boot_id: identity.boot_id,
        },
    };
    Snapshot { at, node, pods, failed: false }
}

fn of_images(images: &v1::FilesystemUsage) -> Option<Images> {
    let place = &images.fs_id.as_ref()?.mountpoint;
    Some(Images {
        disk: system::file_system(Path::new(place)).ok()?,
        used: value(images.used_bytes.as_ref()),
        inodes: value(images.inodes_used.as_ref()),
    })
}

fn before(at: Timestamp, by: Duration) -> Timestamp {
    let nanos = i64::try_from(by.as_nanos()).unwrap_or(i64::MAX);
    of_nanos(at.unix_nanos().saturating_sub(nanos))
}

fn of_nanos(nanos: i64) -> Timestamp {
    let part = u32::try_from(nanos.rem_euclid(1_000_000_000)).unwrap_or(0);
    Timestamp::new(nanos.div_euclid(1_000_000_000), part)
}

fn value(of: Option<&v1::UInt64Value>) -> Option<u64> {
    of.map(|of| of.value)
}

impl PodUsage {
    /// Adds the sizes of volumes and logs on the node's own disk.
    fn measure_disk(&mut self, own: &Path, logs: &Path) {
        self.volumes = disk_usage(&own.join("volumes")).unwrap_or(0);
        let logs = logs.join(format!("{}_{}_{}", self.namespace, self.name, self.uid));
        for container in &mut self.containers {
            let log = logs.join(&container.name);
            container.logs = disk_usage(&log).ok();
            container.log_files = std::fs::read_dir(&log).ok().map(|files| files.count() as u64);
        }
    }
}

fn pod_usage(
    pod: &Value,
    path: String,
    cgroups: Option<&PodCgroups>,
    stats: &BTreeMap<&str, &v1::ContainerStats>,
) -> PodUsage {
    let text = |name: &str| pod["metadata"][name].as_str().unwrap_or_default().to_owned();
    let (name, namespace, uid) = (text("name"), text("namespace"), text("uid"));
    let usage = |path: &str| {
        let usage = cgroups?.host().usage(path).ok().flatten()?;
        Some(Group { usage, cpu_rate: None })
    };
    let below = match (cgroups, path.is_empty()) {
        (Some(cgroups), false) => cgroups.host().children(&path).unwrap_or_default(),
        _ => Default::default(),
    };
    let lists = ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"];
    let statuses = lists.iter().filter_map(|list| pod["status"][*list].as_array()).flatten();
    let running = statuses.filter(|status| status["state"]["running"].is_object());
    let container = |status: &Value| -> ContainerUsage {
        let of = status["containerID"].as_str().unwrap_or_default();
        let id = of.split_once("://").map_or(of, |(_, id)| id).to_owned();
        let reported = stats.get(id.as_str()).copied();
        // Under systemd the id is part of a unit name.
        let own = below.iter().find(|child| child.contains(&id)).filter(|_| !id.is_empty());
        let path = own.map(|child| format!("{path}/{child}")).unwrap_or_default();
        let found = if path.is_empty() { None } else { usage(&path) };
        let name = status["name"].as_str().unwrap_or_default().to_owned();
        let writable = reported.and_then(|reported| reported.writable_layer.as_ref());
        ContainerUsage {
            image: status["image"].as_str().unwrap_or_default().to_owned(),
            started: time(&status["state"]["running"]["startedAt"]),
            group: found.unwrap_or_else(|| reported.map(reported_group).unwrap_or_default()),
            written: writable.and_then(|layer| {
                Some((value(layer.used_bytes.as_ref())?, value(layer.inodes_used.as_ref())))
            }),
            logs: None,
            log_files: None,
            name,
            id,
            path,
        }
    };
    let containers = running.map(container).collect();
    let process = cgroups
        .filter(|_| !path.is_empty())
        .and_then(|cgroups| cgroups.host().processes(&path).ok()?.into_iter().next());
    PodUsage {
        started: time(&pod["status"]["startTime"]),
        group: if path.is_empty() { None } else { usage(&path) },
        interfaces: process.and_then(|process| system::interfaces(Some(process)).ok()),
        containers,
        volumes: 0,
        name,
        namespace,
        uid,
        path,
    }
}

/// Returns the statistics of the runtime, where the kernel is not read.
fn reported_group(stats: &v1::ContainerStats) -> Group {
    let (cpu, memory) = (stats.cpu.as_ref(), stats.memory.as_ref());
    let usage = Usage {
        cpu: cpu.and_then(|cpu| value(cpu.usage_core_nano_seconds.as_ref())),
        memory: memory.and_then(|memory| value(memory.usage_bytes.as_ref())),
        working_set: memory.and_then(|memory| value(memory.working_set_bytes.as_ref())),
        rss: memory.and_then(|memory| value(memory.rss_bytes.as_ref())),
        page_faults: memory.and_then(|memory| value(memory.page_faults.as_ref())),
        major_page_faults: memory.and_then(|memory| value(memory.major_page_faults.as_ref())),
        swap: stats.swap.as_ref().and_then(|swap| value(swap.swap_usage_bytes.as_ref())),
        ..Usage::default()
    };
    Group { usage, cpu_rate: cpu.and_then(|cpu| value(cpu.usage_nano_cores.as_ref())) }
}

fn time(text: &Value) -> Option<Timestamp> {
    Timestamp::parse(text.as_str()?).ok()
}

#[cfg(test)]
mod tests;
