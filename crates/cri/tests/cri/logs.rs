//! Events that the client logs.

use cri::v1;

use crate::support::{PATIENCE, Served, State, pair};

/// Returns level and message of the events of level info and above, without their fields.
fn messages(lines: &[String]) -> Vec<&str> {
    let severe =
        lines.iter().filter(|line| !line.starts_with("DEBUG") && !line.starts_with("TRACE"));
    let message = |line: &'_ str| -> usize {
        line.split_once('=').and_then(|(before, _)| before.rfind(' ')).unwrap_or(line.len())
    };
    severe.map(|line| &line[..message(line)]).collect()
}

#[tokio::test]
async fn a_lost_connection_is_logged_once_and_its_return_too() {
    let log = rig::logs::capture("cri");
    let (place, served, client, runtime) = pair(State::default()).await;
    client.call(v1::VersionRequest::default()).await.unwrap();
    assert!(messages(&log.take()).is_empty());

    served.stop().await.unwrap().unwrap();
    for _ in 0..3 {
        client.call(v1::VersionRequest::default()).await.unwrap_err();
    }
    let lost = ["WARN lost the connection to the runtime", "WARN failed to connect to the runtime"];
    assert_eq!(messages(&log.take()), lost);

    let _served = Served::start(&place, runtime, PATIENCE).await;
    client.connected(PATIENCE).await.unwrap();
    assert_eq!(messages(&log.take()), ["INFO reconnected to the runtime"]);
}

#[tokio::test]
async fn calls_are_logged_with_method_and_code() {
    let log = rig::logs::capture("cri");
    let (_place, _served, client, _runtime) = pair(State::default()).await;
    client.call(v1::VersionRequest::default()).await.unwrap();
    client.call(v1::StopContainerRequest::default()).await.unwrap_err();
    let calls = log.with("method=");
    assert_eq!(calls.len(), 2, "{calls:?}");
    assert!(calls[0].contains("called the runtime method=\"Version\""), "{calls:?}");
    let failed = "call of the runtime failed method=\"StopContainer\"";
    assert!(calls[1].contains(failed) && calls[1].contains("code=Unimplemented"), "{calls:?}");
}
