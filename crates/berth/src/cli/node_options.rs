//! The flags that `berth up` and `berth agent` share: [`NodeOptions`].

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use cri::Endpoint;
use objects::{FeatureGates, KubeletConfig};
use placement::Machine;
use serde_json::{Value, json};

use super::{BadInput, input};
use crate::up::AgentSettings;

#[derive(Debug, Args)]
pub(super) struct NodeOptions {
    /// The node's configuration, a KubeletConfiguration
    #[arg(long, value_name = "FILE")]
    config: Option<String>,
    /// The container runtime, such as unix:///run/containerd/containerd.sock
    #[arg(long, value_name = "ENDPOINT")]
    container_runtime_endpoint: Option<String>,
    /// Feature gates to enable or disable: A=true,B=false
    #[arg(long, value_name = "GATES")]
    pub(super) feature_gates: Option<String>,
    /// The node's name [default: the machine's host name]
    #[arg(long, value_name = "NAME")]
    hostname_override: Option<String>,
}

/// The node of this machine as the flags describe it.
#[derive(Debug)]
pub(super) struct NodeSetup {
    node_name: Option<String>,
    pub(super) machine: Machine,
    pub(super) config: KubeletConfig,
    /// The configuration file as JSON.
    configuration: Value,
    runtime: Endpoint,
    /// The runtime's endpoint, or advice if there is no runtime.
    pub(super) runtime_text: String,
}

impl NodeOptions {
    /// Reads the machine and the configuration, and checks everything before anything is started.
    pub(super) fn read(self) -> anyhow::Result<NodeSetup> {
        check_name(self.hostname_override.as_deref())?;
        let machine = input::machine(None)?;
        let gates = self.feature_gates.as_deref();
        let (config, configuration) = configuration(self.config.as_deref(), gates, &machine)?;
        let endpoint = self.container_runtime_endpoint.as_deref();
        let (runtime, runtime_text) = runtime(endpoint, &config)?;
        let node_name = self.hostname_override;
        Ok(NodeSetup { node_name, machine, config, configuration, runtime, runtime_text })
    }
}

impl NodeSetup {
    /// Returns the settings of the agent, with the directories of a kubelet.
    pub(super) fn into_agent_settings(self) -> AgentSettings {
        AgentSettings {
            node_name: self.node_name,
            config: self.config,
            configuration: self.configuration,
            machine: self.machine,
            runtime: self.runtime,
            root: PathBuf::from(KUBELET_ROOT),
            logs: PathBuf::from("/var/log/pods"),
            log_links: Some(PathBuf::from("/var/log/containers")),
            address: None,
            port: None,
        }
    }
}

/// The kubelet's default directory.
pub(super) const KUBELET_ROOT: &str = "/var/lib/kubelet";

/// Reads and checks the configuration of a node, and returns it with its source as JSON.
fn configuration(
    file: Option<&str>,
    gates: Option<&str>,
    machine: &Machine,
) -> anyhow::Result<(KubeletConfig, Value)> {
    let Some(file) = file else {
        let mut config = KubeletConfig::default();
        if let Some(text) = gates {
            config.feature_gates = with_gates(config.feature_gates, text)?;
        }
        return Ok((config, json!({})));
    };
    let mut given = input::configuration(file)?;
    if let Some(text) = gates {
        given.config.feature_gates = with_gates(given.config.feature_gates, text)?;
    }
    given.check_here(machine)?;
    let (documents, _) = objects::yaml::parse(&given.text);
    let written = documents.first().map(|document| document.to_json());
    Ok((given.config, written.unwrap_or_else(|| json!({}))))
}

/// Rejects an invalid node name before anything is started.
fn check_name(given: Option<&str>) -> Result<(), BadInput> {
    let hostname = host::os::system::identity().hostname;
    let checked = agent::node::node_name(given, &hostname);
    checked.map(drop).map_err(|error| BadInput::new(error.to_string()))
}

pub(super) fn with_gates(gates: FeatureGates, text: &str) -> Result<FeatureGates, BadInput> {
    gates.with(text).map_err(|errors| {
        BadInput(errors.iter().map(|error| format!("--feature-gates: {error}")).collect())
    })
}

/// Returns the runtime's endpoint with its description for the banner.
fn runtime(given: Option<&str>, config: &KubeletConfig) -> anyhow::Result<(Endpoint, String)> {
    let named = given.or(config.container_runtime_endpoint.as_deref());
    if let Some(text) = named {
        let endpoint = Endpoint::parse(text)
            .map_err(|error| BadInput::new(format!("--container-runtime-endpoint: {error}")))?;
        return Ok((endpoint.clone(), endpoint.to_string()));
    }
    let usual = Endpoint::usual();
    if let Some(found) = usual.iter().find(|endpoint| endpoint.is_there()) {
        return Ok((found.clone(), found.to_string()));
    }
    let first =
        usual.into_iter().next().context("no default runtime endpoint on this operating system")?;
    let advice = format!(
        "not found; pods stay Pending until containerd listens at {first} (on Debian: apt-get install \
         containerd); --container-runtime-endpoint selects another runtime"
    );
    Ok((first, advice))
}
