//! The lifecycle of pods: they run, end, are restarted and deleted.

use client::PatchKind;
use client::kind::PODS;

use crate::support::{Berth, SLEEP, phase, pod};

#[tokio::test(flavor = "multi_thread")]
async fn pod_runs_until_it_is_deleted() {
    let mut berth = Berth::start(|_| {}).await;
    berth.create(pod("web", SLEEP)).await;
    let running = berth.until("web", |pod| phase(pod) == "Running").await;
    let status = &running["status"]["containerStatuses"][0];
    assert_eq!(status["ready"], true, "{running:#}");
    assert!(status["containerID"].as_str().unwrap().starts_with("containerd://"));
    berth.delete("web").await;
    berth.gone("web").await;
    berth.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_containers_follow_the_restart_policy() {
    let mut berth = Berth::start(|_| {}).await;
    let mut once = pod("once", &["sh", "-c", "echo done > /dev/termination-log"]);
    once["spec"]["restartPolicy"] = "Never".into();
    berth.create(once).await;
    let done = berth.until("once", |pod| phase(pod) == "Succeeded").await;
    let ended = &done["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!((&ended["exitCode"], &ended["message"]), (&0.into(), &"done\n".into()));
    let mut fails = pod("fails", &["sh", "-c", "exit 7"]);
    fails["spec"]["restartPolicy"] = "Never".into();
    berth.create(fails).await;
    let failed = berth.until("fails", |pod| phase(pod) == "Failed").await;
    let ended = &failed["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!((&ended["exitCode"], &ended["reason"]), (&7.into(), &"Error".into()));

    berth.create(pod("again", &["sh", "-c", "exit 1"])).await;
    let waits = |pod: &serde_json::Value| {
        let status = &pod["status"]["containerStatuses"][0];
        status["state"]["waiting"]["reason"] == "CrashLoopBackOff" && status["restartCount"] == 1
    };
    berth.until("again", waits).await;
    for name in ["once", "fails", "again"] {
        berth.delete(name).await;
        berth.gone(name).await;
    }
    berth.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn init_containers_and_sidecars_start_in_order() {
    let mut berth = Berth::start(|_| {}).await;
    let mut manifest = pod("ordered", &["sh", "-c", "cat /shared/order; sleep 600"]);
    let note = |word: &str, then: &str| {
        let script = format!("echo {word} >> /shared/order; {then}");
        serde_json::json!({
            "name": word, "image": rig::BUSYBOX, "imagePullPolicy": "Never",
            "command": ["sh", "-c", script],
            "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
        })
    };
    let mut sidecar = note("side", "trap 'exit 0' TERM; sleep 600 & wait");
    sidecar["restartPolicy"] = "Always".into();
    manifest["spec"]["initContainers"] =
        serde_json::json!([note("first", "true"), sidecar, note("second", "true")]);
    manifest["spec"]["volumes"] = serde_json::json!([{"name": "shared", "emptyDir": {}}]);
    manifest["spec"]["containers"][0]["volumeMounts"] =
        serde_json::json!([{"name": "shared", "mountPath": "/shared"}]);
    let uid = berth.create(manifest).await;
    berth.until("ordered", |pod| phase(pod) == "Running").await;
    let volumes = berth.settings.agent.root.join("pods").join(&uid).join("volumes");
    let order = volumes.join("kubernetes.io~empty-dir/shared/order");
    assert_eq!(std::fs::read_to_string(order).unwrap(), "first\nside\nsecond\n");
    berth.delete("ordered").await;
    berth.gone("ordered").await;
    assert!(!berth.settings.agent.root.join("pods").join(&uid).exists());
    berth.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_outlives_its_agent_and_its_containerd() {
    let mut berth = Berth::start(|_| {}).await;
    berth.create(pod("lasting", SLEEP)).await;
    let is_running = |pod: &serde_json::Value| phase(pod) == "Running";
    let before = berth.until("lasting", is_running).await;
    let id = |pod: &serde_json::Value| pod["status"]["containerStatuses"][0]["containerID"].clone();
    berth.restart().await;
    berth.create(pod("second", SLEEP)).await;
    berth.until("second", is_running).await;
    let after = berth.until("lasting", is_running).await;
    assert_eq!(id(&before), id(&after));
    berth.containerd.kill().unwrap();
    berth.containerd.restart().unwrap();
    berth.create(pod("third", SLEEP)).await;
    berth.until("third", is_running).await;
    let after = berth.until("lasting", is_running).await;
    assert_eq!(id(&before), id(&after));
    assert_eq!(after["status"]["containerStatuses"][0]["restartCount"], 0);
    for name in ["lasting", "second", "third"] {
        berth.delete(name).await;
        berth.gone(name).await;
    }
    berth.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn final_status_is_kept_while_a_finalizer_holds_the_pod() {
    let mut berth = Berth::start(|_| {}).await;
    let mut kept = pod("kept", SLEEP);
    kept["metadata"]["finalizers"] = serde_json::json!(["example.com/hold"]);
    berth.create(kept).await;
    berth.until("kept", |pod| phase(pod) == "Running").await;
    berth.delete("kept").await;
    let is_done = |pod: &serde_json::Value| {
        phase(pod) == "Succeeded" && pod["metadata"]["deletionGracePeriodSeconds"] == 0
    };
    let done = berth.until("kept", is_done).await;
    let patch = async |metadata: serde_json::Value| {
        let patch = serde_json::json!({"metadata": metadata});
        berth.api.patch(PODS, "test", "kept", PatchKind::Merge, &patch).await.unwrap();
    };
    patch(serde_json::json!({"labels": {"change": "1"}})).await;
    // When a later pod runs, the agent has observed the change.
    berth.create(pod("later", SLEEP)).await;
    berth.until("later", |pod| phase(pod) == "Running").await;
    let after = berth.get("kept").await.unwrap();
    assert_eq!(after["status"], done["status"]);
    patch(serde_json::json!({"finalizers": null})).await;
    berth.gone("kept").await;
    berth.delete("later").await;
    berth.gone("later").await;
    berth.end().await;
}
