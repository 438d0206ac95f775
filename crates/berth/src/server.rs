//! The control plane as a process: store, API, keys, socket, and an orderly end.
//!
//! [`run`] reads as a story. Main type: [`Settings`]. Nothing is decided here.

use std::fmt::Write as _;
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

use crate::in_process::InProcess;
use crate::listening;
use crate::presence::Presence;

pub(crate) mod authorities;
mod certificates;
mod settings_file;
pub(crate) mod upkeep;

pub use certificates::Certificates;

/// What the control plane is told.
#[derive(Debug, Clone)]
pub struct Settings {
    pub data_dir: PathBuf,
    pub gates: FeatureGates,
    /// Which admission plug-ins are on.
    pub plugins: Plugins,
    pub address: SocketAddr,
    /// The address clients are told of if the server listens on all there are.
    pub advertise: Option<IpAddr>,
    /// Names and addresses clients reach the server by, beside the usual ones.
    pub names: Vec<String>,
    pub allow_privileged: bool,
    pub service_range: String,
    pub audit_log: Option<PathBuf>,
    /// Which loops run beside the API, and how.
    pub controllers: controllers::Options,
    /// The time that certificates are made and checked by.
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

    /// Where clients find a server that listens on an address.
    fn advertised(&self, bound: SocketAddr) -> SocketAddr {
        match (bound.ip().is_unspecified(), self.advertise) {
            (false, _) => bound,
            (true, Some(address)) => SocketAddr::new(address, bound.port()),
            (true, None) => on_loopback(bound),
        }
    }

    /// Takes what a file says; the complaints name file, line and field.
    pub fn read(&mut self, file: &Path) -> Result<(), Vec<String>> {
        settings_file::read(self, file)
    }
}

/// Serves until the process is asked to stop.
pub fn run(settings: &Settings) -> Result<()> {
    let started = Instant::now();
    crate::logging::begin();
    upkeep::raise_limits();
    let presence = presence_on(&settings.data_dir)?;
    let (stop, stopping) = watch::channel(false);
    let interrupted = stop.clone();
    ctrlc::set_handler(move || {
        // Nobody listens any more if the server has ended already.
        let _ = interrupted.send(true);
    })
    .context("cannot be told when to stop")?;
    let runtime = crate::memory::runtime()?;
    runtime.block_on(async {
        let server = Server::start(settings).await?;
        server.announce(settings, started.elapsed());
        let asked = async {
            presence.asked_to_end().await;
            let _ = stop.send(true);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = server.serve(stopping) => {}
            () = asked => {}
        }
        eprintln!("stopped");
        Ok(())
    })
}

/// Becomes the one process on a data directory.
pub(crate) fn presence_on(data_dir: &Path) -> Result<Presence> {
    let dir = data_dir.display();
    let taken = Presence::take(data_dir).with_context(|| format!("cannot use {dir}"))?;
    taken.with_context(|| {
        format!("a server or node runs on {dir} already; berth down --data-dir {dir} ends it")
    })
}

/// A control plane that is about to serve.
#[derive(Debug)]
pub struct Server {
    store: Store,
    api: Api,
    listener: Listener,
    address: SocketAddr,
    advertised: SocketAddr,
    loops: controllers::Handle,
    certificates: Certificates,
}

impl Server {
    /// Opens the store, makes what is missing, and binds the socket.
    pub async fn start(settings: &Settings) -> Result<Server> {
        let dir = &settings.data_dir;
        // Keys, and secrets of all namespaces.
        for private in [dir.join("pki"), dir.join("store")] {
            host::files::make_private_directory(&private)?;
        }
        refuse_keys_without_a_store(dir)?;
        let store = upkeep::open(dir)?;
        let certificates =
            Certificates::load_or_make(dir, server_names(settings), settings.clock.clone())?;
        if let Some(audit_log) = &settings.audit_log {
            make_private_file(audit_log)?;
        }
        let tls = certificates.tls();
        let listener =
            Listener::bind_with(settings.address, tls, Limits::default()).await.map_err(
                |error| listening::explained(error, settings.address, "--https-listen-port"),
            )?;
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
            agents: Some(certificates.way_to_agents()),
            ..apiserver::Options::default()
        };
        let api = Api::new(store.clone(), options)
            .await
            .map_err(|refusal| anyhow::anyhow!("the API cannot start: {}", refusal.message))?;
        certificates.publish(reachable(address))?;
        let loops = start_loops(&api, settings, &certificates, store.clone())?;
        Ok(Server { store, api, listener, address, advertised, loops, certificates })
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where clients find it; its certificate is good for that.
    #[must_use]
    pub fn advertised(&self) -> SocketAddr {
        self.advertised
    }

    /// The certificates of the node's servers and clients.
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
        // Nobody may be reading.
        let _ = std::io::stdout().write_all(text.as_bytes());
    }

    /// Serves until told to stop; then everything acknowledged is on disk.
    pub async fn serve(self, mut stop: watch::Receiver<bool>) {
        let compacting = tokio::spawn(upkeep::forget_history(self.store.clone()));
        let reporting = tokio::spawn(upkeep::report_space(self.store.clone()));
        let renewing = tokio::spawn(self.certificates.keep_current());
        self.listener.serve(self.api, stop.clone()).await;
        // The listener ends only when told to.
        let _ = stop.wait_for(|stopping| *stopping).await;
        self.loops.stop().await;
        compacting.abort();
        renewing.abort();
        reporting.abort();
        let store = self.store;
        // Joining the store's threads may take as long as its last write.
        let _ = tokio::task::spawn_blocking(move || store.close()).await;
    }
}

/// The loops that turn what is wanted into what is, on the API in this process.
fn start_loops(
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
    let loops = controllers::run(&client, options)?;
    let counters = Arc::clone(loops.counters());
    api.also_measure(Box::new(move || {
        render_readings(&counters.readings()) + &upkeep::render_metrics(&store)
    }));
    Ok(loops)
}

/// The loops' counters in Prometheus' text form.
fn render_readings(readings: &[controllers::Reading]) -> String {
    let mut text = String::new();
    let mut last = "";
    for controllers::Reading { name, label, value } in readings {
        if *name != last {
            let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
            let _ = writeln!(text, "# TYPE {name} {kind}");
            last = name;
        }
        let _ = match label {
            ("", _) => writeln!(text, "{name} {value}"),
            (key, word) => writeln!(text, "{name}{{{key}=\"{word}\"}} {value}"),
        };
    }
    text
}

/// Refuses to begin a new cluster with the keys of one whose store is gone.
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
            "the keys of this cluster are missing and are made anew; kubeconfigs and tokens that \
             were given out are no longer valid"
        );
    }
    Ok(())
}

/// Makes a file that only its owner reads, unless there is one.
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

/// Where clients on this machine find a server that listens on an address.
fn reachable(address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() { on_loopback(address) } else { address }
}

/// The names the server's certificate is good for.
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
