//! HTTP GET for probes and hooks: [`get`], with the rules and error texts of the kubelet's client.
//!
//! Every request has its own connection. Certificates are not verified, redirects are followed only on the
//! same host, and only the beginning of the body is read. HTTP/1.1 only, no proxies. The caller interprets
//! the status.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use lifecycle::spec::{Container, HttpGetAction, IntOrString};

pub(crate) mod messages;
mod tls;
mod url;
mod write_first;

use messages::DialError;
pub(crate) use url::Url;
use write_first::{ReceivedBytes, WriteFirst};

/// The Kubernetes version in the `User-Agent` header.
pub(crate) const VERSION: &str = "1.37";

/// The largest part of a body that is read. Upstream's value.
const BODY_LIMIT: usize = 10 * 1024;

/// The largest number of requests in a chain of redirects. The value of Go's client.
const REDIRECTS: usize = 10;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Get {
    pub url: Url,
    pub headers: Vec<(String, String)>,
    /// `kube-probe` or `kube-lifecycle`.
    pub agent: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FetchResponse {
    pub status: u16,
    pub body: Vec<u8>,
}

/// The error of a request. `Display` is the text of Go's client.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("Get \"{url}\": {failure}")]
pub(crate) struct GetError {
    pub url: String,
    pub failure: Failure,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum Failure {
    #[error("context deadline exceeded (Client.Timeout exceeded while awaiting headers)")]
    Timeout,
    #[error("http: server gave HTTP response to HTTPS client")]
    NotTls,
    #[error("stopped after {REDIRECTS} redirects")]
    Redirects,
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("{0}")]
    Other(String),
}

/// A port of a probe or hook that cannot be resolved. The texts are upstream's.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PortError {
    #[error("port \"{0}\" not found")]
    NotFound(String),
    #[error("invalid port number: {0}")]
    Invalid(i64),
}

impl Get {
    /// Returns the request of a probe or hook of `container`.
    pub(crate) fn new(
        action: &HttpGetAction,
        container: &Container,
        pod_ip: &str,
        agent: &'static str,
    ) -> Result<Get, PortError> {
        let port = port(&action.port, container)?;
        let host = if action.host.is_empty() { pod_ip } else { &action.host };
        let https = action.scheme.eq_ignore_ascii_case("https");
        let headers = action.http_headers.iter().map(|h| (h.name.clone(), h.value.clone()));
        Ok(Get {
            url: Url::new(https, host, port, &action.path),
            headers: headers.collect(),
            agent,
        })
    }

    fn header(&self, name: &str) -> Option<&str> {
        let mut named = self.headers.iter().filter(|(given, _)| given.eq_ignore_ascii_case(name));
        named.next().map(|(_, value)| value.as_str())
    }
}

/// Resolves a port by number or by name.
pub(crate) fn port(port: &IntOrString, container: &Container) -> Result<u16, PortError> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let named = container.ports.iter().find(|port| port.name == *name);
            match (named, name.parse()) {
                (Some(port), _) => i64::from(port.container_port),
                (None, Ok(number)) => number,
                (None, Err(_)) => return Err(PortError::NotFound(name.clone())),
            }
        }
    };
    match u16::try_from(number) {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(PortError::Invalid(number)),
    }
}

/// Sends a request and follows redirects on the same host. `None` means without a timeout.
pub(crate) async fn get(get: &Get, timeout: Option<Duration>) -> Result<FetchResponse, GetError> {
    // Upstream reports the URL of the current request, not of the first one.
    let mut url = get.url.clone();
    let chain = follow(get, &mut url);
    let outcome = match timeout {
        Some(timeout) => match tokio::time::timeout(timeout, chain).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Failure::Timeout),
        },
        None => chain.await,
    };
    outcome.map_err(|failure| GetError { url: url.to_string(), failure })
}

async fn follow(get: &Get, url: &mut Url) -> Result<FetchResponse, Failure> {
    let mut referer = None;
    let mut host = get.header("host").map(str::to_owned);
    for _ in 0..REDIRECTS {
        let request = request(get, url, host.as_deref(), referer.as_deref())?;
        let got = exchange(url, request).await?;
        let Some((location, relative)) = got.location.as_deref().and_then(|to| url.join(to)) else {
            return Ok(got.got);
        };
        if location.host() != get.url.host() {
            return Ok(got.got);
        }
        if !relative {
            host = None;
        }
        // An HTTPS URL is not sent as referrer to a server without TLS.
        referer = (!url.is_https() || location.is_https()).then(|| url.to_string());
        *url = location;
    }
    Err(Failure::Redirects)
}

