//! Exec, attach and port-forward: the runtime returns the URL of a stream, and the server joins the
//! connection to it without reading it. `run` waits for the output of a command.

use std::time::Duration;

use bytes::Bytes;
use cri::v1;
use http::header::HOST;
use http::{HeaderValue, Request, StatusCode, Uri};
use http_body_util::Full;
use https::Answer;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{Refusal, Server, ServerRequest, TEXT, document, find_container};

/// Time to connect to the runtime, which is on this machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// The requested streams of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Streams {
    stdin: bool,
    stdout: bool,
    stderr: bool,
    tty: bool,
}

impl Streams {
    fn of(request: &ServerRequest) -> Result<Streams, Refusal> {
        let on = |name: &str| matches!(request.parameter(name), "1" | "true");
        let tty = on("tty");
        // A terminal has one stream for both.
        let stderr = on("error") && !tty;
        let streams = Streams { stdin: on("input"), stdout: on("output"), stderr, tty };
        if !(streams.stdin || streams.stdout || streams.stderr) {
            return Err(Refusal::bad("you must specify at least 1 of stdin, stdout, stderr"));
        }
        Ok(streams)
    }
}

/// Collects the words of a command.
fn command<'a>(arguments: impl Iterator<Item = &'a str>) -> Result<Vec<String>, Refusal> {
    let arguments: Vec<String> = arguments.map(str::to_owned).collect();
    if arguments.is_empty() {
        return Err(Refusal::bad("you must specify at least 1 command for the container"));
    }
    Ok(arguments)
}

impl Server {
    fn known(&self, namespace: &str, pod: &str) -> Result<Value, Refusal> {
        let missing = || Refusal::new(StatusCode::NOT_FOUND, "pod does not exist");
        self.backend.pod(namespace, pod).ok_or_else(missing)
    }

    pub(super) async fn exec(
        &self,
        request: &ServerRequest,
        namespace: &str,
        pod: &str,
        container: &str,
    ) -> Result<Answer, Refusal> {
        let Streams { stdin, stdout, stderr, tty } = Streams::of(request)?;
        let pod = self.known(namespace, pod)?;
        let container_id = find_container::running(&pod, container)?.to_owned();
        let cmd = command(request.parameters("command"))?;
        must_upgrade(request)?;
        let rpc =
            v1::ExecRequest { container_id, cmd, tty, stdin, stdout, stderr, ..Default::default() };
        let url = self.runtime.call(rpc).await.map_err(|e| Refusal::of_runtime(&e))?.url;
        join(request, &url).await
    }

    /// Runs a command to its end and returns its output. Upstream has this for scripts.
    pub(super) async fn run(
        &self,
        request: &ServerRequest,
        namespace: &str,
        pod: &str,
        container: &str,
    ) -> Result<Answer, Refusal> {
        let pod = self.known(namespace, pod)?;
        let container_id = find_container::running(&pod, container)?.to_owned();
        let cmd = command(request.parameter("cmd").split_whitespace())?;
        let rpc = v1::ExecSyncRequest { container_id, cmd, timeout: 0 };
        let answer = self.runtime.call(rpc).await.map_err(|e| Refusal::of_runtime(&e))?;
        let output = [answer.stdout, answer.stderr].concat();
        match answer.exit_code {
            0 => Ok(document(StatusCode::OK, TEXT, output)),
            code => {
                let text = format!(
                    "command {:?} exited with {code}: {}",
                    request.parameter("cmd"),
                    String::from_utf8_lossy(&output)
                );
                Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, text))
            }
        }
    }

    pub(super) async fn attach(
        &self,
        request: &ServerRequest,
        namespace: &str,
        pod: &str,
        container: &str,
    ) -> Result<Answer, Refusal> {
        let Streams { stdin, stdout, stderr, .. } = Streams::of(request)?;
        let pod = self.known(namespace, pod)?;
        let container_id = find_container::running(&pod, container)?.to_owned();
        must_upgrade(request)?;
        // The terminal was set up when the process started.
        let tty =
            find_container::container(&pod, container).is_some_and(|spec| spec["tty"] == true);
        let stderr = stderr && !tty;
        let rpc =
            v1::AttachRequest { container_id, stdin, tty, stdout, stderr, ..Default::default() };
        let url = self.runtime.call(rpc).await.map_err(|e| Refusal::of_runtime(&e))?.url;
        join(request, &url).await
    }

    pub(super) async fn port_forward(
        &self,
        request: &ServerRequest,
        namespace: &str,
        pod: &str,
    ) -> Result<Answer, Refusal> {
        let known = self.known(namespace, pod)?;
        must_upgrade(request)?;
        let port = ports(request)?;
        let uid = known["metadata"]["uid"].as_str().unwrap_or_default();
        let missing = || {
            let text = format!("pod not found ({:?})", format!("{pod}_{namespace}"));
            Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, text)
        };
        let pod_sandbox_id = self.backend.sandbox(uid).ok_or_else(missing)?;
        let rpc = v1::PortForwardRequest { pod_sandbox_id, port };
        let url = self.runtime.call(rpc).await.map_err(|e| Refusal::of_runtime(&e))?.url;
        join(request, &url).await
    }
}

fn must_upgrade(request: &ServerRequest) -> Result<(), Refusal> {
    if https::is_upgrade(&request.headers) {
        return Ok(());
    }
    Err(Refusal::bad("Upgrade request required"))
}

