//! Logs and interactive streams of containers. Requests are forwarded to the agent of the pod's
//! node.
//!
//! The agent is reached over TLS at the address that its node reports, with a client certificate
//! that it trusts. Its own certificate must be signed by our authority for that address. The bytes
//! of a stream are not inspected.

use std::num::IntErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use https::Dialer;
use hyper::body::Incoming;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::api::Api;
use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::read;
use crate::reply::Reply;
use crate::request::Request;
use crate::route::ResourcePath;
use crate::websocket;

/// Returns the requested container, or the pod's only one.
fn container(request: &Request, pod: &Value, path: &ResourcePath) -> Result<String, ApiError> {
    let named = request.query.text("container");
    let names = |list: &str| {
        let items = pod["spec"][list].as_array().map(Vec::as_slice).unwrap_or_default();
        items.iter().filter_map(|c| c["name"].as_str()).map(str::to_owned).collect::<Vec<_>>()
    };
    let (containers, init, ephemeral) =
        (names("containers"), names("initContainers"), names("ephemeralContainers"));
    let known = |name: &str| {
        [&containers, &init, &ephemeral].iter().any(|list| list.iter().any(|own| own == name))
    };
    match (named, containers.as_slice()) {
        ("", [only]) => Ok(only.clone()),
        ("", _) => {
            let all: Vec<&str> =
                init.iter().chain(&containers).chain(&ephemeral).map(String::as_str).collect();
            Err(ApiError::bad_request(format!(
                "a container name must be specified for pod {}, choose one of: [{}]",
                path.name,
                all.join(" ")
            )))
        }
        (name, _) if known(name) => Ok(name.to_owned()),
        (name, _) => Err(ApiError::bad_request(format!(
            "container {name} is not valid for pod {}",
            path.name
        ))),
    }
}

/// Characters that need no escaping in a path or parameter.
const PLAIN: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b':');

/// The time for an agent to begin its response. The stream itself has no limit.
const AGENT_TIMEOUT: Duration = Duration::from_secs(30);

/// The maximum length of an agent's error message.
const REFUSAL_LIMIT: usize = 50_000;

/// The kubelet port of a node that reports none.
const KUBELET_PORT: u16 = 10250;

/// A request to an agent.
struct StreamRequest {
    method: Method,
    path: String,
    query: Vec<(&'static str, String)>,
    headers: HeaderMap,
}

impl StreamRequest {
    fn target(&self) -> String {
        let mut target = self.path.clone();
        for (index, (name, value)) in self.query.iter().enumerate() {
            target.push(if index == 0 { '?' } else { '&' });
            target.push_str(name);
            target.push('=');
            target.extend(utf8_percent_encode(value, PLAIN));
        }
        target
    }
}

fn kubelet_path(verb: &str, segments: &[&str]) -> String {
    let mut path = format!("/{verb}");
    for segment in segments {
        path.push('/');
        path.extend(utf8_percent_encode(segment, PLAIN));
    }
    path
}

/// The address of an agent, as its node reports it.
#[derive(Debug, PartialEq, Eq)]
struct Agent {
    host: String,
    port: u16,
}

impl Agent {
    fn of(node: &Value) -> Result<Agent, ApiError> {
        let status = &node["status"];
        let addresses = status["addresses"].as_array().map(Vec::as_slice).unwrap_or_default();
        let address = |kind: &str| {
            let found = addresses.iter().find(|address| address["type"] == kind)?;
            found["address"].as_str().filter(|address| !address.is_empty())
        };
        let Some(host) = address("InternalIP").or_else(|| address("Hostname")) else {
            let known: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            let known = known.join(" ");
            return Err(failed(format!(
                "no preferred addresses found; known addresses: [{known}]"
            )));
        };
        let port = status["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64();
        let port = port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0);
        Ok(Agent { host: host.to_owned(), port: port.unwrap_or(KUBELET_PORT) })
    }

    fn authority(&self) -> String {
        let Agent { host, port } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// Sends a request to the agent.
    async fn send(
        &self,
        dialer: &Dialer,
        stream_request: StreamRequest,
    ) -> Result<Response<Incoming>, ApiError> {
        let dial =
            |error: &dyn std::fmt::Display| failed(format!("error dialing backend: {error}"));
        let mut request = http::Request::new(Full::new(Bytes::new()));
        *request.uri_mut() = stream_request
            .target()
            .parse()
            .map_err(|error| failed(format!("cannot build the request to the agent: {error}")))?;
        *request.method_mut() = stream_request.method;
        *request.headers_mut() = stream_request.headers;
        let host = HeaderValue::from_str(&self.authority()).map_err(|error| dial(&error))?;
        request.headers_mut().insert(HOST, host);
        let connecting = dialer.connect(&self.host, self.port, &self.host);
        let stream = connecting.await.map_err(|error| dial(&error))?;
        match timeout(AGENT_TIMEOUT, https::exchange(stream, request)).await {
            Ok(answer) => answer.map_err(|error| dial(&error)),
            Err(_) => {
                let waited = AGENT_TIMEOUT.as_secs();
                Err(dial(&format!("{} did not respond within {waited} s", self.authority())))
            }
        }
    }
}

/// Returns an error without a reason, as upstream does for failures on the way to a node.
fn failed(message: String) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "", message)
}

