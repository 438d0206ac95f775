//! The agent as a whole: [`Agent`], which assembles all parts and runs until it is stopped.
//!
//! ```text
//!   ledger ──▶ runtime ──▶ node object ──▶ pods of the API and of files ──▶ …
//! ```
//!
//! One task owns all pods ([`PodSet`]) and handles messages one after the other. Workers, relists, probes and the
//! node's own status are tasks of their own. When the agent stops, pods keep running.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use client::kind::PODS;
use client::{Change, Client, Reflector, Scope};
use cri::Capabilities;
use host::cgroups::CgroupError;
use host::detected::Detected;
use https::Listener;
use objects::kubelet_config::Enforcement;
use objects::{Gate, KubeletConfig};
use placement::Machine;
use placement::configured::{Configured, Finding};
use placement::demand::PodUid;
use placement::report::{NodeReport, ReportError};
use serde_json::Value;
use thiserror::Error;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::admission;
use crate::clock::{self, Clock, SystemClock};
use crate::context::{AgentContext, WorkerReport};
use crate::cpusets::reconcile;
use crate::cpusets::tracker::CpusetTracker;
use crate::ledger::allocations::{AllocationError, Allocations};
use crate::ledger::file::{LedgerError, LedgerFile};
use crate::node::environment::{self, Places};
use crate::node::{self, Description, Pressure, RuntimeHealth, SettingsError, Takeover};
use crate::observability::events::AgentEvent;
use crate::observability::metrics::{AgentMetrics, PodGauges};
use crate::observability::pod_resources;
use crate::observability::prometheus::Counter;
use crate::observability::recorder::{self, Recorder};
use crate::observability::stats::Stats;
use crate::pods::dependencies::PodDependencies;
use crate::pods::pod_set::{self, PodSet, PodWithManifest};
use crate::pods::static_pods::{self, mirror};
use crate::pods::worker::Termination;
use crate::reclaim::housekeeping;
use crate::runtime::cgroups::{self, PodCgroups};
use crate::runtime::images::Images;
use crate::runtime::logs::rotate::Policy;
use crate::runtime::lower::NodeEnvironment;
use crate::runtime::probes::{ProbeReport, Probes};
use crate::runtime::relist::{self, PodSummary};
use crate::server::{Access, Server};
use crate::spec::ResourceList;
use crate::status::pod_cache::PodCache;
use crate::volumes::Volumes;

mod log_rotation;
mod manifests;
mod node_sync;
mod qos_cgroups;
mod reclaim;
mod server_backend;

pub use log_rotation::RunningLog;
use server_backend::ServerBackend;

/// Interval between two relists of the runtime. Upstream's value.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time that the runtime has to answer before the node reports that it has none.
const FIRST_ANSWER: Duration = Duration::from_secs(2);
/// Number of pods that start containers at a time. More make all of them slower (measured with containerd
/// on two CPUs).
const STARTS: usize = 8;

/// Settings of the agent.
#[derive(Debug)]
pub struct Settings {
    pub config: KubeletConfig,
    /// The configuration as written, for `/configz`.
    pub configuration: Value,
    pub machine: Machine,
    /// Directory of the state files and of the pods' directories; `/var/lib/kubelet` with the kubelet.
    pub root: PathBuf,
    /// Directory of the containers' logs; `/var/log/pods` with the kubelet.
    pub logs: PathBuf,
    /// Directory of the links to containers' logs. No links are made without it.
    pub log_links: Option<PathBuf>,
    pub runtime: cri::Endpoint,
    pub api: Client,
    /// Address at which containers reach the API, if it is not the cluster address of the API's service.
    pub api_address: Option<SocketAddr>,
    /// Name, addresses and labels of the node.
    pub node: Description,
    /// Listener of the agent's server. Without it the agent has no server.
    pub listener: Option<Listener>,
}

/// The way the agent ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShutdownMode {
    /// Pods keep running, and the next agent adopts them.
    LeavePodsRunning,
    /// Pods are stopped, and the next agent starts them again.
    StopPods,
}

