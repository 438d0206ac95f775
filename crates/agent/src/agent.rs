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
use std::sync::{Arc, RwLock};
use std::time::Duration;

use client::events::write_events;
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
use tokio::time::Instant;
use tracing::{info, warn};

use crate::cpusets::reconcile::CpusetReconciler;
use crate::ledger::allocations::{AllocationError, Allocations};
use crate::ledger::file::{LedgerError, LedgerFile};
use crate::node::environment::{self, Places};
use crate::node::{self, Description, RuntimeHealth, SettingsError, Takeover};
use crate::node_state::NodeState;
use crate::observability::events::AgentEvent;
use crate::observability::metrics::{AgentMetrics, PodGauges, PodResourcesMetrics};
use crate::observability::pod_resources;
use crate::observability::recorder::{EVENT_WRITES, Recorder};
use crate::observability::stats::{self, Stats};
use crate::pods::dependencies::PodDependencies;
use crate::pods::pod_set::{self, PodSet, PodWithManifest};
use crate::pods::static_pods::{self, mirror};
use crate::pods::worker::{Termination, WorkerContext};
use crate::publications::{Publications, WorkerReport};
use crate::reclaim::housekeeping::Housekeeping;
use crate::runtime::Runtime;
use crate::runtime::cgroups::{self, PodCgroups};
use crate::runtime::images::Images;
use crate::runtime::logs::rotate::Policy;
use crate::runtime::lower::NodeEnvironment;
use crate::runtime::probes::{ProbeLoop, ProbeReport, Probes, result_counter};
use crate::runtime::relist::{self, PodSummary};
use crate::server::{Access, Server};
use crate::supervisor::{self, Supervisor, TaskError, millis};
use crate::volumes::Volumes;
use client::ErrorLog;
use client::clock::{Clock, SystemClock};
use lifecycle::admission;
use lifecycle::eviction::Pressure;
use lifecycle::spec::ResourceList;

mod log_rotation;
mod manifests;
mod node_sync;
mod qos_cgroups;
mod reclaim;
mod server_backend;

pub use log_rotation::RunningLog;
use server_backend::AgentBackend;

/// Interval between two relists of the runtime. Upstream's value.
const RELIST_PERIOD: Duration = Duration::from_secs(1);
/// Time that the runtime has to answer before the node reports that it has none.
const FIRST_ANSWER: Duration = Duration::from_secs(2);
/// The wait before the capabilities of the runtime are read again.
const CAPABILITIES_RETRY: Duration = Duration::from_secs(5);
/// The wait before the Pod Resources API is served again.
const SERVE_RETRY: Duration = Duration::from_secs(10);
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
    Relisted(BTreeMap<String, PodSummary>),
    Probed(ProbeReport),
    WorkerReported(WorkerReport),
    /// The static pods of all manifests.
    StaticPods(Vec<PodWithManifest>),
    /// The pod with this UID is to be evicted.
    Evict(String, Termination),
    /// A request for the logs that are being written.
    RunningLogs(oneshot::Sender<Vec<RunningLog>>),
}

/// The parts of an agent, to inspect it while it runs.
#[derive(Debug, Clone)]
pub struct AgentParts {
    pub runtime: Arc<Runtime>,
    pub state: Arc<NodeState>,
    pub publications: Arc<Publications>,
    pub metrics: Arc<AgentMetrics>,
    pub reconciler: Arc<CpusetReconciler>,
    pub housekeeping: Arc<Housekeeping>,
}

