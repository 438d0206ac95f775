//! A small Kubernetes API client: [`Client`] over a [`Transport`].
//!
//! A transport carries one request and returns one response: within a process it calls the API
//! server as a function, otherwise it uses HTTPS. The client knows paths, options, pages and
//! errors. It neither retries nor caches: callers retry, [`crate::informer`] caches.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;
use thiserror::Error;
use tokio::sync::mpsc;

use crate::kind::Kind;

mod watch;

pub use watch::{Lines, Watch, WatchEvent};

pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The page size of lists. Upstream's value.
const PAGE: usize = 500;

/// Carries requests to an API server.
pub trait Transport: Send + Sync + fmt::Debug {
    fn send(&self, request: Request) -> BoxFuture<'_, Result<Response, TransportError>>;
}

/// A request to an API server.
#[derive(Debug, Clone)]
pub struct Request {
    pub method: Method,
    pub path: String,
    /// Parameters, not escaped.
    pub query: Vec<(String, String)>,
    /// The media type of the body, or empty.
    pub content_type: &'static str,
    pub accept: &'static str,
    pub body: Bytes,
    /// True if the body of the response is to be streamed.
    pub streamed: bool,
}

#[derive(Debug)]
pub struct Response {
    pub status: u16,
    /// The `Retry-After` header, in seconds.
    pub retry_after: Option<u32>,
    pub body: Body,
}

/// The bytes of a response, complete or as a stream.
#[derive(Debug)]
pub enum Body {
    Whole(Bytes),
    Stream(mpsc::Receiver<Bytes>),
}

impl Body {
    /// Returns the next chunk; `None` at the end. A broken connection also ends the body, which
    /// only its contents can show.
    pub async fn next(&mut self) -> Option<Bytes> {
        match self {
            Body::Whole(bytes) => Some(std::mem::take(bytes)).filter(|bytes| !bytes.is_empty()),
            Body::Stream(chunks) => chunks.recv().await,
        }
    }

    async fn whole(mut self) -> Bytes {
        if let Body::Whole(bytes) = self {
            return bytes;
        }
        let mut all = Vec::new();
        while let Some(chunk) = self.next().await {
            all.extend_from_slice(&chunk);
        }
        all.into()
    }
}

/// The reason why there is no response.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct TransportError(pub String);

/// The reason why a request failed.
#[derive(Debug, Error)]
pub enum Error {
    #[error("{}", .0.message)]
    Refused(Box<Refused>),
    #[error("the API server cannot be reached")]
    Unreachable(#[source] TransportError),
    #[error("cannot decode the response to {request}")]
    Garbled { request: String, source: serde_json::Error },
    #[error("timed out waiting for the informer cache to observe the write")]
    Behind,
}

/// A Status of the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    pub status: u16,
    pub reason: String,
    pub message: String,
    /// Reasons of the causes, such as `NamespaceTerminating`.
    pub causes: Vec<String>,
    pub retry_after: Option<u32>,
}

impl Error {
    fn refused(&self) -> Option<&Refused> {
        match self {
            Error::Refused(refused) => Some(refused),
            _ => None,
        }
    }

