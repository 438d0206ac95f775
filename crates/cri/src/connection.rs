//! The connection of a client: [`Connection`], opened on first use and reopened after it is lost.
//!
//! A call without a reachable runtime fails at once with the reason, and so do all further calls
//! until the back-off ends; no call waits. A call whose connection is lost fails, and the next call
//! reconnects.

use std::sync::{Arc, OnceLock};

use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tracing::{debug, info, warn};

use crate::backoff::Backoff;
use crate::endpoint::Endpoint;
use crate::transport;

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) endpoint: Endpoint,
    message_limit: usize,
    channel: OnceLock<Channel>,
    backoff: Arc<Mutex<Backoff>>,
    link: Arc<Mutex<Link>>,
}

/// The state of the connection as last logged.
#[derive(Debug, Default)]
enum Link {
    #[default]
    New,
    Connected,
    /// The reason of the last failure.
    Failed(String),
}

impl Link {
    /// Logs the loss of a connection, which is noticed when the library connects again.
    fn reconnecting(&mut self, endpoint: &Endpoint) {
        if matches!(self, Link::Connected) {
            warn!(%endpoint, "lost the connection to the runtime");
            *self = Link::Failed(String::new());
        }
    }

    fn connected(&mut self, endpoint: &Endpoint) {
        match std::mem::replace(self, Link::Connected) {
            Link::Failed(_) => info!(%endpoint, "reconnected to the runtime"),
            Link::New | Link::Connected => debug!(%endpoint, "connected to the runtime"),
        }
    }

    /// Logs a failure if its reason differs from the last one's.
    fn failed(&mut self, endpoint: &Endpoint, reason: &str) {
        if !matches!(self, Link::Failed(last) if last == reason) {
            warn!(%endpoint, reason, "failed to connect to the runtime");
            *self = Link::Failed(reason.to_owned());
        }
    }
}

/// The reason why there is no connection. The text begins with the failed operation.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unreachable(pub(crate) String);

impl Connection {
    pub(crate) fn new(endpoint: Endpoint, message_limit: usize) -> Self {
        Self {
            endpoint,
            message_limit,
            channel: OnceLock::new(),
            backoff: Arc::default(),
            link: Arc::default(),
        }
    }

    /// Must be called inside a tokio runtime, because the connection runs in a task.
    pub(crate) fn grpc(&self) -> Grpc<Channel> {
        let channel = self.channel.get_or_init(|| self.open());
        Grpc::new(channel.clone())
            .max_decoding_message_size(self.message_limit)
            .max_encoding_message_size(self.message_limit)
    }

    /// Returns the time of the next attempt to connect if the last one failed.
    pub(crate) fn next_attempt(&self) -> Option<Instant> {
        self.backoff.lock().until()
    }

    fn open(&self) -> Channel {
        // Sockets have no host name; gRPC's clients send this one.
        let target = tonic::transport::Endpoint::from_static("http://localhost");
        target.connect_with_connector_lazy(Connector {
            endpoint: self.endpoint.clone(),
            backoff: Arc::clone(&self.backoff),
            link: Arc::clone(&self.link),
        })
    }
}

/// Returns a channel to any other gRPC service on a socket or pipe. It connects on first use.
#[must_use]
pub fn channel(endpoint: &Endpoint) -> tonic::transport::Channel {
    let target = tonic::transport::Endpoint::from_static("http://localhost");
    target.connect_with_connector_lazy(Connector {
        endpoint: endpoint.clone(),
        backoff: Arc::default(),
        link: Arc::default(),
    })
}

/// Connects to the endpoint for the gRPC library and ignores the URI.
struct Connector {
    endpoint: Endpoint,
    backoff: Arc<Mutex<Backoff>>,
    link: Arc<Mutex<Link>>,
}

impl tower_service::Service<http::Uri> for Connector {
    type Response = TokioIo<transport::ClientStream>;
    type Error = Unreachable;
    type Future =
        std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, Unreachable>> + Send>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Unreachable>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Uri) -> Self::Future {
        let endpoint = self.endpoint.clone();
        let (backoff, link) = (Arc::clone(&self.backoff), Arc::clone(&self.link));
        Box::pin(async move {
            link.lock().reconnecting(&endpoint);
            if let Some(reason) = backoff.lock().holds(Instant::now()) {
                return Err(Unreachable(reason.to_owned()));
            }
            match transport::connect(&endpoint).await {
                Ok(stream) => {
                    *backoff.lock() = Backoff::default();
                    link.lock().connected(&endpoint);
                    Ok(TokioIo::new(stream))
                }
                Err(error) => {
                    let reason = endpoint.not_reached(&error);
                    link.lock().failed(&endpoint, &reason);
                    let mut backoff = backoff.lock();
                    *backoff = backoff.failed(Instant::now(), reason.clone());
                    Err(Unreachable(reason))
                }
            }
        })
    }
}
