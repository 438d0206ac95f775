//! The agent as a whole: [`run`], which puts everything together and goes on until it is told to stop.
//!
//! ```text
//!   book ──▶ runtime ──▶ node object ──▶ pods of the API and of files ──▶ …
//! ```
//!
//! One task owns all pods ([`Pods`]) and takes what happens one after the other; workers, looks at the
//! runtime, probes and the node's own status are tasks of their own. When the agent stops, pods run on.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use client::kind::PODS;
use client::{Change, Client, Reflector, Scope};
use cri::Capabilities;
use objects::KubeletConfig;
use placement::Machine;
use placement::configured::{Configured, Finding};
use thiserror::Error;
use tokio::sync::{Semaphore, mpsc, watch};
use tracing::{info, warn};

use crate::admit;
use crate::book::{Book, BookError};
use crate::clock::{Clock, SystemClock};
use crate::hands::{Hands, Report};
use crate::images::Images;
use crate::look::{self, Brief};
use crate::lower::NodeFacts;
use crate::pods::{self, Pods, Read};
use crate::pool::Pool;
use crate::probes::{ProbeReport, Probes};
use crate::record::{self, Recorder};
use crate::sources::Sources;
use crate::volumes::Volumes;

/// Between two looks at the runtime. Upstream's figure.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Between two questions what the runtime can do.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// How many pods start containers at a time: with more, all are later (measured with containerd on two
/// CPUs).
const STARTS: usize = 8;

/// What the agent is told.
#[derive(Debug, Clone)]
pub struct Settings {
    pub node_name: String,
    pub config: KubeletConfig,
    pub machine: Machine,
    /// Where state files and pods' directories are; `/var/lib/kubelet` with the kubelet.
    pub root: PathBuf,
    /// Where links to containers' logs are made; none are if it is not given.
    pub log_links: Option<PathBuf>,
    pub runtime: cri::Endpoint,
    pub api: Client,
    pub facts: NodeFacts,
}

#[derive(Debug, Error)]
pub enum StartError {
    #[error("the configuration does not suit the machine: {}", listed(.0))]
    Configuration(Vec<Finding>),
    #[error("{path}: {cause}")]
    Directory { path: String, cause: std::io::Error },
    #[error(transparent)]
    Book(#[from] BookError),
}

fn listed(findings: &[Finding]) -> String {
    findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// What happens to the agent.
enum Happening {
    Pods(Change<Read>),
    Looked(BTreeMap<String, Brief>),
    Probed(ProbeReport),
    Reported(Report),
}

/// An agent that is about to run.
#[derive(Debug)]
pub struct Agent {
    hands: Arc<Hands>,
    node: Arc<RwLock<admit::Node>>,
    node_name: String,
    probes: mpsc::UnboundedReceiver<ProbeReport>,
    reports: mpsc::UnboundedReceiver<Report>,
    capabilities: watch::Sender<Option<Arc<Capabilities>>>,
}

impl Agent {
    /// Reads what was handed out before, and gets everything ready that needs neither API nor runtime.
    pub fn prepare(settings: Settings) -> Result<Agent, StartError> {
        let configured = Configured::new(&settings.machine, &settings.config)
            .map_err(StartError::Configuration)?;
        for warning in &configured.warnings {
            warn!(%warning, "configuration");
        }
        std::fs::create_dir_all(&settings.root).map_err(|cause| StartError::Directory {
            path: settings.root.display().to_string(),
            cause,
        })?;
        let (book, found) = Book::open(&settings.root, configured.node)?;
        for found in &found {
            warn!(%found, "state");
        }
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let (recorder, queue) = Recorder::new(Arc::clone(&clock));
        let api = settings.api;
        tokio::spawn(record::deliver(queue, api.clone(), settings.node_name.clone()));
        let runtime = cri::Client::new(settings.runtime);
        let (probe_reports, probes) = mpsc::unbounded_channel();
        let (worker_reports, reports) = mpsc::unbounded_channel();
        let (capabilities, can) = watch::channel(None);
        let hands = Hands {
            images: Images::new(runtime.clone(), Arc::clone(&clock), 1),
            sources: Sources::start(api.clone(), Arc::clone(&clock)),
            probes: Probes::new(runtime.clone(), probe_reports),
            pool: Pool::default(),
            starts: Arc::new(Semaphore::new(STARTS)),
            book: Mutex::new(book),
            booked: watch::Sender::new(0),
            facts: RwLock::new(Arc::new(settings.facts)),
            capabilities: can,
            volumes: Volumes::new(settings.root),
            cgroups: None,
            log_links: settings.log_links,
            reports: worker_reports,
            api,
            runtime,
            recorder,
            clock,
        };
        let node = admit::Node { name: settings.node_name.clone(), ..admit::Node::default() };
        Ok(Agent {
            hands: Arc::new(hands),
            node: Arc::new(RwLock::new(node)),
            node_name: settings.node_name,
            probes,
            reports,
            capabilities,
        })
    }

    /// What there is of the node to decide admissions by.
    #[must_use]
    pub fn node(&self) -> Arc<RwLock<admit::Node>> {
        Arc::clone(&self.node)
    }

    #[must_use]
    pub fn hands(&self) -> Arc<Hands> {
        Arc::clone(&self.hands)
    }

    /// Runs until `stop` says so.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        let Agent { hands, node, node_name, mut probes, mut reports, capabilities } = self;
        tokio::spawn(ask(hands.runtime.clone(), capabilities));
        // Nothing is decided before it is known what runs.
        let first = tokio::select! {
            first = first_look(&hands.runtime) => first,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        let mut pods = Pods::new(Arc::clone(&hands), node, first);
        let (happened, mut happenings) = mpsc::unbounded_channel();
        let scope =
            Scope { field_selector: format!("spec.nodeName={node_name}"), ..Scope::default() };
        let reflector = Reflector::new(hands.api.clone(), PODS, scope, pods::read);
        let of_pods = happened.clone();
        let watching = tokio::spawn(
            reflector.run(move |change| of_pods.send(Happening::Pods(change)).is_ok()),
        );
        let looking = tokio::spawn(look_often(hands.runtime.clone(), happened));
        loop {
            let happening = tokio::select! {
                Some(happening) = happenings.recv() => happening,
                Some(report) = probes.recv() => Happening::Probed(report),
                Some(report) = reports.recv() => Happening::Reported(report),
                _ = stop.wait_for(|stop| *stop) => break,
            };
            match happening {
                Happening::Pods(change) => pods.take_change(change),
                Happening::Looked(briefs) => pods.take_look(briefs),
                Happening::Probed(report) => pods.take_probe(report),
                Happening::Reported(report) => pods.take_report(report),
            }
        }
        watching.abort();
        looking.abort();
        info!("stopped; pods run on");
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

async fn look_often(runtime: cri::Client, happened: mpsc::UnboundedSender<Happening>) {
    let mut timer = tokio::time::interval(LOOK_EVERY);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        timer.tick().await;
        // Whether the runtime is there is told elsewhere.
        if let Ok(briefs) = look::briefly(&runtime).await
            && happened.send(Happening::Looked(briefs)).is_err()
        {
            return;
        }
    }
}

/// Keeps asking what the runtime can do: it may be replaced or reconfigured.
async fn ask(runtime: cri::Client, said: watch::Sender<Option<Arc<Capabilities>>>) {
    loop {
        let found = runtime.probe().await.ok().map(Arc::new);
        said.send_replace(found);
        tokio::select! {
            () = tokio::time::sleep(ASK_EVERY) => {}
            () = said.closed() => return,
        }
    }
}
