//! Recorded events of the kubelet's probes: a real server, or a runtime with the recorded answers, behaves
//! like each recorded container, and the event texts must be equal.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cri::v1::image_service_server::ImageService;
use cri::v1::runtime_service_server::RuntimeService;
use cri::{Code, Endpoint, Listener, v1};
use serde_json::Value;
use tokio::net::TcpListener;
use tonic::{Request, Response, Status};

use super::execute::{ProbeInput, probe};
use super::*;
use crate::runtime::fetch::tests::{ClosedPort, Server};
use lifecycle::spec::{Handler, IntOrString};
use rig::golden_node::lines;

/// A runtime that returns one answer to every command.
#[derive(Clone, Debug)]
pub(super) struct OneAnswer {
    pub(super) answer: Result<v1::ExecSyncResponse, (Code, String)>,
    pub(super) requests: Arc<Mutex<Vec<v1::ExecSyncRequest>>>,
}

#[tonic::async_trait]
impl RuntimeService for OneAnswer {
    async fn exec_sync(
        &self,
        request: Request<v1::ExecSyncRequest>,
    ) -> Result<Response<v1::ExecSyncResponse>, Status> {
        self.requests.lock().unwrap().push(request.into_inner());
        match &self.answer {
            Ok(response) => Ok(Response::new(response.clone())),
            Err((code, message)) => Err(Status::new(*code, message.clone())),
        }
    }
}

impl ImageService for OneAnswer {}

/// Returns an endpoint in its own directory.
pub(super) fn endpoint(directory: &tempfile::TempDir) -> Endpoint {
    let text = if std::env::consts::FAMILY == "windows" {
        let name = directory.path().file_name().unwrap().to_string_lossy().into_owned();
        format!("npipe:////./pipe/berth-probes-{}-{name}", std::process::id())
    } else {
        format!("unix://{}/cri.sock", directory.path().display())
    };
    Endpoint::parse(&text).unwrap()
}

/// Serves for the duration of the test.
pub(super) async fn served(endpoint: &Endpoint, runtime: OneAnswer) -> cri::Client {
    let listener = Listener::bind(endpoint).await.unwrap();
    let images = runtime.clone();
    tokio::spawn(cri::serve(listener, runtime, images, std::future::pending(), Duration::ZERO));
    cri::Client::new(endpoint.clone())
}

/// Derives the recorded runtime's answer from the event.
fn runtime_answer(message: &str) -> Result<v1::ExecSyncResponse, (Code, String)> {
    if let Some((_, error)) = message.split_once("rpc error: code = ") {
        let (code, message) = error.split_once(" desc = ").unwrap();
        let code = match code {
            "NotFound" => Code::NotFound,
            "Unavailable" => Code::Unavailable,
            "Unknown" => Code::Unknown,
            other => panic!("unexpected code {other}"),
        };
        return Err((code, message.to_owned()));
    }
    if message.contains("command timed out") {
        let message = "failed to exec in container: timeout 1s exceeded: context deadline exceeded";
        return Err((Code::DeadlineExceeded, message.to_owned()));
    }
    let (_, output) = message.split_once(" probe failed: ").unwrap();
    let stdout = output.split_inclusive('\n').next().unwrap_or("").to_owned();
    let stderr = output[stdout.len()..].to_owned();
    Ok(v1::ExecSyncResponse { stdout: stdout.into(), stderr: stderr.into(), exit_code: 1 })
}

