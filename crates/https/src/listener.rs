//! A socket that serves TLS: HTTP/1.1 and HTTP/2, the client's identity, limits, and tunnels.
//!
//! Main type: [`Listener`]. It accepts every connection at once; [`crate::connections`] decides
//! which are kept and for how long. A handler given by the caller answers requests and decides
//! whether to read their bodies.
//!
//! ```text
//!  client ══ connection ══▶ request ──▶ answer
//!     ║                                   │ 101, with a far end
//!     ╚═════════ tunnel, byte for byte ═══╧═══▶ far end
//! ```
//!
//! A tunnel is counted separately, has no deadline, and ends with either side or with the listener.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode};
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use rustls::pki_types::CertificateDer;
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tracing::{debug, info, warn};

use crate::body::Body;
use crate::certificates::Pair;
use crate::clock::Clock;
use crate::connections::{Client, ConnectionGuard, Counts, End, Registry};
use crate::error_log::{ErrorLog, error_chain};
use crate::exchange::{Answer, Inbound, Tunnel};
use crate::outgoing::{Held, outgoing};
use crate::server_tls::ServerTls;

/// The limits of a listener.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections of known clients. Clients without a certificate may take three quarters of them.
    pub connections: usize,
    /// Connections of one known client.
    pub connections_per_client: usize,
    /// Connections of clients that are not authenticated, or not yet. If there are more, the oldest
    /// is closed.
    pub anonymous: usize,
    /// Anonymous connections of one address.
    pub anonymous_per_address: usize,
    /// Requests in flight on one HTTP/2 connection.
    pub streams: u32,
    /// Upgraded connections; they no longer count among the others.
    pub tunnels: usize,
    /// The time for the TLS handshake, for the headers of a request, and for an anonymous client
    /// between two requests or before the first.
    pub handshake_timeout: Duration,
    /// The time for the body of a request.
    pub body_timeout: Duration,
    /// The time that a known client may keep a connection without a request in flight.
    pub idle: Duration,
    /// The time that a client may leave a response unread, except after
    /// [`Answer::for_slow_reader`].
    pub stall: Duration,
    /// The time for requests in flight when the server stops.
    pub drain_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 4096,
            // An HTTP/1.1 client needs one connection per watch.
            connections_per_client: 512,
            // A connection costs about 40 kB.
            anonymous: 2048,
            anonymous_per_address: 1024,
            // Upstream's value, chosen after the rapid-reset attacks on HTTP/2.
            streams: 100,
            tunnels: 1024,
            handshake_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            // Upstream's value; Go clients close idle connections after the same time.
            idle: Duration::from_secs(90),
            stall: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(5),
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

/// The subject of a client's certificate, verified against the authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The common name.
    pub name: String,
    /// The organizations.
    pub groups: Vec<String>,
}

/// A bound socket.
pub struct Listener {
    socket: TcpListener,
    tls: ServerTls,
    limits: Limits,
    registry: Arc<Registry>,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Listener {
    /// Binds a socket. Clients with a certificate of `authority` are identified by it; others are
    /// anonymous. Without an authority no client is asked for a certificate.
    pub async fn bind(
        address: SocketAddr,
        server: &Pair,
        authority: Option<&str>,
        limits: Limits,
    ) -> Result<Listener, ListenError> {
        let tls = ServerTls::new(server, authority, Clock::default())?;
        Listener::bind_with(address, tls, limits).await
    }

    /// Binds a socket with TLS material that can be replaced later.
    pub async fn bind_with(
        address: SocketAddr,
        tls: ServerTls,
        limits: Limits,
    ) -> Result<Listener, ListenError> {
        let bound = TcpListener::bind(address).await;
        let socket = bound.map_err(|source| ListenError::Bind { address, source })?;
        Ok(Listener { socket, tls, limits, registry: Registry::new(limits) })
    }

    /// Returns the bound address, with the port that the system chose if it was asked to.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns a function that counts the connections, also while the listener serves.
    pub fn counts(&self) -> impl Fn() -> Counts + Send + Sync + 'static {
        let registry = Arc::clone(&self.registry);
        move || registry.counts()
    }

