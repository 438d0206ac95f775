//! The API on a socket: who is calling, bodies received whole, and tunnels to agents.
//!
//! Main type: [`Listener`]. Sockets, TLS and limits are [`https`]'s; here requests become calls and
//! replies become answers.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use https::certificates::Pair;
use https::{Answer, Inbound, Limits, ListenError, Peer, ServerTls};
use hyper::body::Incoming;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::api::Api;
use crate::identity::{AUTHENTICATED, User};
use crate::incoming::MAX_BODY;
use crate::refusal::Refusal;
use crate::reply::Reply;
use crate::request::{Call, Caller, Query};

/// A socket that serves an API.
#[derive(Debug)]
pub struct Listener {
    socket: https::Listener,
}

impl Listener {
    /// Binds a socket. Clients with a certificate of `authority` are known by it; others may come
    /// with a token.
    pub async fn bind(
        address: SocketAddr,
        server: &Pair,
        authority: &str,
        limits: Limits,
    ) -> Result<Listener, ListenError> {
        let socket = https::Listener::bind(address, server, Some(authority), limits).await?;
        Ok(Listener { socket })
    }

    /// Binds a socket that serves with material which can be replaced later.
    pub async fn bind_with(
        address: SocketAddr,
        tls: ServerTls,
        limits: Limits,
    ) -> Result<Listener, ListenError> {
        let socket = https::Listener::bind_with(address, tls, limits).await?;
        Ok(Listener { socket })
    }

    /// Where it listens, with the port the system chose if it was asked to.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.address()
    }

    /// Serves until `stop` says so, then lets requests under way finish for a while.
    pub async fn serve(self, api: Api, stop: watch::Receiver<bool>) {
        let limits = self.socket.limits();
        let handle = move |request, peer: Option<Arc<Peer>>| {
            let api = api.clone();
            async move { answer(&api, peer.as_deref(), limits, request).await }
        };
        self.socket.serve(handle, stop).await;
    }
}

/// A certificate's common name is the user, its organizations are the groups.
fn user_of(peer: &Peer) -> User {
    let mut groups = peer.groups.clone();
    groups.push(AUTHENTICATED.to_owned());
    User { name: peer.name.clone(), groups, ..User::default() }
}

async fn answer(api: &Api, peer: Option<&Peer>, limits: Limits, request: Inbound) -> Answer {
    let (parts, body) = request.into_parts();
    let caller = caller(api, peer, &parts.headers);
    let body = match collected(body, limits).await {
        Ok(body) => body,
        Err(refusal) => return Reply::from(refusal).into_answer(),
    };
    let call = Call {
        method: parts.method,
        path: parts.uri.path().to_owned(),
        query: Query::parse(parts.uri.query().unwrap_or_default()),
        headers: parts.headers,
        body,
        caller,
    };
    api.handle(call).await.into_answer()
}

/// Who a request comes from: its token if it has one, else its connection's certificate.
fn caller(api: &Api, peer: Option<&Peer>, headers: &HeaderMap) -> Caller {
    let header = headers.get("authorization").and_then(|value| value.to_str().ok());
    let token = header.and_then(|header| {
        let (scheme, token) = header.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    match (token.filter(|token| !token.is_empty()), peer) {
        (Some(token), _) => api.identify(token).map_or(Caller::Pretender, Caller::Known),
        (None, Some(peer)) => Caller::Known(user_of(peer)),
        (None, None) => Caller::Nobody,
    }
}

async fn collected(body: Incoming, limits: Limits) -> Result<Bytes, Refusal> {
    let limited = Limited::new(body, MAX_BODY);
    match timeout(limits.body_patience, limited.collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            let message = format!("Request entity too large: limit is {MAX_BODY}");
            let code = StatusCode::PAYLOAD_TOO_LARGE;
            Err(Refusal::new(code, "RequestEntityTooLarge", message))
        }
        Ok(Err(error)) => Err(Refusal::bad_request(format!("the body cannot be read: {error}"))),
        Err(_) => {
            let message = "the body did not arrive in time";
            Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "Timeout", message))
        }
    }
}
