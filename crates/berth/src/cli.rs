//! The command line: one definition from which parsing, help and completions are derived.
//!
//! Main type: [`Cli`]. Commands live in modules of their own; this one only dispatches and turns
//! a result into an exit code.

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use thiserror::Error;

mod admission;
mod backup;
mod bench;
mod config;
mod explain;
mod input;
mod node;
mod plan;
mod server;
mod state;
mod store;
mod target;
mod topology;
mod version;

use crate::terminal::{Colours, Terminal};

/// Gives every container its berth: its CPUs, its memory nodes, its share of cache and disk.
#[derive(Debug, Parser)]
#[command(
    name = "berth",
    version,
    max_term_width = 100,
    after_help = "Examples:\n  \
        berth topology                               what is this machine made of?\n  \
        berth plan -f pods.yaml                      where would they land on this machine?\n  \
        berth plan -f pods.yaml --machine 2x4x16x2   ... and on one with 256 CPUs?\n  \
        berth config generate > kubelet.yaml         settings that add up for this machine\n  \
        berth up --data-dir ./here                   a node on this machine, with its own API\n  \
        BERTH_DATA_DIR=./here berth status           ... and how it is\n\n\
        status, explain, down and backup find a node by --data-dir, BERTH_DATA_DIR, KUBECONFIG, or in\n\
        /var/lib/berth, in this order.\n\n\
        Exit codes: 0 done, 1 failed, 2 wrong usage or input, 3 some pods were refused."
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show what a machine is made of: this one or any other
    Topology(topology::TopologyArgs),
    /// Show where pods would land, on this machine or on any other
    Plan(Box<plan::PlanArgs>),
    /// Check, show or write a kubelet's configuration
    Config(config::ConfigArgs),
    /// Show, check or migrate the state files of a kubelet
    State(state::StateArgs),
    /// Run a whole node in one process: API, scheduler, and the agent of this machine
    Up(node::UpArgs),
    /// End a node that `berth up` runs
    Down(node::DownArgs),
    /// Say how a node is that `berth up` runs
    Status(node::StatusArgs),
    /// Say why a pod is where it is, or what sits where on a node
    Explain(explain::ExplainArgs),
    /// Run the agent of this machine alone, for an API server elsewhere
    Agent(node::AgentArgs),
    /// Run the control plane: an API server kubectl is at home with
    Server(server::ServerArgs),
    /// Put all that a control plane knows somewhere safe, while it runs
    Backup(backup::BackupArgs),
    /// Make a control plane from a backup
    Restore(backup::RestoreArgs),
    /// Check or repair what a control plane has stored
    Store(store::StoreArgs),
    /// Measure a control plane under load
    Bench(bench::BenchArgs),
    /// Print the version of Berth, and of Kubernetes whose behaviour it has
    Version(version::VersionArgs),
    /// Print completions for a shell
    #[command(
        after_help = "Examples:\n  berth completions bash > /etc/bash_completion.d/berth\n  \
        berth completions powershell >> $PROFILE"
    )]
    Completions {
        /// The shell to complete in
        shell: clap_complete::Shell,
    },
}

/// What the user gave cannot be used; the text says why, one line per problem.
#[derive(Debug, Error)]
#[error("{}", .0.join("\n"))]
struct BadInput(Vec<String>);

impl BadInput {
    /// One problem.
    fn new(problem: impl Into<String>) -> BadInput {
        BadInput(vec![problem.into()])
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    match run(Cli::parse_from(explain::split_resource(std::env::args_os().collect()))) {
        Ok(code) => code,
        Err(error) => match error.downcast_ref::<BadInput>() {
            Some(BadInput(problems)) => {
                for problem in problems {
                    anstream::eprintln!("\x1b[1;31merror:\x1b[0m {problem}");
                }
                ExitCode::from(2)
            }
            None => {
                anstream::eprintln!("\x1b[1;31merror:\x1b[0m {error:#}");
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
        Command::Agent(args) => node::agent(args),
        Command::State(args) => state::run(args),
        Command::Version(args) => version::run(&args),
    }
}
