//! A class layer over a containerd of the test's own, with ulimits as the classes that it enforces.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cri::{Client, Endpoint, Level, Listener, v1};
use rig::Containerd;
use runtime::ClassLayer;
use runtime::class_layer::catalog::{ClassCatalog, ClassResource};
use runtime::class_layer::{Adjustment, Assignments, Enforce, EnforceError, Subject};

/// Enough for a busy machine; successful tests do not wait for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const FILES: &str = "test.example/files";
pub(crate) const FIXED: &str = "test.example/fixed";

/// Enforces the number of open files by `prlimit`, as a class that the kernel really enforces and that can be read back
/// from inside of the container.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles {
    /// A class that fails to be put in force.
    pub(crate) broken: Mutex<Option<String>>,
    pub(crate) released: Mutex<Vec<String>>,
}

impl Enforce for OpenFiles {
    fn catalog(&self) -> Arc<ClassCatalog> {
        let resource =
            |name: &str, mutable, default: Option<&str>, classes: &[&str]| ClassResource {
                name: name.to_owned(),
                level: Level::Container,
                mutable,
                default: default.map(str::to_owned),
                classes: classes.iter().map(|&class| (class.to_owned(), 0)).collect(),
            };
        Arc::new(ClassCatalog::new(vec![
            resource(FILES, true, None, &["100", "200", "300"]),
            resource(FIXED, false, Some("normal"), &["normal", "other"]),
        ]))
    }

    fn adjust(&self, classes: &Assignments) -> Result<Adjustment, EnforceError> {
        let annotations =
            classes.iter().map(|(name, class)| (name.clone(), class.clone())).collect();
        Ok(Adjustment { annotations, unified: Vec::new() })
    }

    fn apply(&self, subject: &Subject, classes: &Assignments) -> Result<(), EnforceError> {
        let Some(class) = classes.get(FILES) else { return Ok(()) };
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| EnforceError {
            resource: FILES.to_owned(),
            class: class.clone(),
            source,
        };
        if self.broken.lock().unwrap().as_ref() == Some(class) {
            return Err(failed("the class is broken".into()));
        }
        let status = std::process::Command::new("prlimit")
            .args(["--pid", &subject.pid.to_string(), &format!("--nofile={class}:300")])
            .status()
            .map_err(|error| failed(error.into()))?;
        if status.success() { Ok(()) } else { Err(failed(format!("prlimit: {status}").into())) }
    }

    fn release(&self, id: &str) {
        self.released.lock().unwrap().push(id.to_owned());
    }
}

pub(crate) struct Layered {
    /// Calls through the layer.
    pub(crate) client: Client,
    /// Calls past the layer.
    pub(crate) direct: Client,
    pub(crate) enforce: Arc<OpenFiles>,
    pub(crate) layer: ClassLayer,
    pub(crate) containerd: Containerd,
    restarts: u32,
}

impl Layered {
    pub(crate) async fn start() -> Layered {
        let containerd = Containerd::start().unwrap_or_else(|error| panic!("{error}"));
        let direct = Client::new(Endpoint::parse(&containerd.endpoint()).unwrap());
        direct.connected(PATIENCE).await.unwrap();
        let enforce = Arc::new(OpenFiles::default());
        let (layer, client) = serve(&containerd, Arc::clone(&enforce), 0).await;
        Layered { client, direct, enforce, layer, containerd, restarts: 0 }
    }

    /// Starts another layer with the same state, as after a restart.
    pub(crate) async fn restart(self) -> Layered {
        let restarts = self.restarts + 1;
        let (layer, client) = serve(&self.containerd, Arc::clone(&self.enforce), restarts).await;
        Layered { client, layer, restarts, ..self }
    }

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

    /// Creates a container in a sandbox of its own.
    pub(crate) async fn create(
        &self,
        name: &str,
        classes: &[(&str, &str)],
    ) -> Result<String, cri::Error> {
        let sandbox = self.sandbox(name);
        let request = v1::RunPodSandboxRequest {
            config: Some(sandbox.clone()),
            runtime_handler: String::new(),
        };
        let pod_sandbox_id = self.client.call(request).await.unwrap().pod_sandbox_id;
        let request = v1::CreateContainerRequest {
            pod_sandbox_id,
            config: Some(container(classes)),
            sandbox_config: Some(sandbox),
        };
        Ok(self.client.call(request).await?.container_id)
    }

    pub(crate) async fn running(&self, name: &str, classes: &[(&str, &str)]) -> String {
        let id = self.create(name, classes).await.unwrap();
        self.client.call(v1::StartContainerRequest { container_id: id.clone() }).await.unwrap();
        id
    }

    pub(crate) async fn change(
        &self,
        id: &str,
        classes: &[(&str, &str)],
        linux: Option<v1::LinuxContainerResources>,
    ) -> Result<(), cri::Error> {
        let request = v1::UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux,
            qos_resources: resources(classes),
            ..Default::default()
        };
        self.client.call(request).await.map(|_| ())
    }

    /// Returns the classes in the status of a container.
    pub(crate) async fn classes(&self, id: &str) -> BTreeMap<String, String> {
        let request = v1::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        let status = self.client.call(request).await.unwrap().status.unwrap();
        let classes = status.resources.unwrap_or_default().qos_resources;
        classes.into_iter().map(|class| (class.name, class.class)).collect()
    }

    /// Returns the soft limit of open files of the container's first process.
    pub(crate) async fn open_files(&self, id: &str) -> String {
        let request = v1::ExecSyncRequest {
            container_id: id.to_owned(),
            cmd: ["grep", "open files", "/proc/1/limits"].map(str::to_owned).into(),
            timeout: 30,
        };
        let output = self.client.call(request).await.unwrap().stdout;
        let text = String::from_utf8(output).unwrap();
        text.split_ascii_whitespace().nth(3).unwrap().to_owned()
    }
}

async fn serve(
    containerd: &Containerd,
    enforce: Arc<OpenFiles>,
    number: u32,
) -> (ClassLayer, Client) {
    let endpoint = Endpoint::parse(&containerd.endpoint()).unwrap();
    let directory = containerd.directory().join("classes");
    let layer = ClassLayer::new(&endpoint, enforce, &directory).unwrap();
    let socket = containerd.directory().join(format!("layer-{number}.sock"));
    let endpoint = Endpoint::parse(&format!("unix://{}", socket.display())).unwrap();
    let listener = Listener::bind(&endpoint).await.unwrap();
    let service = layer.clone();
    tokio::spawn(async move {
        cri::serve_service(listener, service, std::future::pending(), Duration::ZERO).await
    });
    let client = Client::new(endpoint);
    client.connected(PATIENCE).await.unwrap();
    (layer, client)
}

fn resources(classes: &[(&str, &str)]) -> Vec<v1::ContainerQosResource> {
    let classes = classes.iter().map(|&(name, class)| v1::ContainerQosResource {
        name: name.to_owned(),
        class: class.to_owned(),
    });
    classes.collect()
}

fn container(classes: &[(&str, &str)]) -> v1::ContainerConfig {
    let command = ["sh", "-c", "echo up; sleep 600 & wait"];
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: "c".to_owned(), attempt: 0 }),
        image: Some(v1::ImageSpec { image: rig::BUSYBOX.to_owned(), ..Default::default() }),
        command: command.map(str::to_owned).into(),
        log_path: "c.log".to_owned(),
        qos_resources: resources(classes),
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
