//! Calls between client and server over this system's endpoints: responses, errors, deadlines,
//! sizes, streams and lost connections.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cri::{Client, Code, Draining, Origin, Settings, v1};
use tokio::time::timeout;

use crate::support::{NO_CONTAINER, PATIENCE, Place, Served, State, TestRuntime, containers, pair};

#[tokio::test]
async fn responses_are_returned() {
    let (_place, served, client, _) = pair(State::default()).await;
    let version = client.call(v1::VersionRequest { version: "0.1.0".to_owned() }).await.unwrap();
    assert_eq!((version.version.as_str(), version.runtime_name.as_str()), ("0.1.0", "test"));
    // The other service uses the same connection.
    client.call(v1::ImageFsInfoRequest {}).await.unwrap();
    drop(client);
    assert_eq!(served.stop().await.unwrap().unwrap(), Draining::Complete);
}

#[tokio::test]
async fn errors_contain_message_method_and_endpoint() {
    let (place, _served, client, _) = pair(State::default()).await;
    let error = client.call(v1::ContainerStatusRequest::default()).await.unwrap_err();
    assert_eq!((error.origin, error.code), (Origin::Runtime, Code::NotFound));
    assert_eq!((error.message.as_str(), error.method), (NO_CONTAINER, "ContainerStatus"));
    assert_eq!(error.endpoint, place.endpoint);
    assert!(error.is_not_found());
    let error = client.call(v1::StartContainerRequest::default()).await.unwrap_err();
    assert!(error.is_unimplemented(), "{error:?}");
    let error = client.call(v1::ListImagesRequest::default()).await.unwrap_err();
    assert!(error.is_unimplemented(), "{error:?}");
}

#[tokio::test]
async fn a_call_past_its_deadline_is_cancelled_in_the_runtime() {
    let (_place, _served, client, runtime) = pair(State::default()).await;
    let short = client.within(Duration::from_millis(50));
    let error = short.call(v1::ExecSyncRequest::default()).await.unwrap_err();
    assert_eq!((error.origin, error.code), (Origin::Deadline, Code::DeadlineExceeded));
    assert!(error.is_deadline());
    assert!(error.message.ends_with("context deadline exceeded"), "{error}");
    timeout(PATIENCE, runtime.0.abandoned.notified()).await.unwrap();
    // The connection is still usable.
    client.call(v1::VersionRequest::default()).await.unwrap();
}

#[tokio::test]
async fn the_longest_deadlines_are_accepted() {
    let (_place, _served, client, _) = pair(State::default()).await;
    client.connected(Duration::MAX).await.unwrap();
    client.within(Duration::MAX).call(v1::VersionRequest::default()).await.unwrap();
    client
        .within(Duration::MAX)
        .stream(v1::StreamContainersRequest::default())
        .all()
        .await
        .unwrap();
    let request = v1::StopContainerRequest { timeout: i64::MAX, ..Default::default() };
    assert!(client.call(request).await.unwrap_err().is_unimplemented());
}

#[tokio::test]
async fn long_lists_fit_and_oversized_ones_are_an_error() {
    // More than the gRPC library's default of 4 MiB.
    let state = State { containers: containers(6000, 1000), ..State::default() };
    let (place, _served, client, runtime) = pair(state).await;
    let list = client.call(v1::ListContainersRequest::default()).await.unwrap();
    assert_eq!(list.containers, runtime.0.containers);

    let settings = Settings { message_limit: 1 << 20, ..Settings::default() };
    let small = Client::with_settings(place.endpoint.clone(), &settings);
    let error = small.call(v1::ListContainersRequest::default()).await.unwrap_err();
    assert_eq!(error.code, Code::OutOfRange, "{error:?}");
    assert!(error.message.contains("1048576"), "{error}");
    // The streamed list fits.
    let parts = small.stream(v1::StreamContainersRequest::default()).all().await.unwrap();
    let streamed: Vec<_> = parts.into_iter().flat_map(|part| part.containers).collect();
    assert_eq!(streamed, runtime.0.containers);
}

#[tokio::test]
async fn many_calls_share_one_connection() {
    let (_place, _served, client, _) = pair(State::default()).await;
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..200 {
        let client = client.clone();
        calls.spawn(async move {
            let version = number.to_string();
            let answer = client.call(v1::VersionRequest { version: version.clone() }).await;
            assert_eq!(answer.unwrap().version, version);
        });
    }
    while let Some(call) = calls.join_next().await {
        call.unwrap();
    }
}

#[tokio::test]
async fn events_are_streamed_and_an_unknown_stream_fails() {
    let (_place, served, client, runtime) = pair(State::default()).await;
    let mut events = client.stream(v1::GetEventsRequest {});
    let event = events.next().await.unwrap().unwrap();
    assert_eq!(event.container_id, "c");
    assert_eq!(runtime.0.event_streams.load(Ordering::Relaxed), 1);
    // Waiting for the next event can be cancelled and resumed.
    assert!(timeout(Duration::from_millis(20), events.next()).await.is_err());

    let mut images = client.stream(v1::StreamImagesRequest::default());
    assert!(images.next().await.unwrap_err().is_unimplemented());
    assert!(images.next().await.unwrap().is_none());

    drop(events);
    drop(client);
    assert_eq!(served.stop().await.unwrap().unwrap(), Draining::Complete);
}

