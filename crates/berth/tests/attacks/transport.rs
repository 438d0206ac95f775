//! Attacks with requests and connections: bodies that must not be read, watches without a reader,
//! and unusual but valid HTTP.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use client::kind::CONFIG_MAPS;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::time::timeout;

use crate::server::{Endpoint, Server, Who};

const TIMEOUT: Duration = Duration::from_secs(30);
const MIB: u64 = 1 << 20;

/// A body of the given length, sent in chunks of 64 KiB; it may stop before its announced end.
#[derive(Debug)]
pub(crate) struct Filler {
    left: usize,
    ends: bool,
}

impl Filler {
    pub(crate) fn whole(length: usize) -> Filler {
        Filler { left: length, ends: true }
    }

    pub(crate) fn endless(length: usize) -> Filler {
        Filler { left: length, ends: false }
    }
}

impl Body for Filler {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        static SPACES: [u8; 64 * 1024] = [b' '; 64 * 1024];
        match self.left {
            0 if self.ends => Poll::Ready(None),
            // Only the end of the connection wakes it.
            0 => Poll::Pending,
            left => {
                let length = left.min(SPACES.len());
                self.left -= length;
                Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&SPACES[..length])))))
            }
        }
    }
}

pub(crate) type Sender = SendRequest<Filler>;

/// Opens an HTTP/2 connection.
pub(crate) async fn open(endpoint: &Endpoint) -> Option<Sender> {
    let stream = TokioIo::new(endpoint.connect().await.ok()?);
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .max_concurrent_reset_streams(1000)
        .handshake(stream)
        .await
        .ok()?;
    tokio::spawn(connection);
    Some(sender)
}

