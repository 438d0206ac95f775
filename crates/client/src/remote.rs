//! An API server over HTTPS: [`Remote`], a [`Transport`].
//!
//! Uses HTTP/2 with one connection if the server supports it, otherwise HTTP/1.1 with one
//! connection per concurrent request and a few idle ones. A lost connection is reopened by the next
//! request, with keys and tokens read again from their files. A request that was certainly not sent
//! is retried once; one that may have been sent is not, because only the caller knows whether that
//! is safe.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER, USER_AGENT,
};
use http_body_util::{BodyExt as _, Full};
use https::certificates::Pair;
use https::{DialError, Dialer, MaterialError, error_chain};
use hyper::body::Incoming;
use parking_lot::Mutex;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use thiserror::Error;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tracing::debug;

use crate::client::{Body, BoxFuture, Request, Response, Transport, TransportError};
use crate::kubeconfig::{Kubeconfig, Source, UnreadableError};

mod connection;

use connection::{Connection, Connections, Sent};

/// The characters that need no escaping in a parameter.
const PARAMETER: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b',');

/// The timeouts of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// For connecting.
    pub connect: Duration,
    /// For a response with its whole body, or for the headers of a streamed one.
    pub request: Duration,
    /// The extra time for a watch to end after its requested duration.
    pub watch_slack: Duration,
    /// The time that a token from a file is cached. Upstream uses a minute.
    pub token: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            connect: Duration::from_secs(10),
            request: Duration::from_secs(30),
            watch_slack: Duration::from_secs(30),
            token: Duration::from_secs(60),
        }
    }
}

/// The reason why a request to a server failed.
#[derive(Debug, Error)]
pub enum RemoteError {
    #[error(transparent)]
    Unreadable(#[from] UnreadableError),
    #[error("{}", error_chain(.0))]
    Material(#[from] MaterialError),
    #[error("the token contains characters that are not valid in a header")]
    Token,
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("{}", error_chain(.0))]
    Http(#[from] hyper::Error),
    #[error("no response within {} s", .0.as_secs_f64())]
    TimedOut(Duration),
    #[error("the request cannot be written: {0}")]
    Request(#[from] http::Error),
}

impl From<RemoteError> for TransportError {
    fn from(error: RemoteError) -> TransportError {
        TransportError(error.to_string())
    }
}

/// A remote API server. Clones share the connections.
#[derive(Clone)]
pub struct Remote {
    shared: Arc<Shared>,
}

struct Shared {
    config: Kubeconfig,
    user_agent: HeaderValue,
    timeouts: Timeouts,
    connections: Connections,
    token: Mutex<Option<(Instant, HeaderValue)>>,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote")
            .field("address", &self.shared.config.address)
            .finish_non_exhaustive()
    }
}

impl Remote {
    /// Creates a transport that connects with the first request. Unusable keys and certificates are
    /// reported now.
    pub fn new(
        config: Kubeconfig,
        user_agent: &'static str,
        timeouts: Timeouts,
    ) -> Result<Remote, RemoteError> {
        let user_agent = HeaderValue::from_static(user_agent);
        let shared = Shared {
            config,
            user_agent,
            timeouts,
            connections: Connections::default(),
            token: Mutex::default(),
        };
        shared.dialer()?;
        shared.bearer()?;
        Ok(Remote { shared: Arc::new(shared) })
    }
}

impl Transport for Remote {
    fn send(&self, request: Request) -> BoxFuture<'_, Result<Response, TransportError>> {
        Box::pin(async move { Ok(self.shared.send(request).await?) })
    }
}

impl Shared {
    /// Creates a dialer with the current keys.
    fn dialer(&self) -> Result<Dialer, RemoteError> {
        let pair = match &self.config.identity {
            None => None,
            Some((certificate, key)) => {
                Some(Pair { certificate: certificate.text()?, key: key.text()? })
            }
        };
        let authority = self.config.authority.text()?;
        let protocols = ["h2", "http/1.1"];
        Ok(Dialer::new(&authority, pair.as_ref(), &protocols, self.timeouts.connect)?)
    }

    fn bearer(&self) -> Result<Option<HeaderValue>, RemoteError> {
        let Some(source) = &self.config.token else { return Ok(None) };
        let mut cached = self.token.lock();
        if let Some((until, value)) = &*cached
            && (Instant::now() < *until || matches!(source, Source::Inline(_)))
        {
            return Ok(Some(value.clone()));
        }
        let text = source.text()?;
        let value = HeaderValue::from_str(&format!("Bearer {}", text.trim()));
        let mut value = value.map_err(|_| RemoteError::Token)?;
        value.set_sensitive(true);
        *cached = Some((Instant::now() + self.timeouts.token, value.clone()));
        Ok(Some(value))
    }

