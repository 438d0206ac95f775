//! `berth agent`: the node agent of this machine in an existing cluster.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use objects::KubeletConfig;
use serde_json::Value;
use tokio::sync::watch;

use super::node::{early_end, listens_on, notify_service_manager, remote, run, shutdown_requested};
use super::node_options::{KUBELET_ROOT, NodeOptions};
use super::target::absolute;
use super::begin_logging;
use crate::instance_lock::InstanceLock;
use crate::logging::LogOptions;
use crate::server;
use crate::up::{AgentSettings, ServingFiles};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    berth agent --kubeconfig /etc/kubernetes/kubelet.conf --config /var/lib/kubelet/config.yaml\n\n\
    It replaces a kubelet, with the same configuration, state files, directories and port. Stop the\n\
    kubelet first.")]
pub(super) struct AgentArgs {
    /// Kubeconfig with the API server's address and the node's credentials
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    #[command(flatten)]
    node: NodeOptions,
    /// Directory of state files and pod directories
    #[arg(long, value_name = "DIR", default_value = KUBELET_ROOT, value_parser = absolute())]
    root_dir: PathBuf,
    #[command(flatten)]
    log: LogOptions,
}

pub(super) fn run_agent(args: AgentArgs) -> anyhow::Result<ExitCode> {
    begin_logging(&args.log)?;
    let setup = args.node.read()?;
    let runtime_text = setup.runtime_text.clone();
    let Some(lock) = InstanceLock::acquire(&args.root_dir)
        .with_context(|| format!("cannot use {}", args.root_dir.display()))?
    else {
        anyhow::bail!("an agent already runs on {}", args.root_dir.display());
    };
    let path =
        |name: &str| setup.config.untyped.get(name).and_then(Value::as_str).map(PathBuf::from);
    let files = ServingFiles {
        certificate: (path("tlsCertFile"), path("tlsPrivateKeyFile")),
        client_authority: client_authority(&setup.config),
    };
    let logs = path("podLogsDir");
    let defaults = setup.into_agent_settings();
    let settings = AgentSettings {
        root: args.root_dir,
        logs: logs.unwrap_or_else(|| defaults.logs.clone()),
        ..defaults
    };
    server::maintenance::raise_limits();
    run(async {
        let api = remote(&args.kubeconfig, "kubelet")
            .with_context(|| format!("cannot use {}", args.kubeconfig.display()))?;
        let agent = settings.join(api, files).await?;
        let text = format!(
            "Berth's agent runs; the runtime: {runtime_text}\n  agent    {}; `address` and `port` of \
             the configuration change it\n",
            listens_on(agent.address()),
        );
        let (stop, stopping) = watch::channel(None);
        let mut running = tokio::spawn(agent.run(stopping));
        // Standard output may be closed.
        let _ = std::io::stdout().write_all(text.as_bytes());
        notify_service_manager("READY=1");
        let pods = tokio::select! {
            pods = shutdown_requested(&lock) => pods,
            ended = &mut running => return Err(early_end(ended)),
        };
        notify_service_manager("STOPPING=1");
        stop.send_replace(Some(pods.into()));
        running.await.context("the agent failed")??;
        Ok(ExitCode::SUCCESS)
    })
}

/// Returns `authentication.x509.clientCAFile`.
fn client_authority(config: &KubeletConfig) -> Option<PathBuf> {
    let file = config.untyped.get("authentication")?["x509"]["clientCAFile"].as_str()?;
    Some(PathBuf::from(file))
}
