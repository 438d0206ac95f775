//! The control plane as a process: store, API, keys, socket and an orderly shutdown.
//!
//! [`run`] shows the sequence. Main type: [`Settings`]. Nothing is decided here.

use std::io::{ErrorKind, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use apiserver::certificates::Pair;
use apiserver::{Api, Limits, Listener, Plugins};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use https::Clock;
use objects::{FeatureGates, Gate};
use store::Store;
use tokio::sync::watch;

use crate::bind_error;
use crate::in_process::InProcess;
use crate::instance_lock::InstanceLock;
use crate::tasks::{TaskError, TaskSet};

pub(crate) mod authorities;
mod certificates;
pub(crate) mod maintenance;
mod settings_file;

pub use certificates::Certificates;

/// The settings of a control plane.
#[derive(Debug, Clone)]
pub struct Settings {
    pub data_dir: PathBuf,
    pub gates: FeatureGates,
    /// The enabled admission plugins.
    pub plugins: Plugins,
    pub address: SocketAddr,
    /// The address published to clients if the server listens on all addresses.
    pub advertise: Option<IpAddr>,
    /// Additional names and addresses of the server.
    pub names: Vec<String>,
    pub allow_privileged: bool,
    pub service_range: String,
    pub audit_log: Option<PathBuf>,
    /// The controllers to run, with their options.
    pub controllers: controllers::Options,
    /// The clock for certificates.
    pub clock: Clock,
}

impl Settings {
    #[must_use]
    pub fn new(data_dir: PathBuf) -> Settings {
        Settings {
            data_dir,
            gates: apiserver::default_gates(),
            plugins: Plugins::default(),
            address: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 6443),
            advertise: None,
            names: Vec::new(),
            allow_privileged: true,
            service_range: "10.0.0.0/24".to_owned(),
            audit_log: None,
            controllers: controllers::Options::default(),
            clock: Clock::default(),
        }
    }

    /// Returns the address published to clients of a server bound to `bound`.
    fn advertised(&self, bound: SocketAddr) -> SocketAddr {
        match (bound.ip().is_unspecified(), self.advertise) {
            (false, _) => bound,
            (true, Some(address)) => SocketAddr::new(address, bound.port()),
            (true, None) => on_loopback(bound),
        }
    }

    /// Reads settings from a file; errors name file, line and field.
    pub fn read(&mut self, file: &Path) -> Result<(), Vec<String>> {
        settings_file::read(self, file)
    }
}

/// Serves until the process is asked to stop.
pub fn run(settings: &Settings) -> Result<()> {
    let started = Instant::now();
    maintenance::raise_limits();
    let lock = lock_data_dir(&settings.data_dir)?;
    let (stop, stopping) = watch::channel(false);
    let interrupted = stop.clone();
    ctrlc::set_handler(move || {
        // The server may have stopped already.
        let _ = interrupted.send(true);
    })
    .context("failed to install the signal handler")?;
    crate::memory::block_on(async {
        let server = Server::start(settings).await?;
        server.announce(settings, started.elapsed());
        let shutdown = async {
            lock.shutdown_requested().await;
            let _ = stop.send(true);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            served = server.serve(stopping) => served?,
            () = shutdown => {}
        }
        tracing::info!("stopped");
        Ok(())
    })?
}

/// Locks a data directory for this process.
pub(crate) fn lock_data_dir(data_dir: &Path) -> Result<InstanceLock> {
    let dir = data_dir.display();
    let taken = InstanceLock::acquire(data_dir).with_context(|| format!("cannot use {dir}"))?;
    taken.with_context(|| {
        format!("a server or node already runs on {dir}; stop it with berth down --data-dir {dir}")
    })
}

/// A control plane that is ready to serve.
#[derive(Debug)]
pub struct Server {
    store: Store,
    api: Api,
    listener: Listener,
    address: SocketAddr,
    advertised: SocketAddr,
    controllers: controllers::Handle,
    certificates: Certificates,
}