pub(crate) fn request(
    endpoint: &Endpoint,
    who: Who<'_>,
    method: Method,
    path: &str,
    body: Filler,
) -> Request<Filler> {
    let mut request = Request::builder().method(method).uri(format!("{}{path}", endpoint.base()));
    if let Who::Token(token) = who {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    request.header("content-type", "application/json").body(body).unwrap()
}

async fn text(response: Response<Incoming>) -> String {
    let body = timeout(TIMEOUT, response.into_body().collect()).await.unwrap().unwrap();
    String::from_utf8_lossy(&body.to_bytes()).into_owned()
}

const PODS: &str = "/api/v1/namespaces/default/pods";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

#[tokio::test(flavor = "multi_thread")]
async fn unauthorized_bodies_are_not_read() {
    let server = Server::start();
    let token = server.token("default", "default").await;
    for (who, status) in [
        (Who::Stranger, StatusCode::UNAUTHORIZED),
        (Who::Token("wrong"), StatusCode::UNAUTHORIZED),
        (Who::Token(&token), StatusCode::FORBIDDEN),
    ] {
        let endpoint = server.endpoint(who, "h2");
        let sender = open(&endpoint).await.unwrap();
        let mut answers = tokio::task::JoinSet::new();
        for _ in 0..900 {
            let mut sender = sender.clone();
            let request = request(&endpoint, who, Method::POST, PODS, Filler::endless(2 << 20));
            // The response comes although the body has no end.
            answers.spawn(async move {
                sender.ready().await.unwrap();
                timeout(TIMEOUT, sender.send_request(request)).await
            });
        }
        while let Some(answer) = answers.join_next().await {
            assert_eq!(answer.unwrap().unwrap().unwrap().status(), status);
        }
    }
    let peak = server.peak_memory() / MIB;
    assert!(peak < 150, "{peak} MiB");
    server.assert_alive().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn body_announced_as_too_long_is_rejected_at_once() {
    let server = Server::start();
    let endpoint = server.endpoint(Who::Admin, "h2");
    let mut sender = open(&endpoint).await.unwrap();
    let mut request = request(&endpoint, Who::Admin, Method::POST, PODS, Filler::endless(0));
    request.headers_mut().insert("content-length", (4 << 20).into());
    let answer = timeout(TIMEOUT, sender.send_request(request)).await.unwrap().unwrap();
    assert_eq!(answer.status(), StatusCode::PAYLOAD_TOO_LARGE);
    let text = text(answer).await;
    assert!(text.contains("Request entity too large: limit is 3145728"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_in_flight_are_bounded_per_user() {
    let server = Server::start();
    let token = server.token("default", "default").await;
    let who = Who::Token(&token);
    let endpoint = server.endpoint(who, "h2");
    let mut answers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let sender = open(&endpoint).await.unwrap();
        for _ in 0..50 {
            let mut sender = sender.clone();
            let mut request =
                request(&endpoint, who, Method::POST, REVIEWS, Filler::endless(2_900_000));
            request.headers_mut().insert("content-length", 3_000_000.into());
            answers.spawn(async move {
                sender.ready().await.unwrap();
                timeout(TIMEOUT, sender.send_request(request)).await
            });
        }
    }
    // A request without room for its body is rejected, while others wait for the rest of theirs.
    let answer = answers.join_next().await.unwrap().unwrap().unwrap().unwrap();
    assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(answer.headers()["retry-after"], "1");
    let text = text(answer).await;
    for part in ["TooManyRequests", "Too many requests, please try again later."] {
        assert!(text.contains(part), "{text}");
    }
    server.assert_alive().await;
    let other = server.token("kube-system", "default").await;
    let review = r#"{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1",
        "spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}"#;
    let headers = [("content-type", "application/json")];
    let answer = server.ask(Who::Token(&other), Method::POST, REVIEWS, &headers, review).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.text());
    let metrics = server.ask(Who::Admin, Method::GET, "/metrics", &[], "").await.text();
    let rejected = metrics.lines().any(|line| {
        line.starts_with(
            "apiserver_flowcontrol_rejected_requests_total{priority_level=\"workload-low\"",
        ) && !line.ends_with(" 0")
    });
    assert!(rejected, "{metrics}");
    let peak = server.peak_memory() / MIB;
    assert!(peak < 150, "{peak} MiB");
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_without_a_reader_are_cheap_and_closed() {
    const WATCHES: usize = 200;
    let server = Server::start();
    let endpoint = server.endpoint(Who::Admin, "h2");
    let mut unread = Vec::new();
    let path = "/api/v1/namespaces/default/configmaps?watch=1";
    for _ in 0..WATCHES / 50 {
        let mut sender = open(&endpoint).await.unwrap();
        for _ in 0..50 {
            let request = request(&endpoint, Who::Admin, Method::GET, path, Filler::whole(0));
            let answer = sender.send_request(request).await.unwrap();
            assert_eq!(answer.status(), StatusCode::OK);
            unread.push(answer);
        }
    }
    let admin = Arc::new(server.admin());
    let large = "x".repeat(1_000_000);
    for number in 0..10 {
        let object = json!({
            "kind": "ConfigMap", "apiVersion": "v1",
            "metadata": {"name": format!("large-{number}")}, "data": {"large": large},
        });
        admin.create(CONFIG_MAPS, "default", &object).await.unwrap();
    }
    server.assert_alive().await;
    let ended = timeout(TIMEOUT, async {
        loop {
            let metrics = server.ask(Who::Admin, Method::GET, "/metrics", &[], "").await.text();
            let name = "apiserver_terminated_watchers_total{priority_level=\"exempt\"} ";
            let count = metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            if count != "0" {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    ended.await.unwrap();
    let peak = server.peak_memory() / MIB;
    assert!(peak < 250, "{peak} MiB");
    drop(unread);
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_are_limited_by_user() {
    let server = Server::start();
    let viewer = server.viewer_endpoint();
    let mut kept = Vec::new();
    let mut refused = 0;
    for _ in 0..11 {
        let mut sender = open(&viewer).await.unwrap();
        for _ in 0..100 {
            let path = "/api/v1/pods?watch=1";
            let request = request(&viewer, Who::Stranger, Method::GET, path, Filler::whole(0));
            let answer = timeout(TIMEOUT, sender.send_request(request)).await.unwrap().unwrap();
            match answer.status() {
                StatusCode::OK => kept.push(answer),
                status => {
                    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
                    refused += 1;
                    // Read the body, so that its stream is released.
                    text(answer).await;
                }
            }
        }
    }
    assert_eq!((kept.len(), refused), (1024, 76));
    // Slots are released when clients disconnect.
    drop(kept);
    let free = timeout(TIMEOUT, async {
        loop {
            let mut sender = open(&viewer).await.unwrap();
            let path = "/api/v1/pods?watch=1";
            let request = request(&viewer, Who::Stranger, Method::GET, path, Filler::whole(0));
            if sender.send_request(request).await.unwrap().status() == StatusCode::OK {
                break;
            }
        }
    });
    free.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_request_does_not_break_the_stream() {
    let server = Server::start();
    for (path, status) in
        [("/healthz", 200), ("/version", 405), (PODS, 405), ("/api/v1/namespaces/default", 405)]
    {
        let answer = server.ask(Who::Admin, Method::HEAD, path, &[], "").await;
        assert_eq!((answer.status.as_u16(), answer.text().as_str()), (status, ""), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn control_characters_in_paths_are_refused() {
    let server = Server::start();
    for path in [
        "/api/v1/namespaces/default/pods/%00",
        "/api/v1/namespaces/%00/pods",
        "/api/v1/namespaces/default/pods/a%0ab/log",
        "/api/v1/namespaces/default/configmaps/%1b%5b2J",
        "/api/v1/nodes/%7f",
    ] {
        for method in [Method::GET, Method::DELETE] {
            let answer = server.ask(Who::Admin, method, path, &[], "").await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path}: {}", answer.text());
        }
    }
    server.assert_alive().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parameters_without_a_meaning_are_refused() {
    let server = Server::start();
    for (path, status) in [
        ("/api/v1/pods?watch=1&timeoutSeconds=x", 400),
        ("/api/v1/pods?timeoutSeconds=x", 400),
        ("/api/v1/pods?timeout=invalid", 400),
        ("/api/v1/pods?limit=x", 400),
        ("/apis/nothing.example.com/v1/things", 404),
    ] {
        let answer = server.ask(Who::Admin, Method::GET, path, &[], "").await;
        assert_eq!(answer.status.as_u16(), status, "{path}: {}", answer.text());
    }
    // A watch of the longest time that can be written starts.
    let endpoint = server.endpoint(Who::Admin, "h2");
    let mut sender = open(&endpoint).await.unwrap();
    let path = "/api/v1/pods?watch=1&timeoutSeconds=9223372036854775807";
    let request = request(&endpoint, Who::Admin, Method::GET, path, Filler::whole(0));
    let watch = timeout(TIMEOUT, sender.send_request(request)).await.unwrap().unwrap();
    assert_eq!(watch.status(), StatusCode::OK);
    let headers = [("content-type", "application/json")];
    let maps = "/api/v1/namespaces/default/configmaps";
    let object = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"dry"}}"#;
    let dry = format!("{maps}?dryRun=");
    server.ask(Who::Admin, Method::POST, &dry, &headers, object).await;
    let found = server.ask(Who::Admin, Method::GET, &format!("{maps}/dry"), &[], "").await;
    assert_eq!(found.status, StatusCode::NOT_FOUND, "an empty dryRun creates");
    let nowhere = "/apis/nothing.example.com/v1/things";
    let answer = server.ask(Who::Admin, Method::POST, nowhere, &headers, object).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND, "{}", answer.text());
    server.assert_alive().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_are_closed_and_lock_out_no_client() {
    /// More than a server accepts at the same time.
    const SILENT: usize = 4200;
    crate::flood::raise_open_files();
    let server = Server::start();
    let stranger = server.endpoint(Who::Stranger, "h2");
    let mut kept = Vec::with_capacity(SILENT);
    for _ in 0..SILENT / 60 {
        let mut opening = tokio::task::JoinSet::new();
        for _ in 0..60 {
            let stranger = stranger.clone();
            opening.spawn(async move { stranger.connect().await });
        }
        kept.extend(opening.join_all().await.into_iter().flatten());
    }
    server.assert_alive().await;
    // The handshake was the last that the client sent.
    let mut oldest = kept.swap_remove(0);
    let mut end = [0; 1024];
    let closed = async {
        use tokio::io::AsyncReadExt as _;
        // The server may send its settings first.
        while oldest.read(&mut end).await.is_ok_and(|read| read > 0) {}
    };
    assert!(timeout(Duration::from_secs(60), closed).await.is_ok(), "a silent connection stays");
}
