//! The command line: one definition from which parsing, help and completions are derived.
//!
//! Main type: [`Cli`]. Commands live in modules of their own; this one only dispatches and turns
//! a result into an exit code.

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use thiserror::Error;

mod admission;
mod agent;
mod backup;
mod bench;
mod class_layer;
mod config;
mod explain;
mod input;
mod node;
mod node_options;
mod plan;
mod server;
mod state;
mod store;
mod target;
mod topology;
mod version;

use crate::logging::{self, LogOptions, Notice, print_notice};
use crate::terminal::{Colours, Terminal};

/// Gives every container its berth: its CPUs, its memory nodes, its share of cache and disk.
#[derive(Debug, Parser)]
#[command(
    name = "berth",
    version,
    max_term_width = 100,
    after_help = "Examples:\n  \
        berth topology                               show this machine\n  \
        berth plan -f pods.yaml                      place pods on this machine (dry run)\n  \
        berth plan -f pods.yaml --machine 2x4x16x2   ... or on one with 256 CPUs\n  \
        berth config generate > kubelet.yaml         a configuration for this machine\n  \
        berth up --data-dir ./here                   run a node with its own API server\n  \
        BERTH_DATA_DIR=./here berth status           ... and show its status\n\n\
        status, explain, down and backup find the node by --data-dir, BERTH_DATA_DIR, KUBECONFIG, or in\n\
        /var/lib/berth, in this order.\n\n\
        Exit codes: 0 success, 1 failure, 2 invalid usage or input, 3 some pods were refused."
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the topology of this machine or of another one
    Topology(topology::TopologyArgs),
    /// Show where pods would be placed, on this machine or on others
    Plan(Box<plan::PlanArgs>),
    /// Check, show or generate a kubelet configuration
    Config(config::ConfigArgs),
    /// Show, check or migrate the state files of a kubelet
    State(state::StateArgs),
    /// Run a complete node in one process: API server, scheduler, controllers and agent
    Up(node::UpArgs),
    /// Stop a node started by `berth up`
    Down(node::DownArgs),
    /// Show the status of a node started by `berth up`
    Status(node::StatusArgs),
    /// Explain the placement of a pod, or show the allocations of a node
    Explain(explain::ExplainArgs),
    /// Run the node agent alone, for an existing API server
    Agent(agent::AgentArgs),
    /// Run the QoS-class layer between a kubelet or agent and its container runtime
    ClassLayer(class_layer::ClassLayerArgs),
    /// Run the control plane (API server, scheduler, controllers)
    Server(server::ServerArgs),
    /// Back up a control plane (online)
    Backup(backup::BackupArgs),
    /// Restore a control plane from a backup
    Restore(backup::RestoreArgs),
    /// Check or repair the store of a control plane
    Store(store::StoreArgs),
    /// Benchmark a control plane
    Bench(bench::BenchArgs),
    /// Print the versions of Berth and of the Kubernetes release that it implements
    Version(version::VersionArgs),
    /// Print shell completions
    #[command(
        after_help = "Examples:\n  berth completions bash > /etc/bash_completion.d/berth\n  \
        berth completions powershell >> $PROFILE"
    )]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// Invalid input from the user, one line per problem.
#[derive(Debug, Error)]
#[error("{}", .0.join("\n"))]
struct BadInput(Vec<String>);

impl BadInput {
    /// Wraps a single problem.
    fn new(problem: impl Into<String>) -> BadInput {
        BadInput(vec![problem.into()])
    }
}

/// Starts logging; an invalid `RUST_LOG` is invalid input.
fn begin_logging(options: &LogOptions) -> Result<(), BadInput> {
    logging::begin(options).map_err(|error| BadInput::new(error.to_string()))
}

/// Runs the command line of this process and returns its exit code.
pub fn main() -> ExitCode {
    match run(Cli::parse_from(explain::split_resource(std::env::args_os().collect()))) {
        Ok(code) => code,
        Err(error) => match error.downcast_ref::<BadInput>() {
            Some(BadInput(problems)) => {
                for problem in problems {
                    print_notice(Notice::Error, problem);
                }
                ExitCode::from(2)
            }
            None => {
                print_notice(Notice::Error, &format!("{error:#}"));
                ExitCode::from(1)
            }
        },
    }
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Topology(args) => topology::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Config(args) => config::run(args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "berth", &mut script);
            Terminal::of_standard_output(Colours::Never)
                .print(&String::from_utf8_lossy(&script))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Backup(args) => backup::back_up(&args),
        Command::Restore(args) => backup::restore(&args),
        Command::Store(args) => store::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Server(args) => server::run(args),
        Command::Up(args) => node::up(args),
        Command::Down(args) => node::down(&args),
        Command::Status(args) => node::status(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Agent(args) => agent::run_agent(args),
        Command::ClassLayer(args) => class_layer::run_layer(args),
        Command::State(args) => state::run(args),
        Command::Version(args) => version::run(&args),
    }
}
