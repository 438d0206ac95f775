//! Tests with servers on this machine, and with a runtime that returns one answer.

use cri::Endpoint;
use serde_json::json;

use super::*;
use crate::runtime::fetch::tests::{ClosedPort, Server};

fn handler(value: serde_json::Value) -> Handler {
    serde_json::from_value(value).unwrap()
}

/// Returns a client for hooks that do not use the runtime.
fn no_runtime() -> cri::Client {
    let family = std::env::consts::FAMILY;
    let text =
        if family == "windows" { "npipe:////./pipe/nobody" } else { "unix:///nobody/cri.sock" };
    cri::Client::new(Endpoint::parse(text).unwrap())
}

async fn run_here(value: serde_json::Value) -> Result<(), HookError> {
    run(&no_runtime(), &handler(value), &Container::default(), "id", "127.0.0.1").await
}

#[tokio::test]
async fn any_http_status_is_a_success() {
    let server = Server::start(&["HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n"]).await;
    run_here(json!({"httpGet": {"path": "/", "port": server.port}})).await.unwrap();
    let closed = ClosedPort::new();
    let error = run_here(json!({"httpGet": {"path": "/", "port": closed.port}})).await.unwrap_err();
    assert!(error.to_string().ends_with("connect: connection refused"), "{error}");
}

#[tokio::test]
async fn unknown_port_name_is_in_the_error() {
    let error = run_here(json!({"httpGet": {"path": "/", "port": "web"}})).await.unwrap_err();
    assert_eq!(error.to_string(), "port \"web\" not found");
}

#[tokio::test(start_paused = true)]
async fn sleep_lasts_as_long_as_given() {
    let start = tokio::time::Instant::now();
    run_here(json!({"sleep": {"seconds": 40}})).await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 40);
}

#[tokio::test]
async fn tcp_socket_is_not_a_valid_hook() {
    let check = async |value: serde_json::Value, socket: &str| {
        let error = run_here(value.clone()).await.unwrap_err();
        let message = event_message(&handler(value), "c", "p_n(u)", &error);
        let rest = message.strip_prefix("Cannot run handler: invalid handler: &LifecycleHandler");
        let expected = format!("{{Exec:nil,HTTPGet:nil,TCPSocket:{socket},Sleep:nil,}}");
        assert_eq!(rest, Some(expected.as_str()), "{message}");
    };
    check(json!({"tcpSocket": {"port": 80}}), "&TCPSocketAction{Port:{0 80 },Host:,}").await;
    let named = json!({"tcpSocket": {"port": "web", "host": "h"}});
    check(named, "&TCPSocketAction{Port:{1 0 web},Host:h,}").await;
    check(json!({}), "nil").await;
}

#[tokio::test]
async fn missing_runtime_fails_the_hook() {
    let error = run_here(json!({"exec": {"command": ["sh", "-c", "true"]}})).await.unwrap_err();
    assert!(error.to_string().starts_with("rpc error: code = Unavailable desc = "), "{error}");
}

#[tokio::test]
async fn failed_hook_is_reported_with_upstream_text() {
    let closed = ClosedPort::new();
    let get = json!({"httpGet": {"path": "/x", "port": closed.port}});
    let error = run_here(get.clone()).await.unwrap_err();
    let message = event_message(&handler(get), "c", "p_n(u)", &error);
    let begin =
        "HTTP lifecycle hook (/x) for Container \"c\" in Pod \"p_n(u)\" failed - error: Get ";
    assert!(message.starts_with(begin), "{message}");
    let exec = json!({"exec": {"command": ["sh", "-c", "exit 3"]}});
    let error = HookError::Exit {
        command: "sh -c exit 3".to_owned(),
        code: 3,
        errors: "e".to_owned(),
        output: "oe".to_owned(),
    };
    assert_eq!(
        event_message(&handler(exec), "c", "p_n(u)", &error),
        "Exec lifecycle hook ([sh -c exit 3]) for Container \"c\" in Pod \"p_n(u)\" failed - error: \
         command 'sh -c exit 3' exited with 3: e, message: \"oe\""
    );
}
