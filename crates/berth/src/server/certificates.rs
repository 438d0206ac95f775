//! Keys and certificates of a control plane: [`Certificates`] loads or makes them, and renews them while
//! the process runs.
//!
//! ```text
//! DIR/pki/  ca.crt ca.key, ca-2.crt …   the authorities, see `authorities`
//!           ca-bundle.crt               the certificates of those that have not expired
//!           server.crt server.key       the API server
//!           token.key                   what service accounts' tokens are signed with
//! DIR/      kubeconfig, viewer.kubeconfig
//! ```
//!
//! [`Certificates::check`] compares everything with the time and replaces what has to be replaced: what
//! is close to its end, what begins only later (the clock was ahead when it was made), and what another
//! authority has to sign. It is called at the start and every minute, so a clock that jumps is noticed.
//! Connections that are open stay open.

use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail};
use apiserver::certificates::{self, Pair, Validity};
use apiserver::{ADMINISTRATORS, VIEWERS};
use https::{Clock, Dialer, ServerTls};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use super::authorities::{Authorities, Authority, save_pair};
use super::kubeconfig;

/// Timeout of a connection to an agent.
const AGENT_TIMEOUT: Duration = Duration::from_secs(10);

/// The group of the client certificate for agents. It has no role in the API: a stolen certificate
/// gives access to agents only.
const API_SERVERS: &str = "berth:apiservers";

/// Interval of the checks; the longest delay after which a changed clock is noticed.
const CHECK_EVERY: Duration = Duration::from_secs(60);

/// The shortest secret for tokens, in bytes.
const MIN_SECRET: usize = 32;

/// The owner of a certificate.
#[derive(Debug, Clone)]
enum Subject {
    /// A server that is reached by these names and addresses.
    Server(Vec<String>),
    Client {
        user: &'static str,
        group: &'static str,
    },
}

/// A certificate that an authority signed.
#[derive(Debug, Clone)]
struct Leaf {
    subject: Subject,
    pair: Pair,
    validity: Validity,
    issuer: Pair,
}

impl Leaf {
    fn sign(subject: Subject, issuer: &Authority, now: SystemTime) -> Result<Leaf> {
        let pair = match &subject {
            Subject::Server(names) => certificates::server_at(&issuer.pair, names, now)?,
            Subject::Client { user, group } => {
                certificates::client_at(&issuer.pair, user, group, now)?
            }
        };
        let validity = certificates::validity(&pair.certificate);
        let validity = validity.context("a new certificate cannot be read back")?;
        Ok(Leaf { subject, pair, validity, issuer: issuer.pair.clone() })
    }

    /// Signs the certificate again if necessary. Returns true if it did.
    fn renew(&mut self, issuer: &Authority, now: SystemTime) -> Result<bool> {
        if self.issuer == issuer.pair && !self.validity.is_due(now) {
            return Ok(false);
        }
        *self = Leaf::sign(self.subject.clone(), issuer, now)?;
        Ok(true)
    }
}

/// The renewable keys and certificates.
#[derive(Debug)]
struct State {
    authorities: Authorities,
    server: Leaf,
    admin: Leaf,
    viewer: Leaf,
    /// The API server's identity towards agents.
    to_agents: Leaf,
    /// The serving certificate of the agent in this process, if there is one.
    agent: Option<(Leaf, ServerTls)>,
    /// The address of the API server, once it is bound.
    address: Option<SocketAddr>,
    /// True if the files are older than the certificates in use.
    unsaved: bool,
}

/// The keys and certificates of a control plane. Clones share them.
#[derive(Debug, Clone)]
pub struct Certificates {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    data_dir: PathBuf,
    clock: Clock,
    token_secret: Vec<u8>,
    tls: ServerTls,
    agent_dialer: Dialer,
    bundle: watch::Sender<String>,
    state: Mutex<State>,
}

