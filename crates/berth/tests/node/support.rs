//! A complete node for one test: a control plane, an agent and a containerd, without leftovers.

use std::any::Any;
use std::time::{Duration, Instant};

use agent::agent::AgentParts;
use berth::in_process::InProcess;
use berth::instance_lock::PodsOnExit;
use berth::machine_source::load_machine;
use berth::tasks::TaskError;
use berth::up::{AgentSettings, Node, Settings};
use client::kind::{NAMESPACES, PODS};
use client::{Client, DeleteOptions};
use objects::KubeletConfig;
use rig::Containerd;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Timeout on a busy machine; successful waits end earlier.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(90);

/// Polling interval.
const PAUSE: Duration = Duration::from_millis(10);

/// A command that exits on SIGTERM.
pub(crate) const SLEEP: &[&str] = &["sh", "-c", "trap 'exit 0' TERM; echo up; sleep 600 & wait"];

pub(crate) struct Berth {
    pub(crate) api: Client,
    pub(crate) containerd: Containerd,
    pub(crate) settings: Settings,
    /// The parts of the agent.
    pub(crate) agent: AgentParts,
    stop: watch::Sender<Option<PodsOnExit>>,
    running: Option<JoinHandle<Result<(), TaskError>>>,
}

impl Berth {
    pub(crate) async fn start(change: impl FnOnce(&mut KubeletConfig)) -> Berth {
        let containerd = Containerd::start().unwrap_or_else(|error| panic!("{error}"));
        let runtime = cri::Endpoint::parse(&containerd.endpoint()).unwrap();
        Berth::with(containerd, runtime, change, |_| {}).await
    }

    /// Starts on a containerd that may have containers already.
    pub(crate) async fn on(
        containerd: Containerd,
        change: impl FnOnce(&mut KubeletConfig),
    ) -> Berth {
        let runtime = cri::Endpoint::parse(&containerd.endpoint()).unwrap();
        Berth::with(containerd, runtime, change, |_| {}).await
    }

    /// Starts with an endpoint in front of the containerd.
    pub(crate) async fn over(
        containerd: Containerd,
        runtime: cri::Endpoint,
        change: impl FnOnce(&mut KubeletConfig),
    ) -> Berth {
        Berth::with(containerd, runtime, change, |_| {}).await
    }

    /// Starts with changed settings of the control plane.
    pub(crate) async fn serving(change: impl FnOnce(&mut berth::server::Settings)) -> Berth {
        let containerd = Containerd::start().unwrap_or_else(|error| panic!("{error}"));
        let runtime = cri::Endpoint::parse(&containerd.endpoint()).unwrap();
        Berth::with(containerd, runtime, |_| {}, change).await
    }

    /// Starts with a proxy that alters calls to the runtime, and returns the record of calls.
    pub(crate) async fn behind(
        alter: impl Fn(&mut dyn Any) -> Result<(), String> + Send + Sync + 'static,
        change: impl FnOnce(&mut KubeletConfig),
    ) -> (Berth, cri::CallLog) {
        let containerd = Containerd::start().unwrap_or_else(|error| panic!("{error}"));
        let to = cri::Client::new(cri::Endpoint::parse(&containerd.endpoint()).unwrap());
        let relay = cri::RecordingProxy::new(to, |_| true).with_interceptor(alter);
        let passage = relay.calls();
        let place = containerd.directory().join("relay.sock");
        let place = cri::Endpoint::parse(&format!("unix://{}", place.display())).unwrap();
        let listener = cri::Listener::bind(&place).await.unwrap();
        let (runtime, images) = (relay.clone(), relay);
        tokio::spawn(cri::serve(listener, runtime, images, std::future::pending(), Duration::ZERO));
        (Berth::with(containerd, place, change, |_| {}).await, passage)
    }

