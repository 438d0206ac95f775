//! Calls through the class layer, compared with calls to containerd itself.

use std::collections::BTreeMap;

use cri::{Code, Origin, v1};

use crate::support::{FILES, FIXED, Layered};

fn classes(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|&(name, class)| (name.to_owned(), class.to_owned())).collect()
}

#[tokio::test]
async fn status_advertises_the_classes_of_the_layer() {
    let layered = Layered::start().await;
    let through = layered.client.call(v1::StatusRequest::default()).await.unwrap();
    let direct = layered.direct.call(v1::StatusRequest::default()).await.unwrap();
    let (through, direct) = (through.status.unwrap(), direct.status.unwrap());
    assert_eq!(through.conditions, direct.conditions);
    assert_eq!(direct.resources, None);
    let resources = through.resources.unwrap();
    let names: Vec<_> =
        resources.container_qos_resources.iter().map(|resource| &*resource.name).collect();
    assert_eq!(names, [FILES, FIXED]);
}

#[tokio::test]
async fn calls_without_classes_give_the_same_answers() {
    let layered = Layered::start().await;
    layered.running("a", &[]).await;
    let request = v1::ListContainersRequest::default();
    let through = layered.client.call(request.clone()).await.unwrap();
    assert_eq!(through, layered.direct.call(request).await.unwrap());
    assert_eq!(through.containers.len(), 1);
    let request = v1::ListImagesRequest::default();
    let through = layered.client.call(request.clone()).await.unwrap();
    assert_eq!(through, layered.direct.call(request).await.unwrap());
    // Errors keep their code and message, for edited and for forwarded calls.
    let request = v1::ContainerStatusRequest { container_id: "absent".to_owned(), verbose: false };
    let through = layered.client.call(request.clone()).await.unwrap_err();
    let direct = layered.direct.call(request).await.unwrap_err();
    assert_eq!((through.code, through.origin), (Code::NotFound, Origin::Runtime));
    assert_eq!(through.message, direct.message);
    let request = v1::StopContainerRequest { container_id: "x".repeat(64), timeout: 0 };
    let through = layered.client.call(request.clone()).await;
    let direct = layered.direct.call(request).await;
    assert_eq!(through.map_err(|error| error.message), direct.map_err(|error| error.message));
    // A method that this containerd does not have is refused by containerd, not by the layer.
    let through = layered.client.stream(v1::GetEventsRequest {}).next().await;
    let direct = layered.direct.stream(v1::GetEventsRequest {}).next().await;
    let message = |answer: Result<_, cri::Error>| answer.err().map(|error| error.message);
    assert_eq!(message(through), message(direct));
}

#[tokio::test]
async fn class_is_in_force_and_reported_with_defaults() {
    let layered = Layered::start().await;
    let id = layered.running("a", &[(FILES, "200")]).await;
    assert_eq!(layered.open_files(&id).await, "200");
    assert_eq!(layered.classes(&id).await, classes(&[(FILES, "200"), (FIXED, "normal")]));
    let other = layered.running("b", &[]).await;
    assert_eq!(layered.classes(&other).await, classes(&[(FILES, ""), (FIXED, "normal")]));
}

#[tokio::test]
async fn unknown_classes_are_refused_before_anything_is_created() {
    let layered = Layered::start().await;
    let error = layered.create("a", &[(FILES, "999")]).await.unwrap_err();
    assert_eq!(error.code, Code::InvalidArgument);
    assert_eq!(error.message, format!("unknown {FILES:?} class \"999\"; offered: 100, 200, 300"));
    let error = layered.create("b", &[("test.example/none", "x")]).await.unwrap_err();
    assert_eq!(
        error.message,
        format!(
            "unknown QoS resource type \"test.example/none\"; offered for a container: {FILES}, {FIXED}"
        )
    );
    let containers = layered.direct.call(v1::ListContainersRequest::default()).await.unwrap();
    assert!(containers.containers.is_empty());
}

#[tokio::test]
async fn changed_class_survives_a_restart_of_the_layer() {
    let layered = Layered::start().await;
    let id = layered.running("a", &[(FILES, "100")]).await;
    layered.change(&id, &[(FILES, "200")], None).await.unwrap();
    assert_eq!(layered.open_files(&id).await, "200");
    let layered = layered.restart().await;
    assert_eq!(layered.classes(&id).await, classes(&[(FILES, "200"), (FIXED, "normal")]));
    // The assignments of the creation are read from the runtime.
    let other = layered.running("b", &[(FILES, "300")]).await;
    let layered = layered.restart().await;
    layered.change(&other, &[(FIXED, "normal")], None).await.unwrap();
    assert_eq!(layered.classes(&other).await, classes(&[(FILES, "300"), (FIXED, "normal")]));
}