#[tokio::test]
async fn a_stream_with_a_deadline_ends_at_it() {
    let (_place, _served, client, _) = pair(State::default()).await;
    let mut events = client.within(Duration::from_millis(100)).stream(v1::GetEventsRequest {});
    // The single event may arrive in time; there is no second one.
    let error = loop {
        match events.next().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the stream ended by itself"),
            Err(error) => break error,
        }
    };
    assert_eq!((error.origin, error.method), (Origin::Deadline, "GetContainerEvents"));
    assert!(events.next().await.unwrap().is_none());
}

#[tokio::test]
async fn without_a_runtime_calls_fail_at_once_with_the_reason() {
    let place = Place::new();
    let client = Client::new(place.endpoint.clone());
    // The second call does not connect and returns the same reason.
    for _ in 0..2 {
        let error = client.call(v1::VersionRequest::default()).await.unwrap_err();
        assert_eq!((error.origin, error.code), (Origin::Connection, Code::Unavailable));
        assert!(error.is_unavailable());
        let expected = "connection error: desc = \"transport: Error while dialing: ";
        assert!(error.message.starts_with(expected), "{error}");
        if let Some(path) = place.endpoint.to_string().strip_prefix("unix://") {
            let reason = format!("dial unix {path}: connect: no such file or directory\"");
            assert!(error.message.ends_with(&reason), "{error}");
        }
    }
    let error = client.connected(Duration::from_millis(30)).await.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
}

#[tokio::test]
async fn a_client_may_start_before_its_runtime() {
    let place = Place::new();
    let client = Client::new(place.endpoint.clone());
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.connected(PATIENCE).await }
    });
    assert!(client.call(v1::VersionRequest::default()).await.unwrap_err().is_unavailable());
    let _served = Served::start(&place, TestRuntime::default(), PATIENCE).await;
    assert_eq!(waiting.await.unwrap().unwrap().runtime_name, "test");
}

#[tokio::test]
async fn a_client_reconnects_to_a_restarted_runtime() {
    let (place, served, client, runtime) = pair(State::default()).await;
    client.call(v1::VersionRequest::default()).await.unwrap();
    let mut served = served;
    for _ in 0..3 {
        assert_eq!(served.stop().await.unwrap().unwrap(), Draining::Complete);
        let error = client.call(v1::VersionRequest::default()).await.unwrap_err();
        assert_eq!((error.origin, error.code), (Origin::Connection, Code::Unavailable));
        served = Served::start(&place, runtime.clone(), PATIENCE).await;
        client.connected(PATIENCE).await.unwrap();
        client.call(v1::StatusRequest::default()).await.unwrap();
    }
}

#[tokio::test]
async fn a_stopping_server_waits_for_running_calls() {
    let (place, served, client, runtime) = pair(State::default()).await;
    let call = tokio::spawn({
        let client = client.clone();
        async move { client.call(v1::ExecSyncRequest::default()).await }
    });
    timeout(PATIENCE, runtime.0.entered.notified()).await.unwrap();
    let end = served.stop();
    // New connections are rejected: wait until the endpoint is gone.
    let other = Client::new(place.endpoint.clone());
    let gone =
        async { while other.within(PATIENCE).call(v1::VersionRequest::default()).await.is_ok() {} };
    timeout(PATIENCE, gone).await.unwrap();
    assert!(!end.is_finished());
    runtime.0.release.notify_one();
    assert_eq!(call.await.unwrap().unwrap().exit_code, 7);
    assert_eq!(end.await.unwrap().unwrap(), Draining::Complete);
}

#[tokio::test]
async fn calls_that_outlast_the_drain_are_aborted() {
    let place = Place::new();
    let runtime = TestRuntime::default();
    let served = Served::start(&place, runtime.clone(), Duration::ZERO).await;
    let client = Client::new(place.endpoint.clone());
    let call = tokio::spawn({
        let client = client.clone();
        async move { client.call(v1::ExecSyncRequest::default()).await }
    });
    timeout(PATIENCE, runtime.0.entered.notified()).await.unwrap();
    assert_eq!(served.stop().await.unwrap().unwrap(), Draining::Aborted);
    let error = timeout(PATIENCE, call).await.unwrap().unwrap().unwrap_err();
    assert_eq!((error.origin, error.code), (Origin::Connection, Code::Unavailable), "{error}");
    // The client reconnects to the next runtime.
    let _served = Served::start(&place, runtime, PATIENCE).await;
    client.connected(PATIENCE).await.unwrap();
}