/// Returns the agent of a pod's node, and the dialer for it.
fn agent<'a>(
    api: &'a Api,
    path: &ResourcePath,
    node: &str,
) -> Result<(Agent, &'a Dialer), ApiError> {
    let Some(found) = crate::admission::named(api, "", "nodes", node)? else {
        // Upstream's message names the node as if it were a pod.
        return Err(ApiError::not_found(path.resource, node));
    };
    let Some(dialer) = &api.shared.options.agents else {
        let message = format!("the agent of node {node:?} cannot be reached");
        return Err(ApiError::internal(message));
    };
    Ok((Agent::of(&found)?, dialer))
}

pub(crate) async fn log(
    api: &Api,
    request: &Request,
    path: &ResourcePath,
) -> Result<Reply, ApiError> {
    crate::log_options::check(request, &path.name)?;
    let pod = read::load(path.resource, &read::find(api, path)?)?;
    let container = container(request, &pod, path)?;
    let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
    if node.is_empty() {
        // Nothing has run, so the log is empty.
        return Ok(Reply::bytes(StatusCode::NO_CONTENT, "", ""));
    }
    let (agent, dialer) = agent(api, path, node)?;
    let mut query = Vec::new();
    for name in ["follow", "previous", "timestamps"] {
        if request.query.flag(name) {
            query.push((name, "true".to_owned()));
        }
    }
    for name in ["sinceSeconds", "sinceTime", "tailLines", "limitBytes"] {
        if let Some(value) = request.query.get(name).filter(|value| !value.is_empty()) {
            query.push((name, value.to_owned()));
        }
    }
    let stream_request = StreamRequest {
        method: Method::GET,
        path: kubelet_path("containerLogs", &[&path.namespace, &path.name, &container]),
        query,
        headers: HeaderMap::new(),
    };
    let response = agent.send(dialer, stream_request).await?;
    if !response.status().is_success() {
        return Err(log_refused(response, &path.name).await);
    }
    let answer = https::relay(response).await.map_err(|error| failed(error.to_string()))?;
    let body = answer.response.into_body();
    if websocket::is_asked(&request.headers) {
        return Ok(websocket::reply(request, body, Counted::new(&api.shared.metrics)));
    }
    let mut reply = Reply::bytes(StatusCode::OK, "text/plain", "");
    reply.body = body;
    Ok(reply)
}

/// Converts an agent's error response as upstream does.
async fn log_refused(response: Response<Incoming>, name: &str) -> ApiError {
    let status = response.status();
    let body =
        timeout(AGENT_TIMEOUT, Limited::new(response.into_body(), REFUSAL_LIMIT).collect()).await;
    let bytes = match body {
        Ok(Ok(body)) => body.to_bytes(),
        _ => Bytes::new(),
    };
    let text = String::from_utf8_lossy(&bytes).into_owned();
    match status {
        StatusCode::BAD_REQUEST => ApiError::bad_request(text),
        StatusCode::INTERNAL_SERVER_ERROR => ApiError::internal(text),
        StatusCode::NOT_FOUND => {
            let message =
                format!("the server could not find the requested resource ( pods/log {name})");
            ApiError::new(StatusCode::NOT_FOUND, "NotFound", message)
                .with_details(json!({"name": name, "kind": "pods/log"}))
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            let message = format!("the agent does not accept this server's certificate: {text}");
            ApiError::internal(message)
        }
        _ => ApiError::internal(format!("the agent responded with {status}: {text}")),
    }
}

pub(crate) async fn connect(
    api: &Api,
    request: &Request,
    path: &ResourcePath,
) -> Result<Reply, ApiError> {
    let subresource = crate::write::subresource_name(path);
    let ports = forwarded_ports(request)?;
    let pod = read::load(path.resource, &read::find(api, path)?)?;
    let container = match subresource {
        "portforward" => String::new(),
        _ => container(request, &pod, path)?,
    };
    let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
    if node.is_empty() {
        let message = format!("pod {} does not have a host assigned", path.name);
        return Err(ApiError::bad_request(message));
    }
    let (agent, dialer) = agent(api, path, node)?;
    if !https::is_upgrade(&request.headers) {
        return Err(ApiError::bad_request("Upgrade request required"));
    }
    let (verb, query) = match subresource {
        "portforward" => ("portForward", ports),
        verb => (verb, stream_options(request)),
    };
    let names = [&*path.namespace, &path.name, &container];
    let stream_request = StreamRequest {
        method: request.method.clone(),
        path: kubelet_path(verb, if container.is_empty() { &names[..2] } else { &names }),
        query,
        headers: https::upgrade_headers(&request.headers),
    };
    let response = agent.send(dialer, stream_request).await?;
    let answer = https::relay(response).await.map_err(|error| failed(error.to_string()))?;
    let (parts, body) = answer.response.into_parts();
    let mut reply = Reply::bytes(parts.status, "", "");
    (reply.headers, reply.body) = (parts.headers, body);
    reply.tunnel = answer.tunnel.map(|tunnel| tunnel.holding(Counted::new(&api.shared.metrics)));
    Ok(reply)
}

