//! A socket that serves TLS: HTTP/1.1 and HTTP/2, who is calling, limits, and tunnels.
//!
//! Main type: [`Listener`]. What cannot be served is refused before it costs much: connections
//! beyond a number wait, handshakes and headers have a time. Requests are answered by a function
//! that the caller gives; bodies are its business.
//!
//! ```text
//!  client ══ connection ══▶ request ──▶ answer
//!     ║                                   │ 101, with a far end
//!     ╚═════════ tunnel, byte for byte ═══╧═══▶ far end
//! ```
//!
//! A tunnel is counted by itself, has no deadline, and ends with either side or with the listener.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode};
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use rustls::pki_types::CertificateDer;
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::body::Body;
use crate::certificates::Pair;
use crate::clock::Clock;
use crate::exchange::{Answer, Inbound, Tunnel};
use crate::server_tls::ServerTls;

/// What is let in, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub connections: usize,
    /// Connections that changed their protocol; they count no more among the others.
    pub tunnels: usize,
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
            tunnels: 1024,
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

/// Whom a client's certificate names, vouched for by the authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The common name.
    pub name: String,
    /// The organizations.
    pub groups: Vec<String>,
}

/// A socket to serve on.
pub struct Listener {
    socket: TcpListener,
    tls: ServerTls,
    limits: Limits,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Listener {
    /// Binds a socket. Clients with a certificate of `authority` are known by it; others come
    /// without a name. Without an authority nobody is asked for one.
    pub async fn bind(
        address: SocketAddr,
        server: &Pair,
        authority: Option<&str>,
        limits: Limits,
    ) -> Result<Listener, ListenError> {
        let tls = ServerTls::new(server, authority, Clock::default())?;
        Listener::bind_with(address, tls, limits).await
    }

    /// Binds a socket that serves with material which can be replaced later.
    pub async fn bind_with(
        address: SocketAddr,
        tls: ServerTls,
        limits: Limits,
    ) -> Result<Listener, ListenError> {
        let bound = TcpListener::bind(address).await;
        let socket = bound.map_err(|source| ListenError::Bind { address, source })?;
        Ok(Listener { socket, tls, limits })
    }

    /// Where it listens, with the port the system chose if it was asked to.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Answers requests until `stop` says so, then lets those under way finish for a while. Tunnels
    /// end at once.
    pub async fn serve<H, F>(self, handle: H, mut stop: watch::Receiver<bool>)
    where
        H: Fn(Inbound, Option<Arc<Peer>>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        let permits = Arc::new(Semaphore::new(self.limits.connections));
        let tunnels =
            Tunnels { permits: Arc::new(Semaphore::new(self.limits.tunnels)), stop: stop.clone() };
        let connections = GracefulShutdown::new();
        let builder = Arc::new(protocols(self.limits));
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
            let (tls, limits) = (self.tls.acceptor(), self.limits);
            let (handle, tunnels) = (handle.clone(), tunnels.clone());
            let (builder, watcher) = (Arc::clone(&builder), connections.watcher());
            tokio::spawn(async move {
                let _permit = permit;
                let Some((stream, peer)) = handshake(stream, &tls, limits).await else { return };
                let service = service_fn(move |mut request: Inbound| {
                    let upgrade = request.extensions_mut().remove::<OnUpgrade>();
                    let answering = handle(request, peer.clone());
                    let tunnels = tunnels.clone();
                    async move { Ok::<_, Infallible>(tunnels.settle(answering.await, upgrade)) }
                });
                let connection =
                    builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
                // How a connection ends is the client's business.
                let _ = watcher.watch(connection.into_owned()).await;
            });
        }
        drop(self.socket);
        let _ = timeout(self.limits.farewell, connections.shutdown()).await;
    }
}

fn protocols(limits: Limits) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(limits.patience).keep_alive(true);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(1000)
        .max_header_list_size(64 * 1024)
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(20));
    builder
}

/// Joins connections that changed their protocol to their far ends.
#[derive(Clone)]
struct Tunnels {
    permits: Arc<Semaphore>,
    stop: watch::Receiver<bool>,
}

impl Tunnels {
    /// The response to give. If it changes the protocol, both ends are joined once it is out.
    fn settle(&self, answer: Answer, upgrade: Option<OnUpgrade>) -> Response<Body> {
        let Answer { response, tunnel } = answer;
        let Some(far) = tunnel else { return response };
        let Some(near) = upgrade else {
            return refused(StatusCode::BAD_REQUEST, "this connection cannot change its protocol");
        };
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            return refused(StatusCode::SERVICE_UNAVAILABLE, "too many streams are open");
        };
        tokio::spawn(join(near, far, permit, self.stop.clone()));
        response
    }
}

async fn join(
    near: OnUpgrade,
    mut far: Tunnel,
    _permit: OwnedSemaphorePermit,
    mut stop: watch::Receiver<bool>,
) {
    // A client that went away has no use for it.
    let Ok(near) = near.await else { return };
    let mut near = TokioIo::new(near);
    tokio::select! {
        // How a tunnel ends is the business of its ends.
        _ = tokio::io::copy_bidirectional(&mut near, &mut far.stream) => {}
        _ = stop.wait_for(|stopping| *stopping) => {}
    }
}

fn refused(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::Whole(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    let media = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(http::header::CONTENT_TYPE, media);
    response
}

type Tls = tokio_rustls::server::TlsStream<TcpStream>;

/// The stream, and whom its certificate names.
async fn handshake(
    stream: TcpStream,
    tls: &TlsAcceptor,
    limits: Limits,
) -> Option<(Tls, Option<Arc<Peer>>)> {
    // Answers are small and wanted at once.
    let _ = stream.set_nodelay(true);
    let stream = timeout(limits.patience, tls.accept(stream)).await.ok()?.ok()?;
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let peer = certificates.first().and_then(|certificate| peer_of(certificate));
    Some((stream, peer.map(Arc::new)))
}

fn peer_of(certificate: &CertificateDer<'_>) -> Option<Peer> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let groups = subject.iter_organization().filter_map(|group| group.as_str().ok());
    Some(Peer { name, groups: groups.map(str::to_owned).collect() })
}
