//! A whole node in one process: the control plane and the agent of this machine on it.
//!
//! [`Node::start`] brings both up, [`Node::run`] runs them until told to stop. Nothing is decided here.

use std::path::PathBuf;
use std::sync::Arc;

use agent::agent::{Agent, describe};
use anyhow::Result;
use objects::KubeletConfig;
use placement::Machine;
use tokio::sync::watch;

use crate::in_process::InProcess;
use crate::server::{self, Server};

/// What a node is told.
#[derive(Debug, Clone)]
pub struct Settings {
    pub server: server::Settings,
    pub node_name: String,
    pub config: KubeletConfig,
    pub machine: Machine,
    pub runtime: cri::Endpoint,
    /// Where the agent keeps state files and the directories of pods.
    pub root: PathBuf,
    pub logs: PathBuf,
    pub log_links: Option<PathBuf>,
}

/// A node that is about to run.
#[derive(Debug)]
pub struct Node {
    server: Server,
    agent: Agent,
}

impl Node {
    /// Starts the control plane, and gets the agent ready.
    pub async fn start(settings: &Settings) -> Result<Node> {
        let server = Server::start(&settings.server).await?;
        let name = format!("system:node:{}", settings.node_name);
        let transport = InProcess::new(server.api().clone(), &name);
        let api = client::Client::new(Arc::new(transport), "kubelet");
        let node = describe(&settings.config, settings.machine.os, &settings.node_name, 10250)
            .map_err(|errors| anyhow::anyhow!("{}", joined(&errors)))?;
        let agent = Agent::prepare(agent::agent::Settings {
            config: settings.config.clone(),
            machine: settings.machine.clone(),
            root: settings.root.clone(),
            logs: settings.logs.clone(),
            log_links: settings.log_links.clone(),
            runtime: settings.runtime.clone(),
            api,
            node,
        })?;
        Ok(Node { server, agent })
    }

    #[must_use]
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Runs until told to stop. Pods run on.
    pub async fn run(self, stop: watch::Receiver<bool>) {
        let agent = tokio::spawn(self.agent.run(stop.clone()));
        self.server.serve(stop).await;
        // It was told to stop as well.
        let _ = agent.await;
    }
}

fn joined<T: ToString>(errors: &[T]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
