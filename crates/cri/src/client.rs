//! The client of a runtime: [`Client`]. One connection, shared by all clones, that comes back by
//! itself; the deadlines of the kubelet; errors with the runtime's own words.
//!
//! It repeats no call, and puts on the wire what it is given: see [`ClassSupport`](crate::ClassSupport)
//! for what must not go to every runtime.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;
use tokio::time::Instant;
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::connection::Connection;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::rpc::{Rpc, StreamingRpc};
use crate::v1;

/// By how much timers of two processes may differ on when the same time is over.
const TICK: Duration = Duration::from_millis(2);

/// A deadline that nobody lives to see. Clocks and gRPC's header have no room for the longest ones that
/// can be asked for.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Between two questions to a runtime that answers, but is not ready yet.
const UNREADY_PAUSE: Duration = Duration::from_millis(50);

/// What a client does as it is told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The kubelet's `runtimeRequestTimeout`: how long calls take at most, save those that say how
    /// long themselves.
    pub request_timeout: Duration,
    /// The largest message that is sent or taken.
    pub message_limit: usize,
}

impl Default for Settings {
    fn default() -> Self {
        // Both are the kubelet's.
        Self { request_timeout: Duration::from_secs(120), message_limit: 16 << 20 }
    }
}

/// A runtime, as seen from here. Clones are cheap and share the connection.
#[derive(Clone, Debug)]
pub struct Client {
    connection: Arc<Connection>,
    request_timeout: Duration,
    /// For all calls, whatever they say themselves.
    deadline: Option<Duration>,
    observer: Option<Observer>,
}

/// Told of every call with one response when it is over: its method, how long it took, and whether it
/// failed.
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

    /// Where the runtime is.
    pub fn endpoint(&self) -> &Endpoint {
        &self.connection.endpoint
    }

    /// The same runtime, with this deadline for every call.
    #[must_use]
    pub fn within(&self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline.min(LONGEST)), ..self.clone() }
    }

    /// The same runtime; `observer` is told of every call with one response when it is over: its
    /// method, how long it took, and whether it failed.
    #[must_use]
    pub fn observed(
        &self,
        observer: impl Fn(&'static str, Duration, bool) + Send + Sync + 'static,
    ) -> Self {
        Self { observer: Some(Observer(Arc::new(observer))), ..self.clone() }
    }

    /// Makes the call that the request is for.
    pub async fn call<R: Rpc>(&self, request: R) -> Result<R::Response, Error> {
        let deadline = self.deadline(&|timeout| request.deadline(timeout));
        let codec = ProstCodec::<R, R::Response>::default();
        let began = Instant::now();
        let answer = self.unary(R::METHOD, R::PATH, request, codec, deadline).await;
        if let Some(Observer(observe)) = &self.observer {
            observe(R::METHOD, began.elapsed(), answer.is_err());
        }
        answer
    }

    /// Makes the call that the request is for. What comes of it is known with the first response.
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

    /// Waits until the runtime is there, and says who it is. When the patience is at an end, it fails
    /// with what stood in the way last.
    ///
    /// A runtime that has just started may answer for a while that it is not ready, each in its own
    /// words; only that it does not know the protocol at all is final.
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

    /// One request, one response, in any encoding.
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

    /// Ours if there is one, or else the request's own.
    fn deadline(&self, own: &dyn Fn(Duration) -> Option<Duration>) -> Option<Duration> {
        self.deadline.or_else(|| own(self.request_timeout)).map(|deadline| deadline.min(LONGEST))
    }

    pub(crate) fn request_timeout(&self) -> Duration {
        self.deadline.unwrap_or(self.request_timeout)
    }
}

/// The runtime knows the deadline too, may be first to notice that it is over, and then calls off what
/// it does.
fn called_off(status: &Status, end: Instant) -> bool {
    status.code() == Code::Cancelled && Instant::now() + TICK >= end
}

/// Waits for the connection. The library reports none as an error of the call that follows.
async fn ready(grpc: &mut tonic::client::Grpc<tonic::transport::Channel>) -> Result<(), Status> {
    grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))
}

/// The request with its deadline in the header, so that the runtime knows it too.
fn timed<T>(message: T, deadline: Option<Duration>) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(deadline) = deadline {
        request.set_timeout(deadline);
    }
    request
}

/// The responses of a streaming call, as they come.
pub struct Responses<T> {
    endpoint: Endpoint,
    method: &'static str,
    /// The deadline and when it is over.
    ends: Option<(Duration, Instant)>,
    state: State<T>,
}

type OpenFuture<T> = Pin<Box<dyn Future<Output = Result<Streaming<T>, Status>> + Send>>;

enum State<T> {
    /// A runtime may say nothing at all until it has a first response, so this can last.
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
    /// The next response, or `None` after the last. After an error there are no more. A call that is
    /// dropped half-way loses nothing.
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

    /// All responses up to the last.
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
