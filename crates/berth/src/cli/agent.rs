//! `berth agent`: the node agent of this machine in an existing cluster.
//!
//! [`crate::preflight`] checks the API server and the credentials. The agent is announced and reported as
//! ready to the service manager only after that.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use client::Kubeconfig;
use objects::KubeletConfig;
use serde_json::Value;
use tokio::sync::watch;

use super::node::{early_end, listens_on, notify_service_manager, remote, run, shutdown_requested};
use super::node_options::{KUBELET_ROOT, NodeOptions};
use super::target::absolute;
use super::{BadInput, begin_logging};
use crate::instance_lock::{InstanceLock, PodsOnExit};
use crate::logging::LogOptions;
use crate::preflight::Preflight;
use crate::server;
use crate::up::{AgentSettings, ServingFiles};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    berth agent --kubeconfig /etc/kubernetes/kubelet.conf --config /var/lib/kubelet/config.yaml\n\n\
    It replaces a kubelet, with the same configuration, state files, directories and port. Stop the\n\
    kubelet first. If the API server is not reachable, static pods run and the agent retries. It exits\n\
    if the server's certificate is not trusted or the credentials are rejected.")]
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
    let kubeconfig = Kubeconfig::read(&args.kubeconfig)
        .map_err(|error| BadInput(error.to_string().lines().map(str::to_owned).collect()))?;
    let server = format!("https://{}{}", kubeconfig.address.authority(), kubeconfig.address.base);
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
        let node = settings.describe()?;
        let preflight = Preflight {
            api: api.clone(),
            server,
            kubeconfig: args.kubeconfig,
            node: node.name,
            registers: node.settings.register,
        };
        let shutdown = shutdown_requested(&lock);
        tokio::pin!(shutdown);
        tokio::select! {
            tried = preflight.try_once() => tried?,
            _ = &mut shutdown => return Ok(ExitCode::SUCCESS),
        }
        let agent = settings.join(api, files).await?;
        let text = format!(
            "Berth's agent runs; the runtime: {runtime_text}\n  agent    {}; `address` and `port` of \
             the configuration change it\n",
            listens_on(agent.address()),
        );
        let (stop, stopping) = watch::channel(None);
        let mut running = tokio::spawn(agent.run(stopping));
        let passed = preflight.pass();
        tokio::pin!(passed);
        let mut is_ready = false;
        let outcome = loop {
            tokio::select! {
                result = &mut passed, if !is_ready => match result {
                    Ok(()) => {
                        is_ready = true;
                        // Standard output may be closed.
                        let _ = std::io::stdout().write_all(text.as_bytes());
                        notify_service_manager("READY=1");
                    }
                    Err(error) => break Err(error),
                },
                pods = &mut shutdown => break Ok(pods),
                ended = &mut running => return Err(early_end(ended)),
            }
        };
        notify_service_manager("STOPPING=1");
        stop.send_replace(Some(outcome.as_ref().copied().unwrap_or(PodsOnExit::Keep).into()));
        running.await.context("the agent failed")??;
        outcome?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Returns `authentication.x509.clientCAFile`.
fn client_authority(config: &KubeletConfig) -> Option<PathBuf> {
    let file = config.untyped.get("authentication")?["x509"]["clientCAFile"].as_str()?;
    Some(PathBuf::from(file))
}
