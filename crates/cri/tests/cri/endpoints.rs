//! Endpoints that can be used on this system.

use cri::{BindError, Client, Endpoint, Listener, Origin, v1};

use crate::support::{PATIENCE, Place, Served, TestRuntime};

/// Returns an endpoint of the kind that this system lacks.
fn elsewhere() -> Endpoint {
    let windows = std::env::consts::FAMILY == "windows";
    Endpoint::parse(if windows { "unix:///run/x.sock" } else { "npipe:////./pipe/x" }).unwrap()
}

#[tokio::test]
async fn an_endpoint_of_another_system_is_rejected_with_a_hint() {
    let has = if std::env::consts::FAMILY == "windows" {
        "npipe:////./pipe/NAME"
    } else {
        "unix:///run/NAME.sock"
    };
    let error = Client::new(elsewhere()).call(v1::VersionRequest::default()).await.unwrap_err();
    assert_eq!(error.origin, Origin::Connection);
    assert!(error.message.contains(has), "{error}");
    let error = Listener::bind(&elsewhere()).await.unwrap_err();
    assert!(matches!(error, BindError::OtherSystem(..)), "{error:?}");
    assert!(error.to_string().contains(has), "{error}");
}

#[tokio::test]
#[cfg_attr(windows, ignore = "not on wine: a second server may make a first instance of a pipe")]
async fn an_endpoint_belongs_to_one_server_at_a_time() {
    let place = Place::new();
    let served = Served::start(&place, TestRuntime::default(), PATIENCE).await;
    let error = Listener::bind(&place.endpoint).await.unwrap_err();
    assert!(matches!(error, BindError::InUse(_)), "{error:?}");
    // The existing listener is not disturbed.
    let client = Client::new(place.endpoint.clone());
    client.call(v1::VersionRequest::default()).await.unwrap();
    drop(client);
    served.stop().await.unwrap().unwrap();
    Served::start(&place, TestRuntime::default(), PATIENCE).await;
}
