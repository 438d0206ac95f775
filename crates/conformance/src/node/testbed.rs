//! The environment of replays: our API server and agent on a given runtime, with a proxy between
//! agent and runtime: [`Testbed`].
//!
//! All files are in a temporary directory; nothing is decided here. Recorded actions on the kubelet
//! (stop, start, start with another configuration) are applied to the agent, and those on the
//! runtime (stop, start) to the proxy, because the runtime may have other users.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent::agent::ShutdownMode;
use anyhow::{Context as _, Result, anyhow};
use client::kind::{NODES, PODS};
use client::{Client, DeleteOptions};
use cri::{CallLog, Endpoint, RecordingProxy};
use http::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::agent_client::{AgentClient, AgentResponse};
use super::template::Template;
use super::trace::Trace;
use super::{calls, replay};
use crate::recorded_plugins;
use berth::in_process::InProcess;
use berth::server::{self, Server};
use berth::tasks::TaskError;
use berth::up::{AgentSettings, ServingFiles};

/// The recorded node's name.
pub(super) const NODE: &str = "node-1";
/// The recorded machine: two CPUs without SMT, one NUMA node.
const MACHINE: &str = "2 cores mem=24682416Ki hugepages-1Gi=0 hugepages-2Mi=0";
/// Directories of agents, by the name of their variant.
const ROOTS: &[&str] = &["agent", "agent-static", "agent-numa"];
/// Timeout of actions that should be immediate.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);

/// Shared access of replays to the testbed. Clones refer to the same testbed.
#[derive(Clone, Debug)]
pub(super) struct ReplayContext {
    pub(super) api: Client,
    pub(super) trace: Trace,
    pub(super) passage: CallLog,
    /// The runtime without the proxy.
    pub(super) runtime: cri::Client,
    pub(super) directory: PathBuf,
    cgroup_root: String,
    /// The client of the agent's server, with the authority that the agent trusts.
    agent_client: Arc<AgentClient>,
}

impl ReplayContext {
    /// Returns the cgroup above all others of this testbed, without its leading slash.
    pub(super) fn cgroup_root(&self) -> &str {
        &self.cgroup_root
    }

    /// Returns the directories of container logs and of links to them.
    pub(super) fn logs(&self) -> (PathBuf, PathBuf) {
        (self.directory.join("logs"), self.directory.join("links"))
    }

    /// Sends an HTTPS request to the agent of a variant.
    pub(super) async fn ask(
        &self,
        variant: &NodeVariant,
        method: Method,
        path: &str,
    ) -> Result<AgentResponse> {
        self.agent_client.ask(&self.api, &self.root(variant), method, path).await
    }

    /// Returns the directory that replaces the recording's host paths.
    pub(super) fn host_paths(&self) -> PathBuf {
        self.directory.join("hp")
    }

    /// Reports whether an Event of a pod contains a text.
    pub(super) fn has_event_containing(&self, replayed: &replay::ReplayedPod, text: &str) -> bool {
        let events = self.trace.events(&replayed.namespace, &replayed.name);
        events.iter().any(|event| event["message"].as_str().is_some_and(|m| m.contains(text)))
    }

    pub(super) fn manifests(&self) -> PathBuf {
        self.directory.join("manifests")
    }

    /// Returns the state directory of a variant's agent: agents with other policies do not migrate
    /// each other's state.
    pub(super) fn root(&self, variant: &NodeVariant) -> PathBuf {
        self.directory.join(variant.name)
    }

    /// Returns a template for a line of the recording.
    pub(super) fn template(&self) -> Template {
        let path = |path: &Path| path.display().to_string();
        let roots = ROOTS
            .iter()
            .map(|root| (path(&self.directory.join(root)), "/var/lib/kubelet".to_owned()));
        let mut paths: Vec<(String, String)> = roots.collect();
        paths.extend([
            (path(&self.directory.join("logs")), "/var/log/pods".to_owned()),
            (path(&self.directory.join("cri.sock")), "/run/containerd/containerd.sock".to_owned()),
            (path(&self.host_paths()), "/srv/hp".to_owned()),
            (format!("/{}", self.cgroup_root), "<CGROUP_ROOT>".to_owned()),
        ]);
        Template::new(paths)
    }
}

/// The differences between the recorded nodes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NodeVariant {
    /// One of [`ROOTS`].
    pub(super) name: &'static str,
    /// Additional fields of the kubelet's configuration.
    pub(super) config: Value,
    pub(super) machine: String,
}

impl Default for NodeVariant {
    fn default() -> NodeVariant {
        NodeVariant { name: "agent", config: json!({}), machine: MACHINE.to_owned() }
    }
}

/// A running server or agent.
type Running = JoinHandle<Result<(), TaskError>>;

#[derive(Debug)]
pub(super) struct Testbed {
    context: ReplayContext,
    /// Authenticated as the node.
    agent_api: Client,
    relay: RecordingProxy,
    place: Endpoint,
    proxy_server: Option<(watch::Sender<bool>, JoinHandle<()>)>,
    agent: Option<(watch::Sender<Option<ShutdownMode>>, Running)>,
    server: (watch::Sender<bool>, Running),
    watchers: Vec<JoinHandle<()>>,
    _directory: TempDir,
}

