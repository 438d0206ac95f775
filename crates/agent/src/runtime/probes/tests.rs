//! Tests of the table, and of the task with servers on this machine.

use serde_json::json;
use tokio::sync::mpsc::UnboundedReceiver;

use cri::v1;

use super::recorded::{OneAnswer, endpoint, served};
use super::*;
use crate::runtime::fetch::tests::{ClosedPort, Server};

/// Long enough for a busy machine; not waited for in a passing test.
const PATIENCE: Duration = Duration::from_secs(60);

fn pod(container: &serde_json::Value) -> Arc<Pod> {
    let value = json!({
        "metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {"containers": [container]},
    });
    Arc::new(serde_json::from_value(value).unwrap())
}

fn target(id: &str) -> ProbeTarget {
    ProbeTarget { name: "c".to_owned(), id: id.to_owned(), started_at: 0 }
}

fn at(millis: Millis) -> ProbeTime {
    ProbeTime { millis, wall_nanos: millis * 1_000_000 }
}

fn no_wait() -> f64 {
    0.0
}

/// Returns a table that is older than all containers.
fn table() -> Table {
    Table::new(0)
}

fn due_kinds(table: &mut Table, now: Millis) -> Vec<ProbeKind> {
    let mut kinds: Vec<_> = table.take_due(now).into_iter().map(|request| request.kind).collect();
    kinds.sort_by_key(|kind| kind.to_string());
    kinds
}

#[test]
fn passed_startup_enables_the_other_probes_at_once() {
    let mut table = table();
    let probe = json!({"periodSeconds": 5, "exec": {"command": ["true"]}});
    let pod = pod(&json!({
        "name": "c", "livenessProbe": probe, "readinessProbe": probe, "startupProbe": probe,
    }));
    table.follow(&pod, "", &[], at(0), no_wait);
    assert_eq!(table.due(), None);
    table.follow(&pod, "", &[target("one")], at(2_000), no_wait);
    assert_eq!(table.due(), Some(5_000));
    let mut questions = table.take_due(5_000);
    assert_eq!(questions.len(), 1);
    let question = questions.remove(0);
    assert_eq!((question.kind, table.due()), (ProbeKind::Startup, None));
    let reports = table.answer(&question, ProbeOutcome::Success, 5_100);
    assert_eq!(reports.len(), 1);
    assert_eq!((reports[0].healthy, &reports[0].event), (Some(true), &None));
    assert_eq!(table.due(), Some(5_100));
    assert_eq!(due_kinds(&mut table, 5_100), [ProbeKind::Readiness]);
    assert_eq!(due_kinds(&mut table, 10_000), [ProbeKind::Liveness]);
}

#[test]
fn only_readiness_of_a_terminating_pod_is_probed() {
    let mut table = table();
    let probe = json!({"exec": {"command": ["true"]}});
    let pod = pod(&json!({"name": "c", "livenessProbe": probe, "readinessProbe": probe}));
    table.follow(&pod, "", &[target("one")], at(0), no_wait);
    let mut ending = Pod::clone(&pod);
    ending.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".to_owned());
    table.follow(&Arc::new(ending), "", &[target("one")], at(1), no_wait);
    assert_eq!(due_kinds(&mut table, 60_000), [ProbeKind::Readiness]);
}

#[test]
fn readiness_is_not_probed_if_terminating_before_startup() {
    let probe = json!({"exec": {"command": ["true"]}});
    let of = json!({"name": "c", "startupProbe": probe, "readinessProbe": probe});
    for (started, expected) in [(false, vec![]), (true, vec![ProbeKind::Readiness])] {
        let mut ending = Pod::clone(&pod(&of));
        ending.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".to_owned());
        let status = json!({"name": "c", "containerID": "containerd://one", "started": started});
        ending.status = json!({"containerStatuses": [status]});
        let mut table = table();
        table.follow(&Arc::new(ending), "", &[target("one")], at(1), no_wait);
        assert_eq!(due_kinds(&mut table, 60_000), expected);
    }
}

#[test]
fn containers_that_are_gone_are_not_probed() {
    let mut table = table();
    let probe = json!({"exec": {"command": ["true"]}});
    let pod = pod(&json!({"name": "c", "livenessProbe": probe}));
    table.follow(&pod, "", &[target("one")], at(0), no_wait);
    let question = table.take_due(0).remove(0);
    table.follow(&pod, "", &[], at(1), no_wait);
    assert_eq!(table.due(), None);
    assert_eq!(table.answer(&question, ProbeOutcome::Failure(String::new()), 2), []);
    table.follow(&pod, "", &[target("two")], at(3), no_wait);
    assert!(table.due().is_some());
    table.forget("u");
    assert_eq!(table.due(), None);
}

