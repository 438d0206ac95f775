//! A containerd with a pod, the agent's server for it, and a client.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent::server::{API_SERVER, Server, ServerBackend};
use bytes::Bytes;
use cri::{Client, Endpoint, v1};
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use https::Dialer;
use https::certificates::{self, Pair};
use hyper::body::Incoming;
use rig::Containerd;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::client::TlsStream;

/// Long enough for a busy machine; not waited for in a passing test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The pods that the server knows.
#[derive(Default)]
struct PodSet {
    pods: Mutex<Vec<(Value, String)>>,
}

impl ServerBackend for PodSet {
    fn pods(&self) -> Vec<Value> {
        self.pods.lock().unwrap().iter().map(|(pod, _)| pod.clone()).collect()
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<Value> {
        let found = |pod: &Value| {
            pod["metadata"]["namespace"] == namespace && pod["metadata"]["name"] == name
        };
        self.pods().into_iter().find(found)
    }

    fn sandbox(&self, uid: &str) -> Option<String> {
        let pods = self.pods.lock().unwrap();
        let found = pods.iter().find(|(pod, _)| pod["metadata"]["uid"] == uid);
        found.map(|(_, sandbox)| sandbox.clone())
    }

    fn configuration(&self) -> Value {
        json!({})
    }

    fn metrics(&self) -> Vec<metrics::Family> {
        Vec::new()
    }
}

pub(crate) struct Node {
    pub(crate) runtime: Client,
    pods: Arc<PodSet>,
    authority: Pair,
    port: u16,
    stop: watch::Sender<bool>,
    /// Last, so that it is dropped after its users.
    containerd: Containerd,
}

impl Node {
    pub(crate) async fn start() -> Node {
        let containerd = Containerd::start().unwrap_or_else(|error| panic!("{error}"));
        let runtime = Client::new(Endpoint::parse(&containerd.endpoint()).unwrap());
        runtime.connected(PATIENCE).await.unwrap();
        let authority = certificates::authority("test").unwrap();
        let pair = certificates::server(&authority, &["127.0.0.1".to_owned()]).unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        let listener = Server::bind(any, &pair, Some(&authority.certificate)).await.unwrap();
        let port = listener.address().unwrap().port();
        let (stop, stopping) = watch::channel(false);
        let pods = Arc::new(PodSet::default());
        let server = Server::new(pods.clone(), runtime.clone());
        tokio::spawn(server.serve(listener, stopping));
        Node { runtime, pods, authority, port, stop, containerd }
    }

    /// Runs a pod `p` in the namespace `default` with host networking and one container `c`. Returns the
    /// container's ID.
    pub(crate) async fn run(&self, command: &[&str], stdin: bool) -> String {
        let options = v1::NamespaceOption {
            network: v1::NamespaceMode::Node.into(),
            pid: v1::NamespaceMode::Container.into(),
            ..Default::default()
        };
        let sandbox = v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: "p".to_owned(),
                uid: "uid-of-p".to_owned(),
                namespace: "default".to_owned(),
                attempt: 0,
            }),
            log_directory: self.containerd.directory().join("logs").display().to_string(),
            linux: Some(v1::LinuxPodSandboxConfig {
                cgroup_parent: self.containerd.cgroup_parent(),
                security_context: Some(v1::LinuxSandboxSecurityContext {
                    namespace_options: Some(options.clone()),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        };
        let request = v1::RunPodSandboxRequest {
            config: Some(sandbox.clone()),
            runtime_handler: String::new(),
        };
        let sandbox_id = self.runtime.call(request).await.unwrap().pod_sandbox_id;
        let config = v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata { name: "c".to_owned(), attempt: 0 }),
            image: Some(v1::ImageSpec { image: rig::BUSYBOX.to_owned(), ..Default::default() }),
            command: command.iter().map(|&word| word.to_owned()).collect(),
            log_path: "c.log".to_owned(),
            stdin,
            linux: Some(v1::LinuxContainerConfig {
                security_context: Some(v1::LinuxContainerSecurityContext {
                    namespace_options: Some(options),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        };
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox_id.clone(),
            config: Some(config),
            sandbox_config: Some(sandbox),
        };
        let id = self.runtime.call(request).await.unwrap().container_id;
        let request = v1::StartContainerRequest { container_id: id.clone() };
        self.runtime.call(request).await.unwrap();
        let pod = json!({
            "metadata": {"name": "p", "namespace": "default", "uid": "uid-of-p"},
            "spec": {"containers": [{"name": "c"}]},
            "status": {"containerStatuses": [{
                "name": "c", "containerID": format!("containerd://{id}"), "state": {"running": {}},
            }]},
        });
        self.pods.pods.lock().unwrap().push((pod, sandbox_id));
        id
    }

    /// Stops the server; the containers keep running.
    pub(crate) fn stop_serving(&self) {
        self.stop.send(true).unwrap();
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.containerd.directory().join("logs/c.log")
    }

    pub(crate) async fn connect(&self) -> TlsStream<TcpStream> {
        let pair = certificates::client(&self.authority, API_SERVER, "x").unwrap();
        let authority = &self.authority.certificate;
        let dialer = Dialer::new(authority, Some(&pair), &["http/1.1"], PATIENCE).unwrap();
        dialer.connect("127.0.0.1", self.port, "127.0.0.1").await.unwrap()
    }

    /// Sends a request, and returns the response as soon as it starts.
    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
    ) -> Response<Incoming> {
        let mut request = Request::new(Full::new(Bytes::new()));
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().unwrap();
        *request.headers_mut() = headers;
        request.headers_mut().insert("host", "node".parse().unwrap());
        https::exchange(self.connect().await, request).await.unwrap()
    }
}

/// A response body that arrives in chunks.
pub(crate) struct Text {
    body: Incoming,
    pub(crate) seen: String,
}

impl Text {
    pub(crate) fn of(response: Response<Incoming>) -> Text {
        Text { body: response.into_body(), seen: String::new() }
    }

    /// Reads until the text satisfies the condition.
    pub(crate) async fn until(&mut self, said: impl Fn(&str) -> bool) {
        while !said(&self.seen) {
            let frame = tokio::time::timeout(PATIENCE, self.body.frame()).await;
            let frame = frame.unwrap_or_else(|_| panic!("timed out after {:?}", self.seen));
            let Some(frame) = frame else { panic!("connection closed after {:?}", self.seen) };
            if let Ok(bytes) = frame.unwrap().into_data() {
                self.seen.push_str(std::str::from_utf8(&bytes).unwrap());
            }
        }
    }

    pub(crate) async fn whole(mut self) -> String {
        let rest = tokio::time::timeout(PATIENCE, self.body.collect()).await.unwrap().unwrap();
        self.seen.push_str(std::str::from_utf8(&rest.to_bytes()).unwrap());
        self.seen
    }
}
