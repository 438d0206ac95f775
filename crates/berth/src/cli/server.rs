//! `berth server`: the control plane alone.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use controllers::Selection;

use super::node_options::with_gates;
use super::target::DataDir;
use super::{BadInput, admission, begin_logging};
use crate::logging::LogOptions;
use crate::server::{self, Settings};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    berth server --data-dir /var/lib/berth\n  \
    berth server --data-dir ./here --https-listen-port 7443 --feature-gates QOSResources=false\n  \
    kubectl --kubeconfig ./here/kubeconfig get namespaces\n\n\
    The first start creates keys and certificates in DIR/pki, the store in DIR/store, DIR/kubeconfig\n\
    for administrators and DIR/viewer.kubeconfig for read-only users.")]
pub(super) struct ServerArgs {
    #[command(flatten)]
    data_dir: DataDir,
    /// YAML file with the settings below under the same names; flags override it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Feature gates to enable or disable: A=true,B=false
    #[arg(long, value_name = "GATES")]
    feature_gates: Option<String>,
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS")]
    bind_address: Option<IpAddr>,
    /// Port to listen on; 0 for a free one
    #[arg(long, value_name = "PORT")]
    https_listen_port: Option<u16>,
    /// Additional names and addresses of this server for its certificate (comma-separated)
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    tls_san: Vec<String>,
    /// Allow privileged and host-process containers [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    allow_privileged: Option<bool>,
    /// Address range of services
    #[arg(long, value_name = "CIDR")]
    service_cluster_ip_range: Option<String>,
    /// Controllers to run (comma-separated): `*` for all, NAME for one, -NAME to exclude one
    #[arg(long, value_name = "NAMES", value_delimiter = ',', allow_hyphen_values = true)]
    controllers: Option<Vec<String>>,
    #[command(flatten)]
    admission: admission::Args,
    /// Write an audit log (JSON lines) to this file
    #[arg(long, value_name = "FILE")]
    audit_log_path: Option<PathBuf>,
    #[command(flatten)]
    log: LogOptions,
}

pub(super) fn run(args: ServerArgs) -> anyhow::Result<ExitCode> {
    begin_logging(&args.log)?;
    let mut settings = Settings::new(args.data_dir.path());
    if let Some(file) = &args.config {
        settings.read(file).map_err(BadInput)?;
    }
    if let Some(gates) = &args.feature_gates {
        settings.gates = with_gates(settings.gates.clone(), gates)?;
    }
    if let Some(address) = args.bind_address {
        settings.address.set_ip(address);
    }
    if let Some(port) = args.https_listen_port {
        settings.address.set_port(port);
    }
    settings.names.extend(args.tls_san);
    if let Some(allow) = args.allow_privileged {
        settings.allow_privileged = allow;
    }
    if let Some(range) = args.service_cluster_ip_range {
        settings.service_range = range;
    }
    if let Some(names) = &args.controllers {
        let names = names.iter().map(String::as_str).filter(|name| !name.is_empty());
        settings.controllers.enabled = Selection::parse(names)
            .map_err(|error| BadInput(vec![format!("--controllers: {error}")]))?;
    }
    args.admission.choose(&mut settings.plugins)?;
    settings.audit_log = args.audit_log_path.or(settings.audit_log);
    server::run(&settings)?;
    Ok(ExitCode::SUCCESS)
}
