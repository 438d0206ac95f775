//! The connections to one server: [`Connections`] selects the one for the next request.
//!
//! Does not dial and does not wait.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::{Mutex, MutexGuard};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// The maximum number of idle HTTP/1.1 connections.
const MAX_IDLE: usize = 4;

/// The interval of keep-alive pings, and the time for a reply. Upstream's values for its clients.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);

type Outgoing = http::Request<Full<Bytes>>;

/// A connection in use.
pub(super) enum Connection {
    /// Used by one request at a time.
    Http1(http1::SendRequest<Full<Bytes>>),
    /// Shared by many requests. The number distinguishes it from earlier connections.
    Http2(u64, http2::SendRequest<Full<Bytes>>),
}

/// The result of a request.
pub(super) enum Sent {
    Answered(http::Response<Incoming>),
    /// The request was not sent.
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
    /// Idle HTTP/1.1 connections.
    idle: Vec<http1::SendRequest<Full<Bytes>>>,
    shared: Option<(u64, http2::SendRequest<Full<Bytes>>)>,
    opened: u64,
}

impl Connections {
    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock()
    }

    /// Returns an open connection, if there is one.
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

    /// Opens an HTTP connection over a new stream, with the negotiated protocol.
    pub(super) async fn open(
        &self,
        stream: TlsStream<TcpStream>,
    ) -> Result<Connection, hyper::Error> {
        let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let stream = TokioIo::new(stream);
        if !http2 {
            let (sender, connection) = http1::handshake(stream).await?;
            // The task ends with its sender or with the peer, and requests report its end.
            tokio::spawn(connection);
            return Ok(Connection::Http1(sender));
        }
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            // Large windows let long lists flow without waiting for updates.
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

    /// Returns a connection to the pool after its response has been read.
    pub(super) fn give_back(&self, connection: Connection) {
        if let Connection::Http1(sender) = connection {
            let mut pool = self.pool();
            if !sender.is_closed() && pool.idle.len() < MAX_IDLE {
                pool.idle.push(sender);
            }
        }
    }

    /// Stops using a connection.
    pub(super) fn forget(&self, connection: &Connection) {
        if let Connection::Http2(number, _) = connection {
            let mut pool = self.pool();
            if pool.shared.as_ref().is_some_and(|(own, _)| own == number) {
                pool.shared = None;
            }
        }
    }
}
