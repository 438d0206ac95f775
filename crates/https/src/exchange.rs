//! One request over one connection, including protocol upgrades.
//!
//! Entry points: [`exchange`] sends a request over any stream; [`relay`] converts the response into
//! an answer for the client, with the far end of a tunnel after a protocol switch. The bytes of a
//! tunnel are not inspected.

use std::any::Any;
use std::fmt;

use bytes::Bytes;
use http::header::{CONNECTION, HeaderMap, HeaderName, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use crate::body::Body;

/// The number of chunks of a response that are read ahead of the client. A client may leave all of
/// them unread.
const AHEAD: usize = 4;

/// The far end of an upgraded connection.
pub struct Tunnel {
    pub(crate) stream: Box<dyn Stream>,
    /// Dropped when the tunnel ends.
    _held: Option<Box<dyn Any + Send>>,
}

/// A stream of bytes in both directions.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Tunnel {
    /// Returns a tunnel whose far end is a stream.
    #[must_use]
    pub fn to(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Tunnel {
        Tunnel { stream: Box::new(stream), _held: None }
    }

    /// Keeps a value until the tunnel ends.
    #[must_use]
    pub fn holding(self, held: impl Any + Send) -> Tunnel {
        Tunnel { _held: Some(Box::new(held)), ..self }
    }
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tunnel").finish_non_exhaustive()
    }
}

/// A received request.
pub type Inbound = Request<Incoming>;

/// A response to a client and, after a protocol switch, the far end of the tunnel.
#[derive(Debug)]
pub struct Answer {
    pub response: Response<Body>,
    /// The far end, if the status is 101.
    pub tunnel: Option<Tunnel>,
    pub(crate) held: Option<Box<dyn Any + Send + Sync>>,
    /// True if the client may leave the response unread for any time.
    pub(crate) is_for_slow_reader: bool,
}

impl Answer {
    #[must_use]
    pub fn new(response: Response<Body>, tunnel: Option<Tunnel>) -> Answer {
        Answer { response, tunnel, held: None, is_for_slow_reader: false }
    }

    /// Keeps a value until the response has been sent.
    #[must_use]
    pub fn holding(self, held: impl Any + Send + Sync) -> Answer {
        Answer { held: Some(Box::new(held)), ..self }
    }

    /// Lets the client leave the response unread for any time, for example while a user pages
    /// through a log. Only for responses that hold little memory.
    #[must_use]
    pub fn for_slow_reader(self) -> Answer {
        Answer { is_for_slow_reader: true, ..self }
    }
}

impl From<Response<Body>> for Answer {
    fn from(response: Response<Body>) -> Answer {
        Answer::new(response, None)
    }
}

