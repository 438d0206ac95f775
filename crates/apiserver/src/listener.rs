//! The API on a socket: TLS, HTTP/1.1 and HTTP/2, who is calling, and limits.
//!
//! Main type: [`Listener`]. What cannot be served is refused before it costs much: connections
//! beyond a number wait, handshakes and headers have a time, bodies have a size and a time.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::api::Api;
use crate::certificates::Pair;
use crate::identity::{AUTHENTICATED, User};
use crate::incoming::MAX_BODY;
use crate::refusal::Refusal;
use crate::reply::{Body, Reply};
use crate::request::{Call, Caller, Query};

/// What is let in, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub connections: usize,
    /// For the TLS handshake, and for the headers of a request.
    pub patience: Duration,
    /// For the body of a request.
    pub body_patience: Duration,
    /// For requests under way when the server stops.
    pub farewell: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 4096,
            patience: Duration::from_secs(10),
            body_patience: Duration::from_secs(30),
            farewell: Duration::from_secs(5),
        }
    }
}

#[derive(Debug, Error)]
pub enum ListenError {
    #[error("cannot listen on {address}")]
    Bind { address: SocketAddr, source: io::Error },
    #[error("the server's certificate cannot be used")]
    Certificate(#[source] Box<dyn std::error::Error + Send + Sync>),
}

fn unusable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ListenError {
    ListenError::Certificate(error.into())
}

/// A socket that serves an API.
pub struct Listener {
    socket: TcpListener,
    tls: TlsAcceptor,
    limits: Limits,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Listener {
    /// Binds a socket. Clients with a certificate of `authority` are known by it; others may come
    /// with a token.
    pub async fn bind(
        address: SocketAddr,
        server: &Pair,
        authority: &str,
        limits: Limits,
    ) -> Result<Listener, ListenError> {
        let tls = tls_config(server, authority)?;
        let bound = TcpListener::bind(address).await;
        let socket = bound.map_err(|source| ListenError::Bind { address, source })?;
        Ok(Listener { socket, tls: TlsAcceptor::from(Arc::new(tls)), limits })
    }

    /// Where it listens, with the port the system chose if it was asked to.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Serves until `stop` says so, then lets requests under way finish for a while.
    pub async fn serve(self, api: Api, mut stop: watch::Receiver<bool>) {
        let permits = Arc::new(Semaphore::new(self.limits.connections));
        let connections = GracefulShutdown::new();
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.patience)
            .keep_alive(true);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(1000)
            .max_header_list_size(64 * 1024)
            .keep_alive_interval(Duration::from_secs(30))
            .keep_alive_timeout(Duration::from_secs(20));
        let builder = Arc::new(builder);
        loop {
            let permit = tokio::select! {
                permit = Arc::clone(&permits).acquire_owned() => permit,
                _ = stop.wait_for(|stopping| *stopping) => break,
            };
            let Ok(permit) = permit else { break };
            let accepted = tokio::select! {
                accepted = self.socket.accept() => accepted,
                _ = stop.wait_for(|stopping| *stopping) => break,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                // Too many open files, or a client that went away: the next one may do better.
                Err(_) => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                }
            };
            let (tls, api, limits) = (self.tls.clone(), api.clone(), self.limits);
            let (builder, watcher) = (Arc::clone(&builder), connections.watcher());
            tokio::spawn(async move {
                let _permit = permit;
                let Some((stream, user)) = handshake(stream, &tls, limits).await else { return };
                let service = service_fn(move |request| {
                    let (api, user) = (api.clone(), user.clone());
                    async move { Ok::<_, Infallible>(answer(&api, user, limits, request).await) }
                });
                let connection = builder.serve_connection(TokioIo::new(stream), service);
                // How a connection ends is the client's business.
                let _ = watcher.watch(connection.into_owned()).await;
            });
        }
        drop(self.socket);
        let _ = timeout(self.limits.farewell, connections.shutdown()).await;
    }
}

fn tls_config(server: &Pair, authority: &str) -> Result<ServerConfig, ListenError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authority.as_bytes()) {
        roots.add(certificate.map_err(unusable)?).map_err(unusable)?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build()
        .map_err(unusable)?;
    let chain = CertificateDer::pem_slice_iter(server.certificate.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(unusable)?;
    let key = PrivateKeyDer::from_pem_slice(server.key.as_bytes()).map_err(unusable)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(unusable)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

type Tls = tokio_rustls::server::TlsStream<TcpStream>;

/// The stream, and the user its certificate names.
async fn handshake(
    stream: TcpStream,
    tls: &TlsAcceptor,
    limits: Limits,
) -> Option<(Tls, Option<Arc<User>>)> {
    // Answers are small and wanted at once.
    let _ = stream.set_nodelay(true);
    let stream = timeout(limits.patience, tls.accept(stream)).await.ok()?.ok()?;
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let user = certificates.first().and_then(|certificate| user_of(certificate));
    Some((stream, user.map(Arc::new)))
}

/// A certificate's common name is the user, its organizations are the groups.
fn user_of(certificate: &CertificateDer<'_>) -> Option<User> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let mut groups: Vec<String> = subject
        .iter_organization()
        .filter_map(|group| group.as_str().ok())
        .map(str::to_owned)
        .collect();
    groups.push(AUTHENTICATED.to_owned());
    Some(User { name, groups, uid: String::new() })
}

async fn answer(
    api: &Api,
    user: Option<Arc<User>>,
    limits: Limits,
    request: Request<Incoming>,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let caller = caller(api, user, &parts.headers);
    let body = match collected(body, limits).await {
        Ok(body) => body,
        Err(refusal) => return Reply::from(refusal).into_response(),
    };
    let call = Call {
        method: parts.method,
        path: parts.uri.path().to_owned(),
        query: Query::parse(parts.uri.query().unwrap_or_default()),
        headers: parts.headers,
        body,
        caller,
    };
    api.handle(call).await.into_response()
}

/// Who a request comes from: its token if it has one, else its connection's certificate.
fn caller(api: &Api, user: Option<Arc<User>>, headers: &HeaderMap) -> Caller {
    let header = headers.get("authorization").and_then(|value| value.to_str().ok());
    let token = header.and_then(|header| {
        let (scheme, token) = header.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    match (token.filter(|token| !token.is_empty()), user) {
        (Some(token), _) => api.identify(token).map_or(Caller::Pretender, Caller::Known),
        (None, Some(user)) => Caller::Known((*user).clone()),
        (None, None) => Caller::Nobody,
    }
}

async fn collected(body: Incoming, limits: Limits) -> Result<Bytes, Refusal> {
    let limited = Limited::new(body, MAX_BODY);
    match timeout(limits.body_patience, limited.collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            let message = format!("Request entity too large: limit is {MAX_BODY}");
            let code = StatusCode::PAYLOAD_TOO_LARGE;
            Err(Refusal::new(code, "RequestEntityTooLarge", message))
        }
        Ok(Err(error)) => Err(Refusal::bad_request(format!("the body cannot be read: {error}"))),
        Err(_) => {
            let message = "the body did not arrive in time";
            Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "Timeout", message))
        }
    }
}