/// Over SPDY each stream names its port; over WebSocket the request names all of them.
fn ports(request: &ServerRequest) -> Result<Vec<i32>, Refusal> {
    let upgrade = request.headers.get("upgrade").and_then(|value| value.to_str().ok());
    if !upgrade.is_some_and(|protocol| protocol.eq_ignore_ascii_case("websocket")) {
        return Ok(Vec::new());
    }
    let mut ports = Vec::new();
    for text in request.parameters("port").flat_map(|list| list.split(',')) {
        match text.parse() {
            Ok(port @ 1..=65535) => ports.push(port),
            _ => {
                let text = format!("port {text:?} is not a number from 1 to 65535");
                return Err(Refusal::bad(text));
            }
        }
    }
    if ports.is_empty() {
        return Err(Refusal::bad("query parameter \"port\" is required"));
    }
    Ok(ports)
}

/// Requests the same protocol upgrade from the URL of the runtime.
async fn join(request: &ServerRequest, url: &str) -> Result<Answer, Refusal> {
    let failed = |text: String| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, text);
    let (host, port, upgrade) = upgrade_request(request, url)?;
    let connecting = timeout(PATIENCE, TcpStream::connect((host.as_str(), port))).await;
    let stream = match connecting {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(failed(format!("error dialing backend: {url}: {error}"))),
        Err(_) => {
            let waited = PATIENCE.as_secs();
            return Err(failed(format!("error dialing backend: {url}: no answer in {waited} s")));
        }
    };
    // Keystrokes are small and should not be delayed.
    let _ = stream.set_nodelay(true);
    let backend = |error: https::ExchangeError| failed(format!("the runtime at {url}: {error}"));
    let response = https::exchange(stream, upgrade).await.map_err(backend)?;
    https::relay(response).await.map_err(backend)
}

/// Returns host, port and request for a URL of the runtime.
fn upgrade_request(
    request: &ServerRequest,
    url: &str,
) -> Result<(String, u16, Request<Full<Bytes>>), Refusal> {
    let failed = |reason: &str| {
        let text = format!("the runtime gave {url:?} for the stream, {reason}");
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, text)
    };
    let uri: Uri = url.parse().map_err(|_| failed("which is no URL"))?;
    match uri.scheme_str() {
        Some("http") => {}
        Some("https") => {
            return Err(failed(
                "which wants TLS; switch enable_tls_streaming off: it is on this machine",
            ));
        }
        _ => return Err(failed("which is no http:// URL")),
    }
    let authority = uri.authority().ok_or_else(|| failed("which names no host"))?;
    let host = authority.host().trim_matches(['[', ']']).to_owned();
    let port = authority.port_u16().unwrap_or(80);
    let named = HeaderValue::from_str(authority.as_str());
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut upgrade = Request::new(Full::new(Bytes::new()));
    *upgrade.method_mut() = request.method.clone();
    *upgrade.uri_mut() = path.parse().map_err(|_| failed("which has no path"))?;
    *upgrade.headers_mut() = https::upgrade_headers(&request.headers);
    upgrade.headers_mut().insert(HOST, named.map_err(|_| failed("which names no host"))?);
    Ok((host, port, upgrade))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderMap, Method};

    fn request(query: &str, upgrade: &'static str) -> ServerRequest {
        let mut headers = HeaderMap::new();
        headers.insert("connection", HeaderValue::from_static("Upgrade"));
        headers.insert("upgrade", HeaderValue::from_static(upgrade));
        headers.insert("host", HeaderValue::from_static("node:10250"));
        let query = super::super::parameters(query);
        ServerRequest { method: Method::POST, path: String::new(), query, headers }
    }

    #[test]
    fn streams_are_chosen_and_a_terminal_has_no_second_output() {
        let of = |query: &str| Streams::of(&request(query, "SPDY/3.1"));
        let all = of("input=1&output=1&error=1").unwrap();
        assert_eq!(all, Streams { stdin: true, stdout: true, stderr: true, tty: false });
        let terminal = of("output=1&error=1&tty=1").unwrap();
        assert_eq!(terminal, Streams { stdin: false, stdout: true, stderr: false, tty: true });
        assert!(of("tty=1&error=1").unwrap_err().text.contains("at least 1 of"));
    }

    #[test]
    fn ports_of_websockets_are_in_the_request() {
        assert_eq!(ports(&request("", "SPDY/3.1")), Ok(vec![]));
        assert_eq!(ports(&request("port=80&port=81,82", "websocket")), Ok(vec![80, 81, 82]));
        for query in ["", "port=0", "port=x", "port=65536", "port="] {
            assert!(ports(&request(query, "WebSocket")).is_err(), "{query}");
        }
    }

    #[test]
    fn streams_are_requested_at_the_url_of_the_runtime() {
        let (host, port, upgrade) =
            upgrade_request(&request("", "SPDY/3.1"), "http://[::1]:4321/exec/token").unwrap();
        assert_eq!((host.as_str(), port), ("::1", 4321));
        assert_eq!(
            (upgrade.uri().to_string(), upgrade.method()),
            ("/exec/token".to_owned(), &Method::POST)
        );
        let headers = upgrade.headers();
        assert_eq!(
            (&headers["host"], &headers["upgrade"]),
            (&HeaderValue::from_static("[::1]:4321"), &HeaderValue::from_static("SPDY/3.1"),)
        );
        for (url, reason) in [
            ("https://127.0.0.1:1/x", "enable_tls_streaming"),
            ("unix:///x", "no URL"),
            ("/exec/x", "no http:// URL"),
            ("http://", "no URL"),
        ] {
            let refusal = upgrade_request(&request("", "SPDY/3.1"), url).unwrap_err();
            assert!(refusal.text.contains(reason), "{url}: {}", refusal.text);
        }
    }
}
