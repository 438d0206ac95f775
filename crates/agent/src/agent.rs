//! The agent as a whole: [`Agent`], which puts everything together and goes on until it is told to stop.
//!
//! ```text
//!   book ──▶ runtime ──▶ node object ──▶ pods of the API and of files ──▶ …
//! ```
//!
//! One task owns all pods ([`Pods`]) and takes what happens one after the other; workers, looks at the
//! runtime, probes and the node's own status are tasks of their own. When the agent stops, pods run on.

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

use crate::admit;
use crate::allocations::{AllocationError, Allocations};
use crate::board::Board;
use crate::book::{Book, BookError};
use crate::cgroups::{self, PodCgroups};
use crate::clock::{self, Clock, SystemClock};
use crate::counters::{Counters, Now};
use crate::events::Told;
use crate::facts::{self, Places};
use crate::hands::{Hands, Report};
use crate::housekeeping;
use crate::images::Images;
use crate::logs::rotate::Policy;
use crate::look::{self, Brief};
use crate::lower::NodeFacts;
use crate::metrics::Counter;
use crate::node::{self, Description, Pressure, RuntimeHealth, SettingsError, Takeover};
use crate::pod_resources;
use crate::pods::{self, Pods, Read};
use crate::pool::Pool;
use crate::probes::{ProbeReport, Probes};
use crate::record::{self, Recorder};
use crate::server::{Access, Server};
use crate::sources::Sources;
use crate::spec::Amounts;
use crate::static_pods::{self, mirror};
use crate::stats::Stats;
use crate::truth;
use crate::volumes::Volumes;
use crate::worker::Ending;

mod answers;
mod files;
mod logs;
mod reclaim;
mod shares;
mod view;

use answers::Answers;
pub use logs::RunningLog;

/// Between two looks at the runtime. Upstream's figure.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long the runtime may take to answer before the node is told to be without one.
const FIRST_ANSWER: Duration = Duration::from_secs(2);
/// How many pods start containers at a time: with more, all are later (measured with containerd on two
/// CPUs).
const STARTS: usize = 8;

/// What the agent is told.
#[derive(Debug)]
pub struct Settings {
    pub config: KubeletConfig,
    /// The configuration as it was written, for whoever asks.
    pub configuration: Value,
    pub machine: Machine,
    /// Where state files and pods' directories are; `/var/lib/kubelet` with the kubelet.
    pub root: PathBuf,
    /// Where containers' logs are; `/var/log/pods` with the kubelet.
    pub logs: PathBuf,
    /// Where links to containers' logs are made; none are if it is not given.
    pub log_links: Option<PathBuf>,
    pub runtime: cri::Endpoint,
    pub api: Client,
    /// Where containers reach the API, if not at the cluster address of its service.
    pub api_address: Option<SocketAddr>,
    /// Who the node is.
    pub node: Description,
    /// Where the agent's own server listens; it has none if this is not given.
    pub listener: Option<Listener>,
}

