//! `berth conformance`: compares Berth with recordings of upstream. `./berth` builds and runs this program
//! from a checkout; it is not part of the shipped binary.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use conformance::{Options, ReplayError, run_dir, run_files};

/// Compare Berth with recordings of upstream: decisions, exchanges and pod lifecycles
#[derive(Debug, Parser)]
#[command(
    name = "berth conformance",
    version,
    after_help = "Examples:\n  ./berth conformance testdata/golden\n  \
    ./berth conformance testdata/golden --show cpu_assign\n  \
    ./berth conformance testdata/golden-classes\n  \
    ./berth conformance testdata/golden-node \\\n      \
    --container-runtime-endpoint unix:///run/containerd/containerd.sock\n\n\
    Recorded kubectl commands are run with the kubectl on the PATH and those that BERTH_KUBECTL\n\
    lists; without one they count as not served. Recorded pod lifecycles are replayed with Berth's\n\
    agent on the given container runtime, which needs root and takes minutes; without a runtime they\n\
    count as not served.\n\n\
    Exit code 0 only if nothing failed, 2 if the runtime or its image is missing. Lines marked with a\n\
    quirk record upstream defects; Berth deliberately differs there, and they are counted separately."
)]
struct Arguments {
    /// Directory with recordings (*.jsonl or *.jsonl.gz), or one such file
    #[arg(value_name = "DIR")]
    place: PathBuf,
    /// Print each difference; with a word, only those whose file or id contains it
    #[arg(long, num_args = 0..=1, default_missing_value = "", value_name = "WORD")]
    show: Option<String>,
    /// Container runtime for recorded pod lifecycles
    #[arg(long, value_name = "ENDPOINT")]
    container_runtime_endpoint: Option<String>,
    /// Replay only pod lifecycles whose id, family or group contains one of these words
    #[arg(long, value_name = "WORDS", value_delimiter = ',')]
    only: Vec<String>,
    /// Output format: a table, or every verdict as JSON
    #[arg(short, long, default_value = "text", value_enum, value_name = "FORMAT")]
    output: Output,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Output {
    Text,
    Json,
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            anstream::eprintln!("\x1b[1;31merror:\x1b[0m {error:#}");
            let unusable = error.is::<ReplayError>() || error.is::<BadEndpoint>();
            ExitCode::from(if unusable { 2 } else { 1 })
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("--container-runtime-endpoint: {0}")]
struct BadEndpoint(String);

fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let endpoint = arguments.container_runtime_endpoint.as_deref().map(cri::Endpoint::parse);
    let runtime = endpoint.transpose().map_err(|error| BadEndpoint(error.to_string()))?;
    let options = Options { runtime, only: arguments.only };
    let report = match arguments.place.is_file() {
        true => run_files([arguments.place], &options),
        false => run_dir(&arguments.place, &options),
    }?;
    match arguments.output {
        Output::Text => print!("{}", report.render(arguments.show.as_deref())),
        Output::Json => println!("{:#}", report.to_json(arguments.show.as_deref())),
    }
    Ok(if report.failed() == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
