//! A transport to the API server in the same process: [`InProcess`].
//!
//! It uses no encryption, connection or credential: the caller states its user. Everything else is
//! the same as for a remote client.

use std::fmt;

use apiserver::{Api, Body as ReplyBody, Caller, Query, User};
use client::{Body, BoxFuture, Request, Response, Transport, TransportError};
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue, RETRY_AFTER};

/// An API server as a transport.
#[derive(Clone)]
pub struct InProcess {
    api: Api,
    user: User,
}

impl InProcess {
    /// Creates a transport that sends requests as one of the process's own components.
    #[must_use]
    pub fn new(api: Api, name: &str) -> InProcess {
        InProcess { api, user: User::internal(name) }
    }
}

impl fmt::Debug for InProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InProcess").field("user", &self.user.name).finish_non_exhaustive()
    }
}

impl Transport for InProcess {
    fn send(&self, request: Request) -> BoxFuture<'_, Result<Response, TransportError>> {
        let mut headers = http::HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static(request.accept));
        if !request.content_type.is_empty() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(request.content_type));
        }
        let request = apiserver::Request {
            method: request.method,
            path: request.path,
            query: Query::of(request.query),
            headers,
            body: request.body,
            caller: Caller::Known(self.user.clone()),
            source: None,
        };
        Box::pin(async move {
            let reply = self.api.handle(request).await;
            let retry_after = reply.headers.get(RETRY_AFTER);
            Ok(Response {
                status: reply.status.as_u16(),
                retry_after: retry_after.and_then(|value| value.to_str().ok()?.parse().ok()),
                body: match reply.body {
                    ReplyBody::Whole(bytes) => Body::Whole(bytes),
                    ReplyBody::Stream(chunks) => Body::Stream(chunks),
                },
            })
        })
    }
}
