//! Baseline without an attack: the checks of the other modules pass.

use http::{Method, StatusCode};

use crate::server::{Server, Who};

#[tokio::test(flavor = "multi_thread")]
async fn limited_server_responds_to_every_kind_of_client() {
    let server = Server::start();
    let token = server.token("default", "default").await;
    let path = "/api/v1/namespaces/default";
    let admin = server.ask(Who::Admin, Method::GET, path, &[], "").await;
    assert_eq!(admin.status, StatusCode::OK, "{}", admin.text());
    let pod = server.ask(Who::Token(&token), Method::GET, path, &[], "").await;
    assert_eq!(pod.status, StatusCode::FORBIDDEN, "{}", pod.text());
    let stranger = server.ask(Who::Stranger, Method::GET, path, &[], "").await;
    assert_eq!(stranger.status, StatusCode::UNAUTHORIZED, "{}", stranger.text());
    assert!(server.peak_memory() > 0 && server.resident_memory() > 0);
    server.assert_alive().await;
}