#[test]
fn probes_after_agent_start_are_spread_over_their_period() {
    let probe = json!({"periodSeconds": 20, "exec": {"command": ["true"]}});
    let pod = pod(&json!({"name": "c", "livenessProbe": probe}));
    for (now, due) in [(1_000, 6_000), (19_999, 24_999), (20_000, 20_000)] {
        let mut table = table();
        table.follow(&pod, "", &[target("one")], at(now), || 0.25);
        assert_eq!(table.due(), Some(due));
    }
}

#[test]
fn containers_that_were_ready_before_the_agent_stay_ready() {
    let mut table = Table::new(1_000_000_000);
    let probe = json!({"exec": {"command": ["true"]}});
    let of = json!({"name": "c", "readinessProbe": probe, "startupProbe": probe});
    let mut pod = Pod::clone(&pod(&of));
    pod.status = json!({"containerStatuses": [
        {"name": "c", "containerID": "containerd://one", "ready": true, "started": true},
    ]});
    let reports = table.follow(&Arc::new(pod.clone()), "", &[target("one")], at(0), no_wait);
    let results: Vec<_> = reports.iter().map(|report| (report.kind, report.healthy)).collect();
    assert_eq!(results, [(ProbeKind::Startup, Some(true)), (ProbeKind::Readiness, Some(true))]);
    // A container that it started itself must become ready again, whatever the status is.
    let mut later = target("one");
    later.started_at = 1_000_000_001;
    table.forget("u");
    assert_eq!(table.follow(&Arc::new(pod), "", &[later], at(2_000), no_wait), []);
}

#[test]
fn sidecars_are_probed_and_other_init_containers_are_not() {
    let value = json!({
        "metadata": {"uid": "u"},
        "spec": {
            "initContainers": [
                {"name": "i", "readinessProbe": {"exec": {}}},
                {"name": "s", "restartPolicy": "Always", "readinessProbe": {"exec": {}}},
            ],
            "containers": [{"name": "c"}],
        },
    });
    let pod: Arc<Pod> = Arc::new(serde_json::from_value(value).unwrap());
    let mut table = table();
    let running = ["i", "s", "c"].map(|name| ProbeTarget { name: name.to_owned(), ..target(name) });
    table.follow(&pod, "", &running, at(0), no_wait);
    let names: Vec<_> = table.take_due(0).into_iter().map(|request| request.container).collect();
    assert_eq!(names, ["s"]);
}

/// Returns probes whose loop runs.
fn started(runtime: cri::Client, reports: mpsc::UnboundedSender<ProbeReport>) -> Probes {
    let counter = result_counter(&Registry::default());
    let (probes, probe_loop) = Probes::new(runtime, reports, counter);
    tokio::spawn(probe_loop.run());
    probes
}

/// Returns probes without a runtime.
fn without_runtime() -> (Probes, UnboundedReceiver<ProbeReport>) {
    let directory = tempfile::tempdir().unwrap();
    let (reports, received) = mpsc::unbounded_channel();
    (started(cri::Client::new(endpoint(&directory)), reports), received)
}

async fn next(received: &mut UnboundedReceiver<ProbeReport>) -> ProbeReport {
    tokio::time::timeout(PATIENCE, received.recv()).await.unwrap().unwrap()
}

#[tokio::test]
async fn answering_server_is_ready() {
    let server = Server::start(&["HTTP/1.1 204 No Content\r\n\r\n"]).await;
    let probe = json!({"periodSeconds": 1, "httpGet": {"path": "/", "port": server.port}});
    let pod = pod(&json!({"name": "c", "readinessProbe": probe}));
    let (probes, mut received) = without_runtime();
    probes.follow(&pod, &["127.0.0.1".to_owned()], &[target("one")]);
    let report = next(&mut received).await;
    let expected = ProbeReport {
        pod: "u".to_owned(),
        container: "c".to_owned(),
        id: "one".to_owned(),
        kind: ProbeKind::Readiness,
        healthy: Some(true),
        event: None,
    };
    assert_eq!(report, expected);
}

#[tokio::test]
async fn closed_port_fails_after_the_failure_threshold() {
    let closed = ClosedPort::new();
    let port = closed.port;
    let probe = json!({"periodSeconds": 1, "failureThreshold": 2, "tcpSocket": {"port": port}});
    let pod = pod(&json!({"name": "c", "livenessProbe": probe}));
    let (probes, mut received) = without_runtime();
    probes.follow(&pod, &["127.0.0.1".to_owned()], &[target("one")]);
    let first = next(&mut received).await;
    let output = format!("dial tcp 127.0.0.1:{port}: connect: connection refused");
    let probe = ProbeKind::Liveness;
    assert_eq!((first.healthy, first.event), (None, Some(AgentEvent::Unhealthy { probe, output })));
    let second = next(&mut received).await;
    assert_eq!(second.healthy, Some(false));
}

