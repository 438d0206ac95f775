//! The life of a pod from its sandbox to its removal.

use cri::{ClassSupport, Code, Origin, v1};
use rig::wait_until;

use crate::support::{PATIENCE, Runtime, SLEEP, container};

#[tokio::test]
async fn containerd_reports_its_version_and_features() {
    let runtime = Runtime::start().await;
    let found = runtime.client.probe().await.unwrap();
    assert_eq!((&*found.runtime_name, &*found.runtime_api_version), ("containerd", "v1"));
    assert!(found.runtime_ready.status);
    // No network is configured.
    assert!(!found.network_ready.status);
    assert_eq!(found.network_ready.reason, "NetworkPluginNotReady");
    assert_eq!(found.classes, ClassSupport::Annotations);
    // The probe's results agree with real calls.
    if found.runtime_version.starts_with("1.6.") {
        assert_eq!(found.cgroup_driver, None);
        assert!(!found.sandbox_updates && !found.sandbox_metrics && !found.list_streaming);
        // Implemented, but rejected.
        assert!(found.may_send_events);
        let error = runtime.client.stream(v1::GetEventsRequest {}).next().await.unwrap_err();
        assert_eq!((error.origin, error.code), (Origin::Runtime, Code::Unimplemented), "{error}");
    }
}

/// Returns the CPUs that a process in the container may use.
async fn cpus(runtime: &Runtime, id: &str) -> String {
    let output = runtime.exec(id, &["grep", "Cpus_allowed_list", "/proc/self/status"]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_ascii_whitespace().nth(1).unwrap().to_owned()
}

fn cpuset(cpus: &str) -> v1::LinuxContainerResources {
    v1::LinuxContainerResources { cpuset_cpus: cpus.to_owned(), ..Default::default() }
}

#[tokio::test]
async fn a_container_lives_from_its_creation_to_its_removal() {
    let runtime = Runtime::start().await;
    let client = &runtime.client;
    let sandbox = runtime.sandbox("web");
    let sandbox_id = runtime.run(&sandbox).await;
    let request =
        v1::PodSandboxStatusRequest { pod_sandbox_id: sandbox_id.clone(), verbose: false };
    let status = client.call(request).await.unwrap().status.unwrap();
    assert_eq!(status.state(), v1::PodSandboxState::SandboxReady);
    assert_eq!(
        (status.metadata, status.labels),
        (sandbox.metadata.clone(), sandbox.labels.clone())
    );

    let mut config = container("c", SLEEP);
    config.envs = vec![v1::KeyValue { key: "WORD".to_owned(), value: "wörd".into() }];
    config.linux.as_mut().unwrap().resources = Some(cpuset("0"));
    let id = runtime.create(&sandbox_id, &sandbox, config).await.unwrap();
    assert_eq!(runtime.status(&id).await.state(), v1::ContainerState::ContainerCreated);
    client.call(v1::StartContainerRequest { container_id: id.clone() }).await.unwrap();
    let status = runtime.status(&id).await;
    assert_eq!(status.state(), v1::ContainerState::ContainerRunning);
    assert!(status.started_at >= status.created_at && status.created_at > 0);

    // Logs.
    let log = wait_until(PATIENCE, || {
        std::fs::read_to_string(&status.log_path).ok().filter(|text| text.contains("up"))
    });
    assert!(log.unwrap().ends_with(" stdout F up\n"));

    // Commands, and output that is not UTF-8.
    let script = "printf \"$WORD\\377\"; echo trouble >&2; exit 5";
    let output = runtime.exec(&id, &["sh", "-c", script]).await;
    assert_eq!((&*output.stdout, &*output.stderr), (&b"w\xc3\xb6rd\xff"[..], &b"trouble\n"[..]));
    assert_eq!(output.exit_code, 5);

    // CPUs change while the container runs.
    assert_eq!(cpus(&runtime, &id).await, "0");
    let all = std::thread::available_parallelism().unwrap().get();
    let last = (all - 1).to_string();
    let request = v1::UpdateContainerResourcesRequest {
        container_id: id.clone(),
        linux: Some(cpuset(&last)),
        ..Default::default()
    };
    client.call(request).await.unwrap();
    assert_eq!(cpus(&runtime, &id).await, last);

    // Lists and statistics.
    let filter = v1::ContainerFilter { pod_sandbox_id: sandbox_id.clone(), ..Default::default() };
    let list = client.call(v1::ListContainersRequest { filter: Some(filter) }).await.unwrap();
    assert_eq!(list.containers.iter().map(|found| &*found.id).collect::<Vec<_>>(), [&*id]);
    let request = v1::ContainerStatsRequest { container_id: id.clone() };
    let stats = client.call(request).await.unwrap().stats.unwrap();
    assert!(stats.memory.unwrap().working_set_bytes.unwrap().value > 0);

    // Exec returns the URL of the stream.
    let request = v1::ExecRequest {
        container_id: id.clone(),
        cmd: vec!["sh".to_owned()],
        stdout: true,
        ..Default::default()
    };
    let url = client.call(request).await.unwrap().url;
    assert!(url.starts_with("http://"), "{url}");

    // On a stop request the container exits by itself, with its own code.
    let request = v1::StopContainerRequest { container_id: id.clone(), timeout: 30 };
    client.call(request).await.unwrap();
    let status = runtime.status(&id).await;
    assert_eq!((status.state(), status.exit_code), (v1::ContainerState::ContainerExited, 3));
    client.call(v1::RemoveContainerRequest { container_id: id.clone() }).await.unwrap();
    let request = v1::ContainerStatusRequest { container_id: id.clone(), verbose: false };
    assert!(client.call(request).await.unwrap_err().is_not_found());
    // Stop and remove are idempotent.
    for _ in 0..2 {
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: sandbox_id.clone() };
        client.call(request).await.unwrap();
    }
    for _ in 0..2 {
        let request = v1::RemovePodSandboxRequest { pod_sandbox_id: sandbox_id.clone() };
        client.call(request).await.unwrap();
    }
    assert!(client.call(v1::ListPodSandboxRequest::default()).await.unwrap().items.is_empty());
}

#[tokio::test]
async fn classes_are_not_sent_to_a_runtime_without_support() {
    let runtime = Runtime::start().await;
    let support = runtime.client.probe().await.unwrap().classes;
    let sandbox = runtime.sandbox("classes");
    let id = runtime.run(&sandbox).await;
    let class = |class: &str| {
        vec![v1::ContainerQosResource { name: "k8s.io/rdt".to_owned(), class: class.to_owned() }]
    };
    let mut config = container("c", SLEEP);
    config.qos_resources = class("gold");
    let mut request = v1::CreateContainerRequest {
        pod_sandbox_id: id,
        config: Some(config),
        sandbox_config: Some(sandbox),
    };
    assert_eq!(support.fit_create(&mut request), []);
    // containerd understands the annotation and reports that this machine has no RDT.
    let error = runtime.client.call(request.clone()).await.unwrap_err();
    assert!(error.message.contains("RDT") && error.message.contains("\"gold\""), "{error}");
    // An empty class is the default.
    let config = request.config.as_mut().unwrap();
    config.annotations.clear();
    config.qos_resources = class("");
    assert_eq!(support.fit_create(&mut request), []);
    let container_id = runtime.client.call(request).await.unwrap().container_id;
    runtime.client.call(v1::StartContainerRequest { container_id }).await.unwrap();
}
