//! The connection behind a client: [`Connection`], made on first use and made again when it is gone.
//!
//! A call that finds no runtime fails at once with the reason, and so does every further one until the
//! back-off's pause is over; none waits. A call whose connection ends fails, and the next one connects
//! anew.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use hyper_util::rt::TokioIo;
use tokio::time::Instant;
use tonic::client::Grpc;
use tonic::transport::Channel;

use crate::backoff::Backoff;
use crate::endpoint::Endpoint;
use crate::transport;

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) endpoint: Endpoint,
    message_limit: usize,
    channel: OnceLock<Channel>,
    backoff: Arc<Mutex<Backoff>>,
}

/// Why there is no connection. The text begins with what was tried.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unreachable(pub(crate) String);

impl Connection {
    pub(crate) fn new(endpoint: Endpoint, message_limit: usize) -> Self {
        Self { endpoint, message_limit, channel: OnceLock::new(), backoff: Arc::default() }
    }

    /// To be called where a tokio runtime is, since the connection lives in a task of its own.
    pub(crate) fn grpc(&self) -> Grpc<Channel> {
        let channel = self.channel.get_or_init(|| self.open());
        Grpc::new(channel.clone())
            .max_decoding_message_size(self.message_limit)
            .max_encoding_message_size(self.message_limit)
    }

    /// When the next attempt to connect will be made, if the last one failed.
    pub(crate) fn next_attempt(&self) -> Option<Instant> {
        lock(&self.backoff).until()
    }

    fn open(&self) -> Channel {
        // Sockets have no host; gRPC's own clients say this one.
        let target = tonic::transport::Endpoint::from_static("http://localhost");
        let (endpoint, backoff) = (self.endpoint.clone(), Arc::clone(&self.backoff));
        target.connect_with_connector_lazy(Connector { endpoint, backoff })
    }
}

/// A channel to any other service that is spoken with over such a socket or pipe. It connects when it is
/// first used.
#[must_use]
pub fn channel(endpoint: &Endpoint) -> tonic::transport::Channel {
    let target = tonic::transport::Endpoint::from_static("http://localhost");
    let backoff = Arc::default();
    target.connect_with_connector_lazy(Connector { endpoint: endpoint.clone(), backoff })
}

/// Connects for the gRPC library, whatever address that believes in.
struct Connector {
    endpoint: Endpoint,
    backoff: Arc<Mutex<Backoff>>,
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
        let (endpoint, backoff) = (self.endpoint.clone(), Arc::clone(&self.backoff));
        Box::pin(async move {
            if let Some(reason) = lock(&backoff).holds(Instant::now()) {
                return Err(Unreachable(reason.to_owned()));
            }
            match transport::connect(&endpoint).await {
                Ok(stream) => {
                    *lock(&backoff) = Backoff::default();
                    Ok(TokioIo::new(stream))
                }
                Err(error) => {
                    let reason = endpoint.not_reached(&error);
                    let mut backoff = lock(&backoff);
                    *backoff = backoff.failed(Instant::now(), reason.clone());
                    Err(Unreachable(reason))
                }
            }
        })
    }
}

/// A back-off is a value that is replaced whole, so a panic elsewhere cannot have left half of one.
fn lock(backoff: &Mutex<Backoff>) -> std::sync::MutexGuard<'_, Backoff> {
    backoff.lock().unwrap_or_else(PoisonError::into_inner)
}
