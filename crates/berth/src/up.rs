//! A complete node in one process: the control plane and the agent of this machine.
//!
//! [`Node::start`] starts both, [`Node::run`] runs them until they are stopped. Nothing is decided
//! here.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agent::agent::{Agent, AgentParts, ShutdownMode};
use agent::node::{Description, EVERY_ADDRESS, NodeOptions, describe};
use agent::server::{Server as AgentServer, Serving};
use anyhow::{Context as _, Result};
use https::{Clock, Listener, ServerTls};
use objects::KubeletConfig;
use placement::Machine;
use serde_json::Value;
use tokio::sync::watch;

use crate::bind_error;
use crate::in_process::InProcess;
use crate::instance_lock::PodsOnExit;
use crate::server::{self, Server};
use crate::tasks::{TaskError, TaskSet};

/// Time for the agent to stop after its API server has failed.
const AGENT_STOP: Duration = Duration::from_secs(10);

/// The settings of a node with its own control plane.
#[derive(Debug, Clone)]
pub struct Settings {
    pub server: server::Settings,
    pub agent: AgentSettings,
}

/// The settings of an agent, with its own control plane or in an existing cluster.
#[derive(Debug, Clone)]
pub struct AgentSettings {
    /// The machine's host name if `None`.
    pub node_name: Option<String>,
    pub config: KubeletConfig,
    /// The configuration file as JSON.
    pub configuration: Value,
    pub machine: Machine,
    pub runtime: cri::Endpoint,
    /// Directory of the agent's state files and pod directories.
    pub root: PathBuf,
    pub logs: PathBuf,
    pub log_links: Option<PathBuf>,
    /// Address that the agent listens on; the configuration's or a default if `None`.
    pub address: Option<IpAddr>,
    /// Port that the agent listens on, 0 for a free one; the configuration's if `None`.
    pub port: Option<u16>,
}

/// The files with which an agent in an existing cluster serves HTTPS.
#[derive(Debug, Clone, Default)]
pub struct ServingFiles {
    /// `tlsCertFile` and `tlsPrivateKeyFile`.
    pub certificate: (Option<PathBuf>, Option<PathBuf>),
    /// Certificate authority of the agent's clients.
    pub client_authority: Option<PathBuf>,
}

/// A node that is ready to run.
#[derive(Debug)]
pub struct Node {
    server: Server,
    agent: Agent,
    name: String,
    agent_address: SocketAddr,
}

impl Node {
    /// Starts the control plane, and prepares the agent.
    pub async fn start(settings: &Settings) -> Result<Node> {
        let agent = settings.agent.clone();
        let node = agent.describe()?;
        let mut control = settings.server.clone();
        control.advertise = control.advertise.or(node.addresses.first().copied());
        let server = Server::start(&control).await?;
        // Only the API server connects to the agent, at the address that the node reports.
        let default = node.addresses.first().copied().unwrap_or(EVERY_ADDRESS);
        let address = agent.listen_address(&node, default);
        let mut names = serving_names(&node, address);
        names.extend(["localhost".to_owned(), "127.0.0.1".to_owned()]);
        let tls = server.certificates().serve_agent(names)?;
        let listener = bind_agent(address, tls).await?;
        let agent_address = listener.address()?;
        let name = node.name.clone();
        let transport = InProcess::new(server.api().clone(), &format!("system:node:{name}"));
        let api = client::Client::new(Arc::new(transport), "kubelet");
        // Service addresses are not routed, and the API server's address is known.
        let agent = agent.prepare(node, listener, api, Some(server.advertised()))?;
        Ok(Node { server, agent, name, agent_address })
    }