impl Server {
    /// Opens the store, creates missing files, and binds the socket.
    pub async fn start(settings: &Settings) -> Result<Server> {
        let dir = &settings.data_dir;
        // They hold keys, and secrets of all namespaces.
        for private in [dir.join("pki"), dir.join("store")] {
            host::files::make_private_directory(&private)?;
        }
        refuse_keys_without_a_store(dir)?;
        let store = maintenance::open(dir)?;
        let certificates =
            Certificates::load_or_make(dir, server_names(settings), settings.clock.clone())?;
        if let Some(audit_log) = &settings.audit_log {
            make_private_file(audit_log)?;
        }
        let tls = certificates.tls();
        let listener = Listener::bind_with(settings.address, tls, Limits::default())
            .await
            .map_err(|error| bind_error::explain(error, settings.address, "--https-listen-port"))?;
        let address = listener.address()?;
        let advertised = settings.advertised(address);
        let options = apiserver::Options {
            gates: settings.gates.clone(),
            plugins: settings.plugins.clone(),
            allow_privileged: settings.allow_privileged,
            service_range: settings.service_range.clone(),
            advertised: advertised.to_string(),
            token_secret: certificates.token_secret(),
            audit_log: settings.audit_log.clone(),
            agents: Some(certificates.agent_dialer()),
            ..apiserver::Options::default()
        };
        let api = Api::new(store.clone(), options).await.map_err(|refusal| {
            anyhow::anyhow!("failed to start the API server: {}", refusal.message)
        })?;
        certificates.publish(reachable(address))?;
        let controllers = start_controllers(&api, settings, &certificates, store.clone())?;
        Ok(Server { store, api, listener, address, advertised, controllers, certificates })
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address published to clients; the certificate includes it.
    #[must_use]
    pub fn advertised(&self) -> SocketAddr {
        self.advertised
    }

    /// Returns the certificates of the node's servers and clients.
    #[must_use]
    pub fn certificates(&self) -> &Certificates {
        &self.certificates
    }

    #[must_use]
    pub fn api(&self) -> &Api {
        &self.api
    }

    pub(crate) fn announce(&self, settings: &Settings, took: Duration) {
        let kubeconfig = settings.data_dir.join("kubeconfig");
        let text = format!(
            "Berth's control plane is ready after {:.0} ms.\n  API      https://{}\n  kubectl  kubectl --kubeconfig {} get namespaces\n",
            took.as_secs_f64() * 1000.0,
            self.address,
            kubeconfig.display(),
        );
        // Standard output may be closed.
        let _ = std::io::stdout().write_all(text.as_bytes());
    }

    /// Serves until `stop` is set; then every acknowledged write is on disk. A background task that ends
    /// earlier ends the server too.
    pub async fn serve(self, stop: watch::Receiver<bool>) -> Result<(), TaskError> {
        let mut tasks = TaskSet::default();
        tasks.spawn("history compaction", maintenance::compact_history(self.store.clone()));
        tasks.spawn("certificate renewal", self.certificates.keep_current());
        let mut listening = tokio::spawn(self.listener.serve(self.api, stop.clone()));
        let served = tokio::select! {
            ended = &mut listening => match ended {
                Ok(()) if *stop.borrow() || stop.has_changed().is_err() => Ok(()),
                ended => Err(TaskError::unexpected("API listener", ended)),
            },
            error = tasks.failure() => {
                listening.abort();
                Err(error)
            }
        };
        self.controllers.stop().await;
        tasks.stop().await;
        let store = self.store;
        // Joining the store's threads may take as long as its last write.
        let _ = tokio::task::spawn_blocking(move || store.close()).await;
        served
    }
}

/// Starts the controllers on the API server of this process.
fn start_controllers(
    api: &Api,
    settings: &Settings,
    certificates: &Certificates,
    store: Store,
) -> Result<controllers::Handle> {
    let transport = InProcess::new(api.clone(), "system:kube-controller-manager");
    let client = client::Client::new(Arc::new(transport), "kube-controller-manager");
    let mut options = settings.controllers.clone();
    options.scheduling.qos_resources = settings.gates.enabled(Gate::QosResources);
    options.scheduling.compare_taints =
        settings.gates.enabled(Gate::TaintTolerationComparisonOperators);
    options.root_ca = Some(certificates.bundle());
    let controllers = controllers::run(&client, options)?;
    let counters = Arc::clone(controllers.counters());
    api.register_metrics(Box::new(move || {
        let mut families = counters.families();
        families.extend(maintenance::metric_families(&store));
        families
    }));
    Ok(controllers)
}

/// Refuses to start a new cluster with the keys of one whose store is missing.
fn refuse_keys_without_a_store(dir: &Path) -> Result<()> {
    let (pki, store) = (dir.join("pki"), dir.join("store"));
    let has_store =
        Store::is_in(&store).with_context(|| format!("cannot read {}", store.display()))?;
    let has_keys = pki.join("ca.crt").exists();
    if has_keys && !has_store {
        bail!(
            "{} is empty, but {} has the keys of a cluster: its objects are lost or elsewhere. \
             Nothing was started, because a new cluster would end all pods of the old one. Put the \
             store back (is its file system mounted?), restore a backup (berth restore BACKUP \
             --data-dir {dir}), finish a repair that was interrupted (berth store repair --data-dir \
             {dir}), or begin a new cluster by moving the keys away (mv {} {}.old)",
            store.display(),
            pki.display(),
            pki.display(),
            pki.display(),
            dir = dir.display(),
        );
    }
    if has_store && !has_keys {
        let pki = pki.display().to_string();
        tracing::warn!(
            pki,
            "the keys of this cluster are missing and were created again; existing kubeconfigs and \
             tokens are no longer valid"
        );
    }
    Ok(())
}

/// Creates a file that only its owner can read, unless it exists.
fn make_private_file(path: &Path) -> Result<()> {
    match host::os::create_private_file(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(error).with_context(|| format!("cannot make {}", path.display()))
        }
        _ => Ok(()),
    }
}

fn on_loopback(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), address.port())
}

/// Returns the address for clients on this machine of a server bound to `address`.
fn reachable(address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() { on_loopback(address) } else { address }
}

/// Returns the names in the server's certificate.
fn server_names(settings: &Settings) -> Vec<String> {
    let mut names: Vec<String> = [
        "localhost",
        "127.0.0.1",
        "::1",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ]
    .map(str::to_owned)
    .into();
    names.push(settings.advertised(settings.address).ip().to_string());
    names.extend(settings.names.iter().cloned());
    names
}

fn kubeconfig(authority: &str, address: SocketAddr, user: &str, pair: &Pair) -> String {
    let (ca, certificate, key) = (
        STANDARD.encode(authority),
        STANDARD.encode(&pair.certificate),
        STANDARD.encode(&pair.key),
    );
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         clusters:\n\
         - name: berth\n\
         \x20 cluster:\n\
         \x20   server: https://{address}\n\
         \x20   certificate-authority-data: {ca}\n\
         users:\n\
         - name: {user}\n\
         \x20 user:\n\
         \x20   client-certificate-data: {certificate}\n\
         \x20   client-key-data: {key}\n\
         contexts:\n\
         - name: {user}@berth\n\
         \x20 context:\n\
         \x20   cluster: berth\n\
         \x20   user: {user}\n\
         current-context: {user}@berth\n"
    )
}