    /// Returns the HTTP status, zero without a response.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.refused().map_or(0, |refused| refused.status)
    }

    #[must_use]
    pub fn reason(&self) -> &str {
        self.refused().map_or("", |refused| &refused.reason)
    }

    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.status() == 404
    }

    #[must_use]
    pub fn is_conflict(&self) -> bool {
        self.reason() == "Conflict"
    }

    #[must_use]
    pub fn is_already_there(&self) -> bool {
        self.reason() == "AlreadyExists"
    }

    /// Returns true if the resource version is compacted: list again.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.status() == 410
    }

    #[must_use]
    pub fn is_namespace_terminating(&self) -> bool {
        self.refused().is_some_and(|r| r.causes.iter().any(|cause| cause == "NamespaceTerminating"))
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct StatusBody {
    reason: String,
    message: String,
    details: Option<StatusDetails>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct StatusDetails {
    causes: Vec<StatusCause>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct StatusCause {
    reason: String,
}

pub(crate) fn refused(status: u16, retry_after: Option<u32>, body: &[u8]) -> Error {
    // A body that is not a Status is passed on as text.
    let status_body: StatusBody = serde_json::from_slice(body).unwrap_or_else(|_| StatusBody {
        message: String::from_utf8_lossy(body).into_owned(),
        ..StatusBody::default()
    });
    let causes = status_body.details.unwrap_or_default().causes;
    Error::Refused(Box::new(Refused {
        status,
        reason: status_body.reason,
        message: status_body.message,
        causes: causes.into_iter().map(|cause| cause.reason).collect(),
        retry_after,
    }))
}

/// The kind of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchKind {
    Merge,
    StrategicMerge,
    /// Server-side apply that takes over fields of other managers.
    Apply,
}

/// The propagation policy for dependents of a deleted object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    Background,
    Foreground,
    Orphan,
}

impl Propagation {
    fn name(self) -> &'static str {
        match self {
            Propagation::Background => "Background",
            Propagation::Foreground => "Foreground",
            Propagation::Orphan => "Orphan",
        }
    }
}

/// The options of a deletion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeleteOptions<'a> {
    /// Precondition: deletes only the object with this uid, not another of the same name.
    pub uid: &'a str,
    pub grace_seconds: Option<i64>,
    pub propagation: Option<Propagation>,
}

impl DeleteOptions<'_> {
    /// Returns options for the object with this uid.
    #[must_use]
    pub fn of_uid(uid: &str) -> DeleteOptions<'_> {
        DeleteOptions { uid, ..DeleteOptions::default() }
    }

    fn body(&self) -> Value {
        let mut body = serde_json::json!({"kind": "DeleteOptions", "apiVersion": "v1"});
        if !self.uid.is_empty() {
            body["preconditions"]["uid"] = self.uid.into();
        }
        if let Some(seconds) = self.grace_seconds {
            body["gracePeriodSeconds"] = seconds.into();
        }
        if let Some(propagation) = self.propagation {
            body["propagationPolicy"] = propagation.name().into();
        }
        body
    }
}

/// A selection of objects of a kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// Empty for all namespaces.
    pub namespace: String,
    pub field_selector: String,
    pub label_selector: String,
    /// Only the metadata.
    pub metadata_only: bool,
}

impl Scope {
    fn query(&self) -> Vec<(String, String)> {
        let selectors =
            [("fieldSelector", &self.field_selector), ("labelSelector", &self.label_selector)];
        let given = selectors.into_iter().filter(|(_, value)| !value.is_empty());
        given.map(|(name, value)| (name.to_owned(), value.clone())).collect()
    }
}

const JSON: &str = "application/json";
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// Sends requests to an API server on behalf of one component. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    transport: Arc<dyn Transport>,
    /// The field manager of writes.
    manager: &'static str,
}

#[derive(Deserialize)]
struct Page<'a> {
    #[serde(default)]
    metadata: PageMetadata,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PageMetadata {
    #[serde(rename = "resourceVersion")]
    revision: String,
    #[serde(rename = "continue")]
    rest: String,
}

impl Client {
    #[must_use]
    pub fn new(transport: Arc<dyn Transport>, manager: &'static str) -> Client {
        Client { transport, manager }
    }

    /// Returns a client of the same server with another field manager.
    #[must_use]
    pub fn named(&self, manager: &'static str) -> Client {
        Client { transport: self.transport.clone(), manager }
    }

    async fn exchange(&self, request: Request) -> Result<Response, Error> {
        let response = self.transport.send(request).await.map_err(Error::Unreachable)?;
        if (200..300).contains(&response.status) {
            return Ok(response);
        }
        let (status, retry_after) = (response.status, response.retry_after);
        Err(refused(status, retry_after, &response.body.whole().await))
    }