#[tokio::test]
async fn commands_expand_variables_of_the_spec() {
    let directory = tempfile::tempdir().unwrap();
    let endpoint = endpoint(&directory);
    let response = v1::ExecSyncResponse { exit_code: 0, ..Default::default() };
    let runtime = OneAnswer { answer: Ok(response), requests: Arc::default() };
    let seen = Arc::clone(&runtime.requests);
    let client = served(&endpoint, runtime).await;
    let command = ["echo", "$(GIVEN)", "$(ELSEWHERE)", "$$(GIVEN)"];
    let pod = pod(&json!({
        "name": "c",
        "env": [
            {"name": "GIVEN", "value": "x"},
            {"name": "ELSEWHERE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        "readinessProbe": {"timeoutSeconds": 7, "periodSeconds": 1, "exec": {"command": command}},
    }));
    let (reports, mut received) = mpsc::unbounded_channel();
    let probes = started(client, reports);
    probes.follow(&pod, &[], &[target("one")]);
    assert_eq!(next(&mut received).await.healthy, Some(true));
    let request = seen.lock().unwrap().remove(0);
    assert_eq!(request.cmd, ["echo", "x", "", "$(GIVEN)"]);
    assert_eq!((request.container_id.as_str(), request.timeout), ("one", 7));
}

mod health {
    //! A server of gRPC's health protocol.

    use std::convert::Infallible;

    use bytes::Bytes;
    use http_body_util::{BodyExt as _, Full, StreamBody};
    use hyper::body::{Frame, Incoming};
    use hyper::service::service_fn;
    use hyper_util::rt::{TokioExecutor, TokioIo};

    /// Answers every call with a message of this status, or with this gRPC code.
    pub(super) async fn start(status: Result<u8, u8>) -> u16 {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service =
                    service_fn(move |request: http::Request<Incoming>| answer(request, status));
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
            }
        });
        port
    }

    async fn answer(
        request: http::Request<Incoming>,
        status: Result<u8, u8>,
    ) -> Result<http::Response<http_body_util::combinators::BoxBody<Bytes, Infallible>>, Infallible>
    {
        assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
        let response = http::Response::builder().header("content-type", "application/grpc");
        let _ = request.into_body().collect().await;
        Ok(match status {
            Ok(status) => {
                // A gRPC frame with field 1 as a number, then the trailer for success.
                let message = Bytes::copy_from_slice(&[0, 0, 0, 0, 2, 8, status]);
                let mut trailer = http::HeaderMap::new();
                trailer.insert("grpc-status", "0".parse().unwrap());
                let frames = [Ok(Frame::data(message)), Ok(Frame::trailers(trailer))];
                response.body(StreamBody::new(tokio_stream_of(frames)).boxed()).unwrap()
            }
            Err(code) => response
                .header("grpc-status", code.to_string())
                .header("grpc-message", "said no")
                .body(Full::new(Bytes::new()).boxed())
                .unwrap(),
        })
    }

    fn tokio_stream_of<T>(
        items: impl IntoIterator<Item = T>,
    ) -> futures::stream::Iter<std::vec::IntoIter<T>> {
        futures::stream::iter(items.into_iter().collect::<Vec<_>>())
    }
}

#[tokio::test]
async fn grpc_outcomes_have_the_kubelets_texts() {
    let check = async |status: Result<u8, u8>, expected: Result<(), &str>| {
        let port = health::start(status).await;
        let answer = grpc::check_health("127.0.0.1", port, "svc", PATIENCE).await;
        let expected = match expected {
            Ok(()) => ProbeOutcome::Success,
            Err(text) => ProbeOutcome::Failure(text.to_owned()),
        };
        assert_eq!(answer, expected);
    };
    check(Ok(1), Ok(())).await;
    check(Ok(2), Err("service unhealthy (responded with \"NOT_SERVING\")")).await;
    check(Ok(3), Err("service unhealthy (responded with \"SERVICE_UNKNOWN\")")).await;
    let no_protocol = "error: this server does not implement the grpc health protocol \
                       (grpc.health.v1.Health): said no";
    check(Err(12), Err(no_protocol)).await;
    let refused = "error: health rpc probe failed: rpc error: code = NotFound desc = said no";
    check(Err(5), Err(refused)).await;
    let kept = ClosedPort::new();
    let closed = kept.port;
    // An answer in another protocol is not a connection.
    let plain = Server::start(&["HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"]).await;
    let answer = grpc::check_health("127.0.0.1", plain.port, "", Duration::from_secs(1)).await;
    let late = format!(
        "timeout: failed to connect service \"127.0.0.1:{}\" within 1s: context deadline exceeded",
        plain.port
    );
    assert_eq!(answer, ProbeOutcome::Failure(late));
    let answer = grpc::check_health("127.0.0.1", closed, "", Duration::from_millis(50)).await;
    let expected = format!(
        "timeout: failed to connect service \"127.0.0.1:{closed}\" within 50ms: context deadline \
         exceeded"
    );
    assert_eq!(answer, ProbeOutcome::Failure(expected));
}
