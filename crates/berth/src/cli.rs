//! The command line: one definition from which parsing, help and completions are derived.
//!
//! Main type: [`Cli`]. Commands live in modules of their own; this one only dispatches and turns
//! a result into an exit code.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod topology;

/// Gives every container its berth: its CPUs, its memory nodes, its share of cache and disk.
#[derive(Debug, Parser)]
#[command(name = "berth", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show what a machine is made of: this one or any other
    Topology(topology::TopologyArgs),
    /// Compare decisions with those recorded from the upstream kubelet
    Conformance(ConformanceArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  berth conformance testdata/golden\n  \
    berth conformance testdata/golden --show cpu_assign\n\n\
    Exit code 0 only if nothing failed. Lines marked with a quirk record upstream defects; Berth\n\
    answers differently there on purpose, and they are counted apart.")]
struct ConformanceArgs {
    /// Directory with recorded vectors (*.jsonl or *.jsonl.gz)
    dir: PathBuf,
    /// Print each difference; with a word, only those whose file or id contains it
    #[arg(long, num_args = 0..=1, default_missing_value = "", value_name = "WORD")]
    show: Option<String>,
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(1)
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Topology(args) => topology::run(&args),
        Command::Conformance(args) => {
            let report = crate::conformance::run_dir(&args.dir)?;
            print!("{}", report.render(args.show.as_deref()));
            Ok(if report.failed() == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
        }
    }
}