/// An agent that is ready to run.
#[derive(Debug)]
pub struct Agent {
    context: Arc<WorkerContext>,
    reconciler: Arc<CpusetReconciler>,
    housekeeping: Arc<Housekeeping>,
    node: Arc<RwLock<admission::Node>>,
    description: Description,
    root: PathBuf,
    report: watch::Sender<Arc<NodeReport>>,
    probe_loop: ProbeLoop,
    probed: mpsc::UnboundedReceiver<ProbeReport>,
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
        let (ledger, found) = LedgerFile::open(&root, configured.node)?;
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
        let report = NodeReport::new(&machine, &config, ledger.contents().clone())?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let (recorder, queue) = Recorder::new(Arc::clone(&clock), &node.name);
        // Events are written until all recorders are gone, also those of the agent's end.
        let client = api.clone();
        tokio::spawn(supervisor::restart_on_panic("event recorder", move || {
            write_events(queue.clone(), client.clone(), EVENT_WRITES)
        }));
        let metrics = Arc::new(AgentMetrics::new());
        metrics.node_name.set(&[&node.name], 1.0);
        metrics.gates(&config.feature_gates);
        let cri_metrics = metrics.cri.clone();
        let runtime = cri::Client::new(runtime)
            .observed(move |method, took, failed| cri_metrics.observe(method, took, failed));
        let (probe_reports, probed) = mpsc::unbounded_channel();
        let counter = result_counter(&metrics.probes);
        let (probes, probe_loop) = Probes::new(runtime.clone(), probe_reports, counter);
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
        let node_env = environment::gather(&config, &machine, &places, kernel.as_ref().ok(), &node);
        let amounts = qos_cgroups::of_pods(&machine, &config, milli_cpus);
        let cgroups = pod_cgroups(kernel, &amounts, &node_env);
        let runtime = Arc::new(Runtime {
            images: Images::new(runtime.clone(), Arc::clone(&clock), node.settings.parallel_pulls),
            cri: runtime,
            capabilities: can,
            probes,
            volumes: Volumes::new(root.clone()),
            cgroups,
            pids_limit: config.pod_pids_limit,
            log_links,
            starts: Arc::new(Semaphore::new(STARTS)),
            metrics: metrics.sync.clone(),
        });
        let change_static_cpus =
            config.feature_gates.enabled(Gate::InPlacePodVerticalScalingExclusiveCpus);
        let state =
            NodeState::new(ledger, allocations, node_env, change_static_cpus, Arc::clone(&metrics));
        let state = Arc::new(state);
        let (publications, reports) = Publications::new(metrics.pod_lifecycle.clone());
        let publications = Arc::new(publications);
        let reconciler = CpusetReconciler::new(
            Arc::clone(&runtime),
            Arc::clone(&state),
            Arc::clone(&publications),
            recorder.clone(),
            Arc::clone(&metrics),
        );
        let housekeeping = Housekeeping::new(
            Arc::clone(&runtime),
            Arc::clone(&state),
            Arc::clone(&publications),
            metrics.left_behind.clone(),
        );
        let dependencies = PodDependencies::new(api.clone(), Arc::clone(&clock), api_address);
        let context = WorkerContext {
            runtime,
            state,
            publications,
            dependencies: Arc::new(dependencies),
            api,
            recorder,
            clock,
            metrics,
        };
        let enforced = context.runtime.cgroups.is_some()
            && config.enforce_node_allocatable.contains(&Enforcement::Pods);
        let seen = admission::Node {
            name: node.name.clone(),
            os: Some(machine.os),
            allowed_sysctls: node.settings.allowed_sysctls.clone(),
            compare_taints: config.feature_gates.enabled(Gate::TaintTolerationComparisonOperators),
            ..admission::Node::default()
        };
        Ok(Agent {
            context: Arc::new(context),
            reconciler: Arc::new(reconciler),
            housekeeping: Arc::new(housekeeping),
            node: Arc::new(RwLock::new(seen)),
            description: node,
            root,
            report: watch::Sender::new(Arc::new(report)),
            probe_loop,
            probed,
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
    pub fn parts(&self) -> AgentParts {
        let WorkerContext { runtime, state, publications, metrics, .. } = &*self.context;
        AgentParts {
            runtime: Arc::clone(runtime),
            state: Arc::clone(state),
            publications: Arc::clone(publications),
            metrics: Arc::clone(metrics),
            reconciler: Arc::clone(&self.reconciler),
            housekeeping: Arc::clone(&self.housekeeping),
        }
    }

    /// Runs until `stop` has a value. Returns an error if a background task ends that the agent cannot run
    /// without; pods keep running.
    pub async fn run(
        self,
        mut stop: watch::Receiver<Option<ShutdownMode>>,
    ) -> Result<(), TaskError> {
        let Agent { context, node, description, root, report, probed, reports, .. } = self;
        let (capabilities, listener) = (self.capabilities, self.listener);
        let WorkerContext { runtime, state, publications, recorder, clock, metrics, .. } =
            &*context;
        let mut tasks = Supervisor::new(stop.clone());
        state.note_ledger_change();
        recorder.node(&description.name, AgentEvent::Starting);
        if self.enforced {
            recorder.node(&description.name, AgentEvent::AllocatableEnforced);
        }
        tasks.required("probes", self.probe_loop.run());
        tasks.restarted("services", Arc::clone(&context.dependencies), |dependencies| async move {
            dependencies.watch_services().await;
        });
        if let Some(cgroups) = runtime.cgroups.clone() {
            let active = publications.active.subscribe();
            let inputs = (Arc::clone(state), active, cgroups, self.amounts);
            tasks.restarted("QoS cgroups", inputs, |(state, active, cgroups, amounts)| {
                qos_cgroups::run(state, active, cgroups, amounts)
            });
        }
        let inputs = (Arc::clone(state), Arc::clone(publications), root.clone());
        let calls = metrics.pod_resources.clone();
        tasks.restarted("pod resources API", inputs, move |(state, publications, root)| {
            serve_pod_resources(state, publications, calls.clone(), root)
        });
        if let Some(listener) = listener {
            let sources = stats::Sources {
                runtime: Arc::clone(runtime),
                state: Arc::clone(state),
                publications: Arc::clone(publications),
            };
            let name = description.name.clone();
            let stats = Stats::new(sources, Arc::clone(clock), root.clone(), name);
            let backend = AgentBackend::new(
                Arc::clone(runtime),
                Arc::clone(publications),
                Arc::clone(metrics),
                self.configuration,
                stats,
            );
            let access = Access::reviewed(
                context.api.clone(),
                description.name.clone(),
                description.settings.access.clone(),
            );
            let server = Server::new(Arc::new(backend), runtime.cri.clone())
                .open_to(access)
                .measured(&metrics.registry);
            let (end, ends) = watch::channel(false);
            let mut stop = stop.clone();
            tasks.required("server", server.serve(listener, ends));
            tasks.required("end of the server", async move {
                let _ = stop.wait_for(Option::is_some).await;
                end.send_replace(true);
            });
        }
        let (health, healthy) = watch::channel(RuntimeHealth::Starting);
        let cri = runtime.cri.clone();
        tasks.restarted("runtime health", (cri.clone(), health), |(runtime, health)| {
            node::runtime::watch(runtime, health)
        });
        let inputs = (cri.clone(), healthy.clone(), capabilities);
        tasks.restarted("runtime capabilities", inputs, |(runtime, health, capabilities)| {
            follow_capabilities(runtime, health, capabilities)
        });
        let inputs = (Arc::clone(state), report.clone());
        tasks.restarted("node report", inputs, |(state, report)| publish_report(state, report));
        let (pressure, pressed) = watch::channel(Pressure::default());
        let inputs = (Arc::clone(&node), pressed.clone());
        tasks.restarted("pressure for admission", inputs, |(node, pressure)| {
            reclaim::update_admission(node, pressure)
        });
        let (images, have) = watch::channel(Arc::default());
        tasks.restarted("image list", (cri, images), |(runtime, images)| {
            node::images::watch(runtime, images)
        });
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
        let (events, recorded_events) = mpsc::unbounded_channel();
        tasks.required(
            "node events",
            record_node_events(recorder.clone(), description.name.clone(), recorded_events),
        );
        let name = description.name.clone();
        let settings = LoopSettings {
            node: name.clone(),
            files: manifests::settings(&description),
            logs: (description.settings.logs, description.settings.logs_every),
            reclaim: reclaim::Settings::of(&description, root),
            pressure,
            takeover: takeover.clone(),
        };
        let mirrors = publications.mirrors.subscribe();
        let inputs = (context.api.clone(), name, seen.clone(), mirrors);
        tasks.restarted("mirror pods", inputs, |(api, name, object, mirrors)| {
            mirror::run(api, name, object, mirrors)
        });
        let inputs = (context.api.clone(), description, sources, object, events);
        tasks.restarted("node", inputs, |(api, description, sources, object, events)| async move {
            // A node that was only restarted does not become NotReady in between.
            let (mut health, mut takeover) = (sources.runtime.clone(), sources.takeover.clone());
            let answered = async {
                let _ = health.wait_for(|health| *health != RuntimeHealth::Starting).await;
                let _ = takeover.wait_for(|takeover| *takeover != Takeover::Unknown).await;
            };
            let _ = tokio::time::timeout(FIRST_ANSWER, answered).await;
            node::run(api, description, sources, object, events).await;
        });
        let inputs = (Arc::clone(state), Arc::clone(&node), seen.clone(), healthy.clone());
        tasks.restarted("node for admission", inputs, |(state, node, object, health)| {
            node_sync::run(state, node, object, health)
        });

        // Nothing is decided before the running containers and the Node object are known.
        let ready = async {
            let first = first_relist(&runtime.cri).await;
            takeover.send_replace(match first.values().any(PodSummary::is_alive) {
                true => Takeover::UnderWay,
                false => Takeover::Done,
            });
            let _ = runtime.capabilities.clone().wait_for(Option::is_some).await;
            let _ = seen.clone().wait_for(Option::is_some).await;
            first
        };
        let first = tokio::select! {
            first = ready => first,
            error = tasks.failed() => return Err(error),
            _ = stop.wait_for(Option::is_some) => return Ok(()),
        };
        node_sync::take(state, &node, seen.borrow().as_deref(), &healthy.borrow());
        // Running containers are moved to their CPUs before anything else starts.
        let checking = async {
            adopt_running(state, &self.reconciler, &first).await;
            self.reconciler.reconcile_all().await
        };
        let checked = tokio::select! {
            checked = checking => checked,
            error = tasks.failed() => return Err(error),
            _ = stop.wait_for(Option::is_some) => return Ok(()),
        };
        info!(?checked, "adopted running containers");
        let inputs = (self.reconciler, self.check_every);
        tasks.restarted("cpusets", inputs, |(reconciler, every)| async move {
            reconciler.run(every).await;
        });
        tasks.restarted("housekeeping", self.housekeeping, |housekeeping| async move {
            housekeeping.run().await;
        });
        let pods = PodSet::new(Arc::clone(&context), node, first);
        let (pods, mode) =
            follow(&context, pods, settings, probed, reports, &mut tasks, stop).await?;
        match mode {
            ShutdownMode::LeavePodsRunning => info!("agent stopped; pods keep running"),
            ShutdownMode::StopPods => {
                pods.shutdown().await;
                info!("agent and pods stopped");
            }
        }
        Ok(())
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
    context: &WorkerContext,
    mut pods: PodSet,
    settings: LoopSettings,
    mut probed: mpsc::UnboundedReceiver<ProbeReport>,
    mut reports: mpsc::UnboundedReceiver<WorkerReport>,
    tasks: &mut Supervisor,
    mut stop: watch::Receiver<Option<ShutdownMode>>,
) -> Result<(PodSet, ShutdownMode), TaskError> {
    let LoopSettings { node, files, logs, reclaim, pressure, takeover } = settings;
    let (messages, mut received) = mpsc::unbounded_channel();
    let inputs = (context.api.clone(), node, messages.clone());
    tasks.restarted("pods of the API", inputs, |(api, node, messages)| {
        let scope = Scope { field_selector: format!("spec.nodeName={node}"), ..Scope::default() };
        let reflector = Reflector::new(api, PODS, scope, pod_set::read);
        reflector.run(move |change| messages.send(AgentMessage::Pods(change)).is_ok())
    });
    let WorkerContext { runtime, state, publications, recorder, clock, .. } = context;
    let inputs = (runtime.cri.clone(), context.metrics.gauges.clone(), messages.clone());
    tasks.restarted("relist", inputs, |(runtime, gauges, messages)| {
        relist_loop(runtime, gauges, messages)
    });
    match files {
        None => pods.handle_static_pods(Vec::new()),
        Some(files) => {
            let inputs = (recorder.clone(), Arc::clone(clock), files, messages.clone());
            tasks.restarted("static pods", inputs, |(recorder, clock, files, messages)| {
                manifests::follow(recorder, clock, files, messages)
            });
        }
    }
    let inputs = ((runtime.cri.clone(), Arc::clone(clock)), logs, messages.clone());
    tasks.restarted("log rotation", inputs, |(parts, (policy, every), messages)| {
        log_rotation::run(parts, policy, every, messages)
    });
    let parts = (Arc::clone(runtime), Arc::clone(state), Arc::clone(publications));
    let inputs = (parts, recorder.clone(), reclaim, pressure, messages);
    tasks.restarted("reclaim", inputs, |(parts, recorder, settings, pressure, messages)| {
        reclaim::run(parts, recorder, settings, pressure, messages)
    });
    loop {
        if pods.is_complete() && *takeover.borrow() != Takeover::Done {
            // Running pods that were given CPUs just now are moved there before the node reports ready.
            if let Err(error) = state.rebalance(&runtime.cri).await {
                warn!(%error, "a running container does not have its CPUs yet; the next check moves it");
            }
            takeover.send_replace(Takeover::Done);
        }
        let message = tokio::select! {
            Some(message) = received.recv() => message,
            Some(report) = probed.recv() => AgentMessage::Probed(report),
            Some(report) = reports.recv() => AgentMessage::WorkerReported(report),
            error = tasks.failed() => return Err(error),
            mode = stop.wait_for(Option::is_some) => {
                // If the sender is gone, no pod is stopped.
                let mode = mode.ok().and_then(|mode| *mode).unwrap_or(ShutdownMode::LeavePodsRunning);
                return Ok((pods, mode));
            }
        };
        match message {
            AgentMessage::Pods(change) => pods.handle_change(change),
            AgentMessage::Relisted(summaries) => pods.handle_relist(summaries),
            AgentMessage::Probed(report) => pods.handle_probe_report(report),
            AgentMessage::WorkerReported(report) => pods.handle_worker_report(report),
            AgentMessage::StaticPods(wanted) => pods.handle_static_pods(wanted),
            AgentMessage::Evict(uid, termination) => pods.evict(&uid, termination),
            AgentMessage::RunningLogs(answer) => {
                // The receiver may be gone.
                let _ = answer.send(pods.running_logs());
            }
        }
    }
}

/// Registers the running containers. If the ledger lost the CPUs of containers, the CPUs that are
/// exclusive to them in the kernel are committed first.
async fn adopt_running(
    state: &NodeState,
    reconciler: &CpusetReconciler,
    first: &BTreeMap<String, PodSummary>,
) {
    let place = |uid: &str, name: &str| state.ledger().affinity(&PodUid::new(uid), name);
    state.cpuset_tracker.adopt(first, place);
    if !state.ledger().lost_cpus() {
        return;
    }
    let in_use = reconciler.cpus_in_use().await;
    let recovered = state.ledger().recover(&in_use);
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
    state.note_ledger_change();
    state.cpuset_tracker.adopt(first, place);
}

/// Makes the cgroups above all pods. If that fails, a warning is logged and pods run without limits of
/// their own.
fn pod_cgroups(
    kernel: Result<host::cgroups::Cgroups, CgroupError>,
    amounts: &ResourceList,
    node_env: &NodeEnvironment,
) -> Option<PodCgroups> {
    let made = kernel.and_then(|kernel| {
        let cgroups = PodCgroups::new(kernel, node_env.cgroups.clone());
        let all = cgroups::of_all_pods(node_env, amounts, None);
        cgroups.ensure_classes(node_env, &all, [])?;
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
async fn serve_pod_resources(
    state: Arc<NodeState>,
    publications: Arc<Publications>,
    metrics: PodResourcesMetrics,
    root: PathBuf,
) {
    let mut errors = ErrorLog::default();
    loop {
        let (state, publications) = (Arc::clone(&state), Arc::clone(&publications));
        let served = pod_resources::serve(state, publications, metrics.clone(), &root).await;
        let error = served.map_or_else(|error| error.to_string(), |()| "serving ended".to_owned());
        if errors.failed(&error) {
            let retry_in_ms = millis(SERVE_RETRY);
            warn!(error, retry_in_ms, "failed to serve the Pod Resources API");
        }
        tokio::time::sleep(SERVE_RETRY).await;
    }
}

async fn record_node_events(
    recorder: Recorder,
    name: String,
    mut events: mpsc::UnboundedReceiver<AgentEvent>,
) {
    while let Some(event) = events.recv().await {
        recorder.node(&name, event);
    }
}

async fn first_relist(runtime: &cri::Client) -> BTreeMap<String, PodSummary> {
    let mut errors = ErrorLog::default();
    loop {
        match relist::relist(runtime).await {
            Ok(summaries) => {
                if let Some(failures) = errors.recovered() {
                    info!(failures, "the container runtime answers");
                }
                return summaries;
            }
            Err(error) => {
                if errors.failed(&error) {
                    let retry_in_ms = millis(RELIST_PERIOD);
                    warn!(%error, retry_in_ms, "waiting for the container runtime");
                }
            }
        }
        tokio::time::sleep(RELIST_PERIOD).await;
    }
}

async fn relist_loop(
    runtime: cri::Client,
    gauges: PodGauges,
    messages: mpsc::UnboundedSender<AgentMessage>,
) {
    let mut timer = tokio::time::interval(RELIST_PERIOD);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut last, mut errors): (Option<Instant>, _) = (None, ErrorLog::default());
    loop {
        timer.tick().await;
        let began = Instant::now();
        let summaries = match relist::relist(&runtime).await {
            Ok(summaries) => summaries,
            // The node's conditions report that the runtime is unavailable.
            Err(error) => {
                if errors.failed(&error) {
                    let retry_in_ms = millis(RELIST_PERIOD);
                    warn!(%error, retry_in_ms, "failed to list the containers of the runtime");
                }
                continue;
            }
        };
        if let Some(failures) = errors.recovered() {
            info!(failures, "listed the containers of the runtime again");
        }
        let since = last.replace(began).map(|last| (began - last).as_secs_f64());
        let at = SystemClock.now().unix_nanos() as f64 / 1e9;
        gauges.relisted(&summaries, began.elapsed().as_secs_f64(), since, at);
        if messages.send(AgentMessage::Relisted(summaries)).is_err() {
            return;
        }
    }
}

/// Reads the capabilities of the runtime, again whenever its name, version or status changes.
async fn follow_capabilities(
    runtime: cri::Client,
    mut health: watch::Receiver<RuntimeHealth>,
    capabilities: watch::Sender<Option<Arc<Capabilities>>>,
) {
    let mut errors = ErrorLog::default();
    loop {
        let answers = matches!(*health.borrow_and_update(), RuntimeHealth::Seen(_));
        let mut failed = false;
        if answers {
            match runtime.probe().await {
                Ok(found) => {
                    if let Some(failures) = errors.recovered() {
                        info!(failures, "read the capabilities of the runtime");
                    }
                    capabilities.send_replace(Some(Arc::new(found)));
                }
                Err(error) => {
                    failed = true;
                    if errors.failed(&error) {
                        let retry_in_ms = millis(CAPABILITIES_RETRY);
                        warn!(%error, retry_in_ms, "failed to read the capabilities of the runtime");
                    }
                }
            }
        }
        tokio::select! {
            changed = health.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(CAPABILITIES_RETRY), if failed => {}
        }
    }
}

/// Publishes the allocations for schedulers.
async fn publish_report(state: Arc<NodeState>, report: watch::Sender<Arc<NodeReport>>) {
    let mut ledger_changed = state.ledger_changes();
    let mut errors = ErrorLog::default();
    loop {
        let ledger = state.ledger().contents().clone();
        let mut next = NodeReport::clone(&report.borrow());
        match next.set_ledger(ledger) {
            Ok(()) => {
                if let Some(failures) = errors.recovered() {
                    info!(failures, "rendered the node report again");
                }
                report.send_replace(Arc::new(next));
            }
            Err(error) => {
                if errors.failed(&error) {
                    warn!(%error, "failed to render the node report; the last one stays in use");
                }
            }
        }
        if ledger_changed.changed().await.is_err() {
            return;
        }
    }
}
