//! A containerd with a client, and pods for it.

use std::time::Duration;

use cri::{Client, Endpoint, v1};
use rig::Containerd;

/// Enough for a busy machine; successful tests do not wait for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Sleeps for ten minutes; exits with 3 on SIGTERM.
pub(crate) const SLEEP: &[&str] = &["sh", "-c", "trap 'exit 3' TERM; echo up; sleep 600 & wait"];

pub(crate) struct Runtime {
    pub(crate) client: Client,
    pub(crate) containerd: Containerd,
}

impl Runtime {
    pub(crate) async fn start() -> Self {
        let containerd = Containerd::start().unwrap_or_else(|error| panic!("{error}"));
        let client = Client::new(Endpoint::parse(&containerd.endpoint()).unwrap());
        client.connected(PATIENCE).await.unwrap();
        Self { client, containerd }
    }

    /// Returns a sandbox configuration on the host's network.
    pub(crate) fn sandbox(&self, name: &str) -> v1::PodSandboxConfig {
        let options = v1::NamespaceOption {
            network: v1::NamespaceMode::Node.into(),
            pid: v1::NamespaceMode::Container.into(),
            ..Default::default()
        };
        v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: name.to_owned(),
                uid: format!("uid-of-{name}"),
                namespace: "default".to_owned(),
                attempt: 0,
            }),
            log_directory: self.containerd.directory().join("logs").display().to_string(),
            labels: [("app".to_owned(), name.to_owned())].into(),
            linux: Some(v1::LinuxPodSandboxConfig {
                cgroup_parent: self.containerd.cgroup_parent(),
                security_context: Some(v1::LinuxSandboxSecurityContext {
                    namespace_options: Some(options),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    /// Runs a sandbox and returns its id.
    pub(crate) async fn run(&self, config: &v1::PodSandboxConfig) -> String {
        let config = Some(config.clone());
        let request = v1::RunPodSandboxRequest { config, runtime_handler: String::new() };
        self.client.call(request).await.unwrap().pod_sandbox_id
    }

    pub(crate) async fn create(
        &self,
        sandbox: &str,
        sandbox_config: &v1::PodSandboxConfig,
        config: v1::ContainerConfig,
    ) -> Result<String, cri::Error> {
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config.clone()),
        };
        Ok(self.client.call(request).await?.container_id)
    }

    /// Runs a sandbox with one container and returns the container's id.
    pub(crate) async fn running(&self, name: &str) -> String {
        let sandbox = self.sandbox(name);
        let id = self.run(&sandbox).await;
        let container = self.create(&id, &sandbox, container("c", SLEEP)).await.unwrap();
        self.client
            .call(v1::StartContainerRequest { container_id: container.clone() })
            .await
            .unwrap();
        container
    }

    pub(crate) async fn status(&self, container: &str) -> v1::ContainerStatus {
        let request =
            v1::ContainerStatusRequest { container_id: container.to_owned(), verbose: false };
        self.client.call(request).await.unwrap().status.unwrap()
    }

    /// Runs a command and returns its output.
    pub(crate) async fn exec(&self, container: &str, command: &[&str]) -> v1::ExecSyncResponse {
        let request = v1::ExecSyncRequest {
            container_id: container.to_owned(),
            cmd: strings(command),
            timeout: 30,
        };
        self.client.call(request).await.unwrap()
    }
}

/// Returns the configuration of a busybox container.
pub(crate) fn container(name: &str, command: &[&str]) -> v1::ContainerConfig {
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: name.to_owned(), attempt: 0 }),
        image: Some(v1::ImageSpec { image: rig::BUSYBOX.to_owned(), ..Default::default() }),
        command: strings(command),
        log_path: format!("{name}.log"),
        linux: Some(v1::LinuxContainerConfig {
            security_context: Some(v1::LinuxContainerSecurityContext {
                namespace_options: Some(v1::NamespaceOption {
                    network: v1::NamespaceMode::Node.into(),
                    pid: v1::NamespaceMode::Container.into(),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

pub(crate) fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}
