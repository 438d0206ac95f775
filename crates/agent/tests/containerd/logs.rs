//! Logs that containerd writes: read once, followed, and across a rotation.

use std::fs;

use agent::runtime::logs::rotate::{Outcome, Policy};
use cri::v1;
use http::{HeaderMap, Method, StatusCode};
use objects::timestamp::Timestamp;

use crate::node::{Node, Text};

async fn logs(node: &Node, query: &str) -> Text {
    let path = format!("/containerLogs/default/p/c?{query}");
    let response = node.ask(Method::GET, &path, HeaderMap::new()).await;
    assert_eq!(response.status(), StatusCode::OK);
    Text::of(response)
}

#[tokio::test]
async fn log_is_followed_across_a_rotation_until_the_container_exits() {
    let node = Node::start().await;
    let command = "trap 'echo bye; exit 0' TERM; echo one; echo two; sleep 600 & wait";
    let id = node.run(&["sh", "-c", command], false).await;
    let mut followed = logs(&node, "follow=true").await;
    followed.until(|seen| seen == "one\ntwo\n").await;
    assert_eq!(logs(&node, "tailLines=1").await.whole().await, "two\n");
    assert_eq!(logs(&node, "limitBytes=5").await.whole().await, "one\nt");
    let stamped = logs(&node, "timestamps=true&tailLines=1").await.whole().await;
    let (time, text) = stamped.split_once(' ').unwrap();
    assert!(Timestamp::parse(time).is_ok() && text == "two\n", "{stamped}");

    let reopen = || async {
        let request = v1::ReopenContainerLogRequest { container_id: id.clone() };
        node.runtime.call(request).await.map(|_| ())
    };
    let policy = Policy { max_size: 1, max_files: 3 };
    let outcome = policy.tend(&node.log(), Timestamp::new(0, 0), reopen).await.unwrap();
    let Outcome::Rotated(old) = outcome else { panic!("{outcome:?}") };
    assert!(old.ends_with("c.log.19700101-000000"), "{old:?}");
    assert_eq!(fs::read_to_string(&old).unwrap().lines().count(), 2);

    let request = v1::StopContainerRequest { container_id: id.clone(), timeout: 30 };
    node.runtime.call(request).await.unwrap();
    assert_eq!(followed.whole().await, "one\ntwo\nbye\n");
    assert_eq!(logs(&node, "").await.whole().await, "bye\n");
}

#[tokio::test]
async fn following_ends_when_the_server_stops() {
    let node = Node::start().await;
    node.run(&["sh", "-c", "echo one; sleep 600"], false).await;
    let mut followed = logs(&node, "follow=true").await;
    followed.until(|seen| seen == "one\n").await;
    node.stop_serving();
    assert_eq!(followed.whole().await, "one\n");
}
