//! The API on a socket: authentication, the order of admission checks, and bodies.
//!
//! Main type: [`Listener`]. Sockets, TLS and connections are handled by [`https`]; limits per user
//! by [`crate::flow`]. A body is read only from a client that is allowed to send it:
//!
//! ```text
//!  headers ─▶ authentication ─▶ authorization ─▶ flow control ─▶ room for the body ─▶ body ─▶ Api::handle
//!                  401              403             429             429, 413
//! ```

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use https::certificates::Pair;
use https::{Answer, Client, Inbound, Limits, ListenError, Peer, ServerTls};
use hyper::body::{Body as _, Incoming};
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::debug;

use crate::api::Api;
use crate::decode::MAX_BODY;
use crate::error::ApiError;
use crate::flow::Level;
use crate::identity::{AUTHENTICATED, User};
use crate::request::{Caller, Query, Request};
use crate::shares::Share;

/// A socket that serves an API.
#[derive(Debug)]
pub struct Listener {
    socket: https::Listener,
}

impl Listener {
    /// Binds a socket. Clients with a certificate of `authority` are identified by it; others may
    /// send a token.
    pub async fn bind(
        address: SocketAddr,
        server: &Pair,
        authority: &str,
        limits: Limits,
    ) -> Result<Listener, ListenError> {
        let socket = https::Listener::bind(address, server, Some(authority), limits).await?;
        Ok(Listener { socket })
    }

    /// Binds a socket with TLS material that can be replaced later.
    pub async fn bind_with(
        address: SocketAddr,
        tls: ServerTls,
        limits: Limits,
    ) -> Result<Listener, ListenError> {
        let socket = https::Listener::bind_with(address, tls, limits).await?;
        Ok(Listener { socket })
    }

    /// Returns the bound address, with the port that the system chose if it was asked to.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.address()
    }

    /// Serves until `stop` is true, then waits for requests in flight up to the drain timeout.
    pub async fn serve(self, api: Api, stop: watch::Receiver<bool>) {
        let limits = self.socket.limits();
        api.shared.flow.measure_connections(self.socket.counts());
        let handle = move |inbound, client: Arc<Client>| {
            let api = api.clone();
            async move { answer(&api, &client, limits, inbound).await }
        };
        self.socket.serve(handle, stop).await;
    }
}

/// Returns the user of a certificate: the common name is the user name, the organizations are the
/// groups.
fn certificate_user(peer: &Peer) -> User {
    let mut groups = peer.groups.clone();
    groups.push(AUTHENTICATED.to_owned());
    User { name: peer.name.clone(), groups, ..User::default() }
}

async fn answer(api: &Api, client: &Client, limits: Limits, inbound: Inbound) -> Answer {
    let (parts, body) = inbound.into_parts();
    let caller = caller(api, client.peer(), &parts.headers);
    if caller == Caller::InvalidCredentials {
        let path = parts.uri.path();
        debug!(source = %client.address(), path, "rejected an invalid bearer token");
    }
    let request = Request {
        method: parts.method,
        path: parts.uri.path().to_owned(),
        query: Query::parse(parts.uri.query().unwrap_or_default()),
        headers: parts.headers,
        body: Bytes::new(),
        caller,
        source: Some(client.address().ip()),
    };
    // Bodies of anonymous clients are not read: the connection discards them.
    let Caller::Known(user) = request.caller.clone() else {
        return api.handle(request).await.into_answer();
    };
    let flow = &api.shared.flow;
    if !client.known_as(&user.name) {
        return api.refuse(request, flow.too_many_connections(&user)).await.into_answer();
    }
    let has_body = !body.is_end_stream();
    if has_body && api.refuses_headers(&request) {
        return api.handle(request).await.into_answer();
    }
    let ticket = match flow.enter(&request).await {
        Ok(ticket) => ticket,
        Err(error) => return api.refuse(request, error).await.into_answer(),
    };
    let (body, share) = match has_body {
        false => (Bytes::new(), None),
        true => match received(body, flow.level(&user), &user, limits).await {
            Ok(received) => received,
            Err(error) => return api.refuse(request, error).await.into_answer(),
        },
    };
    let reply = api.handle(Request { body, ..request }).await;
    drop(share);
    let answer = reply.into_answer();
    let answer = if ticket.is_for_slow_reader() { answer.for_slow_reader() } else { answer };
    answer.holding(ticket)
}

/// Returns the caller of a request: by its token if it has one, otherwise by the connection's
/// certificate.
fn caller(api: &Api, peer: Option<&Peer>, headers: &HeaderMap) -> Caller {
    let header = headers.get("authorization").and_then(|value| value.to_str().ok());
    let token = header.and_then(|header| {
        let (scheme, token) = header.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    match (token.filter(|token| !token.is_empty()), peer) {
        (Some(token), _) => api.identify(token).map_or(Caller::InvalidCredentials, Caller::Known),
        (None, Some(peer)) => Caller::Known(certificate_user(peer)),
        (None, None) => Caller::Anonymous,
    }
}

/// Reads a body once there is room for it.
async fn received(
    body: Incoming,
    level: &Level,
    user: &User,
    limits: Limits,
) -> Result<(Bytes, Option<Share>), ApiError> {
    // A body of unknown length may have the maximum length.
    let length = body.size_hint().exact().unwrap_or(MAX_BODY as u64);
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > MAX_BODY {
        return Err(too_large());
    }
    let share = level.body(user, length).await?;
    let limited = Limited::new(body, MAX_BODY);
    match timeout(limits.body_timeout, limited.collect()).await {
        Ok(Ok(body)) => Ok((body.to_bytes(), share)),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) => Err(ApiError::bad_request(format!("the body cannot be read: {error}"))),
        Err(_) => {
            let message = "the body did not arrive in time";
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "Timeout", message))
        }
    }
}

fn too_large() -> ApiError {
    ApiError::too_large(format_args!("limit is {MAX_BODY}"))
}
