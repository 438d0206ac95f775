//! Slow hooks: the status while they run, and the effect of a shorter grace period.

use client::DeleteOptions;
use client::kind::PODS;
use prost_reflect::prost::Message as _;
use serde_json::{Value, json};

use crate::placement::event_messages;
use crate::support::{Berth, SLEEP, phase, pod, until, until_or};

fn condition<'a>(pod: &'a Value, kind: &str) -> Option<&'a str> {
    let mut all = pod["status"]["conditions"].as_array()?.iter();
    all.find(|condition| condition["type"] == kind)?["status"].as_str()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_is_reported_while_a_post_start_hook_runs() {
    let mut berth = Berth::start(|_| {}).await;
    let mut manifest = pod("p", SLEEP);
    let container = &mut manifest["spec"]["containers"][0];
    container["volumeMounts"] = json!([{"name": "d", "mountPath": "/d"}]);
    let wait = "until [ -e /d/go ]; do sleep 0.1; done";
    container["lifecycle"] = json!({"postStart": {"exec": {"command": ["sh", "-c", wait]}}});
    manifest["spec"]["volumes"] = json!([{"name": "d", "emptyDir": {}}]);
    let uid = berth.create(manifest).await;
    let made = |pod: &Value| condition(pod, "PodReadyToStartContainers") == Some("True");
    let seen = berth.until("p", made).await;
    let state = &seen["status"]["containerStatuses"][0]["state"];
    assert_eq!(state["waiting"]["reason"], "ContainerCreating", "{seen:#}");
    let volumes = berth.settings.agent.root.join("pods").join(&uid).join("volumes");
    std::fs::write(volumes.join("kubernetes.io~empty-dir/d/go"), "").unwrap();
    berth.until("p", |pod| phase(pod) == "Running").await;
    berth.delete("p").await;
    berth.gone("p").await;
    berth.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pre_stop_hook_that_exceeds_the_grace_period_has_failed() {
    let mut berth = Berth::start(|_| {}).await;
    let mut manifest = pod("p", SLEEP);
    manifest["spec"]["terminationGracePeriodSeconds"] = 1.into();
    manifest["spec"]["containers"][0]["lifecycle"] =
        json!({"preStop": {"exec": {"command": ["sleep", "600"]}}});
    berth.create(manifest).await;
    berth.until("p", |pod| phase(pod) == "Running").await;
    berth.delete("p").await;
    berth.gone("p").await;
    let messages = until("the event", async || {
        let messages = event_messages(&berth, "p", "FailedPreStopHook").await;
        (!messages.is_empty()).then_some(messages)
    })
    .await;
    assert_eq!(messages, ["PreStopHook failed"]);
    berth.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn second_delete_shortens_a_running_hook() {
    let (mut berth, passage) = Berth::behind(|_| Ok(()), |_| {}).await;
    let mut manifest = pod("p", SLEEP);
    manifest["spec"]["terminationGracePeriodSeconds"] = 600.into();
    manifest["spec"]["containers"][0]["lifecycle"] =
        json!({"preStop": {"exec": {"command": ["sleep", "600"]}}});
    berth.create(manifest).await;
    berth.until("p", |pod| phase(pod) == "Running").await;
    berth.delete("p").await;
    let calls = |method: &str| {
        let mut passed = passage.since(0);
        passed.retain(|passed| passed.method == method);
        passed
    };
    until("the hook", async || (!calls("ExecSync").is_empty()).then_some(())).await;
    let shorter = DeleteOptions { grace_seconds: Some(4), ..DeleteOptions::default() };
    berth.api.delete(PODS, "test", "p", &shorter).await.unwrap();
    let deleted = berth.get("p").await;
    assert!(deleted.is_none_or(|pod| pod["metadata"]["deletionGracePeriodSeconds"] == 4));
    berth.gone("p").await;
    assert_eq!(calls("ExecSync").len(), 1);
    let timeouts: Vec<i64> = calls("StopContainer")
        .iter()
        .map(|call| cri::v1::StopContainerRequest::decode(&call.request[..]).unwrap().timeout)
        .collect();
    // The hook had the four seconds, and every container has two.
    assert_eq!(timeouts, [2]);
    until_or("the event", async || {
        match event_messages(&berth, "p", "FailedPreStopHook").await.len() {
            0 => Err("no event".to_owned()),
            _ => Ok(()),
        }
    })
    .await;
    berth.end().await;
}
