//! The log events of requests.

use apiserver::{Caller, User};
use http::Method;
use serde_json::Value;

use crate::{Cluster, request, send_as};

#[tokio::test]
async fn request_is_logged_with_user_verb_path_and_status() {
    let cluster = Cluster::new().await;
    let lines = rig::logs::capture("apiserver");
    let viewer = || User::member("alice", apiserver::VIEWERS);
    let path = "/api/v1/namespaces/default/pods";
    let (status, _) = send_as(&cluster.api, viewer(), Method::GET, path, Value::Null).await;
    assert_eq!(status, 200);
    let mut anonymous = request(viewer(), Method::GET, path, &Value::Null);
    anonymous.caller = Caller::InvalidCredentials;
    assert_eq!(cluster.api.handle(anonymous).await.status.as_u16(), 401);
    let handled = lines.with("handled a request");
    assert_eq!(handled.len(), 2, "{handled:?}");
    let expected =
        "user=\"alice\" verb=\"list\" path=\"/api/v1/namespaces/default/pods\" status=200";
    assert!(handled[0].contains("DEBUG") && handled[0].contains(expected), "{handled:?}");
    assert!(handled[1].contains("user=\"\"") && handled[1].contains("status=401"), "{handled:?}");
}
