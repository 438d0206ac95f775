//! Upgraded connections, through a listener to a backend.

#![allow(clippy::unwrap_used, reason = "clippy.toml allows it in tests, not helpers")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use https::certificates::{self, Pair};
use https::{Answer, Body, Client, Dialer, Inbound, Limits, Listener};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(20);

/// Switches to a protocol that repeats every byte, or refuses to.
async fn backend() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                if head.starts_with(b"GET /no") {
                    let no = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno";
                    return stream.write_all(no).await.unwrap();
                }
                let yes = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n\
                            upgrade: twice\r\nx-backend: yes\r\n\r\n";
                stream.write_all(yes).await.unwrap();
                while let Ok(byte) = stream.read_u8().await {
                    stream.write_all(&[byte, byte]).await.unwrap();
                }
            });
        }
    });
    address
}

struct Served {
    address: SocketAddr,
    authority: Pair,
    held: Arc<AtomicUsize>,
    stop: watch::Sender<bool>,
    over: tokio::task::JoinHandle<()>,
}

struct Held(Arc<AtomicUsize>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn serve(tunnels: usize) -> Served {
    let backend = backend().await;
    let authority = certificates::authority("a").unwrap();
    let pair = certificates::server(&authority, &["localhost".to_owned()]).unwrap();
    let limits = Limits { tunnels, drain_timeout: Duration::ZERO, ..Limits::default() };
    let any = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(any, &pair, None, limits).await.unwrap();
    let address = listener.address().unwrap();
    let (stop, stopping) = watch::channel(false);
    let held = Arc::new(AtomicUsize::new(0));
    let holding = held.clone();
    let handle = move |request: Inbound, client: Arc<Client>| {
        assert!(client.peer().is_none());
        let holding = holding.clone();
        async move {
            if !https::is_upgrade(request.headers()) {
                return Answer::from(Response::new(Body::Whole(Bytes::from_static(b"plain"))));
            }
            let stream = TcpStream::connect(backend).await.unwrap();
            let mut passed = Request::new(Full::new(Bytes::new()));
            *passed.uri_mut() = request.uri().path().parse().unwrap();
            *passed.headers_mut() = https::upgrade_headers(request.headers());
            let response = https::exchange(stream, passed).await.unwrap();
            let mut answer = https::relay(response).await.unwrap();
            answer.tunnel = answer.tunnel.map(|tunnel| {
                holding.fetch_add(1, Ordering::SeqCst);
                tunnel.holding(Held(holding))
            });
            answer
        }
    };
    let over = tokio::spawn(listener.serve(handle, stopping));
    Served { address, authority, held, stop, over }
}

impl Served {
    async fn ask(&self, path: &str, headers: HeaderMap) -> Response<Incoming> {
        let authority = &self.authority.certificate;
        let dialer = Dialer::new(authority, None, &["http/1.1"], PATIENCE).unwrap();
        let port = self.address.port();
        let stream = dialer.connect("127.0.0.1", port, "localhost").await.unwrap();
        let mut request = Request::new(Full::new(Bytes::new()));
        *request.uri_mut() = path.parse().unwrap();
        *request.headers_mut() = headers;
        request.headers_mut().insert("host", HeaderValue::from_static("x"));
        https::exchange(stream, request).await.unwrap()
    }

    async fn upgrade(&self, path: &str) -> Response<Incoming> {
        let mut headers = HeaderMap::new();
        headers.insert("connection", HeaderValue::from_static("Upgrade"));
        headers.insert("upgrade", HeaderValue::from_static("twice"));
        self.ask(path, headers).await
    }
}

async fn text(response: Response<Incoming>) -> String {
    let body = timeout(PATIENCE, response.into_body().collect()).await.unwrap().unwrap();
    String::from_utf8(body.to_bytes().to_vec()).unwrap()
}

async fn opened(response: Response<Incoming>) -> TokioIo<hyper::upgrade::Upgraded> {
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    assert_eq!(response.headers()["x-backend"], "yes");
    TokioIo::new(hyper::upgrade::on(response).await.unwrap())
}

#[tokio::test]
async fn bytes_go_both_ways_until_one_end_is_closed() {
    let served = serve(8).await;
    let mut tunnel = opened(served.upgrade("/yes").await).await;
    for (sent, expected) in [(&b"ab"[..], &b"aabb"[..]), (b"c", b"cc")] {
        tunnel.write_all(sent).await.unwrap();
        let mut answer = vec![0; expected.len()];
        timeout(PATIENCE, tunnel.read_exact(&mut answer)).await.unwrap().unwrap();
        assert_eq!(answer, expected);
    }
    assert_eq!(served.held.load(Ordering::SeqCst), 1);
    // The last bytes are still answered.
    tunnel.write_all(b"z").await.unwrap();
    tunnel.shutdown().await.unwrap();
    let mut rest = Vec::new();
    timeout(PATIENCE, tunnel.read_to_end(&mut rest)).await.unwrap().unwrap();
    assert_eq!(rest, b"zz");
}

#[tokio::test]
async fn refused_upgrade_is_passed_on() {
    let served = serve(8).await;
    let refused = served.upgrade("/no").await;
    assert_eq!(refused.status(), StatusCode::FORBIDDEN);
    assert_eq!(text(refused).await, "no");
    assert_eq!(text(served.ask("/plain", HeaderMap::new()).await).await, "plain");
}

#[tokio::test]
async fn tunnels_are_counted_separately() {
    let served = serve(1).await;
    let tunnel = opened(served.upgrade("/yes").await).await;
    let refused = served.upgrade("/yes").await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(text(refused).await, "too many streams are open");
    assert_eq!(text(served.ask("/plain", HeaderMap::new()).await).await, "plain");
    drop(tunnel);
    // The permit is free as soon as the end has been noticed.
    let free = timeout(PATIENCE, async {
        while served.upgrade("/yes").await.status() != StatusCode::SWITCHING_PROTOCOLS {}
    });
    free.await.unwrap();
}

#[tokio::test]
async fn tunnels_end_with_the_listener() {
    let served = serve(8).await;
    let mut tunnel = opened(served.upgrade("/yes").await).await;
    served.stop.send(true).unwrap();
    served.over.await.unwrap();
    let mut rest = Vec::new();
    // Closed in any way.
    let _ = timeout(PATIENCE, tunnel.read_to_end(&mut rest)).await.unwrap();
    assert!(rest.is_empty());
    let gone = timeout(PATIENCE, async {
        while served.held.load(Ordering::SeqCst) > 0 {
            tokio::task::yield_now().await;
        }
    });
    gone.await.unwrap();
}
