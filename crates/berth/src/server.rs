//! The control plane as a process: store, API, keys, socket, and an orderly end.
//!
//! [`run`] reads as a story. Main type: [`Settings`]. Nothing is decided here.

use std::fmt::Write as _;
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use apiserver::certificates::{self, Pair};
use apiserver::{ADMINISTRATORS, Api, Limits, Listener, Plugins, VIEWERS};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use https::Dialer;
use objects::{FeatureGates, Gate};
use store::Store;
use tokio::sync::watch;

use crate::in_process::InProcess;
use crate::presence::Presence;

mod settings_file;

/// How long history is kept for watches and paged lists.
const HISTORY: Duration = Duration::from_secs(300);

/// How long an agent may take to be connected to.
const AGENT_PATIENCE: Duration = Duration::from_secs(10);

/// The group of the certificate that agents are shown.
const API_SERVERS: &str = "berth:apiservers";

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
    authority: Pair,
}

impl Server {
    /// Opens the store, makes what is missing, and binds the socket.
    pub async fn start(settings: &Settings) -> Result<Server> {
        let dir = &settings.data_dir;
        // Keys, and secrets of all namespaces.
        let path = dir.join("store");
        for private in [&dir.join("pki"), &path] {
            host::files::make_private_directory(private)?;
        }
        let store = Store::open(&path, store::Options::default())
            .with_context(|| format!("cannot open the store {}", path.display()))?;
        let keys = Keys::load_or_make(settings)?;
        if let Some(audit_log) = &settings.audit_log {
            make_private_file(audit_log)?;
        }
        let listener = Listener::bind(
            settings.address,
            &keys.server,
            &keys.authority.certificate,
            Limits::default(),
        )
        .await?;
        let address = listener.address()?;
        let advertised = settings.advertised(address);
        let options = apiserver::Options {
            gates: settings.gates.clone(),
            plugins: settings.plugins.clone(),
            allow_privileged: settings.allow_privileged,
            service_range: settings.service_range.clone(),
            advertised: advertised.to_string(),
            token_secret: keys.token_secret.clone(),
            audit_log: settings.audit_log.clone(),
            agents: Some(keys.way_to_agents()?),
            ..apiserver::Options::default()
        };
        let api = Api::new(store.clone(), options)
            .await
            .map_err(|refusal| anyhow::anyhow!("the API cannot start: {}", refusal.message))?;
        keys.write_kubeconfigs(dir, address)?;
        let loops = start_loops(&api, settings, &keys.authority)?;
        let authority = keys.authority;
        Ok(Server { store, api, listener, address, advertised, loops, authority })
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

    /// Who vouches for the node's servers and clients.
    #[must_use]
    pub fn authority(&self) -> &Pair {
        &self.authority
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
        let compacting = tokio::spawn(forget_history(self.store.clone()));
        self.listener.serve(self.api, stop.clone()).await;
        // The listener ends only when told to.
        let _ = stop.wait_for(|stopping| *stopping).await;
        self.loops.stop().await;
        compacting.abort();
        let store = self.store;
        // Joining the store's threads may take as long as its last write.
        let _ = tokio::task::spawn_blocking(move || store.close()).await;
    }
}

/// The loops that turn what is wanted into what is, on the API in this process.
fn start_loops(api: &Api, settings: &Settings, authority: &Pair) -> Result<controllers::Handle> {
    let transport = InProcess::new(api.clone(), "system:kube-controller-manager");
    let client = client::Client::new(Arc::new(transport), "kube-controller-manager");
    let mut options = settings.controllers.clone();
    options.scheduling.qos_resources = settings.gates.enabled(Gate::QosResources);
    options.root_ca = Some(authority.certificate.clone());
    let loops = controllers::run(&client, options)?;
    let counters = Arc::clone(loops.counters());
    api.also_measure(Box::new(move || render_readings(&counters.readings())));
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

/// Forgets what was, once nobody can be expected to ask for it.
async fn forget_history(store: Store) {
    let mut at = store.revision();
    loop {
        tokio::time::sleep(HISTORY).await;
        let next = store.revision();
        // A store that cannot compact goes on; it only keeps more.
        let _ = store.compact(at).await;
        at = next;
    }
}

/// Everything secret.
struct Keys {
    authority: Pair,
    server: Pair,
    admin: Pair,
    viewer: Pair,
    /// Who the API server is to the agents of nodes.
    to_agents: Pair,
    token_secret: Vec<u8>,
}

impl Keys {
    fn load_or_make(settings: &Settings) -> Result<Keys> {
        let pki = settings.data_dir.join("pki");
        let authority = match load_pair(&pki, "ca")? {
            Some(pair) => pair,
            None => save_pair(&pki, "ca", certificates::authority("berth-ca")?)?,
        };
        let names = server_names(settings);
        // The rest is signed anew at every start: names change, and certificates run out.
        let server = save_pair(&pki, "server", certificates::server(&authority, &names)?)?;
        let admin = certificates::client(&authority, "kubernetes-admin", ADMINISTRATORS)?;
        let viewer = certificates::client(&authority, "viewer", VIEWERS)?;
        // The group has no role at the API itself: whoever gets hold of it may ask agents only.
        let to_agents = certificates::client(&authority, agent::server::API_SERVER, API_SERVERS)?;
        let path = pki.join("token.key");
        let token_secret = match fs::read(&path) {
            Ok(secret) if secret.len() >= 32 => secret,
            _ => {
                let secret = apiserver::new_secret().to_vec();
                host::files::write_atomically(&path, &secret)?;
                secret
            }
        };
        Ok(Keys { authority, server, admin, viewer, to_agents, token_secret })
    }

    /// Agents are believed by certificates of our authority, and believe ours.
    fn way_to_agents(&self) -> Result<Dialer> {
        let (authority, own) = (&self.authority.certificate, Some(&self.to_agents));
        Ok(Dialer::new(authority, own, &["http/1.1"], AGENT_PATIENCE)?)
    }

    fn write_kubeconfigs(&self, dir: &Path, address: SocketAddr) -> Result<()> {
        let reachable = if address.ip().is_unspecified() { on_loopback(address) } else { address };
        for (file, user, pair) in
            [("kubeconfig", "admin", &self.admin), ("viewer.kubeconfig", "viewer", &self.viewer)]
        {
            let text = kubeconfig(&self.authority.certificate, reachable, user, pair);
            host::files::write_atomically(&dir.join(file), text.as_bytes())?;
        }
        Ok(())
    }
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

fn load_pair(pki: &Path, name: &str) -> Result<Option<Pair>> {
    let (certificate, key) = (pki.join(format!("{name}.crt")), pki.join(format!("{name}.key")));
    if !certificate.exists() || !key.exists() {
        return Ok(None);
    }
    let read = |path: &Path| {
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
    };
    Ok(Some(Pair { certificate: read(&certificate)?, key: read(&key)? }))
}

fn save_pair(pki: &Path, name: &str, pair: Pair) -> Result<Pair> {
    host::files::write_atomically(&pki.join(format!("{name}.key")), pair.key.as_bytes())?;
    host::files::write_atomically(&pki.join(format!("{name}.crt")), pair.certificate.as_bytes())?;
    Ok(pair)
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