    async fn with(
        containerd: Containerd,
        runtime: cri::Endpoint,
        change: impl FnOnce(&mut KubeletConfig),
        change_server: impl FnOnce(&mut berth::server::Settings),
    ) -> Berth {
        let here = containerd.directory().join("berth");
        let mut server = berth::server::Settings::new(here.join("data"));
        server.address.set_port(0);
        change_server(&mut server);
        let mut config = KubeletConfig {
            cgroup_root: Some(containerd.cgroup_parent()),
            // No eviction, whatever the state of the machine's disk.
            eviction_hard: Some(Default::default()),
            ..KubeletConfig::default()
        };
        change(&mut config);
        let settings = Settings {
            server,
            agent: AgentSettings {
                node_name: Some("node-1".to_owned()),
                configuration: json!({}),
                address: Some("127.0.0.1".parse().unwrap()),
                port: Some(0),
                config,
                machine: load_machine(None).unwrap(),
                runtime,
                root: here.join("agent"),
                logs: here.join("logs"),
                log_links: None,
            },
        };
        let (api, agent, stop, running) = begin(&settings).await;
        let berth = Berth { api, containerd, settings, agent, stop, running: Some(running) };
        let namespace = json!({"metadata": {"name": "test"}});
        berth.api.create(NAMESPACES, "", &namespace).await.unwrap();
        berth
    }

    /// Creates a pod on this node.
    pub(crate) async fn create(&self, pod: Value) -> String {
        let mut pod = pod;
        pod["spec"]["nodeName"] = "node-1".into();
        let made = self.api.create(PODS, "test", &pod).await.unwrap();
        made["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn get(&self, name: &str) -> Option<Value> {
        match self.api.get(PODS, "test", name).await {
            Ok(pod) => Some(pod),
            Err(error) if error.is_not_found() => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Waits until the pod fulfils a condition, and returns it.
    pub(crate) async fn until(&self, name: &str, is: impl Fn(&Value) -> bool) -> Value {
        until_or(name, async || match self.get(name).await {
            Some(pod) if is(&pod) => Ok(pod),
            other => Err(format!("{other:#?}")),
        })
        .await
    }

    pub(crate) async fn delete(&self, name: &str) {
        self.api.delete(PODS, "test", name, &DeleteOptions::default()).await.unwrap();
    }

    pub(crate) async fn gone(&self, name: &str) {
        until_or(name, async || match self.get(name).await {
            None => Ok(()),
            Some(pod) => Err(format!("{pod:#}")),
        })
        .await;
    }

    /// Stops the node in an orderly way, and starts it again.
    pub(crate) async fn restart(&mut self) {
        self.end().await;
        let (api, agent, stop, running) = begin(&self.settings).await;
        (self.api, self.agent) = (api, agent);
        (self.stop, self.running) = (stop, Some(running));
    }

    pub(crate) async fn end(&mut self) {
        self.stop.send_replace(Some(PodsOnExit::Keep));
        if let Some(running) = self.running.take() {
            running.await.unwrap().unwrap();
        }
    }
}

async fn begin(
    settings: &Settings,
) -> (Client, AgentParts, watch::Sender<Option<PodsOnExit>>, JoinHandle<Result<(), TaskError>>) {
    let node = Node::start(settings).await.unwrap();
    let transport = InProcess::new(node.server().api().clone(), "system:admin");
    let api = Client::new(Arc::new(transport), "test");
    let (stop, stopping) = watch::channel(None);
    let agent = node.agent_parts();
    (api, agent, stop, tokio::spawn(node.run(stopping)))
}

/// Polls until `look` returns something.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    until_or(what, async || look().await.ok_or_else(String::new)).await
}

/// Polls like [`until`]; the error describes the last state. These tests wait only here.
pub(crate) async fn until_or<T>(what: &str, mut look: impl AsyncFnMut() -> Result<T, String>) -> T {
    let begun = Instant::now();
    loop {
        match look().await {
            Ok(seen) => return seen,
            Err(instead) => assert!(begun.elapsed() < TIMEOUT, "not in time: {what}\n{instead}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Returns a pod with one container on the host's network.
pub(crate) fn pod(name: &str, command: &[&str]) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "hostNetwork": true,
            "terminationGracePeriodSeconds": 5,
            "containers": [{
                "name": "c", "image": rig::BUSYBOX, "imagePullPolicy": "Never",
                "command": command,
            }],
        },
    })
}

pub(crate) fn phase(pod: &Value) -> &str {
    pod["status"]["phase"].as_str().unwrap_or_default()
}
