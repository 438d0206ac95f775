//! `berth bench`: a benchmark of a control plane through its API.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::bench::{self, BenchOptions};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    berth bench                                        start a temporary server\n  \
    berth bench --pods 50000 --clients 32\n  \
    berth bench --kubeconfig DIR/kubeconfig            use a running server\n  \
    berth bench --nodes 5000 --pods 50000              the scheduler, on a temporary server\n\n\
    All requests use TLS. The pods are created in separate namespaces, which are kept. A temporary\n\
    server runs no controllers while the API is measured; with --nodes the pods are created first\n\
    and then scheduled by a server that runs only the scheduler.")]
pub(super) struct BenchArgs {
    /// Use the server of this kubeconfig instead of starting one
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Measure the scheduler with this many nodes that have QoS classes of limited capacity
    #[arg(long, value_name = "N", conflicts_with_all = ["kubeconfig", "watchers", "seconds"])]
    nodes: Option<usize>,
    /// Number of pods to create
    #[arg(long, value_name = "N", default_value_t = 14_500)]
    pods: usize,
    /// Number of concurrent clients
    #[arg(long, value_name = "N", default_value_t = 32)]
    clients: usize,
    /// Number of watches to keep open in the last part
    #[arg(long, value_name = "N", default_value_t = 200)]
    watchers: usize,
    /// Seconds to read single pods
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    seconds: u64,
}

pub(super) fn run(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    let options = BenchOptions {
        kubeconfig: args.kubeconfig.clone(),
        pods: args.pods,
        clients: args.clients.max(1),
        watchers: args.watchers,
        seconds: args.seconds,
    };
    match args.nodes {
        Some(nodes) => bench::run_scheduling(&options, nodes)?,
        None => bench::run(&options)?,
    }
    Ok(ExitCode::SUCCESS)
}
