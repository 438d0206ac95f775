//! A server on a socket and the transport to it: real TLS, and HTTP of both versions.

#![allow(clippy::unwrap_used, reason = "clippy.toml allows it in tests, not helpers")]

use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use client::{Address, Client, Error, Kubeconfig, Remote, Scope, Source, Timeouts, kind};
use http::{Response, Version};
use https::certificates::{self, Pair};
use https::{Answer, Dialer, Inbound, Limits, Listener};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

const POD: &str = r#"{"kind":"Pod","metadata":{"name":"p","resourceVersion":"1"}}"#;

/// A received request: the HTTP version, the path with its query, the token and the peer.
type Received = (Version, String, String, String);

/// A server whose response depends on the path.
struct Served {
    address: SocketAddr,
    authority: Pair,
    received: Arc<Mutex<Vec<Received>>>,
    stop: watch::Sender<bool>,
    over: tokio::task::JoinHandle<()>,
}

async fn serve(authority: Pair, address: &str) -> Served {
    let pair = certificates::server(&authority, &["127.0.0.1".to_owned()]).unwrap();
    let limits = Limits { drain_timeout: Duration::ZERO, ..Limits::default() };
    let at = address.parse().unwrap();
    let listener = Listener::bind(at, &pair, Some(&authority.certificate), limits).await.unwrap();
    let address = listener.address().unwrap();
    let (stop, stopping) = watch::channel(false);
    let received: Arc<Mutex<Vec<Received>>> = Arc::default();
    let recorded = received.clone();
    let handle = move |request: Inbound, client: Arc<https::Client>| {
        let header = |name: &str| {
            let value = request.headers().get(name).and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        let path = request.uri().path_and_query().unwrap().to_string();
        let peer = client.peer().map_or(String::new(), |peer| peer.name.clone());
        let received = (request.version(), path.clone(), header("authorization"), peer);
        recorded.lock().unwrap().push(received);
        async move {
            if path.contains("/pods/silent") {
                std::future::pending::<()>().await;
            }
            if path.contains("/pods/late") {
                let (sender, chunks) = mpsc::channel(1);
                sender.send(Bytes::from_static(b"{")).await.unwrap();
                tokio::spawn(async move { sender.closed().await });
                return Answer::from(Response::new(https::Body::Stream(chunks)));
            }
            if path.contains("watch=true") {
                let (sender, chunks) = mpsc::channel(1);
                tokio::spawn(async move {
                    let line = format!("{{\"type\":\"ADDED\",\"object\":{POD}}}\n");
                    for half in [&line[..9], &line[9..]] {
                        sender.send(Bytes::copy_from_slice(half.as_bytes())).await.unwrap();
                    }
                    sender.closed().await;
                });
                return Answer::from(Response::new(https::Body::Stream(chunks)));
            }
            if path.contains("/pods/busy") {
                let text = r#"{"kind":"Status","reason":"TooManyRequests","message":"busy"}"#;
                let mut response =
                    Response::new(https::Body::Whole(Bytes::from_static(text.as_bytes())));
                *response.status_mut() = http::StatusCode::TOO_MANY_REQUESTS;
                response.headers_mut().insert("retry-after", 7.into());
                return Answer::from(response);
            }
            Answer::from(Response::new(https::Body::Whole(Bytes::from_static(POD.as_bytes()))))
        }
    };
    let over = tokio::spawn(listener.serve(handle, stopping));
    Served { address, authority, received, stop, over }
}

impl Served {
    fn config(&self) -> Kubeconfig {
        let identity = certificates::client(&self.authority, "me", "us").unwrap();
        let Pair { certificate, key } = identity;
        Kubeconfig {
            address: Address {
                host: "127.0.0.1".to_owned(),
                port: self.address.port(),
                base: String::new(),
            },
            server_name: "127.0.0.1".to_owned(),
            authority: Source::Inline(self.authority.certificate.clone()),
            identity: Some((Source::Inline(certificate), Source::Inline(key))),
            token: None,
            namespace: String::new(),
        }
    }

    fn client(&self, config: Kubeconfig, timeouts: Timeouts) -> Client {
        Client::new(Arc::new(Remote::new(config, "test", timeouts).unwrap()), "test")
    }

    async fn end(self) -> Pair {
        self.stop.send(true).unwrap();
        self.over.await.unwrap();
        self.authority
    }
}

async fn get(client: &Client, name: &str) -> Result<serde_json::Value, Error> {
    client.get(kind::PODS, "a", name).await
}

fn texts(error: &Error) -> String {
    let cause = std::error::Error::source(error);
    cause.map_or_else(|| error.to_string(), ToString::to_string)
}

#[tokio::test]
async fn http2_requests_share_a_connection_and_an_identity() {
    let served = serve(certificates::authority("a").unwrap(), "127.0.0.1:0").await;
    let mut config = served.config();
    config.address.base = "/below".to_owned();
    let client = served.client(config, Timeouts::default());
    let scope = Scope { field_selector: "a=b c&d".to_owned(), ..Scope::default() };
    assert_eq!(get(&client, "p").await.unwrap()["kind"], "Pod");
    client.list_values(kind::PODS, &scope).await.unwrap();
    let received = served.received.lock().unwrap().clone();
    let entry = |path: &str| (Version::HTTP_2, path.to_owned(), String::new(), "me".to_owned());
    assert_eq!(
        received,
        [
            entry("/below/api/v1/namespaces/a/pods/p"),
            entry("/below/api/v1/pods?fieldSelector=a%3Db%20c%26d&limit=500"),
        ]
    );
}

#[tokio::test]
async fn error_includes_retry_after() {
    let served = serve(certificates::authority("a").unwrap(), "127.0.0.1:0").await;
    let client = served.client(served.config(), Timeouts::default());
    let Err(Error::Refused(refused)) = get(&client, "busy").await else { panic!("not refused") };
    assert_eq!(
        (refused.status, &*refused.reason, refused.retry_after),
        (429, "TooManyRequests", Some(7))
    );
}

#[tokio::test]
async fn watch_is_streamed_and_closed_on_drop() {
    let served = serve(certificates::authority("a").unwrap(), "127.0.0.1:0").await;
    let client = served.client(served.config(), Timeouts::default());
    let mut watch = client.watch(kind::PODS, &Scope::default(), "1", 600).await.unwrap();
    let mut lines = watch.next().await;
    let read = lines.read(|notice| Ok(format!("{notice:?}"))).unwrap().unwrap();
    assert!(read.starts_with("Applied"), "{read}");
    drop(watch);
    assert_eq!(get(&client, "p").await.unwrap()["kind"], "Pod");
}

#[tokio::test]
async fn abandoned_watch_ends_after_its_deadline() {
    let served = serve(certificates::authority("a").unwrap(), "127.0.0.1:0").await;
    let timeouts = Timeouts { watch_slack: Duration::from_millis(50), ..Timeouts::default() };
    let client = served.client(served.config(), timeouts);
    let mut watch = client.watch(kind::PODS, &Scope::default(), "1", 0).await.unwrap();
    while !watch.next().await.is_empty() {}
}

#[tokio::test]
async fn late_response_is_an_error() {
    let served = serve(certificates::authority("a").unwrap(), "127.0.0.1:0").await;
    let timeouts = Timeouts { request: Duration::from_millis(200), ..Timeouts::default() };
    let client = served.client(served.config(), timeouts);
    for name in ["silent", "late"] {
        let error = get(&client, name).await.unwrap_err();
        assert_eq!(texts(&error), "no response within 0.2 s", "{name}");
    }
    // The connection is still usable.
    assert_eq!(get(&client, "p").await.unwrap()["kind"], "Pod");
}

#[tokio::test]
async fn client_reconnects_to_a_restarted_server() {
    let served = serve(certificates::authority("a").unwrap(), "127.0.0.1:0").await;
    let client = served.client(served.config(), Timeouts::default());
    let address = served.address.to_string();
    assert!(get(&client, "p").await.is_ok());
    let authority = served.end().await;
    let error = get(&client, "p").await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
    let served = serve(authority, &address).await;
    assert!(get(&client, "p").await.is_ok());
    assert_eq!(served.received.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn tokens_are_read_again_from_their_file() {
    let served = serve(certificates::authority("a").unwrap(), "127.0.0.1:0").await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    fs::write(&file, "one\n").unwrap();
    let mut config = served.config();
    config.token = Some(Source::File(file.clone()));
    let timeouts = Timeouts { token: Duration::ZERO, ..Timeouts::default() };
    let client = served.client(config, timeouts);
    get(&client, "p").await.unwrap();
    fs::write(&file, "two\n").unwrap();
    get(&client, "p").await.unwrap();
    let received = served.received.lock().unwrap().clone();
    let tokens: Vec<&str> = received.iter().map(|(_, _, token, _)| token.as_str()).collect();
    assert_eq!(tokens, ["Bearer one", "Bearer two"]);
}

#[tokio::test]
async fn untrusted_server_gets_no_request() {
    let served = serve(certificates::authority("a").unwrap(), "127.0.0.1:0").await;
    let mut config = served.config();
    let other = certificates::authority("b").unwrap();
    config.authority = Source::Inline(other.certificate);
    let error = get(&served.client(config, Timeouts::default()), "p").await.unwrap_err();
    assert!(texts(&error).contains("invalid peer certificate"), "{}", texts(&error));
    let mut config = served.config();
    config.server_name = "elsewhere".to_owned();
    let error = get(&served.client(config, Timeouts::default()), "p").await.unwrap_err();
    assert!(texts(&error).contains("not valid for name"), "{}", texts(&error));
    assert!(served.received.lock().unwrap().is_empty());
}

/// A gateway that terminates TLS and supports only HTTP/1.1. Counts its connections.
async fn gateway(served: &Served, connections: Arc<AtomicUsize>) -> u16 {
    let identity = certificates::client(&served.authority, "gateway", "g").unwrap();
    let dialer = Dialer::new(
        &served.authority.certificate,
        Some(&identity),
        &["http/1.1"],
        Duration::from_secs(10),
    )
    .unwrap();
    let pair = certificates::server(&served.authority, &["127.0.0.1".to_owned()]).unwrap();
    let acceptor = acceptor(&pair);
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, to) = (socket.local_addr().unwrap().port(), served.address.port());
    tokio::spawn(async move {
        while let Ok((stream, _)) = socket.accept().await {
            connections.fetch_add(1, Ordering::Relaxed);
            let (acceptor, dialer) = (acceptor.clone(), dialer.clone());
            tokio::spawn(async move {
                let mut near = acceptor.accept(stream).await.unwrap();
                let mut far = dialer.connect("127.0.0.1", to, "127.0.0.1").await.unwrap();
                let _ = copy_bidirectional::<_, tokio_rustls::client::TlsStream<TcpStream>>(
                    &mut near, &mut far,
                )
                .await;
            });
        }
    });
    port
}

fn acceptor(pair: &Pair) -> tokio_rustls::TlsAcceptor {
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![chain], key)
        .unwrap();
    tokio_rustls::TlsAcceptor::from(Arc::new(config))
}

#[tokio::test]
async fn http1_fallback_reuses_connections() {
    let served = serve(certificates::authority("a").unwrap(), "127.0.0.1:0").await;
    let connections = Arc::new(AtomicUsize::new(0));
    let mut config = served.config();
    config.address.port = gateway(&served, connections.clone()).await;
    let client = served.client(config, Timeouts::default());
    for _ in 0..3 {
        get(&client, "p").await.unwrap();
    }
    assert_eq!(connections.load(Ordering::Relaxed), 1);
    let _watch = client.watch(kind::PODS, &Scope::default(), "1", 600).await.unwrap();
    get(&client, "p").await.unwrap();
    assert_eq!(connections.load(Ordering::Relaxed), 2);
    let received = served.received.lock().unwrap().clone();
    assert!(received.iter().all(|(version, ..)| *version == Version::HTTP_11), "{received:?}");
    assert_eq!(received[0].1, "/api/v1/namespaces/a/pods/p");
}
