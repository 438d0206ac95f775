//! `berth conformance`: recorded decisions, exchanges and lives of pods, compared with ours.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::BadInput;
use crate::conformance::{CannotPlay, Options, run_dir, run_files};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  berth conformance testdata/golden\n  \
    berth conformance testdata/golden --show cpu_assign\n  \
    berth conformance testdata/golden-node \\\n      \
    --container-runtime-endpoint unix:///run/containerd/containerd.sock\n\n\
    Recorded kubectl commands are run with the kubectl on the PATH and those that BERTH_KUBECTL\n\
    lists; where there is none they count as not served. Recorded lives of pods are played with our\n\
    own agent on the container runtime that is named, which needs root and takes minutes; where none\n\
    is named they count as not served.\n\n\
    Exit code 0 only if nothing failed, 2 if the runtime or its image is missing. Lines marked with a\n\
    quirk record upstream defects; Berth answers differently there on purpose, and they are counted\n\
    apart.")]
pub(super) struct ConformanceArgs {
    /// Directory with recorded vectors (*.jsonl or *.jsonl.gz), or one file of them
    #[arg(value_name = "DIR")]
    place: PathBuf,
    /// Print each difference; with a word, only those whose file or id contains it
    #[arg(long, num_args = 0..=1, default_missing_value = "", value_name = "WORD")]
    show: Option<String>,
    /// The container runtime to play recorded lives of pods on
    #[arg(long, value_name = "ENDPOINT")]
    container_runtime_endpoint: Option<String>,
    /// Of recorded lives of pods, play those whose id, family or group contains one of these words
    #[arg(long, value_name = "WORDS", value_delimiter = ',')]
    only: Vec<String>,
    /// A table for people, or everything that was judged for programs
    #[arg(short, long, default_value = "text", value_enum, value_name = "FORMAT")]
    output: Output,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Output {
    Text,
    Json,
}

pub(super) fn run(args: ConformanceArgs) -> anyhow::Result<ExitCode> {
    let runtime = args.container_runtime_endpoint.as_deref().map(cri::Endpoint::parse);
    let runtime = runtime
        .transpose()
        .map_err(|error| BadInput::new(format!("--container-runtime-endpoint: {error}")))?;
    let options = Options { runtime, only: args.only };
    let report = match args.place.is_file() {
        true => run_files([args.place], &options),
        false => run_dir(&args.place, &options),
    };
    let report = report.map_err(|error| match error.downcast_ref::<CannotPlay>() {
        Some(missing) => BadInput::new(missing.to_string()).into(),
        None => error,
    })?;
    match args.output {
        Output::Text => print!("{}", report.render(args.show.as_deref())),
        Output::Json => println!("{:#}", report.to_json(args.show.as_deref())),
    }
    Ok(if report.failed() == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