    async fn call<T: DeserializeOwned>(&self, request: Request) -> Result<T, Error> {
        let named = format!("{} {}", request.method, request.path);
        let body = self.exchange(request).await?.body.whole().await;
        serde_json::from_slice(&body).map_err(|source| Error::Garbled { request: named, source })
    }

    fn write(&self, method: Method, path: String, body: &Value) -> Request {
        Request {
            method,
            path,
            query: vec![("fieldManager".to_owned(), self.manager.to_owned())],
            content_type: JSON,
            accept: JSON,
            body: body.to_string().into(),
            streamed: false,
        }
    }

    pub async fn get<T: DeserializeOwned>(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
    ) -> Result<T, Error> {
        self.call(read(kind.path(namespace, name, ""), JSON)).await
    }

    /// Lists all objects of a scope page by page and passes each to `take`. Returns the resource
    /// version of the list.
    pub async fn list(
        &self,
        kind: Kind,
        scope: &Scope,
        mut take: impl FnMut(&RawValue) -> Result<(), serde_json::Error>,
    ) -> Result<String, Error> {
        let accept = if scope.metadata_only { METADATA_LIST } else { JSON };
        let mut rest = String::new();
        loop {
            let mut request = read(kind.path(&scope.namespace, "", ""), accept);
            request.query = scope.query();
            request.query.push(("limit".to_owned(), PAGE.to_string()));
            if !rest.is_empty() {
                request.query.push(("continue".to_owned(), rest));
            }
            let named = format!("GET {}", request.path);
            let garbled = |source| Error::Garbled { request: named.clone(), source };
            let body = self.exchange(request).await?.body.whole().await;
            let page: Page<'_> = serde_json::from_slice(&body).map_err(garbled)?;
            for item in page.items.iter().flatten() {
                take(item).map_err(garbled)?;
            }
            if page.metadata.rest.is_empty() {
                return Ok(page.metadata.revision);
            }
            rest = page.metadata.rest;
        }
    }

    /// Lists all objects of a scope as values.
    pub async fn list_values(&self, kind: Kind, scope: &Scope) -> Result<Vec<Value>, Error> {
        let mut all = Vec::new();
        self.list(kind, scope, |raw| {
            all.push(serde_json::from_str(raw.get())?);
            Ok(())
        })
        .await?;
        Ok(all)
    }

    /// Watches changes after a resource version, with bookmarks.
    pub async fn watch(
        &self,
        kind: Kind,
        scope: &Scope,
        revision: &str,
        seconds: u64,
    ) -> Result<Watch, Error> {
        let accept = if scope.metadata_only { METADATA } else { JSON };
        let mut request = read(kind.path(&scope.namespace, "", ""), accept);
        request.streamed = true;
        request.query = scope.query();
        for (name, value) in [
            ("watch", "true".to_owned()),
            ("resourceVersion", revision.to_owned()),
            ("allowWatchBookmarks", "true".to_owned()),
            ("timeoutSeconds", seconds.to_string()),
        ] {
            request.query.push((name.to_owned(), value));
        }
        let named = format!("WATCH {}", request.path);
        Ok(Watch::new(named, self.exchange(request).await?.body))
    }

    /// Gets a non-resource path as a stream.
    pub async fn document(&self, path: &str) -> Result<Body, Error> {
        let request = Request { streamed: true, ..read(path.to_owned(), "*/*") };
        Ok(self.exchange(request).await?.body)
    }

    pub async fn create(
        &self,
        kind: Kind,
        namespace: &str,
        object: &Value,
    ) -> Result<Value, Error> {
        self.call(self.write(Method::POST, kind.path(namespace, "", ""), object)).await
    }

