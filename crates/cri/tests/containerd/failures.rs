//! Failures between the client and containerd.

use std::time::Duration;

use cri::{Code, Origin, v1};

use crate::support::{PATIENCE, Runtime, container, strings};

#[tokio::test]
async fn a_client_and_its_containers_survive_a_containerd_restart() {
    let mut runtime = Runtime::start().await;
    let id = runtime.running("survivor").await;

    // containerd is killed during a call.
    let call = tokio::spawn({
        let client = runtime.client.clone();
        let cmd = strings(&["sh", "-c", "echo > /tmp/inside; sleep 600"]);
        let request = v1::ExecSyncRequest { container_id: id.clone(), cmd, timeout: 0 };
        async move { client.call(request).await }
    });
    let inside =
        async { while runtime.exec(&id, &["test", "-e", "/tmp/inside"]).await.exit_code != 0 {} };
    tokio::time::timeout(PATIENCE, inside).await.unwrap();
    runtime.containerd.kill().unwrap();
    let error = tokio::time::timeout(PATIENCE, call).await.unwrap().unwrap().unwrap_err();
    assert_eq!((error.origin, error.code), (Origin::Connection, Code::Unavailable), "{error}");

    let error = runtime.client.call(v1::StatusRequest::default()).await.unwrap_err();
    assert_eq!((error.origin, error.code), (Origin::Connection, Code::Unavailable), "{error}");
    let expected = "connection error: desc = \"transport: Error while dialing: dial unix /";
    assert!(error.message.starts_with(expected), "{error}");
    assert!(error.message.ends_with(": connect: connection refused\""), "{error}");

    for graceful in [false, true] {
        if graceful {
            runtime.containerd.stop().unwrap();
        }
        runtime.containerd.restart().unwrap();
        let version = runtime.client.connected(PATIENCE).await.unwrap();
        assert_eq!(version.runtime_name, "containerd");
        // The same container still runs.
        assert_eq!(runtime.status(&id).await.state(), v1::ContainerState::ContainerRunning);
        assert_eq!(runtime.exec(&id, &["test", "-e", "/tmp/inside"]).await.exit_code, 0);
    }
}

#[tokio::test]
async fn a_containerd_that_does_not_answer_meets_the_deadline() {
    let runtime = Runtime::start().await;
    runtime.containerd.freeze(true);
    let short = runtime.client.within(Duration::from_millis(100));
    let error = short.call(v1::VersionRequest::default()).await.unwrap_err();
    assert_eq!((error.origin, error.code), (Origin::Deadline, Code::DeadlineExceeded), "{error}");
    runtime.containerd.freeze(false);
    runtime.client.connected(PATIENCE).await.unwrap();
}

#[tokio::test]
async fn errors_keep_containerds_code_and_message() {
    let runtime = Runtime::start().await;
    let client = &runtime.client;
    let none = "0123456789abcdef";

    let request = v1::ContainerStatusRequest { container_id: none.to_owned(), verbose: false };
    let error = client.call(request).await.unwrap_err();
    assert_eq!((error.origin, error.code), (Origin::Runtime, Code::NotFound));
    assert!(error.message.contains(none) && error.message.ends_with("not found"), "{error}");
    let prefix = "rpc error: code = NotFound desc = an error occurred when try to find container";
    assert!(error.rpc_text().starts_with(prefix), "{}", error.rpc_text());

    let request = v1::PodSandboxStatusRequest { pod_sandbox_id: none.to_owned(), verbose: false };
    assert!(client.call(request).await.unwrap_err().is_not_found());
    // Removing a container that is gone succeeds.
    client.call(v1::RemoveContainerRequest { container_id: none.to_owned() }).await.unwrap();

    // A missing image is a valid response; a pull without a registry is an error.
    let image = |name: &str| v1::ImageSpec { image: name.to_owned(), ..Default::default() };
    let request = v1::ImageStatusRequest { image: Some(image("localhost/none:1")), verbose: false };
    assert_eq!(client.call(request).await.unwrap().image, None);
    let request = v1::ImageStatusRequest { image: Some(image(rig::BUSYBOX)), verbose: false };
    let found = client.call(request).await.unwrap().image.unwrap();
    assert_eq!(found.repo_tags, [rig::BUSYBOX]);

    // containerd does not implement this call.
    if !client.probe().await.unwrap().sandbox_updates {
        let request = v1::UpdatePodSandboxResourcesRequest::default();
        let error = client.call(request).await.unwrap_err();
        assert!(error.is_unimplemented());
        assert_eq!(
            error.message,
            "unknown method UpdatePodSandboxResources for service runtime.v1.RuntimeService"
        );
    }

    // A missing program is an error of the start, with runc's message.
    let sandbox = runtime.sandbox("broken");
    let id = runtime.run(&sandbox).await;
    let config = container("c", &["/nonexistent"]);
    let container_id = runtime.create(&id, &sandbox, config).await.unwrap();
    let error = client.call(v1::StartContainerRequest { container_id }).await.unwrap_err();
    assert_eq!((error.origin, error.code), (Origin::Runtime, Code::Unknown), "{error}");
    assert!(error.message.contains("exec: \"/nonexistent\""), "{error}");

    // A missing CPU is an error too.
    let mut config = container("cpu", &["true"]);
    config.linux.as_mut().unwrap().resources =
        Some(v1::LinuxContainerResources { cpuset_cpus: "9999".to_owned(), ..Default::default() });
    let container_id = runtime.create(&id, &sandbox, config).await.unwrap();
    let error = client.call(v1::StartContainerRequest { container_id }).await.unwrap_err();
    assert!(error.message.contains("cpuset.cpus"), "{error}");
}

#[tokio::test]
async fn a_command_that_takes_too_long_is_ended_by_containerd() {
    let runtime = Runtime::start().await;
    let id = runtime.running("slow").await;
    let cmd = strings(&["sleep", "600"]);
    let request = v1::ExecSyncRequest { container_id: id, cmd, timeout: 1 };
    let error = runtime.client.call(request).await.unwrap_err();
    // The runtime reports the timeout, not our clock.
    assert_eq!((error.origin, error.code), (Origin::Runtime, Code::DeadlineExceeded), "{error}");
    assert!(error.message.contains("timeout 1s exceeded"), "{error}");
}
