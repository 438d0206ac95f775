//! Tests with servers on this machine.

use std::sync::{Arc, Mutex};

use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket};

use super::*;
use lifecycle::spec::HttpHeader;

/// Long enough for a busy machine; not waited for in a passing test.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

/// A server that returns these answers, one for each connection, and then repeats the last one.
pub(crate) struct Server {
    pub(crate) port: u16,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub(crate) async fn start(answers: &[&str]) -> Server {
        Server::with(answers, None).await
    }

    async fn with(answers: &[&str], tls: Option<tokio_rustls::TlsAcceptor>) -> Server {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let answers: Vec<String> =
            answers.iter().map(|answer| answer.replace("PORT", &port.to_string())).collect();
        let heard = Arc::clone(&requests);
        tokio::spawn(async move {
            for number in 0.. {
                let Ok((stream, _)) = listener.accept().await else { return };
                let answer = &answers[number.min(answers.len() - 1)];
                match &tls {
                    None => serve(stream, answer, &heard).await,
                    // Ignore clients without TLS.
                    Some(tls) => match tls.accept(stream).await {
                        Ok(stream) => serve(stream, answer, &heard).await,
                        Err(_) => continue,
                    },
                }
            }
        });
        Server { port, requests }
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    answer: &str,
    requests: &Mutex<Vec<String>>,
) {
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read(&mut part).await {
            Ok(0) | Err(_) => break,
            Ok(length) => request.extend_from_slice(&part[..length]),
        }
    }
    requests.lock().unwrap().push(String::from_utf8(request).unwrap());
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await;
}

fn tls() -> tokio_rustls::TlsAcceptor {
    let certified = rcgen::generate_simple_self_signed(["nobody.invalid".to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(certified.signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)
        .unwrap();
    tokio_rustls::TlsAcceptor::from(Arc::new(config))
}

fn asking(port: u16, edit: impl FnOnce(&mut HttpGetAction)) -> Get {
    let mut action = HttpGetAction {
        path: "/healthz".to_owned(),
        port: IntOrString::Int(i64::from(port)),
        scheme: "HTTP".to_owned(),
        ..HttpGetAction::default()
    };
    edit(&mut action);
    Get::new(&action, &Container::default(), "127.0.0.1", "kube-probe").unwrap()
}

fn header(name: &str, value: &str) -> HttpHeader {
    HttpHeader { name: name.to_owned(), value: value.to_owned() }
}

const FINE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine";

#[tokio::test]
async fn request_equals_the_kubelets() {
    let server = Server::start(&[FINE]).await;
    let got = get(&asking(server.port, |_| {}), PATIENCE).await.unwrap();
    assert_eq!(got, FetchResponse { status: 200, body: b"fine".to_vec() });
    let expected = format!(
        "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\nUser-Agent: \
         kube-probe/1.37\r\nAccept: */*\r\n\r\n",
        server.port
    );
    assert_eq!(server.requests(), [expected]);
}

#[tokio::test]
async fn headers_of_the_probe_replace_the_defaults() {
    let server = Server::start(&[FINE]).await;
    let asking = asking(server.port, |action| {
        action.http_headers = vec![
            header("host", "example.com"),
            header("user-agent", "me"),
            header("Accept", ""),
            header("X-Two", "1"),
            header("X-Two", "2"),
        ];
    });
    get(&asking, PATIENCE).await.unwrap();
    let expected = "GET /healthz HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\nUser-Agent: \
                    me\r\nX-Two: 1\r\nX-Two: 2\r\n\r\n";
    assert_eq!(server.requests(), [expected]);
}

#[tokio::test]
async fn redirects_are_followed_on_the_same_host_only() {
    let here = "HTTP/1.1 302 Found\r\nLocation: /next\r\nContent-Length: 0\r\n\r\n";
    let server = Server::start(&[here, FINE]).await;
    let with_host = |action: &mut HttpGetAction| action.http_headers = vec![header("Host", "x")];
    assert_eq!(get(&asking(server.port, with_host), PATIENCE).await.unwrap().status, 200);
    let second = &server.requests()[1];
    assert!(second.starts_with("GET /next HTTP/1.1\r\nHost: x\r\n"), "{second}");
    assert!(second.contains(&format!("Referer: http://127.0.0.1:{}/healthz\r\n", server.port)));

    let elsewhere =
        "HTTP/1.1 301 Moved\r\nLocation: http://elsewhere.invalid/\r\nContent-Length: 3\r\n\r\nbye";
    let server = Server::start(&[elsewhere]).await;
    let got = get(&asking(server.port, |_| {}), PATIENCE).await.unwrap();
    assert_eq!(got, FetchResponse { status: 301, body: b"bye".to_vec() });
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn circular_redirects_end() {
    let again = "HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n";
    let server = Server::start(&[again]).await;
    let error = get(&asking(server.port, |_| {}), PATIENCE).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("Get \"http://127.0.0.1:{}/again\": stopped after 10 redirects", server.port)
    );
    assert_eq!(server.requests().len(), 10);
}

#[tokio::test]
async fn redirect_without_a_valid_location_is_an_answer() {
    let server = Server::start(&["HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n"]).await;
    assert_eq!(get(&asking(server.port, |_| {}), PATIENCE).await.unwrap().status, 302);
}

#[tokio::test]
async fn body_is_read_up_to_a_limit() {
    let body = "x".repeat(BODY_LIMIT * 2);
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let server = Server::start(&[&answer]).await;
    let got = get(&asking(server.port, |_| {}), PATIENCE).await.unwrap();
    assert_eq!(got.body.len(), BODY_LIMIT);
}

#[tokio::test]
async fn certificates_are_not_verified() {
    let server = Server::with(&[FINE], Some(tls())).await;
    let https = |action: &mut HttpGetAction| action.scheme = "HTTPS".to_owned();
    assert_eq!(get(&asking(server.port, https), PATIENCE).await.unwrap().status, 200);
}

#[tokio::test]
async fn tls_to_a_plain_server_has_its_own_error() {
    let https = |action: &mut HttpGetAction| action.scheme = "HTTPS".to_owned();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        // Keep the connection open until the client has read the answer.
        let _ = stream.read(&mut [0; 4096]).await;
        let _ = stream.read(&mut [0; 4096]).await;
    });
    let error = get(&asking(port, https), PATIENCE).await.unwrap_err();
    assert_eq!(error.failure, Failure::NotTls);
}