/// The reason why there is no response.
#[derive(Debug, Error)]
pub enum ExchangeError {
    #[error("the connection ended before the response: {0}")]
    Broken(#[source] hyper::Error),
    #[error("the protocol upgrade failed: {0}")]
    Upgrade(#[source] hyper::Error),
}

/// Returns true if a request asks for a protocol upgrade.
#[must_use]
pub fn is_upgrade(headers: &HeaderMap) -> bool {
    let mut options = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    headers.contains_key(UPGRADE)
        && options
            .any(|list| list.split(',').any(|word| word.trim().eq_ignore_ascii_case("upgrade")))
}

/// Returns the headers that negotiate the protocol, without credentials: those are for this server
/// only.
#[must_use]
pub fn upgrade_headers(headers: &HeaderMap) -> HeaderMap {
    const KEPT: [&str; 7] = [
        "connection",
        "upgrade",
        "sec-websocket-extensions",
        "sec-websocket-key",
        "sec-websocket-version",
        "user-agent",
        "x-stream-protocol-version",
    ];
    let mut kept = HeaderMap::new();
    for name in KEPT {
        for value in headers.get_all(name) {
            kept.append(HeaderName::from_static(name), value.clone());
        }
    }
    // A browser can send a token only in place of a protocol name.
    let protocols = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
    let protocols: Vec<&str> = protocols
        .filter_map(|value| value.to_str().ok())
        .flat_map(|list| list.split(','))
        .map(str::trim)
        .filter(|name| !name.is_empty() && !name.starts_with("base64url.bearer.authorization"))
        .collect();
    if let Ok(value) = protocols.join(", ").parse()
        && !protocols.is_empty()
    {
        kept.insert(SEC_WEBSOCKET_PROTOCOL, value);
    }
    kept
}

/// Sends a request over a stream that is used for nothing else, with HTTP/1.1.
pub async fn exchange<S>(
    stream: S,
    request: Request<Full<Bytes>>,
) -> Result<Response<Incoming>, ExchangeError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let handshake = hyper::client::conn::http1::Builder::new()
        .handshake::<_, Full<Bytes>>(TokioIo::new(stream))
        .await;
    let (mut sender, connection) = handshake.map_err(ExchangeError::Broken)?;
    // The task ends when the response has been read or dropped, or when the tunnel takes the
    // stream.
    tokio::spawn(async move { connection.with_upgrades().await });
    sender.send_request(request).await.map_err(ExchangeError::Broken)
}

/// Converts a received response into an answer to pass on.
pub async fn relay(response: Response<Incoming>) -> Result<Answer, ExchangeError> {
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        let (mut parts, body) = response.into_parts();
        // These headers belong to the upstream connection.
        for name in ["connection", "keep-alive", "transfer-encoding", "upgrade"] {
            parts.headers.remove(name);
        }
        return Ok(Answer::from(Response::from_parts(parts, streamed(body))));
    }
    let mut passed = Response::new(Body::Whole(Bytes::new()));
    *passed.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *passed.headers_mut() = response.headers().clone();
    let upgraded = hyper::upgrade::on(response).await.map_err(ExchangeError::Upgrade)?;
    Ok(Answer::new(passed, Some(Tunnel::to(TokioIo::new(upgraded)))))
}

/// Returns a body that is read as fast as the client takes it. The source is dropped when the
/// client goes away.
pub(crate) fn streamed(mut body: Incoming) -> Body {
    let (sender, chunks) = mpsc::channel(AHEAD);
    tokio::spawn(async move {
        loop {
            let frame = tokio::select! {
                frame = body.frame() => frame,
                () = sender.closed() => return,
            };
            // A body that breaks off looks like a complete one: HTTP has no way to report it here.
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

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn a_change_of_protocol_is_recognised() {
        for (pairs, expected) in [
            (&[("connection", "Upgrade"), ("upgrade", "websocket")][..], true),
            (&[("connection", "keep-alive, upgrade"), ("upgrade", "SPDY/3.1")][..], true),
            (&[("connection", "keep-alive"), ("upgrade", "websocket")][..], false),
            (&[("connection", "upgrade")][..], false),
            (&[][..], false),
        ] {
            assert_eq!(is_upgrade(&headers(pairs)), expected, "{pairs:?}");
        }
    }

    #[test]
    fn credentials_are_not_forwarded() {
        let given = headers(&[
            ("authorization", "Bearer secret"),
            ("cookie", "secret"),
            ("impersonate-user", "root"),
            ("connection", "Upgrade"),
            ("upgrade", "SPDY/3.1"),
            ("x-stream-protocol-version", "v4.channel.k8s.io"),
            ("x-stream-protocol-version", "v3.channel.k8s.io"),
            (
                "sec-websocket-protocol",
                "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.c2VjcmV0",
            ),
        ]);
        let kept = upgrade_headers(&given);
        assert!(!format!("{kept:?}").contains("secret") && !kept.contains_key("impersonate-user"));
        assert_eq!(kept.get_all("x-stream-protocol-version").iter().count(), 2);
        assert_eq!(kept.get("sec-websocket-protocol").unwrap(), "v4.channel.k8s.io");
    }
}
