//! Connections and requests that would cost a listener too much, and those that must not be
//! affected.

#![allow(clippy::unwrap_used, reason = "clippy.toml allows it in tests, not helpers")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, Version};
use http_body_util::{BodyExt as _, Full};
use https::certificates::{self, Pair};
use https::{Answer, Body, Client, Counts, Dialer, Inbound, Limits, Listener};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

const PATIENCE: Duration = Duration::from_secs(20);

/// A listener whose responses depend on the path.
struct Served {
    address: SocketAddr,
    authority: Pair,
    counts: Box<dyn Fn() -> Counts + Send + Sync>,
    /// Responses that are not sent completely.
    held: Arc<AtomicUsize>,
    _stop: watch::Sender<bool>,
}

struct Held(Arc<AtomicUsize>);

impl Held {
    fn new(count: &Arc<AtomicUsize>) -> Held {
        count.fetch_add(1, Ordering::SeqCst);
        Held(Arc::clone(count))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn answer(request: Inbound, client: Arc<Client>, held: Arc<AtomicUsize>) -> Answer {
    let name = request.headers().get("authorization").and_then(|name| name.to_str().ok());
    if let Some(name) = name
        && !client.known_as(name)
    {
        return Answer::from(Response::new(Body::Whole("too many".into())));
    }
    let body = match request.uri().path() {
        "/long" => Body::Whole(Bytes::from(vec![b'x'; 4 << 20])),
        "/quiet" => {
            let (sender, chunks) = mpsc::channel(1);
            tokio::spawn(async move { sender.closed().await });
            Body::Stream(chunks)
        }
        _ => Body::Whole(Bytes::from_static(b"answer")),
    };
    let answer = Answer::from(Response::new(body)).holding(Held::new(&held));
    if request.headers().contains_key("slow-reader") { answer.for_slow_reader() } else { answer }
}

async fn serve(limits: Limits) -> Served {
    let authority = certificates::authority("a").unwrap();
    let pair = certificates::server(&authority, &["localhost".to_owned()]).unwrap();
    let limits = Limits { drain_timeout: Duration::ZERO, ..limits };
    let any = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(any, &pair, Some(&authority.certificate), limits).await.unwrap();
    let address = listener.address().unwrap();
    let counts = Box::new(listener.counts());
    let (stop, stopping) = watch::channel(false);
    let held = Arc::new(AtomicUsize::new(0));
    let holding = Arc::clone(&held);
    let handle =
        move |request: Inbound, client: Arc<Client>| answer(request, client, Arc::clone(&holding));
    tokio::spawn(listener.serve(handle, stopping));
    Served { address, authority, counts, held, _stop: stop }
}

type Sender1 = http1::SendRequest<Full<Bytes>>;
type Sender2 = http2::SendRequest<Full<Bytes>>;

impl Served {
    async fn connect(&self, client: Option<&Pair>, protocol: &str) -> TlsStream<TcpStream> {
        let dialer = Dialer::new(&self.authority.certificate, client, &[protocol], PATIENCE);
        let port = self.address.port();
        dialer.unwrap().connect("127.0.0.1", port, "localhost").await.unwrap()
    }

    async fn http2(&self) -> Sender2 {
        let stream = TokioIo::new(self.connect(None, "h2").await);
        let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    async fn http1(&self) -> Sender1 {
        let stream = TokioIo::new(self.connect(None, "http/1.1").await);
        let (sender, connection) = http1::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    fn ended(&self, reason: &str) -> u64 {
        let ended = (self.counts)().ended;
        ended.iter().find(|(name, _)| *name == reason).unwrap().1
    }

    async fn until(&self, what: &str, is: impl Fn(&Served) -> bool) {
        let reached = timeout(PATIENCE, async {
            while !is(self) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        assert!(reached.await.is_ok(), "{what}: {:?}", (self.counts)());
    }
}

fn request(method: Method, version: Version, path: &str, name: &str) -> Request<Full<Bytes>> {
    let uri = match version {
        Version::HTTP_2 => format!("https://localhost{path}"),
        _ => path.to_owned(),
    };
    let mut request =
        Request::builder().method(method).uri(uri).version(version).header("host", "localhost");
    if !name.is_empty() {
        request = request.header("authorization", name);
    }
    request.body(Full::default()).unwrap()
}

async fn text(response: Response<Incoming>) -> String {
    let body = timeout(PATIENCE, response.into_body().collect()).await.unwrap().unwrap();
    String::from_utf8(body.to_bytes().to_vec()).unwrap()
}

/// Returns when the server has closed the connection.
async fn closed(mut stream: TlsStream<TcpStream>) {
    let mut rest = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("still open");
}

#[tokio::test]
async fn connections_that_stay_silent_after_the_handshake_are_closed() {
    let served =
        serve(Limits { handshake_timeout: Duration::from_millis(200), ..Limits::default() }).await;
    // A TCP connection without a handshake, then both protocols without a request.
    let mut plain = TcpStream::connect(served.address).await.unwrap();
    let mut rest = Vec::new();
    let _ = timeout(PATIENCE, plain.read_to_end(&mut rest)).await.expect("still open");
    closed(served.connect(None, "http/1.1").await).await;
    closed(served.connect(None, "h2").await).await;
    // The preface and the settings of HTTP/2 are not a request.
    let mut stream = served.connect(None, "h2").await;
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    closed(stream).await;
    // Part of a request is not one either.
    let mut stream = served.connect(None, "http/1.1").await;
    stream.write_all(b"GET / HTTP/1.1\r\nhost:").await.unwrap();
    closed(stream).await;
    served.until("all are gone", |served| (served.counts)().anonymous == 0).await;
}

#[tokio::test]
async fn silent_connections_do_not_block_other_clients() {
    let limits = Limits { anonymous: 16, anonymous_per_address: 8, ..Limits::default() };
    let served = serve(limits).await;
    let mut silent = Vec::new();
    for _ in 0..64 {
        silent.push(TcpStream::connect(served.address).await.unwrap());
    }
    let mut sender = served.http2().await;
    let response = sender.send_request(request(Method::GET, Version::HTTP_2, "/", "")).await;
    assert_eq!(text(response.unwrap()).await, "answer");
    assert!((served.counts)().anonymous <= 8);
    assert!(served.ended("displaced") >= 56);
}

#[tokio::test]
async fn anonymous_clients_do_not_displace_known_clients() {
    let limits = Limits { anonymous: 4, anonymous_per_address: 4, ..Limits::default() };
    let served = serve(limits).await;
    let mut by_token = served.http2().await;
    let ask = |path, name| request(Method::GET, Version::HTTP_2, path, name);
    assert_eq!(text(by_token.send_request(ask("/", "a")).await.unwrap()).await, "answer");
    let pair = certificates::client(&served.authority, "b", "group").unwrap();
    let by_certificate = served.connect(Some(&pair), "h2").await;
    served.until("both are known", |served| (served.counts)().known == 2).await;
    for _ in 0..16 {
        let _ = TcpStream::connect(served.address).await.unwrap();
    }
    assert_eq!((served.counts)().known, 2);
    assert_eq!(text(by_token.send_request(ask("/", "a")).await.unwrap()).await, "answer");
    drop(by_certificate);
    served.until("its place is free", |served| (served.counts)().known == 1).await;
}

#[tokio::test]
async fn idle_client_is_closed_and_waiting_one_is_not() {
    let limits = Limits { idle: Duration::from_millis(200), ..Limits::default() };
    let served = serve(limits).await;
    let ask = |path, name| request(Method::GET, Version::HTTP_2, path, name);
    let mut waiting = served.http2().await;
    let quiet = waiting.send_request(ask("/quiet", "a")).await.unwrap();
    let mut idle = served.http2().await;
    assert_eq!(text(idle.send_request(ask("/", "b")).await.unwrap()).await, "answer");
    served.until("the idle one is closed", |served| (served.counts)().known == 1).await;
    assert_eq!(served.ended("idle"), 1);
    assert_eq!(text(waiting.send_request(ask("/", "a")).await.unwrap()).await, "answer");
    drop(quiet);
    served.until("it is idle now", |served| (served.counts)().known == 0).await;
}

#[tokio::test]
async fn client_that_does_not_read_is_closed() {
    let limits = Limits { stall: Duration::from_millis(200), ..Limits::default() };
    let served = serve(limits).await;
    let mut over2 = served.http2().await;
    let unread2 = over2.send_request(request(Method::GET, Version::HTTP_2, "/long", "a")).await;
    let mut over1 = served.http1().await;
    let unread1 = over1.send_request(request(Method::GET, Version::HTTP_11, "/long", "b")).await;
    assert!(unread1.is_ok() && unread2.is_ok());
    let mut reader = served.http2().await;
    let mut log = request(Method::GET, Version::HTTP_2, "/long", "c");
    log.headers_mut().insert("slow-reader", "yes".parse().unwrap());
    let log = reader.send_request(log).await.unwrap();
    served.until("both are closed", |served| served.ended("stalled") == 2).await;
    served.until("only the log is held", |served| served.held.load(Ordering::SeqCst) == 1).await;
    assert_eq!(text(log).await.len(), 4 << 20);
}

#[tokio::test]
async fn held_values_are_released_after_the_response_is_read() {
    let served = serve(Limits::default()).await;
    let mut sender = served.http2().await;
    let response = sender.send_request(request(Method::GET, Version::HTTP_2, "/long", "a")).await;
    assert_eq!(served.held.load(Ordering::SeqCst), 1);
    assert_eq!(text(response.unwrap()).await.len(), 4 << 20);
    served.until("it is released", |served| served.held.load(Ordering::SeqCst) == 0).await;
}

#[tokio::test]
async fn head_request_gets_headers_without_a_body() {
    let served = serve(Limits::default()).await;
    let mut over2 = served.http2().await;
    let mut over1 = served.http1().await;
    for path in ["/", "/long", "/quiet", "/"] {
        let response = over2.send_request(request(Method::HEAD, Version::HTTP_2, path, "a")).await;
        let of2 = response.unwrap();
        let response = over1.send_request(request(Method::HEAD, Version::HTTP_11, path, "a")).await;
        let of1 = response.unwrap();
        for response in [of2, of1] {
            let length = response.headers().get("content-length").cloned();
            let wanted = match path {
                "/" => Some("6"),
                "/long" => Some("4194304"),
                _ => None,
            };
            assert_eq!(length.as_ref().and_then(|length| length.to_str().ok()), wanted, "{path}");
            assert_eq!(text(response).await, "", "{path}");
        }
    }
}
