//! A complete node in one process: the control plane and the agent of this machine.
//!
//! [`Node::start`] starts both, [`Node::run`] runs them until they are stopped. Nothing is decided
//! here.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use agent::agent::{Agent, Leave};
use agent::hands::Hands;
use agent::node::{EVERY_ADDRESS, Given, describe};
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

/// The settings of a node with its own control plane.
#[derive(Debug, Clone)]
pub struct Settings {
    pub server: server::Settings,
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
    /// Address that the agent listens on; if `None`, the configuration's or the node's address.
    pub agent_address: Option<IpAddr>,
    /// Port that the agent listens on, 0 for a free one; the configuration's if `None`.
    pub agent_port: Option<u16>,
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
        let given = Given { name: settings.node_name.clone(), ..Given::default() };
        let mut node = describe(settings.config.clone(), given)
            .map_err(|errors| anyhow::anyhow!("{}", joined(&errors)))?;
        let mut control = settings.server.clone();
        control.advertise = control.advertise.or(node.addresses.first().copied());
        let server = Server::start(&control).await?;
        let mut names = vec![node.name.clone(), "localhost".to_owned(), "127.0.0.1".to_owned()];
        names.extend(node.addresses.iter().map(ToString::to_string));
        let tls = server.certificates().serve_agent(names)?;
        // Only the API server connects to the agent, at the address that the node reports.
        let address = settings.agent_address.or(node.settings.address);
        let address = address.or(node.addresses.first().copied()).unwrap_or(EVERY_ADDRESS);
        let port = settings.agent_port.unwrap_or(node.settings.port);
        let listener = bind_agent(SocketAddr::new(address, port), tls).await?;
        let agent_address = listener.address()?;
        node.settings.port = agent_address.port();
        let name = node.name.clone();
        let user = format!("system:node:{name}");
        let transport = InProcess::new(server.api().clone(), &user);
        let agent = Agent::prepare(agent::agent::Settings {
            config: settings.config.clone(),
            configuration: settings.configuration.clone(),
            machine: settings.machine.clone(),
            root: settings.root.clone(),
            logs: settings.logs.clone(),
            log_links: settings.log_links.clone(),
            runtime: settings.runtime.clone(),
            api: client::Client::new(Arc::new(transport), "kubelet"),
            // Service addresses are not routed, and the API server's address is known.
            api_address: Some(server.advertised()),
            node,
            listener: Some(listener),
        })
        .context("failed to start the agent")?;
        Ok(Node { server, agent, name, agent_address })
    }

    #[must_use]
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Returns the agent's context.
    #[must_use]
    pub fn hands(&self) -> Arc<Hands> {
        self.agent.hands()
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

    /// Runs until `stop` is set. The agent stops first, because it writes final statuses to the
    /// API.
    pub async fn run(self, mut stop: watch::Receiver<Option<PodsOnExit>>) {
        let (leave, leaving) = watch::channel(None);
        let agent = tokio::spawn(self.agent.run(leaving));
        let (end, ends) = watch::channel(false);
        let ending = async {
            let pods = stop.wait_for(Option::is_some).await.ok().and_then(|pods| *pods);
            leave.send_replace(Some(pods.unwrap_or(PodsOnExit::Keep).into()));
            // A failed agent has no final status to write.
            let _ = agent.await;
            end.send_replace(true);
        };
        tokio::join!(self.server.serve(ends), ending);
    }
}

impl From<PodsOnExit> for Leave {
    fn from(pods: PodsOnExit) -> Leave {
        match pods {
            PodsOnExit::Keep => Leave::PodsRunOn,
            PodsOnExit::Stop => Leave::StopPods,
        }
    }
}

/// The settings of an agent that joins an existing cluster.
#[derive(Debug)]
pub struct AgentSettings {
    pub node_name: Option<String>,
    pub config: KubeletConfig,
    /// The configuration file as JSON.
    pub configuration: Value,
    pub machine: Machine,
    pub runtime: cri::Endpoint,
    pub root: PathBuf,
    pub logs: PathBuf,
    pub log_links: Option<PathBuf>,
    /// Address and port that the agent listens on; the configuration's if `None`.
    pub address: Option<SocketAddr>,
    /// `tlsCertFile` and `tlsPrivateKeyFile`.
    pub certificate: (Option<PathBuf>, Option<PathBuf>),
    /// Certificate authority of the agent's clients.
    pub client_authority: Option<PathBuf>,
}

impl AgentSettings {
    /// Prepares the agent, and returns it with its address.
    pub async fn prepare(self, api: client::Client) -> Result<(Agent, SocketAddr)> {
        let given = Given { name: self.node_name, ..Given::default() };
        let mut node = describe(self.config.clone(), given)
            .map_err(|errors| anyhow::anyhow!("{}", joined(&errors)))?;
        let mut names = vec![node.name.clone()];
        names.extend(node.addresses.iter().map(ToString::to_string));
        let serving = Serving {
            files: self.certificate,
            directory: self.root.join("pki"),
            names,
            client_authority: self.client_authority,
            clock: Clock::default(),
        };
        let configured =
            SocketAddr::new(node.settings.address.unwrap_or(EVERY_ADDRESS), node.settings.port);
        let tls = serving.load()?;
        let listener = bind_agent(self.address.unwrap_or(configured), tls.clone()).await?;
        // Runs for the lifetime of the process.
        tokio::spawn(serving.keep_current(tls));
        let address = listener.address()?;
        node.settings.port = address.port();
        let agent = Agent::prepare(agent::agent::Settings {
            config: self.config,
            configuration: self.configuration,
            machine: self.machine,
            root: self.root,
            logs: self.logs,
            log_links: self.log_links,
            runtime: self.runtime,
            api,
            api_address: None,
            node,
            listener: Some(listener),
        })?;
        Ok((agent, address))
    }
}

async fn bind_agent(address: SocketAddr, tls: ServerTls) -> Result<Listener> {
    let setting = "`port` of the KubeletConfiguration, or with --agent-port of berth up";
    AgentServer::bind_with(address, tls)
        .await
        .map_err(|error| bind_error::explain(error, address, setting))
}

fn joined<T: ToString>(errors: &[T]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
