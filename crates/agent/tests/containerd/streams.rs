//! Exec, attach and port-forward: data in both directions, through the server to the runtime and back.

use http::{HeaderMap, Method, StatusCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::node::{Node, Text};
use crate::websocket::WebSocket;

const EXEC: &str = "v4.channel.k8s.io";
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
const SLEEP: &[&str] = &["sh", "-c", "trap 'exit 0' TERM; sleep 600 & wait"];

#[tokio::test]
async fn exec_streams_input_output_and_exit_code() {
    let node = Node::start().await;
    node.run(SLEEP, false).await;
    let path = "/exec/default/p/c?input=1&output=1&error=1&command=sh&command=-c&command=\
                read%20a%3B%20echo%20%22got%20%24a%22%3B%20echo%20oops%20%3E%262%3B%20exit%207";
    let mut socket = WebSocket::open(&node, path, EXEC).await;
    socket.send(STDIN, b"hello\n").await;
    let (mut out, mut errors, mut status) = (Vec::new(), Vec::new(), Vec::new());
    while let Some((channel, bytes)) = socket.receive().await {
        match channel {
            STDOUT => out.extend(bytes),
            STDERR => errors.extend(bytes),
            STATUS => status.extend(bytes),
            other => panic!("channel {other}"),
        }
    }
    assert_eq!((out.as_slice(), errors.as_slice()), (&b"got hello\n"[..], &b"oops\n"[..]));
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    assert_eq!(
        (&status["status"], &status["reason"]),
        (&"Failure".into(), &"NonZeroExitCode".into())
    );
    assert_eq!(status["details"]["causes"][0]["message"], "7");
}

#[tokio::test]
async fn attach_streams_input_and_output() {
    let node = Node::start().await;
    node.run(&["sh", "-c", "while read a; do echo \"heard $a\"; done"], true).await;
    let mut socket = WebSocket::open(&node, "/attach/default/p/c?input=1&output=1", EXEC).await;
    for word in ["one", "two"] {
        socket.send(STDIN, format!("{word}\n").as_bytes()).await;
        let expected = format!("heard {word}\n");
        let heard = socket.until(STDOUT, |seen| seen.len() >= expected.len()).await;
        assert_eq!(String::from_utf8(heard).unwrap(), expected);
    }
}

#[tokio::test]
async fn port_forward_streams_in_both_directions() {
    let node = Node::start().await;
    node.run(SLEEP, false).await;
    // The pod uses host networking, so this listener is reachable as its own.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut ping = [0; 4];
        stream.read_exact(&mut ping).await.unwrap();
        assert_eq!(&ping, b"ping");
        stream.write_all(b"pong").await.unwrap();
    });
    let path = format!("/portForward/default/p?port={port}");
    let mut socket = WebSocket::open(&node, &path, EXEC).await;
    socket.send(0, b"ping").await;
    // Each channel starts with its port number.
    let mut expected = port.to_le_bytes().to_vec();
    expected.extend(b"pong");
    let heard = socket.until(0, |seen| seen.len() >= expected.len()).await;
    assert_eq!(heard, expected);
}

#[tokio::test]
async fn errors_of_the_runtime_are_passed_on() {
    let node = Node::start().await;
    let id = node.run(SLEEP, false).await;
    // A protocol that containerd does not support: clients then try another one.
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("sec-websocket-protocol", "v99.channel.k8s.io"),
    ] {
        headers.insert(name, value.parse().unwrap());
    }
    let path = "/exec/default/p/c?output=1&command=true";
    let response = node.ask(Method::GET, path, headers.clone()).await;
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    // The container has exited in the meantime.
    let request = cri::v1::StopContainerRequest { container_id: id, timeout: 30 };
    node.runtime.call(request).await.unwrap();
    let response = node.ask(Method::GET, path, headers).await;
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let text = Text::of(response).whole().await;
    assert!(text.contains("CONTAINER_EXITED"), "{text}");
}