/// How the agent ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// The next agent takes them up again.
    PodsRunOn,
    /// The next agent starts them anew.
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
    Book(#[from] BookError),
    #[error(transparent)]
    Allocations(#[from] AllocationError),
    #[error("what the node would tell of itself is wrong: {0}")]
    Report(#[from] ReportError),
}

fn listed<T: ToString>(findings: &[T]) -> String {
    findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// What happens to the agent.
enum Happening {
    Pods(Change<Read>),
    Looked(BTreeMap<String, Brief>),
    Probed(ProbeReport),
    Reported(Report),
    /// The static pods that there are to be.
    Files(Vec<Read>),
    /// A pod, by uid, has to go.
    Evict(String, Ending),
    /// Somebody asks where the logs are that are being written.
    Logs(oneshot::Sender<Vec<RunningLog>>),
}

/// An agent that is about to run.
#[derive(Debug)]
pub struct Agent {
    hands: Arc<Hands>,
    node: Arc<RwLock<admit::Node>>,
    description: Description,
    root: PathBuf,
    report: watch::Sender<Arc<NodeReport>>,
    probes: mpsc::UnboundedReceiver<ProbeReport>,
    reports: mpsc::UnboundedReceiver<Report>,
    capabilities: watch::Sender<Option<Arc<Capabilities>>>,
    listener: Option<Listener>,
    configuration: Value,
    /// What pods have together.
    amounts: Amounts,
    check_every: Duration,
    /// Whether pods are held to what is not reserved.
    enforced: bool,
}

impl Agent {
    /// Reads what was handed out before, and gets everything ready that needs neither API nor runtime.
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
            warn!(%warning, "configuration");
        }
        std::fs::create_dir_all(&root)
            .map_err(|cause| StartError::Directory { path: root.display().to_string(), cause })?;
        let milli_cpus = configured.allocatable.milli_cpus;
        let (book, found) = Book::open(&root, configured.node)?;
        for found in &found {
            warn!(%found, "state");
        }
        let (allocations, unusable) = Allocations::open(&root)?;
        for unusable in &unusable {
            warn!(%unusable, "state");
        }
        if let Some(links) = &log_links
            && let Err(error) = std::fs::create_dir_all(links)
        {
            warn!(%error, directory = %links.display(), "there are no links to logs");
        }
        let report = NodeReport::new(&machine, &config, book.ledger().clone())?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let (recorder, queue) = Recorder::new(Arc::clone(&clock));
        tokio::spawn(record::deliver(queue, api.clone(), node.name.clone()));
        let counters = Counters::new();
        counters.node_name.set(&[&node.name], 1.0);
        counters.gates(&config.feature_gates);
        let calls = counters.calls.clone();
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
            counters.cgroup_version.set(&[], version);
        }
        let places = Places { root: &root, logs: &logs };
        let facts = facts::gather(&config, &machine, &places, kernel.as_ref().ok(), &node);
        let amounts = shares::of_pods(&machine, &config, milli_cpus);
        let cgroups = pod_cgroups(kernel, &amounts, &facts);
        let hands = Hands {
            images: Images::new(runtime.clone(), Arc::clone(&clock), node.settings.parallel_pulls),
            sources: Sources::start(api.clone(), Arc::clone(&clock), api_address),
            probes: Probes::counted(
                runtime.clone(),
                probe_reports,
                Counter::of_probes(&counters.probes),
            ),
            pool: Pool::default(),
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
            board: Board::counted(counters.lives.clone()),
            counters,
            reports: worker_reports,
            api,
            runtime,
            recorder,
            clock,
        };
        let enforced =
            hands.cgroups.is_some() && config.enforce_node_allocatable.contains(&Enforcement::Pods);
        let seen = admit::Node {
            name: node.name.clone(),
            os: Some(machine.os),
            allowed_sysctls: node.settings.allowed_sysctls.clone(),
            compare_taints: config.feature_gates.enabled(Gate::TaintTolerationComparisonOperators),
            ..admit::Node::default()
        };
        Ok(Agent {
            hands: Arc::new(hands),
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
    pub fn hands(&self) -> Arc<Hands> {
        Arc::clone(&self.hands)
    }

    /// Runs until `stop` says so.
    pub async fn run(self, mut stop: watch::Receiver<Option<Leave>>) {
        let Agent { hands, node, description, root, report, probes, reports, .. } = self;
        let (capabilities, listener) = (self.capabilities, self.listener);
        let mut tasks = JoinSet::new();
        hands.note_booked();
        hands.recorder.node(&description.name, Told::Starting);
        if self.enforced {
            hands.recorder.node(&description.name, Told::AllocatableEnforced);
        }
        tasks.spawn(shares::keep(Arc::clone(&hands), self.amounts));
        tasks.spawn(tell_of_resources(Arc::clone(&hands), root.clone()));
        if let Some(listener) = listener {
            let stats = Stats::new(Arc::clone(&hands), root.clone(), description.name.clone());
            let answers = Answers::new(Arc::clone(&hands), self.configuration, stats);
            let access = Access::reviewed(
                hands.api.clone(),
                description.name.clone(),
                description.settings.access.clone(),
            );
            let server = Server::new(Arc::new(answers), hands.runtime.clone())
                .open_to(access)
                .measured(&hands.counters.registry);
            let (end, ends) = watch::channel(false);
            let mut stop = stop.clone();
            tasks.spawn(server.serve(listener, ends));
            tasks.spawn(async move {
                let _ = stop.wait_for(Option::is_some).await;
                end.send_replace(true);
            });
        }
        let (health, healthy) = watch::channel(RuntimeHealth::Starting);
        tasks.spawn(node::runtime::watch(hands.runtime.clone(), health));
        tasks.spawn(ask(hands.runtime.clone(), healthy.clone(), capabilities));
        tasks.spawn(keep_report(Arc::clone(&hands), report.clone()));
        let (pressure, pressed) = watch::channel(Pressure::default());
        tasks.spawn(reclaim::tell_admission(Arc::clone(&node), pressed.clone()));
        let (images, have) = watch::channel(Arc::default());
        tasks.spawn(node::images::watch(hands.runtime.clone(), images));
        let (takeover, taken_over) = watch::channel(Takeover::Unknown);
        let sources = node::Sources {
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
        tasks.spawn(tell_of_node(hands.recorder.clone(), description.name.clone(), told));
        let name = description.name.clone();
        let duties = Duties {
            node: name.clone(),
            files: files::settings(&description),
            logs: (description.settings.logs, description.settings.logs_every),
            reclaim: reclaim::Settings::of(&description, root),
            pressure,
            takeover: takeover.clone(),
        };
        let mirrors = hands.mirrors.subscribe();
        tasks.spawn(mirror::keep(hands.api.clone(), name.clone(), seen.clone(), mirrors));
        let api = hands.api.clone();
        tasks.spawn(async move {
            // A node that was only restarted does not have to be unready for a moment.
            let (mut health, mut takeover) = (sources.runtime.clone(), sources.takeover.clone());
            let answered = async {
                let _ = health.wait_for(|health| *health != RuntimeHealth::Starting).await;
                let _ = takeover.wait_for(|takeover| *takeover != Takeover::Unknown).await;
            };
            let _ = tokio::time::timeout(FIRST_ANSWER, answered).await;
            node::run(api, description, sources, object, tell).await;
        });
        let (object, runtime) = (seen.clone(), healthy.clone());
        tasks.spawn(view::keep(Arc::clone(&hands), Arc::clone(&node), object, runtime));

        // Nothing is decided before it is known what runs, and what node this is.
        let ready = async {
            let first = first_look(&hands.runtime).await;
            takeover.send_replace(match first.values().any(Brief::is_alive) {
                true => Takeover::UnderWay,
                false => Takeover::Done,
            });
            let _ = hands.capabilities.clone().wait_for(Option::is_some).await;
            let _ = seen.clone().wait_for(Option::is_some).await;
            first
        };
        let first = tokio::select! {
            first = ready => first,
            _ = stop.wait_for(Option::is_some) => return,
        };
        view::take(&hands, &node, seen.borrow().as_deref(), &healthy.borrow());
        // What runs already is where it is to be before anything else starts.
        let checking = async {
            take_up(&hands, &first).await;
            truth::check(&hands).await
        };
        let checked = tokio::select! {
            checked = checking => checked,
            _ = stop.wait_for(Option::is_some) => return,
        };
        info!(?checked, "took up what runs");
        tasks.spawn(truth::keep(Arc::clone(&hands), self.check_every));
        tasks.spawn(housekeeping::keep(Arc::clone(&hands)));
        let pods = Pods::new(Arc::clone(&hands), node, first);
        let (pods, leave) = follow(&hands, pods, duties, probes, reports, &mut tasks, stop).await;
        match leave {
            Leave::PodsRunOn => info!("stopped; pods run on"),
            Leave::StopPods => {
                pods.halt().await;
                info!("stopped, and pods with it");
            }
        }
    }
}

/// What is looked after beside the pods of the API.
#[derive(Debug)]
struct Duties {
    /// The node's name.
    node: String,
    files: Option<static_pods::Settings>,
    /// How large logs may be, and how often they are looked at.
    logs: (Policy, Duration),
    reclaim: reclaim::Settings,
    pressure: watch::Sender<Pressure>,
    takeover: watch::Sender<Takeover>,
}

/// Takes what happens to pods until told to stop.
async fn follow(
    hands: &Arc<Hands>,
    mut pods: Pods,
    duties: Duties,
    mut probes: mpsc::UnboundedReceiver<ProbeReport>,
    mut reports: mpsc::UnboundedReceiver<Report>,
    tasks: &mut JoinSet<()>,
    mut stop: watch::Receiver<Option<Leave>>,
) -> (Pods, Leave) {
    let Duties { node, files, logs, reclaim, pressure, takeover } = duties;
    let (happened, mut happenings) = mpsc::unbounded_channel();
    let scope = Scope { field_selector: format!("spec.nodeName={node}"), ..Scope::default() };
    let reflector = Reflector::new(hands.api.clone(), PODS, scope, pods::read);
    let of_pods = happened.clone();
    tasks.spawn(reflector.run(move |change| of_pods.send(Happening::Pods(change)).is_ok()));
    let now = hands.counters.now.clone();
    tasks.spawn(look_often(hands.runtime.clone(), now, happened.clone()));
    match files {
        None => pods.take_files(Vec::new()),
        Some(files) => {
            tasks.spawn(files::follow(Arc::clone(hands), files, happened.clone()));
        }
    }
    let (policy, every) = logs;
    tasks.spawn(logs::keep(Arc::clone(hands), policy, every, happened.clone()));
    tasks.spawn(reclaim::keep(Arc::clone(hands), reclaim, pressure, happened));
    loop {
        if pods.is_complete() && *takeover.borrow() != Takeover::Done {
            // Running pods that were given CPUs just now are moved there before the node reports ready.
            if let Err(error) = hands.follow_pool().await {
                warn!(%error, "a running container does not have its CPUs yet");
            }
            takeover.send_replace(Takeover::Done);
        }
        let happening = tokio::select! {
            Some(happening) = happenings.recv() => happening,
            Some(report) = probes.recv() => Happening::Probed(report),
            Some(report) = reports.recv() => Happening::Reported(report),
            leave = stop.wait_for(Option::is_some) => {
                // Whoever could say so is gone: then nothing is to be stopped.
                let leave = leave.ok().and_then(|leave| *leave).unwrap_or(Leave::PodsRunOn);
                return (pods, leave);
            }
        };
        match happening {
            Happening::Pods(change) => pods.take_change(change),
            Happening::Looked(briefs) => pods.take_look(briefs),
            Happening::Probed(report) => pods.take_probe(report),
            Happening::Reported(report) => pods.take_report(report),
            Happening::Files(wanted) => pods.take_files(wanted),
            Happening::Evict(uid, ending) => pods.evict(&uid, ending),
            Happening::Logs(answer) => {
                // Whoever asked may be gone.
                let _ = answer.send(pods.running_logs());
            }
        }
    }
}

/// Enters the containers that run into the pool. If the book lost the CPUs of containers, the CPUs that these
/// have to themselves are booked first.
async fn take_up(hands: &Hands, first: &BTreeMap<String, Brief>) {
    let place = |uid: &str, name: &str| hands.book().place(&PodUid::new(uid), name);
    hands.pool.take_up(first, place);
    if !hands.book().lost_cpus() {
        return;
    }
    let in_use = truth::cpus_in_use(hands).await;
    let recovered = hands.book().recover(&in_use);
    match recovered {
        Ok(recovered) => {
            for (pod, containers) in &recovered {
                for (container, cpus) in containers {
                    info!(%pod, %container, %cpus, "recovered a container's CPUs from the runtime");
                }
            }
        }
        Err(error) => warn!(%error, "the CPUs of running containers cannot be recovered"),
    }
    hands.note_booked();
    hands.pool.take_up(first, place);
}

/// Makes the cgroups all pods are below. Without them pods run without limits of their own, which is said.
fn pod_cgroups(
    kernel: Result<host::cgroups::Cgroups, CgroupError>,
    amounts: &Amounts,
    facts: &NodeFacts,
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
            warn!(%error, "pods have no cgroups of their own");
            None
        }
    }
}

/// Without this door only monitoring misses something, so that pods run all the same.
async fn tell_of_resources(hands: Arc<Hands>, root: PathBuf) {
    let os = hands.facts().os;
    if let Err(error) = pod_resources::serve(hands, os, &root).await {
        warn!(%error, "the Pod Resources API");
    }
}

async fn tell_of_node(recorder: Recorder, name: String, mut told: mpsc::UnboundedReceiver<Told>) {
    while let Some(told) = told.recv().await {
        recorder.node(&name, told);
    }
}

async fn first_look(runtime: &cri::Client) -> BTreeMap<String, Brief> {
    let mut told = false;
    loop {
        match look::briefly(runtime).await {
            Ok(briefs) => return briefs,
            Err(error) if !told => {
                warn!(%error, "waiting for the container runtime");
                told = true;
            }
            Err(_) => {}
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn look_often(runtime: cri::Client, now: Now, happened: mpsc::UnboundedSender<Happening>) {
    let mut timer = tokio::time::interval(LOOK_EVERY);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last: Option<Instant> = None;
    loop {
        timer.tick().await;
        let began = Instant::now();
        // Whether the runtime is there is told elsewhere.
        let Ok(briefs) = look::briefly(&runtime).await else { continue };
        let since = last.replace(began).map(|last| (began - last).as_secs_f64());
        let at = clock::nanos(SystemClock.now()) as f64 / 1e9;
        now.looked(&briefs, began.elapsed().as_secs_f64(), since, at);
        if happened.send(Happening::Looked(briefs)).is_err() {
            return;
        }
    }
}

/// Asks what the runtime can do whenever it is another one, or says something else of itself.
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

/// What is handed out is told to schedulers.
async fn keep_report(hands: Arc<Hands>, report: watch::Sender<Arc<NodeReport>>) {
    let mut booked = hands.booked.subscribe();
    loop {
        let ledger = hands.book().ledger().clone();
        let mut next = NodeReport::clone(&report.borrow());
        match next.set_ledger(ledger) {
            Ok(()) => {
                report.send_replace(Arc::new(next));
            }
            Err(error) => warn!(%error, "what is handed out cannot be told"),
        }
        if booked.changed().await.is_err() {
            return;
        }
    }
}
