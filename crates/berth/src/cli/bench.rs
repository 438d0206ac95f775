//! `berth bench`: a control plane under options, measured from outside.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::bench::{self, BenchOptions};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    berth bench                                        a server of its own, in a temporary place\n  \
    berth bench --pods 50000 --clients 32\n  \
    berth bench --kubeconfig DIR/kubeconfig            one that runs already\n  \
    berth bench --nodes 5000 --pods 50000              the scheduler, on a server of its own\n\n\
    Everything goes over TLS. The pods are made in namespaces of their own, which stay. A server of\n\
    its own runs no controllers while the API is measured; with --nodes the pods are made first and\n\
    then scheduled by a server that runs the scheduler alone.")]
pub(super) struct BenchArgs {
    /// Use the server of this kubeconfig instead of starting one
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Measure the scheduler, with this many nodes that have QoS classes of limited capacity
    #[arg(long, value_name = "N", conflicts_with_all = ["kubeconfig", "watchers", "seconds"])]
    nodes: Option<usize>,
    /// How many pods to make
    #[arg(long, value_name = "N", default_value_t = 14_500)]
    pods: usize,
    /// How many clients at a time
    #[arg(long, value_name = "N", default_value_t = 32)]
    clients: usize,
    /// How many watches to keep open in the last part
    #[arg(long, value_name = "N", default_value_t = 200)]
    watchers: usize,
    /// How long to read single pods, in seconds
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