/// Translates the API's stream options to the kubelet's.
fn stream_options(request: &Request) -> Vec<(&'static str, String)> {
    let mut query = Vec::new();
    for (name, kubelet_name) in
        [("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty")]
    {
        if request.query.flag(name) {
            query.push((kubelet_name, "1".to_owned()));
        }
    }
    query.extend(request.query.all("command").map(|word| ("command", word.to_owned())));
    query
}

/// Parses the requested ports: one per parameter, or several separated by commas.
fn forwarded_ports(request: &Request) -> Result<Vec<(&'static str, String)>, ApiError> {
    let ports = request.query.all("ports").flat_map(|ports| ports.split(','));
    let read = |port: &str| match port.parse::<u16>() {
        Ok(number) => Ok(("port", number.to_string())),
        Err(error) => {
            let why = match error.kind() {
                IntErrorKind::PosOverflow => "value out of range",
                _ => "invalid syntax",
            };
            let message =
                format!("cannot convert to []int32: strconv.ParseUint: parsing {port:?}: {why}");
            Err(ApiError::bad_request(message))
        }
    };
    ports.map(read).collect()
}

/// Counts an open stream among the long-running requests.
struct Counted(Arc<AtomicI64>);

impl Counted {
    fn new(metrics: &Metrics) -> Counted {
        let count = Arc::clone(&metrics.tunnels);
        count.fetch_add(1, Ordering::Relaxed);
        Counted(count)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Caller, Query};

    fn request(query: &str) -> Request {
        Request {
            method: Method::POST,
            path: String::new(),
            query: Query::parse(query),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            caller: Caller::Anonymous,
            source: None,
        }
    }

    #[test]
    fn agent_address_comes_from_its_node() {
        let internal = json!({"type": "InternalIP", "address": "10.0.0.1"});
        let name = json!({"type": "Hostname", "address": "node-1"});
        let port = json!({"kubeletEndpoint": {"Port": 23250}});
        let authority = |addresses: Value, port: Value| {
            Agent::of(&json!({"status": {"addresses": addresses, "daemonEndpoints": port}}))
                .map(|agent| agent.authority())
        };
        assert_eq!(authority(json!([name, internal]), port), Ok("10.0.0.1:23250".to_owned()));
        assert_eq!(authority(json!([name]), json!({})), Ok("node-1:10250".to_owned()));
        let six = json!({"type": "InternalIP", "address": "fd00::1"});
        assert_eq!(authority(json!([six]), Value::Null), Ok("[fd00::1]:10250".to_owned()));
        let error = authority(json!([]), Value::Null).unwrap_err();
        assert_eq!(error.message, "no preferred addresses found; known addresses: []");
    }

    #[test]
    fn options_are_translated_for_the_kubelet() {
        let stream_request = StreamRequest {
            method: Method::POST,
            path: kubelet_path("exec", &["a", "p/..", "c"]),
            query: stream_options(&request(
                "stdin=true&stdout=1&tty=false&command=sh&command=-c&command=echo+%26%3D%22x",
            )),
            headers: HeaderMap::new(),
        };
        assert_eq!(
            stream_request.target(),
            "/exec/a/p%2F../c?input=1&output=1&command=sh&command=-c&command=echo%20%26%3D%22x"
        );
        let parsed = |query: &str| {
            let ports = forwarded_ports(&request(query));
            let shown = |ports: Vec<(&str, String)>| {
                ports
                    .iter()
                    .map(|(name, port)| format!("{name}={port}"))
                    .collect::<Vec<_>>()
                    .join("&")
            };
            ports.map(shown).unwrap_or_else(|error| error.message)
        };
        assert_eq!(parsed("ports=80&ports=81,82"), "port=80&port=81&port=82");
        let no = "cannot convert to []int32: strconv.ParseUint: parsing";
        assert_eq!(parsed("ports=80,x"), format!("{no} \"x\": invalid syntax"));
        assert_eq!(parsed("ports=65536"), format!("{no} \"65536\": value out of range"));
    }
}
