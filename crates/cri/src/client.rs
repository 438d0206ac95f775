//! The client of a runtime: [`Client`]. All clones share one connection, which is restored
//! automatically. Calls have the kubelet's deadlines, and errors keep the runtime's message.
//!
//! The client never repeats a call and sends requests unchanged.
//! [`ClassSupport`](crate::ClassSupport) removes the fields that a runtime does not understand.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;
use tokio::time::Instant;
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;
use tracing::{debug, trace};

use crate::connection::Connection;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::rpc::{Rpc, StreamingRpc};
use crate::v1;

/// The largest difference between the timers of two processes for the same deadline.
const TICK: Duration = Duration::from_millis(2);

/// The longest deadline, in practice unlimited. Clocks and gRPC's header cannot hold the longest
/// ones that callers can set.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The pause between two calls to a runtime that responds but is not ready yet.
const UNREADY_PAUSE: Duration = Duration::from_millis(50);

/// Settings of a client.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The kubelet's `runtimeRequestTimeout`: the deadline of calls that have none of their own.
    pub request_timeout: Duration,
    /// The largest message that is sent or accepted.
    pub message_limit: usize,
}

impl Default for Settings {
    fn default() -> Self {
        // Both values are the kubelet's defaults.
        Self { request_timeout: Duration::from_secs(120), message_limit: 16 << 20 }
    }
}

/// A client of one runtime. Clones are cheap and share the connection.
#[derive(Clone, Debug)]
pub struct Client {
    connection: Arc<Connection>,
    request_timeout: Duration,
    /// Overrides the deadline of every call.
    deadline: Option<Duration>,
    observer: Option<Observer>,
}

/// Called after every unary call with its method, its duration and whether it failed.
#[derive(Clone)]
struct Observer(Arc<dyn Fn(&'static str, Duration, bool) + Send + Sync>);

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Observer")
    }
}

impl Client {
    /// Connects when the first call is made.
    pub fn new(endpoint: Endpoint) -> Self {
        Self::with_settings(endpoint, &Settings::default())
    }

    /// Connects when the first call is made.
    pub fn with_settings(endpoint: Endpoint, settings: &Settings) -> Self {
        let connection = Arc::new(Connection::new(endpoint, settings.message_limit));
        let request_timeout = settings.request_timeout.min(LONGEST);
        Self { connection, request_timeout, deadline: None, observer: None }
    }

    /// Returns the endpoint of the runtime.
    pub fn endpoint(&self) -> &Endpoint {
        &self.connection.endpoint
    }

    /// Returns a client of the same runtime with this deadline for every call.
    #[must_use]
    pub fn within(&self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline.min(LONGEST)), ..self.clone() }
    }

    /// Returns a client of the same runtime that calls `observer` after every unary call with its
    /// method, its duration and whether it failed.
    #[must_use]
    pub fn observed(
        &self,
        observer: impl Fn(&'static str, Duration, bool) + Send + Sync + 'static,
    ) -> Self {
        Self { observer: Some(Observer(Arc::new(observer))), ..self.clone() }
    }

    /// Makes the call that belongs to the request type.
    pub async fn call<R: Rpc>(&self, request: R) -> Result<R::Response, Error> {
        let deadline = self.deadline(&|timeout| request.deadline(timeout));
        let codec = ProstCodec::<R, R::Response>::default();
        let began = Instant::now();
        let answer = self.unary(R::METHOD, R::PATH, request, codec, deadline).await;
        let latency = began.elapsed();
        log_call(R::METHOD, latency, answer.as_ref().err());
        if let Some(Observer(observe)) = &self.observer {
            observe(R::METHOD, latency, answer.is_err());
        }
        answer
    }

    /// Makes the call that belongs to the request type. Errors are returned with the first
    /// response.
    pub fn stream<R: StreamingRpc>(&self, request: R) -> Responses<R::Response> {
        let deadline = self.deadline(&|timeout| request.deadline(timeout));
        let connection = Arc::clone(&self.connection);
        let opening = Box::pin(async move {
            let mut grpc = connection.grpc();
            ready(&mut grpc).await?;
            let codec = ProstCodec::<R, R::Response>::default();
            let path = PathAndQuery::from_static(R::PATH);
            let response = grpc.server_streaming(timed(request, deadline), path, codec).await?;
            Ok(response.into_inner())
        });
        Responses {
            endpoint: self.endpoint().clone(),
            method: R::METHOD,
            ends: deadline.map(|length| (length, Instant::now() + length)),
            state: State::Opening(opening),
        }
    }

    /// Waits until the runtime is reachable and returns its version. Fails with the last error when
    /// the timeout ends.
    ///
    /// A runtime that has just started may return various errors until it is ready; only
    /// Unimplemented is final.
    pub async fn connected(&self, timeout: Duration) -> Result<v1::VersionResponse, Error> {
        let end = Instant::now() + timeout.min(LONGEST);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let error = match self.within(left).call(v1::VersionRequest::default()).await {
                Ok(version) => return Ok(version),
                Err(error) if error.is_unimplemented() => return Err(error),
                Err(error) => error,
            };
            let next = match self.connection.next_attempt() {
                Some(next) => next,
                None => Instant::now() + UNREADY_PAUSE,
            };
            if next >= end {
                return Err(error);
            }
            tokio::time::sleep_until(next).await;
        }
    }

    /// Makes a unary call with any codec.
    pub(crate) async fn unary<C>(
        &self,
        method: &'static str,
        path: &'static str,
        request: C::Encode,
        codec: C,
        deadline: Option<Duration>,
    ) -> Result<C::Decode, Error>
    where
        C: tonic::codec::Codec,
        C::Encode: Send + Sync + 'static,
        C::Decode: Send + Sync + 'static,
    {
        let call = async {
            let mut grpc = self.connection.grpc();
            ready(&mut grpc).await?;
            grpc.unary(timed(request, deadline), PathAndQuery::from_static(path), codec).await
        };
        let started = Instant::now();
        let answer = match deadline {
            None => call.await,
            Some(length) => match tokio::time::timeout(length, call).await {
                Ok(Err(status)) if called_off(&status, started + length) => {
                    return Err(Error::deadline(self.endpoint(), method, length));
                }
                Ok(answer) => answer,
                Err(_) => return Err(Error::deadline(self.endpoint(), method, length)),
            },
        };
        match answer {
            Ok(response) => Ok(response.into_inner()),
            Err(status) => Err(Error::from_status(self.endpoint(), method, &status)),
        }
    }

    /// Returns the client's deadline if it is set, else the request's.
    fn deadline(&self, own: &dyn Fn(Duration) -> Option<Duration>) -> Option<Duration> {
        self.deadline.or_else(|| own(self.request_timeout)).map(|deadline| deadline.min(LONGEST))
    }

    pub(crate) fn request_timeout(&self) -> Duration {
        self.deadline.unwrap_or(self.request_timeout)
    }
}

