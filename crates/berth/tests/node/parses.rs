//! The number of times that a node parses one change of a pod.

use std::fs::File;
use std::process::Stdio;

use client::PatchKind;
use client::kind::{NAMESPACES, PODS};
use rig::Containerd;
use serde_json::{Value, json};

use crate::kills::start_logging;
use crate::support::{SLEEP, phase, pod, until};

/// Scheduler, controllers, garbage collector and agent.
const COMPONENTS: usize = 4;

#[tokio::test(flavor = "multi_thread")]
async fn each_component_parses_a_change_of_a_pod_once() {
    let containerd = Containerd::start().unwrap_or_else(|error| panic!("{error}"));
    let config = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncgroupRoot: {}\nevictionHard: {{}}\n",
        containerd.cgroup_parent()
    );
    std::fs::write(containerd.directory().join("kubelet.yaml"), config).unwrap();
    let path = containerd.directory().join("up.log");
    let log = Stdio::from(File::create(&path).unwrap());
    let node = start_logging(&containerd, &["--log-level", "info,client::parse=trace"], log).await;
    let api = &node.api;
    api.create(NAMESPACES, "", &json!({"metadata": {"name": "test"}})).await.unwrap();
    let mut created = pod("p", SLEEP);
    created["spec"]["nodeName"] = "node-1".into();
    // Pods are refused until the account of their namespace exists.
    until("the pod is created", async || api.create(PODS, "test", &created).await.ok()).await;
    until("the pod runs", async || {
        let found: Value = api.get(PODS, "test", "p").await.ok()?;
        (phase(&found) == "Running").then_some(())
    })
    .await;
    let mut revisions = Vec::new();
    for label in ["first", "second"] {
        let patch = json!({"metadata": {"labels": {"change": label}}});
        let changed = api.patch(PODS, "test", "p", PatchKind::Merge, &patch).await.unwrap();
        revisions.push(changed["metadata"]["resourceVersion"].as_str().unwrap().to_owned());
    }
    let parses = |revision: &str| {
        let log = std::fs::read_to_string(&path).unwrap();
        let revision = format!("revision=\"{revision}\"");
        log.lines()
            .filter(|line| line.contains("object=test/p ") && line.contains(&revision))
            .count()
    };
    until("all components have the second change", async || {
        (parses(&revisions[1]) >= COMPONENTS).then_some(())
    })
    .await;
    // A component parses changes in their order, so that all parses of the first one are logged.
    assert_eq!(parses(&revisions[0]), COMPONENTS);
    api.delete(PODS, "test", "p", &client::DeleteOptions::default()).await.unwrap();
    until("the pod is gone", async || {
        api.get::<Value>(PODS, "test", "p").await.err().filter(client::Error::is_not_found)
    })
    .await;
}
