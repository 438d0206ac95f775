//! Logs over a WebSocket, through a real server and TLS. The agent is a listener that responds to
//! every request with the same log, because only the connection to the client is tested here.

use std::sync::Arc;
use std::time::Duration;

use apiserver::{ADMINISTRATORS, Limits, Listener, Options};
use bytes::Bytes;
use http::{Method, Response};
use https::certificates;
use https::{Answer, Body, Dialer, Inbound};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{mpsc, watch};

use crate::{Cluster, options, pod};

const PATIENCE: Duration = Duration::from_secs(30);

/// Sends a handshake for a log and returns everything that the server sends until it closes.
async fn read_log(dialer: &Dialer, port: u16, headers: &str) -> (String, Vec<u8>) {
    let mut stream = dialer.connect("127.0.0.1", port, "127.0.0.1").await.unwrap();
    let request = format!(
        "GET /api/v1/namespaces/default/pods/p/log?follow=true HTTP/1.1\r\nHost: 127.0.0.1\r\n\
         Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(PATIENCE, async {
        let mut piece = [0; 4096];
        loop {
            match stream.read(&mut piece).await {
                Ok(0) | Err(_) => return,
                Ok(length) => bytes.extend_from_slice(&piece[..length]),
            }
            // An error response keeps the connection open for the next request.
            if bytes.starts_with(b"HTTP/1.1 403") && bytes.ends_with(b"]") {
                return;
            }
        }
    });
    read.await.expect("the stream does not end");
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
    let body = bytes.split_off(end);
    (String::from_utf8(bytes).unwrap().to_ascii_lowercase(), body)
}

#[tokio::test(flavor = "multi_thread")]
async fn log_is_sent_as_websocket_messages() {
    let authority = certificates::authority("test").unwrap();
    let pair = certificates::server(&authority, &["127.0.0.1".to_owned()]).unwrap();
    let any = "127.0.0.1:0".parse().unwrap();
    let (_stop, stopping) = watch::channel(false);
    let limits = Limits::default();
    let agent = https::Listener::bind(any, &pair, Some(&authority.certificate), limits);
    let agent = agent.await.unwrap();
    let agent_port = agent.address().unwrap().port();
    let answer = |_: Inbound, _: Arc<https::Client>| async {
        let (sender, chunks) = mpsc::channel(2);
        for line in ["one\n", "two\n"] {
            sender.send(Bytes::from_static(line.as_bytes())).await.unwrap();
        }
        Answer::from(Response::new(Body::Stream(chunks)))
    };
    tokio::spawn(agent.serve(answer, stopping.clone()));

    let client = certificates::client(&authority, "admin", ADMINISTRATORS).unwrap();
    let dialer =
        || Dialer::new(&authority.certificate, Some(&client), &["http/1.1"], PATIENCE).unwrap();
    let cluster = Cluster::with(Options { agents: Some(dialer()), ..options() }).await;
    let listener = Listener::bind(any, &pair, &authority.certificate, limits).await.unwrap();
    let port = listener.address().unwrap().port();
    tokio::spawn(listener.serve(cluster.api.clone(), stopping));
    cluster.create("/api/v1/nodes", json!({"metadata": {"name": "n"}})).await;
    let status = json!({"status": {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": agent_port}},
    }});
    assert_eq!(cluster.send(Method::PATCH, "/api/v1/nodes/n/status", status).await.0, 200);
    let mut bound = pod("p");
    bound["spec"]["nodeName"] = "n".into();
    cluster.create("/api/v1/namespaces/default/pods", bound).await;

    let close = [0x88, 2, 0x03, 0xE8];
    for (protocol, expected) in [
        ("", [b"\x82\x00\x82\x04one\n\x82\x04two\n".as_slice(), &close].concat()),
        ("binary.k8s.io", [b"\x82\x00\x82\x04one\n\x82\x04two\n".as_slice(), &close].concat()),
        (
            "base64.binary.k8s.io",
            [b"\x81\x00\x81\x08b25lCg==\x81\x08dHdvCg==".as_slice(), &close].concat(),
        ),
    ] {
        let header = match protocol {
            "" => String::new(),
            name => format!("Sec-WebSocket-Protocol: {name}\r\n"),
        };
        let (head, body) = read_log(&dialer(), port, &header).await;
        assert!(head.starts_with("http/1.1 101"), "{head}");
        // The whole response was converted to lower case, so base64 is compared in lower case.
        assert!(head.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="), "{head}");
        assert_eq!(
            head.contains(&format!("sec-websocket-protocol: {protocol}")),
            !protocol.is_empty()
        );
        assert_eq!(body, expected, "{protocol}");
    }
    let header = "Sec-WebSocket-Protocol: v4.channel.k8s.io\r\n";
    let (head, body) = read_log(&dialer(), port, header).await;
    assert!(head.starts_with("http/1.1 403"), "{head}");
    let body = String::from_utf8_lossy(&body);
    assert!(
        body.starts_with("requested protocol(s) are not supported: [v4.channel.k8s.io]"),
        "{body}"
    );
}