    /// Answers requests until `stop` is true, then waits for requests in flight up to the drain
    /// timeout. Tunnels end at once.
    pub async fn serve<H, F>(self, handle: H, mut stop: watch::Receiver<bool>)
    where
        H: Fn(Inbound, Arc<Client>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        // Closed when the last connection has dropped its sender.
        let (alive, mut all_over) = mpsc::channel::<Infallible>(1);
        let permits = Arc::new(Semaphore::new(self.limits.tunnels));
        let serving = Serving {
            tls: self.tls,
            limits: self.limits,
            builder: Arc::new(protocols(self.limits)),
            tunnels: Tunnels { permits, stop: stop.clone() },
            handle,
            _alive: alive,
        };
        let mut errors = ErrorLog::default();
        loop {
            let accepted = tokio::select! {
                accepted = self.socket.accept() => accepted,
                _ = stop.wait_for(|stopping| *stopping) => break,
            };
            match accepted {
                Ok((stream, address)) => {
                    if errors.recovered().is_some() {
                        info!("accepting connections again");
                    }
                    let connection = self.registry.register(address);
                    tokio::spawn(serving.clone().serve(stream, connection));
                }
                // Too many open files, or a client that went away.
                Err(error) => {
                    let error = error_chain(&error);
                    if errors.failed(&error) {
                        warn!(
                            error,
                            retry_in_ms = ACCEPT_RETRY.as_millis(),
                            "cannot accept a connection; closing the oldest anonymous one and retrying"
                        );
                    }
                    self.registry.displace_oldest_anonymous();
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
        drop((self.socket, serving));
        let _ = timeout(self.limits.drain_timeout, all_over.recv()).await;
    }
}

/// The wait after a failed accept. Long enough not to spin, short enough to go unnoticed.
const ACCEPT_RETRY: Duration = Duration::from_millis(10);

/// The state that the connections of a listener share.
#[derive(Clone)]
struct Serving<H> {
    tls: ServerTls,
    limits: Limits,
    builder: Arc<Builder<TokioExecutor>>,
    tunnels: Tunnels,
    handle: H,
    _alive: mpsc::Sender<Infallible>,
}

impl<H, F> Serving<H>
where
    H: Fn(Inbound, Arc<Client>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    /// Serves one connection until it ends or has to end.
    async fn serve(self, stream: TcpStream, guard: ConnectionGuard) {
        let client = &guard.0;
        let tls = self.tls.acceptor();
        let shaken = tokio::select! {
            shaken = handshake(stream, client.address(), &tls, self.limits) => shaken,
            _ = client.ended() => None,
        };
        let Some((stream, peer)) = shaken else { return };
        if let Some(peer) = peer
            && !client.certified(peer)
        {
            return;
        }
        let (handle, tunnels) = (self.handle, self.tunnels);
        let mut stop = tunnels.stop.clone();
        let answering = Arc::clone(client);
        let service = service_fn(move |mut request: Inbound| {
            let in_flight = answering.begin();
            let upgrade = request.extensions_mut().remove::<OnUpgrade>();
            let is_head = request.method() == Method::HEAD;
            // Boxed, because hyper keeps the memory of the future as long as the response lasts.
            let answer = Box::pin(handle(request, Arc::clone(&answering)));
            let tunnels = tunnels.clone();
            async move {
                let mut answer = answer.await;
                let (held, is_for_slow_reader) = (answer.held.take(), answer.is_for_slow_reader);
                let response = tunnels.settle(answer, upgrade);
                let held = Held::new(in_flight, is_for_slow_reader, held);
                Ok::<_, Infallible>(outgoing(response, is_head, held))
            }
        });
        let connection = self.builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        let mut is_stopping = false;
        let end = loop {
            tokio::select! {
                // Errors of a connection concern the client only.
                _ = connection.as_mut() => return,
                end = client.ended() => break end,
                _ = stop.wait_for(|stopping| *stopping), if !is_stopping => {
                    is_stopping = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        };
        if end == End::Idle {
            // The client may be about to send a request; the graceful shutdown shows that it was
            // not read.
            connection.as_mut().graceful_shutdown();
            let _ = timeout(self.limits.handshake_timeout, connection).await;
        }
    }
}

/// The maximum number of bytes of a request that are read ahead of the handler: per stream and per
/// connection of HTTP/2, and per connection of HTTP/1.1, whose headers have to fit in as well.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 256 * 1024;
const BUFFER: usize = 64 * 1024;

fn protocols(limits: Limits) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.handshake_timeout)
        .max_buf_size(BUFFER)
        .keep_alive(true);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(BUFFER)
        .max_header_list_size(64 * 1024)
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(20));
    builder
}

/// Joins upgraded connections to their far ends.
#[derive(Clone)]
struct Tunnels {
    permits: Arc<Semaphore>,
    stop: watch::Receiver<bool>,
}

impl Tunnels {
    /// Returns the response to send. If it switches protocols, both ends are joined after it has
    /// been sent.
    fn settle(&self, answer: Answer, upgrade: Option<OnUpgrade>) -> Response<Body> {
        let Answer { response, tunnel, .. } = answer;
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
    // The client has gone away.
    let Ok(near) = near.await else { return };
    let mut near = TokioIo::new(near);
    tokio::select! {
        // Errors of a tunnel concern its ends only.
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

/// Returns the stream, and the subject of the client's certificate.
async fn handshake(
    stream: TcpStream,
    address: SocketAddr,
    tls: &TlsAcceptor,
    limits: Limits,
) -> Option<(Tls, Option<Peer>)> {
    // Responses are small and latency matters.
    let _ = stream.set_nodelay(true);
    let stream = match timeout(limits.handshake_timeout, tls.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            debug!(%address, %error, "TLS handshake failed");
            return None;
        }
        Err(_) => {
            debug!(%address, "TLS handshake timed out");
            return None;
        }
    };
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let peer = certificates.first().and_then(|certificate| peer_of(certificate));
    Some((stream, peer))
}

fn peer_of(certificate: &CertificateDer<'_>) -> Option<Peer> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let groups = subject.iter_organization().filter_map(|group| group.as_str().ok());
    Some(Peer { name, groups: groups.map(str::to_owned).collect() })
}
