//! Connections to one server, and which of them is used next: [`Connections`].
//!
//! Does not dial and does not wait for anybody's turn.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// How many connections of HTTP/1.1 are pool for later.
const MAX_IDLE: usize = 4;

/// How often the other side is asked whether it is still there, and how long it may take to say so.
/// Upstream's figures for its clients.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);

type Outgoing = http::Request<Full<Bytes>>;

/// A connection in use.
pub(super) enum Connection {
    /// By whoever has it alone.
    Http1(http1::SendRequest<Full<Bytes>>),
    /// By many. The number tells it from one that was before it.
    Http2(u64, http2::SendRequest<Full<Bytes>>),
}

/// What came of a request.
pub(super) enum Sent {
    Answered(http::Response<Incoming>),
    /// Nothing of it went out.
    Unsent(Box<Outgoing>, hyper::Error),
    Failed(hyper::Error),
}

impl Connection {
    pub(super) fn is_http1(&self) -> bool {
        matches!(self, Connection::Http1(_))
    }

    pub(super) async fn send(&mut self, request: Outgoing) -> Sent {
        let sent = match self {
            Connection::Http1(sender) => sender.try_send_request(request).await,
            Connection::Http2(_, sender) => sender.try_send_request(request).await,
        };
        match sent {
            Ok(response) => Sent::Answered(response),
            Err(mut failure) => match failure.take_message() {
                Some(request) => Sent::Unsent(Box::new(request), failure.into_error()),
                None => Sent::Failed(failure.into_error()),
            },
        }
    }
}

#[derive(Default)]
pub(super) struct Connections {
    pool: Mutex<Pool>,
}

#[derive(Default)]
struct Pool {
    /// Those of HTTP/1.1 that nobody uses.
    idle: Vec<http1::SendRequest<Full<Bytes>>>,
    shared: Option<(u64, http2::SendRequest<Full<Bytes>>)>,
    opened: u64,
}

impl Connections {
    fn pool(&self) -> std::sync::MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that is open, if there is any.
    pub(super) fn take(&self) -> Option<Connection> {
        let mut pool = self.pool();
        if pool.shared.as_ref().is_some_and(|(_, sender)| sender.is_closed()) {
            pool.shared = None;
        }
        if let Some((number, sender)) = &pool.shared {
            return Some(Connection::Http2(*number, sender.clone()));
        }
        while let Some(sender) = pool.idle.pop() {
            if sender.is_ready() && !sender.is_closed() {
                return Some(Connection::Http1(sender));
            }
        }
        None
    }

    /// Speaks over a new stream, in the protocol that both sides agreed on.
    pub(super) async fn open(
        &self,
        stream: TlsStream<TcpStream>,
    ) -> Result<Connection, hyper::Error> {
        let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let stream = TokioIo::new(stream);
        if !http2 {
            let (sender, connection) = http1::handshake(stream).await?;
            // It ends with its sender or with the other side, and requests notice by themselves.
            tokio::spawn(connection);
            return Ok(Connection::Http1(sender));
        }
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            // Answers such as long lists do not wait for permission to go on.
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(4 << 20)
            .handshake(stream)
            .await?;
        tokio::spawn(connection);
        let mut pool = self.pool();
        pool.opened += 1;
        let number = pool.opened;
        pool.shared = Some((number, sender.clone()));
        Ok(Connection::Http2(number, sender))
    }

    /// Keeps a connection whose answer has been read.
    pub(super) fn give_back(&self, connection: Connection) {
        if let Connection::Http1(sender) = connection {
            let mut pool = self.pool();
            if !sender.is_closed() && pool.idle.len() < MAX_IDLE {
                pool.idle.push(sender);
            }
        }
    }

    /// Uses a connection no more.
    pub(super) fn forget(&self, connection: &Connection) {
        if let Connection::Http2(number, _) = connection {
            let mut pool = self.pool();
            if pool.shared.as_ref().is_some_and(|(own, _)| own == number) {
                pool.shared = None;
            }
        }
    }
}