impl Certificates {
    /// Loads the data directory's files and creates missing ones. `names` are the API server's
    /// names.
    pub(super) fn load_or_make(
        data_dir: &Path,
        names: Vec<String>,
        clock: Clock,
    ) -> Result<Certificates> {
        let pki = data_dir.join("pki");
        let now = clock.now();
        let mut authorities = Authorities::load(&pki)?;
        let token_secret = load_or_make_secret(&pki.join("token.key"))?;
        authorities.ensure(&pki, now)?;
        let issuer = authorities.issuer(now).context("there is no authority")?;
        // Signed anew at every start: names may have changed.
        let sign = |subject| Leaf::sign(subject, issuer, now);
        let server = sign(Subject::Server(names))?;
        let admin = sign(Subject::Client { user: "kubernetes-admin", group: ADMINISTRATORS })?;
        let viewer = sign(Subject::Client { user: "viewer", group: VIEWERS })?;
        let user = agent::server::API_SERVER;
        let to_agents = sign(Subject::Client { user, group: API_SERVERS })?;
        let bundle = authorities.bundle(now);
        let tls = ServerTls::new(&server.pair, Some(&bundle), clock.clone())?;
        let own = Some(&to_agents.pair);
        let agent_dialer =
            Dialer::new_at(&bundle, own, &["http/1.1"], AGENT_TIMEOUT, clock.clone())?;
        let state = State {
            authorities,
            server,
            admin,
            viewer,
            to_agents,
            agent: None,
            address: None,
            unsaved: true,
        };
        let shared = Shared {
            data_dir: data_dir.to_owned(),
            clock,
            token_secret,
            tls,
            agent_dialer,
            bundle: watch::Sender::new(bundle),
            state: Mutex::new(state),
        };
        Ok(Certificates { shared: Arc::new(shared) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock()
    }

    pub(super) fn token_secret(&self) -> Vec<u8> {
        self.shared.token_secret.clone()
    }

    /// The TLS material of the API server, always current.
    pub(super) fn tls(&self) -> ServerTls {
        self.shared.tls.clone()
    }

    /// Connects to agents with the current identity.
    pub(super) fn agent_dialer(&self) -> Dialer {
        self.shared.agent_dialer.clone()
    }

    /// Returns the certificates of all trusted authorities; the channel follows changes.
    #[must_use]
    pub fn bundle(&self) -> watch::Receiver<String> {
        self.shared.bundle.subscribe()
    }

    /// Writes the files of a server that listens on `address`, and keeps them current.
    pub(super) fn publish(&self, address: SocketAddr) -> Result<()> {
        let mut state = self.state();
        state.address = Some(address);
        self.save(&mut state)
    }

    /// Returns TLS material for the agent in this process with these names. It stays current.
    pub fn serve_agent(&self, names: Vec<String>) -> Result<ServerTls> {
        let mut state = self.state();
        let now = self.shared.clock.now();
        let issuer = state.authorities.issuer(now).context("there is no authority")?;
        let leaf = Leaf::sign(Subject::Server(names), issuer, now)?;
        let bundle = state.authorities.bundle(now);
        let tls = ServerTls::new(&leaf.pair, Some(&bundle), self.shared.clock.clone())?;
        state.agent = Some((leaf, tls.clone()));
        Ok(tls)
    }

    /// Renews what is due now. Returns true if anything was renewed.
    ///
    /// After an error everything that could be renewed is in use; the next call retries the rest.
    pub fn check(&self) -> Result<bool> {
        let now = self.shared.clock.now();
        let mut state = self.state();
        // An authority that cannot be stored is useless; the existing one continues to sign.
        let made = state.authorities.ensure(&self.shared.data_dir.join("pki"), now);
        let State { authorities, server, admin, viewer, to_agents, agent, .. } = &mut *state;
        let issuer = authorities.issuer(now).context("there is no authority")?;
        let bundle = authorities.bundle(now);
        let new_bundle = *self.shared.bundle.borrow() != bundle;
        let mut renewed = new_bundle;
        for leaf in [&mut *server, admin, viewer, to_agents] {
            renewed |= leaf.renew(issuer, now)?;
        }
        if let Some((leaf, tls)) = agent
            && (leaf.renew(issuer, now)? || new_bundle)
        {
            renewed = true;
            tls.replace(&leaf.pair, Some(&bundle))?;
        }
        if renewed {
            self.shared.tls.replace(&server.pair, Some(&bundle))?;
            self.shared.agent_dialer.replace(&bundle, Some(&to_agents.pair))?;
            self.shared.bundle.send_if_modified(|current| {
                let changed = *current != bundle;
                *current = bundle;
                changed
            });
            state.unsaved = true;
        }
        if state.unsaved {
            self.save(&mut state)?;
        }
        made.context("cannot make the next certificate authority")?;
        Ok(renewed)
    }

    /// Writes the files for clients and for the next start.
    fn save(&self, state: &mut State) -> Result<()> {
        let dir = &self.shared.data_dir;
        let pki = dir.join("pki");
        let bundle = self.shared.bundle.borrow().clone();
        host::files::write_atomically(&pki.join("ca-bundle.crt"), bundle.as_bytes())?;
        save_pair(&pki, "server", &state.server.pair)?;
        if let Some(address) = state.address {
            for (file, user, leaf) in [
                ("kubeconfig", "admin", &state.admin),
                ("viewer.kubeconfig", "viewer", &state.viewer),
            ] {
                let text = kubeconfig(&bundle, address, user, &leaf.pair);
                host::files::write_atomically(&dir.join(file), text.as_bytes())?;
            }
        }
        state.unsaved = false;
        Ok(())
    }

    /// Checks every minute of real time, whatever the clock shows.
    pub(super) async fn keep_current(self) {
        loop {
            tokio::time::sleep(CHECK_EVERY).await;
            match self.check() {
                Ok(false) => {}
                Ok(true) => tracing::info!("renewed certificates and kubeconfigs"),
                Err(error) => {
                    let why = format!("{error:#}");
                    tracing::error!(why, "cannot renew all certificates; trying again in a minute");
                }
            }
        }
    }
}

fn load_or_make_secret(path: &Path) -> Result<Vec<u8>> {
    match fs::read(path) {
        Ok(secret) if secret.len() >= MIN_SECRET => Ok(secret),
        Ok(secret) => bail!(
            "{} has {} bytes instead of {MIN_SECRET} or more; put it back from a backup, or remove \
             it to have a new one made (every service-account token then becomes invalid)",
            path.display(),
            secret.len()
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let secret = apiserver::new_secret().to_vec();
            host::files::write_atomically(path, &secret)?;
            Ok(secret)
        }
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}