/// Repeats a recorded probe and returns its event.
async fn event_here(kind: ProbeKind, handler: &Handler, recorded: &str) -> (String, String) {
    let directory = tempfile::tempdir().unwrap();
    let endpoint = endpoint(&directory);
    let mut handler = handler.clone();
    let mut expected = recorded.to_owned();
    let mut silent = None;
    let closed = ClosedPort::new();
    // The timeout is long unless the recorded probe timed out.
    let runs_out = recorded.contains("timed out") || recorded.contains("Client.Timeout");
    let timeout_seconds = if runs_out { 1 } else { 60 };
    let mut runtime = cri::Client::new(endpoint.clone());
    if handler.exec.is_some() {
        let answer = runtime_answer(recorded);
        runtime = served(&endpoint, OneAnswer { answer, requests: Arc::default() }).await;
    } else {
        let port = if recorded.contains("connection refused") {
            closed.port
        } else if recorded.contains("Client.Timeout") {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
            let port = listener.local_addr().unwrap().port();
            silent = Some(listener);
            port
        } else if recorded.contains("statuscode: 404") {
            Server::start(&["HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno"]).await.port
        } else if recorded.contains("redirects") {
            let away = "HTTP/1.1 302 Found\r\nLocation: http://example.invalid/\r\nContent-Length: \
                        0\r\nConnection: close\r\n\r\n";
            Server::start(&[away]).await.port
        } else {
            assert!(recorded.contains("not found"), "cannot be reproduced: {recorded}");
            1
        };
        let port_of_handler = match (&mut handler.http_get, &mut handler.tcp_socket) {
            (Some(get), _) => &mut get.port,
            (None, Some(tcp)) => &mut tcp.port,
            (None, None) => panic!("unexpected handler: {handler:?}"),
        };
        if let IntOrString::Int(number) = port_of_handler {
            expected = expected.replace(&format!(":{number}"), &format!(":{port}"));
            *port_of_handler = IntOrString::Int(i64::from(port));
        }
    }
    for address in ["<NODE_IP>", "<POD_IP>"] {
        expected = expected.replace(address, "127.0.0.1");
    }
    let (pod, container) = (Pod::default(), Container::default());
    let question = ProbeInput {
        pod: &pod,
        container: &container,
        id: "id",
        pod_ip: "127.0.0.1",
        handler: &handler,
        timeout_seconds,
    };
    let event = probe(&runtime, &question).await.event(kind).unwrap();
    drop(silent);
    (event.to_string(), expected)
}

#[tokio::test]
async fn recorded_probe_events_have_equal_texts() {
    let mut seen = 0;
    for life in lines("pods.jsonl.gz") {
        let Ok(pod) = serde_json::from_value::<Pod>(life["manifest"].clone()) else { continue };
        for event in life["events"].as_array().into_iter().flatten() {
            let text = |field: &str| event[field].as_str().unwrap_or("");
            if !matches!(text("reason"), "Unhealthy" | "ProbeWarning") {
                continue;
            }
            let message = text("message").trim_start_matches("(combined from similar events): ");
            let kind = match message.split(' ').next() {
                Some("Liveness") => ProbeKind::Liveness,
                Some("Readiness") => ProbeKind::Readiness,
                Some("Startup") => ProbeKind::Startup,
                _ => panic!("{}: {message}", life["id"]),
            };
            let whose = text("fieldPath").split_once('{').unwrap().1.trim_end_matches('}');
            let (_, container) = pod.container(whose).unwrap();
            let probe = probe_of(container, kind).unwrap();
            let (event, expected) = event_here(kind, &probe.handler, message).await;
            assert_eq!(event, expected, "{}", life["id"]);
            seen += 1;
        }
    }
    assert!(seen >= 30, "only {seen} events of probes were recorded");
}

/// The logged error of a failed hook is our own text; the failure and its event must match.
#[tokio::test]
async fn recorded_hook_events_have_equal_texts() {
    use crate::runtime::hooks::{self, Hook};
    let directory = tempfile::tempdir().unwrap();
    let answer = Ok(v1::ExecSyncResponse { exit_code: 2, ..Default::default() });
    let runtime =
        served(&endpoint(&directory), OneAnswer { answer, requests: Arc::default() }).await;
    let mut seen = 0;
    for life in lines("pods.jsonl.gz") {
        for event in life["events"].as_array().into_iter().flatten() {
            let hook = match event["reason"].as_str() {
                Some("FailedPostStartHook") => Hook::PostStart,
                Some("FailedPreStopHook") => Hook::PreStop,
                _ => continue,
            };
            let pod: Pod = serde_json::from_value(life["manifest"].clone()).unwrap();
            let container = &pod.spec.containers[0];
            let mut handler = hook.of(container).unwrap().clone();
            let closed = ClosedPort::new();
            if let Some(get) = &mut handler.http_get {
                get.port = IntOrString::Int(i64::from(closed.port));
            }
            hooks::run(&runtime, &handler, container, "id", "127.0.0.1").await.unwrap_err();
            let failure = hook.failed();
            assert_eq!(Value::from(failure.to_string()), event["message"], "{}", life["id"]);
            assert_eq!(Some(failure.reason()), event["reason"].as_str());
            seen += 1;
        }
    }
    assert!(seen >= 3, "only {seen} hooks that fail were recorded");
}
