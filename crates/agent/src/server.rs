//! The agent's HTTPS server, with upstream's paths: logs, exec, attach and port-forward for the API server,
//! and metrics, statistics, health and configuration of the agent.
//!
//! Main type: [`Server`]. Its data comes from [`ServerBackend`], which the rest of the agent
//! implements; the URLs of streams come from the runtime. It decides nothing about pods.
//!
//! [`Access`] decides which requests are served. Every client may read the health of the agent.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use ::metrics::{Family, Registry, exposition};
use bytes::Bytes;
use cri::Client;
use futures::future::BoxFuture;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Method, Response, StatusCode};
use https::certificates::Pair;
use https::{Answer, Body, Clock, Inbound, Limits, ListenError, Listener, ServerTls};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tokio::sync::watch;

pub mod access;
mod certificate;
mod checks;
pub mod configz;
mod find_container;
mod log;
mod metrics;
mod streams;
#[cfg(test)]
mod tests;

use self::metrics::ServerMetrics;
use checks::HealthCheckMetrics;

pub use access::{API_SERVER, Access};
pub use certificate::{Serving, ServingError};

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// A document that a path returns. Metrics are encoded in the format that the client prefers.
#[derive(Debug, Clone, PartialEq)]
pub enum Document {
    Json(Value),
    Metrics(Vec<Family>),
}

/// Data that the server gets from the rest of the agent. All of it is in memory unless noted.
pub trait ServerBackend: Send + Sync + 'static {
    /// Returns the pods of this node as the API has them, with the statuses that the agent knows.
    fn pods(&self) -> Vec<Value>;

    /// Returns one of these pods.
    fn pod(&self, namespace: &str, name: &str) -> Option<Value>;

    /// Returns the runtime's id of the pod's sandbox, if it has one that is ready.
    fn sandbox(&self, uid: &str) -> Option<String>;

    /// Returns the effective configuration as a `KubeletConfiguration`.
    fn configuration(&self) -> Value;

    /// Returns the agent's metrics.
    fn metrics(&self) -> Vec<Family>;

    /// Returns the problem of the agent, if it is unhealthy.
    fn complaint(&self) -> Option<String> {
        None
    }

    /// Returns the document of another path, such as `/stats/summary`. It may take a while: the data is
    /// measured on request.
    fn document<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Option<Document>> {
        let _ = path;
        Box::pin(std::future::ready(None))
    }
}

/// A request with a valid form.
struct ServerRequest {
    method: Method,
    path: String,
    query: Vec<(String, String)>,
    headers: HeaderMap,
}

impl ServerRequest {
    fn parameter(&self, name: &str) -> &str {
        let found = self.query.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str()).unwrap_or_default()
    }

    fn parameters<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.query.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// An error response. Its text is upstream's where upstream has one.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Refusal {
    status: StatusCode,
    text: String,
}

impl Refusal {
    fn new(status: StatusCode, text: impl Into<String>) -> Refusal {
        Refusal { status, text: text.into() }
    }

    fn bad(text: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, text)
    }

    /// Converts an error of the runtime.
    fn of_runtime(error: &cri::Error) -> Refusal {
        let status = match error.code {
            cri::Code::NotFound => StatusCode::NOT_FOUND,
            cri::Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Refusal::new(status, error.to_string())
    }
}

impl From<Refusal> for Answer {
    fn from(refusal: Refusal) -> Answer {
        document(refusal.status, TEXT, refusal.text)
    }
}

fn document(status: StatusCode, media: &'static str, text: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Body::Whole(text.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media));
    Answer::from(response)
}

/// Serves the agent's API.
#[derive(Clone)]
pub struct Server {
    backend: Arc<dyn ServerBackend>,
    runtime: Client,
    access: Access,
    measured: Option<ServerMetrics>,
    checks: HealthCheckMetrics,
    /// Set while it serves: the signal to stop.
    stop: Option<watch::Receiver<bool>>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("runtime", &self.runtime).finish_non_exhaustive()
    }
}

impl Server {
    /// Serves the API server and administrators; see [`Server::open_to`] for others.
    #[must_use]
    pub fn new(backend: Arc<dyn ServerBackend>, runtime: Client) -> Server {
        let (access, checks) = (Access::default(), HealthCheckMetrics::default());
        Server { backend, runtime, access, measured: None, checks, stop: None }
    }

    /// Serves every client that `access` allows.
    #[must_use]
    pub fn open_to(self, access: Access) -> Server {
        Server { access, ..self }
    }

    /// Counts requests in the metrics.
    #[must_use]
    pub fn measured(self, registry: &Registry) -> Server {
        Server { measured: Some(ServerMetrics::new(registry)), ..self }
    }

    /// Returns a listener for the server. Without an authority no client can have a certificate.
    pub async fn bind(
        address: SocketAddr,
        certificate: &Pair,
        client_authority: Option<&str>,
    ) -> Result<Listener, ListenError> {
        let tls = ServerTls::new(certificate, client_authority, Clock::default())?;
        Server::bind_with(address, tls).await
    }

    /// Returns a listener whose TLS material can be replaced later.
    pub async fn bind_with(address: SocketAddr, tls: ServerTls) -> Result<Listener, ListenError> {
        // A node has few clients with few connections each.
        let limits = Limits {
            connections: 512,
            connections_per_client: 256,
            anonymous: 128,
            anonymous_per_address: 64,
            tunnels: 512,
            ..Limits::default()
        };
        Listener::bind_with(address, tls, limits).await
    }