fn request(
    get: &Get,
    url: &Url,
    host: Option<&str>,
    referer: Option<&str>,
) -> Result<Request<Empty<Bytes>>, Failure> {
    let invalid = |what: &str, text: &str| {
        Failure::Other(format!("net/http: invalid header field {what} \"{text}\""))
    };
    let mut request = Request::builder().uri(url.target());
    let host = host.filter(|host| !host.is_empty()).map_or_else(|| url.authority(), str::to_owned);
    let mut headers = vec![("Host", host.as_str()), ("Connection", "close")];
    let agent = format!("{}/{VERSION}", get.agent);
    if get.header("user-agent").is_none() {
        headers.push(("User-Agent", &agent));
    }
    if get.header("accept").is_none() {
        headers.push(("Accept", "*/*"));
    }
    headers.extend(referer.filter(|_| get.header("referer").is_none()).map(|r| ("Referer", r)));
    // An empty `Accept` suppresses the header.
    let own = get.headers.iter().filter(|(name, value)| {
        let empty_accept = name.eq_ignore_ascii_case("accept") && value.is_empty();
        !name.eq_ignore_ascii_case("host") && !empty_accept
    });
    headers.extend(own.map(|(name, value)| (name.as_str(), value.as_str())));
    for (name, text) in headers {
        let value = HeaderValue::from_bytes(text.as_bytes());
        let value = value.map_err(|_| invalid("value for", name))?;
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid("name", name))?;
        request = request.header(name, value);
    }
    request.body(Empty::new()).map_err(|error| Failure::Other(error.to_string()))
}

struct Exchange {
    got: FetchResponse,
    /// The target of a redirect.
    location: Option<String>,
}

async fn exchange(url: &Url, request: Request<Empty<Bytes>>) -> Result<Exchange, Failure> {
    let stream = messages::dial(url.host(), url.port()).await?;
    let ends = Endpoints::of(&stream);
    if url.is_https() {
        let stream = tls::connect(stream, url.host()).await?;
        converse(stream, request, &ends).await
    } else {
        converse(stream, request, &ends).await
    }
}

/// The two ends of a connection, for error texts.
struct Endpoints(String);

impl Endpoints {
    fn of(stream: &TcpStream) -> Endpoints {
        let text = |end: std::io::Result<std::net::SocketAddr>| {
            end.map_or_else(|_| "?".to_owned(), |end| end.to_string())
        };
        Endpoints(format!("{}->{}", text(stream.local_addr()), text(stream.peer_addr())))
    }
}

impl fmt::Display for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Empty<Bytes>>,
    ends: &Endpoints,
) -> Result<Exchange, Failure> {
    let heard = ReceivedBytes::default();
    let stream = WriteFirst::new(stream, heard.clone());
    let broken =
        |error: &hyper::Error| Failure::Other(messages::broken(error, &ends.0, &heard.line()));
    let mut builder = hyper::client::conn::http1::Builder::new();
    let handshake = builder.title_case_headers(true).handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.map_err(|error| broken(&error))?;
    let answer = async move {
        let response = sender.send_request(request).await?;
        read(response).await
    };
    let answer = drive(connection, answer).await;
    answer.map_err(|error| broken(&error))
}

/// Polls the connection until the answer is complete. No task is spawned, so that nothing is left behind
/// after a timeout.
async fn drive<T>(connection: impl Future, answer: impl Future<Output = T>) -> T {
    let mut connection = pin!(connection);
    let mut answer = pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        _ = &mut connection => answer.await,
    }
}

async fn read(response: Response<Incoming>) -> Result<Exchange, hyper::Error> {
    let status = response.status().as_u16();
    let leads_on = matches!(status, 301 | 302 | 303 | 307 | 308);
    let location = response.headers().get(http::header::LOCATION).filter(|_| leads_on);
    let location = location.and_then(|to| to.to_str().ok()).map(str::to_owned);
    let mut incoming = response.into_body();
    let mut body = Vec::new();
    while body.len() < BODY_LIMIT {
        let Some(frame) = incoming.frame().await else { break };
        if let Ok(data) = frame?.into_data() {
            body.extend_from_slice(&data[..data.len().min(BODY_LIMIT - body.len())]);
        }
    }
    Ok(Exchange { got: FetchResponse { status, body }, location })
}

#[cfg(test)]
pub(crate) mod tests;