#[tokio::test]
async fn refused_change_changes_nothing() {
    let layered = Layered::start().await;
    let id = layered.running("a", &[(FILES, "100")]).await;
    let shares =
        |shares| Some(v1::LinuxContainerResources { cpu_shares: shares, ..Default::default() });
    let cpu_shares = async || {
        let request = v1::ContainerStatusRequest { container_id: id.clone(), verbose: false };
        let status = layered.direct.call(request).await.unwrap().status.unwrap();
        status.resources.and_then(|resources| resources.linux).map(|linux| linux.cpu_shares)
    };
    let before = cpu_shares().await;
    // An immutable resource in the same update.
    let error =
        layered.change(&id, &[(FILES, "200"), (FIXED, "other")], shares(512)).await.unwrap_err();
    assert_eq!(
        error.message,
        format!(
            "the class of QoS resource {FIXED:?} cannot be changed from \"normal\" to \"other\": the resource is \
             immutable"
        )
    );
    // A class that cannot be put in force.
    *layered.enforce.broken.lock().unwrap() = Some("300".to_owned());
    let error = layered.change(&id, &[(FILES, "300")], shares(512)).await.unwrap_err();
    assert_eq!(
        error.message,
        format!(
            "failed to put class \"300\" of QoS resource {FILES:?} in force: the class is broken"
        )
    );
    // An update that the runtime refuses.
    let cpuset =
        v1::LinuxContainerResources { cpuset_cpus: "4096".to_owned(), ..Default::default() };
    layered.change(&id, &[(FILES, "200")], Some(cpuset)).await.unwrap_err();
    assert_eq!(layered.open_files(&id).await, "100");
    assert_eq!(layered.classes(&id).await, classes(&[(FILES, "100"), (FIXED, "normal")]));
    assert_eq!(cpu_shares().await, before);
}

#[tokio::test]
async fn container_without_its_class_in_force_does_not_run() {
    let layered = Layered::start().await;
    *layered.enforce.broken.lock().unwrap() = Some("300".to_owned());
    let id = layered.create("a", &[(FILES, "300")]).await.unwrap();
    let request = v1::StartContainerRequest { container_id: id.clone() };
    let error = layered.client.call(request).await.unwrap_err();
    assert_eq!(
        error.message,
        format!(
            "failed to put class \"300\" of QoS resource {FILES:?} in force: the class is broken"
        )
    );
    let request = v1::ContainerStatusRequest { container_id: id, verbose: false };
    let status = layered.client.call(request).await.unwrap().status.unwrap();
    assert_eq!(status.state(), v1::ContainerState::ContainerExited);
}

#[tokio::test]
async fn reconciling_restores_what_something_else_changed() {
    let layered = Layered::start().await;
    let id = layered.running("a", &[(FILES, "100")]).await;
    let request = v1::ContainerStatusRequest { container_id: id.clone(), verbose: true };
    let info = layered.direct.call(request).await.unwrap().info;
    let pid = info["info"].split("\"pid\":").nth(1).unwrap();
    let pid = pid.split([',', '}']).next().unwrap().trim().to_owned();
    let changed = std::process::Command::new("prlimit")
        .args(["--pid", &pid, "--nofile=50:300"])
        .status()
        .unwrap();
    assert!(changed.success());
    assert_eq!(layered.open_files(&id).await, "50");
    let layered = layered.restart().await;
    assert!(layered.layer.reconcile().await.unwrap().is_empty());
    assert_eq!(layered.open_files(&id).await, "100");
}

#[tokio::test]
async fn removed_container_leaves_nothing_behind() {
    let layered = Layered::start().await;
    let id = layered.running("a", &[(FILES, "100")]).await;
    layered.change(&id, &[(FILES, "200")], None).await.unwrap();
    let directory = layered.containerd.directory().join("classes");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1);
    layered
        .client
        .call(v1::StopContainerRequest { container_id: id.clone(), timeout: 0 })
        .await
        .unwrap();
    layered.client.call(v1::RemoveContainerRequest { container_id: id.clone() }).await.unwrap();
    assert_eq!(*layered.enforce.released.lock().unwrap(), [id]);
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
}