impl Testbed {
    /// Starts the API server, the proxy and the watches, without an agent.
    pub(super) async fn start(runtime: &Endpoint) -> Result<Testbed> {
        let held = tempfile::Builder::new().prefix("berth-conformance-").tempdir()?;
        let directory = held.path().to_owned();
        let mut settings = server::Settings::new(directory.join("data"));
        settings.address.set_port(0);
        settings.plugins = recorded_plugins();
        // The recording had neither scheduler nor controllers.
        settings.controllers.enabled = controllers::Selection::parse([])?;
        let server = Server::start(&settings).await?;
        let transport = InProcess::new(server.api().clone(), "system:admin");
        let api = Client::new(Arc::new(transport), "conformance");
        let transport = InProcess::new(server.api().clone(), &format!("system:node:{NODE}"));
        let agent_api = Client::new(Arc::new(transport), "kubelet");
        let (end, ends) = watch::channel(false);
        let serving = tokio::spawn(server.serve(ends));
        let (trace, watchers) = Trace::start(&api);
        let to = cri::Client::new(runtime.clone());
        let relay = RecordingProxy::new(to.clone(), calls::is_kept);
        let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let place = match std::env::consts::FAMILY {
            "windows" => format!("npipe:////./pipe/{name}"),
            _ => format!("unix://{}/cri.sock", directory.display()),
        };
        let context = ReplayContext {
            api,
            trace,
            passage: relay.calls(),
            runtime: to,
            cgroup_root: name,
            agent_client: Arc::new(AgentClient::new(&directory)?),
            directory,
        };
        for directory in [context.manifests(), context.host_paths().join("dir")] {
            std::fs::create_dir_all(&directory)
                .with_context(|| format!("cannot make {}", directory.display()))?;
        }
        std::fs::write(context.host_paths().join("file"), "x")?;
        let mut testbed = Testbed {
            context,
            agent_api,
            relay,
            place: Endpoint::parse(&place)?,
            proxy_server: None,
            agent: None,
            server: (end, serving),
            watchers,
            _directory: held,
        };
        testbed.open_runtime().await?;
        Ok(testbed)
    }

    pub(super) fn context(&self) -> ReplayContext {
        self.context.clone()
    }

    /// Makes the runtime available.
    pub(super) async fn open_runtime(&mut self) -> Result<()> {
        if self.proxy_server.is_some() {
            return Ok(());
        }
        let listener = cri::Listener::bind(&self.place).await?;
        let (close, mut closing) = watch::channel(false);
        let stop = async move {
            let _ = closing.wait_for(|closing| *closing).await;
        };
        let (a, b) = (self.relay.clone(), self.relay.clone());
        let serving = tokio::spawn(async move {
            // The proxy stops at once, like a killed process.
            let _ = cri::serve(listener, a, b, stop, Duration::ZERO).await;
        });
        self.proxy_server = Some((close, serving));
        Ok(())
    }

    /// Makes the runtime unavailable; containers keep running.
    pub(super) async fn close_runtime(&mut self) {
        if let Some((close, serving)) = self.proxy_server.take() {
            close.send_replace(true);
            let _ = serving.await;
        }
    }

    /// Starts an agent, and waits for its node.
    pub(super) async fn start_agent(&mut self, variant: &NodeVariant) -> Result<()> {
        self.stop_agent().await;
        let context = &self.context;
        let written = configuration(context, variant);
        let (config, _) = objects::kubelet_config::read(&written.to_string())
            .map_err(|findings| anyhow!("the configuration is wrong: {:?}", findings.errors))?;
        let machine = planner::machine::parse(&variant.machine)?;
        let settings = AgentSettings {
            node_name: Some(NODE.to_owned()),
            config,
            configuration: written,
            machine,
            runtime: self.place.clone(),
            root: context.root(variant),
            logs: context.directory.join("logs"),
            log_links: Some(context.directory.join("links")),
            address: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            port: Some(0),
        };
        let client_authority = Some(context.agent_client.authority());
        let files = ServingFiles { client_authority, ..ServingFiles::default() };
        let agent = settings.join(self.agent_api.clone(), files).await?;
        let (leave, leaving) = watch::channel(None);
        self.agent = Some((leave, tokio::spawn(agent.run(leaving))));
        self.ready().await
    }