    #[must_use]
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Returns the parts of the agent.
    #[must_use]
    pub fn agent_parts(&self) -> AgentParts {
        self.agent.parts()
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the address that the agent listens on.
    #[must_use]
    pub fn agent_address(&self) -> SocketAddr {
        self.agent_address
    }

    /// Runs until `stop` is set. The agent stops first, because it writes final statuses to the API. If
    /// either part ends earlier, the other one is stopped too, and pods keep running.
    pub async fn run(self, mut stop: watch::Receiver<Option<PodsOnExit>>) -> Result<(), TaskError> {
        let (leave, leaving) = watch::channel(None);
        let mut agent = tokio::spawn(self.agent.run(leaving));
        let (end, ends) = watch::channel(false);
        let mut server = tokio::spawn(self.server.serve(ends));
        let stopped = async {
            let pods = stop.wait_for(Option::is_some).await;
            pods.ok().and_then(|pods| *pods).unwrap_or(PodsOnExit::Keep)
        };
        let failed = tokio::select! {
            pods = stopped => {
                leave.send_replace(Some(pods.into()));
                match (&mut agent).await {
                    Ok(Ok(())) => None,
                    ended => Some(TaskError::of_agent(ended)),
                }
            }
            ended = &mut agent => Some(TaskError::of_agent(ended)),
            ended = &mut server => {
                let error = match ended {
                    Ok(Err(error)) => error,
                    ended => TaskError::unexpected("control plane", ended.map(drop)),
                };
                leave.send_replace(Some(PodsOnExit::Keep.into()));
                // Without an API server the agent may not finish.
                let _ = tokio::time::timeout(AGENT_STOP, agent).await;
                return Err(error);
            }
        };
        end.send_replace(true);
        let served = match server.await {
            Ok(served) => served,
            Err(error) => Err(TaskError::unexpected("control plane", Err(error))),
        };
        failed.map_or(served, Err)
    }
}

impl From<PodsOnExit> for ShutdownMode {
    fn from(pods: PodsOnExit) -> ShutdownMode {
        match pods {
            PodsOnExit::Keep => ShutdownMode::LeavePodsRunning,
            PodsOnExit::Stop => ShutdownMode::StopPods,
        }
    }
}

impl AgentSettings {
    /// Describes the node, as it is registered.
    pub(crate) fn describe(&self) -> Result<Description> {
        let options = NodeOptions { name: self.node_name.clone(), ..NodeOptions::default() };
        describe(self.config.clone(), options).map_err(|errors| {
            let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
            anyhow::anyhow!("{}", errors.join("; "))
        })
    }

    /// Returns the address to listen on: that of the settings, of the configuration, or `default`.
    fn listen_address(&self, node: &Description, default: IpAddr) -> SocketAddr {
        let address = self.address.or(node.settings.address).unwrap_or(default);
        SocketAddr::new(address, self.port.unwrap_or(node.settings.port))
    }

    fn prepare(
        self,
        mut node: Description,
        listener: Listener,
        api: client::Client,
        api_address: Option<SocketAddr>,
    ) -> Result<Agent> {
        node.settings.port = listener.address()?.port();
        Agent::prepare(agent::agent::Settings {
            config: self.config,
            configuration: self.configuration,
            machine: self.machine,
            root: self.root,
            logs: self.logs,
            log_links: self.log_links,
            runtime: self.runtime,
            api,
            api_address,
            node,
            listener: Some(listener),
        })
        .context("failed to start the agent")
    }

    /// Prepares the agent of an existing cluster.
    pub async fn join(self, api: client::Client, files: ServingFiles) -> Result<JoinedAgent> {
        let node = self.describe()?;
        let address = self.listen_address(&node, EVERY_ADDRESS);
        let serving = Serving {
            files: files.certificate,
            directory: self.root.join("pki"),
            names: serving_names(&node, address),
            client_authority: files.client_authority,
            clock: Clock::default(),
        };
        let tls = serving.load()?;
        let listener = bind_agent(address, tls.clone()).await?;
        let address = listener.address()?;
        let agent = self.prepare(node, listener, api, None)?;
        Ok(JoinedAgent { agent, address, serving, tls })
    }
}

/// Returns the names for the agent's certificate: those of the node, and a configured address.
fn serving_names(node: &Description, address: SocketAddr) -> Vec<String> {
    let mut addresses = node.addresses.clone();
    if !address.ip().is_unspecified() && !addresses.contains(&address.ip()) {
        addresses.push(address.ip());
    }
    let addresses = addresses.iter().map(ToString::to_string);
    std::iter::once(node.name.clone()).chain(addresses).collect()
}

/// An agent of an existing cluster that is ready to run.
#[derive(Debug)]
pub struct JoinedAgent {
    agent: Agent,
    address: SocketAddr,
    serving: Serving,
    tls: ServerTls,
}

impl JoinedAgent {
    /// Returns the address that the agent listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Runs the agent until `stop` is set, and keeps its serving certificate current.
    pub async fn run(self, stop: watch::Receiver<Option<ShutdownMode>>) -> Result<(), TaskError> {
        let mut tasks = TaskSet::default();
        tasks.spawn("certificate renewal", self.serving.keep_current(self.tls));
        let mut agent = tokio::spawn(self.agent.run(stop.clone()));
        let result = tokio::select! {
            ended = &mut agent => match ended {
                Ok(Ok(())) if stop.borrow().is_some() || stop.has_changed().is_err() => Ok(()),
                ended => Err(TaskError::of_agent(ended)),
            },
            error = tasks.failure() => {
                agent.abort();
                Err(error)
            }
        };
        tasks.stop().await;
        result
    }
}

async fn bind_agent(address: SocketAddr, tls: ServerTls) -> Result<Listener> {
    let setting = "`port` of the KubeletConfiguration, or with --agent-port of berth up";
    AgentServer::bind_with(address, tls)
        .await
        .map_err(|error| bind_error::explain(error, address, setting))
}
