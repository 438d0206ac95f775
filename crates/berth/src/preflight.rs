//! The first contact of `berth agent` with its API server: [`Preflight`].
//!
//! The agent counts as ready after its first successful request and the registration of its node. An error
//! that may pass by itself is retried with back-off and logged whenever it changes. One that only a
//! change of the configuration can correct ends the process.
//!
//! | error | treatment |
//! |---|---|
//! | connection refused or reset, timeout, name not resolved | retry: the server or network may start later |
//! | status 429 or 5xx | retry: the server is overloaded or still starting |
//! | server certificate expired or not valid yet | retry: it may be renewed, or the clock may be set |
//! | server certificate from another authority or for another name | exit |
//! | client certificate rejected in the TLS handshake | exit |
//! | status 401 | exit: the credentials are invalid |
//! | status 403 on the own Node, or no permission to create it | exit |
//!
//! A kubeconfig that cannot be read ends the process before that, where it is read. The agent itself runs
//! while this module retries, because static pods do not need an API server and may even provide it.

use std::path::PathBuf;
use std::time::Duration;

use client::kind::{Kind, NODES};
use client::{Backoff, Client, Error};
use serde_json::{Value, json};
use thiserror::Error;

/// Longest time of one attempt, so that an error is reported within seconds.
const ATTEMPT: Duration = Duration::from_secs(5);

/// Upstream's values for the registration of a node.
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(7));

/// Polling interval for the registered node.
const POLL: Duration = Duration::from_millis(200);

const ACCESS_REVIEWS: Kind = Kind {
    group: "authorization.k8s.io",
    version: "v1",
    kind: "SelfSubjectAccessReview",
    plural: "selfsubjectaccessreviews",
    namespaced: false,
};

/// A permanent error, with its remedy.
#[derive(Debug, Error)]
pub(crate) enum PreflightError {
    #[error(
        "the API server {server} rejected the credentials (401 Unauthorized: {why}); replace the token \
         or client certificate in {}",
        kubeconfig.display()
    )]
    Unauthorized { server: String, kubeconfig: PathBuf, why: String },
    #[error(
        "the API server {server} does not let this client register the node {node:?} (403 Forbidden: \
         {why}); {} needs the credentials of the user system:node:{node} in the group system:nodes",
        kubeconfig.display()
    )]
    Forbidden { server: String, kubeconfig: PathBuf, node: String, why: String },
    #[error(
        "the certificate of the API server {server} is not trusted ({why}); check `server` and \
         `certificate-authority` in {}",
        kubeconfig.display()
    )]
    Untrusted { server: String, kubeconfig: PathBuf, why: String },
    #[error(
        "the API server {server} rejected the client certificate ({why}); replace it in {}",
        kubeconfig.display()
    )]
    ClientCertificate { server: String, kubeconfig: PathBuf, why: String },
}

/// The state of the API server as seen by one attempt.
#[derive(Debug, PartialEq, Eq)]
enum Reached {
    /// The server accepts the credentials, but the node does not exist.
    WithoutNode,
    /// The node exists.
    WithNode,
}

/// The checks of one agent before it is ready.
#[derive(Debug)]
pub(crate) struct Preflight {
    pub(crate) api: Client,
    /// The server's URL, for messages.
    pub(crate) server: String,
    pub(crate) kubeconfig: PathBuf,
    pub(crate) node: String,
    /// False if the administrator creates the Node object (`registerNode: false`).
    pub(crate) registers: bool,
}

impl Preflight {
    /// Makes the first attempt. An error that may pass by itself is logged and is not returned.
    pub(crate) async fn try_once(&self) -> Result<(), PreflightError> {
        self.attempt(&mut Progress::default()).await.map(drop)
    }

    /// Waits until the server accepts the credentials and the node is registered.
    pub(crate) async fn pass(&self) -> Result<(), PreflightError> {
        let mut progress = Progress::default();
        loop {
            match self.attempt(&mut progress).await? {
                Some(Reached::WithNode) => return Ok(()),
                Some(Reached::WithoutNode) if !self.registers => return Ok(()),
                // The agent registers it.
                Some(Reached::WithoutNode) => tokio::time::sleep(POLL).await,
                None => tokio::time::sleep(progress.pause).await,
            }
        }
    }

    /// Makes one attempt; `None` after an error that may pass by itself, which is logged if it is new.
    async fn attempt(&self, progress: &mut Progress) -> Result<Option<Reached>, PreflightError> {
        let why = match tokio::time::timeout(ATTEMPT, self.request()).await {
            Ok(Ok(reached)) => {
                if progress.failures > 0 {
                    tracing::info!(server = self.server, "connected to the API server");
                }
                *progress = Progress::default();
                return Ok(Some(reached));
            }
            Ok(Err(failure)) => match self.permanent(&failure) {
                Some(error) => return Err(error),
                None => failure.text(),
            },
            Err(_) => format!("no response within {} s", ATTEMPT.as_secs()),
        };
        progress.failures += 1;
        progress.pause = RETRY.wait_with_jitter(&self.node, progress.failures);
        if progress.last.as_ref() != Some(&why) {
            let (server, retry_in_ms) = (&self.server, progress.pause.as_millis());
            let most_ms = RETRY.longest.as_millis();
            tracing::warn!(
                server,
                why,
                retry_in_ms,
                most_ms,
                "cannot reach the API server; retrying"
            );
            progress.last = Some(why);
        }
        Ok(None)
    }

