//! Failed steps are retried after a back-off, even if the pod changes meanwhile.

use std::any::Any;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use client::PatchKind;
use client::kind::PODS;
use cri::v1;
use serde_json::{Value, json};

use crate::support::{Berth, SLEEP, phase, pod, until_or};

/// Tolerance of a measured pause: calls are recorded when they pass the proxy.
const SLACK: Duration = Duration::from_millis(200);

/// Rejects calls of one kind, each with another message, and records their times.
fn refusing<T: 'static>(
    calls: &Arc<Mutex<Vec<Instant>>>,
) -> impl Fn(&mut dyn Any) -> Result<(), String> + Send + Sync + 'static {
    let calls = Arc::clone(calls);
    move |message: &mut dyn Any| {
        if !message.is::<T>() {
            return Ok(());
        }
        let mut calls = calls.lock().unwrap();
        calls.push(Instant::now());
        Err(format!("attempt {} failed", calls.len()))
    }
}

/// Waits for this many calls while the pod is changed continuously, and returns the pauses between
/// them.
async fn pauses(berth: &Berth, calls: &Mutex<Vec<Instant>>, count: usize) -> Vec<Duration> {
    let mut changes = 0;
    until_or("the calls", async || {
        changes += 1;
        let patch = json!({"metadata": {"labels": {"change": changes.to_string()}}});
        berth.api.patch(PODS, "test", "p", PatchKind::Merge, &patch).await.unwrap();
        let made = calls.lock().unwrap().len();
        if made >= count { Ok(()) } else { Err(format!("{made} calls")) }
    })
    .await;
    let calls = calls.lock().unwrap();
    calls.windows(2).map(|pair| pair[1] - pair[0] + SLACK).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_container_creation_is_retried_after_ten_seconds() {
    let calls = Arc::default();
    let (mut berth, _) =
        Berth::behind(refusing::<v1::CreateContainerRequest>(&calls), |_| {}).await;
    berth.create(pod("p", SLEEP)).await;
    let pauses = pauses(&berth, &calls, 3).await;
    assert!(pauses.iter().all(|pause| *pause >= Duration::from_secs(10)), "{pauses:?}");
    let waits = |pod: &Value| {
        let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
        waiting["reason"] == "CreateContainerError" && waiting["message"] == "attempt 3 failed"
    };
    berth.until("p", waits).await;
    berth.delete("p").await;
    berth.gone("p").await;
    berth.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_sandbox_creation_is_retried_with_back_off() {
    let calls = Arc::default();
    let (mut berth, _) = Berth::behind(refusing::<v1::RunPodSandboxRequest>(&calls), |_| {}).await;
    berth.create(pod("p", SLEEP)).await;
    let pauses = pauses(&berth, &calls, 4).await;
    for (pause, least) in pauses.iter().zip([1, 2, 4]) {
        assert!(*pause >= Duration::from_secs(least), "{pauses:?}");
    }
    berth.delete("p").await;
    berth.gone("p").await;
    berth.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_image_replaces_the_container_at_once() {
    let mut berth = Berth::start(|_| {}).await;
    berth.create(pod("p", SLEEP)).await;
    berth.until("p", |pod| phase(pod) == "Running").await;
    let set_image = async |image: &str| {
        let patch = json!({"spec": {"containers": [{"name": "c", "image": image}]}});
        let kind = PatchKind::StrategicMerge;
        berth.api.patch(PODS, "test", "p", kind, &patch).await.unwrap();
    };
    set_image("localhost/nope:1").await;
    let status = |pod: &Value| pod["status"]["containerStatuses"][0].clone();
    let waits = |pod: &Value| status(pod)["state"]["waiting"]["reason"] == "ErrImageNeverPull";
    let waiting = berth.until("p", waits).await;
    assert_eq!(status(&waiting)["lastState"]["terminated"]["exitCode"], 0, "{waiting:#}");
    let message = "Container c definition changed, will be restarted";
    until_or("the event", async || {
        let messages = crate::placement::event_messages(&berth, "p", "Killing").await;
        if messages.iter().any(|sent| sent == message) {
            Ok(())
        } else {
            Err(format!("{messages:?}"))
        }
    })
    .await;
    set_image(rig::BUSYBOX).await;
    let runs = |pod: &Value| status(pod)["state"]["running"].is_object();
    let again = berth.until("p", runs).await;
    assert_eq!(status(&again)["restartCount"], 1, "{again:#}");
    berth.delete("p").await;
    berth.gone("p").await;
    berth.end().await;
}
