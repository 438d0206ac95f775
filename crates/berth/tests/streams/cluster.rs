//! An API server, an agent's server and a containerd, with a node and pods that are objects only.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent::server::{API_SERVER, Server, ServerBackend};
use apiserver::{
    ADMINISTRATORS, Api, Body, Caller, Limits, Listener, Plugin, Plugins, Query, Request, User,
    VIEWERS,
};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cri::{Client, Endpoint, v1};
use http::{HeaderMap, HeaderValue, Method};
use https::Dialer;
use https::certificates::{self, Pair};
use rig::Containerd;
use serde_json::{Value, json};
use tokio::sync::watch;

/// Timeout on a busy machine; successful waits end earlier.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) const SLEEP: &[&str] = &["sh", "-c", "trap 'exit 0' TERM; sleep 600 & wait"];

/// The pods that the agent's server knows, with their sandboxes.
#[derive(Default)]
struct Pods(Mutex<Vec<(Value, String)>>);

impl ServerBackend for Pods {
    fn pods(&self) -> Vec<Value> {
        self.0.lock().unwrap().iter().map(|(pod, _)| pod.clone()).collect()
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<Value> {
        let found = |pod: &Value| {
            pod["metadata"]["namespace"] == namespace && pod["metadata"]["name"] == name
        };
        self.pods().into_iter().find(found)
    }

    fn sandbox(&self, uid: &str) -> Option<String> {
        let pods = self.0.lock().unwrap();
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

pub(crate) struct Cluster {
    api: Api,
    runtime: Client,
    pods: Arc<Pods>,
    dir: tempfile::TempDir,
    agent_port: u16,
    _stop: watch::Sender<bool>,
    /// Last, so that it is dropped after everything that uses it.
    containerd: Containerd,
}

impl Cluster {
    pub(crate) async fn start() -> Cluster {
        let containerd = Containerd::start().unwrap_or_else(|error| panic!("{error}"));
        let runtime = Client::new(Endpoint::parse(&containerd.endpoint()).unwrap());
        runtime.connected(TIMEOUT).await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let authority = certificates::authority("test").unwrap();
        let pair = certificates::server(&authority, &["127.0.0.1".to_owned()]).unwrap();
        let (stop, stopping) = watch::channel(false);
        let any = "127.0.0.1:0".parse().unwrap();

        let socket = Server::bind(any, &pair, Some(&authority.certificate)).await.unwrap();
        let agent_port = socket.address().unwrap().port();
        let pods = Arc::new(Pods::default());
        let server = Server::new(pods.clone(), runtime.clone());
        tokio::spawn(server.serve(socket, stopping.clone()));

        let ours = certificates::client(&authority, API_SERVER, "berth:apiserver").unwrap();
        let agents =
            Dialer::new(&authority.certificate, Some(&ours), &["http/1.1"], TIMEOUT).unwrap();
        // No controller runs that would create service accounts.
        let plugins = Plugins::default().without(Plugin::ServiceAccount);
        let agents = Some(agents);
        let options = apiserver::Options { agents, plugins, ..apiserver::Options::default() };
        let store = store::Store::open(&dir.path().join("store"), store::Options::default());
        let api = Api::new(store.unwrap(), options).await.unwrap();
        let limits = Limits::default();
        let listener = Listener::bind(any, &pair, &authority.certificate, limits).await.unwrap();
        let server = listener.address().unwrap();
        tokio::spawn(listener.serve(api.clone(), stopping));
        for (name, group) in [("admin", ADMINISTRATORS), ("viewer", VIEWERS)] {
            let Pair { certificate, key } = certificates::client(&authority, name, group).unwrap();
            let [ca, certificate, key] =
                [&authority.certificate, &certificate, &key].map(|text| STANDARD.encode(text));
            let config = json!({
                "apiVersion": "v1", "kind": "Config", "current-context": "c",
                "clusters": [{"name": "k", "cluster": {
                    "server": format!("https://{server}"), "certificate-authority-data": ca,
                }}],
                "users": [{"name": "u", "user": {
                    "client-certificate-data": certificate, "client-key-data": key,
                }}],
                "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            });
            std::fs::write(dir.path().join(name), config.to_string()).unwrap();
        }
        let cluster = Cluster { api, runtime, pods, dir, agent_port, _stop: stop, containerd };
        let node = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n"}});
        cluster.send(Method::POST, "/api/v1/nodes", &node).await;
        cluster.move_node("127.0.0.1", agent_port).await;
        cluster
    }

    /// Sets the agent's address in the Node, and returns its real port.
    pub(crate) async fn move_node(&self, host: &str, port: u16) -> u16 {
        let status = json!({"status": {
            "addresses": [{"type": "InternalIP", "address": host}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }});
        self.send(Method::PATCH, "/api/v1/nodes/n/status", &status).await;
        self.agent_port
    }

    pub(crate) fn kubeconfig(&self, user: &str) -> PathBuf {
        self.dir.path().join(user)
    }

    /// An empty home directory for clients with caches.
    pub(crate) fn home(&self) -> &Path {
        self.dir.path()
    }

    async fn send(&self, method: Method, path: &str, body: &Value) -> Value {
        let media = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static(media));
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let call = Request {
            method,
            path: path.to_owned(),
            query: Query::default(),
            headers,
            body: body.into(),
            caller: Caller::Known(User::internal("test")),
            source: None,
        };
        let reply = self.api.handle(call).await;
        let Body::Whole(bytes) = reply.body else { panic!("{path} is not answered at once") };
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert!(reply.status.is_success(), "{path}: {text}");
        serde_json::from_str(&text).unwrap_or(Value::String(text))
    }

    pub(crate) async fn metrics(&self) -> String {
        let text = self.send(Method::GET, "/metrics", &Value::Null).await;
        text.as_str().unwrap().to_owned()
    }

    /// Runs a pod on the host's network with one container `c`, and creates its object.
    pub(crate) async fn run(&self, name: &str, command: &[&str], stdin: bool) -> String {
        let pod = json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": name},
            "spec": {
                "nodeName": "n", "hostNetwork": true,
                "containers": [{
                    "name": "c", "image": rig::BUSYBOX, "command": command, "stdin": stdin,
                }],
            },
        });
        let path = "/api/v1/namespaces/default/pods";
        let pod = self.send(Method::POST, path, &pod).await;
        let uid = pod["metadata"]["uid"].as_str().unwrap();
        let (sandbox, id) = self.start_container(name, uid, command, stdin).await;
        let status = json!({"status": {
            "phase": "Running",
            "containerStatuses": [{
                "name": "c", "containerID": format!("containerd://{id}"), "ready": true,
                "restartCount": 0, "image": rig::BUSYBOX, "imageID": "", "lastState": {},
                "state": {"running": {"startedAt": "2006-01-02T15:04:05Z"}},
            }],
        }});
        let pod = self.send(Method::PATCH, &format!("{path}/{name}/status"), &status).await;
        self.pods.0.lock().unwrap().push((pod, sandbox));
        id
    }

    async fn start_container(
        &self,
        name: &str,
        uid: &str,
        command: &[&str],
        stdin: bool,
    ) -> (String, String) {
        let options = v1::NamespaceOption {
            network: v1::NamespaceMode::Node.into(),
            pid: v1::NamespaceMode::Container.into(),
            ..Default::default()
        };
        let sandbox = v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: name.to_owned(),
                uid: uid.to_owned(),
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
            log_path: format!("{name}.log"),
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
        (sandbox_id, id)
    }

    /// Stops a container with SIGTERM.
    pub(crate) async fn stop(&self, id: &str) {
        let request = v1::StopContainerRequest { container_id: id.to_owned(), timeout: 30 };
        self.runtime.call(request).await.unwrap();
    }
}