#[tokio::test]
async fn broken_and_refused_connections_have_different_errors() {
    let server = Server::start(&[""]).await;
    let error = get(&asking(server.port, |_| {}), PATIENCE).await.unwrap_err();
    assert_eq!(error.to_string(), format!("Get \"http://127.0.0.1:{}/healthz\": EOF", server.port));
    for (answer, expected) in [
        ("what?\r\n\r\n", "malformed HTTP response \"what?\""),
        ("hello there you\n", "malformed HTTP status code \"there\""),
        ("FTP 220 ready\r\n\r\n", "malformed HTTP version \"FTP\""),
    ] {
        let server = Server::start(&[answer]).await;
        let error = get(&asking(server.port, |_| {}), PATIENCE).await.unwrap_err().to_string();
        let start = "net/http: HTTP/1.x transport connection broken: ";
        assert!(error.ends_with(&format!("{start}{expected}")), "{error}");
    }
    let kept = ClosedPort::new();
    let closed = kept.port;
    let error = get(&asking(closed, |_| {}), PATIENCE).await.unwrap_err();
    let expected = format!(
        "Get \"http://127.0.0.1:{closed}/healthz\": dial tcp 127.0.0.1:{closed}: connect: \
         connection refused"
    );
    assert_eq!(error.to_string(), expected);
}

/// A port without a listener, reserved for the lifetime of this value.
pub(crate) struct ClosedPort {
    pub(crate) port: u16,
    _bound: TcpSocket,
}

impl ClosedPort {
    pub(crate) fn new() -> ClosedPort {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((std::net::Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        ClosedPort { port: socket.local_addr().unwrap().port(), _bound: socket }
    }
}

#[tokio::test]
async fn timeout_error_matches_go() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let error = get(&asking(port, |_| {}), Some(Duration::from_millis(20))).await.unwrap_err();
    let expected = format!(
        "Get \"http://127.0.0.1:{port}/healthz\": context deadline exceeded (Client.Timeout exceeded \
         while awaiting headers)"
    );
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn invalid_headers_are_reported() {
    let odd = |action: &mut HttpGetAction| action.http_headers = vec![header("X", "a\nb")];
    let error = get(&asking(1, odd), PATIENCE).await.unwrap_err();
    assert_eq!(error.failure.to_string(), "net/http: invalid header field value for \"X\"");
}

#[test]
fn ports_are_resolved_by_number_or_name() {
    let container: Container = serde_json::from_value(serde_json::json!({
        "ports": [{"name": "web", "containerPort": 8080}],
    }))
    .unwrap();
    let check = |given: IntOrString, expected: Result<u16, &str>| {
        let found = port(&given, &container).map_err(|error| error.to_string());
        assert_eq!(found, expected.map_err(str::to_owned), "{given:?}");
    };
    let named = |name: &str| IntOrString::String(name.to_owned());
    check(IntOrString::Int(80), Ok(80));
    check(named("web"), Ok(8080));
    check(named("81"), Ok(81));
    check(named("other"), Err("port \"other\" not found"));
    check(IntOrString::Int(0), Err("invalid port number: 0"));
    check(IntOrString::Int(-1), Err("invalid port number: -1"));
    check(IntOrString::Int(65_536), Err("invalid port number: 65536"));
    check(named("99999"), Err("invalid port number: 99999"));
}

#[tokio::test]
async fn answer_before_the_request_is_read() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (answered, was_answered) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let answer = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
        stream.write_all(answer).await.unwrap();
        answered.send(()).unwrap();
        // Keep the connection open until the request arrives, like a script that reads it.
        let _ = stream.read(&mut [0; 1024]).await;
    });
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    was_answered.await.unwrap();
    let ends = Endpoints::of(&stream);
    let request = Request::builder().uri("/").body(Empty::new()).unwrap();
    let got = converse(stream, request, &ends).await.unwrap();
    assert_eq!(got.got.status, 204);
}