    /// Serves until `stop` is true.
    pub async fn serve(mut self, listener: Listener, stop: watch::Receiver<bool>) {
        self.stop = Some(stop.clone());
        let handle = move |request: Inbound, client: Arc<https::Client>| {
            let server = self.clone();
            async move { server.answer(request, &client).await }
        };
        listener.serve(handle, stop).await;
    }

    async fn answer(&self, request: Inbound, client: &https::Client) -> Answer {
        // No request has a body with a meaning.
        let (parts, _) = request.into_parts();
        let path = parts.uri.path().to_owned();
        let request = ServerRequest {
            query: parameters(parts.uri.query().unwrap_or_default()),
            method: parts.method,
            headers: parts.headers,
            path,
        };
        let begin = |measured: &ServerMetrics| measured.begin(&request.method, &request.path);
        let _under_way = self.measured.as_ref().map(begin);
        match self.reply(&request, client).await {
            Ok(answer) => answer,
            Err(refusal) => refusal.into(),
        }
    }

    async fn reply(
        &self,
        request: &ServerRequest,
        client: &https::Client,
    ) -> Result<Answer, Refusal> {
        let segments: Option<Vec<String>> = request
            .path
            .split('/')
            .skip(1)
            .map(|segment| percent_decode_str(segment).decode_utf8().ok().map(Into::into))
            .collect();
        let segments = segments.ok_or_else(|| Refusal::bad("the path is not UTF-8"))?;
        // Names have no control characters, and become parts of file names and messages.
        if segments.iter().any(|segment| segment.contains(char::is_control)) {
            return Err(Refusal::bad("the path has control characters"));
        }
        let mut segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        // A trailing slash has no meaning.
        if segments.last() == Some(&"") {
            segments.pop();
        }
        let reads = matches!(request.method, Method::GET | Method::HEAD);
        if let ["healthz"] | ["healthz", "log" | "ping" | "syncloop"] = *segments
            && reads
        {
            let complaint = self.backend.complaint();
            // Upstream records the checks of the whole endpoint, not those requested by name.
            if let ["healthz"] = *segments {
                self.checks.observe(complaint.is_none());
            }
            return match complaint {
                None => Ok(document(StatusCode::OK, TEXT, "ok")),
                Some(why) => Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, why)),
            };
        }
        let access = &self.access;
        let user =
            access.check(&request.method, &segments, &request.headers, client.peer()).await?;
        if !client.known_as(&user) {
            let text = format!("{user} has too many connections with requests under way");
            return Err(Refusal::new(StatusCode::TOO_MANY_REQUESTS, text));
        }
        match *segments {
            ["containerLogs", namespace, pod, container] if reads => {
                self.logs(request, namespace, pod, container).await
            }
            ["exec", namespace, pod, container] | ["exec", namespace, pod, _, container] => {
                self.exec(request, namespace, pod, container).await
            }
            ["run", namespace, pod, container] | ["run", namespace, pod, _, container]
                if request.method == Method::POST =>
            {
                self.run(request, namespace, pod, container).await
            }
            ["attach", namespace, pod, container] | ["attach", namespace, pod, _, container] => {
                self.attach(request, namespace, pod, container).await
            }
            ["portForward", namespace, pod] | ["portForward", namespace, pod, _] => {
                self.port_forward(request, namespace, pod).await
            }
            ref path if reads => self.document(request, &path.join("/")).await,
            _ => Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed")),
        }
    }

    async fn document(&self, request: &ServerRequest, path: &str) -> Result<Answer, Refusal> {
        let backend = &self.backend;
        let found = match path {
            "pods" => Document::Json(json!({
                "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": backend.pods(),
            })),
            "runningpods" => Document::Json(running(&backend.pods())),
            "configz" => Document::Json(json!({"kubeletconfig": backend.configuration()})),
            "metrics" => Document::Metrics(backend.metrics()),
            "metrics/slis" => Document::Metrics(self.checks.registry.families()),
            _ => backend
                .document(&format!("/{path}"))
                .await
                .ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, "404 page not found\n"))?,
        };
        let (media, body) = match found {
            Document::Json(value) => (JSON, value.to_string().into_bytes()),
            Document::Metrics(families) => {
                let accept = request.headers.get(ACCEPT).and_then(|value| value.to_str().ok());
                exposition::negotiate(accept.unwrap_or_default(), &families)
            }
        };
        Ok(document(StatusCode::OK, media, body))
    }
}

fn parameters(query: &str) -> Vec<(String, String)> {
    let decode = |text: &str| {
        let spaced = text.replace('+', " ");
        percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
    };
    let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(name), decode(value))
    });
    pairs.collect()
}

/// Returns the pods reduced to their running containers.
fn running(pods: &[Value]) -> Value {
    let mut items = Vec::new();
    for pod in pods {
        let images: HashMap<&str, &Value> = find_container::statuses(pod)
            .filter(|status| status["state"]["running"].is_object())
            .filter_map(|status| Some((status["name"].as_str()?, &status["imageID"])))
            .collect();
        let containers: Vec<Value> = find_container::containers(pod)
            .filter_map(|container| {
                let name = container["name"].as_str()?;
                let image = images.get(name)?;
                Some(json!({"name": name, "image": image, "resources": {}}))
            })
            .collect();
        if containers.is_empty() {
            continue;
        }
        let metadata = &pod["metadata"];
        items.push(json!({
            "metadata": {
                "name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"],
            },
            "spec": {"containers": containers},
            "status": {},
        }));
    }
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})
}