    async fn request(&self) -> Result<Reached, Failure> {
        match self.api.get::<Value>(NODES, "", &self.node).await {
            Ok(_) => Ok(Reached::WithNode),
            Err(error) if error.is_not_found() => {
                if self.registers {
                    self.check_may_create().await?;
                }
                Ok(Reached::WithoutNode)
            }
            Err(error) => Err(Failure::Request(error)),
        }
    }

    /// Checks the permission to create the Node. A server without access reviews passes.
    async fn check_may_create(&self) -> Result<(), Failure> {
        let attributes = json!({"verb": "create", "resource": "nodes", "name": self.node});
        let review = json!({"spec": {"resourceAttributes": attributes}});
        let Ok(review) = self.api.create(ACCESS_REVIEWS, "", &review).await else { return Ok(()) };
        if review["status"]["allowed"] != false {
            return Ok(());
        }
        let why = review["status"]["reason"].as_str().filter(|why| !why.is_empty());
        Err(Failure::MayNotCreate(why.unwrap_or("creating nodes is not allowed").to_owned()))
    }

    /// Returns the error to exit with, if retrying cannot help.
    fn permanent(&self, failure: &Failure) -> Option<PreflightError> {
        let (server, kubeconfig) = (self.server.clone(), self.kubeconfig.clone());
        let (node, why) = (self.node.clone(), failure.text());
        let error = match failure {
            Failure::MayNotCreate(_) => {
                return Some(PreflightError::Forbidden { server, kubeconfig, node, why });
            }
            Failure::Request(error) => error,
        };
        match (error, error.status()) {
            (_, 401) => Some(PreflightError::Unauthorized { server, kubeconfig, why }),
            (_, 403) => Some(PreflightError::Forbidden { server, kubeconfig, node, why }),
            (Error::Unreachable(_), _) => match tls_failure(&why)? {
                TlsFailure::Untrusted => {
                    Some(PreflightError::Untrusted { server, kubeconfig, why })
                }
                TlsFailure::ClientCertificate => {
                    Some(PreflightError::ClientCertificate { server, kubeconfig, why })
                }
            },
            _ => None,
        }
    }
}

/// The failed attempts so far.
#[derive(Debug, Default)]
struct Progress {
    failures: u32,
    /// The last logged error.
    last: Option<String>,
    pause: Duration,
}

#[derive(Debug, PartialEq, Eq)]
enum TlsFailure {
    Untrusted,
    ClientCertificate,
}

/// Classifies a permanent TLS error by rustls' text: transports report errors as text only.
fn tls_failure(why: &str) -> Option<TlsFailure> {
    let lower = why.to_lowercase();
    if lower.contains("invalid peer certificate") {
        let passes = ["expired", "not valid yet", "notvalidyet", "revocation"];
        return (!passes.iter().any(|text| lower.contains(text))).then_some(TlsFailure::Untrusted);
    }
    let alerts = ["certificate", "unknownca", "accessdenied", "decrypterror"];
    let is_rejected =
        lower.contains("fatal alert") && alerts.iter().any(|alert| lower.contains(alert));
    is_rejected.then_some(TlsFailure::ClientCertificate)
}

/// The result of a failed attempt.
#[derive(Debug)]
enum Failure {
    Request(Error),
    MayNotCreate(String),
}

impl Failure {
    /// Renders the error with its causes.
    fn text(&self) -> String {
        match self {
            Failure::MayNotCreate(why) => why.clone(),
            Failure::Request(error) => {
                let mut text = error.to_string();
                let mut next = std::error::Error::source(error);
                while let Some(cause) = next {
                    text.push_str(": ");
                    text.push_str(&cause.to_string());
                    next = cause.source();
                }
                text
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_permanent_tls_errors_are_classified() {
        let check = |why: &str, expected: Option<TlsFailure>| {
            assert_eq!(tls_failure(why), expected, "{why}");
        };
        let tls = "tls to 127.0.0.1:6443: invalid peer certificate: ";
        check(&format!("{tls}UnknownIssuer"), Some(TlsFailure::Untrusted));
        let name = format!("{tls}certificate not valid for name \"localhost\"");
        check(&name, Some(TlsFailure::Untrusted));
        check(&format!("{tls}Expired"), None);
        check(&format!("{tls}certificate expired: verification time 5 (UNIX)"), None);
        check(&format!("{tls}certificate not valid yet: verification time 5 (UNIX)"), None);
        check("received fatal alert: CertificateRequired", Some(TlsFailure::ClientCertificate));
        check("dial tcp 127.0.0.1:1: Connection refused (os error 111)", None);
        check("dial tcp 192.0.2.1:6443: i/o timeout after 10 s", None);
    }
}