    /// Creates a subresource, such as a pod's binding, and ignores the response.
    pub async fn create_subresource(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        subresource: &str,
        object: &Value,
    ) -> Result<(), Error> {
        let request = self.write(Method::POST, kind.path(namespace, name, subresource), object);
        self.exchange(request).await.map(|_| ())
    }

    /// Creates a subresource and returns the response, such as a token.
    pub async fn create_subresource_returning(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        subresource: &str,
        object: &Value,
    ) -> Result<Value, Error> {
        self.call(self.write(Method::POST, kind.path(namespace, name, subresource), object)).await
    }

    /// Replaces an object, by the names in it.
    pub async fn update(&self, kind: Kind, object: &Value) -> Result<Value, Error> {
        self.update_subresource(kind, "", object).await
    }

    /// Replaces a subresource of an object, such as its status.
    pub async fn update_subresource(
        &self,
        kind: Kind,
        subresource: &str,
        object: &Value,
    ) -> Result<Value, Error> {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        let path = kind.path(text("namespace"), text("name"), subresource);
        self.call(self.write(Method::PUT, path, object)).await
    }

    pub async fn patch(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        patch: PatchKind,
        body: &Value,
    ) -> Result<Value, Error> {
        self.patch_subresource(kind, namespace, name, "", patch, body).await
    }

    pub async fn patch_subresource(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        subresource: &str,
        patch: PatchKind,
        body: &Value,
    ) -> Result<Value, Error> {
        let mut request = self.write(Method::PATCH, kind.path(namespace, name, subresource), body);
        request.content_type = match patch {
            PatchKind::Merge => "application/merge-patch+json",
            PatchKind::StrategicMerge => "application/strategic-merge-patch+json",
            PatchKind::Apply => "application/apply-patch+yaml",
        };
        if patch == PatchKind::Apply {
            request.query.push(("force".to_owned(), "true".to_owned()));
        }
        self.call(request).await
    }

    pub async fn delete(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        options: &DeleteOptions<'_>,
    ) -> Result<(), Error> {
        let mut request =
            self.write(Method::DELETE, kind.path(namespace, name, ""), &options.body());
        request.query.clear();
        self.exchange(request).await.map(|_| ())
    }

    /// Deletes all objects of a kind in a namespace.
    pub async fn delete_all(&self, kind: Kind, namespace: &str) -> Result<(), Error> {
        let options = DeleteOptions {
            propagation: Some(Propagation::Background),
            ..DeleteOptions::default()
        };
        let mut request = self.write(Method::DELETE, kind.path(namespace, "", ""), &options.body());
        request.query.clear();
        self.exchange(request).await.map(|_| ())
    }
}

fn read(path: String, accept: &'static str) -> Request {
    Request {
        method: Method::GET,
        path,
        query: Vec::new(),
        content_type: "",
        accept,
        body: Bytes::new(),
        streamed: false,
    }
}

/// Treats an object that is already gone, or was replaced, as deleted.
pub fn ignore_not_found(done: Result<(), Error>) -> Result<(), Error> {
    match done {
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_into_its_parts() {
        let body = br#"{"kind":"Status","status":"Failure","message":"no","reason":"Forbidden",
            "details":{"causes":[{"reason":"NamespaceTerminating","message":"m"}]},"code":403}"#;
        let error = refused(403, Some(1), body);
        assert_eq!((error.status(), error.reason()), (403, "Forbidden"));
        assert!(error.is_namespace_terminating() && !error.is_conflict());
        let plain = refused(502, None, b"bad gateway");
        assert_eq!(plain.to_string(), "bad gateway");
    }

    #[test]
    fn delete_options_contain_only_given_fields() {
        let options = DeleteOptions { grace_seconds: Some(0), ..DeleteOptions::of_uid("u") };
        assert_eq!(
            options.body().to_string(),
            r#"{"apiVersion":"v1","gracePeriodSeconds":0,"kind":"DeleteOptions","preconditions":{"uid":"u"}}"#
        );
    }
}