#[derive(Debug, Error)]
pub enum StartError {
    #[error("the configuration does not suit the machine: {}", listed(.0))]
    Configuration(Vec<Finding>),
    #[error("{}", listed(.0))]
    Settings(Vec<SettingsError>),
    #[error("{path}: {cause}")]
    Directory { path: String, cause: std::io::Error },
    #[error(transparent)]
    LedgerFile(#[from] LedgerError),
    #[error(transparent)]
    Allocations(#[from] AllocationError),
    #[error("invalid node report: {0}")]
    WorkerReport(#[from] ReportError),
}

fn listed<T: ToString>(findings: &[T]) -> String {
    findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// A message to the task that owns the pods.
enum AgentMessage {
    Pods(Change<PodWithManifest>),
    Looked(BTreeMap<String, PodSummary>),
    Probed(ProbeReport),
    Reported(WorkerReport),
    /// The static pods of all manifests.
    StaticPods(Vec<PodWithManifest>),
    /// The pod with this UID is to be evicted.
    Evict(String, Termination),
    /// A request for the logs that are being written.
    Logs(oneshot::Sender<Vec<RunningLog>>),
}

/// An agent that is ready to run.
#[derive(Debug)]
pub struct Agent {
    context: Arc<AgentContext>,
    node: Arc<RwLock<admission::Node>>,
    description: Description,
    root: PathBuf,
    report: watch::Sender<Arc<NodeReport>>,
    probes: mpsc::UnboundedReceiver<ProbeReport>,
    reports: mpsc::UnboundedReceiver<WorkerReport>,
    capabilities: watch::Sender<Option<Arc<Capabilities>>>,
    listener: Option<Listener>,
    configuration: Value,
    /// The resources of all pods together.
    amounts: ResourceList,
    check_every: Duration,
    /// True if the limits of all pods together are enforced.
    enforced: bool,
}

impl Agent {
    /// Reads the allocations of the last run and prepares everything that needs neither the API nor the
    /// runtime.
    pub fn prepare(settings: Settings) -> Result<Agent, StartError> {
        let Settings {
            config,
            configuration,
            machine,
            root,
            logs,
            log_links,
            runtime,
            api,
            api_address,
            node,
            listener,
        } = settings;
        let detected = serde_json::to_string(&Detected(&machine.topology)).unwrap_or_default();
        info!(topology = %detected, "{}", host::detected::MESSAGE);
        let configured = Configured::new(&machine, &config).map_err(StartError::Configuration)?;
        for warning in &configured.warnings {
            warn!(%warning, "configuration warning");
        }
        std::fs::create_dir_all(&root)
            .map_err(|cause| StartError::Directory { path: root.display().to_string(), cause })?;
        let milli_cpus = configured.allocatable.milli_cpus;
        let (book, found) = LedgerFile::open(&root, configured.node)?;
        for found in &found {
            warn!(%found, "state file was migrated");
        }
        let (allocations, unusable) = Allocations::open(&root)?;
        for unusable in &unusable {
            warn!(%unusable, "state file is unusable");
        }
        if let Some(links) = &log_links
            && let Err(error) = std::fs::create_dir_all(links)
        {
            warn!(%error, directory = %links.display(), "failed to create the directory for log links");
        }
        let report = NodeReport::new(&machine, &config, book.ledger().clone())?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let (recorder, queue) = Recorder::new(Arc::clone(&clock));
        tokio::spawn(recorder::deliver(queue, api.clone(), node.name.clone()));
        let metrics = AgentMetrics::new();
        metrics.node_name.set(&[&node.name], 1.0);
        metrics.gates(&config.feature_gates);
        let calls = metrics.calls.clone();
        let runtime = cri::Client::new(runtime)
            .observed(move |method, took, failed| calls.tell(method, took, failed));
        let (probe_reports, probes) = mpsc::unbounded_channel();
        let (worker_reports, reports) = mpsc::unbounded_channel();
        let (capabilities, can) = watch::channel(None);

        let kernel = host::cgroups::Cgroups::observe();
        if let Ok(kernel) = &kernel {
            let version = match kernel.version() {
                host::cgroups::Version::V1 => 1.0,
                host::cgroups::Version::V2 => 2.0,
            };
            metrics.cgroup_version.set(&[], version);
        }
        let places = Places { root: &root, logs: &logs };
        let facts = environment::gather(&config, &machine, &places, kernel.as_ref().ok(), &node);
        let amounts = qos_cgroups::of_pods(&machine, &config, milli_cpus);
        let cgroups = pod_cgroups(kernel, &amounts, &facts);
        let context = AgentContext {
            images: Images::new(runtime.clone(), Arc::clone(&clock), node.settings.parallel_pulls),
            sources: PodDependencies::start(api.clone(), Arc::clone(&clock), api_address),
            probes: Probes::counted(
                runtime.clone(),
                probe_reports,
                Counter::of_probes(&metrics.probes),
            ),
            pool: CpusetTracker::default(),
            truth: tokio::sync::Mutex::default(),
            starts: Arc::new(Semaphore::new(STARTS)),
            book: Mutex::new(book),
            allocations: Mutex::new(allocations),
            change_static_cpus: config
                .feature_gates
                .enabled(Gate::InPlacePodVerticalScalingExclusiveCpus),
            booked: watch::Sender::new(0),
            facts: RwLock::new(Arc::new(facts)),
            capabilities: can,
            volumes: Volumes::new(root.clone()),
            cgroups,
            pids_limit: config.pod_pids_limit,
            log_links,
            active: watch::Sender::default(),
            known_pods: watch::Sender::default(),
            mirrors: watch::Sender::default(),
            board: PodCache::counted(metrics.lives.clone()),
            metrics,
            reports: worker_reports,
            api,
            runtime,
            recorder,
            clock,
        };
        let enforced = context.cgroups.is_some()
            && config.enforce_node_allocatable.contains(&Enforcement::Pods);
        let seen = admission::Node {
            name: node.name.clone(),
            os: Some(machine.os),
            allowed_sysctls: node.settings.allowed_sysctls.clone(),
            ..admission::Node::default()
        };
        Ok(Agent {
            context: Arc::new(context),
            node: Arc::new(RwLock::new(seen)),
            description: node,
            root,
            report: watch::Sender::new(Arc::new(report)),
            probes,
            reports,
            capabilities,
            listener,
            configuration,
            amounts,
            check_every: config.cpu_manager_reconcile_period,
            enforced,
        })
    }

    #[must_use]
    pub fn context(&self) -> Arc<AgentContext> {
        Arc::clone(&self.context)
    }

    /// Runs until `stop` has a value.
    pub async fn run(self, mut stop: watch::Receiver<Option<ShutdownMode>>) {
        let Agent { context, node, description, root, report, probes, reports, .. } = self;
        let (capabilities, listener) = (self.capabilities, self.listener);
        let mut tasks = JoinSet::new();
        context.note_booked();
        context.recorder.node(&description.name, AgentEvent::Starting);
        if self.enforced {
            context.recorder.node(&description.name, AgentEvent::AllocatableEnforced);
        }
        tasks.spawn(qos_cgroups::keep(Arc::clone(&context), self.amounts));
        tasks.spawn(tell_of_resources(Arc::clone(&context), root.clone()));
        if let Some(listener) = listener {
            let stats = Stats::new(Arc::clone(&context), root.clone(), description.name.clone());
            let answers = ServerBackend::new(Arc::clone(&context), self.configuration, stats);
            let access = Access::reviewed(
                context.api.clone(),
                description.name.clone(),
                description.settings.access.clone(),
            );
            let server = Server::new(Arc::new(answers), context.runtime.clone())
                .open_to(access)
                .measured(&context.metrics.registry);
            let (end, ends) = watch::channel(false);
            let mut stop = stop.clone();
            tasks.spawn(server.serve(listener, ends));
            tasks.spawn(async move {
                let _ = stop.wait_for(Option::is_some).await;
                end.send_replace(true);
            });
        }
        let (health, healthy) = watch::channel(RuntimeHealth::Starting);
        tasks.spawn(node::runtime::watch(context.runtime.clone(), health));
        tasks.spawn(ask(context.runtime.clone(), healthy.clone(), capabilities));
        tasks.spawn(keep_report(Arc::clone(&context), report.clone()));
        let (pressure, pressed) = watch::channel(Pressure::default());
        tasks.spawn(reclaim::tell_admission(Arc::clone(&node), pressed.clone()));
        let (images, have) = watch::channel(Arc::default());
        tasks.spawn(node::images::watch(context.runtime.clone(), images));
        let (takeover, taken_over) = watch::channel(Takeover::Unknown);
        let sources = node::StatusInputs {
            runtime: healthy.clone(),
            pressure: pressed,
            images: have,
            devices: watch::channel(node::former_devices(&root)).1,
            report: report.subscribe(),
            problems: watch::channel(Vec::new()).1,
            takeover: taken_over.clone(),
            root: root.clone(),
        };
        let (object, seen) = watch::channel(None);
        let (tell, told) = mpsc::unbounded_channel();
        tasks.spawn(tell_of_node(context.recorder.clone(), description.name.clone(), told));
        let name = description.name.clone();
        let duties = LoopSettings {
            node: name.clone(),
            files: manifests::settings(&description),
            logs: (description.settings.logs, description.settings.logs_every),
            reclaim: reclaim::Settings::of(&description, root),
            pressure,
            takeover: takeover.clone(),
        };
        let mirrors = context.mirrors.subscribe();
        tasks.spawn(mirror::keep(context.api.clone(), name.clone(), seen.clone(), mirrors));
        let api = context.api.clone();
        tasks.spawn(async move {
            // A node that was only restarted does not become NotReady in between.
            let (mut health, mut takeover) = (sources.runtime.clone(), sources.takeover.clone());
            let answered = async {
                let _ = health.wait_for(|health| *health != RuntimeHealth::Starting).await;
                let _ = takeover.wait_for(|takeover| *takeover != Takeover::Unknown).await;
            };
            let _ = tokio::time::timeout(FIRST_ANSWER, answered).await;
            node::run(api, description, sources, object, tell).await;
        });
        let (object, runtime) = (seen.clone(), healthy.clone());
        tasks.spawn(node_sync::keep(Arc::clone(&context), Arc::clone(&node), object, runtime));

        // Nothing is decided before the running containers and the Node object are known.
        let ready = async {
            let first = first_look(&context.runtime).await;
            takeover.send_replace(match first.values().any(PodSummary::is_alive) {
                true => Takeover::UnderWay,
                false => Takeover::Done,
            });
            let _ = context.capabilities.clone().wait_for(Option::is_some).await;
            let _ = seen.clone().wait_for(Option::is_some).await;
            first
        };
        let first = tokio::select! {
            first = ready => first,
            _ = stop.wait_for(Option::is_some) => return,
        };
        node_sync::take(&context, &node, seen.borrow().as_deref(), &healthy.borrow());
        // Running containers are moved to their CPUs before anything else starts.
        let checking = async {
            take_up(&context, &first).await;
            reconcile::check(&context).await
        };
        let checked = tokio::select! {
            checked = checking => checked,
            _ = stop.wait_for(Option::is_some) => return,
        };
        info!(?checked, "adopted running containers");
        tasks.spawn(reconcile::keep(Arc::clone(&context), self.check_every));
        tasks.spawn(housekeeping::keep(Arc::clone(&context)));
        let pods = PodSet::new(Arc::clone(&context), node, first);
        let (pods, leave) = follow(&context, pods, duties, probes, reports, &mut tasks, stop).await;
        match leave {
            ShutdownMode::LeavePodsRunning => info!("agent stopped; pods keep running"),
            ShutdownMode::StopPods => {
                pods.halt().await;
                info!("agent and pods stopped");
            }
        }
    }
}

/// Settings of the loops around the pods.
#[derive(Debug)]
struct LoopSettings {
    /// The node's name.
    node: String,
    files: Option<static_pods::Settings>,
    /// Size limits of logs, and the interval of the checks.
    logs: (Policy, Duration),
    reclaim: reclaim::Settings,
    pressure: watch::Sender<Pressure>,
    takeover: watch::Sender<Takeover>,
}

/// Handles the messages about pods until the agent is stopped.
async fn follow(
    context: &Arc<AgentContext>,
    mut pods: PodSet,
    duties: LoopSettings,
    mut probes: mpsc::UnboundedReceiver<ProbeReport>,
    mut reports: mpsc::UnboundedReceiver<WorkerReport>,
    tasks: &mut JoinSet<()>,
    mut stop: watch::Receiver<Option<ShutdownMode>>,
) -> (PodSet, ShutdownMode) {
    let LoopSettings { node, files, logs, reclaim, pressure, takeover } = duties;
    let (happened, mut happenings) = mpsc::unbounded_channel();
    let scope = Scope { field_selector: format!("spec.nodeName={node}"), ..Scope::default() };
    let reflector = Reflector::new(context.api.clone(), PODS, scope, pod_set::read);
    let of_pods = happened.clone();
    tasks.spawn(reflector.run(move |change| of_pods.send(AgentMessage::Pods(change)).is_ok()));
    let now = context.metrics.now.clone();
    tasks.spawn(look_often(context.runtime.clone(), now, happened.clone()));
    match files {
        None => pods.take_files(Vec::new()),
        Some(files) => {
            tasks.spawn(manifests::follow(Arc::clone(context), files, happened.clone()));
        }
    }
    let (policy, every) = logs;
    tasks.spawn(log_rotation::keep(Arc::clone(context), policy, every, happened.clone()));
    tasks.spawn(reclaim::keep(Arc::clone(context), reclaim, pressure, happened));
    loop {
        if pods.is_complete() && *takeover.borrow() != Takeover::Done {
            // Running pods that were given CPUs just now are moved there before the node reports ready.
            if let Err(error) = context.follow_pool().await {
                warn!(%error, "a running container does not have its CPUs yet");
            }
            takeover.send_replace(Takeover::Done);
        }
        let happening = tokio::select! {
            Some(happening) = happenings.recv() => happening,
            Some(report) = probes.recv() => AgentMessage::Probed(report),
            Some(report) = reports.recv() => AgentMessage::Reported(report),
            leave = stop.wait_for(Option::is_some) => {
                // If the sender is gone, no pod is stopped.
                let leave = leave.ok().and_then(|leave| *leave).unwrap_or(ShutdownMode::LeavePodsRunning);
                return (pods, leave);
            }
        };
        match happening {
            AgentMessage::Pods(change) => pods.take_change(change),
            AgentMessage::Looked(summaries) => pods.take_look(summaries),
            AgentMessage::Probed(report) => pods.take_probe(report),
            AgentMessage::Reported(report) => pods.take_report(report),
            AgentMessage::StaticPods(wanted) => pods.take_files(wanted),
            AgentMessage::Evict(uid, ending) => pods.evict(&uid, ending),
            AgentMessage::Logs(answer) => {
                // The receiver may be gone.
                let _ = answer.send(pods.running_logs());
            }
        }
    }
}

/// Registers the running containers. If the ledger lost the CPUs of containers, the CPUs that are
/// exclusive to them in the kernel are committed first.
async fn take_up(context: &AgentContext, first: &BTreeMap<String, PodSummary>) {
    let place = |uid: &str, name: &str| context.book().place(&PodUid::new(uid), name);
    context.pool.take_up(first, place);
    if !context.book().lost_cpus() {
        return;
    }
    let in_use = reconcile::cpus_in_use(context).await;
    let recovered = context.book().recover(&in_use);
    match recovered {
        Ok(recovered) => {
            for (pod, containers) in &recovered {
                for (container, cpus) in containers {
                    info!(%pod, %container, %cpus, "recovered a container's CPUs from the runtime");
                }
            }
        }
        Err(error) => warn!(%error, "failed to recover the CPUs of running containers"),
    }
    context.note_booked();
    context.pool.take_up(first, place);
}

/// Makes the cgroups above all pods. If that fails, a warning is logged and pods run without limits of
/// their own.
fn pod_cgroups(
    kernel: Result<host::cgroups::Cgroups, CgroupError>,
    amounts: &ResourceList,
    facts: &NodeEnvironment,
) -> Option<PodCgroups> {
    let made = kernel.and_then(|kernel| {
        let cgroups = PodCgroups::new(kernel, facts.cgroups.clone());
        let all = cgroups::of_all_pods(facts, amounts, None);
        cgroups.ensure_classes(facts, &all, [])?;
        Ok(cgroups)
    });
    match made {
        Ok(cgroups) => Some(cgroups),
        Err(error) => {
            warn!(%error, "failed to create the cgroups of pods; pods run without limits of their own");
            None
        }
    }
}

/// Serves the Pod Resources API. A failure is not fatal: only monitoring depends on it.
async fn tell_of_resources(context: Arc<AgentContext>, root: PathBuf) {
    let os = context.facts().os;
    if let Err(error) = pod_resources::serve(context, os, &root).await {
        warn!(%error, "failed to serve the Pod Resources API");
    }
}

async fn tell_of_node(
    recorder: Recorder,
    name: String,
    mut told: mpsc::UnboundedReceiver<AgentEvent>,
) {
    while let Some(told) = told.recv().await {
        recorder.node(&name, told);
    }
}

async fn first_look(runtime: &cri::Client) -> BTreeMap<String, PodSummary> {
    let mut told = false;
    loop {
        match relist::relist(runtime).await {
            Ok(summaries) => return summaries,
            Err(error) if !told => {
                warn!(%error, "waiting for the container runtime");
                told = true;
            }
            Err(_) => {}
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn look_often(
    runtime: cri::Client,
    now: PodGauges,
    happened: mpsc::UnboundedSender<AgentMessage>,
) {
    let mut timer = tokio::time::interval(LOOK_EVERY);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last: Option<Instant> = None;
    loop {
        timer.tick().await;
        let began = Instant::now();
        // The node's conditions report that the runtime is unavailable.
        let Ok(summaries) = relist::relist(&runtime).await else { continue };
        let since = last.replace(began).map(|last| (began - last).as_secs_f64());
        let at = clock::nanos(SystemClock.now()) as f64 / 1e9;
        now.looked(&summaries, began.elapsed().as_secs_f64(), since, at);
        if happened.send(AgentMessage::Looked(summaries)).is_err() {
            return;
        }
    }
}

/// Reads the capabilities of the runtime, again whenever its name, version or status changes.
async fn ask(
    runtime: cri::Client,
    mut health: watch::Receiver<RuntimeHealth>,
    said: watch::Sender<Option<Arc<Capabilities>>>,
) {
    loop {
        let seen = matches!(*health.borrow_and_update(), RuntimeHealth::Seen(_));
        if seen && let Ok(found) = runtime.probe().await {
            said.send_replace(Some(Arc::new(found)));
        }
        if health.changed().await.is_err() {
            return;
        }
    }
}

/// Publishes the allocations for schedulers.
async fn keep_report(context: Arc<AgentContext>, report: watch::Sender<Arc<NodeReport>>) {
    let mut booked = context.booked.subscribe();
    loop {
        let ledger = context.book().ledger().clone();
        let mut next = NodeReport::clone(&report.borrow());
        match next.set_ledger(ledger) {
            Ok(()) => {
                report.send_replace(Arc::new(next));
            }
            Err(error) => warn!(%error, "failed to render the node report"),
        }
        if booked.changed().await.is_err() {
            return;
        }
    }
}