/// Logs a call without its contents, which may include secrets.
fn log_call(method: &'static str, latency: Duration, error: Option<&Error>) {
    match error {
        None => trace!(method, ?latency, "called the runtime"),
        Some(error) => debug!(method, ?latency, code = ?error.code, "call of the runtime failed"),
    }
}

/// Returns true if the runtime cancelled the call because of the deadline. It knows the deadline
/// and may notice the end first.
fn called_off(status: &Status, end: Instant) -> bool {
    status.code() == Code::Cancelled && Instant::now() + TICK >= end
}

/// Waits for the connection. The library reports a failed connection as an error of the next call.
async fn ready(grpc: &mut tonic::client::Grpc<tonic::transport::Channel>) -> Result<(), Status> {
    grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))
}

/// Adds the deadline to the request's header, so that the runtime knows it too.
fn timed<T>(message: T, deadline: Option<Duration>) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(deadline) = deadline {
        request.set_timeout(deadline);
    }
    request
}

/// The responses of a streaming call.
pub struct Responses<T> {
    endpoint: Endpoint,
    method: &'static str,
    /// The deadline, and the time at which it ends.
    ends: Option<(Duration, Instant)>,
    state: State<T>,
}

type OpenFuture<T> = Pin<Box<dyn Future<Output = Result<Streaming<T>, Status>> + Send>>;

enum State<T> {
    /// Can last, because a runtime may send no header before the first response.
    Opening(OpenFuture<T>),
    Open(Box<Streaming<T>>),
    Ended,
}

impl<T> std::fmt::Debug for Responses<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Responses").field("method", &self.method).finish_non_exhaustive()
    }
}

impl<T> Responses<T> {
    /// Returns the next response, or `None` after the last. There are no more responses after an
    /// error. Dropping the future loses no response.
    pub async fn next(&mut self) -> Result<Option<T>, Error> {
        let answer = match self.ends {
            None => Ok(step(&mut self.state).await),
            Some((_, end)) => tokio::time::timeout_at(end, step(&mut self.state)).await,
        };
        if !matches!(answer, Ok(Ok(Some(_)))) {
            self.state = State::Ended;
        }
        match (answer, self.ends) {
            (Ok(Ok(response)), _) => Ok(response),
            (Ok(Err(status)), Some((length, end))) if called_off(&status, end) => {
                Err(Error::deadline(&self.endpoint, self.method, length))
            }
            (Ok(Err(status)), _) => Err(Error::from_status(&self.endpoint, self.method, &status)),
            (Err(_), ends) => {
                let length = ends.map_or(Duration::ZERO, |(length, _)| length);
                Err(Error::deadline(&self.endpoint, self.method, length))
            }
        }
    }

    /// Collects all responses.
    pub async fn all(mut self) -> Result<Vec<T>, Error> {
        let mut all = Vec::new();
        while let Some(response) = self.next().await? {
            all.push(response);
        }
        Ok(all)
    }
}

async fn step<T>(state: &mut State<T>) -> Result<Option<T>, Status> {
    loop {
        match state {
            State::Opening(opening) => *state = State::Open(Box::new(opening.await?)),
            State::Open(stream) => return stream.message().await,
            State::Ended => return Ok(None),
        }
    }
}