    /// Waits until the node is ready, or exists if the runtime has no network.
    async fn ready(&self) -> Result<()> {
        let network = network_is_ready(&self.context.runtime).await;
        let looking = async {
            loop {
                let node = self.context.api.get::<Value>(NODES, "", NODE).await;
                if let Ok(node) = node
                    && (condition(&node["status"], "Ready") == Some("True") || !network)
                {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(TIMEOUT, looking)
            .await
            .map_err(|_| anyhow!("the node is not ready after {} s", TIMEOUT.as_secs()))
    }

    /// Stops the agent; pods keep running.
    pub(super) async fn stop_agent(&mut self) {
        if let Some((leave, running)) = self.agent.take() {
            leave.send_replace(Some(ShutdownMode::LeavePodsRunning));
            let _ = running.await;
        }
    }

    /// Deletes remaining pods, stops everything, and removes what the agent created outside its
    /// directory.
    pub(super) async fn end(mut self) {
        self.clear().await;
        self.stop_agent().await;
        remove_sandboxes(&self.context).await;
        self.close_runtime().await;
        self.server.0.send_replace(true);
        let _ = self.server.1.await;
        for watcher in self.watchers {
            watcher.abort();
        }
        remove_cgroups(&self.context.cgroup_root);
    }
}

impl Testbed {
    /// Deletes remaining pods, and waits until they are gone.
    pub(super) async fn clear(&self) {
        let context = &self.context;
        let options = DeleteOptions { grace_seconds: Some(0), ..DeleteOptions::default() };
        for ((namespace, name), _) in context.trace.all_pods().iter().filter(|(_, gone)| !gone) {
            // The pod may be gone already.
            let _ = context.api.delete(PODS, namespace, name, &options).await;
        }
        let all_gone = || context.trace.all_pods().iter().all(|(_, gone)| *gone);
        replay::wait(context, TIMEOUT, Duration::ZERO, all_gone).await;
    }
}

/// Removes remaining sandboxes of this testbed's pods.
async fn remove_sandboxes(context: &ReplayContext) {
    let uids = context.trace.uids();
    let request = cri::v1::ListPodSandboxRequest::default();
    let Ok(found) = context.runtime.call(request).await else { return };
    for sandbox in found.items {
        if !sandbox.metadata.is_some_and(|metadata| uids.contains(&metadata.uid)) {
            continue;
        }
        let pod_sandbox_id = sandbox.id;
        let stop = cri::v1::StopPodSandboxRequest { pod_sandbox_id: pod_sandbox_id.clone() };
        // The runtime's administrator must remove what cannot be removed here.
        let _ = context.runtime.call(stop).await;
        let _ = context.runtime.call(cri::v1::RemovePodSandboxRequest { pod_sandbox_id }).await;
    }
}

/// Returns the recorded kubelet's configuration without its ports.
fn configuration(context: &ReplayContext, variant: &NodeVariant) -> Value {
    let mut config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", context.cgroup_root),
        "cgroupsPerQOS": true,
        "enforceNodeAllocatable": ["pods"],
        "failSwapOn": false,
        "systemReserved": {"cpu": "100m", "memory": "200Mi", "ephemeral-storage": "1Gi"},
        "kubeReserved": {"cpu": "200m", "memory": "300Mi", "ephemeral-storage": "2Gi"},
        "evictionHard": {
            "memory.available": "100Mi", "nodefs.available": "1Gi", "imagefs.available": "1Gi",
        },
        "maxPods": 150,
        "clusterDNS": ["10.0.0.10"],
        "clusterDomain": "cluster.local",
        "staticPodPath": context.manifests().display().to_string(),
    });
    if disk_is_full(&context.directory) {
        // Avoids evictions by a full disk, which are not compared.
        config["evictionHard"] = json!({"memory.available": "100Mi"});
    }
    for (name, value) in variant.config.as_object().into_iter().flatten() {
        config[name] = value.clone();
    }
    config
}

/// Reports whether the disk is below the recorded thresholds.
fn disk_is_full(directory: &Path) -> bool {
    /// The recorded threshold, and the same amount for the pods.
    const NEEDED: u64 = 2 << 30;
    host::os::system::file_system(directory).is_ok_and(|disk| disk.available < NEEDED)
}

/// Returns the status of a condition.
pub(super) fn condition<'a>(status: &'a Value, kind: &str) -> Option<&'a str> {
    let mut conditions = status["conditions"].as_array()?.iter();
    conditions.find(|condition| condition["type"] == kind)?["status"].as_str()
}

/// Reports whether pods can have their own network.
pub(super) async fn network_is_ready(runtime: &cri::Client) -> bool {
    let Ok(answer) = runtime.call(cri::v1::StatusRequest::default()).await else { return false };
    let conditions = answer.status.map(|status| status.conditions).unwrap_or_default();
    conditions.iter().any(|condition| condition.r#type == "NetworkReady" && condition.status)
}

/// Removes empty remains of our cgroup in every hierarchy.
fn remove_cgroups(name: &str) {
    let mounted = Path::new("/sys/fs/cgroup");
    let hierarchies = std::fs::read_dir(mounted).into_iter().flatten().flatten();
    let mut roots = vec![mounted.join(name)];
    roots.extend(hierarchies.map(|hierarchy| hierarchy.path().join(name)));
    roots.iter().for_each(|root| remove_tree(root));
}

fn remove_tree(directory: &Path) {
    for inner in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if inner.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&inner.path());
        }
    }
    // A cgroup in use stays; its user removes it.
    let _ = std::fs::remove_dir(directory);
}

/// Returns a threshold that is always exceeded, as in the recording: the process limit differs
/// between machines.
pub(super) fn out_of_reach(signal: &str, recorded: &str) -> Value {
    let recorded = recorded.trim_end_matches(',');
    let value = if signal == "pid.available" { "1000000000" } else { recorded };
    json!({ signal: value })
}