    async fn connection(&self) -> Result<Connection, RemoteError> {
        if let Some(connection) = self.connections.take() {
            return Ok(connection);
        }
        let (address, dialer) = (&self.config.address, self.dialer()?);
        let stream = dialer.connect(&address.host, address.port, &self.config.server_name).await?;
        let connection = self.connections.open(stream).await?;
        debug!(server = %address.authority(), "connected to the API server");
        Ok(connection)
    }

    fn outgoing(&self, request: &Request) -> Result<http::Request<Full<Bytes>>, RemoteError> {
        let address = &self.config.address;
        let mut target = format!("https://{}{}", address.authority(), address.base);
        target.push_str(&request.path);
        for (index, (name, value)) in request.query.iter().enumerate() {
            target.push(if index == 0 { '?' } else { '&' });
            target.push_str(name);
            target.push('=');
            target.extend(utf8_percent_encode(value, PARAMETER));
        }
        let mut outgoing = http::Request::builder()
            .method(request.method.clone())
            .uri(target)
            .header(ACCEPT, request.accept)
            .header(USER_AGENT, self.user_agent.clone());
        if !request.content_type.is_empty() {
            outgoing = outgoing.header(CONTENT_TYPE, request.content_type);
        }
        if let Some(bearer) = self.bearer()? {
            outgoing = outgoing.header(AUTHORIZATION, bearer);
        }
        Ok(outgoing.body(Full::new(request.body.clone()))?)
    }

    async fn send(&self, request: Request) -> Result<Response, RemoteError> {
        let deadline = Instant::now() + self.timeouts.request;
        let late = |_| RemoteError::TimedOut(self.timeouts.request);
        let outgoing = self.outgoing(&request)?;
        let answer = timeout_at(deadline, self.answer(outgoing)).await.map_err(late)??;
        let (response, connection) = answer;
        let status = response.status().as_u16();
        let retry_after = response.headers().get(RETRY_AFTER);
        let retry_after = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
        let body = if request.streamed && (200..300).contains(&status) {
            let end = watch_seconds(&request).map(|seconds| {
                Instant::now() + Duration::from_secs(seconds) + self.timeouts.watch_slack
            });
            stream(response.into_body(), end)
        } else {
            let collected = timeout_at(deadline, response.into_body().collect());
            let bytes = collected.await.map_err(late)??.to_bytes();
            self.connections.give_back(connection);
            Body::Whole(bytes)
        };
        Ok(Response { status, retry_after, body })
    }

    /// Sends a request; once more over another connection if the first was gone before it was sent.
    async fn answer(
        &self,
        request: http::Request<Full<Bytes>>,
    ) -> Result<(http::Response<Incoming>, Connection), RemoteError> {
        let mut request = request;
        let mut again = true;
        loop {
            let mut connection = self.connection().await?;
            match connection.send(self.addressed(request, &connection)).await {
                Sent::Answered(response) => return Ok((response, connection)),
                Sent::Failed(error) => return Err(error.into()),
                Sent::Unsent(unsent, error) => {
                    self.connections.forget(&connection);
                    if !again {
                        return Err(error.into());
                    }
                    (again, request) = (false, *unsent);
                }
            }
        }
    }

    /// HTTP/1.1 sends host and path separately, HTTP/2 together.
    fn addressed(
        &self,
        mut request: http::Request<Full<Bytes>>,
        connection: &Connection,
    ) -> http::Request<Full<Bytes>> {
        if connection.is_http1()
            && let Some(path) = request.uri().path_and_query().cloned()
            && let Ok(host) = HeaderValue::from_str(&self.config.address.authority())
        {
            *request.uri_mut() = path.into();
            request.headers_mut().insert(HOST, host);
        }
        request
    }
}

/// Returns the requested duration of a watch, if there is one.
fn watch_seconds(request: &Request) -> Option<u64> {
    let (_, seconds) = request.query.iter().find(|(key, _)| key == "timeoutSeconds")?;
    seconds.parse().ok()
}

/// Streams a body until its end, its deadline, or until the receiver is dropped.
fn stream(mut body: Incoming, end: Option<Instant>) -> Body {
    let (sender, chunks) = mpsc::channel(16);
    tokio::spawn(async move {
        // A server that vanishes without closing the connection would otherwise never end the
        // stream.
        let over = async {
            match end {
                Some(end) => tokio::time::sleep_until(end).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(over);
        loop {
            let frame = tokio::select! {
                frame = body.frame() => frame,
                () = sender.closed() => return,
                () = &mut over => return,
            };
            let Some(Ok(frame)) = frame else { return };
            if let Ok(bytes) = frame.into_data()
                && sender.send(bytes).await.is_err()
            {
                return;
            }
        }
    });
    Body::Stream(chunks)
}
